//! Live queries of clients: each is a channel on which events come in order, or it breaks.

use super::{Node, Out};
use crate::kernel::HostId;
use crate::scenarios::tables::letter::{Letter, Watches};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now};
use tidings_predicate::Packed;
use tidings_tables::gateway::{self, Event, Watch};
use tidings_tables::refusal::Refusal;

/// A channel on which nothing came for so long is closed.
const SILENCE: Duration = Duration::from_secs(9);
/// How often that is looked for.
const SWEEP: Duration = Duration::from_secs(3);
/// Queries that have ended and are remembered: a repeated request must not open one again.
const ENDED: usize = 256;

/// A live query of a client.
#[derive(Debug)]
struct Channel {
    client: (HostId, u64),
    heard: Mono,
    next: u64,
    /// The last letter with which the client kept it, and how many events it had taken.
    kept: (u64, u32),
}

/// The channels of one process.
#[derive(Debug)]
pub(super) struct Channels {
    /// By the gateway's number.
    open: BTreeMap<u64, Channel>,
    /// The gateway's number by the client's; none = it has ended.
    numbers: BTreeMap<(HostId, u64), Option<u64>>,
    last: u64,
    sweep: Option<Mono>,
}

impl Channels {
    pub fn new() -> Channels {
        Channels { open: BTreeMap::new(), numbers: BTreeMap::new(), last: 0, sweep: None }
    }

    pub fn deadline(&self) -> Option<Mono> {
        self.sweep
    }
}

impl Node {
    pub(super) fn client_watches(&mut self, now: Now, client: (HostId, u64), table: u8, asks: Watches, out: &mut Out) {
        if self.channels.numbers.contains_key(&client) {
            return;
        }
        let Some(entry) = self.files.read(table) else { return };
        self.tell_gateway(now, &entry, out);
        self.channels.last += 1;
        let number = self.channels.last;
        self.channels.open.insert(number, Channel { client, heard: now.mono, next: 0, kept: (0, 0) });
        self.channels.numbers.insert(client, Some(number));
        self.channels.sweep.get_or_insert(now.mono + SWEEP);
        let Watches { caller, ask, data, start, endpoint } = asks;
        let (table, newer_than) = (entry.directory.table(), None);
        let watch = Box::new(Watch { table, ask, caller, data, start, newer_than, endpoint });
        self.feed_gateway(now, gateway::Input::Watch { number, watch }, out);
    }

    pub(super) fn client_keeps(
        &mut self,
        now: Now,
        client: (HostId, u64),
        (seq, taken): (u64, u32),
        data: Packed,
        out: &mut Out,
    ) {
        let number = self.channels.numbers.get(&client).copied().flatten();
        let there = number.is_some();
        self.post.send(out, client.0, Letter::Kept { watch: client.1, there });
        let Some(number) = number else { return };
        let Some(channel) = self.channels.open.get_mut(&number) else { return };
        channel.heard = now.mono;
        if channel.kept.0 >= seq {
            return;
        }
        let (_, before) = std::mem::replace(&mut channel.kept, (seq, taken));
        self.feed_gateway(now, gateway::Input::UpdateData { number, data }, out);
        self.feed_gateway(now, gateway::Input::Taken { number, events: taken.saturating_sub(before) }, out);
    }

    pub(super) fn client_ends(&mut self, now: Now, client: (HostId, u64), out: &mut Out) {
        if let Some(number) = self.channels.numbers.get(&client).copied().flatten() {
            self.close(number);
            self.feed_gateway(now, gateway::Input::Unwatch { number }, out);
        }
    }

    fn close(&mut self, number: u64) {
        if let Some(channel) = self.channels.open.remove(&number) {
            self.channels.numbers.insert(channel.client, None);
        }
        while self.channels.numbers.len() > self.channels.open.len() + ENDED {
            let Some(old) = self.channels.numbers.iter().find(|(_, open)| open.is_none()).map(|(old, _)| *old) else {
                return;
            };
            self.channels.numbers.remove(&old);
        }
    }

    /// The gateway has something for a client.
    pub(super) fn happens(&mut self, number: u64, event: Result<Event, Refusal>, out: &mut Out) {
        let Some(channel) = self.channels.open.get_mut(&number) else { return };
        let ((host, watch), seq) = (channel.client, channel.next);
        channel.next += 1;
        let ended = event.is_err();
        self.post.send(out, host, Letter::Happens { watch, seq, event });
        if ended {
            self.close(number);
        }
    }

    pub(super) fn sweep(&mut self, now: Now, out: &mut Out) {
        if self.channels.sweep.is_none_or(|at| now.mono < at) {
            return;
        }
        let silent = self.channels.open.iter().filter(|(_, channel)| now.mono.since(channel.heard) > SILENCE);
        for number in silent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close(number);
            self.feed_gateway(now, gateway::Input::Unwatch { number }, out);
        }
        self.channels.sweep = (!self.channels.open.is_empty()).then(|| now.mono + SWEEP);
    }
}
