//! Which replica is asked: uniformly, by a generator that replicas cannot foresee, never by latency (rule I).
//!
//! A replica that were preferred for its speed could make itself the one that is asked, and then be stale for as long as
//! it likes. With a uniform choice k stale answers in a row have probability gᵏ, where g is the share of bad replicas.

use crate::ReplicaId;
use crate::unforeseen::Unforeseen;
use std::time::Duration;
use tidings_base::Mono;

/// How many of a replica's latest fast answers are looked at, and how many bad ones of them eject it.
const LOOKED_AT: u32 = 16;
const TOO_MANY: u32 = 8;
/// An ejected replica returns after this, doubled with each ejection up to the longest.
const FIRST_EJECTION: Duration = Duration::from_secs(10);
const LONGEST_EJECTION: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, Default)]
struct Conduct {
    /// The latest outcomes, one bit each; a set bit is a bad one.
    recent: u32,
    ejected_until: Option<Mono>,
    /// Health checks found it down: it was the so-manieth to go.
    down: Option<u64>,
    ejections: u32,
    mismatches: u64,
    silences: u64,
}

/// What is known of a replica's conduct, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Fast answers that differed although nothing had changed: it lied or lagged.
    pub mismatches: u64,
    /// Fast reads that it did not answer in time.
    pub silences: u64,
    /// Whether it is not asked at the moment.
    pub ejected: bool,
}

pub(super) struct Replicas {
    conduct: Vec<Conduct>,
    faults: usize,
    unforeseen: Unforeseen,
    went_down: u64,
}

impl Replicas {
    pub(super) fn new(replicas: u16, faults: u16, secret: &[u8; 32]) -> Replicas {
        let conduct = vec![Conduct::default(); usize::from(replicas.max(1))];
        Replicas { conduct, faults: usize::from(faults), unforeseen: Unforeseen::new(secret), went_down: 0 }
    }

    /// One of those that are not ejected.
    pub(super) fn choose(&mut self, now: Mono) -> ReplicaId {
        // At most f are ejected, and a group has more members than that.
        let ejected = self.ejected(now);
        let free = ejected.iter().filter(|ejected| !**ejected).count();
        let drawn = self.unforeseen.below(free.max(1) as u64) as usize;
        let chosen = (0..ejected.len()).filter(|at| !ejected[*at]).nth(drawn);
        ReplicaId(chosen.unwrap_or(0) as u16)
    }

    /// Health checks found it up, or down.
    pub(super) fn turned(&mut self, replica: ReplicaId, up: bool) {
        self.went_down += 1;
        if let Some(conduct) = self.conduct.get_mut(usize::from(replica.0)) {
            conduct.down = (!up).then_some(self.went_down);
        }
    }

    /// Its fast answer was the remembered one, or was ahead of it.
    pub(super) fn was_right(&mut self, replica: ReplicaId) {
        if let Some(conduct) = self.conduct.get_mut(usize::from(replica.0)) {
            conduct.recent <<= 1;
        }
    }

    /// Its fast answer differed although nothing had changed.
    pub(super) fn mismatched(&mut self, now: Mono, replica: ReplicaId) {
        self.was_bad(now, replica, |conduct| conduct.mismatches += 1);
    }

    /// It did not answer.
    pub(super) fn was_silent(&mut self, now: Mono, replica: ReplicaId) {
        self.was_bad(now, replica, |conduct| conduct.silences += 1);
    }

    pub(super) fn standing(&self, now: Mono) -> Vec<Standing> {
        let known = self.conduct.iter().zip(self.ejected(now));
        known
            .map(|(conduct, ejected)| Standing { mismatches: conduct.mismatches, silences: conduct.silences, ejected })
            .collect()
    }

    /// Who is not asked: whoever was bad, and then whoever is down, those first who went first; never more than f. More than
    /// that cannot all be at fault, and a group of which nobody is asked serves nobody.
    fn ejected(&self, now: Mono) -> Vec<bool> {
        let bad = |conduct: &Conduct| conduct.ejected_until.is_some_and(|until| now < until);
        let mut ejected: Vec<bool> = self.conduct.iter().map(bad).collect();
        let room = self.faults.saturating_sub(ejected.iter().filter(|ejected| **ejected).count());
        let down = |(at, conduct): (usize, &Conduct)| conduct.down.filter(|_| !ejected[at]).map(|order| (order, at));
        let mut down: Vec<(u64, usize)> = self.conduct.iter().enumerate().filter_map(down).collect();
        down.sort_unstable();
        down.into_iter().take(room).for_each(|(_, at)| ejected[at] = true);
        ejected
    }

    fn was_bad(&mut self, now: Mono, replica: ReplicaId, count: impl FnOnce(&mut Conduct)) {
        let at = usize::from(replica.0);
        // A replica that is down is no reason to trust another one: it makes room for whoever is found bad.
        let bad = |conduct: &&Conduct| conduct.ejected_until.is_some_and(|until| now < until);
        let ejected = self.conduct.iter().filter(bad).count();
        let Some(conduct) = self.conduct.get_mut(at) else { return };
        count(conduct);
        conduct.recent = conduct.recent << 1 | 1;
        let bad = (conduct.recent & ((1 << LOOKED_AT) - 1)).count_ones();
        // More than f cannot all be at fault: whoever else seems so may be right.
        if bad >= TOO_MANY && ejected < self.faults {
            let pause = FIRST_EJECTION.saturating_mul(1 << conduct.ejections.min(16)).min(LONGEST_EJECTION);
            conduct.ejections += 1;
            conduct.recent = 0;
            conduct.ejected_until = Some(now + pause);
        }
    }
}

impl std::fmt::Debug for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.conduct).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_uniform_and_unlike_under_another_secret() {
        let draw = |secret| {
            let mut replicas = Replicas::new(4, 1, &[secret; 32]);
            (0..8_000).map(|_| replicas.choose(Mono(0)).0).collect::<Vec<_>>()
        };
        let (drawn, others) = (draw(1), draw(2));
        for replica in 0..4 {
            let times = drawn.iter().filter(|chosen| **chosen == replica).count();
            // Four standard deviations of a binomial: √(8000 · ¼ · ¾) = 38.7.
            assert!(times.abs_diff(2_000) < 155, "replica {replica} was chosen {times} times of 8,000");
        }
        let pairs = drawn.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(pairs.abs_diff(2_000) < 155, "a choice follows the one before it {pairs} times of 8,000");
        assert_ne!(drawn, others);
    }

    #[test]
    fn at_most_f_are_ejected_and_they_return() {
        let mut replicas = Replicas::new(4, 1, &[1; 32]);
        for _ in 0..8 {
            replicas.mismatched(Mono(0), ReplicaId(2));
            replicas.was_silent(Mono(0), ReplicaId(3));
        }
        let ejected = |replicas: &Replicas, now| {
            let all = replicas.standing(now).into_iter();
            all.map(|standing| standing.ejected).collect::<Vec<_>>()
        };
        assert_eq!(ejected(&replicas, Mono(0)), [false, false, true, false]);
        assert!((0..200).all(|_| replicas.choose(Mono(0)) != ReplicaId(2)));
        let later = Mono(0) + FIRST_EJECTION;
        assert_eq!(ejected(&replicas, later), [false; 4]);
        assert!((0..200).any(|_| replicas.choose(later) == ReplicaId(2)));
        assert_eq!(replicas.standing(later)[3].silences, 8);
    }

    #[test]
    fn who_is_down_is_not_asked_within_the_same_bound() {
        let mut replicas = Replicas::new(5, 2, &[1; 32]);
        let ejected = |replicas: &Replicas, now| {
            let all = replicas.standing(now).into_iter();
            (0..).zip(all).filter(|(_, standing)| standing.ejected).map(|(at, _)| at).collect::<Vec<u16>>()
        };
        for down in [3, 0, 1] {
            replicas.turned(ReplicaId(down), false);
        }
        assert_eq!(ejected(&replicas, Mono(0)), [0, 3], "those that went first, and no more than f");
        assert!((0..200).all(|_| ![0, 3].contains(&replicas.choose(Mono(0)).0)));
        replicas.turned(ReplicaId(3), true);
        assert_eq!(ejected(&replicas, Mono(0)), [0, 1], "the next one takes its place");
        (0..8).for_each(|_| replicas.mismatched(Mono(0), ReplicaId(2)));
        assert_eq!(ejected(&replicas, Mono(0)), [0, 2], "whoever was wrong goes before whoever is down");
        assert_eq!(ejected(&replicas, Mono(0) + FIRST_EJECTION), [0, 1]);
        (0..5).for_each(|up| replicas.turned(ReplicaId(up), true));
        assert_eq!(ejected(&replicas, Mono(0) + FIRST_EJECTION), [0; 0]);
        assert!((0..200).any(|_| replicas.choose(Mono(0) + FIRST_EJECTION) == ReplicaId(0)));
    }

    #[test]
    fn a_replica_that_is_mostly_right_stays() {
        let mut replicas = Replicas::new(4, 1, &[1; 32]);
        for turn in 0..100 {
            match turn % 3 {
                0 => replicas.mismatched(Mono(0), ReplicaId(2)),
                _ => replicas.was_right(ReplicaId(2)),
            }
        }
        assert!(!replicas.standing(Mono(0))[2].ejected);
    }
}
