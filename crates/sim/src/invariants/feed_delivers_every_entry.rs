//! Entries keep their numbers; every acknowledged append reaches every consumer group that was known before; none comes
//! again after its acknowledgement was answered.

use super::{Invariant, Sight};
use crate::clock::SimTime;
use crate::scenarios::store::fact::{Action, ClientFact, OpName, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// The claim, for these topics and consumer groups.
#[derive(Debug)]
pub struct FeedDeliversEveryEntry {
    groups: Vec<(u8, u8)>,
    /// Entries that somebody asked to append.
    asked: BTreeSet<u64>,
    open: BTreeMap<OpName, Open>,
    /// What stands at each number of a topic.
    numbers: BTreeMap<(u8, u64), u64>,
    places: BTreeMap<u64, u64>,
    /// The highest number of a topic that was reported appended.
    last: BTreeMap<u8, u64>,
    /// Appends that were acknowledged, and what each group has been given and has acknowledged.
    appended: BTreeMap<(u8, u64), SimTime>,
    /// When each group had certainly joined: entries appended before may have been dropped.
    joined: BTreeMap<(u8, u8), SimTime>,
    delivered: BTreeSet<(u8, u8, u64)>,
    acknowledged: BTreeMap<(u8, u8, u64), SimTime>,
    checks: u64,
}

#[derive(Debug)]
enum Open {
    Append { topic: u8, entries: Vec<u64>, after: u64, since: SimTime },
    Consume { topic: u8, group: u8, since: SimTime },
    Ack { topic: u8, group: u8, numbers: Vec<u64> },
}

impl FeedDeliversEveryEntry {
    /// The claim for these (topic, group).
    pub fn new(groups: Vec<(u8, u8)>) -> FeedDeliversEveryEntry {
        FeedDeliversEveryEntry {
            groups,
            asked: BTreeSet::new(),
            open: BTreeMap::new(),
            numbers: BTreeMap::new(),
            places: BTreeMap::new(),
            last: BTreeMap::new(),
            appended: BTreeMap::new(),
            joined: BTreeMap::new(),
            delivered: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            checks: 0,
        }
    }

    fn ask(&mut self, at: SimTime, op: OpName, action: &Action) {
        let open = match action {
            Action::Append { topic, entries } => self.appending(at, *topic, entries.clone()),
            Action::Write { append: Some((topic, entry)), .. } => self.appending(at, *topic, vec![*entry]),
            Action::Consume { topic, group } => Open::Consume { topic: *topic, group: *group, since: at },
            Action::Ack { topic, group, numbers } => {
                Open::Ack { topic: *topic, group: *group, numbers: numbers.clone() }
            }
            _ => return,
        };
        self.open.insert(op, open);
    }

    fn appending(&mut self, since: SimTime, topic: u8, entries: Vec<u64>) -> Open {
        self.asked.extend(&entries);
        Open::Append { topic, entries, after: self.last.get(&topic).copied().unwrap_or(0), since }
    }

    fn tell(&mut self, at: SimTime, op: OpName, outcome: &Outcome) -> Result<(), String> {
        match (self.open.remove(&op), outcome) {
            (Some(Open::Append { topic, entries, after, since }), Outcome::Appended { first }) => {
                self.checks += 1;
                if *first <= after {
                    return Err(format!("an append to topic {topic} got number {first} after {after} was reported"));
                }
                for (i, entry) in entries.iter().enumerate() {
                    let number = first + i as u64;
                    self.stands(topic, number, *entry)?;
                    self.appended.insert((topic, number), since);
                    let last = self.last.entry(topic).or_default();
                    *last = (*last).max(number);
                }
                Ok(())
            }
            (Some(Open::Consume { topic, group, since }), Outcome::Delivered(entries)) => {
                self.joined.entry((topic, group)).or_insert(at);
                for (number, entry) in entries {
                    self.checks += 1;
                    self.stands(topic, *number, *entry)?;
                    let again = self.acknowledged.get(&(topic, group, *number)).filter(|done| **done < since);
                    if let Some(done) = again {
                        return Err(format!(
                            "entry {number} of topic {topic} went to group {group} again, though its acknowledgement \
                             was answered at {done}, before the consumer asked at {since}"
                        ));
                    }
                    self.delivered.insert((topic, group, *number));
                }
                Ok(())
            }
            (Some(Open::Ack { topic, group, numbers }), Outcome::Done) => {
                for number in numbers {
                    self.acknowledged.entry((topic, group, number)).or_insert(at);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn stands(&mut self, topic: u8, number: u64, entry: u64) -> Result<(), String> {
        if !self.asked.contains(&entry) {
            return Err(format!("entry {entry} at {number} of topic {topic} was appended by nobody"));
        }
        let known = *self.numbers.entry((topic, number)).or_insert(entry);
        if known != entry {
            return Err(format!("number {number} of topic {topic} is entry {known} and entry {entry}"));
        }
        let place = *self.places.entry(entry).or_insert(number);
        if place != number {
            return Err(format!("entry {entry} of topic {topic} stands at {place} and at {number}"));
        }
        Ok(())
    }
}

impl Invariant<ClientFact> for FeedDeliversEveryEntry {
    fn name(&self) -> &'static str {
        "feed_delivers_every_entry"
    }

    fn observe(&mut self, sight: &Sight<'_>, fact: &ClientFact) -> Result<(), String> {
        match fact {
            ClientFact::Asked { op, action } => {
                self.ask(sight.at, *op, action);
                Ok(())
            }
            ClientFact::Told { op, outcome } => self.tell(sight.at, *op, outcome),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        for ((topic, number), since) in &self.appended {
            for (_, group) in self.groups.iter().filter(|(of, _)| of == topic) {
                if self.joined.get(&(*topic, *group)).is_none_or(|joined| joined > since) {
                    continue;
                }
                self.checks += 1;
                if !self.delivered.contains(&(*topic, *group, *number)) {
                    return Err(format!("entry {number} of topic {topic} never reached group {group}"));
                }
            }
        }
        Ok(())
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}
