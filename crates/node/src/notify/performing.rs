//! Performs what the machines want. Nothing here waits.

use super::exchange::{Call, Origin};
use super::hooks::Question;
use super::hub::{Hub, To};
use crate::driver::Perform;
use crate::metrics;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_notify::names::Guard;
use tidings_notify::{Outcome, RequestId};
use tidings_notify::{bridge, matcher, registrar};
use tokio::sync::mpsc;

pub(super) struct ForRegistrar {
    hub: Arc<Hub>,
}

pub(super) struct ForMatcher {
    hub: Arc<Hub>,
}

pub(super) struct ForBridge {
    hub: Arc<Hub>,
    acks: mpsc::UnboundedSender<u64>,
}

impl ForRegistrar {
    pub(super) fn new(hub: &Arc<Hub>) -> ForRegistrar {
        ForRegistrar { hub: hub.clone() }
    }

    fn say(&self, input: registrar::Input) {
        let hub = self.hub.clone();
        self.hub.spawn(async move { hub.registrar(input).await });
    }
}

impl ForMatcher {
    pub(super) fn new(hub: &Arc<Hub>) -> ForMatcher {
        ForMatcher { hub: hub.clone() }
    }
}

impl ForBridge {
    pub(super) fn new(hub: &Arc<Hub>, acks: mpsc::UnboundedSender<u64>) -> ForBridge {
        ForBridge { hub: hub.clone(), acks }
    }
}

impl Hub {
    /// F1: an answer leaves only if the lease has held until now; otherwise it says so.
    fn guarded(self: &Arc<Self>, request: RequestId, guard: Option<Guard>, outcome: Outcome, version: u64) {
        match self.holds(guard) {
            true => self.answer(request, outcome, version),
            false => self.answer(request, Outcome::Moved, 0),
        }
    }
}

impl Perform<registrar::Output> for ForRegistrar {
    fn perform(&mut self, output: registrar::Output) {
        use registrar::{Input, Output};
        match output {
            Output::Send { channel, guard, message } => {
                if self.hub.holds(guard) {
                    self.hub.stages.sent(&message);
                    self.hub.down(channel, message);
                }
            }
            Output::Notified { request, guard, outcome } => self.hub.guarded(request, guard, outcome, 0),
            Output::ToMatcher { id, key, call } => {
                self.hub.route(key, Origin::Registrar(id), Call::Register(call));
            }
            Output::Authorize { id, client, channel, object, sending } => {
                let hub = self.hub.clone();
                self.hub.spawn(async move {
                    let verdict = hub.judge(Question { client, channel, object, sending }).await;
                    hub.registrar(Input::Authorized { id, verdict }).await;
                });
            }
            Output::Confirm { id, guard } => {
                let held = self.hub.holds(Some(guard));
                self.say(Input::Confirmed { id, held });
            }
            Output::Worn { lease } => self.hub.renumber(lease),
            Output::Store { id, request } => self.hub.store(To::Registrar, id, request),
        }
    }
}

impl Perform<matcher::Output> for ForMatcher {
    fn perform(&mut self, output: matcher::Output) {
        use matcher::Output;
        match output {
            Output::Answer { request, guard, outcome, version } => self.hub.guarded(request, guard, outcome, version),
            Output::ToRegistrar { id, key, notify } => {
                let origin = if notify.hint { Origin::Nobody } else { Origin::Matcher(id) };
                self.hub.route(key, origin, Call::Notify(notify));
            }
            Output::Behind { object, version, latest, times } => {
                metrics::notify_behind();
                self.hub.channels.traces().behind(object.app(), object.name(), version, latest, times);
            }
            Output::Store { id, guard, request } => match self.hub.holds(guard) {
                true => self.hub.store(To::Matcher, id, request),
                false => {
                    let hub = self.hub.clone();
                    let moved = Error::new("notify.moved", Class::Refused, "the range is not held any more");
                    self.hub.spawn(async move { hub.stored_for(To::Matcher, id, Err(moved)).await });
                }
            },
        }
    }
}

impl Perform<bridge::Output> for ForBridge {
    fn perform(&mut self, output: bridge::Output) {
        use bridge::Output;
        match output {
            Output::ToMatcher { id, key, call } => {
                self.hub.route(key, Origin::Bridge(id), Call::Publish(call));
            }
            Output::Ack(number) => {
                // Without whoever acknowledges the node is stopping.
                let _ = self.acks.send(number);
            }
            Output::Spoiled(number) => {
                metrics::notify_spoiled();
                tracing::warn!(number, "notify: an entry of the feed is no publication");
            }
            Output::Store { id, request } => self.hub.store(To::Bridge, id, request),
        }
    }
}
