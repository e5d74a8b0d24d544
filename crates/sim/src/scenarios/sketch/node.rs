//! A sketching node's host: for each site threads of sketcher and group, which share a history.

use super::fact::{Fact, Life};
use super::letter::{Asker, Letter, Post};
use super::ring::{self, PARTS, Ring};
use super::seat::GROUP;
use super::town::Habits;
use crate::kernel::{Effect, HostId, Seat};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidings_base::{KeyHash, LeaseNumber, Machine, Mono, Now, Outbox, Seeded};
use tidings_sketch::group::{self, Group};
use tidings_sketch::history::{self, History};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::Command;
use tidings_sketch::replica::pages;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::sketcher::{self, Ask, Clean, How, Kind, Ranges, Refusal, Sketcher, Way};
use tidings_sketch::{CallId, RequestId, session};

/// Threads of a node, for each site.
const THREADS: usize = 2;
/// How long a replica has for a fast answer.
const PATIENCE: Duration = Duration::from_millis(100);
/// When replicas are asked again.
const RESEND: Duration = Duration::from_millis(150);
/// When a call is given up.
pub const GIVE_UP: Duration = Duration::from_secs(2);

/// How the group is asked, under this name.
pub fn group_options(habits: &Habits, client: u64) -> group::Options {
    group::Options {
        group: GROUP,
        client,
        last_nonce: 0,
        replicas: habits.replicas,
        kind: group::Kind::Byzantine { faults: habits.faults, reads_pass_by: habits.direct },
        resend: RESEND,
        give_up: GIVE_UP,
        mutant: habits.mutant,
    }
}

/// What a node holds: what the ring says, where the node has dealt with it.
#[derive(Debug)]
struct Held {
    node: usize,
    ring: Ring,
    clean: Mutex<Clean>,
}

impl Held {
    fn clean(&self) -> MutexGuard<'_, Clean> {
        self.clean.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranges for Held {
    fn held(&self, at: KeyHash) -> Option<LeaseNumber> {
        self.clean().held(at, self.ring.held(self.node, ring::part(at)))
    }
}

/// Requests that have reached a node. A connection brings each once, and ends with the process; the network may bring it twice,
/// and to the process that comes after.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<Mutex<BTreeSet<u64>>>);

impl Taken {
    fn is_new(&self, id: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }
}

struct Thread {
    sketcher: Sketcher<Bytes, Bytes>,
    group: Group<Bytes, Bytes>,
    client: u64,
    /// The pages of calls that the group was asked.
    pages: BTreeMap<CallId, u64>,
}

struct Asked {
    from: HostId,
    page: u64,
    write: bool,
    thread: usize,
}

/// The process.
pub struct Node {
    life: Life,
    threads: Vec<Thread>,
    held: Arc<Held>,
    replicas: Vec<HostId>,
    post: Post,
    habits: Habits,
    sketching: Sketching,
    asked: BTreeMap<u64, Asked>,
    taken: Taken,
    /// A mutant's: reads that wait for another one's answer.
    joined: BTreeMap<u64, Vec<u64>>,
    rng: Seeded,
}

type Out = Outbox<Effect<Fact>>;

impl Node {
    /// Starts with nothing in memory, and with names in the group that nobody had.
    pub fn start(
        mut seat: Seat,
        node: usize,
        ring: Ring,
        replicas: Vec<HostId>,
        (post, taken): (Post, Taken),
        habits: Habits,
        mut client: impl FnMut() -> u64,
    ) -> Node {
        let table = history::Options {
            entries: habits.entries,
            shards: PARTS,
            tag_mask: u32::MAX >> (32 - habits.tag_bits),
            mutant: habits.mutant,
        };
        let histories: Vec<_> = (0..habits.sites).map(|_| Arc::new(History::new(&table))).collect();
        let held = Arc::new(Held { node, ring, clean: Mutex::default() });
        let threads = histories.iter().flat_map(|history| [history; THREADS]).map(|history| {
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&seat.rng.next_u64().to_le_bytes());
            let options = sketcher::Options {
                patience: PATIENCE,
                allowance: None,
                mutant: habits.mutant,
                ..sketcher::Options::of(habits.replicas, habits.faults, secret)
            };
            let client = client();
            Thread {
                sketcher: Sketcher::new(options, Arc::clone(history), Arc::clone(&held) as Arc<dyn Ranges>),
                group: Group::new(group_options(&habits, client)).expect("there are enough replicas"),
                client,
                pages: BTreeMap::new(),
            }
        });
        Node {
            life: Life { host: seat.host, start: seat.starts },
            threads: threads.collect(),
            held,
            replicas,
            post,
            sketching: habits.sketching(),
            habits,
            asked: BTreeMap::new(),
            taken,
            joined: BTreeMap::new(),
            rng: seat.rng,
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }

    /// Fast answers that were not the remembered ones, and silences, by all replicas.
    pub fn charges(&self, now: Mono) -> (u64, u64) {
        let standing = self.threads.iter().flat_map(|thread| thread.sketcher.standing(now));
        standing.fold((0, 0), |(wrong, silent), one| (wrong + one.mismatches, silent + one.silences))
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, from: HostId, letter: Letter, out: &mut Out) {
        self.look_at_ring(now, out);
        match letter {
            Letter::Asks { id, page, write, session } if self.taken.is_new(id) => {
                let session = session.and_then(|token| session::open(&self.sketching, &token));
                self.ask(now, from, id, (page, write, session), out);
            }
            Letter::Said(asker, response) if self.is_ours(&asker) => {
                let pending = self.threads[asker.thread].pages.get(&asker.call).copied();
                let page = pending.unwrap_or_default();
                let answer = pages::answer(&self.sketching, page, response, self.habits.mutant);
                self.tell_sketcher(now, asker.thread, sketcher::Input::Fast(asker.call, Some(answer)), out);
            }
            Letter::Replies(asker, reply) if self.is_ours(&asker) => {
                self.tell_group(now, asker.thread, group::Input::Reply(asker.call, reply), out);
            }
            _ => {}
        }
    }

    /// Lets timers act.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        self.look_at_ring(now, out);
        for thread in 0..self.threads.len() {
            let mut outputs = Outbox::new();
            self.threads[thread].sketcher.wake(now, &mut outputs);
            self.of_sketcher(now, thread, outputs, out);
            let mut outputs = Outbox::new();
            self.threads[thread].group.wake(now, &mut outputs);
            self.of_group(now, thread, outputs, out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.threads.iter().flat_map(|thread| [thread.sketcher.deadline(), thread.group.deadline()]).flatten().min()
    }

    fn is_ours(&self, asker: &Asker) -> bool {
        asker.start == self.life.start && asker.thread < self.threads.len()
    }

    /// Rule J: what is no longer held is dropped before it can be held again.
    fn look_at_ring(&mut self, now: Now, out: &mut Out) {
        for part in 0..PARTS {
            let (range, lease) = (ring::range(part), self.held.ring.held(self.held.node, part));
            if lease.is_some_and(|lease| self.held.clean().covers(range, lease)) {
                continue;
            }
            let noted = self.held.clean().lost(range);
            for site in (0..self.habits.sites).filter(|_| noted) {
                if site == 0 || self.habits.mutant != Some(Mutant::LostOfOneSite) {
                    self.tell_sketcher(now, site * THREADS, sketcher::Input::Lost(range), out);
                }
            }
            if let Some(lease) = lease {
                self.held.clean().gained(range, lease);
            }
        }
    }

    fn ask(&mut self, now: Now, from: HostId, id: u64, what: (u64, bool, Option<Sigma>), out: &mut Out) {
        let (page, write, after) = what;
        let site = (page % self.habits.sites as u64) as usize;
        let thread = site * THREADS + self.rng.below(THREADS as u64) as usize;
        let joins = |(_, other): &(&u64, &Asked)| !other.write && other.page == page && other.thread == thread;
        let other = self.asked.iter().find(joins).map(|(other, _)| *other);
        self.asked.insert(id, Asked { from, page, write, thread });
        if let Some(other) = other.filter(|_| self.habits.mutant == Some(Mutant::Joined) && !write) {
            return self.joined.entry(other).or_default().push(id);
        }
        let request = if write { format!("w {page} {id}") } else { format!("r {page}") };
        let kind = if write { Kind::Write } else { Kind::Read { way: Way::Usual, after } };
        let key = pages::key(&self.sketching, page);
        let ask = Ask { id: RequestId(id), key, kind, client: 0, request: request.into() };
        self.tell_sketcher(now, thread, sketcher::Input::Ask(ask), out);
    }

    fn tell_sketcher(&mut self, now: Now, thread: usize, input: sketcher::Input<Bytes, Bytes>, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.threads[thread].sketcher.handle(now, input, &mut outputs);
        self.of_sketcher(now, thread, outputs, out);
    }

    fn tell_group(&mut self, now: Now, thread: usize, input: group::Input<Bytes, Bytes>, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.threads[thread].group.handle(now, input, &mut outputs);
        self.of_group(now, thread, outputs, out);
    }

    fn asker(&self, thread: usize, call: CallId) -> Asker {
        Asker { host: self.life.host, start: self.life.start, thread, call }
    }

    fn of_sketcher(&mut self, now: Now, thread: usize, outputs: Outbox<sketcher::Output<Bytes, Bytes>>, out: &mut Out) {
        for output in outputs {
            match output {
                sketcher::Output::Fast(call, replica, request) => {
                    self.remember_page(thread, call, &request);
                    let letter = Letter::Fast(self.asker(thread, call), request);
                    self.post.send(out, self.replicas[usize::from(replica.0)], letter);
                }
                sketcher::Output::Replicate(call, _, request) => {
                    self.remember_page(thread, call, &request);
                    self.tell_group(now, thread, group::Input::Ask(call, request), out);
                }
                sketcher::Output::Answer { id, response, how, sigma } => self.answer(id.0, &response, how, sigma, out),
                sketcher::Output::Refuse(id, why) => self.refuse(id.0, why, out),
            }
        }
    }

    /// What the answer to a call is about. Calls go up, so the oldest are those that nobody waits for.
    fn remember_page(&mut self, thread: usize, call: CallId, request: &Bytes) {
        const KEPT: usize = 10_000;
        let pages = &mut self.threads[thread].pages;
        pages.insert(call, pages::page_of(request).unwrap_or_default());
        if pages.len() > KEPT {
            pages.pop_first();
        }
    }

    fn of_group(&mut self, now: Now, thread: usize, outputs: Outbox<group::Output<Bytes, Bytes>>, out: &mut Out) {
        let client = self.threads[thread].client;
        for output in outputs {
            match output {
                group::Output::Send { to, call, nonce, whole, request } => {
                    let letter = Letter::Command(self.asker(thread, call), Command { client, nonce, request }, whole);
                    self.post.send(out, self.replicas[usize::from(to.0)], letter);
                }
                group::Output::Done(call, answer, sigma) => {
                    let page = self.threads[thread].pages.get(&call).copied().unwrap_or_default();
                    let (by, response) = (self.life, answer.response.clone());
                    out.put(Effect::Fact(Fact::Agreed { by, page, response }));
                    self.tell_sketcher(now, thread, sketcher::Input::Replicated(call, answer, sigma), out);
                }
                group::Output::Refused(call, why, one) => {
                    self.tell_sketcher(now, thread, sketcher::Input::NotReplicated(call, why, one), out);
                }
            }
        }
    }

    fn answer(&mut self, id: u64, response: &Bytes, how: How, sigma: Option<Sigma>, out: &mut Out) {
        for id in self.with_joined(id) {
            let Some(asked) = self.asked.remove(&id) else { continue };
            let (by, response) = (Some(self.life), response.clone());
            out.put(Effect::Fact(Fact::Answered { id, response: response.clone(), how, by }));
            let session = sigma.filter(|_| asked.write).map(|sigma| session::seal(&self.sketching, sigma));
            self.post.send(out, asked.from, Letter::Answers { id, response, how, session });
        }
    }

    fn refuse(&mut self, id: u64, why: Refusal, out: &mut Out) {
        for id in self.with_joined(id) {
            let Some(asked) = self.asked.remove(&id) else { continue };
            out.put(Effect::Fact(Fact::Refused { id, why: why.to_string(), moved: why == Refusal::Moved }));
            self.post.send(out, asked.from, Letter::Refuses { id });
        }
    }

    fn with_joined(&mut self, id: u64) -> Vec<u64> {
        let mut ids = vec![id];
        ids.extend(self.joined.remove(&id).into_iter().flatten());
        ids
    }
}
