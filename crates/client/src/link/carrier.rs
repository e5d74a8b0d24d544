//! What carries frames.

use std::task::{Context, Poll};
use tidings_base::Error;
use tidings_wire::Frame;

/// With more than this waiting to go out a carrier counts as full: enough to keep a fast line busy between two turns
/// of the driver, small enough that a stuck reader costs little.
pub const HIGH_WATER: usize = 256 << 10;

/// What came in.
#[derive(Debug)]
// A frame is moved once, from the carrier to the session: a box would only cost.
#[allow(clippy::large_enum_variant)]
pub enum Received {
    /// A frame, of so many bytes.
    Frame(Frame, usize),
    /// Something that is no frame; the other side is told before the connection ends.
    Broken(Error),
    /// The end, for this reason; nobody can be told any more.
    Ended(Error),
}

/// A two-way stream of frames. It keeps their order and loses none until it ends.
pub trait Carrier: Send + Unpin {
    /// The next thing to come in. A frame larger than `max_frame` is [`Received::Broken`], and is not held.
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received>;

    /// Puts a frame behind those that wait to go out.
    fn put(&mut self, frame: Frame);

    /// Whether so much waits to go out that the driver should stop making more.
    fn is_full(&self) -> bool;

    /// Sends what waits, as far as it goes. Ready when nothing waits here any more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;

    /// Ends the stream after everything was sent. Ready when nothing more need be done.
    fn poll_close(&mut self, cx: &mut Context<'_>, why: &Error) -> Poll<()>;
}
