//! Drivers: what machines want is done, late, twice, or not at all.

use super::{Happening, Input, MatchCall, OBJECTS, Role, Who, World};
use tidings_base::{Class, Error, KeyHash, Machine, Outbox};
use tidings_notify::registrar::Verdict;
use tidings_notify::rows::{StoreId, StoreRequest, StoreResult};
use tidings_notify::{CallId, Outcome, RequestId, bridge, matcher, registrar};
use tidings_wire::v1;

impl World {
    pub(super) fn registrar_outputs(&mut self, node: usize, out: Outbox<registrar::Output>) {
        let who = self.who(node, Role::Registrar);
        for output in out {
            match output {
                registrar::Output::Send { channel, guard, message } => {
                    if self.holds(Role::Registrar, node, guard) {
                        self.send_down(who, channel, message);
                    }
                }
                registrar::Output::Notified { request, guard, outcome } => {
                    let held = self.holds(Role::Registrar, node, guard);
                    let outcome = if held { outcome } else { Outcome::Moved };
                    self.counts.not_registered += u64::from(matches!(outcome, Outcome::NotRegistered(_)));
                    self.reply(request, outcome, 0);
                }
                registrar::Output::ToMatcher { id, key, call } => {
                    self.call(Happening::Match(who, id, key, MatchCall::Register(call)));
                }
                registrar::Output::Authorize { id, object, .. } => {
                    // The last object is nobody's; hooks that hang are answered for by the driver.
                    let verdict = match () {
                        () if object == super::object(OBJECTS as u64 - 1) => Verdict::No,
                        () if self.faulty() && self.rng.one_in(8) => Verdict::Unsure,
                        () => Verdict::Yes,
                    };
                    let delay = self.delay();
                    let input = registrar::Input::Authorized { id, verdict };
                    self.after(delay, Happening::Input(who, Input::Registrar(input)));
                }
                registrar::Output::Confirm { id, guard } => {
                    let held = self.holds(Role::Registrar, node, Some(guard));
                    self.counts.collected += u64::from(held);
                    let input = registrar::Input::Confirmed { id, held };
                    self.after(0, Happening::Input(who, Input::Registrar(input)));
                }
                registrar::Output::Worn { .. } => unreachable!("nobody draws so many numbers here"),
                registrar::Output::Store { id, request } => self.ask_store(who, id, request),
            }
        }
        let deadline = self.nodes[node].registrar.deadline();
        self.wake_at(who, deadline);
    }

    pub(super) fn matcher_outputs(&mut self, node: usize, out: Outbox<matcher::Output>) {
        let who = self.who(node, Role::Matcher);
        for output in out {
            match output {
                matcher::Output::Answer { request, guard, outcome, version } => {
                    let held = self.holds(Role::Matcher, node, guard);
                    self.reply(request, if held { outcome } else { Outcome::Moved }, version);
                }
                matcher::Output::ToRegistrar { id, key, notify } => {
                    self.call(Happening::Notify(who, id, key, notify));
                }
                matcher::Output::Behind { .. } => {}
                matcher::Output::Store { id, guard, request } => match self.holds(Role::Matcher, node, guard) {
                    true => self.ask_store(who, id, request),
                    false => {
                        let result = Err(Error::new("notify.moved", Class::Refused, "The lease is over."));
                        let input = Input::Matcher(matcher::Input::Stored { id, result });
                        self.after(0, Happening::Input(who, input));
                    }
                },
            }
        }
        let deadline = self.nodes[node].matcher.deadline();
        self.wake_at(who, deadline);
    }

    pub(super) fn bridge_outputs(&mut self, node: usize, out: Outbox<bridge::Output>) {
        let who = self.who(node, Role::Bridge);
        for output in out {
            match output {
                bridge::Output::ToMatcher { id, key, call } => {
                    self.call(Happening::Match(who, id, key, MatchCall::Publish(call)));
                }
                bridge::Output::Ack(number) => drop(self.feed.remove(&number)),
                bridge::Output::Spoiled(number) => self.broken = Some(format!("entry {number} is spoiled")),
                bridge::Output::Store { id, request } => {
                    let write = matches!(&request, StoreRequest::Write(apply)
                        if apply.groups[0].rows[0].cells[0].value.is_some());
                    self.counts.scratched += u64::from(write);
                    self.ask_store(who, id, request);
                }
            }
        }
        let deadline = self.nodes[node].bridge.deadline();
        self.wake_at(who, deadline);
    }

    /// Calls between servers are lost and repeated, too.
    pub(super) fn call(&mut self, happening: Happening) {
        if self.lost() {
            return;
        }
        let again = match &happening {
            Happening::Match(who, id, key, call) => Happening::Match(*who, *id, *key, call.clone()),
            Happening::Notify(who, id, key, notify) => Happening::Notify(*who, *id, *key, notify.clone()),
            _ => return,
        };
        if self.repeated() {
            let delay = self.delay();
            self.after(delay, again);
        }
        let delay = self.delay();
        self.after(delay, happening);
    }

    pub(super) fn request(&mut self, who: Who, id: CallId) -> RequestId {
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.requests.insert(request, (who, id));
        request
    }

    pub(super) fn match_arrives(&mut self, who: Who, id: CallId, key: KeyHash, call: MatchCall) {
        let request = self.request(who, id);
        let Some((node, lease)) = self.matchers.owner(key) else {
            return self.reply(request, Outcome::Moved, 0);
        };
        let input = match call {
            MatchCall::Register(call) => matcher::Input::Register { request, lease, call },
            MatchCall::Publish(call) => matcher::Input::Publish { request, lease, call },
        };
        self.give(node, Input::Matcher(input));
    }

    pub(super) fn notify_arrives(&mut self, who: Who, id: CallId, key: KeyHash, notify: Box<v1::ClientNotify>) {
        let request = self.request(who, id);
        let Some((node, lease)) = self.registrars.owner(key) else {
            return self.reply(request, Outcome::Moved, 0);
        };
        self.give(node, Input::Registrar(registrar::Input::Notify { request, lease, notify }));
    }

    pub(super) fn reply(&mut self, request: RequestId, outcome: Outcome, version: u64) {
        let Some((who, id)) = self.requests.remove(&request) else { return };
        if self.lost() {
            return;
        }
        let input = match who.role {
            Role::Registrar => Input::Registrar(registrar::Input::Matched { id, outcome, version }),
            Role::Matcher => Input::Matcher(matcher::Input::Notified { id, outcome }),
            Role::Bridge => Input::Bridge(bridge::Input::Matched { id, outcome }),
        };
        let delay = self.delay();
        self.after(delay, Happening::Input(who, input));
    }

    pub(super) fn ask_store(&mut self, who: Who, id: StoreId, request: StoreRequest) {
        let delay = self.delay();
        self.after(delay, Happening::Store(who, id, request));
    }

    pub(super) fn store_performs(&mut self, who: Who, id: StoreId, request: &StoreRequest) {
        let unavailable = || Error::new("store.unavailable", Class::OutcomeUnknown, "Nobody knows.");
        let result: StoreResult = match self.faulty() && self.rng.one_in(40) {
            true if self.rng.one_in(2) => Err(unavailable()),
            true => self.store.perform(request).and_then(|_| Err(unavailable())),
            false => self.store.perform(request),
        };
        self.counts.row_failures += u64::from(result.is_err());
        let input = match who.role {
            Role::Registrar => Input::Registrar(registrar::Input::Stored { id, result }),
            Role::Matcher => Input::Matcher(matcher::Input::Stored { id, result }),
            Role::Bridge => Input::Bridge(bridge::Input::Stored { id, result }),
        };
        let delay = self.delay();
        self.after(delay, Happening::Input(who, input));
    }
}
