//! The claims about placement can fail: each is broken by facts that break it, and by no fewer.

use std::time::Duration;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Mono};
use tidings_placement::Leased;
use tidings_placement::check::Holding;
use tidings_sim::clock::SimTime;
use tidings_sim::invariants::Sight;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::placement::fact::{Fact, Life};
use tidings_sim::scenarios::placement::placement_claims;

const LEASE: Duration = Duration::from_secs(12);

fn life(host: u32) -> Life {
    Life { host: HostId(host), start: 1 }
}

fn number(lease: u32) -> LeaseNumber {
    LeaseNumber::new(lease).unwrap()
}

fn leased(lease: u32) -> Leased {
    Leased { range: KeyRange::FULL, lease: number(lease) }
}

/// Held until this second.
fn published(host: u32, held: &[(Leased, u64)], asked: u64) -> (u32, Fact) {
    let held = held.iter().map(|(leased, until)| Holding { leased: *leased, until: Mono(until * 1_000_000_000) });
    let asked = Mono(asked * 1_000_000_000);
    (host, Fact::Published { life: life(host), held: held.collect(), asked, lease: LEASE })
}

fn took(host: u32, lease: u32, state: u64) -> (u32, Fact) {
    let states = (0..32).map(|key| (key, state)).collect();
    (host, Fact::Took { life: life(host), leased: leased(lease), clean: false, states })
}

fn row(lease: u32) -> (u32, Fact) {
    (9, Fact::Row { life: life(9), key: 3, lease: LeaseNumber::new(lease) })
}

fn lost() -> (u32, Fact) {
    (9, Fact::Lost { life: life(9), keys: vec![3], everything: false })
}

/// Shows facts one second apart; which claim was broken.
fn judge(facts: &[(u32, Fact)]) -> Option<String> {
    let mut claims = placement_claims();
    for (i, (host, fact)) in facts.iter().enumerate() {
        let at = SimTime(i as u64 * 1_000_000_000);
        let sight = Sight { at, host: HostId(*host), clock: &|_| Some(Mono(at.0)) };
        if let Err(violation) = claims.observe(&sight, fact) {
            return Some(violation.invariant);
        }
    }
    claims.conclude().err().map(|violation| violation.invariant)
}

/// The claim that must be broken, if one must, and the facts, with their hosts.
type Case = (Option<&'static str>, Vec<(u32, Fact)>);

#[test]
fn every_claim_is_broken_by_the_facts_that_break_it() {
    let half = |start: u64, last: u64, lease| Leased {
        range: KeyRange::new(KeyHash(start), KeyHash(last)),
        lease: number(lease),
    };
    let served = |host, lease, state| (host, Fact::Served { life: life(host), key: 3, lease: number(lease), state });
    let cases: Vec<Case> = vec![
        (Some("one_believer_per_key"), vec![published(1, &[(leased(1), 9)], 0), published(2, &[(leased(2), 9)], 0)]),
        (
            Some("one_believer_per_key"),
            vec![
                published(1, &[(half(0, 9, 1), 9), (half(20, 29, 2), 9)], 0),
                published(2, &[(half(10, 19, 3), 9), (half(29, 40, 4), 9)], 0),
            ],
        ),
        (None, vec![published(1, &[(leased(1), 1)], 0), published(2, &[(leased(2), 9)], 0)]),
        (
            None,
            vec![
                published(1, &[(leased(1), 9)], 0),
                (1, Fact::Started(Life { host: HostId(1), start: 2 })),
                published(2, &[(leased(2), 9)], 0),
            ],
        ),
        (Some("leases_are_dated_from_the_question"), vec![published(1, &[(leased(1), 14)], 1)]),
        (
            Some("a_lapsed_lease_stays_lapsed"),
            vec![published(1, &[(leased(1), 1)], 0), published(1, &[(leased(1), 9)], 0)],
        ),
        (
            Some("a_lapsed_lease_stays_lapsed"),
            vec![
                published(1, &[(leased(1), 9)], 0),
                (1, Fact::Dropped { life: life(1), leased: leased(1) }),
                published(1, &[(leased(1), 9)], 0),
            ],
        ),
        (Some("lease_numbers_only_grow"), vec![took(1, 5, 1), took(2, 4, 2)]),
        (Some("lease_numbers_only_grow"), vec![took(1, 5, 1), took(2, 5, 2)]),
        (Some("lease_numbers_only_grow"), vec![took(1, 5, 1), took(2, 6, 2), served(1, 5, Some(1))]),
        (Some("lease_numbers_only_grow"), vec![took(1, 5, 1), served(1, 5, None)]),
        (None, vec![took(1, 5, 1), served(1, 5, Some(1)), took(2, 6, 2), served(2, 6, Some(2))]),
        (Some("losses_are_told"), vec![took(1, 5, 1), row(5), took(2, 6, 2), row(6)]),
        (Some("losses_are_told"), vec![took(1, 5, 1), row(5), took(2, 6, 1), lost(), row(6)]),
        (None, vec![took(1, 5, 1), row(5), took(2, 6, 2), lost(), row(6)]),
        (None, vec![took(1, 5, 1), row(5), took(2, 6, 1), row(6)]),
        // A number that nobody came to hold is passed over; the loss may have been told with it.
        (None, vec![took(1, 5, 1), row(5), lost(), row(6), took(2, 7, 2), row(7)]),
    ];
    for (expected, facts) in cases {
        assert_eq!(judge(&facts).as_deref(), expected, "{facts:?}");
    }
}
