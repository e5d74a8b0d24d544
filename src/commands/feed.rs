//! `tidings feed append|consume`: topics of the feed from the command line.

use super::remote::{Asked, ask, content, printed, told, with_client};
use crate::cli::{Feed, Remote};
use crate::output;
use serde_json::json;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1::feed_message::Message;
use tidings_wire::v1::{Ack, Append, Consume, Deliveries, Delivery};

/// Runs one of the sub-commands.
pub fn run(command: Feed) -> Result<(), Error> {
    match command {
        Feed::Append { topic, entries, remote } => append(&remote, topic, &entries),
        Feed::Consume { topic, group, limit, wait_ms, no_ack, remote } => {
            let (topic, group) = (topic.into_bytes(), group.into_bytes());
            let consume = Consume { topic: topic.into(), group: group.into(), limit, wait_ms, redeliver_ms: 0 };
            receive(&remote, consume, no_ack)
        }
    }
}

fn append(remote: &Remote, topic: String, entries: &[String]) -> Result<(), Error> {
    let entries = entries.iter().map(|entry| content(entry)).collect::<Result<_, _>>()?;
    let message = Message::Append(Append { topic: topic.into(), entries });
    let appended = ask(remote, Asked::Feed(message), |answer| match answer {
        Asked::Feed(Message::Appended(appended)) => Some(appended),
        _ => None,
    })?;
    if remote.json {
        output::json(&json!({ "first": appended.first, "last": appended.last }));
    } else if appended.first == appended.last {
        output::line(format_args!("appended as {}", appended.first));
    } else {
        output::line(format_args!("appended as {} to {}", appended.first, appended.last));
    }
    Ok(())
}

/// Prints first and acknowledges after: who interrupts in between gets the entries again.
fn receive(remote: &Remote, consume: Consume, no_ack: bool) -> Result<(), Error> {
    let (topic, group) = (consume.topic.clone(), consume.group.clone());
    with_client(remote, async |client| {
        let wait = Duration::from_millis(consume.wait_ms.into());
        let deliveries = client
            .ask_waiting(Asked::Feed(Message::Consume(consume)), wait, |answer| match answer {
                Asked::Feed(Message::Deliveries(Deliveries { deliveries })) => Some(deliveries),
                _ => None,
            })
            .await?;
        print(remote, &deliveries);
        let numbers: Vec<u64> = deliveries.iter().map(|delivery| delivery.number).collect();
        if no_ack || numbers.is_empty() {
            return Ok(());
        }
        client
            .ask(Asked::Feed(Message::Ack(Ack { topic, group, numbers })), |answer| match answer {
                Asked::Feed(Message::Acked(_)) => Some(()),
                _ => None,
            })
            .await
    })
}

fn print(remote: &Remote, deliveries: &[Delivery]) {
    if remote.json {
        for d in deliveries {
            output::exact(json!({ "number": d.number, "entry": told(&d.entry), "redelivered": d.redelivered }));
        }
    } else {
        output::table(
            ["NUMBER", "ENTRY", "REDELIVERED"],
            deliveries.iter().map(|d| [d.number.to_string(), printed(&d.entry), d.redelivered.to_string()]),
        );
    }
}
