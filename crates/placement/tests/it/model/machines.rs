//! How the machines hear, and what becomes of what they want.

use super::seats::{KEY, name};
use super::world::{Setup, Who, World, at, mix};
use std::collections::VecDeque;
use std::sync::Arc;
use tidings_base::{Machine, Outbox};
use tidings_placement::{lookup, manager, owner};
use tidings_wire::v1::placement_message::Message;

impl World {
    pub fn feed(&mut self, setup: &Setup, m: usize, print: u64, input: manager::Input) {
        let (now, mut out) = (self.manager_now(), Outbox::new());
        self.heard[m] = mix(mix(self.heard[m], now.0), mix(print, self.cell.print));
        Arc::make_mut(&mut self.managers[m]).handle(at(now), input, &mut out);
        self.perform_manager(setup, m, out);
    }

    pub fn perform_manager(&mut self, setup: &Setup, m: usize, out: Outbox<manager::Output>) {
        let mut outputs: VecDeque<manager::Output> = out.into_iter().collect();
        while let Some(output) = outputs.pop_front() {
            match output {
                manager::Output::Answer { op, message } => self.reply(m, op, Ok(message)),
                manager::Output::Push { ops, message } => {
                    ops.into_iter().for_each(|op| self.reply(m, op, Ok(message.clone())));
                }
                manager::Output::Fail { op, error } => self.reply(m, op, Err(error)),
                // The lock is given up and taken again, under the next generation.
                manager::Output::StepDown if m == self.cell.leader && !self.cell.cut[m] => {
                    self.cell.epoch += 1;
                    self.reign(setup, m);
                }
                manager::Output::StepDown => {}
                output => {
                    let Some(input) = self.cell.perform(m, output) else { continue };
                    let (now, mut more) = (self.manager_now(), Outbox::new());
                    Arc::make_mut(&mut self.managers[m]).handle(at(now), input, &mut more);
                    outputs.extend(more);
                }
            }
        }
    }

    pub fn tell_owner(&mut self, setup: &Setup, n: usize, print: u64, input: owner::Input) {
        let (now, mut out) = (self.owner_now(n), Outbox::new());
        self.owners[n].print = mix(mix(self.owners[n].print, now.0), print);
        Arc::make_mut(&mut self.owners[n].machine).handle(at(now), input, &mut out);
        self.perform_owner(setup, n, out);
    }

    pub fn perform_owner(&mut self, setup: &Setup, n: usize, out: Outbox<owner::Output>) {
        for output in out {
            match output {
                owner::Output::Send { ticket, poll, .. } => {
                    self.send(setup, Who::Owner(n), ticket, Message::OwnerPoll(*poll));
                }
                owner::Output::Holdings(mut held) => {
                    held.sort_by_key(|holding| holding.leased.range.start);
                    self.owners[n].held = Arc::new(held);
                    self.check(n);
                }
                owner::Output::Changed(change) => self.changed(n, &change),
                owner::Output::Export(to) => {
                    let there = to.owner != name(n);
                    if let Some(state) = self.owners[n].state.filter(|_| there) {
                        self.owners[1 - n].arrived.push((to.token, state));
                    }
                    self.tell_owner(setup, 1 - n, to.token, owner::Input::Imported { token: to.token, done: there });
                    self.tell_owner(setup, n, to.token, owner::Input::Exported { token: to.token, done: there });
                }
                owner::Output::ImportOver(token) => self.owners[n].arrived.retain(|(of, ..)| *of != token),
                owner::Output::Import(_) | owner::Output::Refused(_) | owner::Output::Drained | owner::Output::Left => {
                }
            }
        }
    }

    pub fn changed(&mut self, n: usize, change: &owner::OwnershipChange) {
        if change.revoked.iter().any(|leased| leased.range.contains(KEY)) {
            self.owners[n].state = None;
        }
        for (leased, token) in change.granted.iter().filter(|(leased, _)| leased.range.contains(KEY)) {
            let came = self.owners[n].arrived.iter().find(|(of, _)| Some(*of) == *token).map(|(_, state)| *state);
            let state = came.unwrap_or_else(|| {
                self.last_state += 1;
                self.last_state
            });
            self.owners[n].state = Some(state);
            self.states.insert(leased.lease, state);
        }
    }

    pub fn tell_lookup(&mut self, setup: &Setup, print: u64, input: lookup::Input) {
        let (now, mut out) = (self.manager_now(), Outbox::new());
        let Some(seat) = &mut self.lookup else { return };
        seat.print = mix(mix(seat.print, now.0), print);
        Arc::make_mut(&mut seat.machine).handle(at(now), input, &mut out);
        self.perform_lookup(setup, out);
    }

    pub fn perform_lookup(&mut self, setup: &Setup, out: Outbox<lookup::Output>) {
        let (mut changed, mut lost) = (false, Vec::new());
        for output in out {
            match output {
                lookup::Output::Send { ticket, poll, .. } => {
                    self.send(setup, Who::Lookup, ticket, Message::LookupPoll(poll));
                }
                lookup::Output::Changed => changed = true,
                lookup::Output::Lost(ranges) => lost = ranges,
                lookup::Output::Refused(_) => {}
            }
        }
        let Some(seat) = &mut self.lookup else { return };
        let judged = seat.settle(&self.states);
        seat.lost(&lost);
        if changed {
            seat.changed();
        }
        let judged = judged.and_then(|()| seat.settle(&self.states));
        if let Err(what) = judged {
            self.wrong.get_or_insert(what);
        }
    }
}
