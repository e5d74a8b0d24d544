//! What clients ask, brought to whoever serves the partition; reads over all partitions are put together here.

use super::{Node, Out};
use crate::kernel::HostId;
use crate::scenarios::tables::letter::{Answered, Asked, Letter, Part};
use std::time::Duration;
use tidings_base::{Mono, Now};
use tidings_predicate::Key;
use tidings_tables::calls::{Answer, Call, Caller, Page, Read, Span, Visible};
use tidings_tables::gather::{Gather, Reading};
use tidings_tables::names::{PartitionId, Position, RequestId};
use tidings_tables::processor;
use tidings_tables::refusal::Refusal;

/// How long a call may be tried.
const CALL: Duration = Duration::from_secs(15);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause before a partition is looked up again, in milliseconds.
const PAUSE: (u64, u64) = (50, 150);

/// Who waits for the processor.
pub(super) struct Waiter {
    from: HostId,
    id: u64,
    /// Pieces of the answer that have come.
    records: Vec<Visible>,
}

/// What a client has asked.
pub(super) struct Relay {
    client: (HostId, u64),
    table: u8,
    caller: Caller,
    what: Asked,
    /// Where a read over all partitions is: the next key, or none at the beginning.
    from: Option<Key>,
    gather: Option<Gather>,
    records: Vec<Visible>,
    parts: Vec<Part>,
    until: Mono,
    /// The copy here was asked: from now on its owner is.
    passed: bool,
    /// When it is tried again, whether or not it is under way.
    again: Mono,
    /// Which partition is being asked, under which number.
    at: Option<(u64, PartitionId, Option<Key>)>,
}

impl Relay {
    pub fn deadline(&self) -> Mono {
        self.again.min(self.until)
    }
}

/// Whether somebody else, or the same later, may answer otherwise.
fn passes(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Moved | Refusal::Behind | Refusal::Waited | Refusal::Store(_) | Refusal::Busy)
}

impl Node {
    pub(super) fn client_asks(
        &mut self,
        now: Now,
        client: (HostId, u64),
        table: u8,
        caller: Caller,
        what: Asked,
        out: &mut Out,
    ) {
        let gather = match (&what, self.files.read(table)) {
            (Asked::Scan(read, _), Some(entry)) => {
                let reading = Reading { data: read.data.clone(), claims: caller.claims.clone(), now: now.wall };
                Gather::new(&read.ask, &entry.directory.properties.dialect(), reading).ok()
            }
            _ => None,
        };
        let (until, again) = (now.mono + CALL, now.mono + ATTEMPT);
        let (records, parts) = (Vec::new(), Vec::new());
        let (from, at, passed) = (None, None, false);
        let relay = Relay { client, table, caller, what, from, gather, records, parts, until, passed, again, at };
        self.last_relay += 1;
        self.relays.insert(self.last_relay, relay);
        self.attempt(now, self.last_relay, out);
    }

    /// Asks whoever serves the partition that is next.
    fn attempt(&mut self, now: Now, number: u64, out: &mut Out) {
        let Some(relay) = self.relays.get_mut(&number) else { return };
        let Some(entry) = self.files.read(relay.table) else {
            return self.answer_client(number, Err(Refusal::UnknownTable), out);
        };
        let directory = &entry.directory;
        let part = match (&relay.what, &relay.from) {
            (Asked::Write(write), _) => directory.find(&write.key),
            (Asked::Read(read, _), _) => match &read.span {
                Span::Only(key) => directory.find(key),
                _ => None,
            },
            (Asked::Scan(..), Some(from)) => directory.find(from),
            (Asked::Scan(..), None) => directory.partitions.first(),
        };
        let Some(part) = part else { return };
        let partition = directory.partition_id(part.number);
        relay.again = now.mono + ATTEMPT;
        self.last_relay += 1;
        let attempt = self.last_relay;
        relay.at = Some((attempt, partition, part.end.clone()));
        let floor = |floors: &[(PartitionId, Position)]| {
            let floor = floors.iter().find(|(of, _)| *of == partition).map(|(_, floor)| *floor);
            floor.unwrap_or(Position::ZERO)
        };
        let call = match &relay.what {
            Asked::Write(write) => Call::Write(write.clone()),
            Asked::Read(read, floors) => Call::Read(Box::new(Read { floor: floor(floors), ..(**read).clone() })),
            Asked::Scan(read, floors) => {
                let span = Span::Between(relay.from.clone(), None);
                Call::Read(Box::new(Read { span, floor: floor(floors), ..(**read).clone() }))
            }
        };
        let caller = Box::new(relay.caller.clone());
        if !relay.passed && self.asks_copy(partition, &call) {
            if let Some(relay) = self.relays.get_mut(&number) {
                relay.passed = true;
            }
            return self.serve(now, (self.host, attempt), partition, caller, call, out);
        }
        match self.whom_to_ask(now, partition) {
            Some(host) if host == self.host => self.serve(now, (self.host, attempt), partition, caller, call, out),
            Some(host) => self.post.send(out, host, Letter::Calls { id: attempt, partition, caller, call }),
            None => self.called(now, attempt, Err(Refusal::Moved), out),
        }
    }

    /// Lets the processor here answer.
    pub(super) fn serve(
        &mut self,
        now: Now,
        (from, id): (HostId, u64),
        partition: PartitionId,
        caller: Box<Caller>,
        call: Call,
        out: &mut Out,
    ) {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        self.waiters.insert(request, Waiter { from, id, records: Vec::new() });
        self.feed_processor(now, processor::Input::Request { request, partition, caller, call }, out);
    }

    /// The processor here has answered, or a piece of it.
    pub(super) fn answered(&mut self, now: Now, request: RequestId, answer: Result<Answer, Refusal>, out: &mut Out) {
        let Some(mut waiter) = self.waiters.remove(&request) else { return };
        let answer = match answer {
            Ok(Answer::Page(page)) => {
                waiter.records.extend(page.records);
                if !page.last {
                    self.waiters.insert(request, waiter);
                    return self.feed_processor(now, processor::Input::Pull { request }, out);
                }
                let records = std::mem::take(&mut waiter.records);
                Ok(Answer::Page(Page { records, ..page }))
            }
            other => other,
        };
        match waiter.from == self.host {
            true => self.called(now, waiter.id, answer, out),
            false => self.post.send(out, waiter.from, Letter::Called { id: waiter.id, answer }),
        }
    }

    /// Somebody has answered for a partition.
    pub(super) fn called(&mut self, now: Now, attempt: u64, answer: Result<Answer, Refusal>, out: &mut Out) {
        let asked = |relay: &Relay| relay.at.as_ref().is_some_and(|(number, ..)| *number == attempt);
        let Some((number, relay)) = self.relays.iter_mut().find(|(_, relay)| asked(relay)) else { return };
        let (number, Some((_, partition, end))) = (*number, relay.at.take()) else { return };
        match answer {
            Err(refusal) if passes(&refusal) && now.mono < relay.until => {
                relay.again = now.mono + Duration::from_millis(self.rng.between(PAUSE.0, PAUSE.1));
            }
            Err(refusal) => self.answer_client(number, Err(refusal), out),
            Ok(Answer::Written(outcome)) => {
                self.answer_client(number, Ok(Answered::Written(partition, outcome)), out);
            }
            Ok(Answer::Page(page)) => match &relay.what {
                Asked::Scan(..) => {
                    let part = Part { partition, end, position: page.position };
                    self.gathered(now, number, page.records, part, out);
                }
                _ => {
                    let found = Answered::Found(partition, page.position, page.records.into_iter().next());
                    self.answer_client(number, Ok(found), out);
                }
            },
            Ok(Answer::Stat(_)) => {}
        }
    }

    /// One more partition has answered a read over all of them.
    fn gathered(&mut self, now: Now, number: u64, records: Vec<Visible>, part: Part, out: &mut Out) {
        let Some(relay) = self.relays.get_mut(&number) else { return };
        let Some(gather) = &mut relay.gather else { return };
        let added = records.iter().try_for_each(|record| gather.add(record, None));
        relay.records.extend(records);
        if let Err(refusal) = added {
            return self.answer_client(number, Err(refusal), out);
        }
        let end = part.end.clone();
        relay.parts.push(part);
        if end.is_some() {
            // The next partition may have a copy here, too.
            (relay.from, relay.passed) = (end, false);
            return self.attempt(now, number, out);
        }
        let rows = gather.finish().map(|rows| rows.len());
        let (records, parts) = (std::mem::take(&mut relay.records), std::mem::take(&mut relay.parts));
        let answer = match rows {
            Ok(rows) if rows == records.len() => Ok(Answered::Rows(records, parts)),
            Ok(rows) => Err(Refusal::Invalid(format!("{rows} rows were made of {} records", records.len()))),
            Err(refusal) => Err(refusal),
        };
        self.answer_client(number, answer, out);
    }

    fn answer_client(&mut self, number: u64, answer: Result<Answered, Refusal>, out: &mut Out) {
        if let Some(Relay { client: (host, id), .. }) = self.relays.remove(&number) {
            self.post.send(out, host, Letter::Answers { id, answer });
        }
    }

    pub(super) fn wake_relays(&mut self, now: Now, out: &mut Out) {
        let due = self.relays.iter().filter(|(_, relay)| relay.deadline() <= now.mono).map(|(number, _)| *number);
        for number in due.collect::<Vec<_>>() {
            match self.relays.get(&number) {
                Some(relay) if relay.until <= now.mono => self.answer_client(number, Err(Refusal::Moved), out),
                Some(_) => self.attempt(now, number, out),
                None => {}
            }
        }
    }
}
