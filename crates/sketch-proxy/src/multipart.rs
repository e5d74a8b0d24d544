//! Several ranges of a page in one answer (RFC 9110 §14.6), laid out as nginx does it.

use crate::held::{Held, Reading};
use bytes::Bytes;
use http::header;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidings_sketch::http::{Page, content_range};

/// Digits of the body's own hash: nobody can write a page that contains them.
const BOUNDARY_DIGITS: usize = 20;

enum Piece {
    Bytes(Bytes),
    Disk(Reading),
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Disk(reading) => reading.size_hint().lower(),
        }
    }
}

/// The parts of a page, on their way.
pub(crate) struct Multipart {
    pieces: VecDeque<Piece>,
    boundary: String,
}

impl Multipart {
    /// These parts of a page, if it is held.
    pub(crate) fn new(page: &Page<Held>, parts: &[Range<u64>]) -> Option<Multipart> {
        let boundary: String = page.etag().chars().filter(char::is_ascii_hexdigit).take(BOUNDARY_DIGITS).collect();
        let kind = page.fields.iter().find(|(name, _)| name == header::CONTENT_TYPE).map(|(_, kind)| kind.as_bytes());
        let mut pieces = VecDeque::new();
        for part in parts {
            let mut head = format!("\r\n--{boundary}\r\n").into_bytes();
            if let Some(kind) = kind {
                head.extend_from_slice(b"Content-Type: ");
                head.extend_from_slice(kind);
                head.extend_from_slice(b"\r\n");
            }
            head.extend_from_slice(format!("Content-Range: {}\r\n\r\n", content_range(part, page.length)).as_bytes());
            pieces.push_back(Piece::Bytes(Bytes::from(head)));
            pieces.push_back(match &page.body {
                // Bodies in memory are shorter than memory is large, so these fit.
                Held::Memory(body) => Piece::Bytes(body.bytes.slice(part.start as usize..part.end as usize)),
                Held::Disk(spool) => Piece::Disk(Reading::new(Arc::clone(spool), part.clone())),
                Held::Passing(_) => return None,
            });
        }
        pieces.push_back(Piece::Bytes(Bytes::from(format!("\r\n--{boundary}--\r\n"))));
        Some(Multipart { pieces, boundary })
    }

    pub(crate) fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(Piece::length).sum()
    }
}

impl Body for Multipart {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            let frame = match self.pieces.front_mut() {
                None => return Poll::Ready(None),
                Some(Piece::Bytes(bytes)) => Some(Ok(Frame::data(std::mem::take(bytes)))),
                Some(Piece::Disk(reading)) => std::task::ready!(Pin::new(reading).poll_frame(context)),
            };
            if !matches!((&frame, self.pieces.front()), (Some(_), Some(Piece::Disk(_)))) {
                self.pieces.pop_front();
            }
            if frame.is_some() {
                return Poll::Ready(frame);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}
