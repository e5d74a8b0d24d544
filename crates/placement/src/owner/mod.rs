//! The owner: what a server holds, and until when.
//!
//! ```text
//!   Output::Send(OwnerPoll: claims, refused, released …) ──▶ manager
//!   Input::Answered(renewals + grants = the complete set) ◀─┘   one request at a time; the manager only answers
//!        └─▶ Output::Holdings ─▶ check::Checks     └─▶ Output::Changed ─▶ application
//! ```
//! Rules that live here: F2 (lower epochs are refused), F5 (sequence numbers, nonce, races), F6 (everything is dated
//! from the send time of the message that an answer echoes; a lapsed lease is never revived), F9 (freeze, export,
//! release under a token). It knows only its own ranges, and there is no call that asks for a lease.

mod conversation;
mod holdings;
pub mod load;
#[cfg(test)]
mod tests;

use crate::check::Holding;
use crate::config::Times;
use crate::mutant::Mutant;
use crate::{Leased, Ticket, To};
use conversation::{Conversation, Verdict};
use holdings::Holdings;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::bounded::BoundedMap;
use tidings_base::{Class, Error, Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;

/// The first pause after a failed, racing or unanswered request, and the longest: random, doubling, longer than a round trip.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How much longer than the manager may hold a poll its answer may take.
const ANSWER_SLACK: Duration = Duration::from_secs(2);

/// How long the answer may take to a message that gives everything up: a node that speaks for an application holds it back
/// until the application believes nothing any more, which takes up to 2.2 s (F12).
const LAST_WORDS: Duration = Duration::from_secs(4);

/// Exports that end within so long are reported together; whoever expects a range asks again after so long.
const TOGETHER: Duration = Duration::from_millis(2);

/// Failures in a row after which all managers are asked (§2.1.1: when the leader is silent).
const SILENT_AFTER: u32 = 2;

/// Arrived states that are remembered: many more than move at a time.
const MAX_ARRIVED: usize = 4_096;

/// How an owner behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace.
    pub namespace: String,
    /// The owner's name in it: one live process at a time.
    pub owner: String,
    /// Where requests for its keys go.
    pub address: String,
    /// Grows with every start of this owner's process.
    pub incarnation: u64,
    /// Random: the conversation's nonce and the pauses come from it.
    pub seed: u64,
    /// F4: proves that no earlier incarnation lives.
    pub proof: Option<v1::ExclusivityProof>,
    /// Whether the application hands state over and takes it (F9); if not, what moves is lost.
    pub hands_over: bool,
    /// How often to renew until a manager says otherwise.
    pub renew: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What the owner hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Begin to poll.
    Start,
    /// The transport's answer.
    Answered {
        /// The request.
        ticket: Ticket,
        /// The answer, or why there is none.
        result: Result<v1::OwnerAnswer, Error>,
    },
    /// The application's hand-over of a frozen range ended: the other side has acknowledged it, or not.
    Exported {
        /// The move.
        token: u64,
        /// Whether the other side has it all.
        done: bool,
    },
    /// The application took over state from another owner, or could not, or has it no more.
    Imported {
        /// The move.
        token: u64,
        /// Whether all of it arrived.
        done: bool,
    },
    /// Hand everything over and leave.
    Drain,
    /// Give everything up at once and leave.
    Leave,
    /// Requests for its keys go there from now on.
    Address(String),
    /// What the application measured.
    Load(v1::OwnerLoad),
    /// The application's own judgement: while it is unhealthy nothing is renewed.
    Healthy(bool),
}

/// What the owner wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask a manager, and give up after so long.
    Send {
        /// Comes back with the answer.
        ticket: Ticket,
        /// Whom.
        to: To,
        /// The request.
        poll: Box<v1::OwnerPoll>,
        /// For how long.
        within: Duration,
    },
    /// All that is held, and until when: to be published before anything that comes after this in the outbox.
    Holdings(Vec<Holding>),
    /// Tell the application; it may hear late and must not take it for an authority.
    Changed(OwnershipChange),
    /// Hand this frozen range to another owner, and report [`Input::Exported`].
    Export(Move),
    /// Expect this range from another owner, and report [`Input::Imported`].
    Import(Move),
    /// A move into this owner is over, done or given up: what arrived under this token and was not granted is of no use.
    ImportOver(u64),
    /// Everything is handed over: the process may go.
    Drained,
    /// A manager has heard that everything is given up.
    Left,
    /// A manager refused this owner: another incarnation of its name lives, the namespace is gone, …
    Refused(Error),
}

/// What was granted and what was revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnershipChange {
    /// Ranges that are held from now on, and the clean move by which the state of each arrived, if it did.
    pub granted: Vec<(Leased, Option<u64>)>,
    /// Ranges that are held no more.
    pub revoked: Vec<Leased>,
}

/// One side of a clean migration (F9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Names the move at both owners.
    pub token: u64,
    /// What moves.
    pub leased: Leased,
    /// The other owner.
    pub owner: String,
    /// Where it is.
    pub address: String,
    /// Its incarnation: the token is bound to it.
    pub incarnation: u64,
    /// How long it may take.
    pub within: Duration,
}

/// The timers of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Ask (again).
    Poll,
    /// The outstanding request has taken too long.
    Silence,
    /// A lease lapses.
    Lapse,
    /// An export has taken too long.
    Export(u64),
}

/// How far an export has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Export {
    /// Frozen; the application copies.
    Copying,
    /// The other side has it: released, until a manager confirms.
    Released,
    /// It failed: the range is served here again, and the manager is told until it has heard.
    Failed,
}

/// Whether whoever leads has the latest report of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadHeard {
    No,
    /// The latest poll carries it.
    Asked,
    Yes,
}

/// The owner machine of one namespace.
#[derive(Clone, Debug)]
pub struct Owner {
    options: Options,
    timers: Timers<Timer>,
    rng: Seeded,
    talk: Conversation,
    held: Holdings,
    exports: BTreeMap<u64, (Move, Export)>,
    /// Moves into this owner that a manager has named.
    imports: BTreeMap<u64, Leased>,
    /// Tokens whose state has arrived, and when; the other owner may be quicker than the manager.
    arrived: BoundedMap<u64, Mono>,
    refused: Vec<Leased>,
    renew: Duration,
    draining: bool,
    leaving: bool,
    healthy: bool,
    /// A manager has heard that nothing is held, since it is unhealthy.
    given_up: bool,
    /// The latest report: it stands until there is another.
    load: Option<v1::OwnerLoad>,
    load_heard: LoadHeard,
    failures: u32,
    pause: Duration,
    next_ticket: u64,
    started: bool,
}

impl Owner {
    /// An owner that holds nothing.
    pub fn new(options: Options) -> Owner {
        let mut rng = Seeded::new(options.seed).fork("owner");
        Owner {
            talk: Conversation::new(rng.next_u64()),
            renew: options.renew,
            held: Holdings::new(options.mutant),
            options,
            timers: Timers::new(),
            rng,
            exports: BTreeMap::new(),
            imports: BTreeMap::new(),
            arrived: BoundedMap::new(MAX_ARRIVED),
            refused: Vec::new(),
            draining: false,
            leaving: false,
            healthy: true,
            given_up: false,
            load: None,
            load_heard: LoadHeard::No,
            failures: 0,
            pause: FIRST_PAUSE,
            next_ticket: 0,
            started: false,
        }
    }

    /// The owner's name.
    pub fn id(&self) -> &str {
        &self.options.owner
    }

    /// All that is held at an instant, frozen ranges included.
    pub fn claims(&self, now: Mono) -> Vec<Leased> {
        self.held.claims(now)
    }

    // ---- asking -----------------------------------------------------------------------------------------------------

    fn poll(&mut self, now: Now, out: &mut Outbox<Output>) {
        if self.given_up && !self.draining {
            // A manager has heard that it holds nothing; from then on an unhealthy owner is silent.
            return self.timers.set(Timer::Poll, now.mono + self.renew);
        }
        self.ask(now, out);
    }

    /// Sends a poll. One that the manager holds is overtaken by it: its answer, if it comes, is a race.
    fn ask(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let (seq, heard) = self.talk.ask(ticket, now.mono);
        // Whoever leaves has nothing to wait for, and says so by that.
        let wait = if self.leaving { Duration::ZERO } else { self.hold() };
        let load = self.load.clone().filter(|_| self.load_heard != LoadHeard::Yes);
        if load.is_some() {
            self.load_heard = LoadHeard::Asked;
        }
        let poll = v1::OwnerPoll {
            namespace: self.options.namespace.clone(),
            owner: self.options.owner.clone(),
            address: self.options.address.clone(),
            incarnation: self.options.incarnation,
            nonce: self.talk.nonce(),
            epoch: self.talk.epoch(),
            seq,
            heard,
            claims: self.held.claims(now.mono).into_iter().map(Into::into).collect(),
            refused: self.refused.iter().copied().map(Into::into).collect(),
            released: self.handovers_out(),
            imported: self.handovers_in(),
            draining: self.draining,
            load,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            proof: self.options.proof.clone(),
            hands_over: self.options.hands_over,
            unhealthy: !self.healthy,
        };
        let to = if self.failures >= SILENT_AFTER { To::Everyone } else { To::Leader };
        let within = if self.leaving { LAST_WORDS } else { wait + ANSWER_SLACK };
        self.timers.cancel(&Timer::Poll);
        self.timers.set(Timer::Silence, now.mono + within);
        out.put(Output::Send { ticket, to, poll: Box::new(poll), within });
    }

    fn handovers_out(&self) -> Vec<v1::Handover> {
        let ended = self.exports.iter().filter(|(_, (_, export))| *export != Export::Copying);
        let message = |(token, (to, export)): (&u64, &(Move, Export))| v1::Handover {
            range: Some(to.leased.into()),
            token: *token,
            failed: *export == Export::Failed,
            // The manager that named the move may be dead when this is heard.
            owner: to.owner.clone(),
            incarnation: to.incarnation,
        };
        ended.map(message).collect()
    }

    /// All that has arrived, also what no manager has named yet: the one that was about to may be dead.
    fn handovers_in(&self) -> Vec<v1::Handover> {
        let message = |token: &u64| v1::Handover {
            range: self.imports.get(token).map(|leased| (*leased).into()),
            token: *token,
            ..Default::default()
        };
        self.arrived.iter().map(|(token, _)| message(token)).collect()
    }

    fn again_after_pause(&mut self, now: Now) {
        // Random, doubling, and longer than a round trip, so that what crossed does not cross again (F5).
        let pause = self.pause / 2 + Duration::from_nanos(self.rng.below(self.pause.as_nanos() as u64));
        // F10: a lease that outlasts a fail-over must not be lost between two tries.
        self.pause = (self.pause * 2).min(LONGEST_PAUSE).min(self.renew / 4).max(FIRST_PAUSE);
        self.timers.set(Timer::Poll, now.mono + self.talk.round_trip() + pause);
    }

    // ---- hearing ----------------------------------------------------------------------------------------------------

    fn answered(&mut self, now: Now, ticket: Ticket, result: Result<v1::OwnerAnswer, Error>, out: &mut Outbox<Output>) {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                if self.talk.failed(ticket) {
                    self.failed(now, error, out);
                }
                return;
            }
        };
        match self.talk.heard(ticket, &answer, now.mono, self.options.mutant) {
            Verdict::Ignore => {}
            Verdict::Race => {
                self.timers.cancel(&Timer::Silence);
                self.again_after_pause(now);
            }
            Verdict::Hello => {
                self.settle();
                self.load_heard = LoadHeard::No;
                self.poll(now, out);
            }
            Verdict::Take { asked, in_turn } => {
                self.settle();
                if self.load_heard == LoadHeard::Asked {
                    self.load_heard = LoadHeard::Yes;
                }
                self.take(now, asked, answer, out);
                // If an answer crossed what was said, the manager dropped that for good (F5), and it is to be said again.
                self.given_up = !self.healthy && in_turn;
                if self.leaving && in_turn {
                    self.timers.cancel(&Timer::Poll);
                    out.put(Output::Left);
                } else if !self.healthy && !in_turn {
                    self.again_after_pause(now);
                }
            }
        }
    }

    /// A manager has answered: it is not silent.
    fn settle(&mut self) {
        self.timers.cancel(&Timer::Silence);
        self.failures = 0;
        self.pause = FIRST_PAUSE;
    }

    fn failed(&mut self, now: Now, error: Error, out: &mut Outbox<Output>) {
        self.timers.cancel(&Timer::Silence);
        self.failures = self.failures.saturating_add(1);
        self.again_after_pause(now);
        if error.code.starts_with("placement.") && error.class != Class::Unreachable {
            out.put(Output::Refused(error));
        }
    }

    fn take(&mut self, now: Now, asked: Mono, answer: v1::OwnerAnswer, out: &mut Outbox<Output>) {
        if answer.renew_ms > 0 {
            self.renew = Duration::from_millis(answer.renew_ms.into());
        }
        let lease = Duration::from_micros(answer.lease_us);
        let dated = if self.options.mutant == Some(Mutant::LeaseFromReceipt) { now.mono } else { asked };
        // An unhealthy owner takes nothing, whatever a manager thought when it answered.
        let set = if self.healthy { self.complete_set(now, &answer) } else { Vec::new() };
        let frozen: Vec<Leased> =
            self.exports.values().filter(|(_, e)| *e == Export::Copying).map(|(to, _)| to.leased).collect();
        let taken = self.held.take(now.mono, dated + lease, set, &frozen);
        for token in &answer.confirmed {
            self.exports.remove(token);
        }
        self.refused = taken.refused;
        self.spend(&taken.change.granted);
        // F9: what is to be copied is frozen before anybody hears that it may be copied.
        let begun = self.begin_moves(now, &answer);
        self.publish(now, out);
        begun.into_iter().for_each(|output| out.put(output));
        if !taken.change.granted.is_empty() || !taken.change.revoked.is_empty() {
            out.put(Output::Changed(taken.change.clone()));
        }
        self.end_imports(asked, &answer, out);
        if answer.drained && self.held.is_empty() {
            out.put(Output::Drained);
            // One that an operator drained goes on asking: it may be taken back into service.
            if self.draining {
                self.timers.cancel(&Timer::Poll);
                return;
            }
        }
        // What changed is reported at once; otherwise the next poll is held by the manager, so there is no hurry.
        let news = !taken.change.granted.is_empty() || !taken.change.revoked.is_empty() || !self.refused.is_empty();
        let idle = match news {
            true => Duration::ZERO,
            // What is on its way here is nobody's until its grant comes: that must find a poll to answer.
            false if !self.imports.is_empty() => self.next_renewal(asked, now.mono).min(TOGETHER),
            false => self.next_renewal(asked, now.mono),
        };
        self.timers.set(Timer::Poll, now.mono + idle);
    }

    /// A manager that holds polls was asked long ago: ask again at once. One that answers at once is asked again when
    /// the next renewal is due.
    fn next_renewal(&self, asked: Mono, now: Mono) -> Duration {
        (asked + self.hold()).since(now)
    }

    /// How long a manager may hold a poll: see [`Times::hold`].
    fn hold(&self) -> Duration {
        Times { lease: Duration::ZERO, renew: self.renew }.hold()
    }

    /// Notes that state was taken over: it is good for one grant. What was made of it since must not be lost to it.
    fn spend(&mut self, granted: &[(Leased, Option<u64>)]) {
        for (leased, token) in granted {
            if let Some(token) = token.filter(|token| self.arrived.remove(token).is_some()) {
                // Its move is over when the manager names it no more.
                self.imports.insert(token, *leased);
            }
        }
    }

    fn complete_set(&mut self, now: Now, answer: &v1::OwnerAnswer) -> Vec<holdings::Wanted> {
        let renewals = answer.renewals.iter().filter_map(Leased::of).map(holdings::Wanted::Renewal);
        let grants = answer.grants.iter().filter_map(|grant| {
            let leased = Leased::of(grant.range.as_ref()?)?;
            if !grant.clean {
                return Some(holdings::Wanted::Grant { leased, token: None });
            }
            // F9: without the token the state is missing here; the manager must grant anew, with a loss.
            let unchecked = self.options.mutant == Some(Mutant::MissingTaken);
            Some(match self.arrived.get(&grant.token) {
                None if unchecked => holdings::Wanted::Grant { leased, token: Some(grant.token) },
                Some(_) => holdings::Wanted::Grant { leased, token: Some(grant.token) },
                // The same grant once more.
                None if self.held.covers(leased, now.mono) => holdings::Wanted::Renewal(leased),
                None => holdings::Wanted::Missing(leased),
            })
        });
        renewals.chain(grants).collect()
    }

    fn begin_moves(&mut self, now: Now, answer: &v1::OwnerAnswer) -> Vec<Output> {
        let mut begun = Vec::new();
        for message in &answer.moves {
            let Some(to) = move_of(message) else { continue };
            if self.exports.contains_key(&to.token) || !self.held.covers(to.leased, now.mono) {
                continue;
            }
            self.exports.insert(to.token, (to.clone(), Export::Copying));
            self.timers.set(Timer::Export(to.token), now.mono + to.within);
            self.held.freeze(to.leased);
            begun.push(Output::Export(to));
        }
        for message in &answer.imports {
            let Some(from) = move_of(message) else { continue };
            if let Entry::Vacant(new) = self.imports.entry(from.token) {
                new.insert(from.leased);
                begun.push(Output::Import(from));
            }
        }
        // The manager names every move that is under way: what it names no more was given up.
        let named: Vec<u64> = answer.moves.iter().map(|m| m.token).collect();
        let given_up: Vec<u64> = self
            .exports
            .iter()
            .filter(|(token, (_, export))| !named.contains(token) && *export != Export::Released)
            .map(|(token, _)| *token)
            .collect();
        for token in given_up {
            if let Some((to, _)) = self.exports.remove(&token) {
                self.timers.cancel(&Timer::Export(token));
                self.held.unfreeze(to.leased);
            }
        }
        begun
    }

    /// Ends moves into this owner that the manager names no more. It names every one until its range is claimed, and knew of
    /// all whose state had arrived when it was asked. From here on a grant under such a token would find its state missing.
    fn end_imports(&mut self, asked: Mono, answer: &v1::OwnerAnswer, out: &mut Outbox<Output>) {
        let imports = answer.imports.iter().map(|import| import.token);
        let named: BTreeSet<u64> = imports.chain(answer.grants.iter().map(|grant| grant.token)).collect();
        // A manager that did not know of these yet is told with the next poll.
        let later: BTreeSet<u64> =
            self.arrived.iter().filter(|(_, at)| **at >= asked).map(|(token, _)| *token).collect();
        let arrived = self.arrived.iter().map(|(token, _)| token);
        let known: BTreeSet<u64> = self.imports.keys().chain(arrived).copied().collect();
        for token in known.difference(&named).filter(|token| !later.contains(token)) {
            self.imports.remove(token);
            self.arrived.remove(token);
            out.put(Output::ImportOver(*token));
        }
    }

    fn exported(&mut self, now: Now, token: u64, done: bool, out: &mut Outbox<Output>) {
        let Some((to, export)) = self.exports.get_mut(&token) else { return };
        if *export != Export::Copying {
            return;
        }
        self.timers.cancel(&Timer::Export(token));
        let leased = to.leased;
        // What was lost while it was copied is not ours to release: its next holder begins anew.
        if done && self.held.covers(leased, now.mono) {
            // From here on the range is not ours, whatever happens: the other side may be serving it soon.
            *export = Export::Released;
            self.held.give_up(leased);
            self.publish(now, out);
            out.put(Output::Changed(OwnershipChange { granted: Vec::new(), revoked: vec![leased] }));
        } else {
            *export = Export::Failed;
            self.held.unfreeze(leased);
            self.publish(now, out);
        }
        // Exports end together: one message tells of all of them, and crosses fewer answers.
        let soon = now.mono + TOGETHER;
        if self.timers.at(&Timer::Poll).is_none_or(|at| at > soon) {
            self.timers.set(Timer::Poll, soon);
        }
    }

    fn drop_everything(&mut self, now: Now, out: &mut Outbox<Output>) {
        let revoked = self.held.drop_all();
        if !revoked.is_empty() {
            self.publish(now, out);
            out.put(Output::Changed(OwnershipChange { granted: Vec::new(), revoked }));
        }
    }

    fn publish(&mut self, now: Now, out: &mut Outbox<Output>) {
        out.put(Output::Holdings(self.held.served(now.mono)));
        match self.held.next_lapse() {
            Some(at) => self.timers.set(Timer::Lapse, at),
            None => {
                self.timers.cancel(&Timer::Lapse);
            }
        }
    }

    fn lapse(&mut self, now: Now, out: &mut Outbox<Output>) {
        let revoked = self.held.lapse(now.mono);
        self.publish(now, out);
        if !revoked.is_empty() {
            out.put(Output::Changed(OwnershipChange { granted: Vec::new(), revoked }));
        }
    }
}

fn move_of(message: &v1::Move) -> Option<Move> {
    Some(Move {
        token: message.token,
        leased: Leased::of(message.range.as_ref()?)?,
        owner: message.owner.clone(),
        address: message.address.clone(),
        incarnation: message.incarnation,
        within: Duration::from_millis(message.within_ms.into()),
    })
}

impl Machine for Owner {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Start if !self.started => {
                self.started = true;
                self.poll(now, out);
            }
            Input::Start => {}
            Input::Answered { ticket, result } => self.answered(now, ticket, result, out),
            Input::Exported { token, done } => self.exported(now, token, done, out),
            Input::Imported { token, done } => {
                if done {
                    // Whoever had it says so; nothing is asked here that could cross the grant.
                    self.arrived.insert(token, now.mono);
                } else {
                    // What had arrived is gone: a clean grant under this token is answered `missing`.
                    self.arrived.remove(&token);
                }
            }
            Input::Drain => {
                self.draining = true;
                if self.started {
                    self.ask(now, out);
                }
            }
            Input::Leave => {
                (self.leaving, self.healthy) = (true, false);
                self.drop_everything(now, out);
                if self.started {
                    self.ask(now, out);
                }
            }
            Input::Address(address) => {
                let changed = self.options.address != address;
                self.options.address = address;
                if changed && self.started {
                    self.ask(now, out);
                }
            }
            Input::Load(load) => (self.load, self.load_heard) = (Some(load), LoadHeard::No),
            Input::Healthy(healthy) => {
                let changed = std::mem::replace(&mut self.healthy, healthy) != healthy;
                self.given_up &= !healthy;
                if changed && self.started {
                    if !healthy {
                        self.drop_everything(now, out);
                    }
                    self.ask(now, out);
                }
            }
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Poll => self.poll(now, out),
                Timer::Silence => {
                    self.talk.give_up();
                    self.failures = self.failures.saturating_add(1);
                    self.again_after_pause(now);
                }
                Timer::Lapse => self.lapse(now, out),
                Timer::Export(token) => self.exported(now, token, false, out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
