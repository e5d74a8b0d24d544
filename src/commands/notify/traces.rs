//! `tidings notify trace --log`: the latest notifications of an object, as nodes remember them.

use crate::cli::Remote;
use crate::commands::remote::{Asked, ask};
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;

pub fn list(object: String, count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    let limit = count.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX));
    let list = v1::TraceList { object: object.clone().into(), limit, alone: false };
    let reply = ask(remote, Asked::Notify(Message::TraceList(list)), |answer| match answer {
        Asked::Notify(Message::TraceListReply(reply)) => Some(reply),
        _ => None,
    })?;
    if remote.json {
        let trace = |trace: &v1::NotifyTrace| {
            let times = trace.times.unwrap_or_default();
            json!({
                "version": trace.version,
                "node": trace.node,
                "behind": (trace.behind > 0).then_some(trace.behind),
                "published_us": times.published_us,
                "feed_us": times.feed_us,
                "bridge_us": times.bridge_us,
                "matcher_us": times.matcher_us,
                "registrar_us": times.registrar_us,
                "sent_us": times.sent_us,
            })
        };
        let all: Vec<_> = reply.traces.iter().map(trace).collect();
        output::json(&json!({ "app": remote.app, "object": object, "traces": all }));
        return Ok(());
    }
    if reply.traces.is_empty() {
        output::note("no node remembers a notification of this object: the latest are kept for as long as a node runs");
    }
    output::table(
        ["VERSION", "PUBLISHED (µs)", "FEED", "BRIDGE", "MATCHER", "REGISTRAR", "SENT", "NODE", "STATE"],
        reply.traces.iter().map(|trace| {
            let times = trace.times.unwrap_or_default();
            // How long after the publication it was there.
            let after = |at: u64| match at.checked_sub(times.published_us) {
                Some(us) if at > 0 => format!("+{us}"),
                _ => String::new(),
            };
            let state = match trace.behind {
                0 => "sent".to_owned(),
                latest => format!("ignored: {latest} was known"),
            };
            let stages =
                [times.feed_us, times.bridge_us, times.matcher_us, times.registrar_us, times.sent_us].map(after);
            let [feed, bridge, matcher, registrar, sent] = stages;
            let (version, published) = (trace.version.to_string(), times.published_us.to_string());
            [version, published, feed, bridge, matcher, registrar, sent, trace.node.to_string(), state]
        }),
    );
    Ok(())
}
