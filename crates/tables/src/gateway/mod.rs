//! The gateway: one client's live query made of many partitions; gaps, reinstallation, cursors, expiry (§5, R3, R4, R8).
//!
//! ```text
//!   Watch ─▶ Install to every partition ─▶ frames: in order? ─▶ events ─▶ cursors
//!              ▲ gap · silence · new lease · new directory ────┘ no
//! ```
//! Everything between gateway and processors may be lost, late or twice: positions say what is missing, and the query is
//! installed again from where the client is.

mod cursor;
mod leaving;
mod messages;
mod watched;
mod whole;

pub use messages::{Event, Input, Options, Output, Sealer, Start, Watch};

use crate::acl::Right;
use crate::calls::{Access, Caller};
use crate::directory::{Directory, Partition};
use crate::live::{Frame, Progress, Reader};
use crate::mutant::{self, Mutant};
use crate::names::{PartitionId, Position, QueryId, TableId, Term};
use crate::refusal::Refusal;
use cursor::Cursor;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{LeaseNumber, Machine, Mono, Now, Outbox, Timers};
use tidings_predicate::Packed;
use watched::{Begin, Heard, Watched};
use whole::Veiled;

/// What a gateway waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Partitions that say nothing are asked again.
    Silence,
    /// Clients are given cursors.
    Progress,
    /// R8: claims of a query expire.
    Expiry(u64),
}

/// Live queries of the clients that are connected here.
pub struct Gateway {
    options: Options,
    sealer: Box<dyn Sealer>,
    directories: BTreeMap<TableId, Arc<Directory>>,
    owners: BTreeMap<PartitionId, LeaseNumber>,
    queries: BTreeMap<u64, Watched>,
    /// Queries by the partitions they hear.
    listeners: BTreeMap<PartitionId, BTreeSet<u64>>,
    /// The term and position of the last progress frame of each partition.
    progress: BTreeMap<PartitionId, (Term, Position)>,
    timers: Timers<Timer>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("queries", &self.queries).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway without queries.
    pub fn new(options: Options, sealer: Box<dyn Sealer>) -> Gateway {
        Gateway {
            options,
            sealer,
            directories: BTreeMap::new(),
            owners: BTreeMap::new(),
            queries: BTreeMap::new(),
            listeners: BTreeMap::new(),
            progress: BTreeMap::new(),
            timers: Timers::new(),
        }
    }

    /// How many partitions a query hears, and how many of them have not answered yet or have to be asked again; none if it is
    /// over, or was not begun.
    pub fn hears(&self, number: u64) -> Option<(usize, usize)> {
        let parts = &self.queries.get(&number)?.parts;
        Some((parts.len(), parts.values().filter(|part| !part.live).count()))
    }

    fn is(&self, mutant: Mutant) -> bool {
        mutant::is(self.options.mutant, mutant)
    }

    fn watch(&mut self, now: Now, number: u64, watch: Watch, out: &mut Outbox<Output>) {
        let watched = match self.watched(now, &watch) {
            Ok(watched) => watched,
            Err(refusal) => return out.put(Output::Ended { number, refusal }),
        };
        if let Some(expires) = watch.caller.expires {
            let left = Duration::from_micros(expires.0.saturating_sub(now.wall.0));
            self.timers.set(Timer::Expiry(number), now.mono + left);
        }
        let anew = watched.begins_anew();
        self.queries.insert(number, watched);
        if anew {
            self.no_cursor(number, out);
        }
        self.spread(now, number, out);
        for (timer, pause) in [(Timer::Silence, self.options.patience / 4), (Timer::Progress, self.options.progress)] {
            if self.timers.at(&timer).is_none() {
                self.timers.set(timer, now.mono + pause);
            }
        }
    }

    fn watched(&self, now: Now, watch: &Watch) -> Result<Watched, Refusal> {
        let directory = self.directories.get(&watch.table).ok_or(Refusal::UnknownTable)?;
        self.may_read(directory, &watch.caller)?;
        if self.queries.len() >= self.options.queries {
            return Err(Refusal::Busy);
        }
        let mut reader = Reader {
            access: watch.caller.access,
            data: watch.data.clone(),
            claims: watch.caller.claims.clone(),
            epoch: 1,
        };
        let mut begin = match &watch.start {
            Start::Everything => Begin::Everything,
            Start::Nothing => Begin::Nothing,
            Start::Cursor(sealed) => {
                let cursor = Cursor::open(sealed, &*self.sealer, self.is(Mutant::CursorOpen));
                let cursor = cursor.ok_or(Refusal::BadCursor)?;
                if cursor.table != watch.table || cursor.ask != cursor::hash_of_ask(&watch.ask) {
                    return Err(Refusal::BadCursor);
                }
                reader.epoch = cursor.epoch + 1;
                // For another reader the picture at the cursor was another one: everything again.
                match cursor.reader == cursor::hash_of_reader(&reader.data, &reader.claims) {
                    true => Begin::After(cursor.positions),
                    false => Begin::Everything,
                }
            }
        };
        if watch.caller.expires.is_some_and(|expires| expires <= now.wall) && !self.is(Mutant::ExpiryIgnored) {
            (reader.claims, begin) = (Packed::empty(), Begin::Everything);
        }
        let mut watched = Watched::new(watch.clone(), reader, begin);
        watched.veiled = self.is_veiled(directory, &watch.caller);
        watched.confirmed |= self.is(Mutant::GivenEarly);
        Ok(watched)
    }

    /// Refuses whoever may not read a table.
    fn may_read(&self, directory: &Directory, caller: &Caller) -> Result<(), Refusal> {
        match directory.may(caller, Right::Read) {
            Err(Refusal::NotAllowed) if self.is(Mutant::ListIgnored) => Ok(()),
            may => may,
        }
    }

    /// R7: where a table is cut are keys; whoever does not administer it is not told.
    fn is_veiled(&self, directory: &Directory, caller: &Caller) -> bool {
        directory.may(caller, Right::Administer).is_err() && !self.is(Mutant::BoundsTold)
    }

    /// Brings a query to all partitions of its table, and takes it from those that are no more.
    fn spread(&mut self, now: Now, number: u64, out: &mut Outbox<Output>) {
        let reinstalls = !self.is(Mutant::NoReinstall);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let Some(directory) = self.directories.get(&watched.watch.table) else { return };
        let old = std::mem::take(&mut watched.parts);
        for entry in &directory.partitions {
            let part = match old.get(&entry.number) {
                Some(part) => part.clone(),
                None => watched.born(entry, &old),
            };
            watched.parts.insert(entry.number, part);
        }
        let id = |partition: u32| directory.partition_id(partition);
        let gone: Vec<PartitionId> =
            old.keys().filter(|old| !watched.parts.contains_key(*old)).map(|old| id(*old)).collect();
        // R1: what is acquired anew has forgotten its queries, whatever its lease is.
        let anew = |entry: &&Partition| match (old.get(&entry.number), watched.parts.get(&entry.number)) {
            (None, _) => true,
            (Some(_), part) => reinstalls && part.is_some_and(|part| part.live && part.term < entry.term),
        };
        let new: Vec<PartitionId> = directory.partitions.iter().filter(anew).map(|new| id(new.number)).collect();
        let recut = new.iter().any(|new| !old.contains_key(&new.number)) || !gone.is_empty();
        let mut asked = if recut { watched.recut(directory.table()) } else { Vec::new() };
        asked.retain(|partition| !new.contains(partition));
        gone.into_iter().for_each(|partition| self.unlisten(number, partition));
        for partition in new {
            self.listeners.entry(partition).or_default().insert(number);
            self.install(now, number, partition, out);
        }
        asked.into_iter().for_each(|partition| self.install(now, number, partition, out));
    }

    fn unlisten(&mut self, number: u64, partition: PartitionId) {
        if let Some(listeners) = self.listeners.get_mut(&partition) {
            listeners.remove(&number);
            if listeners.is_empty() {
                self.listeners.remove(&partition);
                self.progress.remove(&partition);
            }
        }
    }

    /// Asks a partition's owner for a query, from where the client is. If the client has gone, the owner is to know that.
    fn install(&mut self, now: Now, number: u64, partition: PartitionId, out: &mut Outbox<Output>) {
        let query = self.id(number);
        let window = self.options.window;
        let Some(watched) = self.queries.get_mut(&number) else { return };
        if watched.leaving.is_some() {
            return self.leave_word(now, number, partition, out);
        }
        let Some(install) = watched.install(now, query, partition, window) else { return };
        if self.owners.contains_key(&partition) {
            out.put(Output::Install(Box::new(install)));
        }
    }

    fn id(&self, number: u64) -> QueryId {
        QueryId { gateway: self.options.gateway, number }
    }

    fn unwatch(&mut self, number: u64, over: bool, out: &mut Outbox<Output>) {
        let Some(watched) = self.queries.remove(&number) else { return };
        self.timers.cancel(&Timer::Expiry(number));
        let netid = watched.leaving.or_else(|| self.told_by_notify(&watched.watch));
        for part in watched.parts.keys() {
            let partition = PartitionId { table: watched.watch.table, number: *part };
            self.unlisten(number, partition);
            out.put(Output::Remove { partition, query: self.id(number), over, netid });
        }
    }

    fn end(&mut self, number: u64, refusal: Refusal, out: &mut Outbox<Output>) {
        let leaving = self.queries.get(&number).is_some_and(|watched| watched.leaving.is_some());
        self.unwatch(number, true, out);
        // Who has gone hears nothing.
        if !leaving {
            out.put(Output::Ended { number, refusal });
        }
    }

    /// R4: the reader changed; every partition switches at a position of its own.
    fn update(&mut self, now: Now, number: u64, change: impl FnOnce(&mut Reader), out: &mut Outbox<Output>) {
        let query = self.id(number);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let before = watched.reader.clone();
        change(&mut watched.reader);
        if before == watched.reader {
            return;
        }
        watched.reader.epoch += 1;
        if std::mem::replace(&mut watched.settled, false) {
            out.put(Output::Event { number, event: Event::Settling });
        }
        self.no_cursor(number, out);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let (reader, table) = (watched.reader.clone(), watched.watch.table);
        let mut installs = Vec::new();
        for (part, state) in &mut watched.parts {
            let partition = PartitionId { table, number: *part };
            state.asked = now.mono;
            match state.live {
                true => out.put(Output::Update { partition, query, reader: Box::new(reader.clone()) }),
                false => installs.push(partition),
            }
        }
        installs.into_iter().for_each(|partition| self.install(now, number, partition, out));
    }

    /// A frame, and the pieces that waited for it.
    fn frames(&mut self, now: Now, number: u64, frame: Frame, out: &mut Outbox<Output>) {
        let (partition, mut next) = (frame.partition, Some(frame));
        if self.is_over_here(number, next.as_ref(), out) {
            return;
        }
        while let Some(frame) = next {
            self.frame(now, number, frame, out);
            next = self.queries.get_mut(&number).and_then(|watched| watched.next_piece(partition));
        }
    }

    fn frame(&mut self, now: Now, number: u64, frame: Frame, out: &mut Outbox<Output>) {
        let (partition, query) = (frame.partition, self.id(number));
        let (window, gaps) = (self.options.window as usize, !self.is(Mutant::GapIgnored));
        let Some(watched) = self.queries.get_mut(&number) else { return };
        match watched.hear(now, frame, window, gaps) {
            // Who is not the owner, or not ready, is asked again after a pause: silence sees to it.
            Heard::Nothing => {}
            Heard::Gap => self.install(now, number, partition, out),
            Heard::Ended(refusal) => self.end(number, refusal, out),
            Heard::Event(event) => {
                match event {
                    Some(event) => self.tell(now, number, partition, event, out),
                    None => out.put(Output::Taken { partition, query, frames: 1 }),
                }
                self.settle(number, out);
                self.first_cursor(number, out);
            }
        }
    }

    /// Tells a client what a partition said, as much of it as it may know.
    fn tell(&mut self, now: Now, number: u64, partition: PartitionId, event: Event, out: &mut Outbox<Output>) {
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let veiled = match watched.veiled || !watched.whole.is_idle() {
            true => watched.veil(partition, event),
            false => Veiled { told: vec![(partition, event)], asked: Vec::new() },
        };
        for (partition, event) in veiled.told {
            watched.taking.push_back(partition);
            out.put(Output::Event { number, event });
        }
        veiled.asked.into_iter().for_each(|partition| self.install(now, number, partition, out));
    }

    fn settle(&mut self, number: u64, out: &mut Outbox<Output>) {
        let Some(watched) = self.queries.get_mut(&number) else { return };
        let epoch = watched.reader.epoch;
        if !watched.settled
            && watched.whole.is_idle()
            && watched.parts.values().all(|part| part.epoch == epoch && part.live)
        {
            watched.settled = true;
            out.put(Output::Event { number, event: Event::Settled });
        }
    }

    /// R3: reveals frames that were lost, though nothing followed them.
    fn heard_progress(&mut self, now: Now, progress: &Progress, out: &mut Outbox<Output>) {
        let partition = progress.partition;
        let Some(listeners) = self.listeners.get(&partition).cloned() else { return };
        let (term, last) = self.progress.get(&partition).copied().unwrap_or_default();
        // R1: terms and positions grow. This one came late, or from an owner that was deposed and does not know.
        if progress.term < term || progress.position < last {
            return;
        }
        // An owner begins with what it says of itself.
        let last = if progress.term > term { Position::ZERO } else { last };
        self.progress.insert(partition, (progress.term, progress.position));
        let ignored = self.is(Mutant::TailIgnored);
        let lost = last != progress.previous && !ignored;
        let reinstalls = !self.is(Mutant::NoReinstall);
        let (hears_early, hears_torn) = (!self.is(Mutant::EarlyIgnored), !self.is(Mutant::PieceIgnored));
        for number in listeners {
            let query = self.id(number);
            let sent = progress.sent.binary_search_by_key(&query, |(query, _)| *query);
            let sent = sent.ok().map(|at| progress.sent[at].1);
            let behind = progress.behind.binary_search(&query).is_ok();
            let Some(watched) = self.queries.get_mut(&number) else { continue };
            let untaken = watched.taking.contains(&partition) || watched.whole.holds(partition);
            let Some(part) = watched.parts.get_mut(&partition.number) else { continue };
            if !part.live || part.term > progress.term {
                continue;
            }
            let missed = sent.is_some_and(|sent| part.cursor.is_none_or(|cursor| cursor < sent));
            // The first progress behind an answer names what was sent since the progress before it: if that is behind the answer,
            // something may have been sent in between, and was named while nobody listened.
            let early = hears_early && !part.named && part.cursor.is_some_and(|cursor| cursor < progress.previous);
            // Whoever has nothing more to say has said the last piece, too.
            let torn = hears_torn && part.pieces.is_some();
            let missed = missed || !behind && (early || torn);
            // What an earlier owner has answered is not installed here, though the lease may be the same.
            if lost || missed && !ignored || part.term < progress.term && reinstalls {
                self.install(now, number, partition, out);
                continue;
            }
            part.heard = now.mono;
            if !behind && part.pieces.is_none() {
                part.cursor = part.cursor.max(Some(progress.position));
                part.named = true;
            }
            // It may wait for room that it was given already: that word was lost.
            if behind && !untaken {
                let frames = self.options.window;
                out.put(Output::Taken { partition, query, frames });
            }
        }
    }

    fn silence(&mut self, now: Now, out: &mut Outbox<Output>) {
        let patience = self.options.patience;
        let mut again = Vec::new();
        for (number, watched) in &self.queries {
            for (part, state) in &watched.parts {
                // New data that a partition has not switched to in time were lost on their way.
                let switching = state.live && state.epoch < watched.reader.epoch;
                let since = if switching || !state.live { state.asked } else { state.heard.max(state.asked) };
                let pause = if state.live { patience } else { patience / 8 };
                if now.mono.since(since) > pause {
                    again.push((*number, PartitionId { table: watched.watch.table, number: *part }));
                }
            }
        }
        if !self.is(Mutant::NoReinstall) {
            again.into_iter().for_each(|(number, partition)| self.install(now, number, partition, out));
        }
        if !self.queries.is_empty() {
            self.timers.set(Timer::Silence, now.mono + patience / 8);
        }
    }

    fn no_cursor(&mut self, number: u64, out: &mut Outbox<Output>) {
        let (open, kept) = (self.is(Mutant::CursorOpen), self.is(Mutant::CursorKept));
        if let Some(cursor) = self.queries.get_mut(&number).and_then(Watched::no_cursor).filter(|_| !kept) {
            let cursor = cursor.seal(&*self.sealer, open);
            out.put(Output::Event { number, event: Event::Progress { cursor } });
        }
    }

    fn first_cursor(&mut self, number: u64, out: &mut Outbox<Output>) {
        let open = self.is(Mutant::CursorOpen);
        if let Some(cursor) = self.queries.get_mut(&number).and_then(Watched::first_cursor) {
            let cursor = cursor.seal(&*self.sealer, open);
            out.put(Output::Event { number, event: Event::Progress { cursor } });
        }
    }

    /// Gives clients cursors to what they have been told.
    fn cursors(&mut self, now: Now, out: &mut Outbox<Output>) {
        let open = self.is(Mutant::CursorOpen);
        for (number, watched) in &mut self.queries {
            if let Some(cursor) = watched.cursor() {
                let cursor = cursor.seal(&*self.sealer, open);
                out.put(Output::Event { number: *number, event: Event::Progress { cursor } });
            }
        }
        if !self.queries.is_empty() {
            self.timers.set(Timer::Progress, now.mono + self.options.progress);
        }
    }

    /// R8: claims that expired are gone: an `update_data` by the server.
    fn expire(&mut self, now: Now, number: u64, out: &mut Outbox<Output>) {
        if self.is(Mutant::ExpiryIgnored) {
            return;
        }
        let Some(watched) = self.queries.get(&number) else { return };
        let Some(expires) = watched.watch.caller.expires else { return };
        if expires > now.wall {
            // The wall clock was set back.
            let left = Duration::from_micros(expires.0 - now.wall.0);
            return self.timers.set(Timer::Expiry(number), now.mono + left);
        }
        let known = if watched.watch.caller.app.is_empty() { Access::Public } else { Access::App };
        // Whoever is of another application does not become one of the table's own.
        let known = known.min(watched.watch.caller.access);
        // Nobody vouches any more for who it is.
        let caller = Caller { access: known, principal: String::new(), ..watched.watch.caller.clone() };
        let directory = self.directories.get(&watched.watch.table).ok_or(Refusal::Access);
        if let Err(refusal) = directory.and_then(|directory| self.may_read(directory, &caller)) {
            return self.end(number, refusal, out);
        }
        let veiled = !self.is(Mutant::BoundsTold);
        if let Some(watched) = self.queries.get_mut(&number) {
            (watched.watch.caller, watched.veiled) = (caller, veiled);
        }
        self.update(now, number, |reader| (reader.access, reader.claims) = (known, Packed::empty()), out);
    }

    fn owner(&mut self, now: Now, partition: PartitionId, lease: Option<LeaseNumber>, out: &mut Outbox<Output>) {
        let before = match lease {
            Some(lease) => self.owners.insert(partition, lease),
            None => self.owners.remove(&partition),
        };
        if lease.is_none() || before == lease || self.is(Mutant::NoReinstall) && before.is_some() {
            return;
        }
        // R3: what the last owner had in memory is gone.
        self.progress.remove(&partition);
        for number in self.listeners.get(&partition).cloned().unwrap_or_default() {
            self.install(now, number, partition, out);
        }
    }

    fn directory(&mut self, now: Now, directory: Arc<Directory>, out: &mut Outbox<Output>) {
        let table = directory.table();
        self.directories.insert(table, directory.clone());
        let queries = self.queries.iter().filter(|(_, watched)| watched.watch.table == table);
        for number in queries.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.admit(now, number, &directory, out);
        }
    }

    /// Lets a query go on in a table that is otherwise than before, or ends it.
    fn admit(&mut self, now: Now, number: u64, directory: &Directory, out: &mut Outbox<Output>) {
        let Some(watched) = self.queries.get(&number) else { return };
        let veiled = self.is_veiled(directory, &watched.watch.caller);
        let leaving = watched.leaving.is_some();
        match self.may_read(directory, &watched.watch.caller) {
            Err(refusal) if !leaving => self.end(number, refusal, out),
            _ => {
                if let Some(watched) = self.queries.get_mut(&number) {
                    watched.veiled = veiled;
                }
                self.spread(now, number, out);
            }
        }
    }

    fn dropped(&mut self, table: TableId, out: &mut Outbox<Output>) {
        self.directories.remove(&table);
        let numbers = self.queries.iter().filter(|(_, watched)| watched.watch.table == table);
        for number in numbers.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end(number, Refusal::UnknownTable, out);
        }
    }

    fn taken(&mut self, number: u64, events: u32, out: &mut Outbox<Output>) {
        let query = self.id(number);
        let Some(watched) = self.queries.get_mut(&number) else { return };
        for _ in 0..events {
            let Some(partition) = watched.taking.pop_front() else { return };
            out.put(Output::Taken { partition, query, frames: 1 });
        }
    }
}

impl Machine for Gateway {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        match input {
            Input::Watch { number, watch } => self.watch(now, number, *watch, out),
            Input::UpdateData { number, data } => self.update(now, number, |reader| reader.data = data, out),
            Input::Unwatch { number } => self.leave(now, number, out),
            Input::Taken { number, events } => self.taken(number, events, out),
            Input::Directory(directory) => self.directory(now, directory, out),
            Input::Dropped(table) => self.dropped(table, out),
            Input::Owner { partition, lease } => self.owner(now, partition, lease, out),
            Input::Frame { number, frame } => self.frames(now, number, *frame, out),
            Input::Progress(progress) => self.heard_progress(now, &progress, out),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Output>) {
        while let Some(timer) = self.timers.pop_due(now.mono) {
            match timer {
                Timer::Silence => self.silence(now, out),
                Timer::Progress => self.cursors(now, out),
                Timer::Expiry(number) => self.expire(now, number, out),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}
