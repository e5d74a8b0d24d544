//! What a processor may use, and how it paces itself.

use super::collecting::LOOKS;
use crate::mutant::Mutant;
use crate::properties::Properties;
use std::time::Duration;
use tidings_predicate::{Functions, STEPS};

/// What a processor may use, and how it paces itself.
#[derive(Clone, Debug)]
pub struct Options {
    /// Writes that may wait in one partition.
    pub queue: usize,
    /// Operations of one commit.
    pub batch: usize,
    /// Bytes of one commit, apart from its last operation: a commit of one more record still fits the agreed log.
    pub batch_bytes: usize,
    /// Rows of the store that are remembered of one partition.
    pub rows: usize,
    /// Bytes of rows that are remembered of one partition.
    pub row_bytes: usize,
    /// Rows that one scan of the store asks for; 0 = as many as fit a frame, whatever their size.
    pub page: u32,
    /// Bytes of records in one piece of an answer or snapshot.
    pub page_bytes: usize,
    /// Steps of evaluations that a read, a live query's snapshot or the writes of a commit take in one go, apart from the last
    /// record: then others have their turn.
    pub steps: u64,
    /// Reads that may be under way.
    pub reads: usize,
    /// R4: changes that a partition's log keeps.
    pub log_changes: usize,
    /// R4: bytes of changes that a partition's log keeps.
    pub log_bytes: usize,
    /// R4: how long a partition's log keeps changes.
    pub log_time: Duration,
    /// Changes that may wait for one query in one partition; beyond it the query ends.
    pub undelivered: usize,
    /// R3: how often progress is told.
    pub progress: Duration,
    /// How long changes of a query that is read again are gathered.
    pub coalesce: Duration,
    /// How long operations that name no deadline wait for those they follow.
    pub patience: Duration,
    /// R6: how long outcomes are kept of a client that is not heard of any more.
    pub outcomes: Duration,
    /// R6: how long it is remembered what a client has acknowledged that is not heard of any more. A copy of an operation that
    /// comes later than that would be new.
    pub watermarks: Duration,
    /// R3: how long it is known what concerns a client that is away; after it the client is told of one change more.
    pub away: Duration,
    /// R3: queries of clients that are away in one partition; the one that left first makes room, as if its time were over.
    pub endpoints: usize,
    /// R1: bytes of all copies of partitions that others own; one that does not fit is given up.
    pub copy_bytes: usize,
    /// R1: how long an owner may say nothing before its copies are not read any more, and ask again.
    pub copy_patience: Duration,
    /// Whether marks of deletions are looked for and taken away though nobody reads or writes.
    pub collects: bool,
    /// The pause before the store is asked again after it failed.
    pub retry: Duration,
    /// Bytes from which on a partition should be cut.
    pub grown: u64,
    /// Requests a second from which on it should be cut if others could own a part of it.
    pub busy: u64,
    /// How long a partition is quiet before it is joined with a neighbour that is, too: far longer than what makes one busy.
    pub quiet: Duration,
    /// What the index of live queries may hold, per table.
    pub index: tidings_predicate::index::Limits,
    /// A secret of this server: nobody can choose values that collide in the index.
    pub seed: u64,
    /// The functions that queries may call.
    pub functions: Functions,
    /// For tests alone: a rule that is left out.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

impl Options {
    /// How long a mark of a deletion is kept: as long as its table says, and as the log may lead past it.
    pub(super) fn marks(&self, properties: &Properties) -> Duration {
        properties.tombstones().max(self.log_time)
    }

    /// How often a watermark is renewed: a client of which nothing was heard for a while may be gone.
    pub(super) fn a_while(&self) -> Duration {
        self.watermarks / LOOKS
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queue: 4_096,
            batch: 256,
            batch_bytes: 512 << 10,
            rows: 65_536,
            row_bytes: 64 << 20,
            page: 0,
            page_bytes: 256 << 10,
            // As many as one evaluation may take: some ten milliseconds.
            steps: STEPS.into(),
            reads: 1_024,
            log_changes: 16_384,
            log_bytes: 64 << 20,
            log_time: Duration::from_secs(600),
            undelivered: 4_096,
            progress: Duration::from_secs(1),
            coalesce: Duration::from_millis(100),
            patience: Duration::from_secs(10),
            // A device that was away for a day still learns what became of what it sent.
            outcomes: Duration::from_secs(24 * 3600),
            // Far beyond what any client repeats, and anything between it and us holds back.
            watermarks: Duration::from_secs(30 * 24 * 3600),
            // As long as Notify keeps a client that is away.
            away: Duration::from_secs(7 * 24 * 3600),
            endpoints: 65_536,
            copy_bytes: 64 << 20,
            // Three progress frames were lost, or their sender.
            copy_patience: Duration::from_secs(4),
            collects: true,
            retry: Duration::from_millis(50),
            grown: 1 << 30,
            busy: 5_000,
            quiet: Duration::from_secs(600),
            index: tidings_predicate::index::Limits::default(),
            seed: 0,
            functions: Functions::default(),
            mutant: None,
        }
    }
}
