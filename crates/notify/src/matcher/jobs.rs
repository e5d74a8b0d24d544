//! Propagation: an object's version to everybody who has registered it, in bounded pages.

use super::known::{Mark, Page};
use super::{Matcher, Output, Step, Timer, Waiter};
use crate::mutant::Mutant;
use crate::names::{ClientKey, Guard, ObjectKey};
use crate::rows::{self, BEHIND, MATCHER, PENDING, Span, StoreReply, StoreResult};
use crate::{CallId, Outcome, backoff};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox};
use tidings_wire::v1;

/// Rows of one page: the memory of a job is bounded by them.
pub(super) const PAGE: u32 = 8;
/// Calls of one job that wait for answers before it goes on: well below what waits for one node, where what comes beyond
/// fails.
const WINDOW: usize = 4_096;
/// Clients of one job whose registrars failed; beyond it the whole job is done again later.
const MAX_RETRIES: usize = 4_096;
/// How long a registrar may be silent.
const SILENCE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Clients that are told of one version by the fast path.
const MAX_HINTS: usize = 1_024;

/// Calls that wait for one job, and how many of them may not be fresh.
const MAX_WAITERS: usize = 1_024;
const MAX_STALE_WAITERS: usize = 16;

/// What a job should bring to the clients.
#[derive(Clone, Debug)]
pub(super) struct Want {
    version: u64,
    source: Bytes,
    /// F12: whoever made it need not be told.
    suppress: bool,
    /// Answers only when everybody has been told: no marker stands for it.
    hold: bool,
    /// Nothing later was known when it came.
    fresh: bool,
    times: Option<v1::NotifyTimes>,
}

impl Want {
    /// A marker was found: F12, nothing is suppressed.
    pub(super) fn recovered(version: u64) -> Want {
        Want { version, source: Bytes::new(), suppress: false, hold: false, fresh: false, times: None }
    }

    /// A version was written. F12: its maker is left out only where every earlier version is known to have been
    /// propagated, and that is known only if no marker can be unseen.
    pub(super) fn published(publication: v1::Publication, settled: bool, mutant: Option<Mutant>) -> Want {
        let v1::Publication { version, source, times, .. } = publication;
        let suppress = !source.is_empty() && (settled || mutant == Some(Mutant::AlwaysSuppress));
        Want { version, source, suppress, hold: false, fresh: false, times }
    }

    /// The same, known to have come before anything later.
    pub(super) fn fresh(self, fresh: bool) -> Want {
        Want { fresh, ..self }
    }

    fn notify(&self, realm: v1::NotifyRealm, client: &ClientKey, object: &ObjectKey) -> v1::ClientNotify {
        v1::ClientNotify {
            id: 0,
            realm: Some(realm),
            client: Some(client.to_message()),
            object: Bytes::copy_from_slice(object.name()),
            version: self.version,
            hint: false,
            payload: Bytes::new(),
            times: self.times,
        }
    }
}

#[derive(Clone, Debug)]
enum Stage {
    /// A page is being read; from where.
    Paging(Option<Bytes>),
    /// A page could not be read; from where.
    Again(Option<Bytes>),
    /// Pages were read; where the next begins.
    Sending(Option<Bytes>),
    /// The marker is being cleared.
    Clearing,
}

/// The propagation of one object.
#[derive(Clone, Debug)]
pub(super) struct Job {
    want: Want,
    stage: Stage,
    /// The object's row was read, and what was wanted is the latest.
    latest: bool,
    /// A later version is stored: its marker, not ours, stands in the row.
    late: bool,
    waiters: Vec<Waiter>,
    /// What comes next; publications collapse here.
    next: Option<(Want, Vec<Waiter>)>,
    /// Of the page that was read, whom there was no room to tell yet.
    rest: VecDeque<ClientKey>,
    waiting: BTreeMap<CallId, (ClientKey, Mono)>,
    retry: Vec<ClientKey>,
    /// More failed than can be remembered.
    overflow: bool,
    failures: u32,
}

impl Job {
    fn new(want: Want, waiters: Vec<Waiter>) -> Job {
        Job {
            want,
            stage: Stage::Sending(None),
            latest: false,
            late: false,
            waiters,
            next: None,
            rest: VecDeque::new(),
            waiting: BTreeMap::new(),
            retry: Vec::new(),
            overflow: false,
            failures: 0,
        }
    }
}

/// Lets a call wait for the end of a job, unless enough others do: what is not fresh lies in scratch, or can, and is sent again
/// and again while the job goes on.
fn wait(waiters: &mut Vec<Waiter>, waiter: Option<Waiter>, fresh: bool) -> Option<Waiter> {
    if waiters.len() >= if fresh { MAX_WAITERS } else { MAX_STALE_WAITERS } {
        return waiter;
    }
    waiters.extend(waiter);
    None
}

impl Matcher {
    /// A version is stable, or was found to be: tell everybody. Several for one object collapse into the latest.
    pub(super) fn enqueue(
        &mut self,
        now: Now,
        object: ObjectKey,
        want: Want,
        waiter: Option<Waiter>,
        out: &mut Outbox<Output>,
    ) {
        let always = self.options.mutant == Some(Mutant::AlwaysSuppress);
        let Some(job) = self.jobs.get_mut(&object) else {
            if self.jobs.len() >= self.options.max_jobs {
                // The marker is stored: the job is found again when there is room.
                let at = object.hash();
                if let Some(held) = self.held.find(at).copied() {
                    self.held.set_recovered(held.range, held.lease, false);
                }
                self.rescan_later(now);
                waiter.into_iter().for_each(|waiter| self.refuse(waiter.request, Outcome::Failed, out));
                return;
            }
            self.jobs.insert(object.clone(), Job::new(want, waiter.into_iter().collect()));
            return self.page(now, &object, None, out);
        };
        let want_fresh = want.fresh;
        if want.version > job.want.version {
            let (next, waiters) = job.next.get_or_insert_with(|| (want.clone(), Vec::new()));
            if want.version > next.version {
                *next = Want { hold: next.hold, ..want };
            }
            // F12: something earlier may be on its way still.
            next.suppress &= always;
            let refused = wait(waiters, waiter, want_fresh);
            refused.into_iter().for_each(|waiter| self.refuse(waiter.request, Outcome::Failed, out));
            self.advance(now, &object, out);
        } else if job.want.suppress && (want.version < job.want.version || !want.suppress) && !always {
            // F12: the maker of the later version has not been told of this one, or of what has collapsed into it in
            // scratch. No marker says so, hence `hold`.
            let again = Want { suppress: false, hold: true, ..job.want.clone() };
            let (next, waiters) = job.next.get_or_insert_with(|| (again, Vec::new()));
            (next.suppress, next.hold) = (false, true);
            let refused = wait(waiters, waiter, want.fresh);
            refused.into_iter().for_each(|waiter| self.refuse(waiter.request, Outcome::Failed, out));
        } else if job.latest && !job.want.hold {
            waiter.into_iter().for_each(|waiter| self.answer(waiter, Outcome::Done, 0, out));
        } else {
            let refused = wait(&mut job.waiters, waiter, want.fresh);
            refused.into_iter().for_each(|waiter| self.refuse(waiter.request, Outcome::Failed, out));
        }
    }

    fn page(&mut self, now: Now, object: &ObjectKey, from: Option<Bytes>, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        job.stage = Stage::Paging(from.clone());
        if from.is_none()
            && let Some(page) = self.known.page(object)
        {
            return self.take(now, object, true, page, out);
        }
        let mut span = Span::of_object(self.incarnation(), object);
        if let Some(from) = from {
            span.start = from;
        }
        let mark = self.known.mark();
        self.store(Step::Paging(object.clone(), mark), rows::scan(MATCHER, span, PAGE, &[]), out);
    }

    pub(super) fn paged(
        &mut self,
        now: Now,
        object: &ObjectKey,
        mark: Mark,
        result: StoreResult,
        out: &mut Outbox<Output>,
    ) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        let Stage::Paging(from) = job.stage.clone() else { return };
        let Ok(StoreReply::Rows(rows)) = result else {
            // What is stored is stored, but whether it is the latest is not known: the bridge must not rely on us.
            let waiters = std::mem::take(&mut job.waiters);
            job.stage = Stage::Again(from);
            waiters.into_iter().for_each(|waiter| self.refuse(waiter.request, Outcome::Failed, out));
            return self.later(now, object);
        };
        let page = Page::of_rows(self.incarnation(), object, rows);
        if from.is_none() {
            let unmarked = self.options.mutant == Some(Mutant::PageUnmarked);
            let mark = if unmarked { self.known.mark() } else { mark };
            // A version that was stored since the page was read is the object's next job.
            let latest = self.latest_under_way(object);
            self.known.learn(object, mark, latest, &page);
        }
        self.take(now, object, from.is_none(), page, out);
    }

    /// Tells the clients of a page.
    fn take(&mut self, now: Now, object: &ObjectKey, first: bool, page: Page, out: &mut Outbox<Output>) {
        if first && !self.first_page(now, object, page.version, out) {
            return;
        }
        let Some(job) = self.jobs.get_mut(object) else { return };
        job.stage = Stage::Sending(page.next);
        let skip = job.want.suppress.then(|| job.want.source.clone());
        let told = page.clients.into_iter().filter(|(.., source)| skip.as_ref() != Some(source));
        job.rest.extend(told.map(|(client, ..)| client));
        self.advance(now, object, out);
    }

    /// Compares what is wanted with what is stored; whether the job goes on.
    fn first_page(
        &mut self,
        now: Now,
        object: &ObjectKey,
        stored: Option<(u64, Bytes)>,
        out: &mut Outbox<Output>,
    ) -> bool {
        let always = self.options.mutant == Some(Mutant::AlwaysSuppress);
        let Some((stored, source)) = stored else {
            // The row is gone, as after a reset: whoever waits must not rely on it.
            self.drop_job(object, Outcome::Failed, out);
            return false;
        };
        self.compare(object, stored, out);
        let Some(job) = self.jobs.get_mut(object) else { return false };
        if stored > job.want.version {
            // Its own marker brings the later version to everybody but its maker. Where there is one, F12 wants it
            // told of ours, and no marker stands for that: the answer waits.
            if source.is_empty() || always {
                self.finish(now, object, out);
                return false;
            }
            (job.late, job.want.suppress, job.want.hold) = (true, false, true);
        }
        job.latest = true;
        if !job.want.hold {
            let waiters = std::mem::take(&mut job.waiters);
            waiters.into_iter().for_each(|waiter| self.answer(waiter, Outcome::Done, 0, out));
        }
        true
    }

    /// Notices a version that came after what is stored. What came after it, as it should, may have been stored first.
    fn compare(&mut self, object: &ObjectKey, stored: u64, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        let (version, times, fresh) = (job.want.version, job.want.times, std::mem::take(&mut job.want.fresh));
        if fresh && stored > version && self.latest_under_way(object) < stored {
            self.behind(object, version, stored, times, out);
        }
    }

    /// A version came after a later one that is known: it changes nothing, and people can see that it came.
    pub(super) fn behind(
        &mut self,
        object: &ObjectKey,
        version: u64,
        latest: u64,
        times: Option<v1::NotifyTimes>,
        out: &mut Outbox<Output>,
    ) {
        // F1: stamped by a version like its neighbours, so that the picture of the latest one stays.
        let cells = vec![rows::cell(BEHIND, latest, version.to_be_bytes().to_vec())];
        let row = rows::row(self.incarnation(), object.as_bytes());
        self.store(Step::Tidying, rows::write(MATCHER, row, cells), out);
        out.put(Output::Behind { object: object.clone(), version, latest, times });
    }

    /// The latest version of an object that is being stored or propagated; 0 = none is.
    pub(super) fn latest_under_way(&self, object: &ObjectKey) -> u64 {
        let arriving = self.arriving.get(object).map_or(0, |(_, latest)| *latest);
        let job = self.jobs.get(object);
        let job = job.map_or(0, |job| job.next.as_ref().map_or(job.want.version, |(next, _)| next.version));
        arriving.max(job)
    }

    fn tell(&mut self, now: Now, object: &ObjectKey, client: ClientKey, out: &mut Outbox<Output>) {
        let id = CallId(self.id());
        let (Some(job), Some(realm)) = (self.jobs.get_mut(object), &self.realm) else { return };
        let notify = job.want.notify(realm.message(object.app()), &client, object);
        out.put(Output::ToRegistrar { id, key: client.hash(), notify: Box::new(notify) });
        self.calls.insert(id, (object.clone(), client.clone()));
        job.waiting.insert(id, (client, now.mono));
        if self.timers.at(&Timer::Job(object.clone())).is_none() {
            self.timers.set(Timer::Job(object.clone()), now.mono + SILENCE);
        }
    }

    pub(super) fn notified(&mut self, now: Now, id: CallId, outcome: Outcome, out: &mut Outbox<Output>) {
        let Some((object, client)) = self.calls.remove(&id) else { return };
        if let Outcome::NotRegistered(seqno) = outcome
            && self.options.mutant != Some(Mutant::NotRegisteredIgnored)
        {
            // F6: a later registration has a larger number and stays.
            let row = rows::bucket_row(self.incarnation(), &object, &client);
            let cells = vec![rows::gone(rows::column(rows::REG, client.id()), seqno)];
            self.known.registered(&object, &client, seqno, None);
            self.store(Step::Tidying, rows::write(MATCHER, row, cells), out);
        }
        let Some(job) = self.jobs.get_mut(&object) else { return };
        job.waiting.remove(&id);
        if matches!(outcome, Outcome::Failed | Outcome::Moved) {
            job.put_off(client);
            self.later(now, &object);
        }
        self.advance(now, &object, out);
    }

    /// Goes on when there is room, and ends when everybody has been told.
    fn advance(&mut self, now: Now, object: &ObjectKey, out: &mut Outbox<Output>) {
        while let Some(job) = self.jobs.get_mut(object).filter(|job| job.waiting.len() < WINDOW)
            && let Some(client) = job.rest.pop_front()
        {
            self.tell(now, object, client, out);
        }
        let Some(job) = self.jobs.get_mut(object) else { return };
        let Stage::Sending(more) = &job.stage else { return };
        match more.clone() {
            _ if !job.rest.is_empty() => {}
            // One registrar's trouble does not hold up the others' pages.
            Some(next) if job.waiting.len() < WINDOW => self.page(now, object, Some(next), out),
            Some(_) => {}
            None if !job.waiting.is_empty() => {}
            // One registrar's trouble does not hold up later versions either.
            None if job.failed() && job.next.is_some() => self.overtake(now, object, out),
            None if job.failed() => {}
            None => self.complete(now, object, out),
        }
    }

    /// Goes on with what has collapsed behind a job: whoever has not heard of the earlier version hears of the later one.
    fn overtake(&mut self, now: Now, object: &ObjectKey, out: &mut Outbox<Output>) {
        let Some(mut job) = self.jobs.remove(object) else { return };
        self.timers.cancel(&Timer::Job(object.clone()));
        let Some((mut want, mut waiters)) = job.next.take() else { return };
        want.hold |= job.want.hold;
        waiters.append(&mut job.waiters);
        self.jobs.insert(object.clone(), Job { failures: job.failures, ..Job::new(want, waiters) });
        self.page(now, object, None, out);
    }

    fn complete(&mut self, now: Now, object: &ObjectKey, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        if job.late || job.next.is_some() {
            return self.finish(now, object, out);
        }
        let waiters = std::mem::take(&mut job.waiters);
        job.stage = Stage::Clearing;
        let cells = vec![rows::gone(PENDING, job.want.version)];
        waiters.into_iter().for_each(|waiter| self.answer(waiter, Outcome::Done, 0, out));
        let row = rows::row(self.incarnation(), object.as_bytes());
        // F1: whom this told may be remembered; what a later owner has registered is not among them. As long as the lease
        // holds there is none, and whoever registers from now on reads this version.
        let key = object.hash();
        let guard = self.held.lease(key).and_then(|lease| self.guard(Guard { key, lease }));
        self.store_under(guard, Step::Clearing(object.clone()), rows::write(MATCHER, row, cells), out);
    }

    pub(super) fn cleared(&mut self, now: Now, object: &ObjectKey, result: StoreResult, out: &mut Outbox<Output>) {
        if result.is_ok() || self.jobs.get(object).is_some_and(|job| job.next.is_some()) {
            return self.finish(now, object, out);
        }
        if let Some(job) = self.jobs.get_mut(object) {
            job.stage = Stage::Sending(None);
        }
        self.later(now, object);
    }

    /// Ends a job, and begins what has collapsed behind it.
    fn finish(&mut self, now: Now, object: &ObjectKey, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.remove(object) else { return };
        self.timers.cancel(&Timer::Job(object.clone()));
        job.waiting.keys().for_each(|id| {
            self.calls.remove(id);
        });
        job.waiters.into_iter().for_each(|waiter| self.answer(waiter, Outcome::Done, 0, out));
        if let Some((want, waiters)) = job.next {
            self.jobs.insert(object.clone(), Job::new(want, waiters));
            self.page(now, object, None, out);
        }
    }

    /// Forgets a job; its marker stays.
    pub(super) fn drop_job(&mut self, object: &ObjectKey, outcome: Outcome, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.remove(object) else { return };
        self.timers.cancel(&Timer::Job(object.clone()));
        job.waiting.keys().for_each(|id| {
            self.calls.remove(id);
        });
        let waiters = job.waiters.into_iter().chain(job.next.into_iter().flat_map(|(_, waiters)| waiters));
        waiters.for_each(|waiter| self.refuse(waiter.request, outcome, out));
    }

    fn later(&mut self, now: Now, object: &ObjectKey) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        let pause = backoff(&mut self.rng, job.failures, FIRST_PAUSE, LONGEST_PAUSE);
        let at = now.mono + pause;
        let timer = Timer::Job(object.clone());
        if self.timers.at(&timer).is_none_or(|set| set > at) {
            self.timers.set(timer, at);
        }
    }

    /// Tries again what failed, and what was not answered.
    pub(super) fn retry(&mut self, now: Now, object: &ObjectKey, out: &mut Outbox<Output>) {
        let Some(job) = self.jobs.get_mut(object) else { return };
        let silent: Vec<CallId> =
            job.waiting.iter().filter(|(_, (_, sent))| *sent + SILENCE <= now.mono).map(|(id, _)| *id).collect();
        for id in silent {
            self.calls.remove(&id);
            if let Some((client, _)) = job.waiting.remove(&id) {
                job.put_off(client);
            }
        }
        job.failures = job.failures.saturating_add(1);
        let told = matches!(job.stage, Stage::Sending(None)) && job.rest.is_empty() && job.waiting.is_empty();
        if told && job.failed() && job.next.is_some() {
            return self.overtake(now, object, out);
        }
        let again = std::mem::take(&mut job.retry);
        let page = match &job.stage {
            Stage::Again(from) => Some(from.clone()),
            Stage::Sending(None) if job.overflow && job.waiting.is_empty() => Some(None),
            _ => None,
        };
        if let Some(from) = page {
            job.overflow &= from.is_some();
            self.page(now, object, from, out);
        }
        for client in again {
            self.tell(now, object, client, out);
        }
        let timer = Timer::Job(object.clone());
        let waits = self.jobs.get(object).is_some_and(|job| !job.waiting.is_empty() || job.overflow);
        if waits && self.timers.at(&timer).is_none() {
            self.timers.set(timer, now.mono + SILENCE);
        }
        self.advance(now, object, out);
    }

    /// The fast path: told before it is stable; N2 allows it, and nothing relies on it.
    pub(super) fn hint(
        &mut self,
        object: &ObjectKey,
        publication: &v1::Publication,
        page: Page,
        out: &mut Outbox<Output>,
    ) {
        let Some(realm) = self.realm.as_ref().map(|realm| realm.message(object.app())) else { return };
        let want = Want::published(publication.clone(), false, None);
        for (client, _, source) in page.clients.into_iter().take(MAX_HINTS) {
            if !source.is_empty() && source == publication.source {
                continue;
            }
            let mut notify = want.notify(realm, &client, object);
            (notify.hint, notify.payload) = (true, publication.payload.clone());
            let id = CallId(self.id());
            out.put(Output::ToRegistrar { id, key: client.hash(), notify: Box::new(notify) });
        }
    }
}

impl Job {
    /// Whether somebody could not be told.
    fn failed(&self) -> bool {
        !self.retry.is_empty() || self.overflow
    }

    fn put_off(&mut self, client: ClientKey) {
        match self.retry.len() < MAX_RETRIES {
            true => self.retry.push(client),
            false => self.overflow = true,
        }
    }
}
