//! What a manager has done, and what it has now, for whoever watches it.

use super::Manager;
use tidings_base::{Mono, Now};

/// What a manager has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes sent to the cell.
    pub commits: u64,
    /// Ranges granted in answers; one that was not heard counts again.
    pub grants: u64,
    /// Ranges renewed in answers.
    pub renewals: u64,
    /// Ranges that were called back from their holders.
    pub recalls: u64,
    /// Ranges that were recorded anew without their state.
    pub losses: u64,
    /// Ranges that moved with their state (F9).
    pub moves: u64,
    /// Messages of owners whose contents were dropped as races (F5).
    pub races: u64,
    /// Answers to waiting lookups that told of changes.
    pub pushes: u64,
    /// Rounds of policies that changed something, an operator's calls included.
    pub rounds: u64,
    /// What policies wanted elsewhere: ranges, and points of the ring.
    pub wishes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, more: &Counts) {
        self.commits += more.commits;
        self.grants += more.grants;
        self.renewals += more.renewals;
        self.recalls += more.recalls;
        self.losses += more.losses;
        self.moves += more.moves;
        self.races += more.races;
        self.pushes += more.pushes;
        self.rounds += more.rounds;
        self.wishes += more.wishes;
    }
}

/// What a manager has at an instant; all zero unless it leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Of its leadership.
    pub epoch: u64,
    /// Namespaces that are not deleted.
    pub namespaces: u64,
    /// Those of them that are the platform's own: their names begin with a dot, as no application's does.
    pub platform: u64,
    /// Owners that count as alive.
    pub owners: u64,
    /// Ranges of all tables.
    pub ranges: u64,
    /// Polls of owners and of lookups that are held.
    pub held: u64,
    /// Namespaces whose leases may not outlast a manager's death (F10).
    pub tight: u64,
    /// Namespaces of which a file cannot be understood: they are not led.
    pub damaged: u64,
}

impl Manager {
    /// What it has done, over all its leaderships.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counted;
        self.pools.values().for_each(|pool| counts.add(&pool.counts));
        counts
    }

    /// What it has now.
    pub fn gauges(&self, now: Now) -> Gauges {
        let Some(epoch) = self.epoch() else { return Gauges::default() };
        let mut gauges = Gauges { epoch, ..Gauges::default() };
        for pool in self.pools.values().filter(|pool| !pool.is_deleted()) {
            let live =
                pool.members.values().filter(|member| member.live_until > Mono(0) && now.mono < member.live_until);
            gauges.namespaces += 1;
            gauges.platform += u64::from(pool.name.starts_with('.'));
            gauges.owners += live.count() as u64;
            gauges.ranges += pool.table.len() as u64;
            gauges.tight += u64::from(pool.warning.is_some() && !pool.is_damaged());
            gauges.damaged += u64::from(pool.is_damaged());
            gauges.held += (pool.polls.len() + pool.lookups.len()) as u64;
        }
        gauges
    }
}
