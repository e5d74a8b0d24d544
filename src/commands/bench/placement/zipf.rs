//! A Zipf load on pools of several sizes: how well it is spread, and what has to move for that.

use super::crowd::Crowd;
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use std::time::Duration;
use tidings_base::{Error, Seeded};
use tidings_wire::v1;

/// The exponent, as in the usual web traces.
const EXPONENT: f64 = 0.99;
/// Requests a second of all keys together.
const TOTAL: f64 = 1e6;
/// Samples a window of an owner: what a report is off by follows from it.
const SAMPLES: f64 = 12_000.0;
/// Rounds after which a pool must have settled.
const ROUNDS: usize = 60;
/// One round of the policy.
const ROUND: Duration = Duration::from_secs(10);
/// Heavy keys in a report.
const NAMED: usize = 32;
/// The rest should be within a tenth of its mean.
const WORST: f64 = 1.10;

struct Load {
    /// Keys in the ring's order, with their rates.
    keys: Vec<(u64, f64)>,
    rng: Seeded,
}

impl Load {
    fn new(keys: usize, seed: u64) -> Load {
        let mut rng = Seeded::new(seed).fork("zipf");
        let mut points: Vec<u64> = (0..keys).map(|_| rng.next_u64()).collect();
        points.sort_unstable();
        points.dedup();
        let mut ranks: Vec<usize> = (1..=points.len()).collect();
        rng.shuffle(&mut ranks);
        let weight = |rank: usize| (rank as f64).powf(-EXPONENT);
        let sum: f64 = ranks.iter().map(|rank| weight(*rank)).sum();
        let keys = points.into_iter().zip(ranks).map(|(at, rank)| (at, TOTAL * weight(rank) / sum)).collect();
        Load { keys, rng }
    }

    fn within(&self, range: &v1::LeasedRange) -> &[(u64, f64)] {
        let from = self.keys.partition_point(|(at, _)| *at < range.start);
        let to = self.keys.partition_point(|(at, _)| *at <= range.last);
        &self.keys[from..to]
    }

    /// A rate as a sample would tell it: off by about the root of its share of the samples.
    fn sampled(&mut self, rate: f64, of: f64) -> f64 {
        let hits = SAMPLES * rate / of.max(1e-9);
        let bell: f64 = (0..6).map(|_| self.rng.below(1_000) as f64 / 1_000.0 - 0.5).sum::<f64>() * 2f64.sqrt();
        ((hits + hits.sqrt() * bell) * of / SAMPLES).max(0.0)
    }

    /// What an owner of these ranges would report.
    fn report(&mut self, claims: &[v1::LeasedRange]) -> v1::OwnerLoad {
        let rates: Vec<f64> =
            claims.iter().map(|range| self.within(range).iter().map(|(_, rate)| rate).sum()).collect();
        let rate: f64 = rates.iter().sum();
        let mut keys: Vec<(u64, f64)> = claims.iter().flat_map(|range| self.within(range).iter().copied()).collect();
        keys.sort_by(|a, b| b.1.total_cmp(&a.1));
        keys.truncate(NAMED);
        let mut hot = Vec::with_capacity(claims.len() + NAMED);
        for (range, rate_of) in claims.iter().zip(rates).filter(|(range, _)| range.start < range.last) {
            let measured = self.sampled(rate_of, rate);
            hot.push(v1::HotRange { start: range.start, last: range.last, rate: measured });
        }
        for (key, rate_of) in keys {
            let measured = self.sampled(rate_of, rate);
            if measured * SAMPLES / rate.max(1e-9) >= 24.0 {
                hot.push(v1::HotRange { start: key, last: key, rate: measured });
            }
        }
        v1::OwnerLoad { rate, hot, samples: SAMPLES as u32 }
    }
}

/// How a pool ended.
struct Spread {
    rounds: usize,
    isolated: usize,
    above: usize,
    worst: f64,
    moves: usize,
    keys_moved: usize,
}

fn owners_of(crowd: &Crowd) -> Vec<(u64, u64, usize)> {
    let claims = crowd.claims().enumerate();
    let mut table: Vec<(u64, u64, usize)> =
        claims.flat_map(|(owner, claims)| claims.iter().map(move |range| (range.start, range.last, owner))).collect();
    table.sort_unstable();
    table
}

fn owner_at(table: &[(u64, u64, usize)], key: u64) -> Option<usize> {
    let at = table.partition_point(|(start, ..)| *start <= key).checked_sub(1)?;
    table.get(at).filter(|(_, last, _)| key <= *last).map(|(.., owner)| *owner)
}

fn settle(owners: u32, keys: usize, seed: u64) -> Result<Spread, Error> {
    let config = v1::NamespaceConfig { rebalance_ms: ROUND.as_millis() as u32, ..Default::default() };
    let mut load = Load::new(keys, seed);
    let mut crowd = Crowd::new(owners, config, seed)?;
    let (mut moves, mut keys_moved, mut quiet, mut rounds) = (0, 0, 0, 0);
    let mut before = owners_of(&crowd);
    // Quiet for longer than ranges dwell where they are: settled.
    while quiet < 4 && rounds < ROUNDS {
        rounds += 1;
        let claims: Vec<Vec<v1::LeasedRange>> = crowd.claims().map(<[_]>::to_vec).collect();
        let reports = claims.iter().map(|claims| load.report(claims)).collect();
        crowd.report(reports, ROUND);
        let after = owners_of(&crowd);
        let moved = after.iter().filter(|(start, _, owner)| owner_at(&before, *start) != Some(*owner)).count();
        keys_moved += load.keys.iter().filter(|(key, _)| owner_at(&before, *key) != owner_at(&after, *key)).count();
        quiet = if moved == 0 { quiet + 1 } else { 0 };
        moves += moved;
        before = after;
    }
    let mut rates = vec![0.0; owners as usize];
    let mut held = vec![0usize; owners as usize];
    for (key, rate) in &load.keys {
        if let Some(owner) = owner_at(&before, *key) {
            rates[owner] += rate;
            held[owner] += 1;
        }
    }
    let rest: Vec<f64> = rates.iter().zip(&held).filter(|(_, held)| **held != 1).map(|(rate, _)| *rate).collect();
    let mean = rest.iter().sum::<f64>() / rest.len().max(1) as f64;
    let alone = |key: &u64| owner_at(&before, *key).is_some_and(|owner| held[owner] == 1);
    Ok(Spread {
        rounds,
        isolated: held.iter().filter(|held| **held == 1).count(),
        above: load.keys.iter().filter(|(key, rate)| *rate > mean && !alone(key)).count(),
        worst: rest.iter().copied().fold(0.0, f64::max) / mean.max(1e-9),
        moves,
        keys_moved,
    })
}

pub fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    for owners in effort.placement.pools {
        let mut taken: Vec<Spread> = Vec::new();
        for seed in 1..=effort.repetitions as u64 {
            taken.push(settle(*owners, effort.placement.keys, seed)?);
        }
        let name =
            |what: &str| format!("placement: Zipf {EXPONENT}, {} keys, {owners} owners: {what}", effort.placement.keys);
        let mut add = |what: &str, unit, goal, of: &dyn Fn(&Spread) -> f64| {
            figures.add(&name(what), unit, goal, &taken.iter().map(of).collect::<Vec<_>>());
        };
        add("max ÷ mean of owners that share", "×", Some(Goal::AtMost(WORST)), &|spread| spread.worst);
        // How many those are follows from the load; that none of them shares is what is aimed at.
        add("keys alone on an owner", "keys", None, &|spread| spread.isolated as f64);
        let none = Some(Goal::AtMost(0.0));
        add("keys above the mean that share an owner", "keys", none, &|spread| spread.above as f64);
        add("ranges moved", "moves", None, &|spread| spread.moves as f64);
        add("keys moved", "%", None, &|spread| spread.keys_moved as f64 * 100.0 / effort.placement.keys as f64);
        add("rounds until settled", "rounds", None, &|spread| spread.rounds as f64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_spreads_the_same_load_the_same_way() {
        let spread = |seed| settle(6, 4_000, seed).map(|s| (s.moves, s.keys_moved, s.isolated, s.worst.to_bits()));
        assert_eq!(spread(3).unwrap(), spread(3).unwrap());
    }
}
