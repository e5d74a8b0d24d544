//! R12: once a change of an access list was answered, whoever it shuts out neither reads nor writes what the list closes, out
//! of a cache or not.
//!
//! The log orders the changes of the list. A write must be allowed by the list as it is right before it; what is shown must
//! have been there and allowed at one moment between the last answered change and the sight of it.

use super::{Invariant, Sight};
use crate::scenarios::cell::fact::{Answer, Applied, Fact, Key, OpName, Sighting};
use crate::scenarios::cell::history::History;
use crate::scenarios::cell::{CLOSED, DOORS};
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
        let there = sighting.stat.as_ref().is_some_and(Option::is_some);
        if sighting.key != Key::node(CLOSED) || !there || !self.principals.contains_key(&session) {
            return Ok(());
        }
        self.checks += 1;
        let mut from = floor;
        while let Some(index) = self.history.first_fit(sighting, from) {
            if self.lets_in(session, index) {
                return Ok(());
            }
            // The view may last until it is let in again.
            match self.lists.iter().find(|(later, _)| *later > index) {
                Some((later, _)) => from = *later,
                None => break,
            }
        }
        Err(format!(
            "session {session} is shown {CLOSED}, and is shut out from entry {floor} to {}",
            self.history.last()
        ))
    }
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
