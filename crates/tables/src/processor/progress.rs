//! R3: what gateways are told about all their queries at once, so that a lost last frame is noticed.

use super::partition::Partition;
use super::{Output, Processor, Timer};
use crate::live::Progress;
use crate::mutant::Mutant;
use crate::names::{GatewayId, PartitionId, Position, QueryId};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now, Outbox};
use tidings_predicate::Meter;

/// What one gateway was told of a partition.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Its queries here.
    pub feeds: usize,
    /// The position of the last progress frame.
    last: Position,
    /// Queries that were sent something since, with the position of the last frame; zero for one that ended.
    sent: BTreeMap<QueryId, Position>,
    /// Installations that ended since.
    ended: BTreeMap<QueryId, u64>,
}

impl Partition {
    /// A query was sent changes. What an installation or new data lead to need not be noted: until it has come the gateway
    /// waits for it.
    pub fn note(&mut self, query: QueryId, position: Position) {
        if let Some(told) = self.gateways.get_mut(&query.gateway) {
            told.sent.insert(query, position);
        }
    }

    /// A query ended here and its gateway may not have heard it: every cursor is behind the end of time.
    pub fn note_ended(&mut self, query: QueryId, installation: u64) {
        if let Some(told) = self.gateways.get_mut(&query.gateway) {
            told.ended.insert(query, installation);
            told.sent.insert(query, Position::LAST);
        }
    }

    /// R6: looks now and then which clients were not heard of for long.
    fn look_for_gone(&mut self, now: Mono, keep: Duration) {
        if now.since(self.looked) > keep / 8 {
            self.looked = now;
            let gone = self.clients.iter().filter(|(_, client)| now.since(client.heard) > keep);
            self.gone = gone.map(|(netid, _)| *netid).collect();
        }
    }

    /// A query came, or came again: what it was sent before, and that it ended, says nothing any more.
    pub fn joined(&mut self, query: QueryId, again: bool) {
        let told = self.gateways.entry(query.gateway).or_default();
        told.feeds += usize::from(!again);
        told.sent.remove(&query);
        told.ended.remove(&query);
    }

    /// Whether this installation ended, and its gateway may not have heard it: one that comes twice must not hide that.
    pub fn has_ended(&self, query: QueryId, installation: u64) -> bool {
        let ended = self.gateways.get(&query.gateway).and_then(|told| told.ended.get(&query));
        ended.is_some_and(|ended| *ended >= installation)
    }

    /// A query went; a gateway without queries is told nothing.
    pub fn left(&mut self, query: QueryId) {
        if let Some(told) = self.gateways.get_mut(&query.gateway) {
            told.feeds = told.feeds.saturating_sub(1);
            if told.feeds == 0 && told.sent.is_empty() {
                self.gateways.remove(&query.gateway);
            }
        }
    }
}

impl Processor {
    pub(super) fn progress(&mut self, now: Now, id: PartitionId, out: &mut Outbox<Output>) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        partition.log.trim(now.mono, &self.shared.options);
        partition.look_for_gone(now.mono, self.shared.options.outcomes);
        self.shared.timers.set(Timer::Progress(id), now.mono + self.shared.options.progress);
        let silent = self.shared.is(Mutant::TailIgnored);
        let (term, position) = (partition.owned.entry.term, partition.position);
        let mut behind: BTreeMap<GatewayId, Vec<QueryId>> = BTreeMap::new();
        for query in &partition.busy {
            behind.entry(query.gateway).or_default().push(*query);
        }
        for (gateway, told) in &mut partition.gateways {
            let previous = std::mem::replace(&mut told.last, position);
            // A frame that ends where it began is not missed when it is lost: the next one says the same again.
            let sent = match previous == position {
                true => told.sent.clone(),
                false => {
                    told.ended.clear();
                    std::mem::take(&mut told.sent)
                }
            };
            let sent = sent.into_iter().filter(|_| !silent).collect();
            let behind = behind.remove(gateway).unwrap_or_default();
            let progress = Progress { partition: id, term, previous, position, sent, behind };
            out.put(Output::Progress { gateway: *gateway, progress: Box::new(progress) });
        }
        partition.gateways.retain(|_, told| told.feeds > 0);
        if partition.says_quiet(now.mono, &self.shared.options) {
            out.put(Output::Quiet { partition: id });
        }
        self.grow(now, id, out);
        // What the store did not answer is asked again.
        let busy = self.partitions.get(&id).map(|partition| partition.busy.clone()).unwrap_or_default();
        let meter = Meter::default();
        for query in busy {
            self.flow(now, id, query, &meter, out);
        }
        self.collect_on(now, id, out);
        self.tell_away(now, id, out);
    }
}
