//! R12, R5: once a change of who may look was answered, whoever it shuts out neither reads nor writes what is closed, nor learns
//! that something is absent behind it, out of a cache or not.
//!
//! The log orders the changes. A write must be allowed by the list as it is right before it; what is shown must have been so and
//! allowed at one moment between the last answered change and the sight of it: by the node itself, or for what is absent by
//! the nearest node above it.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Applied, Fact, Key, OpName, Sighting};
use crate::scenarios::cell::history::History;
use crate::scenarios::cell::{CLOSED, DOORS, ROOM};
use std::collections::{BTreeMap, BTreeSet};
use tidings_wire::v1::{cell_command::Command, cell_result};

/// The claim.
#[derive(Debug, Default)]
pub struct TheShutOutStayOut {
    history: History,
    /// Who is let in, from which entry on.
    lists: Vec<(u64, BTreeSet<String>)>,
    principals: BTreeMap<u64, String>,
    /// The last entry of a change that was answered.
    returned: u64,
    asked: BTreeMap<OpName, (u64, u64)>,
    checks: u64,
}

impl TheShutOutStayOut {
    /// Whether a session is let in after this entry.
    fn lets_in(&self, session: u64, index: u64) -> bool {
        let list = self.lists[..self.lists.partition_point(|(from, _)| *from <= index)].last();
        list.zip(self.principals.get(&session)).is_some_and(|((_, list), principal)| list.contains(principal))
    }

    /// Whether a session may look at a place after this entry.
    fn permits(&self, session: u64, path: &str, index: u64) -> bool {
        let stat = |at: &str| self.history.at(&Key::node(at), index).and_then(|view| view.stat.as_ref());
        let acl = upwards(path).find_map(stat).and_then(|stat| stat.acl.as_ref());
        acl.is_none_or(|acl| acl.read.is_empty()) || self.lets_in(session, index)
    }

    /// The first entry after this one that may let somebody in.
    fn next_change(&self, path: &str, index: u64) -> Option<u64> {
        let list = self.lists.iter().map(|(from, _)| *from).find(|from| *from > index);
        let nodes = upwards(path).filter_map(|at| self.history.next_change(&Key::node(at), index));
        nodes.chain(list).min()
    }

    fn applied(&mut self, applied: &Applied) -> Result<(), String> {
        if !applied.took_effect() {
            return Ok(());
        }
        if let (Some(Command::StartSession(start)), Some(cell_result::Result::StartSession(done))) =
            (&applied.command.command, &applied.result.result)
        {
            let principal = start.caller.as_ref().map(|caller| caller.principal.clone());
            self.principals.insert(done.session, principal.unwrap_or_default());
        }
        let (path, contents) = match &applied.command.command {
            Some(Command::WriteContents(write)) => (&write.path, Some(&write.contents)),
            Some(Command::Open(open)) => (&open.path, open.create.as_ref().map(|create| &create.contents)),
            _ => return Ok(()),
        };
        let session = applied.command.actor.as_ref().map_or(0, |actor| actor.session);
        if path == CLOSED && self.principals.contains_key(&session) {
            self.checks += 1;
            if !self.lets_in(session, applied.index.0 - 1) {
                return Err(format!("entry {} is of session {session}, which is shut out", applied.index));
            }
        }
        if let (true, Some(contents)) = (applied.changed.iter().any(|(key, _)| *key == Key::node(DOORS)), contents) {
            let text = String::from_utf8_lossy(contents);
            self.lists.push((applied.index.0, text.lines().map(str::to_string).collect()));
        }
        Ok(())
    }

    fn saw(&mut self, session: u64, floor: u64, sighting: &Sighting) -> Result<(), String> {
        let path = sighting.key.path.as_str();
        let closed = upwards(path).any(|at| at == CLOSED || at == ROOM);
        if !closed || !self.principals.contains_key(&session) {
            return Ok(());
        }
        self.checks += 1;
        let mut from = floor;
        while let Some(index) = self.history.first_fit(sighting, from) {
            if self.permits(session, path, index) {
                return Ok(());
            }
            // The view may last until it is let in again.
            match self.next_change(path, index) {
                Some(later) => from = later,
                None => break,
            }
        }
        let what = if sighting.stat == Some(None) { "the absence of " } else { "" };
        Err(format!(
            "session {session} is shown {what}{path}, and is shut out from entry {floor} to {}",
            self.history.last()
        ))
    }
}

/// A path and those above it, up to the root.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |at| match at.rfind('/')? {
        0 if at.len() == 1 => None,
        0 => Some("/"),
        slash => Some(&at[..slash]),
    })
}

impl Invariant<Fact> for TheShutOutStayOut {
    fn name(&self) -> &'static str {
        "the_shut_out_stay_out"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(applied) => {
                self.history.add(applied);
                self.applied(applied)
            }
            Fact::Asked { op, session, .. } => {
                self.asked.insert(*op, (*session, self.returned));
                Ok(())
            }
            Fact::Told { op, number, answer } => {
                let Some((session, floor)) = self.asked.remove(op) else { return Ok(()) };
                if let (Some(number), false) = (number, matches!(answer, Answer::Unknown)) {
                    self.returned = self.returned.max(self.history.entry_of(session, *number).unwrap_or(0));
                }
                let Answer::Saw(sightings) = answer else { return Ok(()) };
                sightings.iter().try_for_each(|sighting| self.saw(session, floor, sighting))
            }
            Fact::Cached { session, sighting } => self.saw(*session, self.returned, sighting),
            _ => Ok(()),
        }
        .map_err(|what| format!("{}: {what}", sight.host))
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
