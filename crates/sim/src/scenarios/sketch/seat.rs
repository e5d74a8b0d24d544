//! A replica's host: the production replica behind, in front of some a liar's tongue.
//!
//! What it has executed outlives the process: rule G's durable execution point.

use super::fact::Fact;
use super::letter::{Asker, Letter, Post};
use super::town::Habits;
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidings_base::{Incarnation, Outbox, Seeded};
use tidings_sketch::ReplicaId;
use tidings_sketch::direct::overheard::Overheard;
use tidings_sketch::direct::replica::Options;
use tidings_sketch::direct::{Question, ReplicaSketcher};
use tidings_sketch::group::Reply;
use tidings_sketch::replica::liar::Liar;
use tidings_sketch::replica::pages::{self, Pages};
use tidings_sketch::replica::{Block, Command, Outcome, Replica};
use tidings_sketch::sigma::Sigma;

/// The group's name.
pub const GROUP: u64 = 1;
/// Blocks that came too early and are kept.
const EARLY: usize = 1_000;
/// In so many blocks what a stale liar says is renewed once.
const RENEWED: u64 = 100;
/// Replies of a page that whoever listens keeps.
const CAPTURED: usize = 12;

/// What outlives the process.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<(Replica<Pages>, Option<Liar>)>>);

impl Disk {
    /// A replica that has executed nothing, and its tongue.
    pub fn new(replica: Replica<Pages>, liar: Option<Liar>) -> Disk {
        Disk(Arc::new(Mutex::new((replica, liar))))
    }

    fn lock(&self) -> MutexGuard<'_, (Replica<Pages>, Option<Liar>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleepers begin to lie.
    pub fn awake(&self) {
        if let Some(liar) = &mut self.lock().1 {
            liar.awake = true;
        }
    }

    /// The height up to which it has executed.
    pub fn height(&self) -> u64 {
        self.lock().0.height()
    }
}

/// Replies that somebody has captured, by the client and the page that they are for.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    replies: Arc<Mutex<Replies>>,
    overheard: Arc<Mutex<Overheard>>,
}

type Replies = BTreeMap<(u64, u64), VecDeque<Reply<Bytes>>>;

impl Captured {
    fn keep(&self, page: u64, reply: &Reply<Bytes>) {
        let mut all = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry((reply.client, page)).or_default();
        kept.push_back(reply.clone());
        if kept.len() > CAPTURED {
            kept.pop_front();
        }
    }

    fn of(&self, client: u64, page: u64) -> VecDeque<Reply<Bytes>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner).get(&(client, page)).cloned().unwrap_or_default()
    }

    fn overheard(&self) -> MutexGuard<'_, Overheard> {
        self.overheard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process.
pub struct Seat {
    number: u16,
    disk: Disk,
    order: HostId,
    post: Post,
    habits: Habits,
    captured: Captured,
    /// What it remembers in its memory, where clients ask for that.
    sketcher: Option<ReplicaSketcher>,
    /// Who waits for a command: by client and nonce.
    waiting: BTreeMap<(u64, u64), (Asker, bool)>,
    early: BTreeMap<u64, Block>,
    rng: Seeded,
    replayed: u64,
}

impl Seat {
    /// Goes on with what it has executed.
    pub fn start(
        number: u16,
        disk: Disk,
        order: HostId,
        (post, captured): (Post, Captured),
        habits: Habits,
        rng: Seeded,
    ) -> Seat {
        let (waiting, early) = (BTreeMap::new(), BTreeMap::new());
        let options = Options { group: GROUP, id: ReplicaId(number), entries: habits.entries, mutant: habits.mutant };
        let sketcher = habits.direct.then(|| {
            captured.overheard().forgot(options.id);
            let disk = disk.lock();
            ReplicaSketcher::new(options, disk.0.incarnation(), disk.0.height())
        });
        Seat { number, disk, order, post, habits, captured, sketcher, waiting, early, rng, replayed: 0 }
    }

    /// How often captured replies were sent again here.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Takes a letter.
    pub fn receive(&mut self, letter: Letter, out: &mut Outbox<Effect<Fact>>) {
        match letter {
            Letter::Fast(asker, request) => self.fast(asker, &request, out),
            Letter::Question(asker, question) => self.question(asker, &question, out),
            Letter::Command(asker, command, whole) => self.command(asker, command, whole, out),
            Letter::Agreed(life, block) => self.agreed(life, block, out),
            Letter::Begins(state) => self.begin(&state, out),
            _ => {}
        }
    }

    fn fast(&mut self, asker: Asker, request: &Bytes, out: &mut Outbox<Effect<Fact>>) {
        let Some(page) = pages::page_of(request) else { return };
        let truth = self.disk.lock().0.service().read(page);
        if let Some((said, _)) = self.speak(page, truth, None) {
            self.post.send(out, asker.host, Letter::Said(asker, said));
        }
    }

    /// What it remembers, and from some what suits them.
    fn question(&mut self, asker: HostId, question: &Question, out: &mut Outbox<Effect<Fact>>) {
        let Some(sketcher) = &mut self.sketcher else { return };
        let mut disk = self.disk.lock();
        let (replica, liar) = &mut *disk;
        let Some(truth) = sketcher.word(replica.service(), question) else { return };
        let mut overheard = self.captured.overheard();
        let Some(liar) = liar else {
            if self.habits.replays {
                overheard.capture(&question.request, &truth);
            }
            return self.post.send(out, asker, Letter::Word(truth));
        };
        if self.habits.replays && self.rng.one_in(4) {
            for word in overheard.captured(question.client, &question.request) {
                self.replayed += 1;
                self.post.send(out, asker, Letter::Word(word));
            }
        }
        if let Some(word) = liar.word(&overheard, question, truth) {
            self.post.send(out, asker, Letter::Word(word));
        }
    }

    fn speak(&mut self, page: u64, truth: Bytes, sigma: Option<Sigma>) -> Option<(Bytes, Option<Sigma>)> {
        match &mut self.disk.lock().1 {
            Some(liar) => liar.speak(page, truth, sigma),
            None => Some((truth, sigma)),
        }
    }

    fn command(&mut self, asker: Asker, command: Command, whole: bool, out: &mut Outbox<Effect<Fact>>) {
        self.replay(asker, &command, out);
        let replied = self.disk.lock().0.replied(command.client, command.nonce);
        match replied {
            Some(Outcome::Done { sigma, result }) => self.reply(asker, &command, whole, (result, sigma), out),
            Some(_) => {}
            None => {
                self.waiting.insert((command.client, command.nonce), (asker, whole));
                self.post.send(out, self.order, Letter::Submits(command));
            }
        }
    }

    /// Rule F: a liar can listen, and send again what honest replicas have signed.
    fn replay(&mut self, asker: Asker, command: &Command, out: &mut Outbox<Effect<Fact>>) {
        let lies = self.disk.lock().1.is_some();
        if !lies || !self.habits.replays || !self.rng.one_in(4) {
            return;
        }
        let page = pages::page_of(&command.request).unwrap_or_default();
        for reply in self.captured.of(command.client, page) {
            self.replayed += 1;
            self.post.send(out, asker.host, Letter::Replies(asker, reply));
        }
    }

    fn reply(
        &mut self,
        asker: Asker,
        command: &Command,
        whole: bool,
        (result, sigma): (Bytes, Sigma),
        out: &mut Outbox<Effect<Fact>>,
    ) {
        let Some(page) = pages::page_of(&command.request) else { return };
        let Some((said, sigma)) = self.speak(page, result, Some(sigma)) else { return };
        let answer = pages::answer(&self.habits.sketching(), page, said, self.habits.mutant);
        let reply = Reply {
            from: ReplicaId(self.number),
            group: GROUP,
            client: command.client,
            nonce: command.nonce,
            sigma,
            result: answer.sketch,
            whole: whole.then_some(answer),
        };
        if self.habits.replays {
            self.captured.keep(page, &reply);
        }
        self.post.send(out, asker.host, Letter::Replies(asker, reply));
    }

    fn agreed(&mut self, life: Incarnation, block: Block, out: &mut Outbox<Effect<Fact>>) {
        let (own, height) = {
            let disk = self.disk.lock();
            (disk.0.incarnation(), disk.0.height())
        };
        if life > own {
            return self.post.send(out, self.order, Letter::Misses(own));
        }
        if life < own {
            return;
        }
        if block.height > height && self.early.len() < EARLY {
            self.early.insert(block.height, block);
        }
        let mut done = height;
        while let Some(block) = self.early.remove(&(done + 1)) {
            done += 1;
            self.execute(&block, out);
        }
        self.early = self.early.split_off(&(done + 1));
        self.post.send(out, self.order, Letter::Executed(own, done));
    }

    fn execute(&mut self, block: &Block, out: &mut Outbox<Effect<Fact>>) {
        let done = {
            let mut disk = self.disk.lock();
            let (replica, liar) = &mut *disk;
            let done = replica.execute(block);
            // Before any reply leaves.
            if let Some(sketcher) = &mut self.sketcher {
                sketcher.executed(replica.service(), block.height, &done);
                let mut overheard = self.captured.overheard();
                for (command, outcome) in done.iter().filter(|(command, _)| command.request.starts_with(b"r")) {
                    let Outcome::Done { result, .. } = outcome else { continue };
                    let remembered = sketcher.remembers(&command.request);
                    overheard.note(ReplicaId(self.number), &command.request, remembered, result);
                }
            }
            let (life, digest) = (replica.incarnation().0, replica.service().digest());
            out.put(Effect::Fact(Fact::Executed { life, height: replica.height(), digest }));
            if let Some(liar) = liar
                && self.rng.one_in(RENEWED)
            {
                liar.old = replica.service().clone();
            }
            done
        };
        for (command, outcome) in done {
            let Outcome::Done { result, sigma } = outcome else { continue };
            if let Some((asker, whole)) = self.waiting.remove(&(command.client, command.nonce)) {
                self.reply(asker, &command, whole, (result, sigma), out);
            }
        }
    }

    fn begin(&mut self, state: &Replica<Pages>, out: &mut Outbox<Effect<Fact>>) {
        let mut disk = self.disk.lock();
        if state.incarnation() > disk.0.incarnation() {
            disk.0 = state.clone();
            if let Some(sketcher) = &mut self.sketcher {
                sketcher.took_over(state.incarnation(), state.height());
                self.captured.overheard().forgot(ReplicaId(self.number));
            }
            self.early.clear();
            self.post.send(out, self.order, Letter::Executed(state.incarnation(), state.height()));
        }
    }
}
