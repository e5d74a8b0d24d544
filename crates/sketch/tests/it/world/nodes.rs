//! Sketching nodes: what they hold, what they say, how they fail.

use super::{CLIENTS, Carries, Event, MS, NODES, REPLICAS, THREADS, Where, World};
use bytes::Bytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Machine, Outbox};
use tidings_sketch::group::{self, Group};
use tidings_sketch::history::{self, History};
use tidings_sketch::replica::Command;
use tidings_sketch::sketcher::{self, Ranges, Sketcher};

pub struct Thread {
    pub sketcher: Sketcher<Bytes, Bytes>,
    group: Group<Bytes, Bytes>,
    client: u64,
    /// When the two machines are woken next.
    wakes: [u64; 2],
}

pub struct Node {
    pub life: u64,
    history: Arc<History>,
    pub threads: Vec<Thread>,
}

/// Who holds the two halves of the ring, and under which lease; nobody while a half moves.
#[derive(Debug, Default)]
pub struct Table {
    halves: Mutex<[Half; 2]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    owner: usize,
    lease: u32,
    moving: bool,
}

impl Table {
    fn half(at: KeyHash) -> usize {
        (at.0 >> 63) as usize
    }

    pub fn owner(&self, at: KeyHash) -> usize {
        self.halves.lock().unwrap()[Table::half(at)].owner
    }

    fn change(&self, half: usize, change: impl FnOnce(&mut Half)) {
        change(&mut self.halves.lock().unwrap()[half]);
    }
}

/// What one node holds.
#[derive(Debug)]
struct Held {
    node: usize,
    table: Arc<Table>,
}

impl Ranges for Held {
    fn held(&self, at: KeyHash) -> Option<LeaseNumber> {
        let half = self.table.halves.lock().unwrap()[Table::half(at)];
        (half.owner == self.node && !half.moving).then(|| LeaseNumber::new(half.lease))?
    }
}

fn range(half: usize) -> KeyRange {
    let start = (half as u64) << 63;
    KeyRange::new(KeyHash(start), KeyHash(start | u64::MAX >> 1))
}

impl World {
    pub(super) fn make_node(&mut self, node: usize, life: u64) -> Node {
        let options = history::Options {
            entries: self.plan.entries,
            shards: 2,
            tag_mask: u32::MAX >> (32 - self.plan.tag_bits),
            mutant: self.mutant,
        };
        let history = Arc::new(History::new(&options));
        let threads = (0..THREADS).map(|thread| {
            let held = Arc::new(Held { node, table: Arc::clone(&self.table) });
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
            let sketcher = sketcher::Options {
                patience: Duration::from_millis(40),
                allowance: None,
                mutant: self.mutant,
                ..sketcher::Options::of(REPLICAS, if self.plan.tolerant { REPLICAS - 1 } else { 1 }, secret)
            };
            let client = life * (NODES * THREADS) as u64 + (node * THREADS + thread) as u64;
            assert!(client < CLIENTS - 1, "more lives than clients are registered");
            let group = group::Options {
                group: 1,
                client,
                last_nonce: 0,
                replicas: REPLICAS,
                kind: match self.plan.tolerant {
                    true => group::Kind::CrashTolerant,
                    false => group::Kind::Byzantine { faults: 1, reads_pass_by: false },
                },
                resend: Duration::from_millis(60),
                give_up: Duration::from_millis(900),
                mutant: self.mutant,
            };
            Thread {
                sketcher: Sketcher::new(sketcher, Arc::clone(&history), held),
                group: Group::new(group).expect("four bear one"),
                client,
                wakes: [0; 2],
            }
        });
        Node { life, threads: threads.collect(), history }
    }

    pub(super) fn tell_sketcher(&mut self, at: Where, input: sketcher::Input<Bytes, Bytes>) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.nodes[at.node].threads[at.thread].sketcher.handle(now, input, &mut out);
        self.sketcher_outputs(at, out);
    }

    pub(super) fn wake_sketcher(&mut self, at: Where) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.nodes[at.node].threads[at.thread].sketcher.wake(now, &mut out);
        self.sketcher_outputs(at, out);
    }

    pub(super) fn tell_group(&mut self, at: Where, input: group::Input<Bytes, Bytes>) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.nodes[at.node].threads[at.thread].group.handle(now, input, &mut out);
        self.group_outputs(at, out);
    }

    pub(super) fn wake_group(&mut self, at: Where) {
        let (now, mut out) = (self.time(), Outbox::new());
        self.nodes[at.node].threads[at.thread].group.wake(now, &mut out);
        self.group_outputs(at, out);
    }

    fn sketcher_outputs(&mut self, at: Where, out: Outbox<sketcher::Output<Bytes, Bytes>>) {
        for output in out {
            match output {
                sketcher::Output::Fast(call, replica, request) => {
                    if !self.lost() {
                        let delay = self.delay();
                        self.after(delay, Event::FastAt(replica, at, call, request));
                    }
                }
                sketcher::Output::Replicate(call, _, request) => self.tell_group(at, group::Input::Ask(call, request)),
                sketcher::Output::Answer { id, response, how, sigma } => self.answered(id, response, how, sigma),
                sketcher::Output::Refuse(id, why) => self.refused(id, why),
            }
        }
        let thread = &mut self.nodes[at.node].threads[at.thread];
        if let Some(deadline) = thread.sketcher.deadline().filter(|deadline| deadline.0 != thread.wakes[0]) {
            thread.wakes[0] = deadline.0;
            self.after(deadline.0.saturating_sub(self.now), Event::WakeSketcher(at));
        }
    }

    fn group_outputs(&mut self, at: Where, out: Outbox<group::Output<Bytes, Bytes>>) {
        let client = self.nodes[at.node].threads[at.thread].client;
        for output in out {
            match output {
                group::Output::Send { to, call, nonce, whole, request } => {
                    let command = Command { client, nonce, request };
                    self.replay(at, call, &command);
                    if self.plan.tolerant && self.faulty() && self.rng.one_in(2) {
                        let delay = self.delay();
                        self.after(delay, Event::Group(at, group::Input::Failed(call, to)));
                    } else if !self.lost() {
                        let delay = self.delay();
                        self.after(delay, Event::CommandAt(to, at, call, whole, command));
                    }
                }
                // Threads hand over to one another, so that inputs come in any order.
                group::Output::Done(call, answer, sigma) => {
                    let delay = self.delay();
                    self.after(delay, Event::Sketcher(at, sketcher::Input::Replicated(call, answer, sigma)));
                }
                group::Output::Refused(call, why, one) => {
                    self.after(0, Event::Sketcher(at, sketcher::Input::NotReplicated(call, why, one)));
                }
            }
        }
        let thread = &mut self.nodes[at.node].threads[at.thread];
        if let Some(deadline) = thread.group.deadline().filter(|deadline| deadline.0 != thread.wakes[1]) {
            thread.wakes[1] = deadline.0;
            self.after(deadline.0.saturating_sub(self.now), Event::WakeGroup(at));
        }
    }

    /// A half's lease ends at once; its owner hears of it, and then somebody holds it under the next number: mostly the other
    /// node, sometimes the same again (a move that was called off).
    pub(super) fn move_range(&mut self) {
        let half = self.rng.below(2) as usize;
        if !self.table.halves.lock().unwrap()[half].moving {
            self.counts.moved += 1;
            match self.plan.carries {
                Carries::Early => {
                    self.carry(half);
                    self.after(20 * MS, Event::Freeze(half));
                }
                Carries::Frozen | Carries::Leaked | Carries::Nothing => self.begin_move(half),
            }
        }
        if self.faulty() {
            let pause = self.rng.between(30, 200) * MS;
            self.after(pause, Event::Move);
        }
    }

    pub(super) fn freeze(&mut self, half: usize) {
        if !self.table.halves.lock().unwrap()[half].moving {
            self.begin_move(half);
        }
    }

    fn carry(&mut self, half: usize) {
        let owner = self.table.halves.lock().unwrap()[half].owner;
        self.carried[half] = Some(self.nodes[owner].history.carry(range(half)));
    }

    fn begin_move(&mut self, half: usize) {
        let owner = self.table.halves.lock().unwrap()[half].owner;
        let life = self.nodes[owner].life;
        self.table.change(half, |half| half.moving = true);
        match self.plan.carries {
            Carries::Frozen => self.carry(half),
            Carries::Leaked if self.carried[half].is_none() => self.carry(half),
            Carries::Leaked => {}
            Carries::Nothing | Carries::Early => self.lose(half, owner),
        }
        let pause = self.rng.between(1, 10) * MS;
        self.after(pause, Event::Settle(half, life));
    }

    fn lose(&mut self, half: usize, owner: usize) {
        let at = Where { node: owner, life: self.nodes[owner].life, thread: 0 };
        self.tell_sketcher(at, sketcher::Input::Lost(range(half)));
    }

    /// A move ends: whoever holds the half next has what was carried. Or it is called off, if its owner still lives.
    pub(super) fn settle(&mut self, half: usize, life: u64) {
        if matches!(self.plan.carries, Carries::Frozen | Carries::Leaked) {
            let owner = self.table.halves.lock().unwrap()[half].owner;
            if self.nodes[owner].life == life && self.rng.one_in(3) {
                if self.plan.carries == Carries::Frozen {
                    self.carried[half] = None;
                }
                return self.table.change(half, |half| half.moving = false);
            }
            self.lose(half, owner);
        }
        let next = usize::from(!self.rng.one_in(4));
        let owner = (self.table.halves.lock().unwrap()[half].owner + next) % NODES;
        if let Some(carried) = self.carried[half].take() {
            let history = &self.nodes[owner].history;
            history.drop_range(range(half));
            history.take_over(range(half), &carried, true);
        }
        self.table.change(half, |half| *half = Half { owner, lease: half.lease + 1, moving: false });
    }

    /// A node loses its memory; its ranges are granted to somebody under new numbers.
    pub(super) fn crash(&mut self) {
        self.counts.crashed += 1;
        let node = self.rng.below(NODES as u64) as usize;
        let life = self.nodes[node].life + 1;
        self.nodes[node] = self.make_node(node, life);
        for half in 0..2 {
            let Half { owner, moving, .. } = self.table.halves.lock().unwrap()[half];
            if owner == node && !moving {
                self.begin_move(half);
            }
        }
        for asked in self.asked.iter_mut().filter(|asked| asked.at.node == node && asked.at.life < life) {
            asked.ended = true;
        }
        if self.faulty() {
            let pause = self.rng.between(500, 1_500) * MS;
            self.after(pause, Event::Crash);
        }
    }
}
