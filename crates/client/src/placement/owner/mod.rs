//! The owner: what a server holds, and how it serves it safely.

mod change;
mod core;
mod hand_over;
mod identity;
mod items;
mod load;
mod options;

pub use self::core::OwnerState;
pub use change::{Changes, OwnershipChange};
pub use hand_over::HandOver;
pub use items::Items;
pub use options::OwnerOptions;

use self::core::Core;
use super::driver;
use super::transport::PlacementTransport;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, LeaseNumber};
use tidings_placement::{Leased, key_hash};
use tidings_wire::v1;

/// A member of a pool: it is told which keys it holds, and serves no others. Cheap to clone; when the last clone is dropped
/// everything is given up at once (use [`Owner::drain`] to hand it over instead).
///
/// ```no_run
/// # use tidings_client::{Client, ClientConfig, placement::{Items, Owner, OwnerOptions}};
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let client = Client::connect(ClientConfig::new(["http://127.0.0.1:7400"])).await?;
/// let counters = Items::<u64>::new();
/// let options = OwnerOptions::new("counters", "server-1", "10.0.0.7:8080").items(&counters);
/// let owner = Owner::join(client, options).await?;
/// // In a handler of requests: refused unless this server owns the key now and has owned it all the while.
/// let count = owner.with(&counters, "some key", |count| {
///     let count = count.get_or_insert(0);
///     *count += 1;
///     *count
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Owner {
    core: Arc<Core>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Core>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Why an operation on a key is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// This server does not hold the key: nothing was done. Whoever asked should look up again.
    NotOwner,
    /// The lease was interrupted while the operation ran: it may or may not count.
    Unknown,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Interrupted::NotOwner => "this server does not own the key",
            Interrupted::Unknown => "the lease of the key was interrupted meanwhile",
        })
    }
}

impl std::error::Error for Interrupted {}

impl From<Interrupted> for Error {
    fn from(why: Interrupted) -> Error {
        match why {
            Interrupted::NotOwner => Error::new("placement.not_owner", Class::Refused, why.to_string())
                .hint("Look the key up again after a short pause."),
            Interrupted::Unknown => Error::new("placement.interrupted", Class::OutcomeUnknown, why.to_string())
                .hint("Look the key up and read what is there."),
        }
    }
}

/// A range that is held, and for how long still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lease.
    pub leased: Leased,
    /// What is left of it, if it is not renewed.
    pub remaining: Duration,
}

impl Owner {
    /// Joins a pool, and waits until a manager knows this owner.
    ///
    /// An owner whose earlier process may still hold leases waits for their end (or proves that process dead, see
    /// [`OwnerOptions::data_dir`]). Fails at once if the namespace is unknown or the options cannot be used.
    pub async fn join(transport: impl PlacementTransport, options: OwnerOptions) -> Result<Owner, Error> {
        let within = options.join_within;
        let owner = Owner::start(transport, options)?;
        owner.joined(within).await?;
        Ok(owner)
    }

    /// Begins to join and does not wait: until a manager grants something nothing is held.
    pub fn start(transport: impl PlacementTransport, options: OwnerOptions) -> Result<Owner, Error> {
        let (core, asks) = Core::new(Arc::new(transport), options)?;
        tokio::spawn(driver::run(core.clone(), asks));
        core.begin();
        Ok(Owner { _alive: Arc::new(Alive(core.clone())), core })
    }

    /// Waits until a manager knows this owner, or has refused it for a reason that will last; at most so long.
    pub async fn joined(&self, within: Duration) -> Result<(), Error> {
        self.core.joined(within).await
    }

    // ---- checks: lock-free ------------------------------------------------------------------------------------------

    /// The number of the lease under which this server holds a key at this instant, if it does.
    #[inline]
    pub fn check_now(&self, key: impl AsRef<[u8]>) -> Option<LeaseNumber> {
        key_hash(key.as_ref()).ok().and_then(|hash| self.check_hash(hash))
    }

    /// Whether a key is held now under the same lease as then, and so all the time between. `false` = unknown.
    #[inline]
    pub fn check_continuous(&self, key: impl AsRef<[u8]>, lease: LeaseNumber) -> bool {
        key_hash(key.as_ref()).is_ok_and(|hash| self.core.check(hash) == Some(lease))
    }

    /// The same as [`Owner::check_now`] for a point of the ring. Both count as a request for it: what policies spread.
    #[inline]
    pub fn check_hash(&self, hash: KeyHash) -> Option<LeaseNumber> {
        self.core.check_and_count(hash)
    }

    /// The lease of a point of the ring with what is left of it, if it is held.
    pub fn remaining(&self, hash: KeyHash) -> Option<Held> {
        self.core.remaining(hash)
    }

    /// Everything that is held and served at this instant, in the order of the ring.
    pub fn held(&self) -> Vec<Held> {
        self.core.held()
    }

    // ---- the four steps ---------------------------------------------------------------------------------------------

    /// Operates on the state of a key, safely (the paper's four steps, figure 10): the lease is checked; state of an
    /// earlier lease is discarded; the operation runs on what is left, alone on that key; the lease is checked again, and
    /// the answer given only if it held all the while.
    ///
    /// The operation must not wait: others who want items of the same shard do.
    pub fn with<V, R>(
        &self,
        items: &Items<V>,
        key: impl AsRef<[u8]>,
        operate: impl FnOnce(&mut Option<V>) -> R,
    ) -> Result<R, Error> {
        let key = key.as_ref();
        let hash = key_hash(key)?;
        let lease = self.check_hash(hash).ok_or(Interrupted::NotOwner)?;
        let answer = items.operate(key, hash, lease, operate)?;
        self.confirm(hash, lease).map(|()| answer)
    }

    /// The same for operations that wait: the state is shared, such as an `Arc` of a lock, made if it is not there.
    pub async fn with_shared<V: Clone, R>(
        &self,
        items: &Items<V>,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> V,
        operate: impl AsyncFnOnce(V) -> R,
    ) -> Result<R, Error> {
        let key = key.as_ref();
        let hash = key_hash(key)?;
        let lease = self.check_hash(hash).ok_or(Interrupted::NotOwner)?;
        let state = items.operate(key, hash, lease, |state| state.get_or_insert_with(make).clone())?;
        let answer = operate(state).await;
        self.confirm(hash, lease).map(|()| answer)
    }

    /// The same for state that is kept elsewhere: the operation is told the lease number, must discard state of earlier
    /// ones, and should send it along as a fencing token to whatever it writes to.
    pub fn guarded<R>(&self, key: impl AsRef<[u8]>, operate: impl FnOnce(LeaseNumber) -> R) -> Result<R, Error> {
        let hash = key_hash(key.as_ref())?;
        let lease = self.check_hash(hash).ok_or(Interrupted::NotOwner)?;
        let answer = operate(lease);
        self.confirm(hash, lease).map(|()| answer)
    }

    /// [`Owner::guarded`] for operations that wait.
    pub async fn guarded_async<R>(
        &self,
        key: impl AsRef<[u8]>,
        operate: impl AsyncFnOnce(LeaseNumber) -> R,
    ) -> Result<R, Error> {
        let hash = key_hash(key.as_ref())?;
        let lease = self.check_hash(hash).ok_or(Interrupted::NotOwner)?;
        let answer = operate(lease).await;
        self.confirm(hash, lease).map(|()| answer)
    }

    fn confirm(&self, hash: KeyHash, lease: LeaseNumber) -> Result<(), Error> {
        match self.core.check(hash) == Some(lease) {
            true => Ok(()),
            false => Err(Interrupted::Unknown.into()),
        }
    }

    // ---- what happens -----------------------------------------------------------------------------------------------

    /// What was granted and revoked, as a stream. It may be late and is never an authority: checks are.
    pub fn changes(&self) -> Changes {
        Changes { mailbox: self.core.changes() }
    }

    /// How this owner stands.
    pub fn state(&self) -> OwnerState {
        self.core.state()
    }

    /// Waits until this owner stands otherwise than `state`; how it does then.
    pub async fn state_other_than(&self, state: OwnerState) -> OwnerState {
        self.core.state_other_than(state).await
    }

    /// Why the managers refuse this owner, if they said so last: the namespace was deleted, a later process of the same name
    /// has registered, …
    pub fn refusal(&self) -> Option<Error> {
        self.core.refusal()
    }

    /// This owner's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// The number of this process among all of this owner's; it grows with every start.
    pub fn incarnation(&self) -> u64 {
        self.core.incarnation()
    }

    // ---- moving state -----------------------------------------------------------------------------------------------

    /// State arrived from another owner under a token, for this process: its lease may be granted now (F9).
    ///
    /// Call it when everything is in place and will be served once the lease is granted. Whoever keeps state in [`Items`]
    /// calls [`Owner::receive`] instead.
    pub fn imported(&self, token: u64, incarnation: u64) -> Result<(), Error> {
        self.core.imported(token, incarnation)
    }

    /// What arrived under a token is gone again: a grant that relies on it is refused, and told as a loss.
    pub fn forget(&self, token: u64) {
        self.core.forget(token);
    }

    /// State for [`Items`] arrived from another owner under a token, for this process. It is served once the lease is
    /// granted, and dropped once the move is given up.
    pub fn receive<V: Send + 'static>(
        &self,
        items: &Items<V>,
        token: u64,
        incarnation: u64,
        entries: Vec<(Vec<u8>, V)>,
    ) -> Result<(), Error> {
        self.core.receive(items, token, incarnation, entries)
    }

    /// Hands everything over to the others and waits until nothing is left (what the namespace's drain time does not suffice
    /// for, or what nobody else is there to take, is lost and told as a loss). Afterwards this owner has left.
    ///
    /// Fails once nothing is held any more and no manager will ever say so: the namespace was deleted, a later process has
    /// taken the name, or nobody has answered for as long as a lease lasts. The process may go then, too.
    pub async fn drain(&self) -> Result<(), Error> {
        self.core.drain().await
    }

    /// Sends requests for this owner's keys elsewhere from now on: lookups are told with the next change of the table.
    pub fn set_address(&self, address: impl Into<String>) {
        self.core.set_address(address.into());
    }

    /// Gives everything up at once, without handing over.
    pub fn leave(&self) {
        self.core.leave();
    }

    // ---- load -------------------------------------------------------------------------------------------------------

    /// Says what the application measured itself, with the next poll. From then on checks are not counted any more: it stands
    /// until the application says something else.
    pub fn report_load(&self, load: v1::OwnerLoad) {
        self.core.report_load(load);
    }

    /// Says how the application judges itself: nothing is renewed while it is unhealthy, and what it held is given up.
    pub fn set_healthy(&self, healthy: bool) {
        self.core.set_healthy(healthy);
    }
}
