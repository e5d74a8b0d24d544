//! P2 under fire: while enough of a pool is in order, no key is without an owner for longer than the gap that is declared.
//!
//! What is claimed rests on what is whole, so every second the world is looked at as its faults have left it. A host is *away*
//! (it does not run, it sleeps, nothing passes to or from whomever it needs) or *in order*. Nothing is claimed while
//! something is neither: behind a cut of one direction, under a network that loses messages, without the namespace, without
//! anybody who may hold keys. From the moment at which the last host went away, what it held ends with its lease at the
//! manager, and whoever leads next waits for one lease more; then every key is somebody's. A host whose process has died and
//! started again between two looks was away, too: each manager that takes the lock waits anew. A range that moves with its
//! state is frozen meanwhile: it is claimed, and not served, for as long as a move may take.

use super::Run;
use super::cell::SESSION;
use super::fact::{KEYS, place};
use super::town::Town;
use crate::clock::SimTime;
use crate::invariants::Violation;
use crate::kernel::HostId;
use crate::network::Weather;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_base::time::stretched;
use tidings_placement::config::Times;

/// The claim.
pub const CLAIM: &str = "no_key_stays_unowned";

/// From the end of a leader's session to the next one's first word: the lock is tried for, the files are read.
const TAKE_OVER: Duration = Duration::from_secs(3);
/// Commits, grants, refused grants and a race or two, once a range is free.
const GRANTED: Duration = Duration::from_secs(3);
/// How long a move may freeze a range, and the message that ends it.
const FROZEN: Duration = Duration::from_secs(32);

/// The longest that nobody claims a key once everything is as it stays. Clocks may be slow by ρ.
pub fn unclaimed_for(times: Times) -> Duration {
    stretched(SESSION + times.honoured() + times.renew) + TAKE_OVER + GRANTED
}

/// The longest that nobody serves it.
fn unserved_for(times: Times) -> Duration {
    unclaimed_for(times) + stretched(FROZEN)
}

/// What was seen of gaps.
#[derive(Debug)]
pub struct Gaps {
    /// When the last host went away, or something was last neither away nor in order.
    pub since: SimTime,
    away: BTreeSet<HostId>,
    /// How often each host had started at the last look.
    starts: BTreeMap<HostId, u64>,
    /// When each watched key was last seen to be claimed, and to be served.
    claimed: Vec<SimTime>,
    served: Vec<SimTime>,
    judged: u64,
}

impl Default for Gaps {
    fn default() -> Gaps {
        let never = vec![SimTime::ZERO; KEYS as usize];
        let (since, away, starts) = (SimTime::ZERO, BTreeSet::new(), BTreeMap::new());
        Gaps { since, away, starts, claimed: never.clone(), served: never, judged: 0 }
    }
}

impl Gaps {
    /// How often a key was looked at when it had to be somebody's.
    pub fn judged(&self) -> u64 {
        self.judged
    }

    /// Takes in who is away, if everybody else is in order, and how often each host has started.
    pub fn see(&mut self, now: SimTime, away: Option<BTreeSet<HostId>>, starts: BTreeMap<HostId, u64>) {
        let unseen = |(host, count): (&HostId, &u64)| {
            // Whoever was seen to be away and is back has started once.
            let back = self.away.contains(host) && away.as_ref().is_some_and(|away| !away.contains(host));
            self.starts.get(host).is_some_and(|before| *count > before + u64::from(back))
        };
        let restarted = starts.iter().any(unseen);
        if restarted || away.as_ref().is_none_or(|away| !away.is_subset(&self.away)) {
            self.since = now;
        }
        self.starts = starts;
        if let Some(away) = away {
            self.away = away;
        }
    }
}

/// How a host stands to those whom it needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    InOrder,
    Away,
    Neither,
}

impl Run {
    /// Looks for keys that nobody has had for too long.
    pub(super) fn look_for_gaps(&mut self) -> Result<(), Violation> {
        let (now, away) = (self.stage.world.now(), self.away());
        let Town { cell, managers, owners, .. } = &self.stage.town;
        let needed = managers.iter().chain(owners.keys()).chain([cell]);
        let starts = needed.map(|host| (*host, self.stage.world.starts(*host))).collect();
        self.gaps.see(now, away, starts);
        let mut claims = BTreeSet::new();
        for host in self.stage.town.owners.keys() {
            let Some((owner, at)) = self.owner(*host) else { continue };
            let held = owner.claims(at);
            claims.extend((0..KEYS).filter(|key| held.iter().any(|leased| leased.range.contains(place(*key)))));
        }
        let times = self.stage.town.times;
        let lasts = [("claimed", unclaimed_for(times)), ("served", unserved_for(times))];
        for key in 0..KEYS {
            let has = [claims.contains(&key), !self.believers(key).is_empty()];
            let Gaps { since, claimed, served, judged, .. } = &mut self.gaps;
            for (i, last) in [&mut claimed[key as usize], &mut served[key as usize]].into_iter().enumerate() {
                if has[i] {
                    *last = now;
                }
                let (what, bound) = lasts[i];
                if now.since(*since) <= bound {
                    continue;
                }
                *judged += 1;
                if now.since((*last).max(*since)) > bound {
                    let what = format!("nobody has {what} key {key} for {:?}", now.since(*last));
                    return Err(Violation::new(CLAIM, what));
                }
            }
        }
        Ok(())
    }

    /// Who is away, if everybody else is in order and enough of them to hold every key.
    fn away(&self) -> Option<BTreeSet<HostId>> {
        let (world, town) = (&self.stage.world, &self.stage.town);
        if world.network.weather() != Weather::CALM || !self.has_namespace() || !self.awake(town.cell) {
            return None;
        }
        let mut away = BTreeSet::new();
        let mut managers = Vec::new();
        for host in &town.managers {
            match self.stands(*host, &[town.cell]) {
                Stands::InOrder => managers.push(*host),
                Stands::Away => drop(away.insert(*host)),
                Stands::Neither => return None,
            }
        }
        let mut takers = 0;
        for host in town.owners.keys() {
            match self.stands(*host, &managers) {
                Stands::InOrder => takers += usize::from(self.takes(*host)),
                Stands::Away => drop(away.insert(*host)),
                Stands::Neither => return None,
            }
        }
        (!managers.is_empty() && takers > 0).then_some(away)
    }

    fn awake(&self, host: HostId) -> bool {
        self.stage.world.is_up(host) && !self.stage.world.is_paused(host)
    }

    fn stands(&self, host: HostId, needs: &[HostId]) -> Stands {
        if !self.awake(host) {
            return Stands::Away;
        }
        let network = &self.stage.world.network;
        let ways = needs.iter().flat_map(|other| [network.connected(host, *other), network.connected(*other, host)]);
        let ways: Vec<bool> = ways.collect();
        match () {
            () if ways.iter().all(|open| *open) => Stands::InOrder,
            () if ways.iter().all(|open| !*open) => Stands::Away,
            () => Stands::Neither,
        }
    }

    /// Whether an owner that is in order may hold keys: nobody has its name, and nothing has befallen it but faults.
    fn takes(&self, host: HostId) -> bool {
        let owners = &self.stage.town.owners;
        let name = &owners[&host].id;
        !self.is_troubled(host) && owners.values().filter(|habits| habits.id == *name).count() == 1
    }
}
