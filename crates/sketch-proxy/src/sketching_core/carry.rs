//! Entries of ranges that come and go: dropped with their range, or carried by a clean hand-over (rule J).

use super::seal::{Carries, Seal};
use super::{Line, nonce};
use crate::engine::Engine;
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
use tidings_sketch::sketcher::Clean;

/// The most moves whose entries wait for their lease. Of more of them the entries are let go, which costs agreed reads.
const MOST_WAITING: usize = 64;

/// Which entries may be used, and those that have arrived for ranges that have not yet.
#[derive(Default)]
pub(crate) struct Books {
    pub(super) clean: RwLock<Clean>,
    engine: OnceLock<Weak<Engine>>,
    /// By the token of their move.
    waiting: Mutex<BTreeMap<u64, Carried>>,
    /// What is taken off, dropped and noted is so in one step before whoever else does that.
    dealing: Mutex<()>,
    carried: AtomicU64,
}

impl Books {
    /// From now on ranges can come with entries.
    pub(super) fn open(&self, engine: &Arc<Engine>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.get().and_then(Weak::upgrade)
    }

    pub(super) fn carried(&self) -> u64 {
        self.carried.load(Relaxed)
    }

    /// Forgets everything; only what is held now is noted.
    pub(super) fn begin_anew(&self, engine: &Arc<Engine>, held: impl IntoIterator<Item = Leased>) {
        let _dealing = self.dealing.lock();
        self.clean.write().lost(KeyRange::FULL);
        engine.lost(KeyRange::FULL);
        let mut clean = self.clean.write();
        held.into_iter().for_each(|leased| clean.gained(leased.range, leased.lease));
    }

    /// A range is held no more. Told late, it may be held under another lease by now, whose grant has dealt with it.
    pub(super) fn lost(&self, engine: &Arc<Engine>, leased: Leased) {
        let _dealing = self.dealing.lock();
        if self.clean.write().ended(leased.range, leased.lease) {
            engine.lost(leased.range);
        }
    }

    /// A range is held from now on, and begins empty unless its entries came along.
    pub(super) fn gained(&self, engine: &Arc<Engine>, leased: Leased) {
        let _dealing = self.dealing.lock();
        if self.clean.read().covers(leased.range, leased.lease) {
            return;
        }
        self.clean.write().lost(leased.range);
        engine.lost(leased.range);
        self.clean.write().gained(leased.range, leased.lease);
    }

    /// A range is about to be held whose entries have arrived: they are put in before the first check can succeed.
    fn take_over(&self, leased: Leased, token: u64) {
        let _dealing = self.dealing.lock();
        self.clean.write().lost(leased.range);
        let arrived = self.waiting.lock().remove(&token);
        let (Some(engine), Some(arrived)) = (self.engine(), arrived) else { return };
        engine.lost(leased.range);
        self.carried.fetch_add(engine.take_over(leased.range, &arrived), Relaxed);
        self.clean.write().gained(leased.range, leased.lease);
    }

    /// What is remembered of a range that is about to go, if all of it was made under the lease by which it goes. Otherwise
    /// nothing: a range that was lost and granted again may go before the loss is heard of.
    fn export(&self, leased: Leased) -> Vec<u8> {
        let _dealing = self.dealing.lock();
        match self.engine() {
            Some(engine) if self.clean.read().covers(leased.range, leased.lease) => engine.carry(leased.range),
            _ => Carried::default().to_bytes(),
        }
    }

    /// Entries have arrived; they wait for their lease.
    pub(super) fn arrived(&self, token: u64, entries: Carried) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING || waiting.contains_key(&token) {
            waiting.insert(token, entries);
        }
    }

    /// The lease of what has arrived will not come: the move was refused, called off, or is over.
    pub(super) fn unwanted(&self, token: u64) {
        self.waiting.lock().remove(&token);
    }

    /// Under other rules nothing is remembered of before.
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
    use crate::config::Config;
    use std::net::SocketAddr;
    use tidings_base::LeaseNumber;
    use tidings_sketch::history::{History, Options};
    use tidings_sketch::sigma::Stamp;
    use tidings_sketch::sketch::{Sketch, Sketching};
    use tidings_sketch::sketcher::Alone;

    /// One page in a table that is divided as the proxy's is.
    const ENTRIES: usize = 200;

    fn opened() -> (Books, Arc<Engine>) {
        let mut config = Config::of(SocketAddr::from(([127, 0, 0, 1], 0)), &["http://a".to_owned()]).unwrap();
        config.entries = ENTRIES;
        let engine = Arc::new(Engine::new(&config, Arc::new(Alone), Some(Sketching::new([1; 32]))).unwrap());
        let books = Books::default();
        books.open(&engine);
        (books, engine)
    }

    fn entries() -> Carried {
        let (history, key) = (History::new(&Options::of(ENTRIES)), Sketch([3; 16]));
        let visit = history.visit(&key);
        let (began, ended) = (history.tick(), history.tick());
        history.update(visit, &key, Sketch([4; 16]), Stamp::Voted { began, ended });
        history.carry(KeyRange::FULL)
    }

    fn everything(lease: u32) -> Leased {
        Leased { range: KeyRange::FULL, lease: LeaseNumber::new(lease).unwrap() }
    }

    fn exported(books: &Books, lease: u32) -> usize {
        Carried::from_bytes(&books.export(everything(lease))).expect("it is read by whoever it is for").len()
    }

    #[test]
    fn only_what_was_made_under_the_lease_goes_along() {
        let (books, engine) = opened();
        books.gained(&engine, everything(1));
        assert_eq!(engine.take_over(KeyRange::FULL, &entries()), 1);
        assert_eq!(exported(&books, 1), 1);
        // It was somebody else's under the second one, and nobody has heard of that.
        assert_eq!(exported(&books, 3), 0, "what was remembered before");
        books.gained(&engine, everything(3));
        assert_eq!(exported(&books, 3), 0, "it begins anew");
        assert_eq!(engine.take_over(KeyRange::FULL, &entries()), 1);
        assert_eq!(exported(&books, 3), 1);
    }

    #[test]
    fn what_is_not_wanted_takes_nobodys_place() {
        let (books, _engine) = opened();
        let carrier = |books: Books| Carrier {
            books: Arc::new(books),
            seal: Arc::new(Seal::new(b"secret")),
            line: super::super::line(),
        };
        for token in 0..MOST_WAITING as u64 {
            books.arrived(token, entries());
        }
        books.unwanted(0);
        let carrier = carrier(books);
        (1..MOST_WAITING as u64).for_each(|called_off| carrier.over(called_off));
        assert_eq!(carrier.books.waiting(), 0);
        carrier.books.arrived(100, entries());
        carrier.restamp(everything(1), 1);
        assert_eq!(carrier.books.carried(), 0, "what came under a token that is over is used by nobody");
        carrier.restamp(everything(2), 100);
        assert_eq!(carrier.books.carried(), 1);
    }
}
