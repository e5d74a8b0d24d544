//! Every handle that watches hears at least one event after the last change of what it watches, fail-over or not.

use super::{Invariant, Sight};
use crate::kernel::HostId;
use crate::scenarios::cell::fact::{Applied, Condition, Fact, Key};
use std::collections::BTreeMap;
use tidings_wire::v1::CellEventKind as Kind;

/// Bits of `OpenNode.events`.
const CONTENTS: u32 = 1;
const CHILDREN: u32 = 2;

#[derive(Debug)]
struct Watch {
    host: HostId,
    path: String,
    instance: u64,
    events: u32,
    /// When the watched thing last changed, and when the last event of its kind came, in order of facts.
    changed: BTreeMap<&'static str, (u64, u64)>,
    heard: BTreeMap<&'static str, u64>,
}

/// The claim.
#[derive(Debug, Default)]
pub struct AnEventFollowsTheLastChange {
    watches: BTreeMap<(u64, u64), Watch>,
    /// The last known contents generation and children of each path.
    contents: BTreeMap<String, (u64, u64)>,
    now: u64,
    checks: u64,
}

impl AnEventFollowsTheLastChange {
    /// Contents of a node changed, it came or it went: its watchers and those of its parent's children hear of it. Locks are
    /// not among it: they have events of their own.
    fn applied(&mut self, applied: &Applied) {
        for (Key { path, .. }, view) in applied.changed.iter().filter(|(key, _)| !key.listing) {
            let state = view.stat.as_ref().map_or((0, 0), |stat| (stat.instance, stat.content_generation));
            let before = self.contents.insert(path.clone(), state).unwrap_or_default();
            if before == state {
                continue;
            }
            let moment = (self.now, applied.index.0);
            let parent = path.rsplit_once('/').map(|(parent, _)| if parent.is_empty() { "/" } else { parent });
            for watch in self.watches.values_mut() {
                if watch.path == *path && watch.instance != state.0 {
                    watch.changed.insert("gone", moment);
                } else if watch.path == *path && watch.events & CONTENTS > 0 {
                    watch.changed.insert("contents", moment);
                }
                if Some(&*watch.path) == parent && watch.events & CHILDREN > 0 {
                    watch.changed.insert("children", moment);
                }
            }
        }
    }
}

impl Invariant<Fact> for AnEventFollowsTheLastChange {
    fn name(&self) -> &'static str {
        "an_event_follows_the_last_change"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        self.now += 1;
        match fact {
            Fact::Applied(applied) => self.applied(applied),
            Fact::Watching { session, handle, path, instance, events } => {
                let (host, path) = (sight.host, path.clone());
                let (changed, heard) = (BTreeMap::new(), BTreeMap::new());
                let watch = Watch { host, path, instance: *instance, events: *events, changed, heard };
                self.watches.insert((*session, *handle), watch);
            }
            Fact::Unwatched { session, handle } => {
                self.watches.remove(&(*session, *handle));
            }
            Fact::ClientStarted => self.watches.retain(|_, watch| watch.host != sight.host),
            Fact::Session { session, condition: Condition::Expired | Condition::Closed } => {
                self.watches.retain(|(of, _), _| of != session);
            }
            Fact::Notified { session, handle, kind } => {
                self.checks += 1;
                let what = match kind {
                    Kind::ContentsChanged => "contents",
                    Kind::ChildrenChanged => "children",
                    Kind::HandleInvalid => "gone",
                    _ => return Ok(()),
                };
                if let Some(watch) = self.watches.get_mut(&(*session, *handle)) {
                    watch.heard.insert(what, self.now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        for ((session, handle), watch) in &self.watches {
            for (what, (at, index)) in &watch.changed {
                self.checks += 1;
                // Whatever else happened to a node that is gone is told by that.
                let heard = watch.heard.get(what).max(watch.heard.get("gone"));
                if heard.is_none_or(|heard| heard < at) && !(watch.changed.contains_key("gone") && *what != "gone") {
                    return Err(format!(
                        "{}, session {session}, handle {handle} on {}: {what} last changed at entry {index}, and no event \
                         came after it",
                        watch.host, watch.path
                    ));
                }
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
