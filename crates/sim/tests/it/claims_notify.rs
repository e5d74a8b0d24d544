//! Each claim about Notify is broken by the facts that break it, and by no others.

use bytes::Bytes;
use tidings_sim::clock::SimTime;
use tidings_sim::invariants::Sight;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::notify::fact::{FIRST_GENERATION, Fact, Publication, object};
use tidings_sim::scenarios::notify::notify_claims;

const DEVICE: HostId = HostId(7);
const V: u64 = FIRST_GENERATION + 5;

fn publication(version: u64) -> Publication {
    Publication { generation: u32::from(version < FIRST_GENERATION), object: 1, version }
}

fn name() -> Bytes {
    object(1)
}

fn wants(intends: bool) -> Fact {
    Fact::Intends { device: DEVICE, object: name(), intends }
}

fn told(version: u64) -> Vec<Fact> {
    let (device, object) = (DEVICE, name());
    vec![Fact::Notified { device, object: object.clone(), version }, Fact::Handled { device, object, version }]
}

fn fetch(fetch: u64) -> [Fact; 2] {
    let (device, object) = (DEVICE, name());
    [Fact::Fetches { device, object: object.clone(), fetch }, Fact::Fetched { device, object, fetch }]
}

/// Shows facts one second apart; the claim that is broken, if one is.
fn judge(facts: Vec<Fact>) -> Option<String> {
    let mut claims = notify_claims();
    for (i, fact) in facts.iter().enumerate() {
        let sight = Sight { at: SimTime(i as u64 * 1_000_000_000), host: DEVICE, clock: &|_| None };
        if let Err(violation) = claims.observe(&sight, fact) {
            return Some(violation.invariant);
        }
    }
    claims.conclude().err().map(|violation| violation.invariant)
}

fn published(version: u64) -> Vec<Fact> {
    vec![Fact::Calls(publication(version)), Fact::Published(publication(version))]
}

const N1: &str = "every_client_learns_the_latest_version";

#[test]
fn a_version_that_was_not_heard_of_is_missed() {
    let missed = [vec![wants(true)], published(V)].concat();
    assert_eq!(judge(missed.clone()).as_deref(), Some(N1));
    assert_eq!(judge([missed.clone(), told(V)].concat()), None);
    assert_eq!(judge([missed.clone(), vec![Fact::Made(DEVICE, publication(V))]].concat()), None);
    assert_eq!(judge([missed.clone(), vec![wants(false)]].concat()), None);
    // Told and not dealt with is told in vain: the process may have died over it.
    assert_eq!(judge([missed, told(V)[..1].to_vec()].concat()).as_deref(), Some(N1));
    // Nobody is owed what was never acknowledged.
    assert_eq!(judge(vec![wants(true), Fact::Calls(publication(V))]), None);
}

#[test]
fn a_fetch_counts_from_when_it_began() {
    let [begins, ends] = fetch(1);
    let late = [vec![wants(true)], published(V), vec![begins.clone(), ends.clone()]].concat();
    assert_eq!(judge(late), None);
    let early = [vec![wants(true), begins.clone()], published(V), vec![ends]].concat();
    assert_eq!(judge(early).as_deref(), Some(N1));
    let never = [vec![wants(true)], published(V), vec![begins]].concat();
    assert_eq!(judge(never).as_deref(), Some(N1));
}

#[test]
fn an_installation_that_begins_anew_has_seen_nothing() {
    let before = [vec![wants(true)], published(V), told(V)].concat();
    assert_eq!(judge([before.clone(), vec![Fact::Installed(DEVICE)]].concat()).as_deref(), Some(N1));
}

#[test]
fn versions_of_another_generation_count_for_nothing() {
    let before = [vec![wants(true)], published(V), told(V), vec![Fact::Reset(1)], fetch(1).to_vec()].concat();
    assert_eq!(judge(before.clone()), None);
    assert_eq!(judge([before.clone(), published(3)].concat()).as_deref(), Some(N1));
    assert_eq!(judge([before, published(3), told(3)].concat()), None);
}

#[test]
fn a_version_that_nobody_published_is_noticed() {
    assert_eq!(judge(told(V)).as_deref(), Some("only_published_versions_are_told"));
}

#[test]
fn silence_after_a_loss_is_noticed() {
    let lost = [vec![wants(true)], published(V), told(V), vec![Fact::Wiped]].concat();
    assert_eq!(judge(lost.clone()).as_deref(), Some("lost_state_becomes_unknown"));
    assert_eq!(judge([lost, fetch(1).to_vec()].concat()), None);
}

#[test]
fn disagreement_at_the_end_is_noticed() {
    assert_eq!(judge(vec![Fact::Agrees(DEVICE, true)]), None);
    assert_eq!(judge(vec![Fact::Agrees(DEVICE, false)]).as_deref(), Some("registrations_follow_intent"));
}

#[test]
fn a_forged_token_that_opens_something_is_noticed() {
    assert_eq!(judge(vec![Fact::Forged { accepted: false }]), None);
    assert_eq!(judge(vec![Fact::Forged { accepted: true }]).as_deref(), Some("forged_tokens_open_nothing"));
}

#[test]
fn whoever_does_not_come_back_after_a_wipe_is_noticed() {
    let wiped = vec![Fact::Granted(DEVICE), Fact::Wiped];
    assert_eq!(judge(wiped.clone()).as_deref(), Some("everybody_returns_after_a_wipe"));
    assert_eq!(judge([wiped, vec![Fact::Granted(DEVICE)]].concat()), None);
}
