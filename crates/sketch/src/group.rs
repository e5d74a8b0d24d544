//! How a group is asked, and when its members' replies count (rules E and F).
//!
//! ```text
//!   Sketcher ─ Ask ─▶ Group ─ Send ─▶ every replica (a crash-tolerant group: one after the other)
//!                       │  ◀─ Reply { group, client, nonce, σ, hash of the result } ─┘
//!                       └ a quorum equal in all of these, and one body with that hash ─▶ Done
//! ```
//! A *Byzantine* group orders what it is asked; f + 1 equal replies contain an honest one. Where reads may pass by the order
//! (the read-optimised path, D-Prophecy), ordered operations need 2f + 1. *Origins* are servers that know nothing of one
//! another: they are voted on, and there is no σ. A *crash-tolerant* group has members that fail and do not lie: one reply is
//! enough.

use crate::mutant::Mutant;
use crate::sigma::Sigma;
use crate::sketch::Sketch;
use crate::{Answer, CallId, ReplicaId};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Timers};

/// What kind of group it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 3f + 1 replicas with one order.
    Byzantine {
        /// f.
        faults: u16,
        /// Whether anybody reads past the order.
        reads_pass_by: bool,
    },
    /// Interchangeable servers without an order.
    Origins {
        /// How many of them may be wrong.
        faults: u16,
        /// How many must say the same.
        quorum: u16,
    },
    /// Members of an agreed log, which fail and do not lie.
    CrashTolerant,
}

impl Kind {
    /// How many equal replies are enough.
    pub fn quorum(self) -> u16 {
        match self {
            Kind::Byzantine { faults, reads_pass_by: false } => faults + 1,
            Kind::Byzantine { faults, reads_pass_by: true } => 2 * faults + 1,
            Kind::Origins { quorum, .. } => quorum,
            Kind::CrashTolerant => 1,
        }
    }

    /// How many members may lie.
    pub fn faults(self) -> u16 {
        match self {
            Kind::Byzantine { faults, .. } | Kind::Origins { faults, .. } => faults,
            Kind::CrashTolerant => 0,
        }
    }

    /// How many equal remembered sketches a fast read of D-Prophecy needs (rule H). Together with an ordered command's quorum
    /// they must contain an honest replica that is in both: 2f + 1 of exactly 3f + 1 where ordered commands need 2f + 1,
    /// and all (the strict mode) where f + 1 are enough for those.
    pub fn fast_quorum(self, replicas: u16) -> Result<u16, Misfit> {
        self.fits(replicas)?;
        match self {
            Kind::Byzantine { faults, reads_pass_by: true } => Ok(2 * faults + 1),
            Kind::Byzantine { reads_pass_by: false, .. } => Ok(replicas),
            Kind::Origins { .. } | Kind::CrashTolerant => Err(Misfit::NoLiarsInOrder),
        }
    }

    fn fits(self, replicas: u16) -> Result<(), Misfit> {
        let (has, wide) = (u32::from(replicas), |number: u16| u32::from(number));
        match self {
            Kind::Byzantine { faults, .. } if has < 3 * wide(faults) + 1 => Err(Misfit::TooFewReplicas),
            Kind::Byzantine { faults, reads_pass_by: true } if has > 3 * wide(faults) + 1 => {
                Err(Misfit::QuorumsMayMiss)
            }
            Kind::Origins { faults, quorum } if wide(quorum) < wide(faults) + 1 => Err(Misfit::QuorumTooSmall),
            Kind::Origins { faults, quorum } if has < wide(quorum) + wide(faults) => Err(Misfit::TooFewOrigins),
            _ if has == 0 => Err(Misfit::TooFewReplicas),
            _ => Ok(()),
        }
    }
}

/// Why a group cannot be what it is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// N < 3f + 1.
    #[error("a group that bears f liars needs 3f + 1 replicas; name more replicas, or bear fewer liars")]
    TooFewReplicas,
    /// q < f + 1.
    #[error("a quorum of f could be liars alone; ask for at least f + 1 equal answers")]
    QuorumTooSmall,
    /// N < q + f.
    #[error("f silent origins would make the quorum unreachable; name more origins, or lower the quorum")]
    TooFewOrigins,
    /// N > 3f + 1 with quorums of 2f + 1.
    #[error("two quorums of 2f + 1 need not share an honest replica among more than 3f + 1; name exactly 3f + 1")]
    QuorumsMayMiss,
    /// D-Prophecy before something else than a Byzantine group.
    #[error("D-Prophecy needs a group that orders what it is asked and bears liars")]
    NoLiarsInOrder,
}

/// How a group is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The group's name: a reply of another group never counts.
    pub group: u64,
    /// Our name there.
    pub client: u64,
    /// Nonces begin after this one; a restart must not use one again.
    pub last_nonce: u64,
    /// How many replicas there are.
    pub replicas: u16,
    /// What kind of group it is.
    pub kind: Kind,
    /// When those that have not answered are asked again.
    pub resend: Duration,
    /// When a call is given up.
    pub give_up: Duration,
    /// A rule left out, for tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What one replica says.
#[derive(Clone, Debug)]
pub struct Reply<R> {
    /// Who says it; the driver has verified its MAC.
    pub from: ReplicaId,
    /// The group it speaks for.
    pub group: u64,
    /// The client it speaks to.
    pub client: u64,
    /// The nonce of the command that it answers.
    pub nonce: u64,
    /// Where the command stands in the group's order; origins have none.
    pub sigma: Option<Sigma>,
    /// s(r), as the replica says.
    pub result: Sketch,
    /// The answer, from the one that was asked for it whole; its sketch is computed by the driver.
    pub whole: Option<Answer<R>>,
}

/// What a driver brings.
#[derive(Debug)]
pub enum Input<Q, R> {
    /// Ask the group.
    Ask(CallId, Q),
    /// A reply that came for this call.
    Reply(CallId, Reply<R>),
    /// A replica could not be asked, or gave no proper answer.
    Failed(CallId, ReplicaId),
}

/// What a driver must do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<Q, R> {
    /// Send a command to a replica.
    Send {
        /// To whom.
        to: ReplicaId,
        /// For which call.
        call: CallId,
        /// What names the command; sent again, it has the same.
        nonce: u64,
        /// Whether the replica answers in full; otherwise a hash is enough (rule F).
        whole: bool,
        /// The command.
        request: Q,
    },
    /// The group's answer.
    Done(CallId, Answer<R>, Option<Sigma>),
    /// There is none; and what one of its members said.
    Refused(CallId, Refusal, Option<Answer<R>>),
}

/// Why a group has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too few members answered.
    #[error("too few replicas answered in time; look at their health")]
    Unreachable,
    /// Members answered, and too few of them the same.
    #[error("the replicas do not agree; compare what they serve")]
    Disagreement,
    /// They agree on what is no answer of the service that was asked. Whoever knows the service says so, not this machine.
    #[error("the replicas run another service than was asked for; name theirs with --service")]
    OtherService,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Resend(CallId),
    GiveUp(CallId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    sigma: Option<Sigma>,
    result: Sketch,
}

#[derive(Debug)]
struct Call<Q, R> {
    nonce: u64,
    request: Q,
    /// At most one of each member: its first word counts.
    said: BTreeMap<ReplicaId, Said>,
    failed: Vec<ReplicaId>,
    /// Bodies by their sketches; at most one of each member.
    whole: Vec<Answer<R>>,
    /// Whom a crash-tolerant group is asked through; who is asked for the whole answer.
    turn: u16,
    /// One of the quorum was asked for the whole answer; the next one is when the resend timer has run.
    fetching: bool,
}

/// One client of one group.
#[derive(Debug)]
pub struct Group<Q, R> {
    options: Options,
    calls: BTreeMap<CallId, Call<Q, R>>,
    timers: Timers<Timer>,
    last_nonce: u64,
    differed: Vec<u64>,
}

impl<Q: Clone, R: Clone> Group<Q, R> {
    /// A client of a group, if it can be one.
    pub fn new(options: Options) -> Result<Group<Q, R>, Misfit> {
        options.kind.fits(options.replicas)?;
        Ok(Group {
            calls: BTreeMap::new(),
            timers: Timers::new(),
            last_nonce: options.last_nonce,
            differed: vec![0; usize::from(options.replicas)],
            options,
        })
    }

    /// How often each replica's word was not the group's.
    pub fn differed(&self) -> &[u64] {
        &self.differed
    }

    fn ask(&mut self, now: Now, id: CallId, request: Q, out: &mut Outbox<Output<Q, R>>) {
        self.last_nonce += 1;
        let (nonce, turn) = (self.last_nonce, (self.last_nonce % u64::from(self.options.replicas)) as u16);
        let call = Call {
            nonce,
            request,
            said: BTreeMap::new(),
            failed: Vec::new(),
            whole: Vec::new(),
            turn,
            fetching: false,
        };
        self.calls.insert(id, call);
        self.timers.set(Timer::GiveUp(id), now.mono + self.options.give_up);
        self.send(now, id, out);
    }

    /// Asks whoever has not answered; a crash-tolerant group one after the other.
    fn send(&mut self, now: Now, id: CallId, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get(&id) else { return };
        let (replicas, kind) = (self.options.replicas, self.options.kind);
        for number in (0..replicas).filter(|number| !call.said.contains_key(&ReplicaId(*number))) {
            let turn = number == call.turn % replicas;
            if turn || kind != Kind::CrashTolerant {
                let whole = turn || matches!(kind, Kind::Origins { .. });
                let (nonce, request) = (call.nonce, call.request.clone());
                out.put(Output::Send { to: ReplicaId(number), call: id, nonce, whole, request });
            }
        }
        self.timers.set(Timer::Resend(id), now.mono + self.options.resend);
    }

    /// Rule F: σ and the result's hash are inside what must be equal, the nonce stops replays, and a reply of another
    /// group or to another client is none.
    fn reply(&mut self, now: Now, id: CallId, reply: Reply<R>, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let ours = reply.group == self.options.group && reply.client == self.options.client;
        let asked = reply.nonce == call.nonce || self.options.mutant == Some(Mutant::NonceIgnored);
        let ordered = reply.sigma.is_some() != matches!(self.options.kind, Kind::Origins { .. });
        // Of a vote, who could not be asked is counted as that alone: it may say something all the same, made up.
        let unasked = matches!(self.options.kind, Kind::Origins { .. }) && call.failed.contains(&reply.from);
        if !ours || !asked || !ordered || unasked || reply.from.0 >= self.options.replicas {
            return;
        }
        let said = Said { sigma: reply.sigma, result: reply.result };
        if *call.said.entry(reply.from).or_insert(said) != said {
            return;
        }
        if let Some(whole) = reply.whole.filter(|whole| whole.sketch == reply.result)
            && !call.whole.iter().any(|known| known.sketch == whole.sketch)
        {
            call.whole.push(whole);
        }
        self.conclude(now, id, out);
    }

    fn failed(&mut self, now: Now, id: CallId, from: ReplicaId, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        match self.options.kind {
            Kind::CrashTolerant if from.0 == call.turn % self.options.replicas => {
                // Once around, then with a pause: the resend timer goes on.
                call.failed.push(from);
                call.turn = call.turn.wrapping_add(1);
                if call.failed.len() <= usize::from(self.options.replicas) {
                    self.send(now, id, out);
                }
            }
            Kind::Origins { .. } if !call.failed.contains(&from) && !call.said.contains_key(&from) => {
                call.failed.push(from);
                self.conclude(now, id, out);
            }
            // An ordered command goes on without this one, and is sent again.
            _ => {}
        }
    }

    fn conclude(&mut self, now: Now, id: CallId, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get(&id) else { return };
        let quorum = match self.options.mutant {
            Some(Mutant::QuorumShort) => self.options.kind.faults().max(1),
            Some(Mutant::OrderedShort) => self.options.kind.faults() + 1,
            _ => self.options.kind.quorum(),
        };
        let counted = call.said.values().map(|said| (*said, self.count(call, *said)));
        let Some((best, count)) = counted.max_by_key(|(_, count)| *count) else {
            return self.give_up_if_hopeless(id, 0, quorum, out);
        };
        if count < usize::from(quorum) {
            return self.give_up_if_hopeless(id, count, quorum, out);
        }
        match call.whole.iter().find(|whole| whole.sketch == best.result).cloned() {
            Some(answer) => self.done(id, best, answer, out),
            None => self.ask_for_whole(now, id, best, out),
        }
    }

    fn count(&self, call: &Call<Q, R>, said: Said) -> usize {
        let equal = |other: &&Said| match self.options.mutant {
            Some(Mutant::SigmaUnmatched) => other.result == said.result,
            _ => **other == said,
        };
        call.said.values().filter(equal).count()
    }

    fn done(&mut self, id: CallId, best: Said, answer: Answer<R>, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.end(id) else { return };
        for (replica, said) in &call.said {
            if let Some(differed) = self.differed.get_mut(usize::from(replica.0)) {
                *differed += u64::from(said.result != best.result);
            }
        }
        let highest = call.said.values().filter(|said| said.result == best.result).filter_map(|said| said.sigma).max();
        let sigma = if self.options.mutant == Some(Mutant::SigmaUnmatched) { highest } else { best.sigma };
        out.put(Output::Done(id, answer, sigma));
    }

    /// The quorum's hash is known, and whoever was asked for the body did not send it: one of the quorum has it.
    fn ask_for_whole(&mut self, now: Now, id: CallId, best: Said, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if std::mem::replace(&mut call.fetching, true) {
            return;
        }
        let agreeing: Vec<ReplicaId> =
            call.said.iter().filter(|(_, said)| **said == best).map(|(replica, _)| *replica).collect();
        let to = agreeing[usize::from(call.turn) % agreeing.len()];
        call.turn = call.turn.wrapping_add(1);
        let (nonce, request) = (call.nonce, call.request.clone());
        out.put(Output::Send { to, call: id, nonce, whole: true, request });
        self.timers.set(Timer::Resend(id), now.mono + self.options.resend);
    }

    /// First words count, and origins answer once: when those that are left cannot make a quorum, there will be none. Of a
    /// Byzantine group all are left who have not spoken: they are asked again.
    fn give_up_if_hopeless(&mut self, id: CallId, best: usize, quorum: u16, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get(&id).filter(|_| self.options.kind != Kind::CrashTolerant) else { return };
        let left = usize::from(self.options.replicas) - call.said.len() - call.failed.len();
        match self.options.kind {
            _ if best + left >= usize::from(quorum) => {}
            // Had those who spoke agreed, the others could be waited for.
            Kind::Byzantine { .. } => self.refuse(id, Refusal::Disagreement, out),
            Kind::Origins { .. } | Kind::CrashTolerant => self.give_up(id, out),
        }
    }

    fn give_up(&mut self, id: CallId, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get(&id) else { return };
        let enough = call.said.len() >= usize::from(self.options.kind.quorum());
        self.refuse(id, if enough { Refusal::Disagreement } else { Refusal::Unreachable }, out);
    }

    fn refuse(&mut self, id: CallId, why: Refusal, out: &mut Outbox<Output<Q, R>>) {
        if let Some(call) = self.end(id) {
            out.put(Output::Refused(id, why, call.whole.into_iter().next()));
        }
    }

    fn end(&mut self, id: CallId) -> Option<Call<Q, R>> {
        self.timers.cancel(&Timer::Resend(id));
        self.timers.cancel(&Timer::GiveUp(id));
        self.calls.remove(&id)
    }

    fn resend(&mut self, now: Now, id: CallId, out: &mut Outbox<Output<Q, R>>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        // A vote asks each origin once: what they said at another time would be another vote.
        if matches!(self.options.kind, Kind::Origins { .. }) {
            return;
        }
        call.turn = call.turn.wrapping_add(1);
        call.fetching = false;
        call.failed.clear();
        self.send(now, id, out);
        self.conclude(now, id, out);
    }
}

impl<Q: Clone, R: Clone> Machine for Group<Q, R> {
    type Input = Input<Q, R>;
    type Output = Output<Q, R>;

    fn handle(&mut self, now: Now, input: Input<Q, R>, out: &mut Outbox<Output<Q, R>>) {
        match input {
            Input::Ask(call, request) => self.ask(now, call, request, out),
            Input::Reply(call, reply) => self.reply(now, call, reply, out),
            Input::Failed(call, from) => self.failed(now, call, from, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output<Q, R>>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Resend(call) => self.resend(now, call, out),
                Timer::GiveUp(call) => self.give_up(call, out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
