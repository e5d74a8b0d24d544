//! Clients: those who ask sketching nodes, in sessions; and a writer who passes them by.

use super::fact::Fact;
use super::letter::{Asker, Letter, Post};
use super::node::group_options;
use super::ring::{self, Ring};
use super::town::{Habits, Numbers};
use crate::kernel::{Effect, HostId, Seat};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_sketch::CallId;
use tidings_sketch::group::{self, Group};
use tidings_sketch::replica::Command;
use tidings_sketch::replica::pages;
use tidings_sketch::sketcher::How;

type Out = Outbox<Effect<Fact>>;

/// How long a client waits for an answer: longer than a node may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Four pages that everybody reads, and many that press upon the tables.
pub(super) fn draw_page(rng: &mut Seeded) -> u64 {
    if rng.one_in(3) { rng.between(4, 60) } else { rng.below(4) }
}

/// What a client waits for.
struct Waits {
    page: u64,
    write: bool,
    until: Mono,
}

/// The last write of a session: its page, its version, its cookie.
type LastWrite = (u64, u64, String);

/// The process.
pub struct Client {
    nodes: Vec<HostId>,
    ring: Ring,
    post: Post,
    numbers: Numbers,
    habits: Habits,
    waiting: BTreeMap<u64, Waits>,
    last: Option<LastWrite>,
    next: Option<Mono>,
    calm: bool,
    rng: Seeded,
}

impl Client {
    /// Starts a new session.
    pub fn start(seat: Seat, nodes: Vec<HostId>, ring: Ring, post: Post, numbers: Numbers, habits: Habits) -> Client {
        let next = Some(seat.now.mono);
        let waiting = BTreeMap::new();
        Client { nodes, ring, post, numbers, habits, waiting, last: None, next, calm: false, rng: seat.rng }
    }

    /// The faults are over and mended: whatever is asked from now on must be answered.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Asks nothing more.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Whether it waits for nothing.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a letter.
    pub fn receive(&mut self, letter: Letter) {
        match letter {
            Letter::Answers { id, response, session, .. } => {
                let Some(waits) = self.waiting.remove(&id) else { return };
                if let Some(session) = session.filter(|_| waits.write) {
                    self.last = Some((waits.page, pages::version_of(&response), session));
                }
            }
            Letter::Refuses { id } => {
                self.waiting.remove(&id);
            }
            _ => {}
        }
    }

    /// Asks several things at once, and gives up what has taken too long.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        self.waiting.retain(|_, waits| now.mono < waits.until);
        if self.next.is_none_or(|next| now.mono < next) {
            return;
        }
        let think = u64::try_from(self.habits.think.as_millis()).unwrap_or(u64::MAX);
        self.next = Some(now.mono + Duration::from_millis(self.rng.between(1, 2 * think)));
        for _ in 0..self.rng.between(1, 4) {
            let (page, write) = (draw_page(&mut self.rng), self.rng.one_in(12));
            self.ask(now, page, write, out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.waiting.values().map(|waits| waits.until).chain(self.next).min()
    }

    fn ask(&mut self, now: Now, page: u64, write: bool, out: &mut Out) {
        let place = pages::key(&self.habits.sketching(), page).position();
        let node = match self.rng.one_in(20) {
            true => self.rng.below(self.nodes.len() as u64) as usize,
            false => self.ring.owner(ring::part(place)),
        };
        let last = self.last.clone().filter(|_| self.rng.one_in(2));
        let own = last.as_ref().filter(|(of, ..)| *of == page && !write).map(|(_, version, _)| *version);
        let (id, session) = (self.numbers.next(), last.map(|(.., session)| session));
        self.waiting.insert(id, Waits { page, write, until: now.mono + PATIENCE });
        out.put(Effect::Fact(Fact::Asks { id, page, write, own, calm: self.calm }));
        self.post.send(out, self.nodes[node], Letter::Asks { id, page, write, session });
    }
}

/// A client of the group itself (§3.3): no sketcher sees what it writes.
pub struct Writer {
    group: Group<Bytes, Bytes>,
    client: u64,
    host: HostId,
    start: u64,
    replicas: Vec<HostId>,
    post: Post,
    numbers: Numbers,
    habits: Habits,
    next: Option<Mono>,
    calm: bool,
    rng: Seeded,
}

impl Writer {
    /// Starts under a name that nobody had.
    pub fn start(
        seat: Seat,
        replicas: Vec<HostId>,
        post: Post,
        numbers: Numbers,
        habits: Habits,
        client: u64,
    ) -> Writer {
        Writer {
            group: Group::new(group_options(&habits, client)).expect("there are enough replicas"),
            client,
            host: seat.host,
            start: seat.starts,
            replicas,
            post,
            numbers,
            habits,
            next: Some(seat.now.mono),
            calm: false,
            rng: seat.rng,
        }
    }

    /// The faults are over and mended.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Writes nothing more.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, letter: Letter, out: &mut Out) {
        if let Letter::Replies(asker, reply) = letter
            && asker.start == self.start
        {
            let mut outputs = Outbox::new();
            self.group.handle(now, group::Input::Reply(asker.call, reply), &mut outputs);
            self.perform(outputs, out);
        }
    }

    /// Writes, and lets timers act.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.group.wake(now, &mut outputs);
        if self.next.is_some_and(|next| next <= now.mono) {
            let think = u64::try_from(self.habits.think.as_millis()).unwrap_or(u64::MAX);
            self.next = Some(now.mono + Duration::from_millis(self.rng.between(1, 4 * think)));
            let (id, page) = (self.numbers.next(), draw_page(&mut self.rng));
            out.put(Effect::Fact(Fact::Asks { id, page, write: true, own: None, calm: self.calm }));
            let request = format!("w {page} {id}").into();
            self.group.handle(now, group::Input::Ask(CallId(id), request), &mut outputs);
        }
        self.perform(outputs, out);
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        [self.group.deadline(), self.next].into_iter().flatten().min()
    }

    fn perform(&mut self, outputs: Outbox<group::Output<Bytes, Bytes>>, out: &mut Out) {
        for output in outputs {
            match output {
                group::Output::Send { to, call, nonce, whole, request } => {
                    let asker = Asker { host: self.host, start: self.start, thread: 0, call };
                    let command = Command { client: self.client, nonce, request };
                    self.post.send(out, self.replicas[usize::from(to.0)], Letter::Command(asker, command, whole));
                }
                group::Output::Done(call, answer, _) => {
                    let (id, response) = (call.0, answer.response);
                    out.put(Effect::Fact(Fact::Answered { id, response, how: How::Agreed, by: None }));
                }
                group::Output::Refused(call, why, _) => {
                    out.put(Effect::Fact(Fact::Refused { id: call.0, why: why.to_string(), moved: false }));
                }
            }
        }
    }
}
