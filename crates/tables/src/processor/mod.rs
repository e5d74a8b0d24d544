//! The processor: owns partitions, decides writes, answers reads, feeds live queries (§2, §4.2, §5).
//!
//! ```text
//!   Gained ─▶ opening: fence ─▶ position (or parents: seal ─▶ position) ─▶ open
//!   Write ─▶ queue ─▶ rows it needs ─▶ decided in order ─▶ one commit at a time ─▶ log ─▶ answer, index ─▶ frames
//!   Read ─▶ scan in pages, both predicates ─▶ pages       Install ─▶ snapshot, or the log since the cursor ─▶ frames
//!   Follow ─▶ everything from its owner, in order ─▶ a copy in memory: reads at or above their floor
//! ```
//! A partition has one commit under way; what the store says late or not at all is asked again, with the same bytes. All
//! that is remembered may be forgotten: outcomes, positions and records are in the store.

mod away;
mod cache;
mod collecting;
mod copied;
mod counting;
mod deciding;
mod following;
mod load;
mod log;
mod opening;
mod options;
mod partition;
mod progress;
mod reading;
mod sending;
mod tables;
mod watching;
mod writing;

pub use options::Options;

use crate::calls::{Answer, Call, Caller};
use crate::directory::{self, Acquired, Opened, Properties};
use crate::live::{Frame, Install, Progress, Reader};
use crate::mutant::{self, Mutant};
use crate::names::{GatewayId, NetId, Object, PartitionId, Position, QueryId, RequestId, TableId};
use crate::refusal::Refusal;
use bytes::Bytes;
use following::Copy;
use partition::Partition;
use reading::Reading;
use std::collections::BTreeMap;
use tables::{Table, Writers};
use tidings_base::{Error, LeaseNumber, Machine, Mono, Now, Outbox, Timers};
use tidings_predicate::Key;
use tidings_wire::v1;

/// What a driver brings to a processor.
#[derive(Debug)]
pub enum Input {
    /// A partition was leased to this processor, and acquired in the directory.
    Gained(Box<Acquired>),
    /// The table has other properties.
    Altered {
        /// The table.
        table: TableId,
        /// What it is now.
        properties: Box<Properties>,
    },
    /// The partition is not this processor's any more, or was cut or dropped.
    Lost {
        /// The partition.
        partition: PartitionId,
    },
    /// R1: reads of a partition that somebody else owns are to be answered here, too, from a copy. Said again whenever the
    /// directory has changed.
    Follow {
        /// The partition.
        partition: PartitionId,
        /// The copy's name: [`QueryId::of_copy`], never used again.
        query: QueryId,
        /// The partition as the directory has it.
        entry: Box<directory::Partition>,
        /// What the table is.
        properties: Box<Properties>,
    },
    /// The copy is not wanted any more, or its partition was cut or dropped.
    Unfollow {
        /// The partition.
        partition: PartitionId,
    },
    /// The owner of a partition tells a copy here what has changed.
    CopyHears {
        /// The copy's name.
        query: QueryId,
        /// What is said.
        frame: Box<Frame>,
    },
    /// The owner of a partition says how far its queries are, copies here among them.
    CopyProgresses(Box<Progress>),
    /// Somebody asks something.
    Request {
        /// Names the answer.
        request: RequestId,
        /// The partition, as the directory says.
        partition: PartitionId,
        /// Who asks.
        caller: Box<Caller>,
        /// What.
        call: Call,
    },
    /// The next piece of a read's answer is wanted.
    Pull {
        /// The request.
        request: RequestId,
    },
    /// Nobody waits for the rest of an answer.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// A gateway asks for changes.
    Install(Box<Install>),
    /// R4 `update_data`: a query's reader has other data, or other claims.
    Update {
        /// The query.
        query: QueryId,
        /// The partition that is to switch.
        partition: PartitionId,
        /// The reader at its next epoch.
        reader: Box<Reader>,
    },
    /// A query's client has gone. If Notify is to tell it (R3), the query stays without it.
    Remove {
        /// The query.
        query: QueryId,
        /// The partition.
        partition: PartitionId,
        /// The query was refused, or has ended: it does not stay.
        over: bool,
        /// The device that Notify is to tell, though the query may never have come here: its gateway hears that it was heard.
        netid: Option<NetId>,
    },
    /// The gateway has handed on so many frames of a query: there is room for as many.
    Taken {
        /// The query.
        query: QueryId,
        /// The partition.
        partition: PartitionId,
        /// How many.
        frames: u32,
    },
    /// A gateway is gone, with all its queries.
    GatewayGone(GatewayId),
    /// The table's list of access is another one: clients that are away come again to be judged by it.
    Relisted(TableId),
    /// Notify was told, or was not.
    Published {
        /// The partition.
        partition: PartitionId,
        /// Which publications.
        number: u64,
        /// Whether Notify has them; otherwise they are published again.
        done: bool,
    },
    /// The store answered.
    Stored {
        /// Which request.
        id: StoreId,
        /// What it said.
        result: StoreResult,
    },
}

/// What a driver performs for a processor.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Ask the store. Answered exactly once, by [`Input::Stored`], with an error after a time-out.
    Store {
        /// Names the answer.
        id: StoreId,
        /// What is asked.
        request: StoreRequest,
    },
    /// Answer a request. Every request gets one, or pieces up to the last.
    Answer {
        /// The request.
        request: RequestId,
        /// R2: the answer may leave only if this lease held without a break; otherwise it is [`Refusal::Moved`].
        guard: Option<Guard>,
        /// The answer.
        answer: Result<Answer, Refusal>,
    },
    /// Tell a gateway of changes.
    Frame {
        /// The query.
        query: QueryId,
        /// What is said.
        frame: Box<Frame>,
    },
    /// Tell a gateway how far its queries are.
    Progress {
        /// The gateway.
        gateway: GatewayId,
        /// What is said.
        progress: Box<Progress>,
    },
    /// A copy asks: bring this to the owner of its partition. If that fails, nothing need be done: it is repeated.
    Install(Box<Install>),
    /// Bring this to the owner of the partition: its copy here has taken frames.
    Taken {
        /// The partition.
        partition: PartitionId,
        /// The copy.
        query: QueryId,
        /// How many frames.
        frames: u32,
    },
    /// Bring this to the owner of the partition: there is no copy here any more.
    Remove {
        /// The partition.
        partition: PartitionId,
        /// The copy.
        query: QueryId,
    },
    /// The partition cannot be copied here: it is too large, or this processor's own. The processor has forgotten the copy.
    Unfollowed {
        /// The partition.
        partition: PartitionId,
    },
    /// R3: publish through Notify, in the table's application. Answered exactly once, by [`Input::Published`].
    Publish {
        /// The partition, whose lease must hold.
        partition: PartitionId,
        /// Names the answer.
        number: u64,
        /// What, each with its version: the position of the last commit that changed something for whoever is told.
        publications: Vec<(Object, Position)>,
    },
    /// The partition has grown: it would be well to cut it here. It is said again while it is so.
    Grown {
        /// The partition.
        partition: PartitionId,
        /// A key that parts it about in half.
        at: Key,
    },
    /// The partition has been busy for long: it would be well to cut it here if there are others who could own a part.
    Busy {
        /// The partition.
        partition: PartitionId,
        /// A key that parts what is asked for about in half.
        at: Key,
    },
    /// The partition has been quiet for long: it would be well to join it with the one behind it, if they were cut apart by
    /// themselves and that one is quiet, too. It is said again while it holds.
    Quiet {
        /// The partition.
        partition: PartitionId,
    },
    /// The store has seen a higher fence: somebody else owns the partition. The processor has forgotten it.
    Deposed {
        /// The partition.
        partition: PartitionId,
    },
}

/// A lease that must have held without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// What was leased.
    pub partition: PartitionId,
    /// Under which number.
    pub lease: LeaseNumber,
}

/// Names one request to the store until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u64);

/// What a processor wants of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreRequest {
    /// A batch of one group under a fence. A failure of the group `store.fenced` is reported as that error.
    Apply(v1::Apply),
    /// One row.
    Get(v1::Get),
    /// Rows in order.
    Scan(v1::Scan),
}

/// What the store says.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreReply {
    /// It is stable.
    Applied,
    /// The row's live cells.
    Row(Option<v1::Row>),
    /// The rows, and where to go on.
    Rows(v1::Rows),
}

/// The store's answer; after an error a batch may or may not have happened, unless its code is `store.fenced`.
pub type StoreResult = Result<StoreReply, Error>;

/// What a request to the store was for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The fence is raised: nobody before this owner can write any more.
    Fencing(PartitionId),
    /// The partition's position is read.
    Loading(PartitionId),
    /// A parent is sealed.
    Sealing(PartitionId, u32),
    /// A parent's last position is read.
    Inheriting(PartitionId, u32),
    /// The first row of a child is written.
    Founding(PartitionId),
    /// A row that writes need is read.
    Row(PartitionId, Bytes),
    /// The commit that ends at this position is written.
    Committing(PartitionId, Position),
    /// Outcomes that nobody may remember are looked for.
    Sweeping(PartitionId),
    /// Records are counted.
    Counting(PartitionId),
    /// Old marks of deletions are looked for.
    Collecting(PartitionId),
    /// Clients that are gone are looked for.
    Looking(PartitionId),
    /// A page of a read.
    Reading(RequestId),
    /// A page of a live query's snapshot or difference.
    Catching(PartitionId, QueryId),
    /// Nobody waits for it.
    Aside(PartitionId),
}

impl Step {
    fn partition(&self) -> Option<PartitionId> {
        match self {
            Step::Fencing(id) | Step::Loading(id) | Step::Founding(id) | Step::Committing(id, _) => Some(*id),
            Step::Sealing(id, _) | Step::Inheriting(id, _) | Step::Row(id, _) => Some(*id),
            Step::Sweeping(id) | Step::Counting(id) | Step::Collecting(id) | Step::Looking(id) => Some(*id),
            Step::Aside(id) => Some(*id),
            Step::Catching(id, _) => Some(*id),
            Step::Reading(_) => None,
        }
    }
}

/// What a processor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The store failed and is asked again: to open the partition, or to commit.
    Retry(PartitionId),
    /// R3: gateways are told how far their queries are; the log is trimmed; old marks go.
    Progress(PartitionId),
    /// Operations and reads have waited long enough for operations they follow.
    Waited(PartitionId),
    /// Writes are decided that there was no time for.
    Deciding(PartitionId),
    /// Queries that are read again are told so.
    Dirty(PartitionId),
    /// Queries are sent what there was no time for.
    Late(PartitionId),
    /// Owners that say nothing to copies are asked again.
    Silence,
    /// A read at a copy goes on.
    Copied(RequestId),
}

/// What all partitions use.
#[derive(Debug)]
struct Shared {
    options: Options,
    /// Writers' predicates that were compiled.
    writers: Writers,
    steps: BTreeMap<StoreId, Step>,
    next: u64,
    timers: Timers<Timer>,
}

impl Shared {
    fn store(&mut self, step: Step, request: StoreRequest, out: &mut Outbox<Output>) -> StoreId {
        self.next += 1;
        let id = StoreId(self.next);
        self.steps.insert(id, step);
        out.put(Output::Store { id, request });
        id
    }

    fn is(&self, mutant: Mutant) -> bool {
        mutant::is(self.options.mutant, mutant)
    }

    /// R2: what an answer that stands on ownership is held against.
    fn guard(&self, partition: &Partition) -> Option<Guard> {
        (!self.is(Mutant::LeaseIgnored)).then(|| partition.guard())
    }
}

fn answer(request: RequestId, answer: Result<Answer, Refusal>, out: &mut Outbox<Output>) {
    out.put(Output::Answer { request, guard: None, answer });
}

/// Owns any number of partitions of any number of tables.
#[derive(Debug)]
pub struct Processor {
    shared: Shared,
    tables: BTreeMap<TableId, Table>,
    partitions: BTreeMap<PartitionId, Partition>,
    /// R1: copies of partitions that others own.
    copies: BTreeMap<PartitionId, Copy>,
    reads: BTreeMap<RequestId, Reading>,
}

impl Processor {
    /// A processor that owns nothing.
    pub fn new(options: Options) -> Processor {
        let writers = Writers::new(&options.functions);
        let shared = Shared { options, writers, steps: BTreeMap::new(), next: 0, timers: Timers::new() };
        let (tables, partitions, copies) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Processor { shared, tables, partitions, copies, reads: BTreeMap::new() }
    }

    /// Says that this owner has opened a partition, if it has: then it may be split, or merged with another.
    pub fn opened(&self, id: PartitionId) -> Option<Opened> {
        let partition = self.partitions.get(&id).filter(|partition| partition.is_open())?;
        let Acquired { entry, lease, .. } = &partition.owned;
        Some(Opened { number: id.number, lease: *lease, term: entry.term })
    }

    /// R1: gives a partition up, so that it can be cut, or joined whoever owns the other: what it was opened under, if it is
    /// open. From now on nothing is answered for it, whatever lease goes on: placement does not know that it has ended.
    pub fn cede(&mut self, id: PartitionId, out: &mut Outbox<Output>) -> Option<Opened> {
        let opened = self.opened(id)?;
        if !self.shared.is(Mutant::CededServing) {
            self.lose(id, out);
        }
        Some(opened)
    }

    /// R3: whether everybody who listens to a partition, or to its parents, knows that it is in these hands. Its own children would
    /// not tell those who listen to its parents.
    pub fn has_told_of_opening(&self, id: PartitionId) -> bool {
        self.partitions.get(&id).is_some_and(|partition| partition.away.has_told_all())
    }

    /// The partitions that are here, with the lease each was acquired under.
    pub fn partitions(&self) -> impl Iterator<Item = Guard> {
        self.partitions.values().map(Partition::guard)
    }

    fn request(&mut self, now: Now, ask: Asked, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&ask.partition) else {
            return self.ask_copy(now, ask, out);
        };
        if !partition.is_open() {
            if partition.waiting.len() >= self.shared.options.queue {
                return answer(ask.request, Err(Refusal::Busy), out);
            }
            return partition.waiting.push(ask);
        }
        let access = self.tables.get(&ask.partition.table).map(|table| table.properties.access);
        if access.is_none_or(|access| ask.caller.access < access) {
            return answer(ask.request, Err(Refusal::Access), out);
        }
        let key = match &ask.call {
            Call::Write(write) => Some(&write.key),
            Call::Read(read) => read.span.only(),
            Call::Stat => None,
        };
        partition.counts.count(&ask.call);
        if let Some(at) = partition.load.count(now.mono, key, self.shared.options.busy) {
            out.put(Output::Busy { partition: ask.partition, at });
        }
        match ask.call {
            Call::Write(write) => self.write(now, ask.request, ask.partition, ask.caller, write, out),
            Call::Read(read) => self.read(now, ask.request, ask.partition, ask.caller, read, out),
            Call::Stat => {
                let stat = partition.stat(now.mono, &self.shared.options);
                answer(ask.request, Ok(Answer::Stat(stat)), out);
            }
        }
    }

    /// Forgets a partition; whoever waits is told to look again.
    fn lose(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(mut partition) = self.partitions.remove(&id) else { return };
        self.shared.steps.retain(|_, step| step.partition() != Some(id));
        let timers = [Timer::Retry, Timer::Progress, Timer::Waited, Timer::Deciding, Timer::Dirty, Timer::Late];
        for timer in timers.map(|timer| timer(id)) {
            self.shared.timers.cancel(&timer);
        }
        partition.requests().into_iter().for_each(|request| answer(request, Err(Refusal::Moved), out));
        let reads = self.reads.iter().filter(|(_, read)| read.partition == id).map(|(request, _)| *request);
        for request in reads.collect::<Vec<_>>() {
            self.reads.remove(&request);
            answer(request, Err(Refusal::Moved), out);
        }
        if let Some(table) = self.tables.get_mut(&id.table) {
            let feeds = std::mem::take(&mut partition.feeds);
            for query in feeds.into_keys().chain(partition.away.queries()) {
                table.leave(query, id);
            }
        }
        self.forget_table(id.table);
    }

    /// A table of which nothing is here any more is forgotten.
    fn forget_table(&mut self, table: TableId) {
        if !self.partitions.keys().chain(self.copies.keys()).any(|other| other.table == table) {
            self.tables.remove(&table);
        }
    }

    /// The store has seen a higher fence.
    fn deposed(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        self.lose(id, out);
        out.put(Output::Deposed { partition: id });
    }

    fn stored(&mut self, now: Now, id: StoreId, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(step) = self.shared.steps.remove(&id) else { return };
        let fenced = matches!(&result, Err(error) if error.code == "store.fenced");
        if let (true, Some(partition)) = (fenced, step.partition()) {
            return self.deposed(partition, out);
        }
        match step {
            Step::Row(partition, row) => self.loaded(now, partition, row, result, out),
            Step::Committing(partition, position) => self.committed(now, partition, position, result, out),
            Step::Reading(request) => self.page(now, request, result, out),
            Step::Catching(partition, query) => self.caught(now, partition, query, (id, result), out),
            Step::Sweeping(partition) => self.swept(now, partition, result, out),
            Step::Counting(partition) => self.counted(now, partition, result, out),
            Step::Collecting(partition) => self.collected(now, partition, result),
            Step::Looking(partition) => self.looked(now, partition, result),
            Step::Aside(_) => {}
            opening => self.opening(now, opening, result, out),
        }
    }
}

/// A request that is looked at, or that waits for its partition to open.
#[derive(Debug)]
struct Asked {
    request: RequestId,
    partition: PartitionId,
    caller: Box<Caller>,
    call: Call,
}

impl Machine for Processor {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Gained(acquired) => self.gained(*acquired, out),
            Input::Altered { table, properties } => self.altered(table, *properties, out),
            Input::Lost { partition } => self.lose(partition, out),
            Input::Request { request, partition, caller, call } => {
                self.request(now, Asked { request, partition, caller, call }, out);
            }
            Input::Follow { partition, query, entry, properties } => {
                self.follow(now, partition, query, *entry, *properties, out);
            }
            Input::Unfollow { partition } => self.unfollow(partition, out),
            Input::CopyHears { query, frame } => self.copy_hears(now, query, *frame, out),
            Input::CopyProgresses(progress) => self.copy_progresses(now, &progress, out),
            Input::Pull { request } => self.pull(now, request, out),
            Input::Cancel { request } => self.cancel(request),
            Input::Install(install) => self.install(now, *install, out),
            Input::Update { query, partition, reader } => self.update(now, query, partition, *reader, out),
            Input::Remove { query, partition, over, netid } => self.removed(now, query, partition, over, netid, out),
            Input::Taken { query, partition, frames } => self.taken(now, query, partition, frames, out),
            Input::GatewayGone(gateway) => self.gateway_gone(now, gateway),
            Input::Relisted(table) => self.relisted(table),
            Input::Published { partition, number, done } => self.published(partition, number, done, out),
            Input::Stored { id, result } => self.stored(now, id, result, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        // What is to go on at once goes on with the next wake: others have their turn in between.
        let due = std::iter::from_fn(|| self.shared.timers.pop_due(now.mono)).collect::<Vec<_>>();
        for timer in due {
            match timer {
                Timer::Retry(partition) => self.retry(now, partition, out),
                Timer::Progress(partition) => self.progress(now, partition, out),
                Timer::Waited(partition) => self.waited(now, partition, out),
                Timer::Deciding(partition) => self.pump(now, partition, out),
                Timer::Dirty(partition) => self.tell_dirty(partition, out),
                Timer::Late(partition) => self.flow_late(now, partition, out),
                Timer::Silence => self.silence(now, out),
                Timer::Copied(request) => self.copied(now, request, out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.shared.timers.deadline()
    }
}
