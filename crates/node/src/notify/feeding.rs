//! The feed: publications go in, the bridge takes them out.

use super::hub::Hub;
use std::sync::Arc;
use std::time::Duration;
use tidings_notify::bridge::Input;
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message;
use tokio::sync::mpsc;

/// Where publications lie: no application can reach it.
pub(super) const TOPIC: &[u8] = b".notify/publications";
/// All bridges are one consumer group.
const GROUP: &[u8] = b"bridges";
/// Entries of one answer.
const AT_ONCE: u32 = 512;
/// How long a consumer waits for the first entry.
const WAIT: Duration = Duration::from_secs(20);
/// An entry that was not acknowledged in this time goes to another bridge: longer than a bridge needs to put it into
/// scratch.
const REDELIVER: Duration = Duration::from_secs(5);
/// The pause after the feed did not answer.
const PAUSE: Duration = Duration::from_millis(200);
/// Entries that one acknowledgement names.
const ACKS: usize = 1_024;

/// The way of acknowledgements from the bridge.
pub(super) fn acks() -> (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>) {
    // As many as the feed has delivered, at most.
    mpsc::unbounded_channel()
}

/// Takes entries to the bridge, once there is a realm.
pub(super) async fn consume(hub: Arc<Hub>) {
    if hub.kept.subscribe().wait_for(Option::is_some).await.is_err() {
        return;
    }
    loop {
        let consume = v1::Consume {
            topic: TOPIC.into(),
            group: GROUP.into(),
            limit: AT_ONCE,
            wait_ms: WAIT.as_millis() as u32,
            redeliver_ms: REDELIVER.as_millis() as u32,
        };
        let Ok(stored) = hub.stored() else { return };
        match stored.feed(Message::Consume(consume)).await {
            Ok(Message::Deliveries(v1::Deliveries { deliveries })) => {
                let entries = deliveries.into_iter().map(|delivery| (delivery.number, delivery.entry)).collect();
                hub.bridge(Input::Fed(entries)).await;
            }
            Ok(_) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "notify: the feed does not answer");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Acknowledges what the bridge is done with; what is not acknowledged comes again and changes nothing.
pub(super) async fn acknowledge(hub: Arc<Hub>, mut acked: mpsc::UnboundedReceiver<u64>) {
    let mut numbers = Vec::new();
    while acked.recv_many(&mut numbers, ACKS).await > 0 {
        let ack = v1::Ack { topic: TOPIC.into(), group: GROUP.into(), numbers: std::mem::take(&mut numbers) };
        let Ok(stored) = hub.stored() else { return };
        if let Err(error) = stored.feed(Message::Ack(ack)).await {
            tracing::debug!(%error, "notify: entries were not acknowledged");
        }
    }
}
