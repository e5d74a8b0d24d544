//! What sketchers of one core say to each other in the header `Tidings-Core`, and how each knows that the other one said it.
//!
//! ```text
//!   A ─ ask NONCE SITE http usual CLIENT PLACE MAC ─▶ B    covers s(q), and so the whole request and whose it is
//!     ◀─ page agreed MAC ──────────────────         covers the nonce and s(r), and so the whole page
//!     ◀─ refused moved MAC ────────────────
//!   A ─ carry NONCE TOKEN INCARNATION LENGTH ENTRIES MAC ─▶ B    covers what stands before it; ENTRIES is their own MAC
//!     ◀─ took MAC ─────────────────────────
//! ```
//! MACs are keyed by the core's secret. Whoever does not know it is answered nothing; a page that was changed or is of an
//! earlier time has another MAC. Nothing is encrypted.

use std::fmt;
use tidings_base::Incarnation;
use tidings_sketch::group;
use tidings_sketch::http::Fields;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{Of, Pen, Sketch, Sketching};
use tidings_sketch::sketcher::{How, Refusal, Way};

/// Names a message, so that an answer to another one is none to it.
pub(crate) type Nonce = [u8; 16];

/// What goes along with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asks {
    pub(crate) nonce: Nonce,
    /// Of which site, as proxies call it.
    pub(crate) site: Sketch,
    /// As the client asked.
    pub(crate) scheme: &'static str,
    pub(crate) way: Way,
    /// Whom replicated reads are counted for.
    pub(crate) client: u64,
    /// The write that the answer may not be older than (rule K).
    pub(crate) after: Option<Sigma>,
}

/// What goes along with entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carries {
    pub(crate) nonce: Nonce,
    /// Names the move at both owners.
    pub(crate) token: u64,
    /// The receiver's.
    pub(crate) incarnation: u64,
    /// Of the entries, in bytes.
    pub(crate) length: usize,
    /// The MAC of the entries: what goes along can be believed before they are read.
    pub(crate) entries: Sketch,
}

/// What a sketcher was asked, and the MAC that must be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Asks(Asks, Sketch),
    Carries(Carries, Sketch),
}

/// What another sketcher answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// A page, if this MAC is that of its sketch.
    Page(How, Sketch),
    Refused(Refusal),
}

/// The core's secret, for what its members say to each other.
#[derive(Debug)]
pub(crate) struct Seal {
    sketching: Sketching,
}

impl Seal {
    pub(crate) fn new(secret: &[u8]) -> Seal {
        Seal { sketching: Sketching::derived(secret, "door", &[]) }
    }

    fn pen(&self, of: Of, what: &str, nonce: &Nonce) -> Pen {
        let mut pen = self.sketching.begin(of);
        pen.field(what.as_bytes()).field(nonce);
        pen
    }

    /// The MAC of a request.
    pub(crate) fn of_ask(&self, asks: &Asks, key: &Sketch, non_inputs: &Fields) -> Sketch {
        let mut pen = self.pen(Of::Request, "ask", &asks.nonce);
        pen.field(&asks.site.0)
            .field(asks.scheme.as_bytes())
            .field(way(asks.way).as_bytes())
            .number(asks.client)
            .field(&key.0);
        pen.field(place(asks.after).as_bytes());
        for (name, value) in non_inputs {
            pen.field(name.as_str().as_bytes()).field(value.as_bytes());
        }
        pen.finish()
    }

    /// The MAC of entries.
    pub(crate) fn of_entries(&self, nonce: &Nonce, entries: &[u8]) -> Sketch {
        self.pen(Of::Request, "entries", nonce).field(entries).finish()
    }

    /// The MAC of what goes along with entries.
    pub(crate) fn of_carry(&self, carries: &Carries) -> Sketch {
        let Carries { nonce, token, incarnation, length, entries } = carries;
        let mut pen = self.pen(Of::Request, "carry", nonce);
        pen.number(*token).number(*incarnation).number(*length as u64).field(&entries.0).finish()
    }

    /// The MAC of a page.
    pub(crate) fn of_page(&self, nonce: &Nonce, how: How, page: &Sketch) -> Sketch {
        self.pen(Of::Response, "page", nonce).field(word(how).as_bytes()).field(&page.0).finish()
    }

    fn of_refusal(&self, nonce: &Nonce, word: &str) -> Sketch {
        self.pen(Of::Response, "refused", nonce).field(word.as_bytes()).finish()
    }

    fn of_taken(&self, nonce: &Nonce) -> Sketch {
        self.pen(Of::Response, "took", nonce).finish()
    }

    /// The header of a request.
    pub(crate) fn ask(&self, asks: &Asks, key: &Sketch, non_inputs: &Fields) -> String {
        let mac = self.of_ask(asks, key, non_inputs);
        let Asks { nonce, site, scheme, way: its, client, after } = asks;
        let after = place(*after);
        format!("ask {} {} {scheme} {} {client:016x} {after} {}", Hex(*nonce), Hex(site.0), way(*its), Hex(mac.0))
    }

    /// The header of entries.
    pub(crate) fn carry(&self, carries: &Carries) -> String {
        let (mac, Carries { nonce, token, incarnation, length, entries }) = (self.of_carry(carries), carries);
        format!("carry {} {token} {incarnation} {length} {} {}", Hex(*nonce), Hex(entries.0), Hex(mac.0))
    }

    /// The header of a page.
    pub(crate) fn page(&self, nonce: &Nonce, how: How, page: &Sketch) -> String {
        format!("page {} {}", word(how), Hex(self.of_page(nonce, how, page).0))
    }

    /// The header of a refusal.
    pub(crate) fn refusal(&self, nonce: &Nonce, why: Refusal) -> String {
        let word = refusal_word(why);
        format!("refused {word} {}", Hex(self.of_refusal(nonce, word).0))
    }

    /// The header of an acknowledgement.
    pub(crate) fn taken(&self, nonce: &Nonce) -> String {
        format!("took {}", Hex(self.of_taken(nonce).0))
    }

    /// What an answer says, if it is one to this message. A page's MAC remains to be checked.
    pub(crate) fn says(&self, nonce: &Nonce, header: &str) -> Option<Says> {
        let parts: Vec<&str> = header.split(' ').collect();
        match parts[..] {
            ["page", how, mac] => Some(Says::Page(how_of(how)?, hex(mac)?)),
            ["refused", word, mac] if same(&self.of_refusal(nonce, word), &hex(mac)?) => {
                Some(Says::Refused(refusal_of(word)?))
            }
            _ => None,
        }
    }

    /// Whether an answer acknowledges this message.
    pub(crate) fn has_taken(&self, nonce: &Nonce, header: &str) -> bool {
        header.strip_prefix("took ").and_then(hex).is_some_and(|mac| same(&mac, &self.of_taken(nonce)))
    }
}

/// What a message asks for, if it is a proper one. Nothing of it is believed yet.
pub(crate) fn open(header: &str) -> Option<Opened> {
    let parts: Vec<&str> = header.split(' ').collect();
    match parts[..] {
        ["ask", nonce, site, scheme, way, client, after, mac] => {
            let scheme = ["http", "https"].into_iter().find(|known| *known == scheme)?;
            let client = u64::from_str_radix(client, 16).ok()?;
            let (nonce, site) = (hex(nonce)?.0, hex(site)?);
            let asks = Asks { nonce, site, scheme, way: way_of(way)?, client, after: place_of(after)? };
            Some(Opened::Asks(asks, hex(mac)?))
        }
        ["carry", nonce, token, incarnation, length, entries, mac] => {
            let carries = Carries {
                nonce: hex(nonce)?.0,
                token: token.parse().ok()?,
                incarnation: incarnation.parse().ok()?,
                length: length.parse().ok()?,
                entries: hex(entries)?,
            };
            Some(Opened::Carries(carries, hex(mac)?))
        }
        _ => None,
    }
}

/// Whether two MACs are the same, in a time that does not tell where they differ.
pub(crate) fn same(one: &Sketch, other: &Sketch) -> bool {
    one.0.iter().zip(other.0).fold(0, |differ, (left, right)| differ | (left ^ right)) == 0
}

struct Hex([u8; 16]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

fn hex(text: &str) -> Option<Sketch> {
    let proper = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    proper.then(|| u128::from_str_radix(text, 16).ok())?.map(|number| Sketch(number.to_be_bytes()))
}

/// A place in a group's order, or none.
fn place(sigma: Option<Sigma>) -> String {
    let told = |sigma: Sigma| format!("{}.{}.{}", sigma.incarnation().0, sigma.height(), sigma.index());
    sigma.map_or_else(|| NO_PLACE.to_owned(), told)
}

const NO_PLACE: &str = "-";

fn place_of(word: &str) -> Option<Option<Sigma>> {
    if word == NO_PLACE {
        return Some(None);
    }
    let mut numbers = word.split('.').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (life, height, index) = (next()?, next()?, u32::try_from(next()?).ok()?);
    let sigma = Sigma::new(Incarnation(life), height, index)?;
    numbers.next().is_none().then_some(Some(sigma))
}

fn way(way: Way) -> &'static str {
    match way {
        Way::Usual => "usual",
        Way::Replicated => "agreed",
        Way::One => "one",
        Way::Personal => "personal",
    }
}

/// Reads from one origin need no table, so they are never passed on.
fn way_of(word: &str) -> Option<Way> {
    [Way::Usual, Way::Replicated, Way::Personal].into_iter().find(|known| way(*known) == word)
}

fn word(how: How) -> &'static str {
    match how {
        How::Fast => "fast",
        How::Agreed => "agreed",
        How::Unverified => "no",
    }
}

fn how_of(text: &str) -> Option<How> {
    [How::Fast, How::Agreed, How::Unverified].into_iter().find(|how| word(*how) == text)
}

/// Why what is behind a site has no answer.
const OF_GROUP: [group::Refusal; 3] =
    [group::Refusal::Disagreement, group::Refusal::Unreachable, group::Refusal::OtherService];

fn refusal_word(why: Refusal) -> &'static str {
    match why {
        Refusal::TooManyReplicated => "too-many",
        Refusal::Group(group::Refusal::Disagreement) => "disagreement",
        Refusal::Group(group::Refusal::Unreachable) => "unreachable",
        Refusal::Group(group::Refusal::OtherService) => "other-service",
        Refusal::Busy => "busy",
        // What is not for the client to hear: the one who asked goes another way.
        Refusal::Moved | Refusal::WritesRefused | Refusal::NoAnswer => "moved",
    }
}

fn refusal_of(word: &str) -> Option<Refusal> {
    let of_group = OF_GROUP.map(Refusal::Group);
    let known = [Refusal::Moved, Refusal::Busy, Refusal::TooManyReplicated].into_iter().chain(of_group);
    known.into_iter().find(|why| refusal_word(*why) == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{HeaderValue, USER_AGENT};

    const NONCE: Nonce = [7; 16];
    const KEY: Sketch = Sketch([1; 16]);
    const SITE: Sketch = Sketch([5; 16]);

    fn seal() -> Seal {
        Seal::new(b"the core's secret")
    }

    #[test]
    fn a_request_is_what_was_sealed_or_none() {
        let after = Sigma::new(Incarnation(3), 70_000, 12);
        let asks = Asks { nonce: NONCE, site: SITE, scheme: "https", way: Way::Usual, client: 99, after };
        let agent: Fields = vec![(USER_AGENT, HeaderValue::from_static("x"))];
        let header = seal().ask(&asks, &KEY, &agent);
        let Some(Opened::Asks(opened, mac)) = open(&header) else { panic!("{header}") };
        assert_eq!(opened, asks);
        assert!(same(&mac, &seal().of_ask(&opened, &KEY, &agent)));
        let others = [
            seal().of_ask(&opened, &Sketch([2; 16]), &agent),
            seal().of_ask(&opened, &KEY, &Fields::new()),
            seal().of_ask(&Asks { client: 98, ..opened }, &KEY, &agent),
            seal().of_ask(&Asks { scheme: "http", ..opened }, &KEY, &agent),
            seal().of_ask(&Asks { way: Way::Replicated, ..opened }, &KEY, &agent),
            seal().of_ask(&Asks { nonce: [8; 16], ..opened }, &KEY, &agent),
            seal().of_ask(&Asks { site: Sketch([6; 16]), ..opened }, &KEY, &agent),
            seal().of_ask(&Asks { after: None, ..opened }, &KEY, &agent),
            Seal::new(b"another secret").of_ask(&opened, &KEY, &agent),
        ];
        assert!(others.iter().all(|other| !same(other, &mac)));
    }

    #[test]
    fn answers_are_to_one_message() {
        let page = Sketch([3; 16]);
        let header = seal().page(&NONCE, How::Agreed, &page);
        let Some(Says::Page(How::Agreed, mac)) = seal().says(&NONCE, &header) else { panic!("{header}") };
        assert!(same(&mac, &seal().of_page(&NONCE, How::Agreed, &page)));
        assert!(!same(&mac, &seal().of_page(&NONCE, How::Fast, &page)));
        assert!(!same(&mac, &seal().of_page(&[8; 16], How::Agreed, &page)));
        let of_group = OF_GROUP.map(Refusal::Group);
        for why in [Refusal::Moved, Refusal::Busy, Refusal::TooManyReplicated].into_iter().chain(of_group) {
            let header = seal().refusal(&NONCE, why);
            assert_eq!(seal().says(&NONCE, &header), Some(Says::Refused(why)));
            assert_eq!(seal().says(&[8; 16], &header), None);
        }
        let header = seal().refusal(&NONCE, Refusal::NoAnswer);
        assert_eq!(seal().says(&NONCE, &header), Some(Says::Refused(Refusal::Moved)), "it is nobody else's");
        let header = seal().taken(&NONCE);
        assert!(seal().has_taken(&NONCE, &header) && !seal().has_taken(&[8; 16], &header));
    }

    #[test]
    fn entries_are_of_one_move() {
        let entries = seal().of_entries(&NONCE, b"entries");
        let carries = Carries { nonce: NONCE, token: 5, incarnation: 6, length: 7, entries };
        let header = seal().carry(&carries);
        let Some(Opened::Carries(opened, mac)) = open(&header) else { panic!("{header}") };
        assert_eq!((opened, mac), (carries, seal().of_carry(&carries)));
        let others = [
            Carries { nonce: [8; 16], ..carries },
            Carries { token: 6, ..carries },
            Carries { incarnation: 7, ..carries },
            Carries { length: 8, ..carries },
            Carries { entries: seal().of_entries(&NONCE, b"Entries"), ..carries },
        ];
        assert!(others.iter().all(|other| !same(&mac, &seal().of_carry(other))));
        assert!(!same(&entries, &seal().of_entries(&[8; 16], b"entries")));
    }

    #[test]
    fn nonsense_is_none() {
        let proper = seal().ask(
            &Asks { nonce: NONCE, site: SITE, scheme: "http", way: Way::Usual, client: 1, after: None },
            &KEY,
            &Fields::new(),
        );
        for end in 0..proper.len() {
            assert_eq!(open(&proper[..end]), None);
        }
        for wrong in [
            proper.replace("http", "ftp"),
            proper.replace("usual", "one"),
            proper.replace("ask", "Ask"),
            format!("{proper} "),
            proper.replace(' ', "  "),
            proper.replace(" - ", " 1.2 "),
            proper.replace(" - ", " 1.2.3.4 "),
        ] {
            assert_eq!(open(&wrong), None, "{wrong}");
        }
        assert_eq!(seal().says(&NONCE, "page fast"), None);
        assert_eq!(seal().says(&NONCE, ""), None);
    }
}
