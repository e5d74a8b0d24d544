//! One owner as it runs: the machine behind a lock, and what its outputs do to the outside.
//!
//! Whoever brings an input runs the machine on the spot and performs its outbox in order: what is held is published before
//! the message that reports it leaves (F11), and state that came by a clean move is restamped before that.

use super::super::clock::Clock;
use super::super::driver::{Ask, Driven};
use super::super::errors;
use super::super::stream::{Mailbox, Readers};
use super::super::transport::PlacementTransport;
use super::change::OwnershipChange;
use super::hand_over::{self, HandOver};
use super::identity::{self, Identity};
use super::items::{Items, Stamped};
use super::load::Load;
use super::{Held, OwnerOptions};
use parking_lot::Mutex;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, LeaseNumber, Machine, Mono, Outbox};
use tidings_placement::Ticket;
use tidings_placement::check::{Checks, Holding};
use tidings_placement::owner::{Input, Options, Output, Owner};
use tidings_wire::v1::{self, placement_message::Message};
use tokio::sync::{Notify, mpsc, watch};

/// How long a drain waits at least for a manager's word: longer than the managers' fail-over takes.
const NOBODY_ANSWERS: Duration = Duration::from_secs(10);

/// How long a leave is told at least, if no manager has said how long leases are.
const FAREWELL: Duration = Duration::from_secs(4);

/// How often a drain looks whether a manager will ever say that it is over.
const LOOK: Duration = Duration::from_millis(250);

/// How an owner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// No manager has answered yet.
    Joining,
    /// Managers know it.
    Serving,
    /// It hands everything over.
    Draining,
    /// Everything is handed over, as it wished or as an operator did: the process may go. An operator may take it back.
    Drained,
    /// It has left.
    Left,
}

pub(super) struct Core {
    checks: Checks,
    load: Load,
    clock: Clock,
    transport: Arc<dyn PlacementTransport>,
    name: String,
    incarnation: u64,
    hand_over: Option<Arc<dyn HandOver>>,
    health: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    stamped: Vec<Arc<dyn Stamped>>,
    /// The application has said what it measured: what checks count does not take that place.
    measures_itself: AtomicBool,
    inner: Mutex<Inner>,
    state: watch::Sender<OwnerState>,
    /// Counts refusals, for those who wait to join.
    refusals: watch::Sender<u64>,
    asks: mpsc::UnboundedSender<Ask>,
    alarm: Notify,
    me: Weak<Core>,
}

struct Inner {
    machine: Owner,
    outbox: Outbox<Output>,
    readers: Readers<OwnershipChange>,
    refusal: Option<Error>,
    healthy: bool,
    /// It was asked to hand everything over.
    draining: bool,
    /// When a manager last answered, and how long leases are by its word.
    heard: Mono,
    lease: Duration,
    /// Once it leaves: until when managers are told, unless one has heard it before.
    farewell: Option<Mono>,
    /// On this owner's directory, for as long as it may hold anything (F4).
    lock: Option<File>,
    /// When the task will wake the machine.
    armed: Mono,
}

impl Core {
    pub(super) fn new(
        transport: Arc<dyn PlacementTransport>,
        options: OwnerOptions,
    ) -> Result<(Arc<Core>, mpsc::UnboundedReceiver<Ask>), Error> {
        let seed = getrandom::u64().map_err(errors::no_randomness)?;
        let identity = match &options.data_dir {
            Some(dir) => identity::from_directory(dir)?,
            None => Identity { incarnation: identity::by_wall_clock(), proof: None, lock: None },
        };
        let incarnation = options.incarnation.unwrap_or(identity.incarnation);
        let machine = Owner::new(Options {
            namespace: options.namespace,
            owner: options.name.clone(),
            address: options.address,
            incarnation,
            seed,
            proof: identity.proof,
            hands_over: options.hand_over.is_some(),
            renew: options.renew,
            mutant: None,
        });
        let inner = Inner {
            machine,
            outbox: Outbox::new(),
            readers: Readers::new(),
            refusal: None,
            healthy: true,
            draining: false,
            heard: Mono(0),
            lease: Duration::ZERO,
            farewell: None,
            lock: identity.lock,
            armed: Mono::NEVER,
        };
        let (asks, receiver) = mpsc::unbounded_channel();
        let core = Arc::new_cyclic(|me| Core {
            checks: Checks::new(),
            load: Load::new(seed, options.clock.mono()),
            clock: options.clock,
            transport,
            name: options.name,
            incarnation,
            hand_over: options.hand_over,
            health: options.health,
            stamped: options.stamped,
            measures_itself: AtomicBool::new(false),
            inner: Mutex::new(inner),
            state: watch::Sender::new(OwnerState::Joining),
            refusals: watch::Sender::new(0),
            asks,
            alarm: Notify::new(),
            me: me.clone(),
        });
        Ok((core, receiver))
    }

    pub(super) fn begin(&self) {
        self.input(&mut self.inner.lock(), Input::Start);
    }

    // ---- read side --------------------------------------------------------------------------------------------------

    #[inline]
    pub(super) fn check(&self, hash: KeyHash) -> Option<LeaseNumber> {
        self.checks.check_now(hash, || self.clock.mono())
    }

    /// The same, counted as a request.
    #[inline]
    pub(super) fn check_and_count(&self, hash: KeyHash) -> Option<LeaseNumber> {
        let lease = self.check(hash)?;
        self.load.observe(hash);
        Some(lease)
    }

    pub(super) fn remaining(&self, hash: KeyHash) -> Option<Held> {
        let Holding { leased, until } = self.checks.find(hash)?;
        let now = self.clock.mono();
        (now < until).then(|| Held { leased, remaining: until.since(now) })
    }

    pub(super) fn held(&self) -> Vec<Held> {
        let holdings = self.checks.holdings();
        let now = self.clock.mono();
        let held = holdings.into_iter().filter(|holding| now < holding.until);
        held.map(|holding| Held { leased: holding.leased, remaining: holding.until.since(now) }).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn state(&self) -> OwnerState {
        *self.state.borrow()
    }

    pub(super) async fn state_other_than(&self, state: OwnerState) -> OwnerState {
        let mut states = self.state.subscribe();
        let other = states.wait_for(|now| *now != state).await;
        other.map_or(OwnerState::Left, |state| *state)
    }

    pub(super) fn refusal(&self) -> Option<Error> {
        self.inner.lock().refusal.clone()
    }

    pub(super) fn changes(&self) -> Arc<Mailbox<OwnershipChange>> {
        self.inner.lock().readers.subscribe()
    }

    // ---- joining and leaving ----------------------------------------------------------------------------------------

    /// Waits until a manager knows this owner, or has refused it for a reason that will last.
    pub(super) async fn joined(&self, within: Duration) -> Result<(), Error> {
        let mut states = self.state.subscribe();
        let mut refusals = self.refusals.subscribe();
        let joined = async {
            loop {
                if let Some(refusal) = self.refusal().filter(is_lasting) {
                    return Err(refusal);
                }
                tokio::select! {
                    state = states.wait_for(|state| *state != OwnerState::Joining) => {
                        return state.map(drop).map_err(|_| errors::left());
                    }
                    _ = refusals.changed() => {}
                }
            }
        };
        let result = tokio::time::timeout(within, joined).await;
        result.unwrap_or_else(|_| Err(self.refusal().unwrap_or_else(errors::no_manager)))
    }

    pub(super) async fn drain(&self) -> Result<(), Error> {
        {
            let mut inner = self.inner.lock();
            if self.state() == OwnerState::Left {
                return Err(errors::left());
            }
            if !std::mem::replace(&mut inner.draining, true) {
                self.state.send_replace(OwnerState::Draining);
                self.input(&mut inner, Input::Drain);
            }
        }
        tokio::select! {
            state = self.state_other_than(OwnerState::Draining) => match state {
                OwnerState::Drained => Ok(()),
                _ => Err(errors::left()),
            },
            why = self.never_drained() => Err(why),
        }
    }

    /// Waits until nothing is held and no manager will say that it is so: why not.
    async fn never_drained(&self) -> Error {
        let began = self.clock.mono();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.clock.mono();
            let inner = self.inner.lock();
            if !inner.machine.claims(now).is_empty() {
                continue;
            }
            // What was held was held under an answer, so it is over by then (F6).
            let silent = now >= (inner.heard + inner.lease).max(began + NOBODY_ANSWERS);
            match &inner.refusal {
                Some(refusal) if silent || is_lasting(refusal) => return refusal.clone(),
                None if silent => return errors::no_manager(),
                _ => {}
            }
        }
    }

    /// Gives everything up: the task says so until a manager has heard it, or what was held has run out, and ends.
    pub(super) fn leave(&self) {
        let mut inner = self.inner.lock();
        let before = self.state.send_replace(OwnerState::Left);
        if before == OwnerState::Left {
            return;
        }
        inner.farewell = Some(self.clock.mono() + inner.lease.max(FAREWELL));
        self.input(&mut inner, Input::Leave);
        inner.readers.end();
        inner.lock = None;
        self.alarm.notify_one();
    }

    // ---- inputs -----------------------------------------------------------------------------------------------------

    pub(super) fn exported(&self, token: u64, done: bool) {
        self.input(&mut self.inner.lock(), Input::Exported { token, done });
    }

    pub(super) fn imported(&self, token: u64, incarnation: u64) -> Result<(), Error> {
        if incarnation != self.incarnation {
            return Err(errors::not_for_us("for another process of this owner"));
        }
        if self.state() == OwnerState::Left {
            return Err(errors::left());
        }
        self.input(&mut self.inner.lock(), Input::Imported { token, done: true });
        Ok(())
    }

    pub(super) fn forget(&self, token: u64) {
        self.input(&mut self.inner.lock(), Input::Imported { token, done: false });
        self.unstage(token);
    }

    fn unstage(&self, token: u64) {
        self.stamped.iter().for_each(|items| items.unstage(token));
    }

    pub(super) fn receive<V: Send + 'static>(
        &self,
        items: &Items<V>,
        token: u64,
        incarnation: u64,
        entries: Vec<(Vec<u8>, V)>,
    ) -> Result<(), Error> {
        if !self.stamped.iter().any(|stamped| items.is(stamped)) {
            return Err(errors::not_for_us("for items that this owner was not given when it joined"));
        }
        if incarnation == self.incarnation
            && let Some(gone) = items.stage(token, entries)
        {
            self.forget(gone);
        }
        self.imported(token, incarnation)
    }

    pub(super) fn report_load(&self, load: v1::OwnerLoad) {
        self.measures_itself.store(true, Ordering::Relaxed);
        self.input(&mut self.inner.lock(), Input::Load(load));
    }

    pub(super) fn set_healthy(&self, healthy: bool) {
        let mut inner = self.inner.lock();
        if self.state() != OwnerState::Left && std::mem::replace(&mut inner.healthy, healthy) != healthy {
            self.input(&mut inner, Input::Healthy(healthy));
        }
    }

    pub(super) fn set_address(&self, address: String) {
        let mut inner = self.inner.lock();
        if self.state() != OwnerState::Left {
            self.input(&mut inner, Input::Address(address));
        }
    }

    fn input(&self, inner: &mut Inner, input: Input) {
        let Inner { machine, outbox, .. } = inner;
        machine.handle(self.clock.now(), input, outbox);
        self.perform(inner);
    }

    fn perform(&self, inner: &mut Inner) {
        let mut outbox = std::mem::take(&mut inner.outbox);
        let outputs: Vec<Output> = outbox.drain().collect();
        inner.outbox = outbox;
        for output in &outputs {
            if let Output::Changed(change) = output {
                let moved = change.granted.iter().filter_map(|(leased, token)| Some((*leased, (*token)?)));
                moved.for_each(|(leased, token)| self.restamp(leased, token));
            }
        }
        for output in outputs {
            self.perform_one(inner, output);
        }
        let deadline = inner.machine.deadline().unwrap_or(Mono::NEVER);
        if deadline < inner.armed {
            inner.armed = deadline;
            self.alarm.notify_one();
        }
    }

    fn change_state(&self, to: OwnerState, from: impl Fn(OwnerState) -> bool) {
        self.state.send_if_modified(|state| {
            let changes = *state != to && from(*state);
            if changes {
                *state = to;
            }
            changes
        });
    }

    fn restamp(&self, leased: tidings_placement::Leased, token: u64) {
        self.stamped.iter().for_each(|items| items.restamp(leased, token));
        if let Some(hand_over) = &self.hand_over {
            hand_over.restamp(leased, token);
        }
    }

    fn perform_one(&self, inner: &mut Inner, output: Output) {
        match output {
            Output::Send { ticket, to, poll, within } => {
                // Without a task the owner has left, and nobody waits.
                let _ = self.asks.send(Ask { ticket, to, message: Message::OwnerPoll(*poll), within });
            }
            Output::Holdings(holdings) => self.checks.publish(&holdings),
            Output::Changed(change) => {
                if !change.granted.is_empty() {
                    // An operator had drained it, and has taken it back.
                    self.change_state(OwnerState::Serving, |state| state == OwnerState::Drained);
                }
                if !change.revoked.is_empty() {
                    self.stamped.iter().for_each(|items| items.revoke(&change.revoked));
                }
                inner.readers.tell(&change.into());
            }
            // An owner without a hand-over has said so; a manager that asks all the same waits for its own deadline.
            Output::Export(to) => {
                if let (Some(hand_over), Some(core)) = (self.hand_over.clone(), self.me.upgrade()) {
                    hand_over::export(&core, hand_over, to);
                }
            }
            Output::Import(from) => {
                if let Some(hand_over) = &self.hand_over {
                    hand_over.expect(from);
                }
            }
            Output::ImportOver(token) => {
                self.unstage(token);
                if let Some(hand_over) = &self.hand_over {
                    hand_over.over(token);
                }
            }
            Output::Drained => self.change_state(OwnerState::Drained, |state| state != OwnerState::Left),
            Output::Left => inner.farewell = Some(Mono(0)),
            Output::Refused(error) => {
                // A poll that another overtook, and the like: not this owner is refused, but that message.
                if error.class != Class::Unreachable {
                    if is_lasting(&error) {
                        // Nobody is there whom a leave could be told to.
                        inner.farewell = inner.farewell.map(|_| Mono(0));
                    }
                    inner.refusal = Some(error);
                    self.refusals.send_modify(|count| *count += 1);
                }
            }
        }
    }
}

/// Whether waiting helps nobody. An earlier process of the same name ends some time, so its successor waits.
fn is_lasting(error: &Error) -> bool {
    matches!(error.class, Class::Invalid | Class::NotFound | Class::Refused)
        && error.code != "placement.owner_id_in_use"
}

impl Driven for Core {
    fn transport(&self) -> &dyn PlacementTransport {
        &*self.transport
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn alarm(&self) -> &Notify {
        &self.alarm
    }

    fn wake(&self) -> Mono {
        if let Some(health) = &self.health
            && self.state() != OwnerState::Left
        {
            self.set_healthy(health());
        }
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let counted = || self.load.report(now.mono, || self.checks.held(now.mono));
        if !self.measures_itself.load(Ordering::Relaxed)
            && let Some(load) = counted()
        {
            self.input(&mut inner, Input::Load(load));
        }
        if inner.machine.deadline().is_some_and(|at| at <= now.mono) {
            let Inner { machine, outbox, .. } = &mut *inner;
            machine.wake(now, outbox);
            self.perform(&mut inner);
        }
        inner.armed = inner.machine.deadline().unwrap_or(Mono::NEVER);
        inner.armed
    }

    fn answered(&self, ticket: Ticket, result: Result<Message, Error>) {
        let mut inner = self.inner.lock();
        let result = result.and_then(|message| match message {
            Message::OwnerAnswer(answer) => Ok(answer),
            _ => Err(errors::unexpected()),
        });
        if let Ok(answer) = &result {
            inner.refusal = None;
            inner.heard = self.clock.mono();
            if answer.lease_us > 0 {
                inner.lease = Duration::from_micros(answer.lease_us);
            }
            self.change_state(OwnerState::Serving, |state| state == OwnerState::Joining);
        }
        self.input(&mut inner, Input::Answered { ticket, result });
    }

    fn is_over(&self) -> bool {
        self.inner.lock().farewell.is_some_and(|until| self.clock.mono() >= until)
    }
}
