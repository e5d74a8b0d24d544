//! The sites behind one proxy: whose requests are for which, and what concerns all of them.
//!
//! Each has machines, a table and connections of its own. Places in the order of one group mean nothing in another's (rule B), so
//! that one table for all would not do; and a site whose servers are stuck fills its own queues. Connections of clients and room for
//! bodies are the proxy's.

use crate::config::{ANY_HOST, Config, Secret, Site, of_site};
use crate::engine::Engine;
use crate::held::Room;
use crate::sketching_core;
use http::uri::Authority;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tidings_base::{Class, Error, KeyRange};
use tidings_sketch::sketch::Sketch;
use tidings_sketch::sketcher::Ranges;

/// The most sites of one proxy. Each has a table, and health checks, of its own.
pub(crate) const MOST_SITES: usize = 256;

/// All that are behind a proxy; at least one.
#[derive(Debug)]
pub(crate) struct Sites {
    all: Vec<Arc<Engine>>,
    /// By host, or what is behind `*.`.
    hosts: BTreeMap<String, usize>,
    below: BTreeMap<String, usize>,
    others: Option<usize>,
}

impl Sites {
    /// Their machines, which answer for these ranges, and sketch as all who share the secret do; or as nobody else does.
    pub(crate) fn start(config: &Config, ranges: &Arc<dyn Ranges>, shared: Option<&Secret>) -> Result<Sites, Error> {
        check(&config.sites)?;
        let room = Room::new(config.most_held);
        let engine = |site: &Site| {
            let sketching = shared.map(|secret| sketching_core::sketching(site, secret));
            let engine = Engine::new(site, Arc::clone(ranges), sketching, config.threads, &room);
            engine.map(Arc::new).map_err(|error| of_site(&site.name, error))
        };
        let mut sites = Sites { all: Vec::new(), hosts: BTreeMap::new(), below: BTreeMap::new(), others: None };
        for (at, site) in config.sites.iter().enumerate() {
            sites.all.push(engine(site)?);
            for host in &site.hosts {
                match Host::of(host).map_err(|error| of_site(&site.name, error))? {
                    Host::Any => sites.others = Some(at),
                    Host::Below(host) => drop(sites.below.insert(host, at)),
                    Host::Named(host) => drop(sites.hosts.insert(host, at)),
                }
            }
        }
        Ok(sites)
    }

    pub(crate) fn all(&self) -> &[Arc<Engine>] {
        &self.all
    }

    /// Whose requests for this host are: of the site that names it, else of the one that names the nearest above it, else of the one
    /// that takes all others.
    pub(crate) fn of_host(&self, authority: &str) -> Option<&Arc<Engine>> {
        let host = host_of(authority);
        let above = || {
            let mut dots = host.match_indices('.').map(|(dot, _)| &host[dot + 1..]);
            dots.find_map(|above| self.below.get(above))
        };
        let at = self.hosts.get(&host).or_else(above).copied().or(self.others)?;
        self.all.get(at)
    }

    /// The site that proxies of a core call so.
    pub(crate) fn of_group(&self, group: &Sketch) -> Option<&Arc<Engine>> {
        self.all.iter().find(|site| site.identity == *group)
    }

    /// Forgets what is remembered of a range.
    pub(crate) fn lost(&self, range: KeyRange) {
        self.all.iter().for_each(|site| site.lost(range));
    }
}

/// A host's name, without a port.
fn host_of(authority: &str) -> String {
    let whole = authority.parse::<Authority>();
    plain(whole.as_ref().map_or(authority, Authority::host))
}

/// A host in one spelling: without the dot at its end, and an address of IPv6 as it is usually written.
pub(crate) fn plain(host: &str) -> String {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match address.and_then(|address| address.parse::<Ipv6Addr>().ok()) {
        Some(address) => format!("[{address}]"),
        None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    }
}

/// Whose requests are for a site.
enum Host {
    Any,
    Below(String),
    Named(String),
}

impl Host {
    fn of(text: &str) -> Result<Host, Error> {
        let bad = || {
            Error::new("sketch.bad_host", Class::Invalid, format!("`{text}` is not a host"))
                .hint("Name hosts like shop.example, all below one like *.shop.example, and all others by *.")
        };
        if text == ANY_HOST {
            return Ok(Host::Any);
        }
        let (name, below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
        let whole = name.parse::<Authority>().map_err(|_| bad())?;
        // A port does not matter, so that one which is named would be passed over.
        if whole.as_str() != whole.host() || name.contains('*') || (below && name.parse::<Ipv4Addr>().is_ok()) {
            return Err(bad());
        }
        let name = host_of(name);
        Ok(if below { Host::Below(name) } else { Host::Named(name) })
    }
}

/// What sites may not have in common.
fn check(sites: &[Site]) -> Result<(), Error> {
    let bad = |what: String, hint: &'static str| Err(Error::new("sketch.bad_sites", Class::Invalid, what).hint(hint));
    if sites.is_empty() || sites.len() > MOST_SITES {
        return bad(format!("{} sites: there are 1 to {MOST_SITES}", sites.len()), "Start several proxies for more.");
    }
    let (mut names, mut hosts, mut clients) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    for site in sites {
        let name = &site.name;
        let proper = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if sites.len() > 1 && (name.is_empty() || !name.bytes().all(proper)) {
            let what = format!("`{name}` is no name of a site");
            return bad(what, "Name each with letters, digits, `-`, `_` and `.`.");
        }
        if !names.insert(name) {
            return bad(format!("two sites are called {name}"), "Give each a name of its own.");
        }
        if site.hosts.is_empty() {
            let what = format!("no host leads to the site {name}");
            return bad(what, "Say by `hosts` whose requests are for it; all that no other site names are `*`.");
        }
        for host in site.hosts.iter().map(|host| plain(host)) {
            if let Some(other) = hosts.insert(host.clone(), name).filter(|other| *other != name) {
                return bad(format!("{host} leads to both {other} and {name}"), "Leave it to one of them.");
            }
        }
        if let Some(client) = site.group.as_ref().and_then(|group| group.client())
            && let Some(other) = clients.insert(client, name)
        {
            let what = format!("{other} and {name} are the same client of one BFT group");
            return bad(what, "Each needs a client of its own: `tidings bft keygen --clients N`.");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tidings_sketch::sketcher::Alone;

    fn started(sites: &[(&str, &[&str])]) -> Result<Sites, Error> {
        let site = |(name, hosts): &(&str, &[&str])| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            Site { name: (*name).to_owned(), hosts, entries: 100, ..Site::of(&["http://a".to_owned()]).unwrap() }
        };
        let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), sites.iter().map(site).collect());
        Sites::start(&config, &(Arc::new(Alone) as Arc<dyn Ranges>), None)
    }

    #[test]
    fn the_nearest_name_decides() {
        let sites: [(&str, &[&str]); 4] = [
            ("shop", &["shop.example", "*.shop.example", "[::1]"]),
            ("images", &["img.shop.example", "*.img.shop.example"]),
            ("tests", &["Tests.Example."]),
            ("others", &["*"]),
        ];
        let all = started(&sites).unwrap();
        for (asked, whose) in [
            ("shop.example", "shop"),
            ("shop.example:8080", "shop"),
            ("shop.example.:8080", "shop"),
            ("[::1]:8080", "shop"),
            ("[0:0::0001]", "shop"),
            ("www.shop.example", "shop"),
            ("a.b.shop.example", "shop"),
            ("img.shop.example", "images"),
            ("a.img.shop.example", "images"),
            ("tests.example", "tests"),
            ("www.tests.example", "others"),
            ("myshop.example", "others"),
            ("example", "others"),
        ] {
            assert_eq!(all.of_host(asked).unwrap().site.name, whose, "{asked}");
        }
        let without = started(&sites[..3]).unwrap();
        assert!(without.of_host("myshop.example").is_none() && without.of_host("shop.example").is_some());
    }

    #[test]
    fn what_would_be_ambiguous_is_refused_by_name() {
        let code = |sites: &[(&str, &[&str])]| started(sites).err().map(|error| error.code.into_owned());
        assert_eq!(code(&[("", &["*"])]), None, "one needs no name");
        assert_eq!(
            (code(&[]).as_deref(), code(&[("a", &[])]).as_deref()),
            (Some("sketch.bad_sites"), Some("sketch.bad_sites"))
        );
        for [one, other] in [
            [("", "a"), ("b", "b")],
            [("a b", "a"), ("b", "b")],
            [("a", "a"), ("a", "b")],
            [("a", "a"), ("b", "A.")],
            [("a", "[::1]"), ("b", "[0::1]")],
            [("a", "*"), ("b", "*")],
        ] {
            let wrong = code(&[(one.0, &[one.1]), (other.0, &[other.1])]);
            assert_eq!(wrong.as_deref(), Some("sketch.bad_sites"), "{one:?} {other:?}");
        }
        for host in ["a/b", "a:80", "", "*.", "*.*.a", "a b", "*a", "*.10.0.0.1", "user@a"] {
            assert_eq!(code(&[("a", &[host])]).as_deref(), Some("sketch.bad_host"), "{host}");
        }
    }
}
