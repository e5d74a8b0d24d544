//! The in-process carrier: frames are handed over in memory, to a node of the same process.
//!
//! No socket, no encoding, no encryption; the session above it is the same as on any other carrier: handshake, identity,
//! limits, credit, farewell.

use crate::link::{Carrier, HIGH_WATER, Received};
use parking_lot::Mutex;
use prost::Message;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tidings_base::Error;
use tidings_wire::{Frame, error};

/// Where an application reaches a node that runs in its own process.
pub trait Door: Send + Sync {
    /// A connection to the node, for somebody who acts in this application. It is called on a tokio runtime.
    fn knock(&self, app: Option<&str>) -> Result<LocalCarrier, Error>;
}

/// Two ends of a connection: what one sends, the other receives.
pub fn pair() -> (LocalCarrier, LocalCarrier) {
    let (one, other) = (Arc::<Mutex<Pipe>>::default(), Arc::<Mutex<Pipe>>::default());
    (LocalCarrier::new(one.clone(), other.clone()), LocalCarrier::new(other, one))
}

/// One direction.
#[derive(Default)]
struct Pipe {
    frames: VecDeque<(Frame, usize)>,
    bytes: usize,
    /// No more frames come, for this reason.
    ended: Option<Error>,
    /// Nobody reads any more.
    unread: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn end(&mut self, why: Error) {
        self.ended.get_or_insert(why);
        wake(&mut self.reader);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// One end of a connection within a process.
pub struct LocalCarrier {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    waiting: VecDeque<(Frame, usize)>,
    waiting_bytes: usize,
}

impl LocalCarrier {
    fn new(incoming: Arc<Mutex<Pipe>>, outgoing: Arc<Mutex<Pipe>>) -> LocalCarrier {
        LocalCarrier { incoming, outgoing, waiting: VecDeque::new(), waiting_bytes: 0 }
    }
}

impl fmt::Debug for LocalCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCarrier").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl Carrier for LocalCarrier {
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received> {
        let mut pipe = self.incoming.lock();
        let Some((frame, size)) = pipe.frames.pop_front() else {
            return match &pipe.ended {
                Some(why) => Poll::Ready(Received::Ended(why.clone())),
                None => {
                    pipe.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        };
        pipe.bytes -= size;
        wake(&mut pipe.writer);
        Poll::Ready(match size > max_frame as usize {
            true => Received::Broken(error::too_large("the frame", size as u64, max_frame.into())),
            false => Received::Frame(frame, size),
        })
    }

    fn put(&mut self, frame: Frame) {
        let size = frame.encoded_len();
        self.waiting_bytes += size;
        self.waiting.push_back((frame, size));
    }

    fn is_full(&self) -> bool {
        self.waiting_bytes > HIGH_WATER
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut pipe = self.outgoing.lock();
        if pipe.unread {
            return Poll::Ready(Err(error::closed()));
        }
        while pipe.bytes <= HIGH_WATER {
            let Some((frame, size)) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= size;
            pipe.bytes += size;
            pipe.frames.push_back((frame, size));
        }
        if !pipe.frames.is_empty() {
            wake(&mut pipe.reader);
        }
        if self.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, why: &Error) -> Poll<()> {
        if self.poll_flush(cx).is_pending() {
            return Poll::Pending;
        }
        self.outgoing.lock().end(why.clone());
        Poll::Ready(())
    }
}

impl Drop for LocalCarrier {
    fn drop(&mut self) {
        self.outgoing.lock().end(error::closed());
        let mut pipe = self.incoming.lock();
        pipe.unread = true;
        wake(&mut pipe.writer);
    }
}
