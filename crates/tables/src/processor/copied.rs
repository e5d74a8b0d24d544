//! R1, R5: reads at a copy, from memory: as new as the reader has seen, or refused, so that the owner is asked.

use super::following::size;
use super::{Asked, Output, Processor, Timer, answer};
use crate::calls::{Call, Caller, Level, Read};
use crate::mutant::Mutant;
use crate::names::{PartitionId, Position, RequestId};
use crate::refusal::Refusal;
use std::ops::Bound;
use tidings_base::{Now, Outbox};
use tidings_predicate::Meter;

/// Records that are looked at in one go, and their bytes, so that others have their turn.
const AT_ONCE: usize = 4_096;
const BYTES_AT_ONCE: usize = 1 << 20;

impl Processor {
    /// Somebody asks something of a copy.
    pub(super) fn ask_copy(&mut self, now: Now, ask: Asked, out: &mut Outbox<Output>) {
        let Asked { request, partition, caller, call } = ask;
        if !self.copies.contains_key(&partition) {
            return answer(request, Err(Refusal::Moved), out);
        }
        let access = self.tables.get(&partition.table).map(|table| table.properties.access);
        if access.is_none_or(|access| caller.access < access) {
            return answer(request, Err(Refusal::Access), out);
        }
        let read = match call {
            Call::Read(read) => read,
            // Whoever owns it decides, and knows how large it is.
            Call::Write(_) | Call::Stat => return answer(request, Err(Refusal::Moved), out),
        };
        match self.begin_at_copy(now, request, partition, caller, read) {
            Ok(()) => self.copied(now, request, out),
            Err(refusal) => answer(request, Err(refusal), out),
        }
    }

    fn begin_at_copy(
        &mut self,
        now: Now,
        request: RequestId,
        id: PartitionId,
        caller: Box<Caller>,
        read: Box<Read>,
    ) -> Result<(), Refusal> {
        let copy = self.copies.get(&id).ok_or(Refusal::Moved)?;
        let here = match &read.level {
            Level::Uncommitted | Level::Committed => true,
            // What the client has finished its floor covers.
            Level::CommittedWio { pending, .. } => !pending.iter().any(|(key, _)| copy.entry.contains(key)),
            Level::Latest => false,
        };
        if !here && !self.shared.is(Mutant::CopyOwns) {
            return Err(Refusal::Moved);
        }
        // R5: whoever does not say what it has seen may have seen anything.
        if read.floor == Position::ZERO {
            return Err(Refusal::Moved);
        }
        let position = self.readable(now, id).ok_or(Refusal::Behind)?;
        let mut reading = self.reading(now, id, (&copy.entry, position), caller, read)?;
        reading.pending.clear();
        self.reads.insert(request, reading);
        Ok(())
    }

    fn readable(&self, now: Now, id: PartitionId) -> Option<Position> {
        let copy = self.copies.get(&id)?;
        match self.shared.is(Mutant::CopyOutdated) {
            true => copy.position,
            false => copy.readable(now, self.shared.options.copy_patience),
        }
    }

    /// Goes over the rows of a copy, until there is a piece to send.
    pub(super) fn copied(&mut self, now: Now, request: RequestId, out: &mut Outbox<Output>) {
        let Some(id) = self.reads.get(&request).map(|reading| reading.partition) else { return };
        let Some(position) = self.readable(now, id) else {
            self.reads.remove(&request);
            return answer(request, Err(Refusal::Behind), out);
        };
        let (Some(copy), Some(reading)) = (self.copies.get(&id), self.reads.get_mut(&request)) else { return };
        // R5: what is missing from this piece is missing as of now: a copy that is behind would show it again.
        reading.position = reading.position.max(position);
        let shows_all = self.shared.is(Mutant::CopyShowsAll);
        let (most, steps, meter) = (self.shared.options.page_bytes, self.shared.options.steps, Meter::default());
        let Some(next) = reading.next.take() else { return self.piece(now, request, true, out) };
        let (mut seen, range) = (0, (Bound::Included(next), Bound::Excluded(reading.end.clone())));
        for (at, (row, (key, record))) in copy.rows.range(range).enumerate() {
            if reading.is_satisfied() {
                break;
            }
            if at >= AT_ONCE || seen >= BYTES_AT_ONCE || reading.size >= most || meter.steps() >= steps {
                reading.next = Some(row.clone());
                break;
            }
            seen += size(row, record);
            let taken = match shows_all {
                true => reading.add(key, record, &meter),
                false => reading.consider(&mut self.shared.writers, now, key, record, &meter),
            };
            if let Err(refusal) = taken {
                self.reads.remove(&request);
                return answer(request, Err(refusal), out);
            }
        }
        match reading.next.is_some() && reading.size < most {
            true => self.shared.timers.set(Timer::Copied(request), now.mono),
            false => {
                let last = reading.next.is_none();
                self.piece(now, request, last, out);
            }
        }
    }
}
