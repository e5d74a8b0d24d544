//! Placement for applications that speak HTTP: the node holds leases for them (F12) and looks keys up for them.
//!
//! ```text
//!   REST ─▶ Sidecar ─┬─ HttpOwner: the library's Owner ─ Through ─▶ Gate ─▶ the leader, here or elsewhere
//!                    │    └ beliefs: what the application was told, and until when; releases wait for their end
//!                    └─ tables: the library's Lookup, one for each namespace in use
//! ```
//! Between an application and its node there is a network, so a recall cannot reach the application's threads as it
//! reaches those of a process (F11). Instead every answer says for how long it may be believed, which is short, and no
//! release leaves the node before that time is over or the application has said that it knows.

mod beliefs;
mod moves;
mod tables;
mod through;

pub use moves::{Direction, Moving};

use crate::authorize::Action;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::hindrance::Hindrance;
use crate::principal::Principal;
use beliefs::{Beliefs, Telling};
use moves::Moves;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tables::Tables;
use through::Through;
use tidings_base::time::stretched;
use tidings_base::{Class, Error, KeyHash, Mono, NodeId};
use tidings_client::placement::{Leased, Lookup, Owner, OwnerOptions, OwnerState};
use tidings_placement::manager::check_address;
use tokio::sync::watch;

/// How long a registration waits for the first answer of a manager before it returns: what is refused at once is told at
/// once.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// How often owners are looked at whose applications may have gone.
const SWEEP: Duration = Duration::from_millis(250);

/// An application that is silent for as long as a lease is gone; before a lease is known, for this long.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest name of an instance.
const MAX_INSTANCE: usize = 128;

/// What a node does for applications that speak HTTP.
pub struct Sidecar {
    gate: Gate,
    clock: Arc<dyn Clock>,
    most: usize,
    owners: Mutex<Registered>,
    tables: Tables,
    /// See [`Hindrance::forgets_beliefs`].
    forgets_beliefs: AtomicBool,
}

/// Which owner: its namespace under its full name, and its own.
type Place = (String, String);

/// The owners that applications have registered.
#[derive(Default)]
struct Registered(BTreeMap<Place, Arc<HttpOwner>>);

impl Registered {
    /// The owner that this run of an application registered, while it has not left.
    fn of_run(&self, place: &Place, instance: &str) -> Option<&Arc<HttpOwner>> {
        self.0.get(place).filter(|owner| owner.instance == instance && owner.owner.state() != OwnerState::Left)
    }

    /// Takes an owner out, unless another one has taken its place meanwhile.
    fn take(&mut self, place: &Place, owner: &Arc<HttpOwner>) {
        if self.0.get(place).is_some_and(|there| Arc::ptr_eq(there, owner)) {
            self.0.remove(place);
        }
    }
}

/// What an application says when it registers.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Names this run of the application: another one is another process.
    pub instance: String,
    /// Where requests for its keys go.
    pub address: String,
    /// It copies state when asked to.
    pub hands_over: bool,
}

/// An owner that this node runs for an application.
pub struct HttpOwner {
    instance: String,
    /// Whether it copies state when asked to, as it said when it registered.
    hands_over: bool,
    owner: Owner,
    beliefs: Arc<Beliefs>,
    moves: Arc<Moves>,
    /// Counts changes of what the application should know.
    version: Arc<watch::Sender<u64>>,
    /// How the owner stood, and why it was refused, when that was last counted as a change.
    stood: Mutex<(OwnerState, Option<Error>)>,
    /// The last picture that it was given.
    told: Mutex<Given>,
    use_: Mutex<Use>,
}

/// A picture that was given.
#[derive(Debug, Default)]
struct Given {
    version: u64,
    /// Which of all answers it was.
    count: u64,
    held: Vec<Leased>,
}

#[derive(Debug)]
struct Use {
    callers: usize,
    last: Mono,
}

/// What an application should know.
#[derive(Clone, Debug)]
pub struct Picture {
    /// To be acknowledged with the next request.
    pub version: u64,
    /// How its owner stands.
    pub state: OwnerState,
    /// The number of this process among all of this owner's.
    pub incarnation: u64,
    /// What it holds, and for how long it may believe so, dated from before its request.
    pub held: Vec<(Leased, Duration)>,
    /// Moves under way.
    pub moves: Vec<(Direction, Moving)>,
    /// Why managers refuse it, if they do.
    pub refusal: Option<Error>,
}

/// An owner in use by one request.
pub struct InUse {
    http: Arc<HttpOwner>,
    clock: Arc<dyn Clock>,
}

impl Deref for InUse {
    type Target = HttpOwner;

    fn deref(&self) -> &HttpOwner {
        &self.http
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut use_ = self.http.use_.lock();
        use_.callers -= 1;
        use_.last = self.clock.now().mono;
    }
}

impl Sidecar {
    /// A sidecar before what is behind this gate, for so many owners and tables.
    pub fn new(gate: Gate, node: NodeId, owners: usize, tables: usize, clock: Arc<dyn Clock>) -> Arc<Sidecar> {
        let tables = Tables::new(Principal::Node(node), tables, clock.clone());
        let forgets_beliefs = AtomicBool::new(false);
        let sidecar =
            Arc::new(Sidecar { gate, clock, most: owners, owners: Mutex::default(), tables, forgets_beliefs });
        tokio::spawn(sweep(Arc::downgrade(&sidecar)));
        sidecar
    }

    /// Makes it worse than it is.
    pub(crate) fn hindered(&self, hindrance: &Hindrance) {
        self.forgets_beliefs.store(hindrance.forgets_beliefs, Ordering::Relaxed);
    }

    /// The table of a namespace, for a caller who may read it.
    pub async fn lookup(
        self: &Arc<Self>,
        caller: &Principal,
        namespace: &str,
        within: Duration,
    ) -> Result<Lookup, Error> {
        let full = self.gate.namespace(caller, namespace, Action::Read)?;
        self.gate.in_app(caller).await?;
        let found = self.tables.lookup(Arc::downgrade(self), &full, within).await;
        found.map_err(|error| crate::gate::own_words(caller, error))
    }

    /// Registers an owner for an application, or finds the one that this run of it registered before (`false`).
    pub async fn register(
        self: &Arc<Self>,
        caller: &Principal,
        namespace: &str,
        name: &str,
        new: Registration,
    ) -> Result<(InUse, bool), Error> {
        let place = self.place(caller, namespace, name, &new.instance)?;
        self.gate.in_app(caller).await?;
        check_address(&new.address)?;
        let (owner, begun) = self.begin(caller, namespace, place.clone(), new)?;
        let owner = self.in_use(owner);
        if !begun {
            return Ok((owner, false));
        }
        // However it ends: whether managers refuse it is asked next.
        let _ = owner.owner.joined(FIRST_ANSWER).await;
        match owner.owner.refusal() {
            // An earlier process of the name holds leases still: this one waits for their end.
            Some(refusal) if refusal.code != "placement.owner_id_in_use" => {
                self.owners.lock().take(&place, &owner.http);
                owner.leave();
                Err(refusal)
            }
            _ => Ok((owner, true)),
        }
    }

    /// The owner that this run of the application registered.
    pub fn owner(&self, caller: &Principal, namespace: &str, name: &str, instance: &str) -> Result<InUse, Error> {
        let place = self.place(caller, namespace, name, instance)?;
        match self.owners.lock().of_run(&place, instance) {
            Some(owner) => Ok(self.in_use(owner.clone())),
            None => Err(not_registered(name)),
        }
    }

    /// Gives everything up that an owner holds, and forgets it.
    pub fn release(&self, caller: &Principal, namespace: &str, name: &str, instance: &str) -> Result<(), Error> {
        let place = self.place(caller, namespace, name, instance)?;
        let mut owners = self.owners.lock();
        let owner = owners.of_run(&place, instance).cloned().ok_or_else(|| not_registered(name))?;
        owners.take(&place, &owner);
        drop(owners);
        owner.leave();
        Ok(())
    }

    /// Lets go of everything, when the node stops.
    pub fn close(&self) {
        // Applications were not asked: what they believe ends by itself before anything is released.
        std::mem::take(&mut *self.owners.lock()).0.into_values().for_each(|owner| owner.owner.leave());
        self.tables.close();
    }

    fn place(&self, caller: &Principal, namespace: &str, name: &str, instance: &str) -> Result<Place, Error> {
        let full = self.gate.namespace(caller, namespace, Action::Write)?;
        check_instance(instance)?;
        Ok((full, name.to_owned()))
    }

    /// The owner that this run registered before, or a new one (`true`).
    fn begin(
        self: &Arc<Self>,
        caller: &Principal,
        namespace: &str,
        place: Place,
        new: Registration,
    ) -> Result<(Arc<HttpOwner>, bool), Error> {
        let mut owners = self.owners.lock();
        if let Some(owner) = owners.of_run(&place, &new.instance) {
            if owner.hands_over != new.hands_over {
                return Err(registered_otherwise(&place.1));
            }
            owner.owner.set_address(new.address);
            return Ok((owner.clone(), false));
        }
        // F12: another run registers, so everything of the earlier one is released. It may live still: its release waits
        // until it believes nothing any more.
        if let Some(before) = owners.0.remove(&place) {
            before.owner.leave();
        }
        if owners.0.len() >= self.most {
            return Err(busy(self.most));
        }
        let beliefs = Arc::new(Beliefs::default());
        let version = Arc::new(watch::Sender::new(1));
        let moves = Arc::new(Moves::new(version.clone(), self.clock.clone()));
        let through = Through::new(Arc::downgrade(self), caller.clone(), beliefs.clone(), self.clock.clone());
        let mut options = OwnerOptions::new(namespace, &place.1, new.address);
        if new.hands_over {
            options.hand_over = Some(moves.clone());
        }
        let owner = Owner::start(through, options)?;
        let (mut changes, bump) = (owner.changes(), version.clone());
        tokio::spawn(async move {
            while changes.next().await.is_some() {
                bump.send_modify(|version| *version += 1);
            }
        });
        let now = self.clock.now().mono;
        let owner = Arc::new(HttpOwner {
            hands_over: new.hands_over,
            ..HttpOwner::new(new.instance, owner, beliefs, moves, version, now)
        });
        owners.0.insert(place, owner.clone());
        Ok((owner, true))
    }

    fn in_use(&self, owner: Arc<HttpOwner>) -> InUse {
        owner.use_.lock().callers += 1;
        InUse { http: owner, clock: self.clock.clone() }
    }

    /// Leaves for applications that have been silent for as long as a lease lasts.
    fn drop_silent(&self) {
        let now = self.clock.now().mono;
        let mut gone = Vec::new();
        self.owners.lock().0.retain(|_, owner| {
            let use_ = owner.use_.lock();
            let silence = owner.beliefs.lease().map_or(SILENCE, stretched);
            let kept = use_.callers > 0 || now.since(use_.last) < silence;
            drop(use_);
            if !kept {
                gone.push(owner.clone());
            }
            kept
        });
        for owner in gone {
            tracing::info!(owner = owner.owner.name(), "placement: an application is silent; its owner leaves");
            owner.leave();
        }
    }
}

impl HttpOwner {
    fn new(
        instance: String,
        owner: Owner,
        beliefs: Arc<Beliefs>,
        moves: Arc<Moves>,
        version: Arc<watch::Sender<u64>>,
        now: Mono,
    ) -> HttpOwner {
        let stood = Mutex::new((OwnerState::Joining, None));
        let use_ = Mutex::new(Use { callers: 0, last: now });
        HttpOwner { instance, hands_over: false, owner, beliefs, moves, version, stood, told: Mutex::default(), use_ }
    }

    /// What the application should know: at once if it does not know the present version, else at the next change or
    /// after `wait`. Naming a version acknowledges what it told; one that was never told is refused.
    pub async fn picture(&self, now: impl Fn() -> Mono, knows: Option<u64>, wait: Duration) -> Result<Picture, Error> {
        let mut version = self.version.subscribe();
        let state = self.count_standing();
        let present = *version.borrow_and_update();
        if let Some(knows) = knows {
            if knows > present {
                return Err(unknown_version(knows, present));
            }
            let told = self.told.lock();
            if told.version == knows {
                self.beliefs.only(&told.held, told.count);
            }
        }
        if knows == Some(present) {
            tokio::select! {
                _ = version.changed() => {}
                _ = self.owner.state_other_than(state) => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        let state = self.count_standing();
        let (version, held) = self.tell(now());
        Ok(Picture {
            version,
            state,
            incarnation: self.owner.incarnation(),
            held,
            moves: self.moves.all(),
            refusal: self.owner.refusal(),
        })
    }

    /// What it holds now, and under which version that is told: a new one if this version has told of something else, for
    /// naming a version acknowledges one set.
    fn tell(&self, now: Mono) -> (u64, Vec<(Leased, Duration)>) {
        let mut told = self.told.lock();
        let mut version = *self.version.borrow();
        let Telling { count, held } = self.beliefs.tell(now, || self.owner.held());
        let set: Vec<Leased> = held.iter().map(|(leased, _)| *leased).collect();
        if told.version == version && told.held != set {
            self.version.send_modify(|newest| {
                *newest += 1;
                version = *newest;
            });
        }
        *told = Given { version, count, held: set };
        (version, held)
    }

    /// How the owner stands. If it stands otherwise than before, or is refused otherwise, that is a new version: what an
    /// application is told under one version never changes.
    fn count_standing(&self) -> OwnerState {
        let now = (self.owner.state(), self.owner.refusal());
        let mut stood = self.stood.lock();
        if *stood != now {
            self.version.send_modify(|version| *version += 1);
            *stood = now;
        }
        stood.0
    }

    /// Whether the application holds a point of the ring, and for how long it may believe so, dated from before its
    /// request. It counts as a request for it: what policies spread.
    pub fn check(&self, now: Mono, hash: KeyHash) -> Option<(Leased, Duration)> {
        self.owner.check_hash(hash)?;
        self.beliefs.tell(now, || self.owner.remaining(hash).into_iter().collect()).held.pop()
    }

    /// The application has handed a range over, or could not.
    pub fn exported(&self, token: u64, done: bool) -> Result<(), Error> {
        let moving = self.moves.ended(token, done).ok_or_else(no_move)?;
        if done {
            self.beliefs.forget(moving.leased);
        }
        Ok(())
    }

    /// The application has taken state over for this process.
    pub fn imported(&self, token: u64, incarnation: u64) -> Result<(), Error> {
        self.owner.imported(token, incarnation)?;
        self.moves.no_more(token);
        Ok(())
    }

    /// What the application measured.
    pub fn report_load(&self, load: tidings_wire::v1::OwnerLoad) {
        self.owner.report_load(load);
    }

    /// The run of the application is silent for longer than it may believe anything, or says itself that it gives everything
    /// up: nobody believes anything any more.
    fn leave(&self) {
        self.beliefs.clear();
        self.owner.leave();
    }
}

async fn sweep(sidecar: Weak<Sidecar>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match sidecar.upgrade() {
            Some(sidecar) => sidecar.drop_silent(),
            None => return,
        }
    }
}

fn check_instance(instance: &str) -> Result<(), Error> {
    let (code, what) = match instance.len() {
        0 => ("placement.no_instance", "the request does not say which run it is of".to_owned()),
        1..=MAX_INSTANCE => return Ok(()),
        long => ("placement.bad_instance", format!("`instance` has {long} bytes, more than {MAX_INSTANCE}")),
    };
    Err(Error::new(code, Class::Invalid, what)
        .hint(format!("Send `instance`, 1 to {MAX_INSTANCE} bytes, new at each start of the application.")))
}

fn not_registered(name: &str) -> Error {
    let name = crate::principal::clip(name);
    Error::new(
        "placement.not_registered",
        Class::NotFound,
        format!("owner `{name}` is not registered here by this run"),
    )
    .hint("Register it at this node; what an earlier run of the application held is released.")
}

fn registered_otherwise(name: &str) -> Error {
    let name = crate::principal::clip(name);
    let what = format!("this run of owner `{name}` has registered with another `hands_over`");
    Error::new("placement.registered_otherwise", Class::Refused, what)
        .hint("Register with a new `instance`; the address alone may change.")
}

fn unknown_version(knows: u64, present: u64) -> Error {
    let message = format!("`after` is {knows}, and the latest version that was told is {present}");
    Error::new("placement.unknown_version", Class::Invalid, message)
        .hint("Send the `version` of the last answer to this run, or leave `after` out to begin anew.")
}

fn no_move() -> Error {
    Error::new("placement.no_move", Class::NotFound, "there is no such move under way")
        .hint("It was given up: this owner serves the range again.")
}

fn busy(limit: usize) -> Error {
    Error::new("control.busy", Class::Unreachable, format!("{limit} owners speak HTTP to this node already"))
        .hint("Use another node, or let the operator raise placement.http_owners.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use tidings_base::{KeyRange, LeaseNumber};
    use tidings_client::placement::testing::TestPool;
    use tidings_client::placement::{HandOver as _, Move};

    async fn http(pool: &TestPool) -> HttpOwner {
        let (version, clock) = (Arc::new(watch::Sender::new(1)), Arc::new(SystemClock));
        let moves = Arc::new(Moves::new(version.clone(), clock));
        let owner = pool.join("one").await.unwrap();
        pool.settled().await;
        HttpOwner::new("run".into(), owner, Arc::default(), moves, version, SystemClock.now().mono)
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_was_replaced_takes_nobody_else_out() {
        let pool = TestPool::start("n").await.unwrap();
        let place: Place = ("n".into(), "one".into());
        let earlier = Arc::new(http(&pool).await);
        let mut owners = Registered::default();
        owners.0.insert(place.clone(), earlier.clone());
        earlier.owner.leave();
        assert!(owners.of_run(&place, "run").is_none(), "it has left");
        let later = Arc::new(http(&pool).await);
        owners.0.insert(place.clone(), later.clone());
        // The earlier one hears only now that it was refused.
        owners.take(&place, &earlier);
        assert!(owners.of_run(&place, "run").is_some_and(|there| Arc::ptr_eq(there, &later)));
        owners.take(&place, &later);
        assert!(owners.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn checks_by_http_count_as_requests() {
        let pool = TestPool::start("n").await.unwrap();
        let http = http(&pool).await;
        for n in 0..1_000 {
            assert!(http.check(SystemClock.now().mono, KeyHash(n)).is_some());
        }
        // Longer than requests are gathered.
        tokio::time::sleep(Duration::from_secs(15)).await;
        let rate = pool.placement().owners("n").await.unwrap()[0].rate;
        assert!(rate > 10.0, "{rate}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_move_here_is_listed_with_what_is_left_of_its_time_until_it_is_over() {
        let pool = TestPool::start("n").await.unwrap();
        let http = http(&pool).await;
        let leased = Leased { range: KeyRange::FULL, lease: LeaseNumber::new(3).unwrap() };
        let (owner, address) = ("two".to_owned(), "two:1".to_owned());
        let within = Duration::from_secs(30);
        http.moves.expect(Move { token: 7, leased, owner, address, incarnation: 1, within });
        let picture = http.picture(|| SystemClock.now().mono, None, Duration::ZERO).await.unwrap();
        let [(Direction::In, listed)] = &picture.moves[..] else { panic!("{:?}", picture.moves) };
        assert!(listed.token == 7 && listed.within < within, "{listed:?}");
        http.moves.over(7);
        let after = http.picture(|| SystemClock.now().mono, Some(picture.version), Duration::ZERO).await.unwrap();
        assert!(after.version > picture.version && after.moves.is_empty());
    }
}
