//! What the processor wants of the store.

use super::{Later, Node, Out};
use crate::scenarios::store::line::Ended;
use tidings_base::{Class, Error, Now};
use tidings_tables::processor::{self, StoreId, StoreReply, StoreRequest, StoreResult};
use tidings_wire::v1::{self, frame::Body, store_message::Message};

/// A call to the store.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    id: StoreId,
    /// It asks for rows in order.
    scans: bool,
}

/// What an answer says.
fn reply(body: Body, scans: bool) -> StoreResult {
    match body {
        Body::Store(v1::StoreMessage { message: Some(Message::Applied(applied)) }) => {
            match applied.failures.into_iter().next() {
                None => Ok(StoreReply::Applied),
                Some(failure) => {
                    let mut error = Error::new("store.failed", Class::Failed, failure.message);
                    error.code = failure.code.into();
                    Err(error)
                }
            }
        }
        Body::Store(v1::StoreMessage { message: Some(Message::Rows(rows)) }) => Ok(match scans {
            true => StoreReply::Rows(rows),
            false => StoreReply::Row(rows.rows.into_iter().next()),
        }),
        _ => Err(unavailable()),
    }
}

fn unavailable() -> Error {
    Error::new("store.unavailable", Class::Unreachable, "the row cannot be reached")
}

impl Node {
    pub(super) fn ask_store(&mut self, now: Now, id: StoreId, request: StoreRequest, out: &mut Out) {
        let fails = match &request {
            StoreRequest::Apply(apply) => {
                apply.groups.iter().flat_map(|group| &group.rows).any(|row| self.files.fails(&row.row))
            }
            StoreRequest::Get(get) => get.key.as_ref().is_some_and(|key| self.files.fails(&key.row)),
            StoreRequest::Scan(scan) => self.files.fails(&scan.start),
        };
        if fails {
            return self.after(now, 1, 50, Later::Stored(id, Err(unavailable())));
        }
        let scans = matches!(request, StoreRequest::Scan(_));
        let message = match request {
            StoreRequest::Apply(apply) => Message::Apply(apply),
            StoreRequest::Get(get) => Message::Get(get),
            StoreRequest::Scan(scan) => Message::Scan(scan),
        };
        self.line.call(now, Asks { id, scans }, Body::Store(v1::StoreMessage { message: Some(message) }), out);
    }

    pub(super) fn store_said(&mut self, now: Now, ended: Ended<Asks>, out: &mut Out) {
        let Asks { id, scans } = ended.whose;
        let result = ended.result.and_then(|body| reply(body, scans));
        self.feed_processor(now, processor::Input::Stored { id, result }, out);
    }
}
