//! Clocks of hosts.

use std::time::Duration;
use tidings_base::time::{Mono, RHO_PERCENT};
use tidings_sim::clock::*;

#[test]
fn the_fastest_and_the_slowest_clock_differ_by_rho() {
    let hour = SimTime::ZERO + Duration::from_secs(3_600);
    let fast = HostClock::new(Mono(0), i32::MAX).mono(hour).0;
    let slow = HostClock::new(Mono(0), i32::MIN).mono(hour).0;
    assert_eq!(fast - slow, hour.0 * u64::from(RHO_PERCENT) / 100);
}

#[test]
fn a_deadline_is_never_early_and_at_most_a_tick_late() {
    for ppm in [-MAX_PPM, -12_345, 0, 7, MAX_PPM] {
        let mut clock = HostClock::new(Mono(99), ppm);
        clock.set_rate(SimTime(1_000), -ppm);
        clock.set_rate(SimTime(5_000), ppm);
        for mono in [6_000, 123_457, 1_000_000_007, 3_600_000_000_001] {
            let when = clock.when(Mono(mono));
            assert!(clock.mono(when) >= Mono(mono), "{ppm} {mono}");
            assert!(clock.mono(SimTime(when.0 - 1)) < Mono(mono), "{ppm} {mono}");
        }
    }
}

#[test]
fn a_clock_that_stood_still_goes_on_from_there() {
    let mut clock = HostClock::new(Mono(5), 0);
    clock.stop(SimTime(100));
    assert_eq!(clock.mono(SimTime(900)), Mono(105));
    clock.go_on(SimTime(1_000));
    assert_eq!((clock.mono(SimTime(1_010)), clock.when(Mono(115))), (Mono(115), SimTime(1_010)));
}

#[test]
fn a_jump_of_the_wall_leaves_the_monotonic_clock_alone() {
    let mut clock = HostClock::new(Mono(5), 0);
    let before = clock.now(SimTime(1_000_000));
    clock.jump_wall(-3_600_000_000);
    let after = clock.now(SimTime(2_000_000));
    assert!(after.wall < before.wall && after.mono > before.mono);
}
