//! `tidings place lookup|watch`: who owns keys, and what is lost.

use super::connect::with_lookup;
use super::table::seconds;
use crate::cli::{Remote, quoted};
use crate::commands::signals::Signals;
use crate::output;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_base::{Class, Error, KeyHash};
use tidings_client::placement::{Hint, Lookup, Loss};

/// Keys that an error names; of more it says how many.
const MOST_NAMED: usize = 8;

/// Says who owns keys.
pub fn once(namespace: &str, keys: &[String], remote: &Remote) -> Result<(), Error> {
    with_lookup(remote, namespace, async |lookup| {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push((key.as_str(), lookup.lookup(key)?.hint()));
        }
        let nobodys: Vec<&str> = found.iter().filter(|(_, hint)| hint.is_none()).map(|(key, _)| *key).collect();
        // If nothing was found the error says all.
        if nobodys.len() < found.len() {
            print(&found, remote.json);
        }
        if nobodys.is_empty() { Ok(()) } else { Err(unowned(namespace, &nobodys)) }
    })
}

fn print(found: &[(&str, Option<Hint<'_>>)], json: bool) {
    if json {
        return output::json(&found.iter().map(|(key, hint)| shown(key, hint.as_ref())).collect::<Vec<_>>());
    }
    output::table(
        ["KEY", "OWNER", "ADDRESS", "LEASE", "AGE", "HASH"],
        found.iter().map(|(key, hint)| {
            let [owner, address, lease, age] = match hint {
                Some(hint) => {
                    let age = seconds(hint.age().as_millis() as u64);
                    [hint.owner().to_owned(), hint.address().to_owned(), hint.lease().to_string(), age]
                }
                None => ["nobody", "", "", ""].map(str::to_owned),
            };
            [(*key).to_owned(), owner, address, lease, age, hash(key)]
        }),
    );
}

fn unowned(namespace: &str, keys: &[&str]) -> Error {
    let named: Vec<String> = keys.iter().take(MOST_NAMED).map(|key| format!("`{key}`")).collect();
    let more = match keys.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!("nobody owns {}{more} at the moment", named.join(", "));
    Error::new("placement.unowned", Class::NotFound, what).hint(format!(
        "`tidings place owners {}` shows who is there; after a crash it takes a lease until another owns it.",
        quoted(namespace)
    ))
}

fn hash(key: &str) -> String {
    KeyHash::of(key.as_bytes()).to_string()
}

/// A key as scripts read it.
fn shown(key: &str, hint: Option<&Hint<'_>>) -> Value {
    json!({
        "key": key,
        "hash": hash(key),
        "owner": hint.map(Hint::owner),
        "address": hint.map(Hint::address),
        "lease": hint.map(|hint| hint.lease().get()),
        "age_ms": hint.map(|hint| hint.age().as_millis() as u64),
    })
}

/// Prints who owns keys, then each change and each loss; without keys, changes of the whole table.
pub fn watch(namespace: &str, keys: &[String], count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    with_lookup(remote, namespace, async |lookup| {
        let mut signals = Signals::listen()?;
        let mut watching = Watching { lookup, namespace, keys, lines: count.unwrap_or(u64::MAX), json: remote.json };
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = watching.run() => ended,
            refused = lookup.refused() => Err(ended(namespace, refused)),
        }
    })
}

/// Why there is nothing to watch any more.
fn ended(namespace: &str, refused: Error) -> Error {
    if refused.code != "placement.no_namespace" {
        return refused;
    }
    let what = format!("namespace `{namespace}` was deleted: there is nothing to watch any more");
    Error::new("placement.no_namespace", Class::NotFound, what)
        .hint("`tidings place namespaces` lists those that are there; watch it again once it is made again.")
}

struct Watching<'a> {
    lookup: &'a Lookup,
    namespace: &'a str,
    keys: &'a [String],
    /// How many are still to be printed.
    lines: u64,
    json: bool,
}

/// What was last said of a key, or of the table.
#[derive(Clone, PartialEq, Eq)]
struct Said {
    owner: Option<String>,
    lease: Option<u32>,
}

impl Watching<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        let (mut tables, mut losses) = (self.lookup.tables(), self.lookup.losses());
        let mut said = BTreeMap::new();
        self.changes(&mut said)?;
        if self.keys.is_empty() {
            self.table("present");
        }
        while self.lines > 0 {
            tokio::select! {
                biased;
                changed = tables.changed() => match changed {
                    true if self.keys.is_empty() => self.table("changed"),
                    true => self.changes(&mut said)?,
                    false => return Ok(()),
                },
                loss = losses.next() => match loss {
                    Some(loss) => self.loss(&loss),
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// Says of each key who owns it now, if that was not said yet.
    fn changes(&mut self, said: &mut BTreeMap<String, Said>) -> Result<(), Error> {
        for key in self.keys {
            let hint = self.lookup.lookup(key)?.hint();
            let now = Said {
                owner: hint.as_ref().map(|hint| hint.owner().to_owned()),
                lease: hint.as_ref().map(|hint| hint.lease().get()),
            };
            if said.get(key) != Some(&now) {
                said.insert(key.clone(), now);
                let mut event = shown(key, hint.as_ref());
                event["event"] = "owner".into();
                let text = match &hint {
                    Some(hint) => format!("{key}: {} at {}, lease {}", hint.owner(), hint.address(), hint.lease()),
                    None => format!("{key}: nobody"),
                };
                self.say(event, &text);
            }
        }
        Ok(())
    }

    fn table(&mut self, event: &str) {
        let (lsn, directory) = (self.lookup.lsn(), self.lookup.directory());
        let (shares, unowned) = directory.shares();
        let holding = shares.iter().filter(|(_, ranges)| *ranges > 0);
        let mut text: Vec<String> = holding.clone().map(|(owner, ranges)| format!("{} {ranges}", owner.id)).collect();
        if unowned > 0 {
            text.push(format!("nobody {unowned}"));
        }
        let ranges = directory.len();
        let text = format!("{} {event}: {ranges} ranges ({}), change {lsn}", self.namespace, text.join(", "));
        let owners: Vec<Value> = holding
            .map(|(owner, ranges)| json!({ "owner": owner.id, "address": owner.address, "ranges": ranges }))
            .collect();
        self.say(json!({ "event": event, "lsn": lsn, "ranges": ranges, "owners": owners, "unowned": unowned }), &text);
    }

    /// Says what was lost: of the keys that are watched, or all of it.
    fn loss(&mut self, loss: &Loss) {
        if self.keys.is_empty() {
            let ranges: Vec<Value> = loss.ranges.iter().map(|range| range.to_string().into()).collect();
            let text = format!("{} lost the state of {} ranges", self.namespace, ranges.len());
            return self.say(json!({ "event": "loss", "ranges": ranges }), &text);
        }
        for key in self.keys.iter().filter(|key| loss.contains(key)) {
            self.say(json!({ "event": "loss", "key": key }), &format!("{key}: its state was lost; publish it again"));
        }
    }

    fn say(&mut self, mut event: Value, text: &str) {
        if self.lines == 0 {
            return;
        }
        self.lines -= 1;
        if self.json {
            event["namespace"] = self.namespace.into();
            output::exact(event);
        } else {
            output::line(text);
        }
    }
}
