//! One replica is asked: how long it has, and whose fault it is that it does not answer, or answers otherwise.
//!
//! Who is asked is never a matter of speed (rule I). A page that takes its time does so at every replica, and to leave out those that
//! were asked for it would leave the choice to whoever answers soonest. So silence counts only against a replica of which others show
//! that the time sufficed, or that gives up by itself.

use super::{How, Output, Pending, Refusal, Silent, Sketcher, Stage};
use crate::sketch::Sketch;
use crate::{Answer, CallId, ReplicaId};
use tidings_base::{Mono, Now, Outbox};

/// A replica that was asked alone, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    replica: ReplicaId,
    at: Mono,
}

/// A fast read that came to nothing: the replicated one will tell whose fault that was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doubt {
    /// The answer was not the remembered one.
    Differed { replica: ReplicaId, answered: Sketch, remembered: Sketch },
    /// There was none.
    Silent { replica: ReplicaId, group_asked: Mono },
}

impl<Q: Clone, R: Clone> Sketcher<Q, R> {
    pub(super) fn ask_fast(&mut self, now: Now, mut pending: Pending<Q>, out: &mut Outbox<Output<Q, R>>) {
        self.counts.tried_fast += 1;
        let asked = Single { replica: self.replicas.choose(now.mono), at: now.mono };
        pending.stage = Stage::Fast(asked);
        let until = now.mono + self.options.patience;
        self.send_to_one(asked.replica, until, pending, out);
    }

    /// Whoever is asked last has as long as the group would have: a write may be executing, and after an unverified read that
    /// nobody else is asked for there is nothing but a refusal.
    pub(super) fn ask_one(
        &mut self,
        now: Now,
        mut pending: Pending<Q>,
        tries: u32,
        before: Option<ReplicaId>,
        out: &mut Outbox<Output<Q, R>>,
    ) {
        let asked = Single { replica: self.replicas.choose(now.mono), at: now.mono };
        let tries_left = tries.saturating_sub(1);
        pending.stage = Stage::One { asked, tries_left, before };
        let long = if tries_left == 0 { self.options.give_up } else { self.options.patience };
        self.send_to_one(asked.replica, now.mono + long, pending, out);
    }

    fn send_to_one(&mut self, to: ReplicaId, until: Mono, pending: Pending<Q>, out: &mut Outbox<Output<Q, R>>) {
        let request = pending.ask.request.clone();
        let call = self.call(pending);
        self.timers.set(Silent(call), until);
        out.put(Output::Fast(call, to, request));
    }

    /// It is there, and answers: that it takes long is no silence any more.
    pub(super) fn began(&mut self, call: CallId) {
        let asked = match self.pending.get(&call).map(|pending| pending.stage) {
            Some(Stage::Fast(asked) | Stage::One { asked, .. }) => asked,
            Some(Stage::Replicated { .. }) | None => return,
        };
        self.timers.set(Silent(call), asked.at + self.options.give_up);
    }

    pub(super) fn fast(&mut self, now: Now, call: CallId, answer: Option<Answer<R>>, out: &mut Outbox<Output<Q, R>>) {
        let one_was_asked = |pending: &Pending<Q>| matches!(pending.stage, Stage::Fast(_) | Stage::One { .. });
        if !self.pending.get(&call).is_some_and(one_was_asked) {
            return;
        }
        self.timers.cancel(&Silent(call));
        let Some(pending) = self.pending.remove(&call) else { return };
        match (pending.stage, answer) {
            (Stage::Fast(asked), answer) => self.compare(now, pending, asked.replica, answer, out),
            (Stage::One { asked, before, .. }, Some(answer)) => {
                let in_time = now.mono.since(asked.at) <= self.options.patience;
                if let Some(before) = before.filter(|before| *before != asked.replica && in_time) {
                    self.replicas.was_silent(now.mono, before);
                }
                self.answer(&pending, answer.response, How::Unverified, None, out);
            }
            (Stage::One { asked, tries_left: 0, before }, None) => {
                // Two who give nothing speak against what they were asked for. Nobody else is asked for a write; but whoever breaks off
                // before its time is over is not slow.
                if before.is_none() && now.mono.since(asked.at) < self.options.give_up {
                    self.replicas.was_silent(now.mono, asked.replica);
                }
                self.refuse(pending.ask.id, Refusal::NoAnswer, out);
            }
            (Stage::One { asked, tries_left, .. }, None) => {
                self.ask_one(now, pending, tries_left, Some(asked.replica), out);
            }
            (Stage::Replicated { .. }, _) => {}
        }
    }

    /// Whoever could not be asked is not to blame, and has executed nothing. To prefer another one for that would be a choice by speed, so
    /// that the group is asked; a write, which is nobody else's, is refused.
    pub(super) fn unasked(&mut self, now: Now, call: CallId, out: &mut Outbox<Output<Q, R>>) {
        let stage = match self.pending.get(&call).map(|pending| pending.stage) {
            Some(stage @ (Stage::Fast(_) | Stage::One { .. })) => stage,
            Some(Stage::Replicated { .. }) | None => return,
        };
        self.timers.cancel(&Silent(call));
        let Some(pending) = self.pending.remove(&call) else { return };
        match stage {
            Stage::One { tries_left: 0, .. } => self.refuse(pending.ask.id, Refusal::Busy, out),
            Stage::One { tries_left, before, .. } => self.ask_one(now, pending, tries_left, before, out),
            Stage::Fast(_) | Stage::Replicated { .. } => self.replicate(pending, None, out),
        }
    }

    /// A mismatch without a transition is charged to the replica; one that was ahead of us was right. Silence is charged if the
    /// others have answered in the time that the replica was given.
    pub(super) fn settle(&mut self, now: Now, doubt: Option<Doubt>, answer: &Answer<R>) {
        match doubt {
            Some(Doubt::Differed { replica, remembered, .. }) if answer.sketch == remembered => {
                self.replicas.mismatched(now.mono, replica);
            }
            Some(Doubt::Differed { replica, answered, .. }) if answer.sketch == answered => {
                self.replicas.was_right(replica);
            }
            Some(Doubt::Silent { replica, group_asked }) if now.mono.since(group_asked) <= self.options.patience => {
                self.replicas.was_silent(now.mono, replica);
            }
            _ => {}
        }
    }
}
