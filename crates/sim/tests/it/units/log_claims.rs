//! The claims about the agreed log, and how a claim is shown facts.

use tidings_sim::clock::SimTime;
use tidings_sim::kernel::HostId;

use tidings_base::agreed::Role;
use tidings_base::{LogIndex, Mono};
use tidings_sim::invariants::*;

/// Shows facts to a claim one second apart, and says how it judged.
pub(crate) fn judge<F>(claim: &mut dyn Invariant<F>, facts: &[(u32, F)]) -> Result<(), String> {
    for (i, (host, fact)) in facts.iter().enumerate() {
        let at = SimTime(i as u64 * 1_000_000_000);
        let sight = Sight { at, host: HostId(*host), clock: &|_| Some(Mono(at.0)) };
        claim.observe(&sight, fact)?;
    }
    claim.finish()
}

fn applied(index: u64, command: u64, result: u64) -> LogFact {
    LogFact::Applied { index: LogIndex(index), command, result }
}

fn leads(epoch: u64) -> LogFact {
    LogFact::Role(Role::Leader { epoch: tidings_base::Epoch(epoch) })
}

/// Facts that break exactly one claim about the log.
fn broken() -> Vec<(&'static str, Vec<(u32, LogFact)>)> {
    let (started, ended) = (
        |last| LogFact::Started { last: LogIndex(last), life: 0 },
        |index, state| LogFact::Final { index: LogIndex(index), state },
    );
    let proposed = |command| LogFact::Proposed { command };
    vec![
        ("replicas_agree", vec![(0, applied(1, 0, 5)), (1, applied(1, 0, 6))]),
        ("replicas_agree", vec![(0, LogFact::Alarm("two leaders".into()))]),
        ("replicas_agree", vec![(0, ended(3, 1)), (1, ended(3, 2))]),
        ("applied_once_in_order", vec![(0, applied(1, 0, 0)), (0, applied(3, 0, 0))]),
        ("applied_once_in_order", vec![(0, proposed(7)), (0, applied(1, 7, 0)), (0, applied(2, 7, 0))]),
        ("applied_once_in_order", vec![(0, applied(1, 7, 0))]),
        (
            "acknowledged_writes_survive",
            vec![(0, LogFact::Answered { index: LogIndex(4), command: 7 }), (0, ended(3, 1))],
        ),
        ("one_leader_per_epoch", vec![(0, leads(2)), (1, leads(2))]),
        ("one_leader_per_epoch", vec![(0, leads(2)), (0, leads(1))]),
        ("leases_exclude_other_leaders", vec![(0, LogFact::LeaseUntil(Mono(5_000_000_000))), (1, leads(2))]),
        ("synced_records_survive", vec![(0, LogFact::Durable { index: LogIndex(9) }), (0, started(8))]),
    ]
}

#[test]
fn every_claim_about_the_log_is_broken_by_the_facts_that_break_it() {
    for (expected, facts) in broken() {
        let mut claims = log_claims();
        let judged = facts.iter().enumerate().try_for_each(|(i, (host, fact))| {
            let at = SimTime(i as u64 * 1_000_000_000);
            claims.observe(&Sight { at, host: HostId(*host), clock: &|_| Some(Mono(at.0)) }, fact)
        });
        assert_eq!(judged.map_err(|violation| violation.invariant), Err(expected.to_string()), "{facts:?}");
    }
}

#[test]
fn a_claim_that_never_looked_is_a_failure() {
    let violation = log_claims().finish().unwrap_err();
    let named = ["never checked", "no replica said where it ended"];
    assert!(named.iter().any(|what| violation.what.contains(what)), "{violation:?}");
}

#[test]
fn a_lease_that_ended_or_was_given_up_excludes_nobody() {
    use leases_exclude_other_leaders::LeasesExcludeOtherLeaders;
    let lease = || LogFact::LeaseUntil(Mono(1_000_000_000));
    let ended = [(0, lease()), (1, leads(2))];
    assert_eq!(judge(&mut LeasesExcludeOtherLeaders::default(), &ended), Ok(()));
    let follows = LogFact::Role(Role::Follower { leader: None });
    let given_up = [(0, LogFact::LeaseUntil(Mono::NEVER)), (0, follows), (1, leads(2))];
    assert_eq!(judge(&mut LeasesExcludeOtherLeaders::default(), &given_up), Ok(()));
}
