//! A client's live query: what it hears is folded; a channel that breaks is opened again elsewhere, from the last cursor. One that
//! is told no more than that something may have changed reads all rows again (R9).

use super::{AGAIN, Client, Out, REREADS, Rereading, reads};
use crate::kernel::{Effect, HostId};
use crate::scenarios::tables::fact::{Fact, Rows, of_team, value_of};
use crate::scenarios::tables::files::LASTING;
use crate::scenarios::tables::letter::{Asked, Letter, Watches};
use crate::scenarios::tables::node::SEAL;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now};
use tidings_predicate::Key;
use tidings_predicate::query::Ask;
use tidings_tables::calls::{Caller, Level, Read, Span, Visible};
use tidings_tables::gateway::{Event, Start};
use tidings_tables::live::Change;
use tidings_tables::refusal::Refusal;

/// How often a client says that it is there.
const KEEP: Duration = Duration::from_secs(2);
/// A channel on which nothing came for so long is given up, and one on which something is missing.
const SILENCE: Duration = Duration::from_secs(9);
const MISSING: Duration = Duration::from_secs(3);
/// Once in so many times a client asks by the clock, which it may not (R9).
const CLOCKED: u64 = 12;
/// Of those whose live query is read again: more than there ever is.
const LIMIT: usize = 1_000;
/// What a cursor has before its positions, sealed as it is here.
const HEAD: usize = 34;

/// What a client has of its live query.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// Its number, the node, and when the node was heard last.
    watch: u64,
    node: HostId,
    heard: Mono,
    keep: Mono,
    keeps: u64,
    taken: u32,
    /// The next event, those that came before their time, and since when one is missing.
    next: u64,
    early: BTreeMap<u64, Result<Event, Refusal>>,
    missing: Option<Mono>,
    pub rows: Rows,
    /// Pieces that have come, by the first key of their partition.
    coming: BTreeMap<Option<Key>, Rows>,
    cursor: Option<Vec<u8>>,
    /// What it had when it was given that.
    kept: Rows,
    settling: bool,
    /// It went on from a cursor with all that it had heard, which may be more than the cursor says.
    ahead: bool,
    /// It asks by the clock.
    clocked: bool,
    /// What the client said of itself, and before that.
    teams: Vec<char>,
    /// The rows are to be read again.
    again: bool,
}

impl Live {
    pub fn deadline(&self) -> Mono {
        self.keep
    }

    /// The client goes: its node and number, and whether what it has may be of two readers.
    pub fn leave(&mut self) -> (HostId, u64, bool) {
        let left = (self.node, self.watch, self.settling || self.teams.len() > 1);
        // Numbers begin above: whatever still comes is of a watch that it has left.
        self.watch = 0;
        (self.early, self.coming, self.missing) = (BTreeMap::new(), BTreeMap::new(), None);
        left
    }
}

impl Client {
    /// What the live query asks: clients of one parity ask the same.
    pub(super) fn query(&self) -> Ask {
        let predicate = if self.number.is_multiple_of(2) { "" } else { "n % 2 == 0" };
        Ask { predicate: predicate.to_owned(), ..Ask::default() }
    }

    /// Opens the live query at some node, from the last cursor if there is one.
    pub(super) fn open_live(&mut self, now: Now, out: &mut Out) {
        let node = self.rng.pick(&self.nodes).copied().unwrap_or_default();
        let watch = self.id(0);
        let clocked = !self.calm && self.rng.one_in(CLOCKED) && !self.is_device();
        // Now and then it begins anew.
        let cursor = self.me.live.cursor.take().filter(|_| !clocked && !self.rng.one_in(4));
        let (team, keeps) = (self.me.team, self.me.live.keeps);
        self.comes();
        let start = match &cursor {
            Some(cursor) => Start::Cursor(cursor.clone()),
            None => Start::Everything,
        };
        let ahead = cursor.is_some() && !self.keeps_both();
        let rows = match (&cursor, ahead) {
            (None, _) => Rows::new(),
            (Some(_), true) => std::mem::take(&mut self.me.live.rows),
            (Some(_), false) => std::mem::take(&mut self.me.live.kept),
        };
        let (heard, keep) = (now.mono, now.mono + KEEP);
        self.me.live = Live {
            watch,
            node,
            heard,
            keep,
            keeps,
            kept: rows.clone(),
            rows,
            cursor,
            ahead,
            clocked,
            teams: vec![team],
            ..Live::default()
        };
        let mut ask = self.query();
        if self.is_rereader() {
            ask.limit = Some(LIMIT);
        }
        if clocked {
            ask.project = vec![("at".to_owned(), "now()".to_owned())];
        }
        let caller = Caller { expires: self.me.expires, ..self.caller() };
        let asks = Watches { caller, ask, data: of_team(team), start, endpoint: self.endpoint() };
        self.post.send(out, node, Letter::Watches { watch, table: LASTING, asks });
    }

    /// T1: whether it returns with what it had at its cursor, as who stores both together. Others return with all that they heard.
    fn keeps_both(&self) -> bool {
        self.number < 2
    }

    /// Whether its live query is read again: somebody whose claims do not end.
    fn is_rereader(&self) -> bool {
        self.habits.rereads && self.number == 2
    }

    /// Reads what its live query asks, until it is answered.
    pub(super) fn read_again(&mut self, now: Now, out: &mut Out) {
        let (id, team) = (self.id(REREADS), self.me.team);
        let again = now.mono + Duration::from_millis(self.rng.between(AGAIN.0, AGAIN.1));
        self.reread = Some(Rereading { id, team, again });
        let read = Read { ask: self.query(), ..reads(Span::All, Level::Latest, team) };
        let caller = self.caller();
        self.ask(id, LASTING, caller, Asked::Scan(Box::new(read), Vec::new()), out);
    }

    /// All rows, as they were behind the last word that they may have changed.
    pub(super) fn reread(&mut self, id: u64, records: Vec<Visible>, out: &mut Out) {
        let Some(Rereading { team, .. }) = self.reread.take_if(|reread| reread.id == id) else { return };
        records.iter().for_each(|record| self.shows(record, vec![team], out));
        let row = |record: Visible| (record.key.clone(), (record.version, value_of(&record)));
        self.me.live.rows = records.into_iter().map(row).collect();
    }

    /// Says something else of itself.
    pub fn change_team(&mut self, now: Now, out: &mut Out) {
        let team = other(self.me.team);
        self.me.team = team;
        if self.me.device.away {
            return self.reconnect(now, out);
        }
        self.me.live.teams.retain(|other| *other != team);
        self.me.live.teams.push(team);
        self.send_keep(now, out);
        self.keep();
    }

    /// Lets go of its channel, and opens another.
    pub fn reconnect(&mut self, now: Now, out: &mut Out) {
        let Live { node, watch, .. } = self.me.live;
        self.post.send(out, node, Letter::Ends { watch });
        self.open_live(now, out);
        self.keep();
    }

    /// The same without what it was told before.
    pub fn begin_anew(&mut self, now: Now, out: &mut Out) {
        self.me.live.cursor = None;
        self.reconnect(now, out);
    }

    /// Takes back what it said of itself last, and returns with its cursor: what it has by now may be of both.
    pub fn turn_back(&mut self, now: Now, out: &mut Out) {
        self.me.team = other(self.me.team);
        self.reconnect(now, out);
    }

    fn send_keep(&mut self, now: Now, out: &mut Out) {
        let live = &mut self.me.live;
        live.keep = now.mono + KEEP;
        live.keeps += 1;
        let (watch, seq, taken, data) = (live.watch, live.keeps, live.taken, of_team(self.me.team));
        self.post.send(out, live.node, Letter::Keeps { watch, seq, taken, data });
    }

    pub(super) fn wake_live(&mut self, now: Now, out: &mut Out) {
        if self.me.device.away {
            return;
        }
        let live = &self.me.live;
        let silent = now.mono.since(live.heard) > SILENCE;
        let broken = live.missing.is_some_and(|since| now.mono.since(since) > MISSING);
        if silent || broken {
            self.reconnect(now, out);
        } else if live.keep <= now.mono {
            self.send_keep(now, out);
        }
    }

    pub(super) fn kept(&mut self, now: Now, (from, watch): (HostId, u64), there: bool, out: &mut Out) {
        if (self.me.live.node, self.me.live.watch) != (from, watch) {
            return;
        }
        match there {
            true => self.me.live.heard = now.mono,
            // The word that opened it may only be late: silence decides.
            false if self.me.live.next == 0 => {}
            false => self.reconnect(now, out),
        }
    }

    pub(super) fn happens(&mut self, now: Now, watch: u64, seq: u64, event: Result<Event, Refusal>, out: &mut Out) {
        if self.me.live.watch != watch || seq < self.me.live.next {
            return;
        }
        self.me.live.early.insert(seq, event);
        while self.me.live.watch == watch
            && let Some(event) = self.me.live.early.remove(&self.me.live.next)
        {
            self.me.live.next += 1;
            self.me.live.heard = now.mono;
            match event {
                Ok(event) => self.hear(event, out),
                Err(refusal) => self.ended(now, &refusal, out),
            }
        }
        if std::mem::take(&mut self.me.live.again) {
            self.read_again(now, out);
        }
        let live = &mut self.me.live;
        live.missing = (!live.early.is_empty()).then(|| live.missing.unwrap_or(now.mono));
    }

    /// The query is over: it is opened again.
    fn ended(&mut self, now: Now, refusal: &Refusal, out: &mut Out) {
        if self.me.live.clocked {
            let refused = matches!(refusal, Refusal::Query(_));
            out.put(Effect::Fact(Fact::Clocked { refused }.into()));
        }
        self.open_live(now, out);
    }

    fn hear(&mut self, event: Event, out: &mut Out) {
        if self.me.live.clocked && matches!(event, Event::Reset { .. } | Event::Changes(_) | Event::Again) {
            out.put(Effect::Fact(Fact::Clocked { refused: false }.into()));
        }
        match event {
            Event::Reset { start, end, rows, first, last } => {
                self.me.live.taken += 1;
                rows.iter().for_each(|record| self.shows(record, self.me.live.teams.clone(), out));
                let live = &mut self.me.live;
                let coming = live.coming.entry(start.clone()).or_default();
                if first {
                    coming.clear();
                }
                coming.extend(rows.into_iter().map(|record| (record.key.clone(), (record.version, value_of(&record)))));
                if last {
                    let coming = live.coming.remove(&start).unwrap_or_default();
                    let inside = |key: &Key| {
                        start.as_ref().is_none_or(|start| start <= key) && end.as_ref().is_none_or(|end| key < end)
                    };
                    live.rows.retain(|key, _| !inside(key));
                    live.rows.extend(coming);
                }
            }
            Event::Changes(changes) => {
                self.me.live.taken += 1;
                changes.into_iter().for_each(|change| self.changes(change, out));
            }
            Event::Again => {
                self.me.live.taken += 1;
                self.me.live.again = true;
            }
            Event::Settling => self.me.live.settling = true,
            Event::Settled => self.me.live.settling = false,
            Event::Progress { cursor } => self.given(cursor, out),
        }
    }

    fn changes(&mut self, change: Change, out: &mut Out) {
        match change {
            Change::Put(record) => {
                self.shows(&record, self.me.live.teams.clone(), out);
                self.put(record, out);
            }
            Change::Leave { key } => {
                self.me.live.rows.remove(&key);
                out.put(Effect::Fact(Fact::Leaves { client: self.number, key }.into()));
            }
        }
    }

    fn put(&mut self, record: Visible, out: &mut Out) {
        let (client, value) = (self.number, value_of(&record));
        let Visible { key, version, .. } = record;
        let exactly = self.habits.whole && !self.me.live.ahead;
        let had = self.me.live.rows.insert(key.clone(), (version, value)).map(|(had, _)| had);
        let fact = match had {
            Some(had) if version < had || version == had && exactly => Fact::Repeats { client, key, version, had },
            _ => Fact::Tells(client),
        };
        out.put(Effect::Fact(fact.into()));
    }

    /// A cursor: everything up to there has been told.
    fn given(&mut self, cursor: Vec<u8>, out: &mut Out) {
        self.begins_watch();
        let (client, rereads, live) = (self.number, self.is_rereader(), &mut self.me.live);
        let sealed = cursor.first() == Some(&SEAL);
        // R4: one that names no partition says that everything is to come, and nothing about what is there already.
        let says = cursor.len() > HEAD;
        let folds = self.habits.whole && !rereads;
        let exactly = (says && folds && !live.ahead && !live.clocked && !live.settling).then(|| {
            // The data epoch is the client's own count, and no part of where it is.
            cursor.iter().enumerate().filter(|(at, _)| !(26..34).contains(at)).map(|(_, byte)| *byte).collect()
        });
        let rows = live.rows.clone();
        (live.cursor, live.kept) = (Some(cursor), rows.clone());
        out.put(Effect::Fact(Fact::Cursor { client, sealed, exactly, rows }.into()));
    }

    /// What it was told, and what there is.
    pub(super) fn compared(&self, fresh: Rows) -> Fact {
        let (client, told, settling) = (self.number, self.me.live.rows.clone(), self.me.live.settling);
        let claims = if self.me.expires.is_some() { 0 } else { self.number % 2 + 1 };
        let query = format!("{:?} {} {claims} {}", self.query().predicate, self.me.team, self.compares);
        Fact::Compared { client, query, told, fresh, settling }
    }
}

fn other(team: char) -> char {
    if team == 'a' { 'b' } else { 'a' }
}
