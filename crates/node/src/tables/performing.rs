//! Performs what the machines want. Nothing here waits.

use super::convert;
use super::hub::{Hub, Said};
use crate::driver::Perform;
use std::sync::Arc;
use tidings_predicate::Key;
use tidings_tables::directory::MAX_PARTITIONS;
use tidings_tables::names::PartitionId;
use tidings_tables::refusal::Refusal;
use tidings_tables::{gateway, processor};

pub(super) struct ForProcessor(pub(super) Arc<Hub>);

pub(super) struct ForGateway(pub(super) Arc<Hub>);

impl Perform<processor::Output> for ForProcessor {
    fn perform(&mut self, output: processor::Output) {
        use processor::Output;
        let hub = &self.0;
        match output {
            Output::Store { id, request } => hub.store(id, request),
            // R2: an answer leaves only if the lease has held until now; otherwise it says so.
            Output::Answer { request, guard, answer } => match hub.holds(guard) {
                true => hub.requests.answer(request, answer),
                false => {
                    hub.requests.answer(request, Err(Refusal::Moved));
                    // Nobody asks for further pieces.
                    hub.say(Said::Processor(processor::Input::Cancel { request }));
                }
            },
            Output::Frame { query, frame } => match query.gateway == hub.gateway_id {
                true => hub.say(Said::Gateway(gateway::Input::Frame { number: query.number, frame })),
                false => hub.send_news(query.gateway, convert::frame_to(query.number, *frame)),
            },
            Output::Progress { gateway, progress } => match gateway == hub.gateway_id {
                true => hub.say(Said::Gateway(gateway::Input::Progress(progress))),
                false => hub.send_news(gateway, convert::progress_to(&progress)),
            },
            Output::Publish { partition, number, publications } => hub.publish(partition, number, publications),
            Output::Grown { partition, at } => cut(hub, partition, at),
            Output::Busy { partition, at } => {
                // Halves of the same owner would be as busy; and parts that grow must be able to be cut.
                let others = hub.lookup.get().is_some_and(|lookup| lookup.directory().owner(1).is_some());
                let entry = hub.directories.find(partition.table);
                let parts = entry.map_or(usize::MAX, |entry| entry.directory.partitions.len());
                if others && parts < MAX_PARTITIONS / 2 {
                    cut(hub, partition, at);
                }
            }
            Output::Deposed { partition } => {
                hub.held.forget(partition);
                hub.changed.notify_one();
            }
        }
    }
}

/// Cuts a partition; if it cannot be cut now, it is as it was.
fn cut(hub: &Arc<Hub>, partition: PartitionId, at: Key) {
    let cutting = hub.clone();
    hub.spawn(async move {
        let Some(entry) = cutting.directories.find(partition.table) else { return };
        if let Err(error) = cutting.split(&entry.name, partition, &at).await {
            tracing::warn!(%error, %partition, "tables: a large or busy partition was not cut");
        }
    });
}

impl Perform<gateway::Output> for ForGateway {
    fn perform(&mut self, output: gateway::Output) {
        use gateway::Output;
        let hub = &self.0;
        match output {
            Output::Event { number, event } => hub.watchers.tell(number, Ok(event)),
            Output::Ended { number, refusal } => hub.watchers.tell(number, Err(refusal)),
            Output::Install(install) => {
                let partition = install.partition;
                hub.send_ask(partition, processor::Input::Install(install));
            }
            Output::Update { partition, query, reader } => {
                hub.send_ask(partition, processor::Input::Update { query, partition, reader });
            }
            Output::Remove { partition, query, over, netid } => {
                hub.send_ask(partition, processor::Input::Remove { query, partition, over, netid });
            }
            Output::Taken { partition, query, frames } => {
                hub.send_ask(partition, processor::Input::Taken { query, partition, frames });
            }
        }
    }
}
