//! The kernel: order, clocks, pauses, power losses, determinism.

use bytes::Bytes;
use std::time::Duration;
use tidings_base::disk::Disk;
use tidings_base::time::RHO_PERCENT;
use tidings_base::{Machine, Mono, Now, Outbox, Seeded};
use tidings_sim::clock::SimTime;
use tidings_sim::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat, Step, World};
use tidings_sim::network::Weather;
use tidings_sim::trace::Printing;

/// Sends a numbered message to its peer every second of its own clock, and tells what it gets.
struct Ticker {
    peer: HostId,
    next: Mono,
    sent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fact {
    Ticked(u64, Mono),
    Got(u64),
    Synced,
}

const SECOND: Duration = Duration::from_secs(1);

impl Machine for Ticker {
    type Input = Event;
    type Output = Effect<Fact>;

    fn handle(&mut self, _: Now, input: Event, out: &mut Outbox<Effect<Fact>>) {
        match input {
            Event::Message { bytes, .. } => {
                let number = u64::from_le_bytes(bytes[..].try_into().unwrap());
                out.put(Effect::Fact(Fact::Got(number)));
                out.put(Effect::DiskWait { token: number });
            }
            Event::DiskDone { .. } => out.put(Effect::Fact(Fact::Synced)),
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<Fact>>) {
        if now.mono >= self.next {
            self.sent += 1;
            self.next = self.next + SECOND;
            let bytes = Bytes::copy_from_slice(&self.sent.to_le_bytes());
            out.put(Effect::Send { to: self.peer, bytes });
            out.put(Effect::Fact(Fact::Ticked(self.sent, now.mono)));
        }
    }

    fn deadline(&self) -> Option<Mono> {
        Some(self.next)
    }
}

impl Process for Ticker {
    type Fact = Fact;
}

struct Start;

impl Boot<Ticker> for Start {
    fn boot(&mut self, seat: Seat, _: &mut Outbox<Effect<Fact>>) -> Result<Ticker, NoStart> {
        if seat.disk.list().unwrap().is_empty() {
            seat.disk.create("made").unwrap();
        }
        Ok(Ticker { peer: HostId(1 - seat.host.0), next: seat.now.mono + SECOND, sent: 0 })
    }
}

fn world(seed: u64) -> World<Ticker> {
    let mut world = World::new(&Seeded::new(seed), Printing::Off);
    for _ in 0..2 {
        let host = world.add_host();
        world.start(host, &mut Start).unwrap();
    }
    world
}

fn run(world: &mut World<Ticker>, time: Duration) -> Vec<(SimTime, HostId, Fact)> {
    world.remind(time, 9);
    while world.step() != Step::Reminder(9) {}
    world.drain_facts().into_iter().map(|seen| (seen.at, seen.host, seen.fact)).collect()
}

fn ticks(facts: &[(SimTime, HostId, Fact)], host: HostId) -> usize {
    facts.iter().filter(|(_, at, fact)| *at == host && matches!(fact, Fact::Ticked(..))).count()
}

#[test]
fn the_same_seed_makes_the_same_trace_and_another_seed_another() {
    let hash = |seed| {
        let mut world = world(seed);
        world.network.set_weather(Weather::bad(&mut Seeded::new(seed)));
        run(&mut world, 100 * SECOND);
        (world.trace.hash(), world.trace.events())
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1).0, hash(2).0);
    assert!(hash(1).1 > 400);
}

#[test]
fn events_happen_in_order_of_time_and_then_of_their_making() {
    let mut world = world(3);
    for id in 0..50 {
        world.remind(Duration::from_millis(10 - id % 10), id);
    }
    let mut seen = Vec::new();
    while seen.len() < 50 {
        if let Step::Reminder(id) = world.step() {
            seen.push((world.now(), id));
        }
    }
    let mut sorted = seen.clone();
    sorted.sort();
    assert_eq!(seen, sorted);
}

#[test]
fn hosts_differ_in_rate_by_no_more_than_rho() {
    let mut rates = Vec::new();
    for seed in 0..30 {
        let mut world = world(seed);
        let facts = run(&mut world, 1_000 * SECOND);
        rates.extend([ticks(&facts, HostId(0)), ticks(&facts, HostId(1))]);
    }
    let (slowest, fastest) = (*rates.iter().min().unwrap(), *rates.iter().max().unwrap());
    assert!(slowest >= 949 && fastest <= 1_051, "{slowest} {fastest}");
    assert!(fastest - slowest > 1_000 * RHO_PERCENT as usize / 200, "the clocks hardly differ: {slowest} {fastest}");
}

#[test]
fn a_changed_rate_moves_deadlines_both_ways() {
    for ppm in [-50_000, 50_000] {
        let mut world = world(5);
        world.set_rate(HostId(0), 0);
        run(&mut world, 10 * SECOND);
        world.set_rate(HostId(0), ppm);
        let facts = run(&mut world, 100 * SECOND);
        let expected = (100 + ppm / 10_000) as usize;
        assert!(ticks(&facts, HostId(0)).abs_diff(expected) <= 1, "{}", ticks(&facts, HostId(0)));
    }
}

#[test]
fn a_paused_process_finds_its_clock_advanced_and_its_messages_waiting() {
    let mut world = world(7);
    run(&mut world, 3 * SECOND);
    world.pause(HostId(0), 20 * SECOND);
    let asleep = run(&mut world, 19 * SECOND);
    assert!(asleep.iter().all(|(_, host, _)| *host == HostId(1)), "{asleep:?}");
    let awake = run(&mut world, 2 * SECOND);
    let got = awake.iter().filter(|(_, host, fact)| *host == HostId(0) && matches!(fact, Fact::Got(_))).count();
    assert!(got > 15, "{got}");
    let first = awake.iter().find_map(|(_, host, fact)| match fact {
        Fact::Ticked(_, mono) if *host == HostId(0) => Some(*mono),
        _ => None,
    });
    assert!(first.is_some_and(|at| world.clock(HostId(0)).mono(world.now()).since(at) < 2 * SECOND));
}

#[test]
fn a_suspended_host_hears_nothing_and_its_timers_ring_late() {
    for (clock_stops, counted) in [(false, 20), (true, 0)] {
        let mut world = world(7);
        (0..2).for_each(|host| world.set_rate(HostId(host), 0));
        run(&mut world, 3 * SECOND + SECOND / 2);
        let before = world.clock(HostId(0)).mono(world.now());
        world.suspend(HostId(0), 20 * SECOND, clock_stops);
        let asleep = run(&mut world, 20 * SECOND);
        assert!(asleep.iter().all(|(_, host, _)| *host == HostId(1)), "{asleep:?}");
        assert_eq!(world.clock(HostId(0)).mono(world.now()).since(before), counted * SECOND);
        // What came is lost; half a second was left of the second.
        assert_eq!(ticks(&run(&mut world, SECOND * 2 / 5), HostId(0)), 0);
        let awake = run(&mut world, SECOND * 2 / 5);
        let got = awake.iter().filter(|(_, host, fact)| *host == HostId(0) && matches!(fact, Fact::Got(_))).count();
        assert!(ticks(&awake, HostId(0)) > 0 && got <= 1, "{awake:?}");
    }
}

#[test]
fn a_crash_ends_everything_that_was_under_way() {
    let mut world = world(9);
    run(&mut world, 3 * SECOND);
    world.power_loss(HostId(0));
    let facts = run(&mut world, 10 * SECOND);
    assert_eq!(facts.iter().filter(|(_, host, _)| *host == HostId(0)).count(), 0);
    assert!(!world.is_up(HostId(0)));
    world.start(HostId(0), &mut Start).unwrap();
    let again = run(&mut world, 10 * SECOND);
    assert!(ticks(&again, HostId(0)) >= 9);
}

#[test]
fn a_name_that_was_not_synced_may_be_gone_after_power_loss_and_never_after_a_kill() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..40 {
        let mut world = world(seed);
        world.kill(HostId(0));
        assert_eq!(world.disk(HostId(0)).list().unwrap(), ["made"]);
        world.power_loss(HostId(0));
        if world.disk(HostId(0)).list().unwrap().is_empty() { lost += 1 } else { kept += 1 }
    }
    assert!(lost > 5 && kept > 5, "{lost} {kept}");
}

#[test]
fn a_cut_in_one_direction_leaves_the_other() {
    let mut world = world(11);
    world.network.cut(vec![(HostId(0), HostId(1))]);
    let facts = run(&mut world, 20 * SECOND);
    let got = |host| facts.iter().filter(|(_, at, fact)| *at == host && matches!(fact, Fact::Got(_))).count();
    assert_eq!(got(HostId(1)), 0);
    assert!(got(HostId(0)) >= 17);
}

#[test]
fn a_sync_takes_time() {
    let mut world = world(13);
    let facts = run(&mut world, 20 * SECOND);
    let got = facts.iter().find(|(_, host, fact)| *host == HostId(0) && matches!(fact, Fact::Got(_))).unwrap();
    let synced = facts.iter().find(|(_, host, fact)| *host == HostId(0) && *fact == Fact::Synced).unwrap();
    assert!(synced.0 > got.0);
}
