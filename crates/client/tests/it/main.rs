//! The client against the other end in memory, on paused time: the connection on a pipe, the cell and placement over their real
//! machines.

mod cell;
mod link;
mod pipe;
mod placement;
