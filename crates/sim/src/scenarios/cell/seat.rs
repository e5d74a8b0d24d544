//! One session of a client host: the production machine, the cache that readers see, and the application's script.

use super::command::{Command, Dead, Grant};
use super::fact::Fact;
use super::forger::Forger;
use super::script::{Script, Touch, Wish};
use crate::kernel::HostId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::time::shortened;
use tidings_base::{Error, Machine, Mono, Now, Outbox, Seeded};
use tidings_cell::link::{Lease, Ticket};
use tidings_cell::mutant::Mutant;
use tidings_cell::session::{CacheChange, Event, Input, Options, Output, Session};
use tidings_wire::v1::{self, cell_message::Message};

/// What readers see of a session's cache.
#[derive(Default)]
pub struct Cache {
    entries: BTreeMap<(String, bool), v1::NodeRead>,
    until: Mono,
}

impl Cache {
    /// An entry that may be served now. The time is looked at after the entry, as in the library.
    pub fn get(&self, now: Now, path: &str, listing: bool) -> Option<&v1::NodeRead> {
        self.entries.get(&(path.to_string(), listing)).filter(|_| now.mono < self.until)
    }

    fn change(&mut self, change: CacheChange) {
        match change {
            CacheChange::Put { path, listing, read } => {
                self.entries.insert((path.as_str().to_string(), listing), read);
            }
            CacheChange::Drop { path, listing } => {
                self.entries.remove(&(path.as_str().to_string(), listing));
            }
            CacheChange::Flush => self.entries.clear(),
            CacheChange::Until(until) => self.until = until,
        }
    }
}

/// How the sessions of a run are made.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The lease to ask for.
    pub lease: Duration,
    /// How long the application waits in jeopardy.
    pub grace: Duration,
    /// How long an application thinks between two calls, on average.
    pub think: Duration,
    /// It reads more names than the master remembers.
    pub herds: bool,
    /// It presents handles that it forged or closed.
    pub forges: bool,
    /// It goes in and out of a directory that not everybody may look into.
    pub visits: bool,
    /// After so many calls a wait moves on to a later number; `None` = as usual.
    pub renumber_after: Option<u64>,
    /// Everybody who may be let in or shut out.
    pub principals: Arc<[String]>,
    /// A rule that is left out.
    pub mutant: Option<Mutant>,
}

/// What a seat wants of its host.
pub enum Want {
    /// Ask the master.
    Send(Ticket, v1::CellMessage, Duration),
    /// State a fact.
    State(Fact),
    /// Act on the resource.
    Touch(Touch),
}

/// One session after the other, in one place.
pub struct Seat {
    host: HostId,
    link: u64,
    habits: Habits,
    rng: Seeded,
    /// Grows with every session: answers to an earlier one are not for this one.
    pub life: u64,
    machine: Session,
    out: Outbox<Output>,
    cache: Cache,
    script: Script,
    forger: Option<Forger>,
    /// What runs under the lock that the application took last.
    command: Option<Command>,
    taken: Option<Grant>,
    /// When requests that may extend the lease were sent (R3).
    sent: BTreeMap<Ticket, Mono>,
    lease: Mono,
    /// When the next session begins.
    begin_at: Option<Mono>,
    stopped: bool,
    /// Calls of earlier sessions that were answered.
    answered: u64,
}

impl Seat {
    /// A seat whose first session begins at once.
    pub fn new(host: HostId, link: u64, habits: Habits, mut rng: Seeded, now: Now, first_op: u64) -> Seat {
        let machine = session(&habits, link, &mut rng);
        let script = Script::new(host, rng.fork("script"), &habits, now, first_op);
        let forger = habits.forges.then(Forger::default);
        Seat {
            host,
            link,
            habits,
            rng,
            life: 0,
            machine,
            out: Outbox::new(),
            cache: Cache::default(),
            script,
            forger,
            command: None,
            taken: None,
            sent: BTreeMap::new(),
            lease: Mono::default(),
            begin_at: Some(now.mono),
            stopped: false,
            answered: 0,
        }
    }

    /// How many calls were answered here.
    pub fn served(&self) -> u64 {
        self.answered + self.script.answered()
    }

    /// The application.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Begins nothing new.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.script.stop();
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        let own = match self.begin_at {
            Some(at) => Some(at),
            None => [self.machine.deadline(), self.script.deadline()].into_iter().flatten().min(),
        };
        [own, self.command.as_ref().map(Command::next_act)].into_iter().flatten().min()
    }

    /// Whether a command runs here.
    pub fn runs_a_command(&self) -> bool {
        self.command.is_some()
    }

    /// What runs under a lock begins with it, and ends with it or in time.
    fn mind_the_command(&mut self, now: Now, wants: &mut Vec<Want>) {
        let held = self.script.grant();
        if let Some(command) = &mut self.command
            && held.as_ref() != Some(command.grant())
        {
            match self.script.is_expired() || command.is_lost() {
                true => command.lost(now.mono),
                false => self.command = None,
            }
        }
        let lease = self.machine.lease_until();
        let new = held.filter(|grant| self.command.is_none() && self.taken.as_ref() != Some(grant));
        // Under a lock that is heard of in jeopardy nothing begins before it is safe.
        if let (Some(grant), Some(lease)) = (new, lease) {
            self.taken = Some(grant.clone());
            self.command = Some(Command::start(grant, self.habits.mutant, now.mono, lease));
        }
        match self.command.as_mut().map(|command| command.wake(now.mono, lease)) {
            Some(Ok(fact)) => wants.extend(fact.map(Want::State)),
            Some(Err(Dead)) => self.command = None,
            None => {}
        }
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now) -> Vec<Want> {
        match self.begin_at {
            Some(at) if at <= now.mono => self.begin(now),
            Some(_) => {}
            None => {
                if self.machine.deadline().is_some_and(|at| at <= now.mono) {
                    self.machine.wake(now, &mut self.out);
                }
            }
        }
        let mut wants = self.work(now);
        // The application acts only after its session has looked at the clock.
        self.script.wake(now, &self.cache);
        wants.extend(self.work(now));
        wants
    }

    fn begin(&mut self, now: Now) {
        self.begin_at = None;
        if self.script.is_over() {
            self.life += 1;
            self.answered += self.script.answered();
            self.machine = session(&self.habits, self.link, &mut self.rng);
            self.cache = Cache::default();
            let rng = self.rng.fork(&self.life.to_string());
            self.script = Script::new(self.host, rng, &self.habits, now, self.script.next_op());
            if self.stopped {
                self.script.stop();
            }
            self.sent.clear();
            self.forger = self.habits.forges.then(Forger::default);
            self.lease = Mono::default();
        }
        self.machine.handle(now, Input::Begin, &mut self.out);
    }

    /// The link's cache lease moved.
    pub fn leased(&mut self, now: Now, lease: Lease) -> Vec<Want> {
        if self.begin_at.is_none() {
            self.machine.handle(now, Input::CacheLease(lease), &mut self.out);
        }
        self.work(now)
    }

    /// A request is answered.
    pub fn answered(&mut self, now: Now, ticket: Ticket, result: Result<v1::CellMessage, Error>) -> Vec<Want> {
        let mut wants = Vec::new();
        if Forger::owns(ticket) {
            return Forger::judged(ticket, &result).map(Want::State).into_iter().collect();
        }
        if let (Some(forger), Ok(reply)) = (&mut self.forger, &result) {
            let reads = forger.answered(ticket, reply).into_iter();
            wants.extend(reads.map(|(ticket, read)| Want::Send(ticket, read, Duration::from_secs(3))));
        }
        if let (Some(sent), Ok(reply)) = (self.sent.remove(&ticket), &result) {
            self.date(sent, reply, &mut wants);
        }
        if self.begin_at.is_none() {
            self.machine.handle(now, Input::Answered { ticket, result }, &mut self.out);
        }
        wants.extend(self.work(now));
        wants
    }

    /// R3 by hand: what the reply allows the session to believe.
    fn date(&mut self, sent: Mono, reply: &v1::CellMessage, wants: &mut Vec<Want>) {
        let (session, held, lease) = match &reply.message {
            Some(Message::SessionCreated(created)) => (created.session, created.held_us, created.lease_us),
            Some(Message::SessionResumed(resumed)) => (self.script.session(), resumed.held_us, resumed.lease_us),
            Some(Message::KeptAlive(kept)) => (self.script.session(), kept.held_us, kept.lease_us),
            _ => return,
        };
        let until = sent + shortened(Duration::from_micros(held.saturating_add(lease)));
        if lease > 0 && until > self.lease {
            self.lease = until;
            wants.push(Want::State(Fact::Lease { session, until }));
        }
    }

    /// Performs what machine and application want of each other.
    fn work(&mut self, now: Now) -> Vec<Want> {
        let mut wants = Vec::new();
        loop {
            let outputs: VecDeque<Output> = self.out.drain().collect();
            let wishes = self.script.wishes();
            if outputs.is_empty() && wishes.is_empty() {
                self.mind_the_command(now, &mut wants);
                return wants;
            }
            for wish in wishes {
                match wish {
                    Wish::Feed(input) => self.machine.handle(now, input, &mut self.out),
                    Wish::State(fact) => wants.push(Want::State(fact)),
                    Wish::Touch(touch) => wants.push(Want::Touch(touch)),
                }
            }
            for output in outputs {
                self.perform(now, output, &mut wants);
            }
        }
    }

    fn perform(&mut self, now: Now, output: Output, wants: &mut Vec<Want>) {
        match output {
            Output::Send { ticket, mut message, within } => {
                let number = message.call.as_ref().map_or(0, |call| call.number);
                if let (Some(body), true) = (&message.message, number > 0) {
                    self.script.sent(body, number);
                }
                if let Some(Message::CreateSession(_) | Message::ResumeSession(_) | Message::KeepAlive(_)) =
                    &message.message
                {
                    self.sent.insert(ticket, now.mono);
                }
                if let Some(forger) = &mut self.forger {
                    forger.sending(ticket, &mut message);
                }
                wants.push(Want::Send(ticket, message, within));
            }
            Output::Answer { op, result } => self.script.answered_call(now, op, result),
            Output::Tell(event) => {
                self.script.told(&event);
                if matches!(event, Event::Expired | Event::Closed) {
                    let pause = Duration::from_millis(self.rng.between(50, 3_000));
                    self.begin_at = Some(now.mono + pause);
                }
            }
            Output::Cache(change) => {
                if let CacheChange::Until(until) = &change {
                    let (session, until) = (self.script.session(), *until);
                    wants.push(Want::State(Fact::Serves { session, until }));
                }
                self.cache.change(change);
            }
        }
    }
}

fn session(habits: &Habits, link: u64, rng: &mut Seeded) -> Session {
    let mut session = Session::new(Options {
        lease: habits.lease,
        grace: habits.grace,
        secret: rng.next_u64(),
        link,
        cache: 8_192,
        seed: rng.next_u64(),
        mutant: habits.mutant,
    });
    if let Some(calls) = habits.renumber_after {
        session.renumber_after(calls);
    }
    session
}
