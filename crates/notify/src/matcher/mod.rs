//! The matcher: knows an object's latest version and who has registered it, and tells them (§4.1.4).
//!
//! ```text
//!   bridge ─ Publish ─▶ one write: version = source@v, pending@v ─▶ Answer (F1: guarded by the lease)
//!                          └▶ job: pages of reg-{client} ─ ToRegistrar ─▶ registrars ─ all done ─▶ pending cleared
//!   registrar ─ Register ─▶ write reg-{client}@seqno, then read the version (F6) ─▶ Answer
//! ```
//! Cells are stamped by versions and by registrars' numbers alone, so a deposed owner's late write is harmless; the
//! lease guards answers (F1). In memory are jobs, which a restart finds by their markers (F5) and which are dropped under
//! pressure and found again, and what is remembered of objects that few have registered.

mod jobs;
mod known;
mod surface;

pub use surface::{Input, Options, Output};

use crate::held::{Held, HeldRange};
use crate::mutant::Mutant;
use crate::names::{ClientKey, Guard, MAX_NAME, MAX_SOURCE, MAX_VERSION, ObjectKey};
use crate::rows::{
    self, MATCHER, PENDING, Realm, Span, StoreId, StoreReply, StoreRequest, StoreResult, Stretch, VERSION,
};
use crate::{CallId, Outcome, RequestId};
use bytes::Bytes;
use jobs::Job;
use known::{Known, Page};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::bounded::BoundedMap;
use tidings_base::{KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Seeded, Timers};
use tidings_wire::v1;

/// Rows of a page of the scan for markers.
const RECOVERY_PAGE: u32 = 256;
/// Until jobs that were dropped are looked for.
const RESCAN_PAUSE: Duration = Duration::from_millis(500);

/// Until rows that could not be read are tried again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);

/// Objects whose clients the fast path reads at a time; beyond it versions are told when they are stable.
const MAX_HINTING: usize = 1_024;
/// Objects whose early hints are remembered, so that they are not hinted again when they are stable.
const MAX_HINTED: usize = 16_384;

/// What a request to the store is a step of.
#[derive(Clone, Debug)]
enum Step {
    /// F6: the registration is written; the version comes next.
    Registering { request: RequestId, guard: Guard, object: ObjectKey, copy: Copied },
    /// F6: the version is read.
    Reading { request: RequestId, guard: Guard, object: ObjectKey, then: Option<StoreRequest> },
    /// The version is written, with its marker.
    Publishing { waiter: Waiter, object: ObjectKey, publication: v1::Publication, scratch: bool, fresh: bool },
    /// The fast path reads the clients.
    Hinting { object: ObjectKey, publication: v1::Publication },
    /// A job reads its next page; what was known when it began.
    Paging(ObjectKey, known::Mark),
    /// A job clears its marker.
    Clearing(ObjectKey),
    /// F5: markers of a range are looked for.
    Recovering(HeldRange, Stretch),
    /// A tombstone that nobody waits for.
    Tidying,
}

/// The copy of a registration, or of its end.
#[derive(Clone, Debug)]
struct Copied {
    client: ClientKey,
    seqno: u64,
    source: Option<Bytes>,
}

/// A bridge's call that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    request: RequestId,
    guard: Guard,
}

/// The timers of the matcher.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Entries of a job are to be tried again.
    Job(ObjectKey),
    /// Look for markers again.
    Rescan,
    /// Look for markers where none could be read.
    Unread,
}

/// The matcher machine.
#[derive(Clone, Debug)]
pub struct Matcher {
    options: Options,
    realm: Option<Realm>,
    held: Held,
    /// What could not be read when markers were looked for.
    unread: Vec<HeldRange>,
    timers: Timers<Timer>,
    rng: Seeded,
    steps: BTreeMap<StoreId, Step>,
    jobs: BTreeMap<ObjectKey, Job>,
    known: Known,
    /// The latest version of an object that was told by the fast path before it was stable.
    hinted: BoundedMap<ObjectKey, u64>,
    /// How many objects the fast path reads.
    hinting: usize,
    calls: BTreeMap<CallId, (ObjectKey, ClientKey)>,
    /// Objects whose versions are being written: how many, and the latest.
    arriving: BTreeMap<ObjectKey, (usize, u64)>,
    next_id: u64,
}

impl Matcher {
    /// A matcher that holds nothing.
    pub fn new(options: Options) -> Matcher {
        Matcher {
            rng: Seeded::new(options.seed).fork("matcher"),
            options,
            realm: None,
            held: Held::default(),
            unread: Vec::new(),
            timers: Timers::new(),
            steps: BTreeMap::new(),
            jobs: BTreeMap::new(),
            known: Known::new(),
            hinted: BoundedMap::new(MAX_HINTED),
            hinting: 0,
            calls: BTreeMap::new(),
            arriving: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// How many objects are being propagated.
    pub fn jobs(&self) -> usize {
        self.jobs.len()
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn store(&mut self, step: Step, request: StoreRequest, out: &mut Outbox<Output>) {
        self.store_under(None, step, request, out);
    }

    fn store_under(&mut self, guard: Option<Guard>, step: Step, request: StoreRequest, out: &mut Outbox<Output>) {
        let id = StoreId(self.id());
        self.steps.insert(id, step);
        out.put(Output::Store { id, guard, request });
    }

    fn incarnation(&self) -> u64 {
        self.realm.as_ref().map_or(0, |realm| realm.incarnation)
    }

    fn guard(&self, guard: Guard) -> Option<Guard> {
        (self.options.mutant != Some(Mutant::LeaseIgnored)).then_some(guard)
    }

    fn answer(&self, waiter: Waiter, outcome: Outcome, version: u64, out: &mut Outbox<Output>) {
        let guard = if outcome == Outcome::Done { self.guard(waiter.guard) } else { None };
        out.put(Output::Answer { request: waiter.request, guard, outcome, version });
    }

    fn refuse(&self, request: RequestId, outcome: Outcome, out: &mut Outbox<Output>) {
        out.put(Output::Answer { request, guard: None, outcome, version: 0 });
    }

    /// The guard of a call's key, if the key is held as the driver saw it, in the realm of the call.
    fn admit(
        &self,
        app: &str,
        realm: Option<&v1::NotifyRealm>,
        object: &ObjectKey,
        lease: LeaseNumber,
    ) -> Option<Guard> {
        let ours = self.realm.as_ref().is_some_and(|ours| ours.is(app, realm));
        let guard = Guard { key: object.hash(), lease };
        (ours && self.held.lease(guard.key) == Some(lease)).then_some(guard)
    }

    // ---- registrations ----------------------------------------------------------------------------------------------

    fn register(
        &mut self,
        request: RequestId,
        lease: LeaseNumber,
        call: &v1::MatchRegistration,
        out: &mut Outbox<Output>,
    ) {
        let generation = call.realm.map_or(0, |realm| realm.generation);
        let client = ClientKey::of_message(call.client.as_ref(), generation);
        let sizes = (1..=MAX_NAME).contains(&call.object.len()) && call.source.len() <= MAX_SOURCE;
        let (Some(client), true, 1..=MAX_VERSION) = (client, sizes, call.seqno) else {
            return self.refuse(request, Outcome::Failed, out);
        };
        let object = ObjectKey::new(client.app(), generation, &call.object);
        let Some(guard) = self.admit(client.app(), call.realm.as_ref(), &object, lease) else {
            return self.refuse(request, Outcome::Moved, out);
        };
        let column = rows::column(rows::REG, client.id());
        let cell = match call.registered {
            true => rows::cell(column, call.seqno, call.source.clone()),
            false => rows::gone(column, call.seqno),
        };
        let write = rows::write(MATCHER, rows::bucket_row(self.incarnation(), &object, &client), vec![cell]);
        if self.options.mutant == Some(Mutant::ReadBeforeStore) {
            return self.read_version(Step::Reading { request, guard, object, then: Some(write) }, out);
        }
        let copy = Copied { client, seqno: call.seqno, source: call.registered.then(|| call.source.clone()) };
        self.store(Step::Registering { request, guard, object, copy }, write, out);
    }

    fn read_version(&mut self, step: Step, out: &mut Outbox<Output>) {
        let Step::Reading { object, .. } = &step else { return };
        let row = rows::row(self.incarnation(), object.as_bytes());
        self.store(step, rows::get(MATCHER, row, &[VERSION]), out);
    }

    // ---- publications -----------------------------------------------------------------------------------------------

    fn publish(
        &mut self,
        now: Now,
        request: RequestId,
        lease: LeaseNumber,
        call: v1::MatchPublication,
        out: &mut Outbox<Output>,
    ) {
        let Some(mut publication) = call.publication.filter(is_sound) else {
            return self.refuse(request, Outcome::Failed, out);
        };
        let generation = call.realm.map_or(0, |realm| realm.generation);
        let object = ObjectKey::new(&publication.app, generation, &publication.object);
        let Some(guard) = self.admit(&publication.app, call.realm.as_ref(), &object, lease) else {
            return self.refuse(request, Outcome::Moved, out);
        };
        publication.times.get_or_insert_default().matcher_us = now.wall.0;
        let version = publication.version;
        let cells =
            vec![rows::cell(VERSION, version, publication.source.clone()), rows::cell(PENDING, version, Bytes::new())];
        let row = rows::row(self.incarnation(), object.as_bytes());
        let hinted = self.hinted.get(&object).is_some_and(|latest| *latest >= version);
        if !hinted && !call.scratch {
            self.read_to_hint(object.clone(), publication.clone(), out);
        }
        let latest = self.latest_under_way(&object);
        let fresh = latest <= version && !call.scratch;
        // What comes from scratch was in time, and held up on its way.
        if latest > version && !call.scratch {
            self.behind(&object, version, latest, publication.times, out);
        }
        let (count, highest) = self.arriving.entry(object.clone()).or_default();
        (*count, *highest) = (*count + 1, version.max(*highest));
        let waiter = Waiter { request, guard };
        let step = Step::Publishing { waiter, object, publication, scratch: call.scratch, fresh };
        self.store(step, rows::write(MATCHER, row, cells), out);
    }

    /// The fast path begins with the publication's call; whatever is wrong with it is told by `Publish`.
    fn hint_early(&mut self, now: Now, lease: LeaseNumber, mut publication: v1::Publication, out: &mut Outbox<Output>) {
        let object = ObjectKey::new(&publication.app, publication.generation, &publication.object);
        let v1::Publication { incarnation, generation, version, .. } = publication;
        let realm = v1::NotifyRealm { incarnation, generation };
        if is_sound(&publication) && self.admit(&publication.app, Some(&realm), &object, lease).is_some() {
            publication.times.get_or_insert_default().matcher_us = now.wall.0;
            if self.read_to_hint(object.clone(), publication, out) {
                let before = self.hinted.get(&object).map_or(0, |latest| *latest);
                self.hinted.insert(object, before.max(version));
            }
        }
    }

    /// The fast path reads who is to be told, if there is room; whether it does.
    fn read_to_hint(&mut self, object: ObjectKey, publication: v1::Publication, out: &mut Outbox<Output>) -> bool {
        if !self.options.hints {
            return false;
        }
        if let Some(page) = self.known.page(&object) {
            self.hint(&object, &publication, page, out);
            return true;
        }
        if self.hinting >= MAX_HINTING {
            return false;
        }
        self.hinting += 1;
        let span = Span::of_object(self.incarnation(), &object);
        self.store(Step::Hinting { object, publication }, rows::scan(MATCHER, span, jobs::PAGE, &[]), out);
        true
    }

    /// A version was written, or could not be.
    fn arrived(&mut self, object: &ObjectKey) {
        if let Some((count, _)) = self.arriving.get_mut(object) {
            *count -= 1;
            if *count == 0 {
                self.arriving.remove(object);
            }
        }
    }

    // ---- ranges -----------------------------------------------------------------------------------------------------

    fn gained(&mut self, range: KeyRange, lease: LeaseNumber, out: &mut Outbox<Output>) {
        self.forget(range, out);
        for held in self.held.gain(range, lease) {
            self.recover(held, Stretch::new(held.range), out);
        }
    }

    /// F5: looks for markers; F12: until all are known, nothing is suppressed.
    fn recover(&mut self, held: HeldRange, stretch: Stretch, out: &mut Outbox<Output>) {
        if self.options.mutant == Some(Mutant::NoRecovery) || self.realm.is_none() {
            return;
        }
        let request = rows::scan(MATCHER, stretch.span(self.incarnation()), RECOVERY_PAGE, &[PENDING]);
        self.store(Step::Recovering(held, stretch), request, out);
    }

    fn recovered(
        &mut self,
        now: Now,
        held: HeldRange,
        stretch: &Stretch,
        result: StoreResult,
        out: &mut Outbox<Output>,
    ) {
        if self.held.lease(held.range.start) != Some(held.lease) {
            return;
        }
        let Ok(StoreReply::Rows(rows)) = result else {
            return self.unreadable(now, held, stretch, out);
        };
        for row in &rows.rows {
            let object = ObjectKey::parse(rows::key_of_row(&row.row));
            let of_now = |object: &ObjectKey| {
                self.realm.as_ref().is_some_and(|realm| realm.has(object.app(), object.generation()))
            };
            if let (Some(object), Some((version, _))) = (object.filter(of_now), rows::find(row, PENDING)) {
                if self.jobs.len() >= self.options.max_jobs {
                    return self.rescan_later(now);
                }
                self.enqueue(now, object, jobs::Want::recovered(version), None, out);
            }
        }
        match rows.next {
            Some(next) => self.recover(held, stretch.behind(next), out),
            None => self.held.set_recovered(held.range, held.lease, true),
        }
    }

    /// F11: rows that cannot be read hold up no others: what is around them is read apart, and they are tried again.
    fn unreadable(&mut self, now: Now, held: HeldRange, stretch: &Stretch, out: &mut Outbox<Output>) {
        if let Some((read, _)) = held.range.split(stretch.range.start) {
            self.held.cut(stretch.range.start);
            self.held.set_recovered(read, held.lease, true);
        }
        let Some(halves) = stretch.halves() else {
            self.unread.push(HeldRange { range: stretch.range, ..held });
            if self.timers.at(&Timer::Unread).is_none() {
                self.timers.set(Timer::Unread, now.mono + UNREAD_PAUSE);
            }
            return;
        };
        for half in halves {
            self.held.cut(half.range.start);
            self.recover(HeldRange { range: half.range, ..held }, half, out);
        }
    }

    fn read_again(&mut self, out: &mut Outbox<Output>) {
        for held in std::mem::take(&mut self.unread) {
            self.recover(held, Stretch::new(held.range), out);
        }
    }

    fn rescan_later(&mut self, now: Now) {
        if self.timers.at(&Timer::Rescan).is_none() {
            self.timers.set(Timer::Rescan, now.mono + RESCAN_PAUSE);
        }
    }

    fn rescan(&mut self, out: &mut Outbox<Output>) {
        self.steps.retain(|_, step| !matches!(step, Step::Recovering(..)));
        self.unread.clear();
        let incomplete: Vec<HeldRange> = self.held.all().filter(|held| !held.recovered).copied().collect();
        for held in incomplete {
            self.recover(held, Stretch::new(held.range), out);
        }
    }

    /// Forgets everything of a range; whoever waits is told to look again.
    fn forget(&mut self, range: KeyRange, out: &mut Outbox<Output>) {
        self.known.forget();
        self.hinted = BoundedMap::new(MAX_HINTED);
        let jobs: Vec<ObjectKey> = self.jobs.keys().filter(|object| range.contains(object.hash())).cloned().collect();
        for object in jobs {
            self.drop_job(&object, Outcome::Moved, out);
        }
        let inside = |step: &Step| match step {
            Step::Registering { guard, .. } | Step::Reading { guard, .. } => range.contains(guard.key),
            Step::Publishing { object, .. } | Step::Hinting { object, .. } => range.contains(object.hash()),
            Step::Paging(object, _) | Step::Clearing(object) => range.contains(object.hash()),
            Step::Recovering(held, _) => range.overlaps(held.range),
            Step::Tidying => false,
        };
        let steps: Vec<StoreId> = self.steps.iter().filter(|(_, step)| inside(step)).map(|(id, _)| *id).collect();
        for id in steps {
            match self.steps.remove(&id) {
                Some(Step::Registering { request, .. } | Step::Reading { request, .. }) => {
                    self.refuse(request, Outcome::Moved, out);
                }
                Some(Step::Publishing { waiter, object, .. }) => {
                    self.arrived(&object);
                    self.refuse(waiter.request, Outcome::Moved, out);
                }
                Some(Step::Hinting { .. }) => self.hinting -= 1,
                // The rest of a range that was cut is still to be scanned.
                Some(Step::Recovering(held, _)) if !range.covers(held.range) => {
                    self.timers.set(Timer::Rescan, Mono(0));
                }
                _ => {}
            }
        }
        let cut = |held: &HeldRange| range.overlaps(held.range) && !range.covers(held.range);
        if self.unread.iter().any(cut) {
            self.timers.set(Timer::Rescan, Mono(0));
        }
        self.unread.retain(|held| !range.overlaps(held.range));
    }

    /// F3: what was stored before is not there any more.
    fn enter(&mut self, realm: Realm, out: &mut Outbox<Output>) {
        if self.realm.as_ref() == Some(&realm) {
            return;
        }
        let first = self.realm.is_none();
        if !first && self.options.mutant == Some(Mutant::IncarnationIgnored) {
            return;
        }
        self.realm = Some(realm);
        self.forget(KeyRange::FULL, out);
        let all: Vec<HeldRange> = self.held.all().copied().collect();
        for held in all {
            self.held.set_recovered(held.range, held.lease, false);
            self.recover(held, Stretch::new(held.range), out);
        }
    }

    // ---- the store's answers ----------------------------------------------------------------------------------------

    fn stored(&mut self, now: Now, id: StoreId, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(step) = self.steps.remove(&id) else { return };
        match (step, result) {
            (Step::Registering { request, guard, object, copy }, Ok(_)) => {
                self.known.registered(&object, &copy.client, copy.seqno, copy.source);
                self.read_version(Step::Reading { request, guard, object, then: None }, out);
            }
            (Step::Reading { request, guard, then, .. }, Ok(StoreReply::Row(row))) => {
                let version = row.as_ref().and_then(|row| rows::find(row, VERSION)).map_or(0, |(version, _)| version);
                match then {
                    // The mutant's order, and nothing else of it: what is remembered would not know of this one.
                    Some(write) => {
                        self.known.forget();
                        self.answer(Waiter { request, guard }, Outcome::Done, version, out);
                        self.store(Step::Tidying, write, out);
                    }
                    None => self.answer(Waiter { request, guard }, Outcome::Done, version, out),
                }
            }
            (Step::Registering { request, .. } | Step::Reading { request, .. }, _) => {
                self.refuse(request, Outcome::Failed, out);
            }
            (Step::Publishing { waiter, object, publication, scratch, fresh }, Ok(_)) => {
                self.arrived(&object);
                self.known.published(&object, publication.version, &publication.source);
                let recovered = self.held.find(object.hash()).is_some_and(|held| held.recovered);
                let want = jobs::Want::published(publication, recovered && !scratch, self.options.mutant);
                self.enqueue(now, object, want.fresh(fresh), Some(waiter), out);
            }
            (Step::Publishing { waiter, object, .. }, Err(_)) => {
                self.arrived(&object);
                self.refuse(waiter.request, Outcome::Failed, out);
            }
            (Step::Hinting { object, publication }, result) => {
                self.hinting -= 1;
                if let Ok(StoreReply::Rows(rows)) = result {
                    let page = Page::of_rows(self.incarnation(), &object, rows);
                    self.hint(&object, &publication, page, out);
                }
            }
            (Step::Paging(object, mark), result) => self.paged(now, &object, mark, result, out),
            (Step::Clearing(object), result) => self.cleared(now, &object, result, out),
            (Step::Recovering(held, stretch), result) => self.recovered(now, held, &stretch, result, out),
            (Step::Tidying, _) => {}
        }
    }
}

/// Whether a publication keeps to the limits.
fn is_sound(publication: &v1::Publication) -> bool {
    let named = !publication.app.is_empty() && (1..=MAX_NAME).contains(&publication.object.len());
    named && (1..=MAX_VERSION).contains(&publication.version) && publication.source.len() <= MAX_SOURCE
}

impl Machine for Matcher {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Realm(realm) => self.enter(realm, out),
            Input::Gained { range, lease } => self.gained(range, lease, out),
            Input::Lost { range } => {
                self.held.lose(range);
                self.forget(range, out);
            }
            Input::Register { request, lease, call } => self.register(request, lease, &call, out),
            Input::Publish { request, lease, call } => self.publish(now, request, lease, *call, out),
            Input::Hint { lease, publication } => self.hint_early(now, lease, *publication, out),
            Input::Notified { id, outcome } => self.notified(now, id, outcome, out),
            Input::Stored { id, result } => self.stored(now, id, result, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Job(object) => self.retry(now, &object, out),
                Timer::Rescan => self.rescan(out),
                Timer::Unread => self.read_again(out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
