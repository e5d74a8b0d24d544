//! What passes the sketcher, by name; what may be fast, by path; and how large bodies may be.

use super::SESSION_COOKIE;
use crate::mutant::Mutant;
use crate::session;
use crate::sigma::Sigma;
use crate::sketch::{Of, Sketching};
use crate::sketcher::Way;
use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// What is done with requests and responses. Every change is a new generation, which is part of s(q): what was remembered
/// under other rules is not found again.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Grows with every change.
    pub generation: u64,
    /// Whether several sketchers share these rules, as those of one core do: then what the rules say stands in s(q) in the place
    /// of the generation, which each of them counts for itself.
    pub shared: bool,
    /// Request headers that are forwarded, and so sketched. All others are stripped.
    pub inputs: Vec<HeaderName>,
    /// Request headers that are forwarded and declared to have no influence on the answer.
    pub non_inputs: Vec<HeaderName>,
    /// Response headers that are stripped, beside those that are the sketcher's own to write.
    pub stripped: Vec<HeaderName>,
    /// Cookies that do not pass, by name or, with `*` behind it, by how their names begin. Whoever brings no others names nobody.
    pub stripped_cookies: Vec<String>,
    /// Ways by path: the longest prefix decides.
    pub paths: Vec<PathRule>,
    /// Whether answers that set a cookie may be remembered. Only where all clients may have the same one.
    pub remembers_set_cookie: bool,
    /// A rule left out, for tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// The way of all requests below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// The path begins so.
    pub prefix: String,
    /// The way of reads.
    pub way: Way,
    /// Whether requests with `Authorization` or `Cookie` may be fast, too.
    pub personal_too: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            generation: 0,
            shared: false,
            inputs: vec![
                header::ACCEPT,
                header::ACCEPT_LANGUAGE,
                header::AUTHORIZATION,
                header::CONTENT_TYPE,
                header::CONTENT_ENCODING,
                header::COOKIE,
                header::ORIGIN,
            ],
            non_inputs: vec![header::USER_AGENT],
            // It differs between interchangeable servers, and tells attackers what is behind.
            stripped: vec![header::SERVER],
            stripped_cookies: Vec::new(),
            paths: Vec::new(),
            remembers_set_cookie: false,
            mutant: None,
        }
    }
}

/// Headers that end at each hop (RFC 9110 §7.6.1); lengths and codings of transfer are made anew.
pub(super) fn hop_by_hop(name: &HeaderName) -> bool {
    let known = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::HOST,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    known.contains(name) || ["keep-alive", "proxy-connection"].contains(&name.as_str())
}

/// Date, Via and Age are written by the sketcher, ETag and ranges are its own (rules C and D), and nobody but the sketcher
/// says what was verified.
fn is_own(name: &HeaderName) -> bool {
    let own =
        [header::DATE, header::VIA, header::AGE, header::ETAG, header::ACCEPT_RANGES, super::VERIFIED, super::CORE];
    own.contains(name)
}

impl Rules {
    /// What of the rules stands in s(q).
    pub(super) fn identity(&self) -> u64 {
        if !self.shared {
            return self.generation;
        }
        let mut pen = Sketching::new([0; 32]).begin(Of::Request);
        for names in [&self.inputs, &self.non_inputs, &self.stripped] {
            pen.number(names.len() as u64);
            names.iter().for_each(|name| {
                pen.field(name.as_str().as_bytes());
            });
        }
        pen.number(self.stripped_cookies.len() as u64);
        self.stripped_cookies.iter().for_each(|name| {
            pen.field(name.as_bytes());
        });
        for rule in &self.paths {
            pen.field(rule.prefix.as_bytes()).number(rule.way as u64).number(rule.personal_too.into());
        }
        let sketch = pen.number(self.remembers_set_cookie.into()).finish();
        u64::from(sketch.word(0)) << 32 | u64::from(sketch.word(4))
    }

    pub(super) fn forwards(&self, name: &HeaderName) -> bool {
        self.inputs.contains(name) && !super::conditions::is_conditional(name)
    }

    pub(super) fn is_non_input(&self, name: &HeaderName) -> bool {
        self.non_inputs.contains(name) && !self.inputs.contains(name) && !super::conditions::is_conditional(name)
    }

    pub(super) fn returns(&self, name: &HeaderName) -> bool {
        !is_own(name) && !self.stripped.contains(name)
    }

    /// Whether a rule about a header has an effect: not so for what ends at each hop, and for what the sketcher does itself.
    pub fn decides(name: &HeaderName) -> bool {
        !hop_by_hop(name) && !is_own(name) && !super::conditions::is_conditional(name)
    }

    /// The way of a read. Servers take some paths for other spellings of one path: what the rules say of either holds, if it is the
    /// stricter. So nobody leads another one to what is verified by a spelling that is not.
    pub(super) fn way(&self, path: &str, personal: bool) -> Way {
        let literal = self.paths.iter().filter(|rule| path.starts_with(&rule.prefix));
        let as_it_came = Self::way_by(literal.max_by_key(|rule| rule.prefix.len()), personal);
        let Some(plain) = plain(path) else { return as_it_came };
        let leads = |rule: &&PathRule| plain.starts_with(self::plain(&rule.prefix).as_ref().unwrap_or(&rule.prefix));
        let as_plain = Self::way_by(self.paths.iter().filter(leads).max_by_key(|rule| rule.prefix.len()), personal);
        let strictest = [Way::Personal, Way::Replicated, Way::Usual];
        strictest.into_iter().find(|way| [as_it_came, as_plain].contains(way)).unwrap_or(as_it_came)
    }

    /// Whoever names himself may be answered for himself: never fast unless a rule says so (rule C).
    fn way_by(rule: Option<&PathRule>, personal: bool) -> Way {
        match rule {
            Some(rule) if !personal || rule.personal_too => rule.way,
            None if !personal => Way::Usual,
            _ => Way::Personal,
        }
    }

    /// Whether a request names its client: by what may decide the answer, and not by what ends here.
    pub(super) fn is_personal(&self, headers: &HeaderMap) -> bool {
        let passes = |name: &HeaderName| self.forwards(name) || self.is_non_input(name);
        [header::COOKIE, header::AUTHORIZATION].iter().any(|name| headers.contains_key(name) && passes(name))
    }

    fn strips(&self, cookie: &[u8]) -> bool {
        let name = cookie.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        self.stripped_cookies.iter().any(|stripped| match stripped.strip_suffix('*') {
            Some(begin) => name.starts_with(begin.as_bytes()),
            None => name == stripped.as_bytes(),
        })
    }

    /// The headers without our own cookie and those that do not pass, and what ours says. Others may be of any bytes.
    pub(super) fn without_session(&self, sketching: &Sketching, headers: &HeaderMap) -> (HeaderMap, Option<Sigma>) {
        let mut kept = headers.clone();
        let (mut session, mut others) = (None, Vec::<&[u8]>::new());
        for value in headers.get_all(header::COOKIE) {
            let pairs = value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            for pair in pairs.filter(|pair| !pair.is_empty()) {
                match pair.strip_prefix(SESSION_COOKIE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                    Some(token) => {
                        let token = std::str::from_utf8(token).ok();
                        session = session.max(token.and_then(|token| session::open(sketching, token)));
                    }
                    None if self.strips(pair) => {}
                    None => others.push(pair),
                }
            }
        }
        kept.remove(header::COOKIE);
        if let Ok(value) = HeaderValue::from_bytes(&others.join(&b"; "[..]))
            && !others.is_empty()
        {
            kept.insert(header::COOKIE, value);
        }
        (kept, session)
    }
}

/// The path that the most servers would take for the same: without escapes, empty parts, backslashes and dots. `None` if this one has
/// none of them.
fn plain(path: &str) -> Option<String> {
    if !["%", "\\", "//", "/."].iter().any(|odd| path.contains(odd)) {
        return None;
    }
    let bytes: Vec<u8> = percent_decode_str(path).map(|byte| if byte == b'\\' { b'/' } else { byte }).collect();
    let text = String::from_utf8_lossy(&bytes);
    let (mut parts, mut ends_open) = (Vec::new(), true);
    for part in text.split('/') {
        // Some servers pass over what follows a semicolon.
        let name = part.split(';').next().unwrap_or_default();
        ends_open = matches!(name, "" | "." | "..");
        match name {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let end = if ends_open && !parts.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", parts.join("/")))
}

/// How large bodies may be (rule L).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bodies {
    /// Up to here they are held in memory until they are verified.
    pub memory: u64,
    /// Up to here on disk. Larger ones are refused.
    pub disk: u64,
    /// If set, larger ones pass unverified, and are marked so, instead of being held.
    pub unverified_above: Option<u64>,
}

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies { memory: 1 << 20, disk: 1 << 30, unverified_above: None }
    }
}

/// What is done with a body of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Held in memory, verified, sent.
    Memory,
    /// Held on disk, verified, sent.
    Disk,
    /// Sent as it comes, and marked.
    Unverified,
    /// Too large.
    Refused,
}

impl Bodies {
    /// What is done with a body that has this length, or has reached it.
    pub fn hold(&self, length: u64) -> Hold {
        match length {
            _ if self.unverified_above.is_some_and(|above| length > above) => Hold::Unverified,
            _ if length <= self.memory => Hold::Memory,
            _ if length <= self.disk => Hold::Disk,
            _ => Hold::Refused,
        }
    }
}
