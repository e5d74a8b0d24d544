//! The driver of a connection, both ends of it on a pipe in memory and on paused time.

mod link;
mod pipe;
