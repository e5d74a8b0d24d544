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
    let mut seen = Seen::default();
    let mut lines = 0;
    let mut event = None;
    while lines < count {
        match seen.change(&handle, event.as_ref()).await {
            Ok(Some(change)) => {
                print(path, change, json);
                lines += 1;
            }
            Ok(None) => {}
            // It went between the event and the look; the event that says so follows.
            Err(error) if error.code == "cell.node_gone" => {}
            Err(error) => return Err(error),
        }
        if event == Some(Event::HandleInvalid) || lines >= count {
            return Ok(());
        }
        event = Some(watch.next().await.ok_or_else(|| error::expired(cell.session()))?);
    }
    Ok(())
}

/// What was printed last. After a fail-over the library tells of everything once more that may have changed; only what
/// did is printed.
#[derive(Default)]
struct Seen {
    contents: u64,
    lock: u64,
}

impl Seen {
    /// What happened, with what is there now; `None` = nothing that is not printed already.
    async fn change(&mut self, handle: &Handle, event: Option<&Event>) -> Result<Option<Value>, Error> {
        Ok(match event {
            Some(Event::ContentsChanged) => self.contents("contents", handle).await?,
            Some(Event::ChildrenChanged { .. }) if !handle.is_directory() => None,
            Some(Event::ChildrenChanged { names, more }) => {
                Some(json!({ "event": "children", "names": names, "more": more }))
            }
            Some(Event::LockAcquired) => self.lock(handle).await?,
            Some(Event::LockLost) => Some(json!({ "event": "lock_lost" })),
            Some(Event::ConflictingRequest) => Some(json!({ "event": "conflicting_request" })),
            Some(Event::HandleInvalid) => Some(json!({ "event": "gone" })),
            None => {
                self.lock = handle.stat().await?.lock_generation;
                match handle.is_directory() {
                    true => Some(json!({ "event": "present", "names": names(handle).await? })),
                    false => self.contents("present", handle).await?,
                }
            }
        })
    }

    /// Contents have a generation from 1 on.
    async fn contents(&mut self, event: &str, handle: &Handle) -> Result<Option<Value>, Error> {
        let file = handle.contents_and_stat().await?;
        let generation = file.stat().content_generation;
        let before = std::mem::replace(&mut self.contents, generation);
        let change = || json!({ "event": event, "generation": generation, "contents": shown(file.contents()) });
        Ok((generation != before).then(change))
    }

    async fn lock(&mut self, handle: &Handle) -> Result<Option<Value>, Error> {
        let stat = handle.stat().await?;
        let before = std::mem::replace(&mut self.lock, stat.lock_generation);
        let (lock, generation) = (show::lock(&stat), stat.lock_generation);
        let change = || json!({ "event": "lock_acquired", "lock": lock, "lock_generation": generation });
        Ok((generation != before).then(change))
    }
}

async fn names(directory: &Handle) -> Result<Vec<String>, Error> {
    Ok(directory.read_dir().await?.iter().map(|child| child.name.clone()).collect())
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
