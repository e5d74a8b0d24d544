//! Ranges by placement: what this node owns, and who owns the rest.

use super::{Node, Out};
use crate::kernel::{Effect, HostId};
use crate::scenarios::placement::asking::Asking;
use crate::scenarios::placement::letter::Body;
use tidings_base::{KeyHash, LeaseNumber, Machine, Mono, Now, Outbox};
use tidings_notify::{matcher, registrar};
use tidings_placement::check::Checks;
use tidings_placement::lookup::{self, Lookup};
use tidings_placement::owner::{self, Owner, OwnershipChange};
use tidings_wire::v1::placement_message::Message;

/// What a node knows of ranges.
pub struct Ranges {
    owner: Owner,
    checks: Checks,
    lookup: Lookup,
    owning: Asking,
    looking: Asking,
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
        [self.owner.deadline(), self.lookup.deadline()].into_iter().flatten().min()
    }
}

impl Node {
    /// How much of the ring is held here now.
    pub fn held(&self, now: Mono) -> u128 {
        self.ranges.checks.held(now).iter().map(|leased| leased.range.len()).sum()
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
                owner::Output::Changed(change) => self.ranges_changed(now, change, out),
                // All that is in memory can be found again in the store: nothing is handed over.
                owner::Output::Export(to) => {
                    self.feed_owner(now, owner::Input::Exported { token: to.token, done: false }, out);
                }
                owner::Output::Import(_) | owner::Output::ImportOver(_) | owner::Output::Refused(_) => {}
                owner::Output::Drained => out.put(Effect::Exit { why: "drained".to_owned() }),
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
