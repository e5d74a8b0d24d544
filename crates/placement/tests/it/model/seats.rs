//! An owner and a lookup, with what their applications see.

use super::world::{Setup, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_placement::check::Holding;
use tidings_placement::lookup::Lookup;
use tidings_placement::owner::{self, Owner};

/// The key whose state is followed.
pub const KEY: KeyHash = KeyHash(0x7700_0000_0000_0000);

/// An owner's process.
#[derive(Clone)]
pub struct OwnerSeat {
    pub machine: Arc<Owner>,
    pub incarnation: u64,
    /// What its threads check against.
    pub held: Arc<Vec<Holding>>,
    /// The state of [`KEY`], if it has it.
    pub state: Option<u64>,
    /// States that came by hand-overs, by token.
    pub arrived: Vec<(u64, u64)>,
    /// Numbers that it held, and does not any more.
    pub held_before: Arc<BTreeSet<LeaseNumber>>,
    pub gone: Arc<BTreeSet<LeaseNumber>>,
    /// Everything that it ever heard, as one number.
    pub print: u64,
}

impl OwnerSeat {
    pub fn new(machine: Owner, incarnation: u64, print: u64) -> OwnerSeat {
        OwnerSeat {
            machine: Arc::new(machine),
            incarnation,
            held: Arc::default(),
            state: None,
            arrived: Vec::new(),
            held_before: Arc::default(),
            gone: Arc::default(),
            print,
        }
    }

    /// What it believes to hold.
    pub fn believes(&self, now: Mono) -> impl Iterator<Item = &Holding> {
        self.held.iter().filter(move |holding| now < holding.until)
    }

    /// A number that it holds again, though it had ceased to.
    pub fn revived(&mut self, now: Mono) -> Option<LeaseNumber> {
        let held: BTreeSet<LeaseNumber> = self.machine.claims(now).iter().map(|leased| leased.lease).collect();
        if held == *self.held_before {
            return None;
        }
        let gone = self.held_before.difference(&held).copied();
        Arc::make_mut(&mut self.gone).extend(gone);
        let revived = self.gone.intersection(&held).next().copied();
        self.held_before = Arc::new(held);
        revived
    }
}

/// A lookup's process.
#[derive(Clone)]
pub struct LookupSeat {
    pub machine: Arc<Lookup>,
    /// The state of [`KEY`] under the last number that was seen and really held.
    state: Option<u64>,
    told: bool,
    lease: Option<LeaseNumber>,
    pub print: u64,
}

impl LookupSeat {
    pub fn new(machine: Lookup) -> LookupSeat {
        LookupSeat { machine: Arc::new(machine), state: None, told: false, lease: None, print: 0 }
    }

    /// Judges the number that it saw last, if anybody held the key under it.
    pub fn settle(&mut self, states: &BTreeMap<LeaseNumber, u64>) -> Result<(), String> {
        let Some(state) = self.lease.and_then(|lease| states.get(&lease)) else { return Ok(()) };
        if let Some(before) = self.state {
            if before != *state && !self.told {
                return Err(format!("the lookup saw {:?} and heard of no loss", self.lease));
            }
            if before == *state && self.told {
                return Err(format!("the lookup heard of a loss, and the state is there under {:?}", self.lease));
            }
        }
        (self.state, self.told) = (Some(*state), false);
        Ok(())
    }

    pub fn lost(&mut self, ranges: &[KeyRange]) {
        self.told |= ranges.iter().any(|range| range.contains(KEY));
    }

    pub fn changed(&mut self) {
        self.lease = self.machine.table().find(KEY).map(|(_, lease)| lease);
    }
}

/// An owner's name.
pub fn name(n: usize) -> String {
    format!("owner {n}")
}

/// The process of an owner's so-and-so-many'th start.
pub fn seat(setup: &Setup, n: usize, incarnation: u64) -> OwnerSeat {
    let options = owner::Options {
        namespace: "n".into(),
        owner: name(n),
        address: format!("{}:{incarnation}", name(n).replace(' ', "-")),
        incarnation,
        seed: 10 * incarnation + n as u64,
        proof: None,
        hands_over: setup.hands_over,
        renew: setup.renew,
        mutant: setup.mutant,
    };
    OwnerSeat::new(Owner::new(options), incarnation, mix(n as u64, incarnation))
}
