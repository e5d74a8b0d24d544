//! An owner's host: the machine, what its threads check against, and an application that keeps state for watched keys.
//!
//! The state of a key is a number that is made when a range is given without its state, goes along with a clean move, and is
//! gone when the range is revoked or the process ends. So whether state was lost can be seen from outside.

use super::asking::Asking;
use super::fact::{Fact, Life, keys_of, place};
use super::letter::{Body, HandOver, KeyState, Letter, host_at, send};
use crate::kernel::{Effect, HostId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{LeaseNumber, Machine, Mono, Now, Outbox};
use tidings_placement::Leased;
use tidings_placement::check::Checks;
use tidings_placement::owner::{Input, Move, Options, Output, Owner, OwnershipChange};
use tidings_wire::v1::placement_message::Message;

/// How hand-overs go here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// They work.
    Works,
    /// They fail at once.
    Fails,
    /// They begin and never end.
    Hangs,
}

/// An owner's process.
pub struct Host {
    machine: Owner,
    checks: Checks,
    life: Life,
    incarnation: u64,
    address: String,
    lease: Duration,
    asked: Mono,
    asking: Asking,
    /// The state of watched keys, and under which number it is kept.
    states: BTreeMap<u64, (LeaseNumber, u64)>,
    /// What came from other owners: by token, in the order of arrival.
    arrived: Vec<(u64, BTreeMap<u64, u64>)>,
    last_state: u64,
    mood: Mood,
}

/// Hand-overs whose state is kept: many more than go on at a time.
const KEPT: usize = 4_096;

impl Host {
    /// Starts: holds nothing, and asks.
    pub fn start(
        options: Options,
        life: Life,
        managers: Vec<HostId>,
        lease: Duration,
        mood: Mood,
        now: Now,
        out: &mut Outbox<Effect<Fact>>,
    ) -> Host {
        let mut host = Host {
            incarnation: options.incarnation,
            address: options.address.clone(),
            machine: Owner::new(options),
            checks: Checks::new(),
            life,
            lease,
            asked: now.mono,
            asking: Asking::new(managers, life.start),
            states: BTreeMap::new(),
            arrived: Vec::new(),
            last_state: (u64::from(life.host.0) << 48) | (life.start << 32),
            mood,
        };
        out.put(Effect::Fact(Fact::Started(life)));
        host.feed(now, Input::Start, out);
        host
    }

    /// What its threads check against.
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// All that it holds at an instant, also what it does not serve while it moves.
    pub fn claims(&self, now: Mono) -> Vec<Leased> {
        self.machine.claims(now)
    }

    /// Its name.
    pub fn id(&self) -> &str {
        self.machine.id()
    }

    /// Where it says that it is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Changes how hand-overs go here.
    pub fn set_mood(&mut self, mood: Mood) {
        self.mood = mood;
    }

    /// Something the application does.
    pub fn feed(&mut self, now: Now, input: Input, out: &mut Outbox<Effect<Fact>>) {
        if let Input::Address(address) = &input {
            self.address.clone_from(address);
        }
        let mut outputs = Outbox::new();
        self.machine.handle(now, input, &mut outputs);
        self.perform(now, outputs, out);
    }

    /// Takes a letter.
    pub fn receive(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Outbox<Effect<Fact>>) {
        match Letter::of(bytes) {
            Some((_, Body::Hand(hand))) => self.import(now, from, hand, out),
            Some((_, Body::Taken(token))) => self.feed(now, Input::Exported { token, done: true }, out),
            Some((id, Body::Want(key))) => {
                let held = self.checks.check_now(place(key), || now.mono);
                match held {
                    Some(lease) => {
                        let state = self.states.get(&key).filter(|(under, _)| *under == lease).map(|(_, state)| *state);
                        out.put(Effect::Fact(Fact::Served { life: self.life, key, lease, state }));
                    }
                    None => out.put(Effect::Fact(Fact::Refused)),
                }
                send(out, from, id, Body::Held(held.is_some()));
            }
            Some((id, body)) => {
                if let Some((ticket, result)) = self.asking.answered(from, id, body) {
                    let result = result.and_then(|message| match message {
                        Message::OwnerAnswer(answer) => Ok(answer),
                        _ => Err(tidings_placement::manager::not_leader()),
                    });
                    self.feed(now, Input::Answered { ticket, result }, out);
                }
            }
            None => {}
        }
    }

    /// Lets timers act.
    pub fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        let mut outputs = Outbox::new();
        self.machine.wake(now, &mut outputs);
        self.perform(now, outputs, out);
    }

    /// When it wants to be woken.
    pub fn deadline(&self) -> Option<Mono> {
        self.machine.deadline()
    }

    fn perform(&mut self, now: Now, outputs: Outbox<Output>, out: &mut Outbox<Effect<Fact>>) {
        for output in outputs {
            match output {
                Output::Send { ticket, to, poll, .. } => {
                    self.asked = now.mono;
                    self.asking.ask(to, ticket, Message::OwnerPoll(*poll), out);
                }
                Output::Holdings(held) => {
                    self.checks.publish(&held);
                    let (life, asked, lease) = (self.life, self.asked, self.lease);
                    out.put(Effect::Fact(Fact::Published { life, held, asked, lease }));
                }
                Output::Changed(change) => self.changed(change, out),
                Output::Export(to) => self.export(now, &to, out),
                Output::ImportOver(over) => self.arrived.retain(|(token, _)| *token != over),
                Output::Import(_) | Output::Refused(_) | Output::Left => {}
                Output::Drained => out.put(Effect::Exit { why: "drained".to_owned() }),
            }
        }
    }

    fn changed(&mut self, change: OwnershipChange, out: &mut Outbox<Effect<Fact>>) {
        let life = self.life;
        for leased in change.revoked {
            self.states.retain(|key, (under, _)| *under != leased.lease || !leased.range.contains(place(*key)));
            out.put(Effect::Fact(Fact::Dropped { life, leased }));
        }
        for (leased, token) in change.granted {
            let clean = token.is_some();
            let mut states = Vec::new();
            for key in keys_of(leased) {
                let came = self.arrived.iter().find(|(of, _)| Some(*of) == token);
                let came = came.and_then(|(_, states)| states.get(&key)).copied();
                if clean && came.is_none() {
                    out.put(Effect::Fact(Fact::Alarm(format!(
                        "{} was granted clean, and no state came",
                        leased.range
                    ))));
                }
                let state = came.unwrap_or_else(|| {
                    self.last_state += 1;
                    self.last_state
                });
                self.states.insert(key, (leased.lease, state));
                states.push((key, state));
            }
            out.put(Effect::Fact(Fact::Took { life, leased, clean, states }));
        }
    }

    // ---- hand-overs -------------------------------------------------------------------------------------------------

    fn export(&mut self, now: Now, to: &Move, out: &mut Outbox<Effect<Fact>>) {
        let peer = host_at(&to.address);
        match (self.mood, peer) {
            (Mood::Works, Some(peer)) => {
                let keys = keys_of(to.leased).filter_map(|key| {
                    let (under, state) = self.states.get(&key)?;
                    (*under == to.leased.lease).then_some(KeyState { key, state: *state })
                });
                let hand = HandOver {
                    token: to.token,
                    incarnation: to.incarnation,
                    start: to.leased.range.start.0,
                    last: to.leased.range.last.0,
                    states: keys.collect(),
                };
                send(out, peer, 0, Body::Hand(hand));
            }
            (Mood::Hangs, Some(_)) => {}
            _ => self.feed(now, Input::Exported { token: to.token, done: false }, out),
        }
    }

    fn import(&mut self, now: Now, from: HostId, hand: HandOver, out: &mut Outbox<Effect<Fact>>) {
        if hand.incarnation != self.incarnation || self.mood == Mood::Fails {
            return;
        }
        let states = hand.states.iter().map(|state| (state.key, state.state)).collect();
        self.arrived.retain(|(token, _)| *token != hand.token);
        self.arrived.push((hand.token, states));
        if self.arrived.len() > KEPT {
            self.arrived.remove(0);
        }
        self.feed(now, Input::Imported { token: hand.token, done: true }, out);
        send(out, from, 0, Body::Taken(hand.token));
    }
}
