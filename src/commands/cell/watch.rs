//! `tidings cell watch`: changes of a node as they happen.

use super::connect::staying;
use super::show;
use crate::cli::Remote;
use crate::commands::remote::{printed, told};
use crate::commands::signals::Signals;
use crate::output;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_base::Error;
use tidings_cell::{NodePath, error};
use tidings_client::cell::{Cell, Event, Events, Handle, SessionOptions};

/// How often to look for a node that is gone, beside hearing of its directory.
const LOOK: Duration = Duration::from_secs(5);

/// Prints the present state and then each change, until interrupted, or so many lines. A node that is gone may come back.
pub fn run(path: &str, count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    staying(remote, SessionOptions::default(), async |cell| {
        let mut signals = Signals::listen()?;
        let mut watching = Watching { cell, path, left: count.unwrap_or(u64::MAX), json: remote.json };
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = watching.run() => ended,
        }
    })
}

struct Watching<'a> {
    cell: &'a Cell,
    path: &'a str,
    /// How many lines are still to be printed.
    left: u64,
    json: bool,
}

impl Watching<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        let mut handle = self.open().await?;
        loop {
            self.follow(&handle).await?;
            if self.left == 0 {
                return Ok(());
            }
            handle = self.come_back().await?;
        }
    }

    async fn open(&self) -> Result<Handle, Error> {
        self.cell.open(self.path).read().events(Events::ALL).await
    }

    /// Prints what is there, and each change, until the node is gone or enough is printed.
    async fn follow(&mut self, handle: &Handle) -> Result<(), Error> {
        let mut watch = handle.watch();
        let mut seen = Seen { contents: 0, lock: 0, json: self.json };
        let mut event = None;
        loop {
            match seen.change(handle, event.as_ref()).await {
                Ok(Some(change)) => self.print(change),
                Ok(None) => {}
                // It went between the event and the look; the event that says so follows.
                Err(error) if error.code == "cell.node_gone" => {}
                Err(error) => return Err(error),
            }
            if self.left == 0 || event == Some(Event::HandleInvalid) {
                return Ok(());
            }
            event = Some(watch.next().await.ok_or_else(|| error::expired(self.cell.session()))?);
        }
    }

    /// Waits until there is a node of that name again.
    async fn come_back(&self) -> Result<Handle, Error> {
        loop {
            let directory = self.nearest().await?;
            let mut watch = directory.watch();
            match self.open().await {
                Err(error) if is_absence(&error) => {}
                opened => return opened,
            }
            // It begins with a child of this directory, or with the end of it.
            let _ = tokio::time::timeout(LOOK, watch.next()).await;
        }
    }

    /// The nearest directory above that is there.
    async fn nearest(&self) -> Result<Handle, Error> {
        let mut at = NodePath::parse(self.path)?;
        loop {
            at = at.parent().unwrap_or_else(NodePath::root);
            match self.cell.open(at.as_str()).read().events(Events::CHILDREN).await {
                Err(error) if is_absence(&error) && !at.is_root() => {}
                opened => return opened,
            }
        }
    }

    fn print(&mut self, mut change: Value) {
        self.left -= 1;
        if self.json {
            change["path"] = self.path.into();
            return output::exact(change);
        }
        output::line(format_args!("{} {}", self.path, text(&change)));
    }
}

fn is_absence(error: &Error) -> bool {
    matches!(error.code.as_ref(), "cell.no_node" | "cell.no_parent" | "cell.node_gone" | "cell.not_a_directory")
}

/// What was printed last. After a fail-over the library tells of everything once more that may have changed; only what
/// did is printed.
struct Seen {
    contents: u64,
    lock: u64,
    json: bool,
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
        let contents = || if self.json { told(file.contents()) } else { printed(file.contents()).into() };
        let change = || json!({ "event": event, "generation": generation, "contents": contents() });
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

/// A change for people.
fn text(change: &Value) -> String {
    let event = change["event"].as_str().unwrap_or_default().replace('_', " ");
    let list =
        |names: &Value| names.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    match (&change["contents"], &change["names"], &change["lock"]) {
        (Value::String(contents), _, _) => format!("{event}: generation {}: {contents}", change["generation"]),
        (_, names @ Value::Array(_), _) => {
            format!("{event}: {}{}", list(names), if change["more"] == true { " and more" } else { "" })
        }
        (_, _, Value::String(lock)) => format!("{event}: {lock}, lock generation {}", change["lock_generation"]),
        _ if event == "gone" => "gone; waiting for it to come back".to_owned(),
        _ => event,
    }
}
