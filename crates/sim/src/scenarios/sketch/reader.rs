//! Clients of D-Prophecy: they ask the replicas themselves, what they remember and to write.

use super::client::draw_page;
use super::fact::Fact;
use super::letter::{Asker, Letter, Post};
use super::node::group_options;
use super::town::{Habits, Numbers};
use crate::kernel::{Effect, HostId, Seat};
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_sketch::RequestId;
use tidings_sketch::direct::client::{Ask, Input, Output};
use tidings_sketch::direct::{Client, Options};
use tidings_sketch::replica::Command;

type Out = Outbox<Effect<Fact>>;

/// How long a fast read may take.
const PATIENCE: Duration = Duration::from_millis(100);
/// Requests of one that wait for their turn.
const IN_TURN: usize = 3;

/// The process.
pub struct Reader {
    client: Client,
    name: u64,
    host: HostId,
    start: u64,
    replicas: Vec<HostId>,
    post: Post,
    numbers: Numbers,
    habits: Habits,
    /// Requests that are not answered.
    open: usize,
    last_ordered: u64,
    next: Option<Mono>,
    calm: bool,
    rng: Seeded,
}

impl Reader {
    /// Starts under a name that nobody had.
    pub fn start(
        mut seat: Seat,
        replicas: Vec<HostId>,
        post: Post,
        numbers: Numbers,
        habits: Habits,
        name: u64,
    ) -> Reader {
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&seat.rng.next_u64().to_le_bytes());
        let options = Options { patience: PATIENCE, ..Options::of(group_options(&habits, name), secret) };
        Reader {
            client: Client::new(options).expect("there are as many replicas as it takes"),
            name,
            host: seat.host,
            start: seat.starts,
            replicas,
            post,
            numbers,
            habits,
            open: 0,
            last_ordered: 0,
            next: Some(seat.now.mono),
            calm: false,
            rng: seat.rng,
        }
    }

    /// The faults are over and mended.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Asks nothing more.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Whether it waits for nothing.
    pub fn is_quiet(&self) -> bool {
        self.open == 0
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, letter: Letter, out: &mut Out) {
        match letter {
            Letter::Word(word) => self.tell(now, Input::Word(word), out),
            Letter::Replies(asker, reply) if asker.start == self.start => {
                self.tell(now, Input::Reply(asker.call, reply), out);
            }
            _ => {}
        }
    }

    /// Asks, and lets timers act.
    pub fn wake(&mut self, now: Now, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.client.wake(now, &mut outputs);
        self.perform(outputs, out);
        if self.next.is_none_or(|next| now.mono < next) {
            return;
        }
        let think = u64::try_from(self.habits.think.as_millis()).unwrap_or(u64::MAX);
        self.next = Some(now.mono + Duration::from_millis(self.rng.between(1, 2 * think)));
        while self.open < IN_TURN && !self.rng.one_in(3) {
            let (id, page, write) = (self.numbers.next(), draw_page(&mut self.rng), self.rng.one_in(12));
            self.open += 1;
            out.put(Effect::Fact(Fact::Asks { id, page, write, own: None, calm: self.calm }));
            let request = if write { format!("w {page} {id}") } else { format!("r {page}") };
            self.tell(now, Input::Ask(Ask { id: RequestId(id), read: !write, request: request.into() }), out);
        }
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        [self.client.deadline(), self.next].into_iter().flatten().min()
    }

    fn tell(&mut self, now: Now, input: Input, out: &mut Out) {
        let mut outputs = Outbox::new();
        self.client.handle(now, input, &mut outputs);
        self.perform(outputs, out);
    }

    fn perform(&mut self, outputs: Outbox<Output>, out: &mut Out) {
        for output in outputs {
            match output {
                Output::Fast(to, question) => {
                    let letter = Letter::Question(self.host, question);
                    self.post.send(out, self.replicas[usize::from(to.0)], letter);
                }
                Output::Send { to, call, id, nonce, whole, request } => {
                    if std::mem::replace(&mut self.last_ordered, nonce) != nonce {
                        out.put(Effect::Fact(Fact::Orders { id: id.0, client: self.name, nonce }));
                    }
                    let asker = Asker { host: self.host, start: self.start, thread: 0, call };
                    let command = Command { client: self.name, nonce, request };
                    self.post.send(out, self.replicas[usize::from(to.0)], Letter::Command(asker, command, whole));
                }
                Output::Answer { id, response, how, .. } => {
                    self.open -= 1;
                    out.put(Effect::Fact(Fact::Answered { id: id.0, response, how, by: None }));
                }
                Output::Refuse(id, why) => {
                    self.open -= 1;
                    out.put(Effect::Fact(Fact::Refused { id: id.0, why: why.to_string(), moved: false }));
                }
            }
        }
    }
}
