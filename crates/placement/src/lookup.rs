//! The lookup: the whole table, maybe stale, and what was lost.
//!
//! An answer is a hint: the owner checks and refuses, the caller retries after a short back-off. Losses follow F7: each
//! range carries the LSN at which it last changed and the LSN at which its state was last lost, so a clean move can
//! never hide an earlier crash, however long the lookup was away.

use crate::{Ticket, To};
use prost::Message as _;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;

/// How long a manager may hold a poll (§2.2.1: the paper polls every 30 s; here a change comes within a round trip).
const HOLD: Duration = Duration::from_secs(30);

/// How long if the last poll failed: if this one is lost, that is noticed soon. Long enough that whoever is behind after a
/// fail-over is told together with others. Who lacks a table, or a part of one, is answered at once.
const SHORT_HOLD: Duration = Duration::from_secs(1);

/// How much longer than that its answer may take; twice as long after a second poll without any answer, and so on up to the
/// last of these: a large table may be long under way.
const ANSWER_SLACK: Duration = Duration::from_secs(2);
const LONGEST_SLACK: Duration = Duration::from_secs(8);

/// The first pause after a failure, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Between two polls at least this passes, so that a manager that does not hold them is not flooded.
const LEAST_GAP: Duration = Duration::from_millis(20);

/// Failures in a row after which all managers are asked; a poll without any answer counts as so many.
const SILENT_AFTER: u32 = 2;

/// How a lookup behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace.
    pub namespace: String,
    /// Random: pauses come from it.
    pub seed: u64,
}

/// What the lookup hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Begin to poll.
    Start,
    /// The transport's answer.
    Answered {
        /// The request.
        ticket: Ticket,
        /// The answer, or why there is none.
        result: Result<v1::LookupAnswer, Error>,
    },
}

/// What the lookup wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask a manager, and give up after so long.
    Send {
        /// Comes back with the answer.
        ticket: Ticket,
        /// Whom.
        to: To,
        /// The request.
        poll: v1::LookupPoll,
        /// For how long.
        within: Duration,
    },
    /// The table changed: publish [`Lookup::table`].
    Changed,
    /// State was lost in these ranges: whoever published there should do so again.
    Lost(Vec<KeyRange>),
    /// A manager refused: the namespace is unknown, …
    Refused(Error),
}

/// One range of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its last point; its first is the key of the map.
    pub last: KeyHash,
    /// Index of its owner; `None` = nobody.
    pub owner: Option<u32>,
    /// Its lease number.
    pub lease: LeaseNumber,
}

/// An owner as lookups know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOwner {
    /// Its name.
    pub id: String,
    /// Where requests for its keys go.
    pub address: String,
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// By first point.
    pub rows: BTreeMap<KeyHash, Row>,
    /// By index.
    pub owners: BTreeMap<u32, TableOwner>,
}

impl Table {
    /// Who is said to own a key, and under which number.
    pub fn find(&self, hash: KeyHash) -> Option<(&TableOwner, LeaseNumber)> {
        let (_, row) = self.rows.range(..=hash).next_back().filter(|(_, row)| hash <= row.last)?;
        Some((self.owners.get(&row.owner?)?, row.lease))
    }

    /// Puts a range in place of whatever lies there.
    fn put(&mut self, start: KeyHash, row: Row) {
        let reach = self.rows.range(..=row.last).rev().take_while(|(_, old)| old.last >= start);
        for first in reach.map(|(first, _)| *first).collect::<Vec<_>>() {
            let Some(old) = self.rows.remove(&first) else { continue };
            if first < start {
                self.rows.insert(first, Row { last: KeyHash(start.0 - 1), ..old });
            }
            if old.last > row.last {
                self.rows.insert(KeyHash(row.last.0 + 1), old);
            }
        }
        self.rows.insert(start, row);
    }
}

/// The timers of the lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Ask (again).
    Poll,
    /// The request has taken too long.
    Silence,
}

/// The lookup machine of one namespace.
#[derive(Clone, Debug)]
pub struct Lookup {
    options: Options,
    rng: Seeded,
    timers: Timers<Timer>,
    table: Table,
    /// The namespace's instance; `None` before the first answer.
    instance: Option<u64>,
    epoch: u64,
    lsn: u64,
    /// Ranges that were seen newer than the LSN they came with, with the LSN of their loss: that loss is no news.
    ahead: Vec<(KeyRange, u64)>,
    /// The parts that have come of an answer that one frame does not hold.
    gathered: Option<v1::LookupAnswer>,
    /// When the last answer of the highest epoch came.
    fresh: Option<Mono>,
    waiting: Option<Ticket>,
    /// Until when the last poll may have been held.
    held_until: Mono,
    next_ticket: u64,
    /// Polls in a row that nobody answered, not even with a refusal.
    lost: u32,
    failures: u32,
    pause: Duration,
}

impl Lookup {
    /// A lookup that knows nothing.
    pub fn new(options: Options) -> Lookup {
        Lookup {
            rng: Seeded::new(options.seed).fork("lookup"),
            options,
            timers: Timers::new(),
            table: Table::default(),
            instance: None,
            epoch: 0,
            lsn: 0,
            ahead: Vec::new(),
            gathered: None,
            fresh: None,
            waiting: None,
            held_until: Mono(0),
            next_ticket: 0,
            lost: 0,
            failures: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// The table as it is known.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The last change that is known.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// When a manager of the highest epoch was last heard; `None` = never.
    pub fn fresh(&self) -> Option<Mono> {
        self.fresh
    }

    fn poll(&mut self, now: Now, out: &mut Outbox<Output>) {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let lacks = self.instance.is_none() || self.gathered.is_some();
        let hold = match self.failures {
            _ if lacks => Duration::ZERO,
            0 => HOLD,
            _ => SHORT_HOLD,
        };
        (self.waiting, self.held_until) = (Some(ticket), now.mono + hold);
        let (instance, lsn, from) = match &self.gathered {
            Some(parts) => (parts.instance, if parts.snapshot { 0 } else { self.lsn }, parts.next),
            None => (self.instance.unwrap_or_default(), self.lsn, 0),
        };
        let poll = v1::LookupPoll {
            namespace: self.options.namespace.clone(),
            instance,
            epoch: self.epoch,
            lsn,
            wait_ms: hold.as_millis() as u32,
            from,
        };
        let to = if self.failures >= SILENT_AFTER { To::Everyone } else { To::Leader };
        let within = hold + (ANSWER_SLACK * (1 << self.lost.saturating_sub(1).min(8))).min(LONGEST_SLACK);
        self.timers.set(Timer::Silence, now.mono + within);
        out.put(Output::Send { ticket, to, poll, within });
    }

    /// One more failure. Whoever has not answered for much longer than it may hold a poll is silent, and no longer asked alone.
    fn count_failure(&mut self, now: Now) {
        let silent = now.mono.since(self.held_until) > ANSWER_SLACK / 2;
        self.lost = if silent { self.lost.saturating_add(1) } else { 0 };
        self.failures = self.failures.saturating_add(1).max(if silent { SILENT_AFTER } else { 0 });
    }

    fn failed(&mut self, now: Now) {
        self.waiting = None;
        self.timers.cancel(&Timer::Silence);
        self.count_failure(now);
        let pause = self.pause / 2 + Duration::from_nanos(self.rng.below(self.pause.as_nanos() as u64));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.timers.set(Timer::Poll, now.mono + pause);
    }

    fn answered(
        &mut self,
        now: Now,
        ticket: Ticket,
        result: Result<v1::LookupAnswer, Error>,
        out: &mut Outbox<Output>,
    ) {
        if self.waiting != Some(ticket) {
            return;
        }
        let answer = match result.and_then(unpacked) {
            // A deposed leader may lag behind what is known already.
            Ok(answer) if answer.epoch < self.epoch => return self.failed(now),
            Ok(answer) => answer,
            Err(error) => {
                self.failed(now);
                if error.code.starts_with("placement.") && error.class != Class::Unreachable {
                    out.put(Output::Refused(error));
                }
                return;
            }
        };
        self.waiting = None;
        self.timers.cancel(&Timer::Silence);
        (self.failures, self.lost) = (0, 0);
        self.pause = FIRST_PAUSE;
        self.epoch = answer.epoch;
        self.fresh = Some(now.mono);
        match self.gather(answer) {
            Some(whole) => {
                self.timers.set(Timer::Poll, now.mono + LEAST_GAP);
                self.take(whole, out);
            }
            None => self.poll(now, out),
        }
    }

    /// Puts the parts of an answer together; `None` = there are more. The whole is of the first part's LSN: what changed
    /// in parts that had come by then is told with the next answer.
    fn gather(&mut self, part: v1::LookupAnswer) -> Option<v1::LookupAnswer> {
        let whole = match self.gathered.take() {
            Some(mut parts) if parts.instance == part.instance && !part.snapshot => {
                // Parts follow each other around the ring: one that does not is the last.
                parts.next = if part.next > parts.next { part.next } else { 0 };
                parts.ranges.extend(part.ranges);
                parts.owners.extend(part.owners);
                parts
            }
            // Of another table: the parts that had come count no more.
            _ => part,
        };
        if whole.next == 0 {
            return Some(whole);
        }
        self.gathered = Some(whole);
        None
    }

    fn take(&mut self, answer: v1::LookupAnswer, out: &mut Outbox<Output>) {
        let first = self.instance.is_none();
        let foreign = !first && self.instance != Some(answer.instance);
        if foreign && !answer.snapshot {
            // Changes to another table than ours say nothing: ask for all of it.
            self.instance = Some(0);
            return;
        }
        let losses = match () {
            // A first snapshot raises none: nothing was published before it.
            () if first => Vec::new(),
            () if foreign || answer.lost_everything => vec![KeyRange::FULL],
            () => lost_since(&answer.ranges, self.lsn, &self.ahead),
        };
        let news = answer.snapshot || !answer.ranges.is_empty() || !answer.owners.is_empty();
        if answer.snapshot {
            (self.table, self.ahead) = (Table::default(), Vec::new());
        }
        // Commits end in any order, and parts come one after the other: there may be more than everything up to the LSN.
        let newer = answer.ranges.iter().filter(|range| range.lost_lsn > answer.lsn);
        self.ahead.extend(newer.map(|range| (range_of(range), range.lost_lsn)));
        for owner in answer.owners {
            let known = TableOwner { id: owner.id, address: owner.address };
            self.table.owners.insert(owner.index, known);
        }
        for range in &answer.ranges {
            let Some(lease) = LeaseNumber::new(range.lease).filter(|_| range.start <= range.last) else { continue };
            let owner = Some(range.owner).filter(|owner| *owner != 0);
            self.table.put(KeyHash(range.start), Row { last: KeyHash(range.last), owner, lease });
        }
        self.instance = Some(answer.instance);
        self.lsn = answer.lsn;
        self.ahead.retain(|(_, lost)| *lost > answer.lsn);
        if news {
            out.put(Output::Changed);
        }
        if !losses.is_empty() {
            out.put(Output::Lost(losses));
        }
    }
}

/// An answer with all its ranges and owners, those that were encoded for many lookups included.
pub fn unpacked(mut answer: v1::LookupAnswer) -> Result<v1::LookupAnswer, Error> {
    let shared = std::mem::take(&mut answer.shared);
    match answer.merge(shared) {
        Ok(()) => Ok(answer),
        Err(_) => Err(Error::new("placement.malformed", Class::Unreachable, "a manager's answer cannot be read")),
    }
}

fn range_of(range: &v1::TableRange) -> KeyRange {
    KeyRange::new(KeyHash(range.start), KeyHash(range.last))
}

/// F7: the ranges whose state was lost after what is known, neighbours joined.
fn lost_since(ranges: &[v1::TableRange], lsn: u64, ahead: &[(KeyRange, u64)]) -> Vec<KeyRange> {
    let known = |range: &v1::TableRange| {
        ahead.iter().any(|(known, lost)| *lost >= range.lost_lsn && known.covers(range_of(range)))
    };
    let mut lost: Vec<KeyRange> = ranges
        .iter()
        .filter(|range| range.lost_lsn > lsn && range.start <= range.last && !known(range))
        .map(range_of)
        .collect();
    lost.sort_by_key(|range| range.start);
    let mut joined: Vec<KeyRange> = Vec::with_capacity(lost.len());
    for range in lost {
        match joined.last_mut() {
            Some(last) if last.last.0.checked_add(1) == Some(range.start.0) => last.last = range.last,
            _ => joined.push(range),
        }
    }
    joined
}

impl Machine for Lookup {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Start if self.next_ticket == 0 => self.poll(now, out),
            Input::Start => {}
            Input::Answered { ticket, result } => self.answered(now, ticket, result, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Poll => self.poll(now, out),
                Timer::Silence => {
                    self.count_failure(now);
                    self.poll(now, out);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_base::Wall;

    const NOW: Now = Now { mono: Mono(1), wall: Wall(0) };

    fn range(start: u64, last: u64, owner: u32, lease: u32, changed: u64, lost: u64) -> v1::TableRange {
        v1::TableRange { start, last, owner, lease, changed_lsn: changed, lost_lsn: lost, ..Default::default() }
    }

    fn answer(epoch: u64, instance: u64, lsn: u64, snapshot: bool, ranges: Vec<v1::TableRange>) -> v1::LookupAnswer {
        let owners = (1..=3).map(|index| v1::TableOwner { index, id: format!("o{index}"), ..Default::default() });
        let lost_everything = false;
        let owners = owners.collect();
        v1::LookupAnswer { epoch, instance, lsn, snapshot, ranges, owners, lost_everything, ..Default::default() }
    }

    /// Hands the lookup an answer to its present poll; what it said was lost.
    fn tell(lookup: &mut Lookup, answer: v1::LookupAnswer) -> Option<Vec<KeyRange>> {
        let mut out = Outbox::new();
        lookup.handle(NOW, Input::Start, &mut out);
        if lookup.waiting.is_none() {
            lookup.wake(Now { mono: NOW.mono + Duration::from_secs(1), wall: Wall(0) }, &mut out);
        }
        let ticket = lookup.waiting.unwrap();
        lookup.handle(NOW, Input::Answered { ticket, result: Ok(answer) }, &mut out);
        out.into_iter().find_map(|output| match output {
            Output::Lost(ranges) => Some(ranges),
            _ => None,
        })
    }

    fn lookup() -> Lookup {
        Lookup::new(Options { namespace: "n".into(), seed: 1 })
    }

    #[test]
    fn a_clean_move_never_hides_an_earlier_crash() {
        let mut lookup = lookup();
        assert_eq!(tell(&mut lookup, answer(1, 7, 5, true, vec![range(0, u64::MAX, 1, 1, 5, 5)])), None);
        // While it was away the range was lost at 6 and moved cleanly at 7.
        let moved = vec![range(0, u64::MAX, 2, 3, 7, 6)];
        assert_eq!(tell(&mut lookup, answer(1, 7, 7, false, moved)), Some(vec![KeyRange::FULL]));
        // A clean move alone is no loss.
        assert_eq!(tell(&mut lookup, answer(1, 7, 8, false, vec![range(0, u64::MAX, 3, 4, 8, 6)])), None);
        assert_eq!(lookup.table().find(KeyHash(9)).unwrap().0.id, "o3");
    }

    #[test]
    fn a_foreign_instance_loses_everything_and_a_first_snapshot_nothing() {
        let mut lookup = lookup();
        assert_eq!(tell(&mut lookup, answer(1, 7, 5, true, vec![range(0, u64::MAX, 1, 1, 5, 5)])), None);
        let other = answer(2, 8, 1, true, vec![range(0, u64::MAX, 1, 1, 1, 1)]);
        assert_eq!(tell(&mut lookup, other), Some(vec![KeyRange::FULL]));
        let mut behind = answer(2, 8, 0, true, vec![range(0, u64::MAX, 1, 1, 0, 0)]);
        behind.lost_everything = true;
        assert_eq!(tell(&mut lookup, behind), Some(vec![KeyRange::FULL]));
    }

    #[test]
    fn what_a_snapshot_shows_beyond_its_lsn_is_no_news_later() {
        let mut lookup = lookup();
        // 9 is committed, 8 is not: the snapshot is of 7.
        let ahead = range(100, u64::MAX, 2, 5, 9, 9);
        assert_eq!(tell(&mut lookup, answer(1, 7, 7, true, vec![range(0, 99, 1, 4, 7, 7), ahead])), None);
        let both = vec![range(0, 99, 3, 6, 8, 8), ahead];
        let lost = KeyRange::new(KeyHash(0), KeyHash(99));
        assert_eq!(tell(&mut lookup, answer(1, 7, 9, false, both)), Some(vec![lost]));
        let again = vec![range(100, u64::MAX, 1, 7, 10, 10)];
        assert!(tell(&mut lookup, answer(1, 7, 10, false, again)).is_some(), "the next loss is one");
    }

    #[test]
    fn an_answer_of_a_deposed_leader_changes_nothing() {
        let mut lookup = lookup();
        tell(&mut lookup, answer(5, 7, 9, true, vec![range(0, u64::MAX, 1, 4, 9, 9)]));
        let before = lookup.table().clone();
        assert_eq!(tell(&mut lookup, answer(4, 7, 8, true, vec![range(0, u64::MAX, 2, 3, 8, 8)])), None);
        assert_eq!((lookup.table(), lookup.lsn()), (&before, 9));
    }

    #[test]
    fn all_managers_are_asked_when_the_leader_is_silent_and_the_leader_alone_once_one_has_answered() {
        let (mut lookup, mut out, mut now) = (lookup(), Outbox::new(), NOW);
        let asked = |out: &mut Outbox<Output>| {
            let mut asked = out.drain().filter_map(|output| match output {
                Output::Send { ticket, to, .. } => Some((ticket, to)),
                _ => None,
            });
            asked.next_back().expect("it asks")
        };
        lookup.handle(now, Input::Start, &mut out);
        for to in [To::Leader, To::Leader, To::Everyone, To::Everyone] {
            let (ticket, asks) = asked(&mut out);
            assert_eq!(asks, to);
            let silent = Err(Error::new("control.deadline", Class::OutcomeUnknown, "nobody answers"));
            lookup.handle(now, Input::Answered { ticket, result: silent }, &mut out);
            now.mono = lookup.deadline().unwrap();
            lookup.wake(now, &mut out);
        }
        let (ticket, _) = asked(&mut out);
        let whole = answer(1, 7, 5, true, vec![range(0, u64::MAX, 1, 1, 5, 5)]);
        lookup.handle(now, Input::Answered { ticket, result: Ok(whole) }, &mut out);
        now.mono = lookup.deadline().unwrap();
        lookup.wake(now, &mut out);
        assert_eq!(asked(&mut out).1, To::Leader);
    }

    #[test]
    fn all_managers_are_asked_after_one_poll_that_nobody_answered() {
        for told in [false, true] {
            let (mut lookup, mut out, mut now) = (lookup(), Outbox::new(), NOW);
            lookup.handle(now, Input::Start, &mut out);
            let Some(Output::Send { ticket, to: To::Leader, within, .. }) = out.drain().next() else {
                panic!("it asks the leader")
            };
            now.mono = now.mono + within;
            // The transport says so, or nobody does.
            if told {
                let silent = Err(Error::new("control.deadline", Class::OutcomeUnknown, "nobody answers"));
                lookup.handle(now, Input::Answered { ticket, result: silent }, &mut out);
                now.mono = lookup.deadline().unwrap();
            }
            lookup.wake(now, &mut out);
            let asks = out.drain().find_map(|output| match output {
                Output::Send { to, .. } => Some(to),
                _ => None,
            });
            assert_eq!(asks, Some(To::Everyone), "{told}");
        }
    }

    /// Asks in vain, so often; for how long each poll may be held, and how long it is waited for.
    fn asked_in_vain(lookup: &mut Lookup, now: &mut Now, times: usize) -> Vec<(u64, u64)> {
        let mut out = Outbox::new();
        let mut asked = Vec::new();
        for _ in 0..times {
            now.mono = now.mono.max(lookup.deadline().unwrap_or_default());
            lookup.handle(*now, Input::Start, &mut out);
            lookup.wake(*now, &mut out);
            asked.extend(out.drain().filter_map(|output| match output {
                Output::Send { poll, within, .. } => Some((u64::from(poll.wait_ms), within.as_millis() as u64)),
                _ => None,
            }));
        }
        asked
    }

    #[test]
    fn a_poll_that_was_lost_is_asked_again_soon() {
        let (mut lookup, mut now) = (lookup(), NOW);
        let whole = || answer(1, 7, 5, true, vec![range(0, u64::MAX, 1, 1, 5, 5)]);
        // Who knows nothing waits for two seconds, and longer only if nobody answers at all.
        let asked = asked_in_vain(&mut lookup, &mut now, 5);
        assert_eq!(asked, [(0, 2_000), (0, 2_000), (0, 4_000), (0, 8_000), (0, 8_000)]);
        let tell = |lookup: &mut Lookup, now: Now, answer: v1::LookupAnswer| {
            let ticket = lookup.waiting.unwrap();
            lookup.handle(now, Input::Answered { ticket, result: Ok(answer) }, &mut Outbox::new());
        };
        tell(&mut lookup, now, whole());
        // What is held for long is missed late, once.
        assert_eq!(asked_in_vain(&mut lookup, &mut now, 3), [(30_000, 32_000), (1_000, 3_000), (1_000, 5_000)]);
        tell(&mut lookup, now, v1::LookupAnswer { snapshot: false, ranges: vec![], ..whole() });
        assert_eq!(asked_in_vain(&mut lookup, &mut now, 1), [(30_000, 32_000)]);
        // A part of a table is as good as none.
        tell(&mut lookup, now, v1::LookupAnswer { next: 9, ..whole() });
        assert_eq!(lookup.deadline(), Some(now.mono + ANSWER_SLACK));
        // A refusal is an answer: it was not lost, and yet the next may be.
        let (mut lookup, mut now) = (super::tests::lookup(), NOW);
        asked_in_vain(&mut lookup, &mut now, 1);
        tell(&mut lookup, now, whole());
        asked_in_vain(&mut lookup, &mut now, 1);
        let (ticket, refused) = (lookup.waiting.unwrap(), Error::new("placement.not_leader", Class::Unreachable, ""));
        lookup.handle(now, Input::Answered { ticket, result: Err(refused) }, &mut Outbox::new());
        assert_eq!(asked_in_vain(&mut lookup, &mut now, 1), [(1_000, 3_000)]);
    }

    proptest! {
        /// The reference: a ring of 64 points, each with its owner.
        #[test]
        fn overlaid_ranges_agree_with_a_plain_ring(
            puts in proptest::collection::vec((0u64..64, 0u64..64, 0u32..4), 1..40)
        ) {
            let mut lookup = lookup();
            let mut ring = [0u32; 64];
            let point = |at: u64| at << 58;
            let last = |at: u64| (at << 58) | (u64::MAX >> 6);
            tell(&mut lookup, answer(1, 7, 0, true, vec![range(0, u64::MAX, 0, 1, 0, 0)]));
            for (lsn, (a, b, owner)) in puts.into_iter().enumerate() {
                let (from, to) = (a.min(b), a.max(b));
                ring[from as usize..=to as usize].fill(owner);
                let lsn = lsn as u64 + 1;
                tell(&mut lookup, answer(1, 7, lsn, false, vec![range(point(from), last(to), owner, 1, lsn, 0)]));
                for (at, owner) in ring.iter().enumerate() {
                    let found = lookup.table().find(KeyHash(point(at as u64) + 5)).map(|(owner, _)| owner.id.clone());
                    prop_assert_eq!(found, (*owner != 0).then(|| format!("o{owner}")));
                }
            }
        }
    }
}
