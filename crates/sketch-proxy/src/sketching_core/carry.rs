//! Entries of ranges that come and go: dropped with their range, or carried by a clean hand-over (rule J).

use super::seal::{Carries, Seal};
use super::{Line, nonce};
use crate::engine::Engine;
use crate::sites::Sites;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::HeaderValue;
use http::{Method, Request, Uri};
use http_body_util::Full;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use tidings_base::{Class, Error, KeyRange};
use tidings_client::placement::{HandOver, Leased, Move};
use tidings_sketch::history::Carried;
use tidings_sketch::http::CORE;
use tidings_sketch::sketch::Sketch;
use tidings_sketch::sketcher::Clean;

/// The most moves whose entries wait for their lease. Of more of them the entries are let go, which costs agreed reads.
const MOST_WAITING: usize = 64;

/// What is remembered of a range, of each site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries(Vec<(Sketch, Carried)>);

impl Entries {
    /// Of a site there is its name among proxies, how long its entries are, and these.
    const HEAD: usize = 16 + 4;
    /// The most bytes of all sites.
    pub(super) const MOST_BYTES: usize = Carried::MOST_BYTES;

    /// Of this range. A site whose entries do not fit beside those of others leaves them behind, which costs agreed reads.
    fn of(sites: &Sites, range: KeyRange, mut room: usize) -> Entries {
        let of = |site: &Arc<Engine>| (site.identity, site.carry(range));
        let fits = |(_, entries): &(Sketch, Carried)| {
            let length = Self::HEAD + entries.length();
            let fits = !entries.is_empty() && length <= room;
            room -= if fits { length } else { 0 };
            fits
        };
        Entries(sites.all().iter().map(of).filter(fits).collect())
    }

    /// As they travel.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (site, entries) in &self.0 {
            let entries = entries.to_bytes();
            bytes.extend(site.0);
            bytes.extend((entries.len() as u32).to_le_bytes());
            bytes.extend(entries);
        }
        bytes
    }

    /// As they came, if that is what they are. Entries of a table that is divided otherwise are read, and taken by none.
    pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Entries> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let (site, rest) = bytes.split_first_chunk::<16>()?;
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let (entries, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            all.push((Sketch(*site), Carried::from_bytes(entries)?));
            bytes = rest;
        }
        Some(Entries(all))
    }

    /// Gives each site its own; how many entries were taken.
    fn put(&self, sites: &Sites, range: KeyRange) -> u64 {
        let taken =
            |(site, entries): &(Sketch, Carried)| sites.of_group(site).map_or(0, |site| site.take_over(range, entries));
        self.0.iter().map(taken).sum()
    }
}

/// Which entries may be used, and those that have arrived for ranges that have not yet.
#[derive(Default)]
pub(crate) struct Books {
    pub(super) clean: RwLock<Clean>,
    sites: OnceLock<Weak<Sites>>,
    /// By the token of their move.
    waiting: Mutex<BTreeMap<u64, Entries>>,
    /// What is taken off, dropped and noted is so in one step before whoever else does that.
    dealing: Mutex<()>,
    carried: AtomicU64,
}

impl Books {
    /// From now on ranges can come with entries.
    pub(super) fn open(&self, sites: &Arc<Sites>) {
        let _ = self.sites.set(Arc::downgrade(sites));
    }

    fn sites(&self) -> Option<Arc<Sites>> {
        self.sites.get().and_then(Weak::upgrade)
    }

    pub(super) fn carried(&self) -> u64 {
        self.carried.load(Relaxed)
    }

    /// Forgets everything; only what is held now is noted.
    pub(super) fn begin_anew(&self, sites: &Sites, held: impl IntoIterator<Item = Leased>) {
        let _dealing = self.dealing.lock();
        self.clean.write().lost(KeyRange::FULL);
        sites.lost(KeyRange::FULL);
        let mut clean = self.clean.write();
        held.into_iter().for_each(|leased| clean.gained(leased.range, leased.lease));
    }

    /// A range is held no more. Told late, it may be held under another lease by now, whose grant has dealt with it.
    pub(super) fn lost(&self, sites: &Sites, leased: Leased) {
        let _dealing = self.dealing.lock();
        if self.clean.write().ended(leased.range, leased.lease) {
            sites.lost(leased.range);
        }
    }

    /// A range is held from now on, and begins empty unless its entries came along.
    pub(super) fn gained(&self, sites: &Sites, leased: Leased) {
        let _dealing = self.dealing.lock();
        if self.clean.read().covers(leased.range, leased.lease) {
            return;
        }
        self.clean.write().lost(leased.range);
        sites.lost(leased.range);
        self.clean.write().gained(leased.range, leased.lease);
    }

    /// A range is about to be held whose entries have arrived: they are put in before the first check can succeed.
    fn take_over(&self, leased: Leased, token: u64) {
        let _dealing = self.dealing.lock();
        self.clean.write().lost(leased.range);
        let arrived = self.waiting.lock().remove(&token);
        let (Some(sites), Some(arrived)) = (self.sites(), arrived) else { return };
        sites.lost(leased.range);
        self.carried.fetch_add(arrived.put(&sites, leased.range), Relaxed);
        self.clean.write().gained(leased.range, leased.lease);
    }

    /// What is remembered of a range that is about to go, if all of it was made under the lease by which it goes. Otherwise
    /// nothing: a range that was lost and granted again may go before the loss is heard of.
    fn export(&self, leased: Leased) -> Vec<u8> {
        let _dealing = self.dealing.lock();
        match self.sites() {
            Some(sites) if self.clean.read().covers(leased.range, leased.lease) => {
                Entries::of(&sites, leased.range, Entries::MOST_BYTES).to_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// Entries have arrived; they wait for their lease.
    pub(super) fn arrived(&self, token: u64, entries: Entries) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING || waiting.contains_key(&token) {
            waiting.insert(token, entries);
        }
    }

    /// The lease of what has arrived will not come: the move was refused, called off, or is over.
    pub(super) fn unwanted(&self, token: u64) {
        self.waiting.lock().remove(&token);
    }

    /// Under a site's other rules nothing is remembered of before. What waits of others goes, too, and is agreed on again.
    pub(super) fn none_is_wanted(&self) {
        self.waiting.lock().clear();
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }
}

/// Carries entries to another proxy's door.
pub(super) struct Carrier {
    pub(super) books: Arc<Books>,
    pub(super) seal: Arc<Seal>,
    pub(super) line: Line,
}

impl Carrier {
    async fn send(&self, to: &Move, entries: Vec<u8>) -> Result<(), String> {
        let nonce = nonce()?;
        let carries = Carries {
            nonce,
            token: to.token,
            incarnation: to.incarnation,
            length: entries.len(),
            entries: self.seal.of_entries(&nonce, &entries),
        };
        let uri = Uri::builder().scheme("http").authority(to.address.as_str()).path_and_query("/");
        let sealed = HeaderValue::from_str(&self.seal.carry(&carries)).map_err(|error| error.to_string())?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri.build().map_err(|error| error.to_string())?)
            .header(CORE, sealed)
            .body(Full::new(Bytes::from(entries)))
            .map_err(|error| error.to_string())?;
        let response = self.line.request(request).await.map_err(|error| error.to_string())?;
        let header = response.headers().get(CORE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match self.seal.has_taken(&carries.nonce, header) {
            true => Ok(()),
            false => Err(format!("it answered {}", response.status())),
        }
    }
}

impl HandOver for Carrier {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let entries = self.books.export(to.leased);
            self.send(&to, entries).await.map_err(|why| {
                let what = format!("{} at {} did not take entries over: {why}", to.owner, to.address);
                Error::new("sketch.not_carried", Class::Unreachable, what)
                    .hint("Proxies of one core share its secret and reach each other by --core-address.")
            })
        })
    }

    fn restamp(&self, leased: Leased, token: u64) {
        self.books.take_over(leased, token);
    }

    fn over(&self, token: u64) {
        self.books.unwanted(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Site};
    use std::net::SocketAddr;
    use tidings_base::LeaseNumber;
    use tidings_sketch::history::{History, Options};
    use tidings_sketch::sigma::Stamp;
    use tidings_sketch::sketcher::{Alone, Ranges};

    /// One page in a table that is divided as the proxy's is.
    const ENTRIES: usize = 200;

    /// Two sites of a core.
    fn opened() -> (Books, Arc<Sites>) {
        let site = |name: &str| Site {
            name: name.to_owned(),
            hosts: vec![name.to_owned()],
            entries: ENTRIES,
            ..Site::of(&["http://a".to_owned()]).unwrap()
        };
        let config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)), vec![site("one"), site("other")]);
        let (alone, secret) = (Arc::new(Alone) as Arc<dyn Ranges>, crate::Secret::new(&[1; 32]).unwrap());
        let (books, sites) = (Books::default(), Arc::new(Sites::start(&config, &alone, Some(&secret)).unwrap()));
        books.open(&sites);
        (books, sites)
    }

    /// Entries of one of them.
    fn entries(site: &Engine) -> Entries {
        let (history, key) = (History::new(&Options::of(ENTRIES)), Sketch([3; 16]));
        let visit = history.visit(&key);
        let (began, ended) = (history.tick(), history.tick());
        history.update(visit, &key, Sketch([4; 16]), Stamp::Voted { began, ended });
        Entries(vec![(site.identity, history.carry(KeyRange::FULL))])
    }

    fn everything(lease: u32) -> Leased {
        Leased { range: KeyRange::FULL, lease: LeaseNumber::new(lease).unwrap() }
    }

    /// How many entries of each site go.
    fn exported(books: &Books, sites: &Sites, lease: u32) -> [usize; 2] {
        let all = Entries::from_bytes(&books.export(everything(lease))).expect("it is read by whoever it is for");
        let of =
            |site: &Engine| all.0.iter().filter(|(whose, _)| *whose == site.identity).map(|(_, of)| of.len()).sum();
        [of(&sites.all()[0]), of(&sites.all()[1])]
    }

    #[test]
    fn only_what_was_made_under_the_lease_goes_along() {
        let (books, sites) = opened();
        let put = |site: usize| entries(&sites.all()[site]).put(&sites, KeyRange::FULL);
        books.gained(&sites, everything(1));
        assert_eq!((put(0), exported(&books, &sites, 1)), (1, [1, 0]), "each site has its own");
        assert_eq!((put(1), exported(&books, &sites, 1)), (1, [1, 1]));
        // It was somebody else's under the second one, and nobody has heard of that.
        assert_eq!(exported(&books, &sites, 3), [0, 0], "what was remembered before");
        books.gained(&sites, everything(3));
        assert_eq!(exported(&books, &sites, 3), [0, 0], "it begins anew");
        assert_eq!((put(1), exported(&books, &sites, 3)), (1, [0, 1]));
    }

    #[test]
    fn what_does_not_fit_beside_others_is_left_behind() {
        let (_books, sites) = opened();
        sites.all().iter().for_each(|site| assert_eq!(entries(site).put(&sites, KeyRange::FULL), 1));
        let goes = |room| Entries::of(&sites, KeyRange::FULL, room).0.len();
        let both = Entries::of(&sites, KeyRange::FULL, usize::MAX).to_bytes().len();
        assert_eq!([both, both - 1, both / 2, both / 2 - 1].map(goes), [2, 1, 1, 0]);
    }

    #[test]
    fn what_came_is_what_was_sent_or_nothing() {
        let (_books, sites) = opened();
        let all = Entries([&sites.all()[0], &sites.all()[1]].iter().flat_map(|site| entries(site).0).collect());
        let bytes = all.to_bytes();
        assert_eq!(Entries::from_bytes(&bytes), Some(all.clone()));
        let half = bytes.len() / 2;
        for end in (1..bytes.len()).filter(|end| *end != half) {
            assert_eq!(Entries::from_bytes(&bytes[..end]), None, "{end}");
        }
        let strange = Entries(vec![(Sketch([9; 16]), all.0[0].1.clone())]);
        assert_eq!(strange.put(&sites, KeyRange::FULL), 0, "of a site that is not here");
    }

    #[test]
    fn what_is_not_wanted_takes_nobodys_place() {
        let (books, sites) = opened();
        let carrier = |books: Books| Carrier {
            books: Arc::new(books),
            seal: Arc::new(Seal::new(b"secret")),
            line: super::super::line(),
        };
        for token in 0..MOST_WAITING as u64 {
            books.arrived(token, entries(&sites.all()[0]));
        }
        books.unwanted(0);
        let carrier = carrier(books);
        (1..MOST_WAITING as u64).for_each(|called_off| carrier.over(called_off));
        assert_eq!(carrier.books.waiting(), 0);
        carrier.books.arrived(100, entries(&sites.all()[0]));
        carrier.restamp(everything(1), 1);
        assert_eq!(carrier.books.carried(), 0, "what came under a token that is over is used by nobody");
        carrier.restamp(everything(2), 100);
        assert_eq!(carrier.books.carried(), 1);
    }
}
