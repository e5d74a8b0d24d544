//! Policies at work: measured loads go in, ranges move, nothing flaps.

use super::*;
use crate::owner::load::{Sampler, report};
use tidings_base::Seeded;

/// Owners that serve a load: each request goes to whoever holds its key, and is sampled there.
struct Served {
    world: World,
    rng: Seeded,
    /// Keys, with the sum of weights up to each.
    keys: Vec<(f64, KeyHash)>,
    rates: Vec<f64>,
}

impl Served {
    fn new(config: v1::NamespaceConfig, owners: usize, hands_over: bool, keys: &[(u64, f64)]) -> Served {
        let mut world = World::new();
        let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, rebalance_ms: 10_000, ..config };
        let delete = v1::NamespaceDelete { namespace: "n".into() };
        world.operate(Message::NamespaceDelete(delete)).unwrap();
        let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
        world.operate(Message::NamespaceCreate(create)).unwrap();
        for i in 0..owners {
            let options = owner::Options { hands_over, ..owner_options(&format!("o{i}"), 1) };
            world.add_owner(options, Some(true));
        }
        world.pass(Duration::from_secs(3));
        let mut sum = 0.0;
        let keys = keys.iter().map(|(key, weight)| {
            sum += weight;
            (sum, KeyHash(*key))
        });
        Served { world, rng: Seeded::new(4), keys: keys.collect(), rates: vec![0.0; owners] }
    }

    /// Serves requests for a while, and reports.
    fn window(&mut self, requests: usize, time: Duration) {
        let mut samplers: Vec<Sampler> = (0..self.world.owners.len() as u64).map(Sampler::new).collect();
        let total = self.keys.last().unwrap().0;
        let mut counts = vec![0usize; samplers.len()];
        for _ in 0..requests {
            let at = total * self.rng.below(1 << 40) as f64 / (1u64 << 40) as f64;
            let key = self.keys[self.keys.partition_point(|(sum, _)| *sum < at).min(self.keys.len() - 1)].1;
            let now = self.world.now;
            let holder = self.world.owners.iter().position(|o| o.checks.check_now(key, || now).is_some());
            if let Some(holder) = holder {
                samplers[holder].observe(key);
                counts[holder] += 1;
            }
        }
        for (index, sampler) in samplers.iter_mut().enumerate() {
            let held = self.world.owners[index].checks.held(self.world.now);
            let load = report(&[sampler.end()], time, &held);
            self.world.tell_owner(index, owner::Input::Load(load));
            self.rates[index] = counts[index] as f64;
        }
        self.world.pass(time);
    }

    fn worst(&self) -> f64 {
        let mean = self.rates.iter().sum::<f64>() / self.rates.len() as f64;
        self.rates.iter().copied().fold(0.0, f64::max) / mean
    }
}

/// Even keys, and some that are asked for much more often.
fn keys(hot: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let mut rng = Seeded::new(8);
    let mut keys: Vec<(u64, f64)> = (0..2_000).map(|_| (rng.next_u64(), 1.0)).collect();
    keys.extend_from_slice(hot);
    keys
}

#[test]
fn several_hot_keys_are_put_alone_cleanly_and_then_nothing_moves() {
    // Two keys that are each as much as all others together.
    let hot = [(0x1234_5678_9abc_def0, 2_000.0), (0x1334_5678_9abc_def0, 1_500.0)];
    let mut served = Served::new(v1::NamespaceConfig::default(), 6, true, &keys(&hot));
    let watching = served.world.add_lookup();
    served.world.pass(Duration::from_secs(1));
    for _ in 0..40 {
        served.window(6_000, Duration::from_secs(5));
    }
    let moved = served.world.managers[0].counts().moves;
    let holder = |served: &Served, key: u64| {
        let now = served.world.now;
        served.world.owners.iter().position(|o| o.checks.check_now(KeyHash(key), || now).is_some()).unwrap()
    };
    for (key, _) in hot {
        let held = served.world.owners[holder(&served, key)].checks.held(served.world.now);
        assert_eq!(held.len(), 1, "{key:x} shares its owner: {held:?}");
        assert_eq!((held[0].range.start, held[0].range.last), (KeyHash(key), KeyHash(key)));
    }
    assert_ne!(holder(&served, hot[0].0), holder(&served, hot[1].0));
    assert_eq!(served.world.lookups[watching].1, [], "clean moves lose nothing");
    assert_eq!(served.world.covered(), 1.0);
    for _ in 0..20 {
        served.window(6_000, Duration::from_secs(5));
    }
    let later = served.world.managers[0].counts().moves;
    assert!(later - moved <= 6, "{} moves after it had settled ({moved} before)", later - moved);
}

#[test]
fn what_a_few_requests_say_moves_nothing() {
    let mut served = Served::new(v1::NamespaceConfig::default(), 6, true, &keys(&[]));
    let before = served.world.managers[0].counts();
    for _ in 0..40 {
        served.window(200, Duration::from_secs(5));
    }
    let after = served.world.managers[0].counts();
    assert_eq!((after.moves, after.rounds), (before.moves, before.rounds));
}

#[test]
fn the_papers_policy_gives_points_from_the_loaded_to_the_idle() {
    let config = v1::NamespaceConfig { policy: "paper".into(), ..Default::default() };
    let mut served = Served::new(config, 3, false, &keys(&[]));
    // What the first owner holds is asked for five times as often as the rest.
    let (now, mut sum) = (served.world.now, 0.0);
    for (until, key) in &mut served.keys {
        sum += if served.world.owners[0].checks.check_now(*key, || now).is_some() { 5.0 } else { 1.0 };
        *until = sum;
    }
    served.window(6_000, Duration::from_secs(5));
    let before = served.worst();
    assert!(before > 1.8, "{before}");
    for _ in 0..60 {
        served.window(4_000, Duration::from_secs(10));
    }
    // Its band is a tenth either way, and it does not see what a point carries: it hovers.
    let mut worst = 0.0;
    for _ in 0..10 {
        served.window(4_000, Duration::from_secs(10));
        worst += served.worst() / 10.0;
    }
    assert!(worst < 1.3, "from {before} to {worst}");
    let list = served.world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    let points: Vec<u32> = list.owners.iter().filter_map(|o| o.owner.as_ref()).map(|o| o.virtual_nodes).collect();
    assert_eq!(points.iter().sum::<u32>(), 3 * 64, "their sum stays");
    assert!(points.iter().any(|n| *n != 64), "{points:?}");
}

#[test]
fn a_dry_run_says_what_would_move_and_moves_nothing() {
    let config = v1::NamespaceConfig { rebalance_ms: 3_600_000, ..Default::default() };
    let hot = [(0x1234_5678_9abc_def0, 3_000.0)];
    let mut served = Served::new(config, 4, true, &keys(&hot));
    let pool = served.world.managers[0].pools.get_mut("n").unwrap();
    pool.due.set(pool::Due::Round, Mono(u64::MAX));
    served.window(8_000, Duration::from_secs(30));
    let before = served.world.managers[0].counts();
    let rebalance = |dry_run| Message::Rebalance(v1::Rebalance { namespace: "n".into(), dry_run });
    let Message::RebalanceReply(plan) = served.world.operate(rebalance(true)).unwrap() else { panic!("no plan") };
    assert!(plan.moves.iter().any(|step| step.kind == "split"), "{plan:?}");
    assert!(plan.moves.iter().any(|step| step.kind == "move" && !step.to.is_empty()), "{plan:?}");
    served.world.pass(Duration::from_secs(10));
    assert_eq!(served.world.managers[0].counts().moves, before.moves, "nothing moved");
    let Message::RebalanceReply(done) = served.world.operate(rebalance(false)).unwrap() else { panic!("no plan") };
    assert_eq!(done.moves.len(), plan.moves.len());
    served.world.pass(Duration::from_secs(10));
    assert!(served.world.managers[0].counts().moves > before.moves);
    let elsewhere = Message::Rebalance(v1::Rebalance { namespace: "x".into(), dry_run: true });
    assert_eq!(served.world.operate(elsewhere).unwrap_err().code, "placement.no_namespace");
}

#[test]
fn whoever_asks_while_ranges_settle_is_told_until_when() {
    let hot = [(0x1234_5678_9abc_def0, 3_000.0)];
    let mut served = Served::new(v1::NamespaceConfig::default(), 4, true, &keys(&hot));
    let pool = served.world.managers[0].pools.get_mut("n").unwrap();
    pool.due.set(pool::Due::Round, Mono(u64::MAX));
    let ask = |served: &mut Served| {
        let rebalance = Message::Rebalance(v1::Rebalance { namespace: "n".into(), dry_run: true });
        let Message::RebalanceReply(reply) = served.world.operate(rebalance).unwrap() else { panic!("no plan") };
        reply
    };
    assert_eq!((ask(&mut served).rate, ask(&mut served).max_over_mean_before), (0.0, 1.0), "nothing was measured");
    served.window(8_000, Duration::from_secs(5));
    let early = ask(&mut served);
    assert!(early.moves.is_empty() && early.max_over_mean_before > 1.5 && early.rate > 1_000.0, "{early:?}");
    // Two rounds of ten seconds each, of which five are over since the last of them came.
    assert!(early.settling > 0 && (10_000..=15_000).contains(&early.settles_ms), "{early:?}");
    served.world.pass(Duration::from_millis(early.settles_ms + 1));
    let late = ask(&mut served);
    assert!(!late.moves.is_empty() && late.max_over_mean_after < late.max_over_mean_before, "{late:?}");
    assert_eq!((late.settling, late.settles_ms), (0, 0));
}
