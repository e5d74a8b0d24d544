//! Performs what the machines want. Nothing here waits.

use super::convert;
use super::cutting::Why;
use super::hub::{Hub, Said};
use crate::driver::Perform;
use std::sync::Arc;
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
                false => hub.send_news(query.gateway, convert::frame_to(query, *frame)),
            },
            Output::Progress { gateway, progress } => match gateway == hub.gateway_id {
                true => hub.say(Said::Gateway(gateway::Input::Progress(progress))),
                false => hub.send_news(gateway, convert::progress_to(&progress)),
            },
            Output::Publish { partition, number, publications } => hub.publish(partition, number, publications),
            Output::Grown { partition, at } => hub.cut_by_itself(partition, at, Why::Grown),
            Output::Busy { partition, at } => hub.cut_by_itself(partition, at, Why::Busy),
            Output::Quiet { partition } => hub.join_by_itself(partition),
            Output::Install(install) => hub.send_ask(install.partition, processor::Input::Install(install)),
            Output::Taken { partition, query, frames } => {
                hub.send_ask(partition, processor::Input::Taken { query, partition, frames });
            }
            Output::Remove { partition, query } => {
                let (over, netid) = (true, None);
                hub.send_ask(partition, processor::Input::Remove { query, partition, over, netid });
            }
            Output::Unfollowed { partition } => {
                tracing::info!(%partition, "tables: a hot partition does not fit what is kept for copies");
                hub.copies.refuse(partition, hub.clock.now().mono);
                // A word to follow it may be waiting already.
                hub.say(Said::Processor(processor::Input::Unfollow { partition }));
            }
            Output::Deposed { partition } => {
                hub.held.forget(partition);
                hub.changed.notify_one();
            }
        }
    }
}

impl Perform<gateway::Output> for ForGateway {
    fn perform(&mut self, output: gateway::Output) {
        use gateway::Output;
        let hub = &self.0;
        match output {
            Output::Event { number, event } => {
                if !hub.watchers.tell(number, Ok(event)) {
                    hub.say(Said::Gateway(gateway::Input::Unwatch { number }));
                }
            }
            Output::Ended { number, refusal } => {
                hub.watchers.tell(number, Err(refusal));
            }
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
