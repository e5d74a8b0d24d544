//! What an owner is told: the complete set of ranges that it should hold.

use super::pool::{Due, Pool};
use super::table::{Holder, Intent, arc};
use super::{Output, fail, not_leader};
use crate::Leased;
use crate::mutant::Mutant;
use tidings_base::Outbox;
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

impl Pool {
    /// Answers every poll that is due: there is news, or it was held long enough.
    pub(super) fn answer(&mut self, epoch: u64, may_lease: bool, mutant: Option<Mutant>, out: &mut Outbox<Output>) {
        if !may_lease {
            // A leader in jeopardy fails its held polls at once, so that owners look for another.
            self.ready.extend(self.polls.values().copied());
        }
        for index in std::mem::take(&mut self.ready) {
            self.answer_one(epoch, index, may_lease, mutant, out);
        }
    }

    fn answer_one(
        &mut self,
        epoch: u64,
        index: u32,
        may_lease: bool,
        mutant: Option<Mutant>,
        out: &mut Outbox<Output>,
    ) {
        let Some(talk) = self.members.get_mut(&index).and_then(|member| member.talk.as_mut()) else { return };
        let Some(poll) = talk.poll.take() else { return };
        self.polls.remove(&poll.op);
        self.due.cancel(&Due::Answer(index));
        if !may_lease {
            return fail(out, poll.op, not_leader());
        }
        talk.seq += 1;
        talk.news = None;
        let mut answer = v1::OwnerAnswer {
            epoch,
            nonce: talk.nonce,
            seq: talk.seq,
            heard: talk.heard,
            hello: poll.hello,
            lease_us: u64::try_from(self.times.lease.as_micros()).unwrap_or(u64::MAX),
            renew_ms: u32::try_from(self.times.renew.as_millis()).unwrap_or(u32::MAX),
            ..Default::default()
        };
        if !poll.hello {
            answer.confirmed = std::mem::take(&mut talk.confirm);
            let seq = talk.seq;
            self.fill(index, seq, mutant, &mut answer);
        }
        out.put(Output::Answer { op: poll.op, message: Message::OwnerAnswer(answer) });
    }

    fn fill(&mut self, index: u32, seq: u64, mutant: Option<Mutant>, answer: &mut v1::OwnerAnswer) {
        let honoured = if mutant == Some(Mutant::NoSkewMargin) { self.times.lease } else { self.times.honoured() };
        let until = self.now + honoured;
        let starts = self.table.of_owner(index);
        let draining = self.members.get(&index).is_some_and(|member| member.record.draining);
        let committed = self.members.get(&index).is_some_and(|member| member.committed);
        let comes = self.moves.reach(index) || self.commits.under_way_for(index);
        answer.drained = draining && starts.is_empty() && !comes;
        for start in starts {
            let Some(range) = self.table.get(start).copied() else { continue };
            if range.intent == Intent::Recall {
                continue;
            }
            let leased = Leased { range: arc(start, &range), lease: range.lease };
            match range.holder {
                Holder::Nobody | Holder::Committing => continue,
                // F4: meant for the process before it, when its record changed. It waits for its own to be in the cell.
                Holder::Fresh if !committed => continue,
                Holder::Fresh | Holder::Sent(_) => {
                    let (token, clean) = (range.token.unwrap_or_default(), range.token.is_some());
                    answer.grants.push(v1::Grant { range: Some(leased.into()), token, clean });
                    self.table.update(start, |range| range.holder = Holder::Sent(seq));
                    self.counts.grants += 1;
                }
                Holder::Loaded | Holder::Claimed => {
                    answer.renewals.push(leased.into());
                    self.counts.renewals += 1;
                }
            }
            self.lease_until(start, until);
        }
        (answer.moves, answer.imports) = self.moves_of(index);
    }
}
