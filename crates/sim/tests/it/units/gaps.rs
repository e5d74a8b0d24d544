//! Since when everybody is there.

use tidings_sim::clock::SimTime;

use tidings_sim::kernel::HostId;

use std::collections::{BTreeMap, BTreeSet};

use tidings_sim::scenarios::placement::gaps::*;

const SECOND: u64 = 1_000_000_000;

/// Looks once a second at one host: whether it is away, and how often it has started. Since when all is as it stays.
fn since(looks: &[(Option<bool>, u64)]) -> u64 {
    let (mut gaps, host) = (Gaps::default(), HostId(1));
    for (second, (away, starts)) in (1..).zip(looks) {
        let away = away.map(|away| BTreeSet::from_iter(away.then_some(host)));
        gaps.see(SimTime(second * SECOND), away, BTreeMap::from([(host, *starts)]));
    }
    gaps.since.0 / SECOND
}

#[test]
fn time_counts_from_the_last_host_that_went_away() {
    let (up, away, unclear) = (Some(false), Some(true), None);
    assert_eq!(since(&[(up, 1), (up, 1), (up, 1)]), 0);
    assert_eq!(since(&[(up, 1), (away, 1), (away, 1)]), 2);
    assert_eq!(since(&[(up, 1), (away, 1), (up, 2)]), 2, "to come back is no trouble");
    assert_eq!(since(&[(up, 1), (unclear, 1), (up, 1)]), 2);
}

#[test]
fn whoever_died_and_came_back_between_two_looks_was_away() {
    let (up, away) = (Some(false), Some(true));
    assert_eq!(since(&[(up, 1), (up, 2), (up, 2)]), 2);
    assert_eq!(since(&[(away, 1), (away, 2), (away, 2)]), 2, "it was back for a moment");
    assert_eq!(since(&[(away, 1), (up, 3), (up, 3)]), 2, "it was back, and away again");
}
