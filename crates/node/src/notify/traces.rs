//! The latest notifications, and where each was when: kept in memory for whoever looks, and written to the log.

use super::hub::Hub;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;

/// Notifications that a node remembers, of all applications: the latest seconds under load, about 1 MB.
const KEPT: usize = 4_096;
/// What a list has at most, and unless it says otherwise.
pub(crate) const MAX_TRACES: u32 = 1_000;
const LISTED: usize = 100;

/// The latest notifications of a node.
#[derive(Default)]
pub(super) struct Traces {
    latest: Mutex<VecDeque<Seen>>,
}

struct Seen {
    app: String,
    trace: v1::NotifyTrace,
}

impl Traces {
    /// A version is sent to a client of this node for the first time.
    pub(super) fn sent(&self, app: &str, object: &Bytes, version: u64, times: v1::NotifyTimes) {
        let v1::NotifyTimes { published_us, feed_us, bridge_us, matcher_us, registrar_us, sent_us } = times;
        let name = String::from_utf8_lossy(object);
        tracing::debug!(
            app, object = %name, version, published_us, feed_us, bridge_us, matcher_us, registrar_us, sent_us,
            "notify: a version is sent"
        );
        self.keep(app, v1::NotifyTrace { object: object.clone(), version, times: Some(times), node: 0, behind: 0 });
    }

    /// A version was published after a later one.
    pub(super) fn behind(&self, app: &str, object: &[u8], version: u64, latest: u64, times: Option<v1::NotifyTimes>) {
        let name = String::from_utf8_lossy(object);
        tracing::debug!(app, object = %name, version, latest, "notify: a version is ignored: a later one is known");
        let object = Bytes::copy_from_slice(object);
        self.keep(app, v1::NotifyTrace { object, version, times, node: 0, behind: latest });
    }

    fn keep(&self, app: &str, trace: v1::NotifyTrace) {
        let mut latest = self.latest.lock();
        if latest.len() >= KEPT {
            latest.pop_front();
        }
        latest.push_back(Seen { app: app.to_owned(), trace });
    }

    /// The latest of an object, or of all of an application, the earliest of them first.
    fn of(&self, app: &str, object: &[u8], limit: usize) -> Vec<v1::NotifyTrace> {
        let latest = self.latest.lock();
        let asked = |seen: &&Seen| seen.app == app && (object.is_empty() || seen.trace.object == object);
        let found = latest.iter().rev().filter(asked).take(limit);
        let mut traces: Vec<v1::NotifyTrace> = found.map(|seen| seen.trace.clone()).collect();
        traces.reverse();
        traces
    }
}

impl Hub {
    /// The latest notifications of an object, or of all of the application, as all nodes that answer have seen them.
    pub(super) async fn traces(&self, caller: v1::NotifyCaller, list: v1::TraceList) -> v1::TraceListReply {
        let limit = if list.limit == 0 { LISTED } else { list.limit.min(MAX_TRACES) as usize };
        let mut traces = self.channels.traces().of(&caller.app, &list.object, limit);
        traces.iter_mut().for_each(|trace| trace.node = self.told.node);
        if !list.alone {
            let asked = Message::TraceList(v1::TraceList { alone: true, ..list });
            for answer in self.ask_others(Some(caller), asked).await {
                if let Message::TraceListReply(reply) = answer {
                    traces.extend(reply.traces);
                }
            }
            traces.sort_by_key(|trace| trace.times.map_or(0, |times| times.published_us));
            traces.drain(..traces.len().saturating_sub(limit));
        }
        v1::TraceListReply { traces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_object_are_kept() {
        let traces = Traces::default();
        let object = Bytes::from_static(b"o");
        for version in 1..=KEPT as u64 + 3 {
            traces.sent("a", &object, version, v1::NotifyTimes::default());
        }
        traces.behind("a", b"o", 2, 9, None);
        traces.sent("b", &object, 1, v1::NotifyTimes::default());
        let versions: Vec<(u64, u64)> = traces.of("a", b"o", 2).iter().map(|t| (t.version, t.behind)).collect();
        assert_eq!(versions, [(KEPT as u64 + 3, 0), (2, 9)]);
        assert_eq!(traces.of("a", b"o", usize::MAX).len(), KEPT - 1);
        assert!(traces.of("a", b"p", 9).is_empty());
        // Of all objects, whichever they are.
        traces.sent("a", &Bytes::from_static(b"p"), 5, v1::NotifyTimes::default());
        let all: Vec<(Bytes, u64)> = traces.of("a", b"", 2).into_iter().map(|t| (t.object, t.version)).collect();
        assert_eq!(all, [(object, 2), (Bytes::from_static(b"p"), 5)]);
    }
}
