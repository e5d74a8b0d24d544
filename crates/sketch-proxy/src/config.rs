//! Which origins, which quorum, which rules; every field with its default and why.

use crate::ordered::{BftGroup, CellGroup, Group, Ordered};
use crate::sites::plain;
use crate::threads::cores;
use crate::tls::Identity;
use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::{OwnerOptions, PlacementTransport};
use tidings_sketch::group::Kind;
use tidings_sketch::http::{Bodies, Rules};
use tidings_sketch::sketcher::{Allowance, Writes};

/// A server behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Its host and port.
    pub authority: Authority,
}

impl Origin {
    /// Where it is, however it was written.
    fn place(&self) -> (String, u16) {
        let usual = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        (plain(self.authority.host()), self.authority.port_u16().unwrap_or(usual))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

/// How origins are checked, whether or not anybody asks for anything.
#[derive(Clone, Debug)]
pub struct Checks {
    /// What is asked for; anything below 400 passes.
    pub path: PathAndQuery,
    /// From a check's end to the next one. 2 s: a restart is noticed before most clients are.
    pub interval: Duration,
    /// How long an origin has for a check. 1 s, like a fast read.
    pub patience: Duration,
    /// So many failures in a row, and it is not asked alone. 3: one or two are a restart.
    pub down: u32,
    /// So many passes in a row, and it is again. 2: one may be luck.
    pub up: u32,
}

impl Checks {
    /// The defaults for this path.
    pub fn of(path: &str) -> Result<Checks, Error> {
        let seconds = Duration::from_secs;
        let path = path.parse::<PathAndQuery>().ok().filter(|_| path.starts_with('/')).ok_or_else(|| {
            Error::new("sketch.bad_path", Class::Invalid, format!("`{path}` is not a path"))
                .hint("Name what origins are checked by like /healthz.")
        })?;
        Ok(Checks { path, interval: seconds(2), patience: seconds(1), down: 3, up: 2 })
    }
}

/// The namespace of a sketching core, unless it is named otherwise.
pub const NAMESPACE: &str = "sketches";

/// What the proxies of one core share, and nobody else knows: pages are sketched by it, and they know each other by it.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// A secret of these bytes, if nobody can guess it.
    pub fn new(bytes: &[u8]) -> Result<Secret, Error> {
        if !(32..=4_096).contains(&bytes.len()) {
            let what = format!("a secret of {} bytes: it must have 32 to 4,096", bytes.len());
            return Err(Error::new("sketch.bad_secret", Class::Invalid, what).hint(
                "Make one by `head -c 32 /dev/urandom > core.secret`, and give every proxy of the core the same.",
            ));
        }
        Ok(Secret(bytes.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The part that a proxy has in a sketching core.
#[derive(Clone)]
pub struct Core {
    /// By what placement is reached.
    pub transport: Arc<dyn PlacementTransport>,
    /// How it joins. Its address is put in; without a name it is called by that.
    pub owner: OwnerOptions,
    /// Where other proxies are heard: MACed and not encrypted, so in a network of their own.
    pub listen: SocketAddr,
    /// Where they reach it, as HOST:PORT. By default where it listens.
    pub address: Option<String>,
    /// What they share.
    pub secret: Secret,
    /// The most requests that are put to other proxies at a time; what is more goes to all origins. 1,024, like those that
    /// this proxy has under way itself.
    pub most_forwards: usize,
    /// How long reads of a group with an order wait for whoever holds their range, if that is longer than `give_up`. 20 s: longer than
    /// leases of a namespace that proxies make (12 s), and what it takes to notice.
    pub holderless: Duration,
}

impl Core {
    /// The defaults for this way to placement.
    pub fn of(transport: impl PlacementTransport, listen: SocketAddr, secret: Secret) -> Core {
        let owner = OwnerOptions::new(NAMESPACE, "", "");
        let holderless = Duration::from_secs(20);
        Core { transport: Arc::new(transport), owner, listen, address: None, secret, most_forwards: 1_024, holderless }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { owner, listen, address, .. } = self;
        f.debug_struct("Core").field("owner", owner).field("listen", listen).field("address", address).finish()
    }
}

/// What is behind the proxy, for whoever asks for its hosts.
#[derive(Clone, Debug)]
pub struct Site {
    /// What it is called where there are several: in statistics, and among proxies of a core, which must call it alike.
    pub name: String,
    /// Whose requests are for it: a host (`shop.example`), all below one (`*.shop.example`), or all that no other site names (`*`).
    /// A port does not matter.
    pub hosts: Vec<String>,
    /// The servers, which serve the same.
    pub origins: Vec<Origin>,
    /// A group with an order, in place of origins.
    pub group: Option<Group>,
    /// The authorities that origins' certificates must be of. By default those that the system trusts.
    pub origin_ca: Option<PathBuf>,
    /// How they are checked. Not by default: whoever is away is noticed by requests, too, and what may be asked for is the
    /// origins' business.
    pub checks: Option<Checks>,
    /// Whether a client reads what it has written itself, by a cookie (rule K). Not by default: its reads wait for the order until
    /// they have caught up with its writes. Only before a group.
    pub read_your_writes: bool,
    /// How many of them may be wrong. By default as many as a quorum of more than half bears: (N − 1) / 2.
    pub faults: u16,
    /// How many must say the same. By default f + 1.
    pub quorum: u16,
    /// What is done with methods other than GET and HEAD. Refused by default: origins that are written to one by one are soon
    /// no longer interchangeable.
    pub writes: Writes,
    /// Whether a page that no quorum agrees on is served all the same, marked `Tidings-Verified: no`.
    pub unverified_rather_than_none: bool,
    /// What passes, and what may be fast.
    pub rules: Rules,
    /// How many pages are remembered; each takes about 31 bytes.
    pub entries: usize,
    /// The longest body of a request. It is held in memory.
    pub longest_request: usize,
    /// How bodies of pages are held until they are verified (rule L): 1 MiB in memory, 1 GiB on disk.
    pub bodies: Bodies,
    /// Where bodies lie that are too long for memory.
    pub spool: PathBuf,
    /// The most bytes of them altogether.
    pub most_on_disk: u64,
    /// The most requests under way. Of each site, so that one whose servers are stuck takes nobody else's place.
    pub most_requests: usize,
    /// What each client address may cause in pages that nothing is remembered of.
    pub allowance: Option<Allowance>,
    /// How long an origin has for a fast answer; then all are asked.
    pub patience: Duration,
    /// How long origins have for a vote.
    pub give_up: Duration,
}

impl Site {
    /// The defaults for these origins, such as `http://10.0.0.1:8080`, for whatever host is asked for.
    pub fn of(origins: &[String]) -> Result<Site, Error> {
        let origins = origins.iter().map(|text| origin(text, "sketch.bad_origin", "origin", "http://10.0.0.1:8080"));
        let origins = origins.collect::<Result<Vec<Origin>, Error>>()?;
        let mut places = BTreeSet::new();
        if let Some(twice) = origins.iter().find(|origin| !places.insert(origin.place())) {
            return Err(Error::new("sketch.bad_origin", Class::Invalid, format!("{twice} is named twice"))
                .hint("Name each server once: one that is wrong would have two votes."));
        }
        let count = u16::try_from(origins.len()).unwrap_or(u16::MAX);
        let faults = count.saturating_sub(1) / 2;
        Ok(Site {
            name: String::new(),
            hosts: vec![ANY_HOST.to_owned()],
            origins,
            group: None,
            origin_ca: None,
            checks: None,
            read_your_writes: false,
            faults,
            quorum: faults + 1,
            writes: Writes::Refused,
            unverified_rather_than_none: false,
            rules: Rules::default(),
            entries: 1 << 20,
            longest_request: 1 << 20,
            bodies: Bodies::default(),
            spool: std::env::temp_dir(),
            most_on_disk: 8 << 30,
            most_requests: 1_024,
            allowance: Some(Allowance { burst: 256, every: Duration::from_millis(20) }),
            patience: Duration::from_secs(1),
            give_up: Duration::from_secs(10),
        })
    }

    /// The defaults before a BFT group.
    pub fn of_group(group: BftGroup) -> Result<Site, Error> {
        let faults = group.membership.faults();
        Ok(Site {
            faults,
            quorum: 2 * faults + 1,
            writes: Writes::Replicated,
            group: Some(Group::Bft(group)),
            ..Site::of(&[])?
        })
    }

    /// The defaults before a cell. Its members do not lie, so that one answer is enough, and all but one may be left out. Writes are
    /// refused: whoever reaches the proxy may do what its key may.
    pub fn of_cell(cell: CellGroup) -> Result<Site, Error> {
        let group = Group::Cell(cell);
        Ok(Site { faults: group.size().saturating_sub(1), quorum: 1, group: Some(group), ..Site::of(&[])? })
    }

    /// How many there are behind it.
    pub fn replicas(&self) -> u16 {
        let origins = u16::try_from(self.origins.len()).unwrap_or(u16::MAX);
        self.group.as_ref().map_or(origins, Group::size)
    }

    /// How the machine for votes asks what is behind, if that does not agree by itself.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let origins = Some(Kind::Origins { faults: self.faults, quorum: self.quorum });
        self.group.as_ref().map_or(origins, Ordered::asked_by_machine)
    }
}

/// An error of one of several sites, which says so.
pub fn of_site(name: &str, error: Error) -> Error {
    match name {
        "" => error,
        name => Error { message: format!("site {name}: {}", error.message), ..error },
    }
}

/// All hosts that no other site names.
pub const ANY_HOST: &str = "*";

/// How a proxy runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What is behind it, one or more; each remembers for itself.
    pub sites: Vec<Site>,
    /// What clients are shown, if they come by TLS.
    pub tls: Option<Identity>,
    /// Where metrics and statistics are told, to this machine alone. Nowhere by default.
    pub admin: Option<SocketAddr>,
    /// Its part in a sketching core. By default it remembers alone.
    pub core: Option<Core>,
    /// Whether it is noted how static pages are, for `sketch survey`. Not by default: it takes up to 64 MiB.
    pub survey: bool,
    /// How many threads serve clients. As many as there are cores by default.
    pub threads: NonZeroUsize,
    /// The most bytes of requests' bodies: those that still come, and those of requests that are not answered yet.
    pub most_requested: usize,
    /// The most bytes of pages' bodies in memory that are not verified yet, of all sites; what comes beyond lies on disk. 256 MiB, like
    /// what clients have not taken.
    pub most_held: usize,
    /// The most connections.
    pub most_connections: usize,
    /// The most bytes of answers that clients have not taken yet: whoever reads slowly holds a page in memory.
    pub most_untaken: usize,
    /// How long a client has to send its request's head, and again its body.
    pub slow_client: Duration,
}

impl Config {
    /// The defaults for these sites.
    pub fn new(listen: SocketAddr, sites: Vec<Site>) -> Config {
        Config {
            listen,
            sites,
            tls: None,
            admin: None,
            core: None,
            survey: false,
            threads: cores(),
            most_requested: 256 << 20,
            most_held: 256 << 20,
            most_connections: 10_000,
            most_untaken: 256 << 20,
            slow_client: Duration::from_secs(30),
        }
    }

    /// The defaults for one site with these origins, such as `http://10.0.0.1:8080`.
    pub fn of(listen: SocketAddr, origins: &[String]) -> Result<Config, Error> {
        Ok(Config::new(listen, vec![Site::of(origins)?]))
    }
}

/// A server by its URL; `what` and `such` are for whoever mistypes one.
pub(crate) fn origin(text: &str, code: &'static str, what: &str, such: &str) -> Result<Origin, Error> {
    let bad = |why: &str| {
        Error::new(code, Class::Invalid, format!("`{text}` is not the URL of one {what}: {why}"))
            .hint(format!("Name each {what} like {such}."))
    };
    let uri: Uri = text.parse().map_err(|_| bad("it is not a URL"))?;
    let known = |scheme: &&Scheme| [Scheme::HTTP, Scheme::HTTPS].contains(*scheme);
    let scheme = uri.scheme().filter(known).ok_or_else(|| bad("only http:// and https:// are spoken"))?;
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err(bad("it has a path"));
    }
    let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
    Ok(Origin { scheme: scheme.clone(), authority: authority.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_named_by_host_and_port() {
        let of = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Site::of(&texts)
        };
        let five = of(&["http://a:1", "http://b:1/", "https://c", "http://d", "http://e"]).unwrap();
        assert_eq!((five.faults, five.quorum), (2, 3));
        assert_eq!(five.origins[1].to_string(), "http://b:1");
        assert_eq!(five.origins[2].to_string(), "https://c");
        assert_eq!(Checks::of("/healthz?deep").unwrap().path, "/healthz?deep");
        assert_eq!(
            ["", "healthz", "/a b", "*"].map(|wrong| Checks::of(wrong).unwrap_err().code),
            ["sketch.bad_path"; 4]
        );
        for (one, other) in [
            ("http://a:1", "http://a:1/"),
            ("http://A", "http://a:80"),
            ("http://a.:80", "http://a"),
            ("https://a", "https://a:443"),
            ("http://[::1]", "http://[0:0::1]:80"),
            ("http://[FE80::A]:81", "http://[fe80:0::a]:81"),
        ] {
            assert!(of(&[one, other]).unwrap_err().message.ends_with("is named twice"), "{one} {other}");
        }
        assert!(of(&["http://a", "https://a", "http://a:8080", "http://[::1]", "http://[::2]"]).is_ok());
        for wrong in ["a:80", "http://a/path", "ftp://a", ""] {
            assert_eq!(of(&[wrong]).unwrap_err().code, "sketch.bad_origin", "{wrong}");
        }
    }
}
