//! Many random calls over a log that delays, refuses and forgets; in the end nothing is left behind.

use super::harness::*;
use crate::master::Input;
use std::collections::BTreeMap;
use tidings_base::agreed::{Heard, Refusal};
use tidings_base::{Mono, OpId, Seeded};
use tidings_wire::v1;
use tidings_wire::v1::LockMode::{Exclusive, Shared};
use tidings_wire::v1::cell_message::Message;

const PATHS: [&str; 5] = ["/a", "/d", "/d/b", "/d/c", "/acl/x"];

struct Run {
    cell: Cell,
    rng: Seeded,
    clients: Vec<Client>,
    /// Opens under way and done: whose, and the number.
    handles: Vec<(usize, u64)>,
    pending: BTreeMap<OpId, usize>,
}

impl Run {
    fn step(&mut self) {
        match self.rng.below(12) {
            0 => self.log(),
            1 => {
                let time = millis(self.rng.below(700));
                self.cell.pass(time);
            }
            2 => self.keep_alive(),
            3 => {
                let until = if self.rng.one_in(2) { Mono::NEVER } else { self.cell.now.mono };
                self.cell.hear(Heard::LeaseUntil(until));
            }
            4 => {
                while let Some(op) = self.cell.barriers.pop_front() {
                    let index = tidings_base::LogIndex(1);
                    self.cell.hear(Heard::Passed { op, index });
                }
            }
            5 => {
                if let Some(op) = self.pending.keys().next().copied().filter(|_| self.rng.one_in(4)) {
                    self.cell.input(Input::Cancel { op });
                    self.pending.remove(&op);
                }
            }
            _ => self.call(),
        }
        self.pending.retain(|op, _| !self.cell.answers.contains_key(op));
        self.cell.answers.clear();
        self.cell.measured.clear();
    }

    /// The oldest proposal is applied, refused, or nobody knows.
    fn log(&mut self) {
        for _ in 0..self.rng.below(6) {
            match self.rng.below(10) {
                0 if !self.cell.log.is_empty() => self.cell.refuse_one(Refusal::Busy),
                1 => {
                    if let Some((op, command)) = self.cell.log.pop_front() {
                        if self.rng.one_in(2) {
                            let _ = self.cell.apply(&command);
                        }
                        self.cell.hear(Heard::Unknown { op });
                    }
                }
                _ => drop(self.cell.apply_one()),
            }
        }
    }

    fn keep_alive(&mut self) {
        let who = self.rng.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[who];
        let ack = Some(v1::CellAck { epoch: client.epoch, seq: self.rng.below(40) });
        let keep = Message::KeepAlive(v1::KeepAlive { link: client.link, ack, wait_ms: 0 });
        let renew = Message::RenewCache(v1::RenewCache { link: client.link, clock_us: None });
        let (keep, renew) = (client.inside(0, keep), client.outside(renew));
        self.cell.send(keep);
        self.cell.send(renew);
    }

    fn call(&mut self) {
        let who = self.rng.below(self.clients.len() as u64) as usize;
        let path = PATHS[self.rng.below(PATHS.len() as u64) as usize];
        let mine: Vec<u64> = self.handles.iter().filter(|handle| handle.0 == who).map(|handle| handle.1).collect();
        let handle = self.rng.pick(&mine).copied().unwrap_or(1);
        let mode = if self.rng.one_in(3) { Shared } else { Exclusive };
        let number = self.clients[who].number.saturating_sub(self.rng.below(4));
        let create = v1::CreateNode { ephemeral: self.rng.one_in(2), directory: path == "/d", ..Default::default() };
        let message = match self.rng.below(12) {
            0..3 => {
                self.handles.push((who, self.clients[who].number + 1));
                Message::Open(v1::OpenNode { lock_delay_ms: Some(500), ..all(path, Some(create)) })
            }
            3 => read(path),
            4 => Message::Read(v1::ReadNode { target: at_path("/d"), children: true, ..Default::default() }),
            5 => write(at_handle(handle), path),
            6 => delete(at_path(path)),
            7 | 8 => acquire(handle, mode),
            9 => release(handle),
            10 => close(handle),
            _ => Message::CancelAcquire(v1::CancelAcquire { handle, number }),
        };
        let client = &mut self.clients[who];
        client.answered_below = client.number.saturating_sub(50);
        // Now and then the last call comes a second time.
        let request = match self.rng.one_in(8) {
            true => client.inside(client.number.max(1), message),
            false => client.numbered(message),
        };
        let op = self.cell.send(request);
        self.pending.insert(op, who);
        // Whose session is over begins another one.
        if self.cell.state.session(crate::SessionId(self.clients[who].session)).is_none() {
            self.begin(who);
        }
    }

    fn begin(&mut self, who: usize) {
        self.handles.retain(|handle| handle.0 != who);
        self.cell.instant = true;
        let lapsed = self.cell.now.mono;
        self.cell.hear(Heard::LeaseUntil(Mono::NEVER));
        self.clients[who] = self.cell.client_with(&format!("client {who}"), 3_000);
        self.cell.hear(Heard::LeaseUntil(lapsed));
        self.cell.instant = false;
    }
}

#[test]
fn whatever_happens_nothing_is_left_behind() {
    for seed in 0..40 {
        let mut cell = Cell::new();
        let clients = (0..4).map(|who| cell.client_with(&format!("client {who}"), 3_000)).collect();
        cell.instant = false;
        let (rng, pending) = (Seeded::new(seed), BTreeMap::new());
        let mut run = Run { cell, rng, clients, handles: Vec::new(), pending };
        for _ in 0..1_500 {
            run.step();
        }
        // Everybody goes away, and the log does its work.
        let mut cell = run.cell;
        cell.instant = true;
        cell.hear(Heard::LeaseUntil(Mono::NEVER));
        for _ in 0..40 {
            cell.pass(secs(5));
        }
        let left = cell.master.left_behind();
        assert!(left.is_empty(), "seed {seed}: {left}");
        assert_eq!(cell.state.session_count(), 0, "seed {seed}");
    }
}
