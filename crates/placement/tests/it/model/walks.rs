//! All rules at once, far deeper than can be explored: random walks, the same on every run.

use super::world::{Budget, Setup, Step, World};
use std::time::Duration;
use tidings_base::Seeded;
use tidings_placement::mutant::Mutant;

const STEPS: usize = 150;

fn setup(mutant: Option<Mutant>, hands_over: bool) -> Setup {
    Setup {
        mutant,
        lease: Duration::from_secs(12),
        renew: Duration::from_millis(2_500),
        tick: Duration::from_millis(700),
        // The first owner's clock is as slow as it may be, the managers' as fast.
        manager_rate: 110,
        owner_rates: [100, 110],
        hands_over,
        with_lookup: true,
        slow: |_| true,
        in_flight: 8,
        loyal: false,
        calm_one_in: 0,
        budget: Budget { ticks: 90, losses: 30, repeats: 20, fail_overs: 3, restarts: 2, drains: 1 },
    }
}

/// One walk, and calm at its end: what went wrong, after which steps.
fn walk(setup: &Setup, seed: u64) -> Result<(), String> {
    let mut rng = Seeded::new(seed);
    let mut world = if rng.one_in(2) { World::begun(setup) } else { World::joining(setup) };
    let (mut taken, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        steps.clear();
        world.steps(&mut steps);
        // Mostly deliveries and time; what is rare stays rare.
        let common = |step: &Step| matches!(step, Step::Deliver(_) | Step::Tick | Step::Elect(_));
        if !rng.one_in(6) && steps.iter().any(common) {
            steps.retain(common);
        }
        let Some(step) = rng.pick(&steps).cloned() else { break };
        world.step(setup, &step);
        taken.push(step);
        if let Some(wrong) = &world.wrong {
            return Err(format!("seed {seed}: {wrong}: {taken:?}"));
        }
    }
    world.lost_for_ever(setup).map_or(Ok(()), |wrong| Err(format!("seed {seed}: {wrong}: {taken:?}")))
}

#[test]
fn nothing_goes_wrong_on_long_walks() {
    for hands_over in [false, true] {
        let setup = setup(None, hands_over);
        for seed in 0..60 {
            if let Err(wrong) = walk(&setup, seed) {
                panic!("{wrong}");
            }
        }
    }
}

#[test]
#[ignore = "ten minutes: scripts/model.sh"]
fn nothing_goes_wrong_on_many_walks() {
    for hands_over in [false, true] {
        let setup = setup(None, hands_over);
        for seed in 1_000..5_000 {
            if let Err(wrong) = walk(&setup, seed) {
                panic!("{wrong}");
            }
        }
    }
}
