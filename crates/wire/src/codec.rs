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
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(frame) = crate::json::frame_from_str(text, limits::CLIENT_FRAME)
    {
        assert_eq!(decode(&to_bytes(&frame), u32::MAX), Ok(frame), "binary form of JSON");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{self, frame::Body, store_message};
    use proptest::prelude::*;

    fn frame(op: u64, value: Vec<u8>) -> Frame {
        let cell = v1::Cell { column: "c".into(), timestamp: 7, value: Some(value.into()) };
        let row = v1::RowWrite { row: "r".into(), cells: vec![cell] };
        let group = v1::GroupWrite { group: "g".into(), rows: vec![row], fence: None };
        let apply = store_message::Message::Apply(v1::Apply { groups: vec![group] });
        Frame { op, more: true, body: Some(Body::Store(v1::StoreMessage { message: Some(apply) })) }
    }

    fn value(frame: &Frame) -> &Bytes {
        match &frame.body {
            Some(Body::Store(v1::StoreMessage { message: Some(store_message::Message::Apply(apply)) })) => {
                apply.groups[0].rows[0].cells[0].value.as_ref().unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn small_payloads_leave_the_read_buffer_and_large_ones_share_it() {
        let within = |part: &Bytes, whole: &Bytes| {
            let (start, end) = (whole.as_ptr() as usize, whole.as_ptr() as usize + whole.len());
            (start..end).contains(&(part.as_ptr() as usize))
        };
        let small = to_bytes(&frame(1, vec![1; 100]));
        assert!(!within(value(&decode(&small, u32::MAX).unwrap()), &small));
        let large = to_bytes(&frame(1, vec![1; limits::COPIED_BELOW]));
        assert!(within(value(&decode(&large, u32::MAX).unwrap()), &large));
    }

    #[test]
    fn frames_over_the_limit_are_named_before_they_are_read() {
        let bytes = to_bytes(&frame(1, vec![0; 100]));
        assert_eq!(decode(&bytes, 50).unwrap_err().code, "control.too_large");
        let mut deframer = Deframer::new();
        deframer.push(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]));
        assert_eq!(deframer.next(1 << 20).unwrap_err().code, "control.too_large");
        let mut deframer = Deframer::new();
        deframer.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(deframer.next(1 << 20).unwrap_err().code, "control.malformed");
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let mut buffer = BytesMut::new();
        encode(&frame(1, vec![1]), &mut buffer);
        // Field 500 as a string, and field 501 as a number.
        buffer.extend_from_slice(&[0xa2, 0x1f, 3, b'a', b'b', b'c', 0xa8, 0x1f, 5]);
        assert_eq!(decode(&buffer.freeze(), u32::MAX).unwrap(), frame(1, vec![1]));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            exercise(&data);
        }

        /// Random bytes seldom get past the first field; damaged frames go deep.
        #[test]
        fn damaged_frames_decode_or_are_refused(
            op in any::<u64>(),
            value in proptest::collection::vec(any::<u8>(), 0..60),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
            json in any::<bool>(),
        ) {
            let frame = frame(op, value);
            let mut data = if json { crate::json::frame_to_string(&frame).into_bytes() } else { to_bytes(&frame).to_vec() };
            for (at, byte, how) in damage {
                if data.is_empty() { break }
                let at = at.index(data.len());
                match how {
                    0 => data[at] = byte,
                    1 => { data.remove(at); }
                    _ => data.insert(at, byte),
                }
            }
            exercise(&data);
        }

        /// However the stream is cut into pieces, the same frames come out.
        #[test]
        fn pieces_of_a_stream_make_the_same_frames(
            sizes in proptest::collection::vec(0usize..300, 1..12),
            cuts in proptest::collection::vec(1usize..200, 1..40),
        ) {
            let frames: Vec<Frame> = sizes.iter().enumerate().map(|(i, n)| frame(i as u64, vec![i as u8; *n])).collect();
            let mut stream = BytesMut::new();
            for frame in &frames {
                encode_grpc(frame, &mut stream);
            }
            let mut stream = stream.freeze();
            let (mut deframer, mut found) = (Deframer::new(), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !stream.is_empty() {
                let cut = cuts.next().unwrap_or(1).min(stream.len());
                deframer.push(stream.split_to(cut));
                while let Some((frame, _)) = deframer.next(u32::MAX).unwrap() {
                    found.push(frame);
                }
            }
            prop_assert_eq!(found, frames);
            prop_assert!(deframer.is_clean());
        }
    }
}
