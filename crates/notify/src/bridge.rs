//! The bridge: takes publications from the feed to the matchers that own their objects (§4.1.4, §4.2.6).
//!
//! ```text
//!   feed ─ Fed ─▶ Bridge ─ ToMatcher ─▶ matcher ── done ──▶ Ack (one entry at a time)
//!                   │ failed, or silent for 250 ms
//!                   ▼
//!                scratch row (salted by the retry count) ── stable ──▶ Ack
//!                   ▲ scan, resend, delete at exactly the version that was moved (F11)
//! ```
//! It is stateless: whatever is lost with it the feed delivers again. One object's trouble never holds up another's.

use crate::mutant::Mutant;
use crate::names::{MAX_NAME, MAX_VERSION, ObjectKey};
use crate::rows::{self, ENTRY, Realm, SCRATCH, StoreId, StoreReply, StoreRequest, StoreResult, Stretch};
use crate::{CallId, Outcome, backoff};
use bytes::Bytes;
use prost::Message;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;

/// Entries of the feed that are under way at a time; what comes beyond is left to the feed's redelivery.
const MAX_UNDER_WAY: usize = 8_192;
/// Rows of one page of the scanner.
const PAGE: u32 = 64;
/// Locations that are tried for one entry before the first is tried again.
const SALTS: u32 = 8;
/// After a matcher said that the range moved.
const MOVED_PAUSE: Duration = Duration::from_millis(20);
/// Between attempts to write to scratch.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How a bridge behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Random: pauses come from it.
    pub seed: u64,
    /// F11: how long a matcher may be silent before an entry goes to scratch; 250 ms.
    pub silence: Duration,
    /// How often scratch is read; 1 s.
    pub scan_every: Duration,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, silence: Duration::from_millis(250), scan_every: Duration::from_secs(1), mutant: None }
    }
}

/// What the bridge hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// F3: the realm; nothing is sent before the first.
    Realm(Realm),
    /// Entries of the feed: their numbers and bytes.
    Fed(Vec<(u64, Bytes)>),
    /// A matcher's answer, or that there is none.
    Matched {
        /// The call.
        id: CallId,
        /// How it ended.
        outcome: Outcome,
    },
    /// The store's answer.
    Stored {
        /// The request.
        id: StoreId,
        /// The answer.
        result: StoreResult,
    },
}

/// What the bridge wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Take this to the matcher that owns the key. Drivers batch what goes to one owner.
    ToMatcher {
        /// Comes back with the answer.
        id: CallId,
        /// Whose it is.
        key: KeyHash,
        /// What to say.
        call: Box<v1::MatchPublication>,
    },
    /// Acknowledge an entry of the feed: it is stable elsewhere.
    Ack(u64),
    /// An entry that is no publication: acknowledged, and to be counted.
    Spoiled(u64),
    /// Ask the store.
    Store {
        /// Comes back with the answer.
        id: StoreId,
        /// What.
        request: StoreRequest,
    },
}

/// Where an entry came from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Feed(u64),
    /// A scratch row.
    Scratch(Bytes),
}

#[derive(Clone, Debug)]
struct Entry {
    origin: Origin,
    key: ObjectKey,
    publication: v1::Publication,
    /// When the matcher has been silent for too long.
    until: Mono,
    /// Attempts at scratch.
    tries: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Buffering(Box<Entry>),
    Scanning(Stretch),
    Deleting,
}

/// The timers of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A matcher is silent.
    Silence(CallId),
    /// Try an entry again.
    Again(u64),
    /// Read scratch.
    Scan,
}

/// The bridge machine.
#[derive(Clone, Debug)]
pub struct Bridge {
    options: Options,
    realm: Option<Realm>,
    timers: Timers<Timer>,
    rng: Seeded,
    under_way: BTreeSet<u64>,
    calls: BTreeMap<CallId, Entry>,
    steps: BTreeMap<StoreId, Step>,
    paused: BTreeMap<u64, Entry>,
    /// The scanner's round: what it reads, calls of what it has read that are not answered yet, and what is left to be read.
    reading: usize,
    page: BTreeSet<CallId>,
    left: Vec<Stretch>,
    /// Something could be read in this round.
    readable: bool,
    next_id: u64,
}

impl Bridge {
    /// A bridge that has nothing.
    pub fn new(options: Options) -> Bridge {
        Bridge {
            rng: Seeded::new(options.seed).fork("bridge"),
            options,
            realm: None,
            timers: Timers::new(),
            under_way: BTreeSet::new(),
            calls: BTreeMap::new(),
            steps: BTreeMap::new(),
            paused: BTreeMap::new(),
            reading: 0,
            page: BTreeSet::new(),
            left: Vec::new(),
            readable: false,
            next_id: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn store(&mut self, step: Step, request: StoreRequest, out: &mut Outbox<Output>) {
        let id = StoreId(self.id());
        self.steps.insert(id, step);
        out.put(Output::Store { id, request });
    }

    fn standing(&self, publication: &v1::Publication) -> Ordering {
        self.realm.as_ref().map_or(Ordering::Greater, |realm| realm.standing(publication))
    }

    fn enter(&mut self, now: Now, realm: Realm, out: &mut Outbox<Output>) {
        match self.realm.replace(realm) {
            None => self.timers.set(Timer::Scan, now.mono),
            Some(_) => self.drop_past(now, out),
        }
    }

    /// F3: what is under way from before a loss or a reset goes no further.
    fn drop_past(&mut self, now: Now, out: &mut Outbox<Output>) {
        let past = |bridge: &Bridge, entry: &Entry| bridge.standing(&entry.publication) == Ordering::Less;
        let calls = self.calls.iter().filter(|(_, entry)| past(self, entry)).map(|(id, _)| *id);
        let paused = self.paused.iter().filter(|(_, entry)| past(self, entry)).map(|(number, _)| *number);
        let buffered =
            self.steps.iter().filter(|(_, step)| matches!(step, Step::Buffering(entry) if past(self, entry)));
        let (calls, paused): (Vec<CallId>, Vec<u64>) = (calls.collect(), paused.collect());
        let buffered: Vec<StoreId> = buffered.map(|(id, _)| *id).collect();
        let mut done = paused.clone();
        for number in paused {
            self.timers.cancel(&Timer::Again(number));
            self.paused.remove(&number);
        }
        for id in buffered {
            if let Some(Step::Buffering(entry)) = self.steps.remove(&id)
                && let Origin::Feed(number) = entry.origin
            {
                done.push(number);
            }
        }
        let mut pages = false;
        for id in calls {
            self.timers.cancel(&Timer::Silence(id));
            match self.calls.remove(&id).map(|entry| entry.origin) {
                Some(Origin::Feed(number)) => done.push(number),
                _ => pages |= self.page.remove(&id),
            }
        }
        done.into_iter().for_each(|number| self.finish(number, out));
        // What is left of the page that was being resent is of another incarnation, or is found again.
        self.left.clear();
        if pages {
            self.page_done(now, out);
        }
    }

    // ---- from the feed ----------------------------------------------------------------------------------------------

    fn fed(&mut self, now: Now, number: u64, bytes: &Bytes, out: &mut Outbox<Output>) {
        // What is not taken, or is under way already, comes again.
        if self.realm.is_none() || self.under_way.len() >= MAX_UNDER_WAY || self.under_way.contains(&number) {
            return;
        }
        match v1::Publication::decode(bytes.clone()) {
            Ok(mut publication) if is_valid(&publication) => {
                if self.options.mutant == Some(Mutant::StragglerAccepted) {
                    publication.incarnation = self.realm.as_ref().map_or(0, |realm| realm.incarnation);
                }
                match self.standing(&publication) {
                    // F3: called for before a loss or a reset; whoever is registered has been, or will be, told to fetch.
                    // A later version may have been lost, and nobody who registers from now on must take this one for
                    // the latest.
                    Ordering::Less => out.put(Output::Ack(number)),
                    // That has not been heard of here.
                    Ordering::Greater => {}
                    Ordering::Equal => {
                        self.under_way.insert(number);
                        self.begin(now, Origin::Feed(number), publication, out);
                    }
                }
            }
            _ => {
                out.put(Output::Spoiled(number));
                out.put(Output::Ack(number));
            }
        }
    }

    fn begin(&mut self, now: Now, origin: Origin, mut publication: v1::Publication, out: &mut Outbox<Output>) {
        let key = ObjectKey::new(&publication.app, publication.generation, &publication.object);
        let times = publication.times.get_or_insert_default();
        // What comes from scratch was taken from the feed before.
        if times.feed_us == 0 {
            times.feed_us = now.wall.0;
        }
        let until = now.mono + self.options.silence;
        self.send(now, Entry { origin, key, publication, until, tries: 0 }, out);
    }

    fn send(&mut self, now: Now, mut entry: Entry, out: &mut Outbox<Output>) {
        entry.publication.times.get_or_insert_default().bridge_us = now.wall.0;
        let v1::Publication { incarnation, generation, .. } = entry.publication;
        let call = v1::MatchPublication {
            realm: Some(v1::NotifyRealm { incarnation, generation }),
            publication: Some(entry.publication.clone()),
            scratch: matches!(entry.origin, Origin::Scratch(_)),
        };
        let id = CallId(self.id());
        self.timers.set(Timer::Silence(id), entry.until.max(now.mono));
        if matches!(entry.origin, Origin::Scratch(_)) {
            self.page.insert(id);
        }
        out.put(Output::ToMatcher { id, key: entry.key.hash(), call: Box::new(call) });
        self.calls.insert(id, entry);
    }

    fn matched(&mut self, now: Now, id: CallId, outcome: Outcome, out: &mut Outbox<Output>) {
        let Some(entry) = self.calls.remove(&id) else { return };
        self.timers.cancel(&Timer::Silence(id));
        let Origin::Feed(number) = entry.origin else { return self.resent(now, id, entry, outcome, out) };
        match outcome {
            Outcome::Done => self.finish(number, out),
            Outcome::Moved if now.mono + MOVED_PAUSE < entry.until => {
                self.timers.set(Timer::Again(number), now.mono + MOVED_PAUSE);
                self.paused.insert(number, entry);
            }
            _ => self.buffer(number, entry, out),
        }
    }

    fn finish(&mut self, number: u64, out: &mut Outbox<Output>) {
        self.under_way.remove(&number);
        out.put(Output::Ack(number));
    }

    /// F11: the version is put where it can be written; the feed is not held up.
    fn buffer(&mut self, number: u64, entry: Entry, out: &mut Outbox<Output>) {
        if self.options.mutant == Some(Mutant::NoScratch) {
            return self.finish(number, out);
        }
        let row = rows::scratch_row(entry.publication.incarnation, &entry.key, (entry.tries % SALTS) as u8);
        let value = entry.publication.encode_to_vec();
        let cells = vec![rows::cell(ENTRY, entry.publication.version, value)];
        self.store(Step::Buffering(Box::new(entry)), rows::write(SCRATCH, row, cells), out);
    }

    // ---- the scanner ------------------------------------------------------------------------------------------------

    fn begin_round(&mut self, out: &mut Outbox<Output>) {
        (self.left, self.readable) = (vec![Stretch::new(KeyRange::FULL)], false);
        self.scan(out);
    }

    fn scan(&mut self, out: &mut Outbox<Output>) {
        let Some(incarnation) = self.realm.as_ref().map(|realm| realm.incarnation) else { return };
        for stretch in std::mem::take(&mut self.left) {
            self.reading += 1;
            let request = rows::scan(SCRATCH, stretch.span(incarnation), PAGE, &[]);
            self.store(Step::Scanning(stretch), request, out);
        }
    }

    /// Rows that cannot be read are left for the next round, and what is around them is read apart. A store of which
    /// nothing can be read is not asked bit by bit.
    fn unreadable(&mut self, stretch: &Stretch) {
        if self.readable || stretch.range.len() > KeyRange::FULL.len() / 4 {
            self.left.extend(stretch.halves().into_iter().flatten());
        }
    }

    fn scanned(&mut self, now: Now, stretch: &Stretch, rows: v1::Rows, out: &mut Outbox<Output>) {
        self.readable = true;
        self.left.extend(rows.next.map(|next| stretch.behind(next)));
        for row in rows.rows {
            let Some((version, value)) = rows::find(&row, ENTRY) else { continue };
            let publication = v1::Publication::decode(value.clone()).ok().filter(is_valid);
            let standing = publication.as_ref().map_or(Ordering::Less, |publication| self.standing(publication));
            match (publication, standing) {
                (Some(publication), Ordering::Equal) => self.begin(now, Origin::Scratch(row.row), publication, out),
                // Another bridge has heard of a reset, and this one has not.
                (_, Ordering::Greater) => {}
                // F3: a version from before a reset is nobody's any more.
                _ => self.delete(row.row, version, out),
            }
        }
    }

    fn page_done(&mut self, now: Now, out: &mut Outbox<Output>) {
        if !self.page.is_empty() || self.reading > 0 {
            return;
        }
        match self.left.is_empty() {
            false => self.scan(out),
            true => self.timers.set(Timer::Scan, now.mono + self.options.scan_every),
        }
    }

    fn resent(&mut self, now: Now, id: CallId, entry: Entry, outcome: Outcome, out: &mut Outbox<Output>) {
        self.page.remove(&id);
        if let (Outcome::Done, Origin::Scratch(row)) = (outcome, entry.origin) {
            // A later version that has come to lie there meanwhile stays.
            let at = match self.options.mutant {
                Some(Mutant::ScratchDeletedWhole) => MAX_VERSION,
                _ => entry.publication.version,
            };
            self.delete(row, at, out);
        }
        self.page_done(now, out);
    }

    fn delete(&mut self, row: Bytes, version: u64, out: &mut Outbox<Output>) {
        self.store(Step::Deleting, rows::write(SCRATCH, row, vec![rows::gone(ENTRY, version)]), out);
    }

    fn stored(&mut self, now: Now, id: StoreId, result: StoreResult, out: &mut Outbox<Output>) {
        match (self.steps.remove(&id), result) {
            (Some(Step::Buffering(entry)), result) => {
                let Origin::Feed(number) = entry.origin else { return };
                if result.is_ok() {
                    return self.finish(number, out);
                }
                let pause = backoff(&mut self.rng, entry.tries, FIRST_PAUSE, LONGEST_PAUSE);
                self.timers.set(Timer::Again(number), now.mono + pause);
                self.paused.insert(number, Entry { tries: entry.tries + 1, ..*entry });
            }
            (Some(Step::Scanning(stretch)), result) => {
                self.reading -= 1;
                match result {
                    Ok(StoreReply::Rows(rows)) => self.scanned(now, &stretch, rows, out),
                    _ => self.unreadable(&stretch),
                }
                self.page_done(now, out);
            }
            // What was not deleted is sent again and changes nothing.
            (Some(Step::Deleting) | None, _) => {}
        }
    }

    fn again(&mut self, now: Now, number: u64, out: &mut Outbox<Output>) {
        let Some(mut entry) = self.paused.remove(&number) else { return };
        if entry.tries > 0 && entry.tries % SALTS != 0 {
            return self.buffer(number, entry, out);
        }
        // Every now and then the matcher is asked again: it may be back before scratch is.
        if entry.tries > 0 {
            entry.until = now.mono + self.options.silence;
        }
        self.send(now, entry, out);
    }
}

fn is_valid(publication: &v1::Publication) -> bool {
    let named = !publication.app.is_empty() && (1..=MAX_NAME).contains(&publication.object.len());
    named && (1..=MAX_VERSION).contains(&publication.version)
}

impl Machine for Bridge {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Realm(realm) => self.enter(now, realm, out),
            Input::Fed(entries) => entries.iter().for_each(|(number, bytes)| self.fed(now, *number, bytes, out)),
            Input::Matched { id, outcome } => self.matched(now, id, outcome, out),
            Input::Stored { id, result } => self.stored(now, id, result, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Silence(id) => self.matched(now, id, Outcome::Failed, out),
                Timer::Again(number) => self.again(now, number, out),
                Timer::Scan => self.begin_round(out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
