//! How an owner takes a partition over: the fence first, so that nothing changes behind its back, then the position (R1, R2).

use super::partition::{Parents, Partition, State};
use super::tables::Table;
use super::{Output, Processor, Step, StoreReply, StoreRequest, StoreResult, Timer};
use crate::directory::Acquired;
use crate::mutant::Mutant;
use crate::names::{PartitionId, Position};
use crate::rows;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_base::{Now, Outbox};
use tidings_wire::v1;

/// What a partition's row says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meta {
    pub position: Position,
    pub records: u64,
    pub bytes: u64,
    /// Whether records and bytes were never counted.
    pub estimated: bool,
}

impl Meta {
    pub fn of(partition: &Partition) -> Meta {
        let Partition { position, records, bytes, estimated, .. } = *partition;
        Meta { position, records, bytes, estimated }
    }

    pub fn cell(&self) -> v1::Cell {
        let mut out = BytesMut::with_capacity(17);
        out.put_u64(self.records);
        out.put_u64(self.bytes);
        out.put_u8(self.estimated.into());
        rows::cell(self.position.get(), Some(out.freeze()))
    }

    fn read(reply: &StoreReply) -> Option<Meta> {
        let StoreReply::Row(Some(row)) = reply else { return None };
        let (position, value) = rows::found(row)?;
        let (mut value, position) = (&value[..], Position::from_u64(position)?);
        let (mut records, mut bytes) = (value.split_off(..8)?, value.split_off(..8)?);
        let (records, bytes) = (records.get_u64(), bytes.get_u64());
        Some(Meta { position, records, bytes, estimated: value.first() == Some(&1) })
    }
}

impl Processor {
    pub(super) fn gained(&mut self, acquired: Acquired, out: &mut Outbox<Output>) {
        let id = acquired.partition;
        self.lose(id, out);
        // What is owned here needs no copy here.
        self.unfollow(id, out);
        let options = &self.shared.options;
        self.tables.entry(id.table).or_insert_with(|| Table::new(acquired.properties.clone(), options));
        self.altered(id.table, acquired.properties.clone(), out);
        self.partitions.insert(id, Partition::new(acquired, &self.shared.options));
        self.open(id, out);
    }

    /// The first step: from now on nobody before this owner can write.
    fn open(&mut self, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.state = State::Opening(Parents::new());
        if self.shared.is(Mutant::NoFence) {
            let request = partition.get(rows::meta(id.number));
            self.shared.store(Step::Loading(id), request, out);
            return;
        }
        let request = partition.apply(Vec::new(), true);
        self.shared.store(Step::Fencing(id), request, out);
    }

    /// The store failed: the partition is opened from the beginning, or what it was asked is asked again.
    pub(super) fn retry(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get(&id) else { return };
        if !partition.is_open() {
            return self.open(id, out);
        }
        if partition.commit.as_ref().is_some_and(|commit| commit.failed) {
            self.commit_again(id, out);
        }
        self.count_on(id, out);
        self.wio_load(id, out);
        self.pump(now, id, out);
    }

    pub(super) fn opening(&mut self, now: Now, step: Step, result: StoreResult, out: &mut Outbox<Output>) {
        let Some(id) = step.partition() else { return };
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Ok(reply) = result else {
            self.shared.timers.set(Timer::Retry(id), now.mono + self.shared.options.retry);
            return;
        };
        let State::Opening(parents) = &mut partition.state else { return };
        match step {
            Step::Fencing(_) => {
                let request = partition.get(rows::meta(id.number));
                self.shared.store(Step::Loading(id), request, out);
            }
            Step::Loading(_) => match Meta::read(&reply) {
                Some(meta) => self.opens(now, id, meta, out),
                None => self.inherit(now, id, out),
            },
            Step::Sealing(_, parent) => {
                let request = partition.get(rows::meta(parent));
                self.shared.store(Step::Inheriting(id, parent), request, out);
            }
            Step::Inheriting(_, parent) => {
                parents.insert(parent, Meta::read(&reply).unwrap_or_default());
                self.inherit(now, id, out);
            }
            _ => {
                let meta = Meta::of(partition);
                self.opens(now, id, meta, out);
            }
        }
    }

    /// A partition without history of its own goes on where its parents ended: they are sealed, one after the other.
    fn inherit(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let State::Opening(known) = &partition.state else { return };
        let parents = &partition.owned.entry.parents;
        if let Some(parent) = parents.iter().find(|parent| !known.contains_key(parent)) {
            // R2: the seal and the note of it are one batch; from then on the parent has no other writes.
            let sealed = PartitionId { number: *parent, ..id };
            let cell = v1::Cell { column: rows::SEALED.into(), timestamp: 1, value: Some(Bytes::new()) };
            let rows = vec![v1::RowWrite { row: rows::meta(*parent), cells: vec![cell] }];
            let fence = (!self.shared.is(Mutant::NoFence)).then(|| rows::seal(sealed));
            let group = v1::GroupWrite { group: rows::group(id.table), rows, fence };
            let request = StoreRequest::Apply(v1::Apply { groups: vec![group] });
            let step = Step::Sealing(id, *parent);
            self.shared.store(step, request, out);
            return;
        }
        // How a parent's records are shared out is not known: two halves, until they are counted.
        let share = if parents.len() == 1 { 2 } else { 1 };
        partition.origin =
            known.iter().map(|(number, meta)| (PartitionId { number: *number, ..id }, meta.position)).collect();
        let meta = Meta {
            position: known.values().map(|meta| meta.position).max().unwrap_or_default(),
            records: known.values().map(|meta| meta.records).sum::<u64>() / share,
            bytes: known.values().map(|meta| meta.bytes).sum::<u64>() / share,
            estimated: share > 1 || known.values().any(|meta| meta.estimated),
        };
        if meta.position == Position::ZERO {
            return self.opens(now, id, Meta::default(), out);
        }
        (partition.position, partition.estimated) = (meta.position, meta.estimated);
        (partition.records, partition.bytes) = (meta.records, meta.bytes);
        // Its own children will look here.
        let row = v1::RowWrite { row: rows::meta(id.number), cells: vec![meta.cell()] };
        let request = partition.apply(vec![row], !self.shared.is(Mutant::NoFence));
        self.shared.store(Step::Founding(id), request, out);
    }

    fn opens(&mut self, now: Now, id: PartitionId, meta: Meta, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.state = State::Open;
        let again = self.shared.is(Mutant::TermIgnored);
        partition.position = if again { Position::ZERO } else { meta.position };
        (partition.records, partition.bytes) = (meta.records, meta.bytes);
        (partition.estimated, partition.looked) = (meta.estimated, now.mono);
        partition.log = super::log::Log::after(partition.position);
        partition.load.begin(now.mono);
        let (start, end) = (partition.owned.entry.start.as_ref(), partition.owned.entry.end.as_ref());
        let (start, end) = rows::outcomes(start, end);
        let request = partition.scan(start, end, self.shared.options.page);
        let waiting = std::mem::take(&mut partition.waiting);
        self.shared.store(Step::Sweeping(id), request, out);
        self.shared.timers.set(Timer::Progress(id), now.mono + self.shared.options.progress);
        self.count(id, out);
        self.tell_of_opening(id);
        self.tell_away(now, id, out);
        waiting.into_iter().for_each(|asked| self.request(now, asked, out));
    }
}
