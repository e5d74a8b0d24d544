//! Parts of the simulator, each by itself. They are here so that the crate, which is optimised, is compiled once.

mod batches_are_seen_whole;
mod clock;
mod feed_delivers_every_entry;
mod fences_never_go_back;
mod gaps;
mod history;
mod list;
mod log_claims;
mod message;
mod network;
mod reads_are_linearizable;
mod refused_writes_leave_no_trace;
mod report;
mod trace;
