//! The lookup: whom to ask for a key, and what was lost.

mod core;

use self::core::{Core, Standing};
use super::clock::Clock;
use super::driver::{self, Driven as _};
use super::errors;
use super::stream::{Mailbox, Merge};
use super::transport::PlacementTransport;
use arc_swap::Guard;
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tidings_base::{Error, KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_placement::directory::{Directory, Found};
use tidings_placement::key_hash;
use tidings_placement::lookup::TableOwner;
use tokio::sync::watch;

/// Lost ranges that are told one by one; more than these are told as the whole ring, which is always safe to say.
const MOST_LOST: usize = 65_536;

/// How a lookup behaves.
#[derive(Clone, Debug)]
pub struct LookupOptions {
    /// The namespace.
    pub namespace: String,
    /// How long to wait for the first table. 10 s: longer than a fail-over of the managers.
    pub connect_within: Duration,
    /// What ages are told by.
    pub clock: Clock,
}

impl LookupOptions {
    /// A lookup of this namespace, otherwise with defaults.
    pub fn new(namespace: impl Into<String>) -> LookupOptions {
        LookupOptions { namespace: namespace.into(), connect_within: Duration::from_secs(10), clock: Clock::boot() }
    }
}

impl From<&str> for LookupOptions {
    fn from(namespace: &str) -> LookupOptions {
        LookupOptions::new(namespace)
    }
}

/// Whom to ask for a key. Cheap to clone; it stops when the last clone is dropped.
///
/// ```no_run
/// # use tidings_client::{Client, ClientConfig, placement::{Lookup, Placed}};
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let client = Client::connect(ClientConfig::new(["http://127.0.0.1:7400"])).await?;
/// let lookup = Lookup::connect(client, "counters").await?;
/// match lookup.lookup("some key")? {
///     Placed::Hint(hint) => println!("ask {}, fence with {}", hint.address(), hint.lease()),
///     Placed::Unowned => println!("nobody at the moment; try again in a moment"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lookup {
    core: Arc<Core>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Core>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Where a key is.
#[derive(Debug)]
pub enum Placed<'a> {
    /// Its owner, as far as is known.
    Hint(Hint<'a>),
    /// Nobody owns it at the moment: its owner was lost or there is none yet.
    Unowned,
}

impl<'a> Placed<'a> {
    /// The hint, if there is one.
    pub fn hint(self) -> Option<Hint<'a>> {
        match self {
            Placed::Hint(hint) => Some(hint),
            Placed::Unowned => None,
        }
    }
}

/// Who is said to own a key. The owner itself checks, and refuses what it does not own.
///
/// It costs no write that threads share, as long as a thread keeps few of them at a time.
#[derive(Debug)]
pub struct Hint<'a> {
    directory: Guard<Arc<Directory>>,
    found: Found,
    heard: Mono,
    clock: &'a Clock,
}

impl Hint<'_> {
    /// The owner's name.
    pub fn owner(&self) -> &str {
        self.place().map_or("", |owner| &owner.id)
    }

    /// Where to ask.
    pub fn address(&self) -> &str {
        self.place().map_or("", |owner| &owner.address)
    }

    /// The number of its lease. It may have a later one by now.
    pub fn lease(&self) -> LeaseNumber {
        self.found.lease
    }

    /// How long ago a manager last confirmed the table it is from.
    pub fn age(&self) -> Duration {
        self.clock.mono().since(self.heard)
    }

    /// Always there: it was found in this directory.
    fn place(&self) -> Option<&TableOwner> {
        self.directory.owner(self.found.owner)
    }
}

/// State that was lost: whoever published there should do so again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where; none wraps, and they do not overlap.
    pub ranges: Vec<KeyRange>,
}

impl Loss {
    /// A loss of these ranges: those that touch are one, however they were divided.
    pub fn new(ranges: Vec<KeyRange>) -> Loss {
        let mut loss = Loss { ranges: Vec::new() };
        loss.absorb(Loss { ranges });
        loss
    }

    /// Whether the state of a key is among it.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> bool {
        self.contains_hash(KeyHash::of(key.as_ref()))
    }

    /// Whether the state of a point of the ring is among it.
    pub fn contains_hash(&self, hash: KeyHash) -> bool {
        self.ranges.iter().any(|range| range.contains(hash))
    }
}

impl Merge for Loss {
    fn absorb(&mut self, later: Loss) {
        self.ranges.extend(later.ranges);
        self.ranges.sort_unstable();
        let mut joined: Vec<KeyRange> = Vec::with_capacity(self.ranges.len());
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last) if range.start.0 <= last.last.0.saturating_add(1) => last.last = last.last.max(range.last),
                _ => joined.push(range),
            }
        }
        self.ranges = if joined.len() > MOST_LOST { vec![KeyRange::FULL] } else { joined };
    }
}

/// Losses as a stream; it ends with the lookup.
pub struct Losses {
    mailbox: Arc<Mailbox<Loss>>,
}

impl Losses {
    /// The next loss; `None` once the lookup has stopped.
    pub async fn next(&mut self) -> Option<Loss> {
        std::future::poll_fn(|cx| self.mailbox.poll(cx)).await
    }
}

impl Stream for Losses {
    type Item = Loss;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Loss>> {
        self.mailbox.poll(cx)
    }
}

/// Changes of the table; those that come while nobody waits are told as one.
pub struct Tables {
    standing: watch::Receiver<Standing>,
}

impl Tables {
    /// Waits until the table has changed since the last time, or since this was made; `false` once the lookup has stopped.
    pub async fn changed(&mut self) -> bool {
        let before = self.standing.borrow_and_update().tables;
        let next = self.standing.wait_for(|standing| standing.tables > before || standing.over).await;
        next.is_ok_and(|standing| !standing.over)
    }
}

impl Lookup {
    /// Begins to look up, and waits for the first table.
    pub async fn connect(
        transport: impl PlacementTransport,
        options: impl Into<LookupOptions>,
    ) -> Result<Lookup, Error> {
        let options = options.into();
        let within = options.connect_within;
        let lookup = Lookup::start(transport, options)?;
        lookup.core.first_table(within).await?;
        Ok(lookup)
    }

    /// Begins to look up and does not wait: until a manager answers everything is unowned.
    pub fn start(transport: impl PlacementTransport, options: impl Into<LookupOptions>) -> Result<Lookup, Error> {
        let seed = getrandom::u64().map_err(errors::no_randomness)?;
        let (core, asks) = Core::new(Arc::new(transport), options.into(), seed);
        tokio::spawn(driver::run(core.clone(), asks));
        core.begin();
        Ok(Lookup { _alive: Arc::new(Alive(core.clone())), core })
    }

    /// Where a key is; refused if it is longer than a key may be.
    #[inline]
    pub fn lookup(&self, key: impl AsRef<[u8]>) -> Result<Placed<'_>, Error> {
        Ok(self.lookup_hash(key_hash(key.as_ref())?).map_or(Placed::Unowned, Placed::Hint))
    }

    /// Where a point of the ring is.
    #[inline]
    pub fn lookup_hash(&self, hash: KeyHash) -> Option<Hint<'_>> {
        let directory = self.core.directory().guard();
        let found = directory.find(hash)?;
        Some(Hint { directory, found, heard: self.core.heard(), clock: self.core.clock() })
    }

    /// Uses the answer in place: no lock, no write that threads share, and the least that a lookup can cost.
    #[inline]
    pub fn find<R>(&self, hash: KeyHash, found: impl FnOnce(&TableOwner, LeaseNumber) -> R) -> Option<R> {
        self.core.directory().read(|directory| {
            let place = directory.find(hash)?;
            Some(found(directory.owner(place.owner)?, place.lease))
        })
    }

    /// The whole table as it is known now.
    pub fn directory(&self) -> Arc<Directory> {
        self.core.directory().full()
    }

    /// What was lost, as a stream. The first one tells of everything since this lookup began; the first table itself raises
    /// no loss, since nothing was published through this lookup before it.
    pub fn losses(&self) -> Losses {
        Losses { mailbox: self.core.losses() }
    }

    /// How long ago a manager last confirmed the table; `None` = none has yet.
    pub fn age(&self) -> Option<Duration> {
        let heard = self.core.heard();
        (heard > Mono(0)).then(|| self.core.clock().mono().since(heard))
    }

    /// The number of the last change that is known.
    pub fn lsn(&self) -> u64 {
        self.core.lsn()
    }

    /// Why the managers do not answer this lookup, if they said so last.
    pub fn refusal(&self) -> Option<Error> {
        self.core.refusal()
    }

    /// Waits until the managers refuse this lookup for good reasons, such as that its namespace was deleted.
    pub async fn refused(&self) -> Error {
        self.core.until_refused().await
    }

    /// Tells when the table has changed.
    pub fn tables(&self) -> Tables {
        Tables { standing: self.core.standing() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_joined_and_bounded() {
        let range = |start, last| KeyRange::new(KeyHash(start), KeyHash(last));
        let mut loss = Loss { ranges: vec![range(10, 20), range(40, 50)] };
        loss.absorb(Loss { ranges: vec![range(21, 30), range(5, 12), range(u64::MAX, u64::MAX)] });
        assert_eq!(loss.ranges, [range(5, 30), range(40, 50), range(u64::MAX, u64::MAX)]);
        assert!(loss.contains_hash(KeyHash(30)) && !loss.contains_hash(KeyHash(31)));
        let many = (0..MOST_LOST as u64 + 10).map(|i| range(i * 10, i * 10));
        loss.absorb(Loss { ranges: many.collect() });
        assert_eq!(loss.ranges, [KeyRange::FULL]);
    }
}
