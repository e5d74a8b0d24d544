//! `tidings notify rotate-keys`: a new key for the tokens of clients.

use crate::cli::Remote;
use crate::commands::remote::{Asked, ask};
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;

pub fn rotate(remote: &Remote) -> Result<(), Error> {
    let rotated = ask(remote, Asked::Notify(Message::Rotate(v1::KeyRotation {})), |answer| match answer {
        Asked::Notify(Message::Rotated(rotated)) => Some(rotated),
        _ => None,
    })?;
    if remote.json {
        output::json(&json!({ "key": rotated.key, "accepted": rotated.accepted }));
    } else {
        let accepted: Vec<String> = rotated.accepted.iter().map(u32::to_string).collect();
        output::line(format_args!("key {} is made; accepted are {}", rotated.key, accepted.join(", ")));
    }
    Ok(())
}
