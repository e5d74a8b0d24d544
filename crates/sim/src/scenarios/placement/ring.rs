//! The ranges of a process that is an owner and looks others up: what it holds, and who owns the rest.

use super::asking::Asking;
use super::letter::{Body, host_at};
use crate::kernel::{Effect, HostId};
use std::collections::VecDeque;
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Machine, Mono, Now, Outbox, Seeded};
use tidings_placement::check::Checks;
use tidings_placement::lookup::{self, Lookup};
use tidings_placement::owner::{self, Owner, OwnershipChange};
use tidings_wire::v1::placement_message::Message;

/// How late the machines mostly hear what has become of ranges, and in a process that is busy, in milliseconds.
const HEARD: u64 = 3;
const HEARD_LATE: u64 = 3_000;

/// What the machines have not heard yet.
pub enum News {
    /// Ranges were granted or revoked.
    Changed(OwnershipChange),
    /// Everything was handed over.
    Drained,
}

/// How a process hears of its ranges.
pub struct Hears<'a> {
    /// Decides how late.
    pub rng: &'a mut Seeded,
    /// The faults are over: never very late.
    pub calm: bool,
}

/// What a process knows of ranges. Checks know at once, the machines a little later: until then they act for ranges that
/// others may hold already, and it is the guards of their answers that matter (F1, R2).
pub struct Ring {
    owner: Owner,
    checks: Checks,
    lookup: Lookup,
    owning: Asking,
    looking: Asking,
    unheard: VecDeque<(Mono, News)>,
    /// The process is so busy for now.
    busy: Option<Duration>,
}

impl Ring {
    /// Nothing is held and nothing known.
    pub fn new(options: owner::Options, managers: Vec<HostId>, start: u64) -> Ring {
        let lookup = lookup::Options { namespace: options.namespace.clone(), seed: options.seed };
        Ring {
            owner: Owner::new(options),
            checks: Checks::new(),
            lookup: Lookup::new(lookup),
            // No answer to one is taken for an answer to the other.
            owning: Asking::new(managers.clone(), 2 * start),
            looking: Asking::new(managers, 2 * start + 1),
            unheard: VecDeque::new(),
            busy: None,
        }
    }

    /// The lease under which a key is held here now.
    pub fn lease(&self, now: Now, key: KeyHash) -> Option<LeaseNumber> {
        self.checks.check_now(key, || now.mono)
    }

    /// Whether a key has been held under this lease all the time.
    pub fn holds(&self, now: Now, key: KeyHash, lease: LeaseNumber) -> bool {
        self.checks.check_continuous(key, lease, || now.mono)
    }

    /// How much of the ring is held here now.
    pub fn held(&self, now: Mono) -> u128 {
        self.checks.held(now).iter().map(|leased| leased.range.len()).sum()
    }

    /// Who is said to own a key, and under which lease.
    pub fn find(&self, key: KeyHash) -> Option<(HostId, LeaseNumber)> {
        let (owner, lease) = self.lookup.table().find(key)?;
        Some((host_at(&owner.address)?, lease))
    }

    /// From now on the machines hear so much later what has become of ranges.
    pub fn be_busy(&mut self, late: Option<Duration>) {
        self.busy = late;
    }

    /// Whether the machines have still to hear something.
    pub fn is_behind(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let news = self.unheard.front().map(|(at, _)| *at);
        [self.owner.deadline(), self.lookup.deadline(), news].into_iter().flatten().min()
    }

    /// Asks for ranges, and who has them.
    pub fn start<F>(&mut self, now: Now, hears: Hears<'_>, out: &mut Outbox<Effect<F>>) {
        let mut outputs = Outbox::new();
        self.lookup.handle(now, lookup::Input::Start, &mut outputs);
        self.perform_lookup(outputs, out);
        self.feed(now, owner::Input::Start, hears, out);
    }

    /// Hands everything over and leaves.
    pub fn drain<F>(&mut self, now: Now, hears: Hears<'_>, out: &mut Outbox<Effect<F>>) {
        self.feed(now, owner::Input::Drain, hears, out);
    }

    /// Gives everything up, and asks for it anew.
    pub fn renumber<F>(&mut self, now: Now, hears: Hears<'_>, out: &mut Outbox<Effect<F>>) {
        let Hears { rng, calm } = hears;
        self.feed(now, owner::Input::Healthy(false), Hears { rng, calm }, out);
        self.feed(now, owner::Input::Healthy(true), Hears { rng, calm }, out);
    }

    /// Time has passed: what the machines hear now, in order.
    pub fn wake<F>(&mut self, now: Now, hears: Hears<'_>, out: &mut Outbox<Effect<F>>) -> Vec<News> {
        let mut outputs = Outbox::new();
        self.owner.wake(now, &mut outputs);
        self.perform_owner(now, outputs, hears, out);
        let mut outputs = Outbox::new();
        self.lookup.wake(now, &mut outputs);
        self.perform_lookup(outputs, out);
        let due = self.unheard.iter().take_while(|(at, _)| *at <= now.mono).count();
        self.unheard.drain(..due).map(|(_, news)| news).collect()
    }

    /// A manager answered.
    pub fn manager_said<F>(
        &mut self,
        now: Now,
        from: HostId,
        (id, body): (u64, Body),
        hears: Hears<'_>,
        out: &mut Outbox<Effect<F>>,
    ) {
        if let Some((ticket, result)) = self.owning.answered(from, id, body.clone()) {
            let result = result.and_then(|message| match message {
                Message::OwnerAnswer(answer) => Ok(answer),
                _ => Err(tidings_placement::manager::not_leader()),
            });
            self.feed(now, owner::Input::Answered { ticket, result }, hears, out);
        } else if let Some((ticket, result)) = self.looking.answered(from, id, body) {
            let result = result.and_then(|message| match message {
                Message::LookupAnswer(answer) => Ok(answer),
                _ => Err(tidings_placement::manager::not_leader()),
            });
            let mut outputs = Outbox::new();
            self.lookup.handle(now, lookup::Input::Answered { ticket, result }, &mut outputs);
            self.perform_lookup(outputs, out);
        }
    }

    /// The machines hear it in a while, and in this order.
    fn hear_later(&mut self, now: Now, news: News, hears: &mut Hears<'_>) {
        let late = match self.busy {
            Some(late) => late,
            None if !hears.calm && hears.rng.one_in(8) => Duration::from_millis(hears.rng.below(HEARD_LATE)),
            None => Duration::from_millis(hears.rng.below(HEARD)),
        };
        let before = self.unheard.back().map_or(now.mono, |(at, _)| *at);
        self.unheard.push_back((before.max(now.mono + late), news));
    }

    fn feed<F>(&mut self, now: Now, input: owner::Input, hears: Hears<'_>, out: &mut Outbox<Effect<F>>) {
        let mut outputs = Outbox::new();
        self.owner.handle(now, input, &mut outputs);
        self.perform_owner(now, outputs, hears, out);
    }

    fn perform_owner<F>(
        &mut self,
        now: Now,
        outputs: Outbox<owner::Output>,
        mut hears: Hears<'_>,
        out: &mut Outbox<Effect<F>>,
    ) {
        for output in outputs {
            match output {
                owner::Output::Send { ticket, to, poll, .. } => {
                    self.owning.ask(to, ticket, Message::OwnerPoll(*poll), out);
                }
                owner::Output::Holdings(held) => self.checks.publish(&held),
                owner::Output::Changed(change) => self.hear_later(now, News::Changed(change), &mut hears),
                // All that is in memory can be found again in the store: nothing is handed over.
                owner::Output::Export(to) => {
                    let exported = owner::Input::Exported { token: to.token, done: false };
                    self.feed(now, exported, Hears { rng: &mut *hears.rng, calm: hears.calm }, out);
                }
                owner::Output::Import(_)
                | owner::Output::ImportOver(_)
                | owner::Output::Refused(_)
                | owner::Output::Left => {}
                owner::Output::Drained => self.hear_later(now, News::Drained, &mut hears),
            }
        }
    }

    fn perform_lookup<F>(&mut self, outputs: Outbox<lookup::Output>, out: &mut Outbox<Effect<F>>) {
        for output in outputs {
            if let lookup::Output::Send { ticket, to, poll, .. } = output {
                self.looking.ask(to, ticket, Message::LookupPoll(poll), out);
            }
        }
    }
}
