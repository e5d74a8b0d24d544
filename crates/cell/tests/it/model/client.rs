//! A client: its session, its link, and the cache that its readers see.

use super::world::{Setup, local};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_cell::link::{self, LinkLease, Ticket};
use tidings_cell::session::{self, CacheChange, Event, Session};
use tidings_wire::v1;

/// Which machine of a client a packet is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Session,
    Link,
}

/// What a client did that others must see.
pub enum Effect {
    Send(Part, Ticket, v1::CellMessage),
    Answer(tidings_base::OpId, Result<v1::cell_message::Message, tidings_base::Error>),
    Tell(Event),
}

#[derive(Clone, Debug)]
pub struct Client {
    pub session: Session,
    pub link: LinkLease,
    pub cache: BTreeMap<String, String>,
    pub until: Mono,
    links: bool,
    tick: Duration,
    rate: u64,
    pub expired: bool,
}

impl Client {
    pub fn new(number: u64, setup: &Setup) -> Client {
        let options = session::Options {
            lease: setup.lease,
            grace: Duration::from_secs(3_600),
            secret: number,
            link: number,
            cache: 16,
            seed: number,
            mutant: setup.mutant,
        };
        let mut link = LinkLease::new(number);
        link.mutant = setup.mutant;
        Client {
            session: Session::new(options),
            link,
            cache: BTreeMap::new(),
            until: Mono(0),
            links: setup.links,
            tick: setup.tick,
            rate: setup.client_rate,
            expired: false,
        }
    }

    /// Its own clock.
    pub fn clock(&self, ticks: u64) -> Mono {
        local(ticks, self.tick, self.rate)
    }

    pub fn tell(&mut self, now: Mono, input: session::Input) -> Vec<Effect> {
        let mut out = Outbox::new();
        self.session.handle(at(now), input, &mut out);
        self.perform(now, out)
    }

    pub fn tell_link(&mut self, now: Mono, input: link::Input) -> Vec<Effect> {
        let mut out = Outbox::new();
        self.link.handle(at(now), input, &mut out);
        self.perform_link(now, out)
    }

    /// Lets due timers act.
    pub fn wake(&mut self, now: Mono) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.session.deadline().is_some_and(|deadline| deadline <= now) {
            let mut out = Outbox::new();
            self.session.wake(at(now), &mut out);
            effects.extend(self.perform(now, out));
        }
        if self.link.deadline().is_some_and(|deadline| deadline <= now) {
            let mut out = Outbox::new();
            self.link.wake(at(now), &mut out);
            effects.extend(self.perform_link(now, out));
        }
        effects
    }

    fn perform(&mut self, now: Mono, out: Outbox<session::Output>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for output in out {
            match output {
                session::Output::Send { ticket, message, .. } => {
                    effects.push(Effect::Send(Part::Session, ticket, message))
                }
                session::Output::Answer { op, result } => effects.push(Effect::Answer(op, result)),
                session::Output::Tell(event) => {
                    match event {
                        Event::Begun(_) if self.links => effects.extend(self.tell_link(now, link::Input::Start)),
                        Event::Expired => self.expired = true,
                        _ => {}
                    }
                    effects.push(Effect::Tell(event));
                }
                session::Output::Cache(change) => self.change_cache(change),
            }
        }
        effects
    }

    fn perform_link(&mut self, now: Mono, out: Outbox<link::Output>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for output in out {
            match output {
                link::Output::Send { ticket, message, .. } => effects.push(Effect::Send(Part::Link, ticket, message)),
                link::Output::Lease(lease) => effects.extend(self.tell(now, session::Input::CacheLease(lease))),
            }
        }
        effects
    }

    fn change_cache(&mut self, change: CacheChange) {
        match change {
            CacheChange::Put { path, listing: false, read } => {
                let contents = String::from_utf8_lossy(&read.contents).into_owned();
                self.cache.insert(path.as_str().to_owned(), contents);
            }
            CacheChange::Drop { path, listing: false } => drop(self.cache.remove(path.as_str())),
            CacheChange::Put { .. } | CacheChange::Drop { .. } => {}
            CacheChange::Flush => self.cache.clear(),
            CacheChange::Until(until) => self.until = until,
        }
    }

    /// What a reader of the cache would be given.
    pub fn served(&self, path: &str, now: Mono) -> Option<&str> {
        self.cache.get(path).filter(|_| now < self.until).map(String::as_str)
    }
}

pub fn at(mono: Mono) -> Now {
    Now { mono, ..Now::default() }
}
