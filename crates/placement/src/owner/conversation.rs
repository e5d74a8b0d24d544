//! F5 at the owner: one request at a time, and answers that do not reflect the latest one are races.

use crate::Ticket;
use crate::mutant::Mutant;
use std::time::Duration;
use tidings_base::Mono;
use tidings_wire::v1;

/// A round trip is believed to be this long at least and at most, and to double from one answer to the next.
const LEAST_TRIP: Duration = Duration::from_millis(2);
const LONGEST_TRIP: Duration = Duration::from_secs(1);

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a duplicate, out of context, or of a deposed leader.
    Ignore,
    /// It crossed a later message of ours: its content is dropped for good, and we ask again after a pause.
    Race,
    /// A new leader: speak under its epoch.
    Hello,
    /// It answers our latest message, which was sent then.
    Take {
        /// The local send time of the message that it echoes (F6).
        asked: Mono,
        /// Nothing was said in between: the manager took what that message said, and did not drop it as a race.
        in_turn: bool,
    },
}

/// The latest message.
#[derive(Clone, Copy, Debug)]
struct Latest {
    ticket: Ticket,
    asked: Mono,
    /// Its answer is still awaited.
    awaited: bool,
    /// The manager's latest that it reflected.
    heard: u64,
}

/// The owner's side of a conversation with whoever leads.
#[derive(Clone, Debug)]
pub struct Conversation {
    nonce: u64,
    epoch: u64,
    seq: u64,
    heard: u64,
    latest: Option<Latest>,
    round_trip: Duration,
}

impl Conversation {
    /// A conversation that has not begun.
    pub fn new(nonce: u64) -> Conversation {
        Conversation { nonce, epoch: 0, seq: 0, heard: 0, latest: None, round_trip: Duration::ZERO }
    }

    /// Names this conversation.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The highest epoch that was heard of.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A round trip, as measured: an answer that was held tells nothing of it, so a short one counts for long.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// A new message: its number, and the manager's latest that it reflects.
    pub fn ask(&mut self, ticket: Ticket, now: Mono) -> (u64, u64) {
        self.seq += 1;
        self.latest = Some(Latest { ticket, asked: now, awaited: true, heard: self.heard });
        (self.seq, self.heard)
    }

    /// No answer will come for this message; whether it was the latest.
    pub fn failed(&mut self, ticket: Ticket) -> bool {
        match &mut self.latest {
            Some(latest) if latest.ticket == ticket && latest.awaited => {
                latest.awaited = false;
                true
            }
            _ => false,
        }
    }

    /// The latest message has waited long enough.
    pub fn give_up(&mut self) {
        if let Some(latest) = &mut self.latest {
            latest.awaited = false;
        }
    }

    /// Judges an answer.
    pub fn heard(&mut self, ticket: Ticket, answer: &v1::OwnerAnswer, now: Mono, mutant: Option<Mutant>) -> Verdict {
        if answer.nonce != self.nonce || answer.epoch < self.epoch {
            return Verdict::Ignore;
        }
        let Some(Latest { ticket: latest, asked, heard, .. }) = self.latest else { return Verdict::Ignore };
        if mutant == Some(Mutant::NoSequenceNumbers) {
            self.epoch = answer.epoch;
            self.heard = answer.seq;
            return if answer.hello { Verdict::Hello } else { Verdict::Take { asked, in_turn: true } };
        }
        if answer.epoch > self.epoch {
            // Another leader counts its messages anew. We have not spoken under its epoch, so whatever it says rests
            // on what it read, not on what we hold.
            self.epoch = answer.epoch;
            self.heard = answer.seq;
            return Verdict::Hello;
        }
        if answer.seq <= self.heard {
            return Verdict::Ignore;
        }
        let reflects = answer.heard == self.seq && latest == ticket;
        if reflects || mutant != Some(Mutant::HeardNotAdvanced) {
            self.heard = answer.seq;
        }
        if !reflects {
            return Verdict::Race;
        }
        if let Some(latest) = &mut self.latest {
            latest.awaited = false;
        }
        self.round_trip = now.since(asked).min((self.round_trip * 2).max(LEAST_TRIP)).min(LONGEST_TRIP);
        if answer.hello { Verdict::Hello } else { Verdict::Take { asked, in_turn: answer.seq == heard + 1 } }
    }
}
