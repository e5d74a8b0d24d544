//! All rules at once, far deeper than can be explored: random walks, the same on every run.

use super::world::{Budget, Setup, Step, World};
use std::time::Duration;
use tidings_base::Seeded;
use tidings_cell::mutant::Mutant;

const STEPS: usize = 300;

/// Sessions seldom end.
const LONG: Duration = Duration::from_secs(6);
/// They often do.
const SHORT: Duration = Duration::from_millis(1_500);

fn setup(mutant: Option<Mutant>, client_rate: u64, lease: Duration) -> Setup {
    Setup {
        mutant,
        clients: 3,
        tick: Duration::from_millis(300),
        master_rate: 100,
        client_rate,
        lease,
        cache_lease: Duration::from_millis(1_200),
        links: true,
        // The writer is quick, or nothing would ever be written.
        slow: |sender, _| sender.client > 0,
        budget: Budget { ticks: 120, reads: 60, writes: 40, losses: 30, fail_overs: 3 },
    }
}

/// What was met on walks.
#[derive(Debug, Default)]
struct Met {
    /// Steps after which something would be served from a cache.
    served: u32,
    /// Clients that heard of the end of their session.
    ended: usize,
}

/// One walk: what went wrong, after which steps; otherwise what it met.
fn walk(setup: &Setup, seed: u64) -> Result<Met, String> {
    let mut rng = Seeded::new(seed);
    let mut world = World::begun(setup);
    let (mut taken, mut steps, mut served) = (Vec::new(), Vec::new(), 0);
    for _ in 0..STEPS {
        steps.clear();
        world.steps(&mut steps);
        // Mostly deliveries; a fail-over only now and then.
        let deliveries = steps.iter().filter(|step| matches!(step, Step::Deliver(_))).count();
        if deliveries > 0 && rng.below(10) < 6 {
            steps.retain(|step| matches!(step, Step::Deliver(_)));
        } else if !rng.one_in(30) {
            steps.retain(|step| *step != Step::FailOver);
        }
        let Some(step) = rng.pick(&steps).cloned() else { break };
        world.step(setup, &step);
        served += u32::from(world.serves());
        taken.push(step);
        if let Some(wrong) = &world.wrong {
            return Err(format!("seed {seed}: {wrong}: {taken:?}"));
        }
    }
    Ok(Met { served, ended: world.clients.iter().filter(|client| client.expired).count() })
}

fn walks(setup: &Setup) -> Met {
    (0..100)
        .map(|seed| walk(setup, seed).unwrap_or_else(|wrong| panic!("{wrong}")))
        .fold(Met::default(), |all, met| Met { served: all.served + met.served, ended: all.ended + met.ended })
}

#[test]
fn nothing_goes_wrong_on_long_walks() {
    for client_rate in [90, 100] {
        let (long, short) = (walks(&setup(None, client_rate, LONG)), walks(&setup(None, client_rate, SHORT)));
        assert!(long.served >= 1_000, "caches hardly served: {long:?}");
        assert!(short.ended >= 5, "sessions hardly ended: {short:?}");
    }
}

#[test]
fn each_rule_that_is_left_out_is_met_on_some_walk() {
    for (mutant, lease) in [
        (Mutant::LeaseFromArrival, LONG),
        (Mutant::StampIgnored, LONG),
        (Mutant::ImplicitAck, LONG),
        (Mutant::Resurrection, SHORT),
        (Mutant::NoInvalidationWait, LONG),
        (Mutant::OpensAtOnce, LONG),
        (Mutant::CeilingIgnored, LONG),
    ] {
        let setup = setup(Some(mutant), 90, lease);
        assert!((0..300).any(|seed| walk(&setup, seed).is_err()), "{mutant} went unnoticed");
    }
}
