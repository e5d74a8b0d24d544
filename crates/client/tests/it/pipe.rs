//! A carrier in memory, which can be made to take nothing.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tidings_base::Error;
use tidings_client::link::{Carrier, HIGH_WATER, Received};
use tidings_wire::{Frame, codec, error};

/// One direction of a pipe.
#[derive(Default)]
struct Lane {
    frames: VecDeque<bytes::Bytes>,
    stuck: bool,
    ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a pipe.
pub struct Pipe {
    out: Arc<Mutex<Lane>>,
    incoming: Arc<Mutex<Lane>>,
    waiting: VecDeque<bytes::Bytes>,
    bytes: usize,
}

/// Makes an end's outgoing lane take nothing, or take frames again.
#[derive(Clone)]
pub struct Tap(Arc<Mutex<Lane>>);

impl Tap {
    pub fn set_stuck(&self, stuck: bool) {
        let mut lane = self.0.lock();
        lane.stuck = stuck;
        if let Some(writer) = lane.writer.take() {
            writer.wake();
        }
    }
}

/// A pipe and the taps of its two ends.
pub fn pipe() -> ((Pipe, Tap), (Pipe, Tap)) {
    let (a, b) = (Arc::new(Mutex::new(Lane::default())), Arc::new(Mutex::new(Lane::default())));
    let end = |out: &Arc<Mutex<Lane>>, incoming: &Arc<Mutex<Lane>>| {
        let pipe = Pipe { out: out.clone(), incoming: incoming.clone(), waiting: VecDeque::new(), bytes: 0 };
        (pipe, Tap(out.clone()))
    };
    (end(&a, &b), end(&b, &a))
}

impl Carrier for Pipe {
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received> {
        let mut lane = self.incoming.lock();
        match lane.frames.pop_front() {
            Some(bytes) => Poll::Ready(match codec::decode(&bytes, max_frame) {
                Ok(frame) => Received::Frame(frame, bytes.len()),
                Err(error) => Received::Broken(error),
            }),
            None if lane.ended => Poll::Ready(Received::Ended(error::closed())),
            None => {
                lane.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn put(&mut self, frame: Frame) {
        let bytes = codec::to_bytes(&frame);
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    fn is_full(&self) -> bool {
        self.bytes > HIGH_WATER
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut lane = self.out.lock();
        if lane.stuck {
            lane.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        lane.frames.extend(self.waiting.drain(..));
        self.bytes = 0;
        if let Some(reader) = lane.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, _: &Error) -> Poll<()> {
        std::task::ready!(self.poll_flush(cx)).ok();
        Poll::Ready(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut lane = self.out.lock();
        lane.ended = true;
        if let Some(reader) = lane.reader.take() {
            reader.wake();
        }
    }
}
