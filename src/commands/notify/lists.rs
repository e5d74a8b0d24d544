//! `tidings notify clients|objects|reset|wipe`: what is there, and forgetting it.

use crate::cli::Remote;
use crate::commands::remote::{Asked, ask, printed, told};
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;

pub fn clients(limit: u32, remote: &Remote) -> Result<(), Error> {
    let list = Message::ClientList(v1::ClientList { limit });
    let reply = ask(remote, Asked::Notify(list), |answer| match answer {
        Asked::Notify(Message::ClientListReply(reply)) => Some(reply),
        _ => None,
    })?;
    let name = |client: &v1::NotifyClientInfo| client.client.clone().unwrap_or_default();
    let uuid = |client: &v1::NotifyClientInfo| {
        name(client).uuid.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    };
    if remote.json {
        let all: Vec<_> = reply
            .clients
            .iter()
            .map(|client| {
                json!({
                    "principal": name(client).user,
                    "id": uuid(client),
                    "node": client.channel.map(|channel| channel.node),
                    "silent": client.silent,
                    "registrations": client.registrations,
                    "unacknowledged": client.unacknowledged,
                    "unknown": client.unknown,
                    "pending": client.pending,
                })
            })
            .collect();
        output::json(&json!({ "clients": all, "more": reply.more }));
        return Ok(());
    }
    output::table(
        ["PRINCIPAL", "ID", "NODE", "REGISTERED", "UNACKNOWLEDGED", "UNKNOWN"],
        reply.clients.iter().map(|client| {
            let node = match client.channel {
                None => "offline".to_owned(),
                Some(channel) if client.silent => format!("{} (silent)", channel.node),
                Some(channel) => channel.node.to_string(),
            };
            let (regs, unacked) = (client.registrations.to_string(), client.unacknowledged.to_string());
            [name(client).user, uuid(client), node, regs, unacked, client.unknown.to_string()]
        }),
    );
    more(reply.more);
    Ok(())
}

pub fn objects(object: Option<String>, limit: u32, remote: &Remote) -> Result<(), Error> {
    let list = Message::ObjectList(v1::ObjectList { object: object.unwrap_or_default().into(), limit });
    let reply = ask(remote, Asked::Notify(list), |answer| match answer {
        Asked::Notify(Message::ObjectListReply(reply)) => Some(reply),
        _ => None,
    })?;
    if remote.json {
        let all: Vec<_> = reply
            .objects
            .iter()
            .map(|object| {
                json!({
                    "object": told(&object.object),
                    "version": (object.version > 0).then_some(object.version),
                    "source": told(&object.source),
                    "registrations": object.registrations,
                    "pending": object.pending,
                    "behind": (object.behind > 0).then_some(object.behind),
                })
            })
            .collect();
        output::json(&json!({ "objects": all, "more": reply.more }));
        return Ok(());
    }
    output::table(
        ["OBJECT", "VERSION", "REGISTERED", "STATE"],
        reply.objects.iter().map(|object| {
            let version = if object.version > 0 { object.version.to_string() } else { "unknown".to_owned() };
            let mut state = if object.pending { "on its way" } else { "told" }.to_owned();
            if object.behind > 0 {
                state += &format!("; {} came after it, ignored", object.behind);
            }
            [printed(&object.object), version, object.registrations.to_string(), state]
        }),
    );
    more(reply.more);
    Ok(())
}

fn more(more: bool) {
    if more {
        output::line("… and more: raise --limit");
    }
}

pub fn reset(everything: bool, remote: &Remote) -> Result<(), Error> {
    let done = ask(remote, Asked::Notify(Message::Reset(v1::NotifyReset { everything })), |answer| match answer {
        Asked::Notify(Message::ResetDone(done)) => Some(done),
        _ => None,
    })?;
    if remote.json && everything {
        output::json(&json!({ "incarnation": done.incarnation }));
    } else if remote.json {
        output::json(&json!({ "incarnation": done.incarnation, "generation": done.generation }));
    } else if everything {
        output::line(format_args!("everything is forgotten; the incarnation is {}", done.incarnation));
    } else {
        output::line(format_args!("all versions are forgotten; the generation is {}", done.generation));
    }
    Ok(())
}
