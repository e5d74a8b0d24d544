//! What machines want of the store, and what comes by the feed.

use super::{Later, Node, Out};
use crate::scenarios::notify::backend::TOPIC;
use crate::scenarios::store::line::Ended;
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, Now};
use tidings_notify::rows::{StoreId, StoreReply, StoreRequest, StoreResult};
use tidings_notify::{bridge, matcher, registrar};
use tidings_wire::v1::{self, feed_message, frame::Body, store_message};

/// Entries of one answer of the feed, how long it waits for one, and when it brings again what was not acknowledged.
const LIMIT: u32 = 16;
const WAIT_MS: u32 = 1_500;
const REDELIVER_MS: u32 = 4_000;

/// Who asks the store.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// The registrar.
    Registrar(StoreId),
    /// The matcher.
    Matcher(StoreId),
    /// The bridge, and which bridge it is.
    Bridge(u64, StoreId),
    /// The feed's consumer, for a bridge.
    Consumer(u64),
    /// Nobody waits for it.
    Nobody,
}

/// A call to the store.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    who: Who,
    /// It asks for one row.
    one: bool,
}

pub(super) fn unavailable() -> Error {
    Error::new("store.unavailable", Class::Unreachable, "the row cannot be reached")
}

fn feed(message: feed_message::Message) -> Body {
    Body::Feed(v1::FeedMessage { message: Some(message) })
}

/// What an answer says; `one` row was asked for, or several.
fn reply(body: Body, one: bool) -> StoreResult {
    use store_message::Message;
    match body {
        Body::Store(v1::StoreMessage { message: Some(Message::Applied(applied)) }) if applied.failures.is_empty() => {
            Ok(StoreReply::Written)
        }
        Body::Store(v1::StoreMessage { message: Some(Message::Rows(rows)) }) => Ok(match one {
            true => StoreReply::Row(rows.rows.into_iter().next()),
            false => StoreReply::Rows(rows),
        }),
        _ => Err(unavailable()),
    }
}

impl Node {
    /// Whether rows of this place and view are being read, in order.
    pub fn is_scanning(&self, view: &[u8], key: KeyHash) -> bool {
        let place = key.0.to_be_bytes();
        self.line.under_way().any(|body| match body {
            Body::Store(v1::StoreMessage { message: Some(store_message::Message::Scan(scan)) }) => {
                scan.group == view && scan.start.get(8..16) == Some(&place[..])
            }
            _ => false,
        })
    }

    /// Whether a row of this place and view is being written.
    pub fn is_writing(&self, view: &[u8], key: KeyHash) -> bool {
        let place = key.0.to_be_bytes();
        let ours = |group: &v1::GroupWrite| {
            group.group == view && group.rows.iter().any(|row| row.row.get(8..16) == Some(&place[..]))
        };
        self.line.under_way().any(|body| match body {
            Body::Store(v1::StoreMessage { message: Some(store_message::Message::Apply(apply)) }) => {
                apply.groups.iter().any(ours)
            }
            _ => false,
        })
    }

    pub(super) fn ask_store(&mut self, now: Now, who: Who, request: StoreRequest, out: &mut Out) {
        let (first, last) = match &request {
            StoreRequest::Write(apply) => {
                let row = apply.groups.first().and_then(|group| group.rows.first()).map(|row| row.row.clone());
                (row.clone().unwrap_or_default(), row.unwrap_or_default())
            }
            StoreRequest::Get(get) => {
                let row = get.key.as_ref().map(|key| key.row.clone()).unwrap_or_default();
                (row.clone(), row)
            }
            StoreRequest::Scan(scan) => (scan.start.clone(), scan.end.clone()),
        };
        if self.shared.fails(&first, &last) {
            return self.stored_later(now, who, Err(unavailable()));
        }
        let one = matches!(request, StoreRequest::Get(_));
        let message = match request {
            StoreRequest::Write(apply) => store_message::Message::Apply(apply),
            StoreRequest::Get(get) => store_message::Message::Get(get),
            StoreRequest::Scan(scan) => store_message::Message::Scan(scan),
        };
        self.line.call(now, Asks { who, one }, Body::Store(v1::StoreMessage { message: Some(message) }), out);
    }

    pub(super) fn stored_later(&mut self, now: Now, who: Who, result: StoreResult) {
        let later = match who {
            Who::Registrar(id) => Later::Registrar(registrar::Input::Stored { id, result }),
            Who::Matcher(id) => Later::Matcher(matcher::Input::Stored { id, result }),
            Who::Bridge(bridge, id) => Later::Bridge(bridge, bridge::Input::Stored { id, result }),
            Who::Consumer(_) | Who::Nobody => return,
        };
        self.after(now, 1, 50, later);
    }

    pub(super) fn store_said(&mut self, now: Now, ended: Ended<Asks>, out: &mut Out) {
        let Asks { who, one } = ended.whose;
        let answer = |result: Result<Body, Error>| result.and_then(|body| reply(body, one));
        match who {
            Who::Registrar(id) => {
                self.feed_registrar(now, registrar::Input::Stored { id, result: answer(ended.result) }, out);
            }
            Who::Matcher(id) => {
                self.feed_matcher(now, matcher::Input::Stored { id, result: answer(ended.result) }, out);
            }
            Who::Bridge(bridge, id) if bridge == self.bridges => {
                self.feed_bridge(now, bridge::Input::Stored { id, result: answer(ended.result) }, out);
            }
            Who::Consumer(bridge) => {
                let wait = if ended.result.is_ok() { self.rng.between(0, 5) } else { self.rng.between(50, 500) };
                self.consume_at = Some(now.mono + Duration::from_millis(wait));
                if let Ok(Body::Feed(v1::FeedMessage { message: Some(feed_message::Message::Deliveries(brought)) })) =
                    ended.result
                    && bridge == self.bridges
                {
                    let entries = brought.deliveries.into_iter().map(|one| (one.number, one.entry)).collect();
                    self.feed_bridge(now, bridge::Input::Fed(entries), out);
                }
            }
            Who::Bridge(..) | Who::Nobody => {}
        }
    }

    /// Bridges of one incarnation: where the feed was lost its numbers begin anew, and late acknowledgements of the old
    /// ones must not count.
    fn group(&self) -> Bytes {
        Bytes::from(format!("bridges-{}", self.realm.incarnation))
    }

    /// Waits for entries of the feed.
    pub(super) fn consume(&mut self, now: Now, out: &mut Out) {
        self.consume_at = None;
        let consume = v1::Consume {
            topic: TOPIC.into(),
            group: self.group(),
            limit: LIMIT,
            wait_ms: WAIT_MS,
            redeliver_ms: REDELIVER_MS,
        };
        let asks = Asks { who: Who::Consumer(self.bridges), one: false };
        self.line.call(now, asks, feed(feed_message::Message::Consume(consume)), out);
    }

    /// Acknowledges entries; if that is lost they come again.
    pub(super) fn acknowledge(&mut self, now: Now, numbers: Vec<u64>, out: &mut Out) {
        let ack = v1::Ack { topic: TOPIC.into(), group: self.group(), numbers };
        self.line.call(now, Asks { who: Who::Nobody, one: false }, feed(feed_message::Message::Ack(ack)), out);
    }
}
