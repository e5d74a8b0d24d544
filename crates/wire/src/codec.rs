//! The binary form: decode and encode under limits. The decoder survives any bytes.

use crate::{error, limits, v1::Frame};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tidings_base::Error;

/// Decodes one frame. Unknown fields are ignored; an unknown body leaves `body` empty.
///
/// Small frames are copied, so that what is kept of them does not keep the read buffer alive; large ones share it.
pub fn decode(bytes: &Bytes, max_frame: u32) -> Result<Frame, Error> {
    check_size(bytes.len(), max_frame)?;
    let decoded =
        if bytes.len() < limits::COPIED_BELOW { Frame::decode(&bytes[..]) } else { Frame::decode(bytes.clone()) };
    decoded.map_err(error::malformed)
}

/// Encodes one frame at the end of `buffer`.
pub fn encode(frame: &Frame, buffer: &mut BytesMut) {
    let len = frame.encoded_len();
    buffer.reserve(len);
    // `encode` fails only for want of room, which a growing buffer does not have.
    frame.encode_raw(buffer);
}

/// One frame as bytes of its own.
pub fn to_bytes(frame: &Frame) -> Bytes {
    let mut buffer = BytesMut::with_capacity(frame.encoded_len());
    frame.encode_raw(&mut buffer);
    buffer.freeze()
}

fn check_size(len: usize, max_frame: u32) -> Result<(), Error> {
    if len > max_frame as usize {
        return Err(error::too_large("the frame", len as u64, max_frame.into()));
    }
    Ok(())
}

/// The five bytes that gRPC puts before each message: a flag for compression, and the length.
pub const GRPC_PREFIX: usize = 5;

/// Encodes one frame as a gRPC message at the end of `buffer`.
pub fn encode_grpc(frame: &Frame, buffer: &mut BytesMut) {
    let len = frame.encoded_len();
    buffer.reserve(GRPC_PREFIX + len);
    buffer.put_u8(0);
    // Frames are held to limits far below 4 GiB before they come here.
    buffer.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    frame.encode_raw(buffer);
}

/// Finds the frames in a gRPC stream whose bytes come in arbitrary pieces.
#[derive(Debug, Default)]
pub struct Deframer {
    /// The piece at hand; most pieces hold whole messages, which are decoded where they lie.
    piece: Bytes,
    /// A message that began in an earlier piece.
    partial: BytesMut,
}

impl Deframer {
    /// A deframer at the beginning of a stream.
    pub fn new() -> Deframer {
        Deframer::default()
    }

    /// Adds the next piece. The one before must have been used up: [`next`](Deframer::next) said `None`.
    pub fn push(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty(), "pieces are used up one after the other");
        self.piece = piece;
    }

    /// The next frame with its size, or `None` until more bytes come. After an error the stream is lost.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, max_frame: u32) -> Result<Option<(Frame, usize)>, Error> {
        if !self.partial.is_empty() {
            return self.next_partial(max_frame);
        }
        match message_len(&self.piece, max_frame)? {
            Some(len) if self.piece.len() >= GRPC_PREFIX + len => {
                self.piece.advance(GRPC_PREFIX);
                let message = self.piece.split_to(len);
                Ok(Some((decode(&message, max_frame)?, len)))
            }
            _ => {
                self.partial.extend_from_slice(&self.piece);
                self.piece = Bytes::new();
                Ok(None)
            }
        }
    }

    /// Completes the message that began in an earlier piece.
    fn next_partial(&mut self, max_frame: u32) -> Result<Option<(Frame, usize)>, Error> {
        self.fill_partial(GRPC_PREFIX);
        let Some(len) = message_len(&self.partial, max_frame)? else { return Ok(None) };
        self.fill_partial(GRPC_PREFIX + len);
        if self.partial.len() < GRPC_PREFIX + len {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.partial).freeze().slice(GRPC_PREFIX..);
        Ok(Some((decode(&message, max_frame)?, len)))
    }

    fn fill_partial(&mut self, wanted: usize) {
        let missing = wanted.saturating_sub(self.partial.len()).min(self.piece.len());
        self.partial.extend_from_slice(&self.piece.split_to(missing));
    }

    /// Whether the stream ended between messages, as it should.
    pub fn is_clean(&self) -> bool {
        self.piece.is_empty() && self.partial.is_empty()
    }
}

/// The length of the message at the beginning of `bytes`, once its prefix is there.
fn message_len(bytes: &[u8], max_frame: u32) -> Result<Option<usize>, Error> {
    let Some((&[flag, a, b, c, d], _)) = bytes.split_first_chunk::<GRPC_PREFIX>() else { return Ok(None) };
    if flag != 0 {
        return Err(error::malformed("compressed messages were never agreed on"));
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    check_size(len, max_frame)?;
    Ok(Some(len))
}

/// What must hold for any bytes at all: nothing panics, and what decodes has one binary and one JSON form that decode
/// to it again. The fuzz target and the property tests both call this.
#[doc(hidden)]
pub fn exercise(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(frame) = decode(&bytes, limits::CLIENT_FRAME as u32) {
        let again = to_bytes(&frame);
        assert_eq!(decode(&again, limits::NODE_FRAME as u32).as_ref(), Ok(&frame), "binary form");
        let text = crate::json::frame_to_string(&frame);
        let back = crate::json::frame_from_str(&text, usize::MAX).expect("our own JSON is read");
        assert_eq!(back, frame, "JSON form");
    }
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(frame) = crate::json::frame_from_str(text, limits::CLIENT_FRAME) {
            assert_eq!(decode(&to_bytes(&frame), u32::MAX), Ok(frame), "binary form of JSON");
        }
    }
    let mut deframer = Deframer::new();
    for piece in data.chunks(data.first().map_or(1, |n| usize::from(*n).max(1))) {
        deframer.push(Bytes::copy_from_slice(piece));
        loop {
            match deframer.next(limits::HELLO_FRAME as u32) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
