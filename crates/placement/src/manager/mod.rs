//! The manager: one leads, any number stand by; what it decides is committed to the cell before anybody hears of it.
//!
//! ```text
//!   Owner polls ──▶ Pool (one a namespace): conversations, claims, leases ──▶ answers: the complete set
//!   Lookup polls ─▶   │ table, intents, moves                              ──▶ answers: changed ranges
//!                     ▼
//!                 commits: one file at a time ── Output::Commit ──▶ cell, under the leader's sequencer
//!                          ◀── Input::Committed: done, conflict, unknown (then the file is read again) ──┘
//! ```
//! Rules that live here: F1 (leases only under a valid cell session), F2 (`Hello` first), F3 (a new holder is recorded
//! only after release or expiry; nothing is told of an unknown commit), F4 (one live process for an owner's name), F5
//! (races), F7 (LSNs), F8 (numbers in committed blocks), F9 (clean migration). Renewals never touch the cell.

mod answers;
mod claims;
mod commits;
mod counts;
pub mod file;
mod heat;
mod lookups;
mod moves;
mod operate;
mod plan;
mod pool;
mod rounds;
pub mod table;
#[cfg(test)]
mod tests;

pub use claims::check_address;
pub use counts::{Counts, Gauges};

use crate::config::{FailOver, Times};
use crate::mutant::Mutant;
use bytes::Bytes;
use file::{File, Kind};
use pool::Pool;
use std::collections::BTreeMap;
use tidings_base::{Class, Error, KeyHash, Machine, Mono, Now, OpId, Outbox, Seeded, Timers};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// The most namespaces: each costs a table in memory and files in the cell.
pub const MAX_NAMESPACES: usize = 1_024;

/// Elections of one era: more than there are between two restores of a cell.
const ERA: u64 = 1 << 22;

/// A leader's epoch: it grows with the lock's generation, and with the cell's incarnation, since a restored cell counts
/// generations as its backup did. Nobody who has heard of an earlier leader takes a later one for deposed (F2).
pub fn epoch(incarnation: u64, generation: u64) -> u64 {
    incarnation.saturating_sub(1).saturating_mul(ERA).saturating_add(generation)
}

/// What an epoch says of the cell: it is another one after a restore.
fn era(epoch: u64) -> u64 {
    epoch / ERA
}

/// A namespace that never is, and is recorded as deleted: it says by its era that whatever was lost by the restore has run
/// out, so that no later leader waits again.
const WITNESS: &str = ".restored";

/// How a manager behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Random: tokens, instances and pauses come from it.
    pub seed: u64,
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What the manager hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// This replica holds the lock [`file::LEADER`].
    Elected {
        /// Larger than that of any earlier leader: see [`epoch`].
        epoch: u64,
    },
    /// It holds the lock no more.
    Deposed,
    /// Its session is with a cell of this incarnation: if that was restored, then before now.
    Met {
        /// The cell's.
        incarnation: u64,
    },
    /// Its cell session is locally valid, and not in jeopardy, before this instant (F1).
    SessionUntil(Mono),
    /// An owner asks.
    Owner {
        /// Names the request.
        op: OpId,
        /// What it says.
        poll: Box<v1::OwnerPoll>,
    },
    /// A lookup asks.
    Lookup {
        /// Names the request.
        op: OpId,
        /// What it knows.
        poll: v1::LookupPoll,
    },
    /// An operator asks.
    Operate {
        /// Names the request.
        op: OpId,
        /// What is asked.
        request: Message,
    },
    /// Nobody waits for this request any more.
    Cancel {
        /// The request.
        op: OpId,
    },
    /// The answer to [`Output::Commit`].
    Committed {
        /// The commit.
        id: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// The answer to [`Output::Read`].
    FileRead {
        /// The read.
        id: u64,
        /// Generation and contents, if the file is there; an error if it could not be read.
        contents: Result<Option<(u64, Bytes)>, Error>,
    },
    /// The answer to [`Output::List`].
    Listed {
        /// The namespaces there are.
        names: Result<Vec<String>, Error>,
    },
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is there, under this generation.
    Done {
        /// The file's generation.
        generation: u64,
    },
    /// The file is of another generation, or the sequencer is stale: somebody else leads.
    Conflict,
    /// Nobody knows.
    Unknown,
}

/// What the manager wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Replace a file if it is of this generation (`None` = if it is not there), under the leader's sequencer.
    Commit {
        /// Comes back with the outcome.
        id: u64,
        /// The file.
        file: File,
        /// Its generation.
        expected: Option<u64>,
        /// What to put there.
        bytes: Bytes,
    },
    /// Read a file, not from a cache.
    Read {
        /// Comes back with the contents.
        id: u64,
        /// The file.
        file: File,
    },
    /// List the namespaces.
    List,
    /// Answer a request, for good.
    Answer {
        /// The request.
        op: OpId,
        /// The answer.
        message: Message,
    },
    /// Give many requests the same answer: to be encoded once.
    Push {
        /// The requests.
        ops: Vec<OpId>,
        /// The answer.
        message: Message,
    },
    /// Refuse a request.
    Fail {
        /// The request.
        op: OpId,
        /// Why.
        error: Error,
    },
    /// Give the lock up: somebody else leads, or the cell does not say what it holds.
    StepDown,
}

/// How far a leadership has come.
#[derive(Clone, Debug, PartialEq)]
enum Standing {
    /// Another manager leads, or none.
    Standby,
    /// The files are read. What is recorded counts as leased from `since` on.
    Reading { epoch: u64, since: Mono, listed: bool },
    /// Requests are answered. The lock was taken at `since`.
    Leading { epoch: u64, since: Mono },
}

/// The timers of the manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A namespace has something due: an expiry, a held poll, a push, a move.
    Pool(String),
    /// A commit or read is tried again.
    Retry(File),
    /// The cell session may have run out (F1).
    Session,
}

/// What a commit or a read is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Errand {
    /// Reading at take-over.
    Load(File),
    /// A commit.
    Commit(File),
    /// Reading to learn what became of a commit.
    Resolve(File),
    /// Reading to learn why a commit that was put there twice was refused: by itself, or since somebody else leads.
    Clash(File),
}

/// A manager.
#[derive(Clone, Debug)]
pub struct Manager {
    options: Options,
    rng: Seeded,
    standing: Standing,
    session_until: Mono,
    pools: BTreeMap<String, Pool>,
    timers: Timers<Timer>,
    errands: BTreeMap<u64, Errand>,
    next_id: u64,
    fail_over: FailOver,
    /// The era of the restored cell, and when this process first heard of it.
    met: Option<(u64, Mono)>,
    /// What earlier leaderships counted.
    counted: Counts,
}

impl Manager {
    /// A manager that stands by.
    pub fn new(options: Options) -> Manager {
        Manager {
            rng: Seeded::new(options.seed).fork("manager"),
            options,
            standing: Standing::Standby,
            session_until: Mono(0),
            pools: BTreeMap::new(),
            timers: Timers::new(),
            errands: BTreeMap::new(),
            next_id: 0,
            fail_over: FailOver::default(),
            met: None,
            counted: Counts::default(),
        }
    }

    /// The same manager, which demands that leases outlast this much (F10).
    pub fn outlasting(mut self, fail_over: FailOver) -> Manager {
        self.fail_over = fail_over;
        self
    }

    /// Whether it leads and answers.
    pub fn leads(&self) -> bool {
        matches!(self.standing, Standing::Leading { .. })
    }

    fn errand(&mut self, errand: Errand) -> u64 {
        self.next_id += 1;
        self.errands.insert(self.next_id, errand);
        self.next_id
    }

    // ---- taking over ------------------------------------------------------------------------------------------------

    fn elected(&mut self, now: Now, epoch: u64, out: &mut Outbox<Output>) {
        self.stand_by(out);
        self.meet(now, era(epoch));
        self.standing = Standing::Reading { epoch, since: now.mono, listed: false };
        out.put(Output::List);
    }

    /// The cell is of this era: if it was restored, that was before now.
    fn meet(&mut self, now: Now, era: u64) {
        if era > 0 && self.met.is_none_or(|(met, _)| met != era) {
            self.met = Some((era, now.mono));
        }
    }

    /// When the last leader of before a restore had stopped to give leases at the latest: its session was over.
    fn old_leader_gone(&self, era: u64) -> Mono {
        let met = self.met.filter(|(met, _)| *met == era).map_or(Mono(0), |(_, at)| at);
        met + self.fail_over.session
    }

    fn listed(&mut self, now: Now, names: Result<Vec<String>, Error>, out: &mut Outbox<Output>) {
        let Standing::Reading { listed: listed @ false, .. } = &mut self.standing else { return };
        let Ok(names) = names else { return self.step_down(out) };
        *listed = true;
        for namespace in names.into_iter().take(MAX_NAMESPACES) {
            self.pools.insert(namespace.clone(), Pool::unread(namespace.clone()));
            let owners = (0..=u8::MAX).take(pool::MAX_OWNER_FILES).map(Kind::Owners);
            let kinds = std::iter::once(Kind::Meta).chain(owners).chain((0..=u8::MAX).map(Kind::Segment));
            for kind in kinds {
                let file = File { namespace: namespace.clone(), kind };
                let id = self.errand(Errand::Load(file.clone()));
                out.put(Output::Read { id, file });
            }
        }
        self.begin_to_lead(now, out);
    }

    fn loaded(&mut self, now: Now, file: File, contents: Option<(u64, Bytes)>, out: &mut Outbox<Output>) {
        if let Some(pool) = self.pools.get_mut(&file.namespace) {
            pool.load(file.kind, contents);
        }
        self.begin_to_lead(now, out);
    }

    fn begin_to_lead(&mut self, now: Now, out: &mut Outbox<Output>) {
        let Standing::Reading { epoch, since, listed: true } = self.standing else { return };
        if !self.errands.is_empty() {
            return;
        }
        self.standing = Standing::Leading { epoch, since };
        self.pools.retain(|_, pool| pool.is_readable() || pool.is_damaged());
        self.timers.set(Timer::Session, self.session_until);
        if era(epoch) > 0 && !self.pools.contains_key(WITNESS) {
            let meta = v1::PlacementMeta { deleted: true, hash: KeyHash::FUNCTION.to_owned(), ..Default::default() };
            self.pools.insert(WITNESS.to_owned(), Pool::create(now.mono, WITNESS.to_owned(), meta));
        }
        let gone = self.old_leader_gone(era(epoch));
        for namespace in self.pools.keys().cloned().collect::<Vec<_>>() {
            if let Some(pool) = self.pools.get_mut(&namespace).filter(|pool| !pool.is_damaged()) {
                pool.mutant = self.options.mutant;
                if pool.meta.era != era(epoch) {
                    pool.restored(gone, era(epoch), self.rng.next_u64() | 1);
                }
                // F10: this leader may be told of slower fail-overs than whoever let the namespace be made.
                pool.warning = check_times(pool.times, &self.fail_over, self.options.mutant).err().map(|e| e.message);
                pool.take_over(now.mono, since);
            }
            self.work(now, &namespace, out);
        }
    }

    fn step_down(&mut self, out: &mut Outbox<Output>) {
        if self.standing != Standing::Standby {
            self.stand_by(out);
            out.put(Output::StepDown);
        }
    }

    /// Forgets everything; what was asked is refused.
    fn stand_by(&mut self, out: &mut Outbox<Output>) {
        for (_, mut pool) in std::mem::take(&mut self.pools) {
            self.counted.add(&pool.counts);
            pool.waiting_ops().into_iter().for_each(|op| out.put(Output::Fail { op, error: not_leader() }));
        }
        self.errands.clear();
        self.timers = Timers::new();
        self.standing = Standing::Standby;
    }

    // ---- requests ---------------------------------------------------------------------------------------------------

    /// The epoch under which it leads.
    pub fn epoch(&self) -> Option<u64> {
        match self.standing {
            Standing::Leading { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// Until when there may be leases of so long that a restore has lost all record of, if there may.
    fn lost_until(&self, now: Now, epoch: u64, times: Times) -> Option<Mono> {
        let era = era(epoch);
        let told = self.pools.get(WITNESS).is_some_and(|pool| pool.meta.era == era);
        if era == 0 || (told && times.lease <= Times::PAPER.lease) {
            return None;
        }
        let longest = times.honoured().max(Times::PAPER.honoured());
        Some(self.old_leader_gone(era) + longest).filter(|until| now.mono < *until)
    }

    /// F1: leases are sent only under a session that is valid at this instant.
    fn may_lease(&self, now: Now) -> bool {
        now.mono < self.session_until || self.options.mutant == Some(Mutant::NoLeaderCheck)
    }

    /// The epoch under which it answers lookups and operators: not in jeopardy, for somebody else may lead already.
    fn answers(&self, now: Now) -> Option<u64> {
        self.epoch().filter(|_| self.may_lease(now))
    }

    /// The cell session is good until then. A leader in jeopardy fails its held polls at once.
    fn session(&mut self, now: Now, until: Mono, out: &mut Outbox<Output>) {
        self.session_until = until;
        if !self.leads() {
            return;
        }
        if now.mono < until {
            return self.timers.set(Timer::Session, until);
        }
        self.timers.cancel(&Timer::Session);
        for namespace in self.pools.keys().cloned().collect::<Vec<_>>() {
            self.work(now, &namespace, out);
        }
    }

    fn owner(&mut self, now: Now, op: OpId, poll: v1::OwnerPoll, out: &mut Outbox<Output>) {
        let Some(epoch) = self.epoch() else { return fail(out, op, not_leader()) };
        // F2: it has heard of a later leader, or says so. Who leads is for the cell to say: one owner's word deposes nobody.
        if poll.epoch > epoch {
            return fail(out, op, not_leader());
        }
        let namespace = poll.namespace.clone();
        let pool = match serving(&mut self.pools, now, &namespace) {
            Ok(pool) => pool,
            Err(error) => return fail(out, op, error),
        };
        pool.now = now.mono;
        if let Err(error) = pool.hear(epoch, op, poll, &mut self.rng, self.options.mutant, out) {
            return fail(out, op, error);
        }
        self.work(now, &namespace, out);
    }

    fn lookup(&mut self, now: Now, op: OpId, poll: v1::LookupPoll, out: &mut Outbox<Output>) {
        let Some(epoch) = self.answers(now) else { return fail(out, op, not_leader()) };
        let namespace = poll.namespace.clone();
        let pool = match serving(&mut self.pools, now, &namespace) {
            Ok(pool) => pool,
            Err(error) => return fail(out, op, error),
        };
        pool.now = now.mono;
        pool.look(epoch, op, &poll, out);
        self.work(now, &namespace, out);
    }

    /// Lets a namespace do what is due: expiries, plans, commits, answers.
    fn work(&mut self, now: Now, namespace: &str, out: &mut Outbox<Output>) {
        let Some(epoch) = self.epoch() else { return };
        let may_lease = self.may_lease(now);
        let Some(pool) = self.pools.get_mut(namespace).filter(|pool| !pool.is_damaged()) else { return };
        pool.now = now.mono;
        pool.mutant = self.options.mutant;
        if let Some(until) = pool.rests(now.mono) {
            return self.timers.set(Timer::Pool(namespace.to_owned()), until);
        }
        pool.rested();
        pool.expire();
        if !pool.is_deleted() {
            pool.round();
            pool.plan(&mut self.rng);
        }
        for file in pool.commits_due() {
            let id = {
                self.next_id += 1;
                self.errands.insert(self.next_id, Errand::Commit(file.clone()));
                self.next_id
            };
            let (expected, bytes) = pool.begin_commit(file.kind);
            pool.counts.commits += 1;
            out.put(Output::Commit { id, file, expected, bytes });
        }
        pool.answer(epoch, may_lease, self.options.mutant, out);
        if !may_lease {
            pool.lookups.take_all().into_iter().for_each(|op| fail(out, op, not_leader()));
        }
        pool.push(epoch, &mut self.rng, out);
        match pool.deadline() {
            Some(at) => self.timers.set(Timer::Pool(namespace.to_owned()), at),
            None => {
                self.timers.cancel(&Timer::Pool(namespace.to_owned()));
            }
        }
    }

    fn committed(&mut self, now: Now, file: File, outcome: Outcome, out: &mut Outbox<Output>) {
        let Some(pool) = self.pools.get_mut(&file.namespace) else { return };
        let outcome = match outcome {
            Outcome::Unknown if self.options.mutant == Some(Mutant::UnknownIsDone) => pool.as_if_done(file.kind),
            outcome => outcome,
        };
        match outcome {
            Outcome::Done { generation } => {
                pool.now = now.mono;
                let replies = pool.commit_done(file.kind, generation);
                replies.into_iter().for_each(|(op, message)| out.put(Output::Answer { op, message }));
                if pool.exists() == Ok(false) {
                    let error = no_namespace(&file.namespace);
                    pool.waiting_ops().into_iter().for_each(|op| fail(out, op, error.clone()));
                }
                self.work(now, &file.namespace, out);
            }
            Outcome::Conflict if !pool.sent_again(file.kind) => self.step_down(out),
            Outcome::Conflict | Outcome::Unknown => {
                // F3: until it is read again nobody hears of what it changes.
                let clash = outcome == Outcome::Conflict;
                let id = self.errand(if clash { Errand::Clash(file.clone()) } else { Errand::Resolve(file.clone()) });
                out.put(Output::Read { id, file });
            }
        }
    }

    fn resolved(&mut self, now: Now, file: File, contents: Option<(u64, Bytes)>, out: &mut Outbox<Output>) {
        let Some(pool) = self.pools.get_mut(&file.namespace) else { return };
        match pool.resolve(file.kind, contents) {
            commits::Resolved::Done { generation } => self.committed(now, file, Outcome::Done { generation }, out),
            commits::Resolved::NotYet => {
                // It may still come: the same bytes are put there again, under the same condition.
                if let Some((expected, bytes)) = pool.same_commit(file.kind) {
                    let id = self.errand(Errand::Commit(file.clone()));
                    out.put(Output::Commit { id, file, expected, bytes });
                }
            }
            commits::Resolved::Foreign => self.step_down(out),
        }
    }

    fn file_read(
        &mut self,
        now: Now,
        id: u64,
        contents: Result<Option<(u64, Bytes)>, Error>,
        out: &mut Outbox<Output>,
    ) {
        let Some(errand) = self.errands.remove(&id) else { return };
        match (errand, contents) {
            (Errand::Load(_), Err(_)) => self.step_down(out),
            (Errand::Load(file), Ok(contents)) => self.loaded(now, file, contents, out),
            (Errand::Resolve(file), Ok(contents)) => self.resolved(now, file, contents, out),
            (Errand::Clash(file), Ok(contents)) => {
                // Unchanged, and refused: not by itself, so the sequencer is stale.
                let pool = self.pools.get(&file.namespace);
                match pool.map(|pool| pool.resolve(file.kind, contents.clone())) {
                    Some(commits::Resolved::Done { .. }) => self.resolved(now, file, contents, out),
                    _ => self.step_down(out),
                }
            }
            (Errand::Resolve(file) | Errand::Clash(file), Err(_)) => {
                self.timers.set(Timer::Retry(file), now.mono + std::time::Duration::from_millis(200));
            }
            (Errand::Commit(_), _) => {}
        }
    }
}

fn fail(out: &mut Outbox<Output>, op: OpId, error: Error) {
    out.put(Output::Fail { op, error });
}

/// Another manager leads, or none does yet.
pub fn not_leader() -> Error {
    Error::new("placement.not_leader", Class::Unreachable, "this manager does not lead")
        .hint("Ask the other managers; the library does so by itself.")
}

/// A namespace whose owners and lookups are answered.
fn serving<'a>(pools: &'a mut BTreeMap<String, Pool>, now: Now, namespace: &str) -> Result<&'a mut Pool, Error> {
    let pool = pools.get_mut(namespace).ok_or_else(|| no_namespace(namespace))?;
    match pool.exists()? {
        true => match pool.rests(now.mono) {
            Some(until) => Err(resting(now, until)),
            None => Ok(pool),
        },
        false => Err(no_namespace(namespace)),
    }
}

/// F10: leases must outlast a manager's death.
fn check_times(times: Times, fail_over: &FailOver, mutant: Option<Mutant>) -> Result<(), Error> {
    if mutant == Some(Mutant::TimesUnchecked) { Ok(()) } else { times.check(fail_over) }
}

/// F3: what is not known to be in the cell is not told.
fn unsettled(name: &str) -> Error {
    let what = format!("`{name}` is about to be created or deleted");
    Error::new("placement.unsettled", Class::Unreachable, what).hint("Ask again: it takes a moment.")
}

/// What is damaged is not led: nobody could say who holds what in it.
fn damaged(name: &str) -> Error {
    let what = format!("the cell's files of `{name}` cannot be understood");
    Error::new("placement.damaged", Class::Failed, what)
        .hint("`tidings place namespaces` names the file. Restore the cell from a backup; other namespaces go on.")
}

fn resting(now: Now, until: Mono) -> Error {
    let seconds = until.since(now.mono).as_secs() + 1;
    let what = format!("the cell was restored, and leases of before may still run for {seconds} s");
    Error::new("placement.restored", Class::Unreachable, what)
        .hint("Nothing needs to be done: it goes on by itself then.")
}

fn no_namespace(name: &str) -> Error {
    let name: String = name.chars().take(80).collect();
    Error::new("placement.no_namespace", Class::NotFound, format!("there is no namespace `{name}`"))
        .hint("`tidings place namespaces` lists them; `tidings place create` makes one.")
}

impl Machine for Manager {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Elected { epoch } => self.elected(now, epoch, out),
            Input::Deposed => self.stand_by(out),
            Input::Met { incarnation } => self.meet(now, era(epoch(incarnation, 0))),
            Input::SessionUntil(until) => self.session(now, until, out),
            Input::Owner { op, poll } => self.owner(now, op, *poll, out),
            Input::Lookup { op, poll } => self.lookup(now, op, poll, out),
            Input::Operate { op, request } => self.operate(now, op, request, out),
            Input::Cancel { op } => self.pools.values_mut().for_each(|pool| pool.cancel(op)),
            Input::Listed { names } => self.listed(now, names, out),
            Input::Committed { id, outcome } => {
                if let Some(Errand::Commit(file)) = self.errands.remove(&id) {
                    self.committed(now, file, outcome, out);
                }
            }
            Input::FileRead { id, contents } => self.file_read(now, id, contents, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Pool(namespace) => self.work(now, &namespace, out),
                Timer::Session => self.session(now, self.session_until, out),
                Timer::Retry(file) => {
                    let id = self.errand(Errand::Resolve(file.clone()));
                    out.put(Output::Read { id, file });
                }
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
