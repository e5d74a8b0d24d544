//! Ranges by placement: what this node owns, and who owns the rest.

use super::{Node, Out};
use crate::kernel::{Effect, HostId};
use crate::scenarios::placement::asking::Asking;
use crate::scenarios::placement::letter::Body;
use std::collections::VecDeque;
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Machine, Mono, Now, Outbox};
use tidings_notify::{matcher, registrar};
use tidings_placement::check::Checks;
use tidings_placement::lookup::{self, Lookup};
use tidings_placement::owner::{self, Owner, OwnershipChange};
use tidings_wire::v1::placement_message::Message;

/// How late the machines mostly hear what has become of ranges, and in a process that is busy, in milliseconds.
const HEARD: u64 = 3;
const HEARD_LATE: u64 = 3_000;

/// What the machines have not heard yet.
enum News {
    Changed(OwnershipChange),
    Drained,
}

/// What a node knows of ranges. Checks know at once, the machines a little later: until then they act for ranges that others
/// may hold already, and it is the guards of their answers that matter (F1).
pub struct Ranges {
    owner: Owner,
    checks: Checks,
    lookup: Lookup,
    owning: Asking,
    looking: Asking,
    unheard: VecDeque<(Mono, News)>,
    /// The process is so busy for now.
    busy: Option<Duration>,
}

impl Ranges {
    /// Nothing is held and nothing known.
    pub fn new(options: owner::Options, managers: Vec<HostId>, start: u64) -> Ranges {
        let lookup = lookup::Options { namespace: options.namespace.clone(), seed: options.seed };
        Ranges {
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

    /// Who is said to own a key.
    pub fn find(&self, key: KeyHash) -> Option<HostId> {
        let (owner, _) = self.lookup.table().find(key)?;
        owner.address.strip_prefix('h')?.parse().ok().map(HostId)
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let news = self.unheard.front().map(|(at, _)| *at);
        [self.owner.deadline(), self.lookup.deadline(), news].into_iter().flatten().min()
    }
}

impl Node {
    /// How much of the ring is held here now.
    pub fn held(&self, now: Mono) -> u128 {
        self.ranges.checks.held(now).iter().map(|leased| leased.range.len()).sum()
    }

    /// Whether a key is held here now.
    pub fn holds_key(&self, now: Now, key: KeyHash) -> bool {
        self.ranges.lease(now, key).is_some()
    }

    /// From now on the machines hear so much later what has become of ranges.
    pub fn be_busy(&mut self, late: Option<Duration>) {
        self.ranges.busy = late;
    }

    /// Hands everything over and leaves.
    pub fn drain(&mut self, now: Now, out: &mut Out) {
        self.feed_owner(now, owner::Input::Drain, out);
    }

    pub(super) fn start_ranges(&mut self, now: Now, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.ranges.lookup.handle(now, lookup::Input::Start, &mut outputs);
        self.perform_lookup(outputs, out);
        self.feed_owner(now, owner::Input::Start, out);
    }

    pub(super) fn wake_ranges(&mut self, now: Now, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.ranges.owner.wake(now, &mut outputs);
        self.perform_owner(now, outputs, out);
        let mut outputs = Outbox::new();
        self.ranges.lookup.wake(now, &mut outputs);
        self.perform_lookup(outputs, out);
        while self.ranges.unheard.front().is_some_and(|(at, _)| *at <= now.mono) {
            match self.ranges.unheard.pop_front() {
                Some((_, News::Changed(change))) => self.ranges_changed(now, change, out),
                Some((_, News::Drained)) => out.put(Effect::Exit { why: "drained".to_owned() }),
                None => {}
            }
        }
    }

    /// The machines hear it in a while, and in this order.
    fn hear_later(&mut self, now: Now, news: News) {
        let late = match self.ranges.busy {
            Some(late) => late,
            None if !self.calm && self.rng.one_in(8) => Duration::from_millis(self.rng.below(HEARD_LATE)),
            None => Duration::from_millis(self.rng.below(HEARD)),
        };
        let before = self.ranges.unheard.back().map_or(now.mono, |(at, _)| *at);
        self.ranges.unheard.push_back((before.max(now.mono + late), news));
    }

    pub(super) fn manager_said(&mut self, now: Now, from: HostId, id: u64, body: Body, out: &mut Out) {
        if let Some((ticket, result)) = self.ranges.owning.answered(from, id, body.clone()) {
            let result = result.and_then(|message| match message {
                Message::OwnerAnswer(answer) => Ok(answer),
                _ => Err(tidings_placement::manager::not_leader()),
            });
            self.feed_owner(now, owner::Input::Answered { ticket, result }, out);
        } else if let Some((ticket, result)) = self.ranges.looking.answered(from, id, body) {
            let result = result.and_then(|message| match message {
                Message::LookupAnswer(answer) => Ok(answer),
                _ => Err(tidings_placement::manager::not_leader()),
            });
            let mut outputs = Outbox::new();
            self.ranges.lookup.handle(now, lookup::Input::Answered { ticket, result }, &mut outputs);
            self.perform_lookup(outputs, out);
        }
    }

    fn feed_owner(&mut self, now: Now, input: owner::Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.ranges.owner.handle(now, input, &mut outputs);
        self.perform_owner(now, outputs, out);
    }

    fn perform_owner(&mut self, now: Now, outputs: Outbox<owner::Output>, out: &mut Out) {
        for output in outputs {
            match output {
                owner::Output::Send { ticket, to, poll, .. } => {
                    self.ranges.owning.ask(to, ticket, Message::OwnerPoll(*poll), out);
                }
                owner::Output::Holdings(held) => self.ranges.checks.publish(&held),
                owner::Output::Changed(change) => self.hear_later(now, News::Changed(change)),
                // All that is in memory can be found again in the store: nothing is handed over.
                owner::Output::Export(to) => {
                    self.feed_owner(now, owner::Input::Exported { token: to.token, done: false }, out);
                }
                owner::Output::Import(_) | owner::Output::ImportOver(_) | owner::Output::Refused(_) => {}
                owner::Output::Drained => self.hear_later(now, News::Drained),
            }
        }
    }

    fn perform_lookup(&mut self, outputs: Outbox<lookup::Output>, out: &mut Out) {
        for output in outputs {
            if let lookup::Output::Send { ticket, to, poll, .. } = output {
                self.ranges.looking.ask(to, ticket, Message::LookupPoll(poll), out);
            }
        }
    }

    fn ranges_changed(&mut self, now: Now, change: OwnershipChange, out: &mut Out) {
        for leased in change.revoked {
            let range = leased.range;
            self.feed_registrar(now, registrar::Input::Lost { range }, out);
            self.feed_matcher(now, matcher::Input::Lost { range }, out);
        }
        // F3: the realm is read after the lease was granted and before it is used.
        self.hear_realm(now, out);
        for (leased, _) in change.granted {
            let (range, lease) = (leased.range, leased.lease);
            self.feed_registrar(now, registrar::Input::Gained { range, lease }, out);
            self.feed_matcher(now, matcher::Input::Gained { range, lease }, out);
        }
    }
}
