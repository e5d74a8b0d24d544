//! The gRPC carrier: one bidirectional stream of frames, both ends of it.
//!
//! The framing is done here instead of by generated code: frames that are ready together go out as one piece, and
//! frames that came in one piece are decoded where they lie.

use crate::link::{Carrier, HIGH_WATER, Received};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body, Frame as BodyFrame};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tidings_base::{Class, Error};
use tidings_wire::codec::{self, Deframer};
use tidings_wire::{Frame, error};

/// Where the code and the hint of an error stand beside gRPC's own message.
const CODE: &str = "tidings-code";
const HINT: &str = "tidings-hint";

/// What is on its way from the driver's task to the task that writes to the socket.
#[derive(Debug, Default)]
struct Pipe {
    bytes: BytesMut,
    /// Set by the driver: nothing follows. On the accepting side with the status for the trailers.
    end: Option<End>,
    /// The body was dropped: nobody reads any more.
    gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug)]
enum End {
    /// The request of a connecting side just ends.
    Plain,
    /// An answer ends with trailers.
    Trailers(Box<HeaderMap>),
    /// All was said.
    Done,
}

/// The outgoing half as an HTTP body.
#[derive(Debug)]
pub struct Outgoing {
    pipe: Arc<Mutex<Pipe>>,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Bytes>, Self::Error>>> {
        let mut pipe = self.pipe.lock();
        if !pipe.bytes.is_empty() {
            let bytes = pipe.bytes.split().freeze();
            let writer = pipe.writer.take();
            drop(pipe);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(BodyFrame::data(bytes))));
        }
        match pipe.end.as_mut().map(|end| std::mem::replace(end, End::Done)) {
            Some(End::Trailers(trailers)) => Poll::Ready(Some(Ok(BodyFrame::trailers(*trailers)))),
            Some(End::Plain | End::Done) => Poll::Ready(None),
            None => {
                // The waker of one connection's task hardly ever changes.
                if !pipe.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    pipe.reader = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let mut pipe = self.pipe.lock();
        pipe.gone = true;
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
    }
}

/// The carrier over an incoming body and an [`Outgoing`] one.
#[derive(Debug)]
pub struct GrpcCarrier<B> {
    incoming: B,
    deframer: Deframer,
    /// Frames encoded since the last flush.
    waiting: BytesMut,
    pipe: Arc<Mutex<Pipe>>,
    /// Whether the end is announced by trailers.
    answers: bool,
}

/// The outgoing half of a stream that is about to be made: the body, and the place where the carrier will write.
#[derive(Debug)]
pub struct Outlet {
    pipe: Arc<Mutex<Pipe>>,
}

impl Outlet {
    /// The two ends of an outgoing half.
    pub fn new() -> (Outlet, Outgoing) {
        let pipe = Arc::new(Mutex::new(Pipe::default()));
        (Outlet { pipe: pipe.clone() }, Outgoing { pipe })
    }

    /// The carrier of the connecting side, once the answer's body is there.
    pub fn connector<B>(self, incoming: B) -> GrpcCarrier<B> {
        self.carrier(incoming, false)
    }

    /// The carrier of the accepting side, whose end is told by trailers.
    pub fn acceptor<B>(self, incoming: B) -> GrpcCarrier<B> {
        self.carrier(incoming, true)
    }

    fn carrier<B>(self, incoming: B, answers: bool) -> GrpcCarrier<B> {
        GrpcCarrier { incoming, deframer: Deframer::new(), waiting: BytesMut::new(), pipe: self.pipe, answers }
    }
}

impl<B> Carrier for GrpcCarrier<B>
where
    B: Body<Data = Bytes> + Send + Unpin,
    B::Error: std::fmt::Display,
{
    fn poll_receive(&mut self, cx: &mut Context<'_>, max_frame: u32) -> Poll<Received> {
        loop {
            match self.deframer.next(max_frame) {
                Ok(Some((frame, bytes))) => return Poll::Ready(Received::Frame(frame, bytes)),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Received::Broken(error)),
            }
            match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                None => return Poll::Ready(Received::Ended(error::closed())),
                Some(Err(error)) => return Poll::Ready(Received::Ended(broken_off(error))),
                Some(Ok(piece)) => match piece.into_data() {
                    Ok(bytes) => self.deframer.push(bytes),
                    Err(other) => {
                        let trailers = other.into_trailers().unwrap_or_default();
                        return Poll::Ready(Received::Ended(status_of(&trailers)));
                    }
                },
            }
        }
    }

    fn put(&mut self, frame: Frame) {
        codec::encode_grpc(&frame, &mut self.waiting);
    }

    fn is_full(&self) -> bool {
        self.waiting.len() > HIGH_WATER
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut pipe = self.pipe.lock();
        if pipe.gone {
            return Poll::Ready(Err(error::closed()));
        }
        if pipe.bytes.len() > HIGH_WATER {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if pipe.bytes.is_empty() {
            std::mem::swap(&mut pipe.bytes, &mut self.waiting);
        } else {
            pipe.bytes.extend_from_slice(&self.waiting);
            self.waiting.clear();
        }
        let reader = pipe.reader.take();
        drop(pipe);
        if let Some(reader) = reader {
            reader.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>, why: &Error) -> Poll<()> {
        if ready!(self.poll_flush(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut pipe = self.pipe.lock();
        if pipe.end.is_none() {
            pipe.end = Some(if self.answers { End::Trailers(Box::new(trailers(why))) } else { End::Plain });
            if let Some(reader) = pipe.reader.take() {
                reader.wake();
            }
        }
        if pipe.gone || pipe.bytes.is_empty() {
            return Poll::Ready(());
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A driver that was dropped ends the stream for the other side too.
impl<B> Drop for GrpcCarrier<B> {
    fn drop(&mut self) {
        let mut pipe = self.pipe.lock();
        if pipe.end.is_none() {
            let end = if self.answers { End::Trailers(Box::new(trailers(&error::closed()))) } else { End::Plain };
            pipe.end = Some(end);
            if let Some(reader) = pipe.reader.take() {
                reader.wake();
            }
        }
    }
}

/// The trailers that end an answer: an orderly end is no failure.
fn trailers(why: &Error) -> HeaderMap {
    let orderly = matches!(why.code.as_ref(), "control.closed" | "control.going_away");
    let status = if orderly { 0 } else { why.grpc_status() };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(u16::from(status)));
    if !orderly {
        put_error(&mut trailers, why);
    }
    trailers
}

/// Says in headers or trailers why a stream ended, whole: gRPC itself knows a status and a message.
pub fn put_error(headers: &mut HeaderMap, why: &Error) {
    for (name, text) in [("grpc-message", why.message.as_str()), (CODE, &why.code), (HINT, &why.hint)] {
        if let Ok(value) = HeaderValue::from_str(&percent_encoded(text)) {
            headers.insert(name, value);
        }
    }
}

/// A message as gRPC puts it into a header: what is not printable ASCII is percent-encoded.
pub fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match escaped.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a stream ended, as its trailers or headers say.
pub(crate) fn status_of(headers: &HeaderMap) -> Error {
    let Some(status) = tonic::Status::from_header_map(headers) else { return error::closed() };
    let message = status.message().to_owned();
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(percent_decoded);
    match status.code() {
        tonic::Code::Ok => error::closed(),
        tonic::Code::Unauthenticated
        | tonic::Code::PermissionDenied
        | tonic::Code::InvalidArgument
        | tonic::Code::FailedPrecondition
            if headers.contains_key(CODE) =>
        {
            let refused = Error::new("control.refused", Class::Refused, message);
            let code = said(CODE).map_or(refused.code.clone(), Cow::Owned);
            Error { code, ..refused }.hint(said(HINT).unwrap_or_default())
        }
        tonic::Code::Unauthenticated => {
            Error::new("control.unauthenticated", Class::Refused, message).hint("Pass a valid key or token.")
        }
        tonic::Code::PermissionDenied => Error::new("control.forbidden", Class::Refused, message),
        tonic::Code::InvalidArgument | tonic::Code::FailedPrecondition => {
            Error::new("control.refused", Class::Refused, message)
        }
        tonic::Code::Unimplemented => Error::new("control.unsupported", Class::Invalid, message)
            .hint("Whoever answers there does not speak the frame protocol; check the address."),
        code => Error::new("control.closed", Class::Unreachable, format!("the stream ended: {code:?} {message}")),
    }
}

fn broken_off(error: impl std::fmt::Display) -> Error {
    // A status says all that it knows; people want its sentence.
    let whole = error.to_string();
    let sentence = whole.split("message: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or(&whole);
    Error::new("control.closed", Class::Unreachable, format!("the connection broke off: {sentence}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_headers_whole_and_once() {
        let why = Error::new("control.forbidden", Class::Refused, "nein, n\u{f6}\n%").hint("Ask \u{201e}him\u{201c}.");
        let mut headers = trailers(&why);
        assert_eq!(status_of(&headers), why);
        // Somebody else's refusal has no code of ours.
        headers.remove(CODE);
        assert_eq!(status_of(&headers).code, "control.forbidden");
        assert_eq!(percent_decoded("a%2"), "a%2");
    }
}
