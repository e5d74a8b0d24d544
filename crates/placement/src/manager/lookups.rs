//! What lookups are told: ranges that changed after what they know, at any age (F7).

use super::pool::{MAX_LOOKUPS, Pool, Waiting};
use super::{Output, fail};
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_base::{Class, Error, Mono, OpId, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// The longest that a lookup's poll is held (§2.2.1).
const HOLD: Duration = Duration::from_secs(30);

impl Pool {
    /// Takes a lookup's poll: answered at once if it lacks something, else held.
    pub(super) fn look(&mut self, now: Mono, epoch: u64, op: OpId, poll: &v1::LookupPoll, out: &mut Outbox<Output>) {
        let published = self.commits.published();
        let ours = poll.instance == self.meta.instance;
        let lost_everything = (poll.instance != 0 && !ours) || (ours && poll.lsn > published);
        if !ours || lost_everything {
            let answer = v1::LookupAnswer { lost_everything, ..self.lookup_answer(epoch, 0, true) };
            return out.put(Output::Answer { op, message: Message::LookupAnswer(answer) });
        }
        if poll.lsn < published {
            let answer = self.lookup_answer(epoch, poll.lsn, false);
            return out.put(Output::Answer { op, message: Message::LookupAnswer(answer) });
        }
        if self.lookups.len() >= MAX_LOOKUPS {
            let busy = Error::new("placement.busy", Class::Unreachable, "too many lookups wait here");
            return fail(out, op, busy.hint("Try again after a pause."));
        }
        let wait = Duration::from_millis(poll.wait_ms.into()).min(HOLD);
        self.lookups.push(Waiting { op, lsn: poll.lsn, until: now + wait });
    }

    /// Answers waiting lookups: all of them when changes were gathered, others at the end of their wait.
    pub(super) fn push(&mut self, now: Mono, epoch: u64, out: &mut Outbox<Output>) {
        let pushing = self.push_at.is_some_and(|at| at <= now);
        if pushing {
            self.push_at = None;
        }
        let published = self.commits.published();
        let (due, rest): (Vec<Waiting>, Vec<Waiting>) = std::mem::take(&mut self.lookups)
            .into_iter()
            .partition(|waiting| waiting.until <= now || (pushing && waiting.lsn < published));
        self.lookups = rest;
        for waiting in due {
            self.counts.pushes += u64::from(waiting.lsn < published);
            let answer = self.lookup_answer(epoch, waiting.lsn, false);
            out.put(Output::Answer { op: waiting.op, message: Message::LookupAnswer(answer) });
        }
    }

    /// Everything after an LSN, up to what is published.
    fn lookup_answer(&self, epoch: u64, after: u64, snapshot: bool) -> v1::LookupAnswer {
        let lsn = self.commits.published();
        let wanted = |range: &super::table::Range| snapshot || (range.changed > after && range.changed <= lsn);
        let ranges: Vec<v1::TableRange> = self
            .table
            .iter()
            .filter(|(_, range)| wanted(range))
            .map(|(start, range)| v1::TableRange {
                start: start.0,
                last: range.last.0,
                owner: range.owner,
                lease: range.lease.get(),
                changed_lsn: range.changed,
                lost_lsn: range.lost,
                ..Default::default()
            })
            .collect();
        let named: BTreeSet<u32> = ranges.iter().map(|range| range.owner).collect();
        let owners = self.members.values().filter(|member| snapshot || named.contains(&member.record.index));
        v1::LookupAnswer {
            epoch,
            instance: self.meta.instance,
            lsn,
            snapshot,
            owners: owners.map(|member| member.record.clone()).collect(),
            ranges,
            lost_everything: false,
        }
    }
}
