//! What lookups are told: ranges that changed after what they know, at any age (F7).
//!
//! What changed is found by LSN in the table itself, so an answer is never larger than the whole table, and no log of
//! changes is kept. What one frame does not hold goes in parts, in the ring's order; a lookup asks on by itself.

use super::pool::{Due, Member, Pool};
use super::table::Range;
use super::{Output, fail};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, Mono, OpId, Outbox, Seeded};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// Lookups that may wait at a time.
const MAX_LOOKUPS: usize = 100_000;

/// The longest that a lookup's poll is held (§2.2.1).
const HOLD: Duration = Duration::from_secs(30);

/// Changes are gathered for so long before lookups hear of them.
const COALESCE: Duration = Duration::from_millis(50);

/// So many are told at a time, and the next after a moment: owners' renewals pass between.
const AT_ONCE: usize = 2_048;
const MOMENT: Duration = Duration::from_millis(10);

/// After a fail-over everybody is behind at once: they are told in so many parts, with random pauses between.
const PARTS: usize = 16;
const JITTER_MS: (u64, u64) = (20, 60);

/// The most bytes of ranges and owners in one answer: a quarter of a frame as it is by default, so that there is room for
/// frames that are configured smaller.
pub(super) const PART: usize = 256 << 10;

/// What a field of a message costs beyond its contents.
pub(super) const FIELD: usize = 5;

/// Up to so many changed ranges are found by LSN; more are searched for in the ring's order, as parts go.
const FEW: usize = 1_024;

#[derive(Clone, Copy, Debug)]
struct Waiting {
    lsn: u64,
    until: Mono,
}

/// Lookups that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookups {
    waiting: BTreeMap<OpId, Waiting>,
    by_time: BTreeSet<(Mono, OpId)>,
    /// Those that are behind are told now.
    pushing: bool,
    /// A fail-over was not long ago.
    calm_after: Mono,
}

impl Lookups {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// This manager has just taken over.
    pub(super) fn taken_over(&mut self, now: Mono, lease: Duration) {
        self.calm_after = now + lease;
    }

    /// It is time to tell those that are behind.
    pub(super) fn pushing(&mut self) {
        self.pushing = true;
    }

    /// When the next one has waited long enough.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn add(&mut self, op: OpId, waiting: Waiting) {
        self.by_time.insert((waiting.until, op));
        self.waiting.insert(op, waiting);
    }

    /// Nobody waits for this one any more.
    pub(super) fn cancel(&mut self, op: OpId) -> Option<u64> {
        let waiting = self.waiting.remove(&op)?;
        self.by_time.remove(&(waiting.until, op));
        Some(waiting.lsn)
    }

    /// All that wait, taken out.
    pub(super) fn take_all(&mut self) -> Vec<OpId> {
        self.by_time.clear();
        std::mem::take(&mut self.waiting).into_keys().collect()
    }
}

impl Pool {
    /// Changes are told soon.
    pub(super) fn push_soon(&mut self) {
        if self.due.at(&Due::Push).is_none() {
            self.due.set(Due::Push, self.now + COALESCE);
        }
    }

    /// Takes a lookup's poll: answered at once if it lacks something, else held.
    pub(super) fn look(&mut self, epoch: u64, op: OpId, poll: &v1::LookupPoll, out: &mut Outbox<Output>) {
        let published = self.commits.published();
        let ours = poll.instance == self.meta.instance;
        let lost_everything = (poll.instance != 0 && !ours) || (ours && poll.lsn > published);
        let snapshot = !ours || lost_everything;
        // Whoever has a part of an answer gets the next at once; changes that are being gathered come later.
        let behind = poll.lsn < published && self.due.at(&Due::Push).is_none();
        // After a fail-over everybody is behind at once, and told together.
        let together = behind && self.now < self.lookups.calm_after;
        if snapshot || poll.from != 0 || (behind && !together) {
            let (after, from) = if snapshot { (0, 0) } else { (poll.lsn, poll.from) };
            let part = self.changes(epoch, after, KeyHash(from));
            let answer = v1::LookupAnswer { snapshot, lost_everything, ..part };
            return out.put(Output::Answer { op, message: Message::LookupAnswer(answer) });
        }
        if self.lookups.len() >= MAX_LOOKUPS {
            let busy = Error::new("placement.busy", Class::Unreachable, "too many lookups wait here");
            return fail(out, op, busy.hint("Try again after a pause."));
        }
        let wait = Duration::from_millis(poll.wait_ms.into()).min(HOLD);
        self.lookups.add(op, Waiting { lsn: poll.lsn, until: self.now + wait });
        if together {
            self.push_soon();
        }
    }

    /// Answers waiting lookups: those that are behind when changes were gathered, others at the end of their wait.
    /// Those that know the same are told the same, once encoded.
    pub(super) fn push(&mut self, epoch: u64, rng: &mut Seeded, out: &mut Outbox<Output>) {
        let published = self.commits.published();
        let mut told: BTreeMap<u64, Vec<OpId>> = BTreeMap::new();
        let over = self.lookups.by_time.iter().take_while(|(at, _)| *at <= self.now).map(|(_, op)| *op);
        for op in over.collect::<Vec<_>>() {
            if let Some(lsn) = self.lookups.cancel(op) {
                told.entry(lsn).or_default().push(op);
            }
        }
        if std::mem::take(&mut self.lookups.pushing) {
            let jittered = self.now < self.lookups.calm_after;
            let room = if jittered { (self.lookups.len() / PARTS).clamp(64, AT_ONCE) } else { AT_ONCE };
            let behind = self.lookups.waiting.iter().filter(|(_, waiting)| waiting.lsn < published);
            let mut behind: Vec<OpId> = behind.map(|(op, _)| *op).take(room + 1).collect();
            if behind.len() > room {
                behind.pop();
                let pause =
                    if jittered { Duration::from_millis(rng.between(JITTER_MS.0, JITTER_MS.1)) } else { MOMENT };
                self.due.set(Due::Push, self.now + pause);
            }
            for op in behind {
                if let Some(lsn) = self.lookups.cancel(op) {
                    told.entry(lsn).or_default().push(op);
                }
            }
        }
        for (lsn, ops) in told {
            self.counts.pushes += if lsn < published { ops.len() as u64 } else { 0 };
            let answer = self.changes(epoch, lsn, KeyHash(0));
            let message = Message::LookupAnswer(if ops.len() > 1 { shared(answer) } else { answer });
            out.put(Output::Push { ops, message });
        }
    }

    /// Everything that changed after an LSN, up to what is published; after zero, everything. As much as fits a part,
    /// from a point of the ring on.
    ///
    /// A range that changed after what is published waits, so that its loss is told once; but if an earlier loss would
    /// be hidden by that (its record has it, and its next change may be a clean move), it goes now (F7). Who knows
    /// nothing gets all ranges as they are: lookups know a loss again that they have seen.
    ///
    /// An owner that has changed its address goes with all that it holds: so no part can miss it, whatever moves meanwhile.
    fn changes(&self, epoch: u64, after: u64, from: KeyHash) -> v1::LookupAnswer {
        let lsn = self.commits.published();
        let whole = after == 0;
        let told = |range: &Range| range.changed <= lsn || (after < range.lost && range.lost <= lsn);
        let moved: BTreeSet<u32> =
            self.readdressed.iter().filter(|(_, lsn)| **lsn > after).map(|(owner, _)| *owner).collect();
        let news = |range: &Range| range.changed > after || moved.contains(&range.owner);
        let due = |range: &Range| whole || (news(range) && told(range));
        let theirs = moved.iter().flat_map(|owner| self.table.of_owner(*owner));
        let theirs = theirs.filter_map(|start| Some((start, self.table.get(start)?)));
        let theirs = theirs.filter(|(_, range)| range.changed <= after);
        let few: BTreeMap<KeyHash, &Range> = self.table.changed_after(after).chain(theirs).take(FEW + 1).collect();
        let part = if whole || from.0 != 0 || few.len() > FEW {
            self.part(self.table.iter_from(from).filter(|(_, range)| due(range)), table_range)
        } else {
            self.part(few.into_iter().filter(|(_, range)| due(range)), table_range)
        };
        let Part { ranges, owners, next } = part;
        v1::LookupAnswer { epoch, instance: self.meta.instance, lsn, ranges, owners, next, ..Default::default() }
    }

    /// As many of the ranges as one frame holds, with the owners that they name.
    pub(super) fn part<'a>(
        &self,
        rows: impl Iterator<Item = (KeyHash, &'a Range)>,
        shape: impl Fn(KeyHash, &Range) -> v1::TableRange,
    ) -> Part {
        let mut part = Part::default();
        let mut named = BTreeSet::new();
        let mut bytes = 0;
        for (start, range) in rows {
            let owner = self.members.get(&range.owner).filter(|_| !named.contains(&range.owner)).and_then(shown);
            let row = shape(start, range);
            bytes += row.encoded_len() + owner.as_ref().map_or(0, |owner| owner.encoded_len() + FIELD) + FIELD;
            if bytes > PART && !part.ranges.is_empty() {
                part.next = start.0;
                break;
            }
            named.insert(range.owner);
            part.owners.extend(owner);
            part.ranges.push(row);
        }
        part
    }
}

/// The same answer, with what is large encoded for good: to copy it costs nothing.
fn shared(answer: v1::LookupAnswer) -> v1::LookupAnswer {
    let v1::LookupAnswer { ranges, owners, .. } = answer;
    let shared = v1::LookupAnswer { ranges, owners, ..Default::default() }.encode_to_vec().into();
    v1::LookupAnswer { ranges: Vec::new(), owners: Vec::new(), shared, ..answer }
}

/// A piece of a table, as large as one frame holds.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub ranges: Vec<v1::TableRange>,
    pub owners: Vec<v1::TableOwner>,
    /// Where the rest begins; 0 = nothing is left.
    pub next: u64,
}

/// An owner as others see it, if the cell has it: whoever knew its proof or its nonce could take its place (F4).
pub(super) fn shown(member: &Member) -> Option<v1::TableOwner> {
    member.told.clone().map(|told| v1::TableOwner { proof: None, nonce: 0, ..told })
}

/// A row as lookups and operators see it.
pub(super) fn table_range(start: KeyHash, range: &Range) -> v1::TableRange {
    v1::TableRange {
        start: start.0,
        last: range.last.0,
        owner: range.owner,
        lease: range.lease.get(),
        changed_lsn: range.changed,
        lost_lsn: range.lost,
        ..Default::default()
    }
}
