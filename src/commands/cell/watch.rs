//! `tidings cell watch`: changes of a node as they happen.

use super::connect::staying;
use super::show;
use crate::cli::Remote;
use crate::commands::remote::shown;
use crate::commands::signals::Signals;
use crate::output;
use serde_json::{Value, json};
use tidings_base::Error;
use tidings_cell::error;
use tidings_client::cell::{Cell, Event, Events, Handle, SessionOptions};

/// Prints the present state and then each change, until interrupted, or so many lines.
pub fn run(path: &str, count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    staying(remote, SessionOptions::default(), async |cell| {
        let mut signals = Signals::listen()?;
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = watch(cell, path, count.unwrap_or(u64::MAX), remote.json) => ended,
        }
    })
}

async fn watch(cell: &Cell, path: &str, count: u64, json: bool) -> Result<(), Error> {
    let handle = cell.open(path).read().events(Events::ALL).await?;
    let mut watch = handle.watch();
    let mut lines = 0;
    let mut event = None;
    while lines < count {
        match change(&handle, event.as_ref()).await {
            Ok(change) => print(path, change, json),
            // It went between the event and the look; the event that says so follows.
            Err(error) if error.code == "cell.node_gone" => {}
            Err(error) => return Err(error),
        }
        lines += 1;
        if event == Some(Event::HandleInvalid) || lines >= count {
            return Ok(());
        }
        event = Some(watch.next().await.ok_or_else(|| error::expired(cell.session()))?);
    }
    Ok(())
}

/// What happened, with what is there now.
async fn change(handle: &Handle, event: Option<&Event>) -> Result<Value, Error> {
    Ok(match event {
        Some(Event::ContentsChanged) => contents("contents", handle).await?,
        Some(Event::ChildrenChanged { names, more }) => json!({ "event": "children", "names": names, "more": more }),
        Some(Event::LockAcquired) => lock("lock_acquired", handle).await?,
        Some(Event::LockLost) => lock("lock_lost", handle).await?,
        Some(Event::ConflictingRequest) => json!({ "event": "conflicting_request" }),
        Some(Event::HandleInvalid) => json!({ "event": "gone" }),
        None if handle.is_directory() => {
            let names: Vec<String> = handle.read_dir().await?.iter().map(|child| child.name.clone()).collect();
            json!({ "event": "present", "names": names })
        }
        None => contents("present", handle).await?,
    })
}

async fn contents(event: &str, handle: &Handle) -> Result<Value, Error> {
    let file = handle.contents_and_stat().await?;
    let generation = file.stat().content_generation;
    Ok(json!({ "event": event, "generation": generation, "contents": shown(file.contents()) }))
}

async fn lock(event: &str, handle: &Handle) -> Result<Value, Error> {
    let stat = handle.stat().await?;
    Ok(json!({ "event": event, "lock": show::lock(&stat), "lock_generation": stat.lock_generation }))
}

fn print(path: &str, mut change: Value, json: bool) {
    if json {
        change["path"] = path.into();
        output::line(change);
        return;
    }
    let event = change["event"].as_str().unwrap_or_default().replace('_', " ");
    let list =
        |names: &Value| names.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    let text = match (&change["contents"], &change["names"], &change["lock"]) {
        (Value::String(contents), _, _) => format!(": generation {}: {contents}", change["generation"]),
        (_, names @ Value::Array(_), _) => {
            format!(": {}{}", list(names), if change["more"] == true { " and more" } else { "" })
        }
        (_, _, Value::String(lock)) => format!(": {lock}, lock generation {}", change["lock_generation"]),
        _ => String::new(),
    };
    output::line(format_args!("{path} {event}{text}"));
}
