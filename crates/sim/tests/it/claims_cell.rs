//! The claims about the cell can fail: each is broken by facts that break it, and by no fewer.

use std::collections::BTreeSet;
use tidings_base::{LogIndex, Mono};
use tidings_sim::clock::SimTime;
use tidings_sim::invariants::Sight;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::cell::fact::{Answer, Applied, Call, Change, Condition, Fact, Key, OpName, Sighting, View};
use tidings_sim::scenarios::cell::{CLOSED, DOORS, ROOM, cell_claims};
use tidings_wire::v1::{self, LockMode, cell_command::Command, cell_result};

fn op(number: u64) -> OpName {
    OpName { client: HostId(9), number }
}

fn view(instance: u64, contents: u64) -> View {
    View { stat: Some(v1::NodeStat { instance, ..Default::default() }), digest: contents }
}

fn sighting(path: &str, view: &View) -> Sighting {
    Sighting { key: Key::node(path), stat: Some(view.stat.clone()), digest: Some(view.digest) }
}

/// An entry of epoch 1, for call `number` of session 5 (0 = the master's own), that took effect.
fn entry(index: u64, number: u64, command: Command, changed: &[(&str, View)]) -> Fact {
    let actor = v1::CellActor { session: if number > 0 { 5 } else { 0 }, number, answered_below: 0 };
    let applied = Applied {
        index: LogIndex(index),
        command: v1::CellCommand { actor: Some(actor), epoch: 1, command: Some(command) },
        result: v1::CellResult { result: Some(cell_result::Result::Applied(v1::CellApplied::default())) },
        changed: changed.iter().map(|(path, view)| (Key::node(path), view.clone())).collect(),
        repeat: false,
        unannounced: Vec::new(),
    };
    Fact::Applied(Box::new(applied))
}

fn write(index: u64, number: u64, contents: u64) -> Fact {
    entry(index, number, Command::WriteContents(v1::WriteContents::default()), &[("/a", view(1, contents))])
}

fn take(index: u64, number: u64, handle: u64) -> Fact {
    let mode = LockMode::Exclusive as i32;
    let take =
        v1::TakeLock { path: "/a".into(), instance: 1, handle, mode, lock_delay_ms: 3_000, ..Default::default() };
    entry(index, number, Command::TakeLock(take), &[("/a", view(1, index))])
}

fn stop(index: u64, lost: bool) -> Fact {
    entry(
        index,
        0,
        Command::StopSession(v1::StopSession { session: 5, lost, ..Default::default() }),
        &[("/e", view(3, index))],
    )
}

fn asked(number: u64, call: Call) -> Fact {
    Fact::Asked { op: op(number), session: 5, call }
}

fn told(number: u64, answer: Answer) -> Fact {
    Fact::Told { op: op(number), number: Some(number), answer }
}

fn done() -> Answer {
    Answer::Done { stat: None }
}

fn acquire() -> Call {
    Call::Acquire { path: "/a".into(), handle: 1, exclusive: true }
}

fn acquired(generation: u64) -> Answer {
    Answer::Acquired { instance: 1, generation }
}

fn touched(order: (u64, u64)) -> Fact {
    Fact::Touched { session: 5, path: "/a".into(), order }
}

fn resource(session: u64, generation: u64) -> Fact {
    Fact::Resource { session, path: "/a".into(), order: (0, 1, generation), exclusive: true, accepted: true }
}

fn checked(valid: bool) -> [Fact; 2] {
    let call = Call::Check { path: "/a".into(), instance: 1, generation: 7 };
    [asked(9, call), Fact::Told { op: op(9), number: None, answer: Answer::Checked(valid) }]
}

fn granting(session: u64) -> Fact {
    Fact::Granting { session, number: 1, path: "/a".into() }
}

fn queue() -> Vec<Fact> {
    let numbered = |session| Fact::Numbered { session, number: 1, path: "/a".into(), exclusive: true };
    let queued = |session| Fact::Queued { session, number: 1 };
    let lease = |session| Fact::Lease { session, until: Mono(u64::MAX / 2) };
    vec![lease(5), lease(6), numbered(5), numbered(6), queued(5), queued(6)]
}

/// An entry after which the lock is held under this generation.
fn locked(index: u64, lock_generation: u64) -> Fact {
    let lock = LockMode::Exclusive as i32;
    let stat = v1::NodeStat { instance: 2, lock_generation, lock, ..Default::default() };
    let write = v1::WriteContents { path: "/l".into(), ..Default::default() };
    entry(index, index, Command::WriteContents(write), &[("/l", View { stat: Some(stat), digest: index })])
}

/// A write that names a sequencer of generation 6.
fn guarded(index: u64) -> Fact {
    let mode = LockMode::Exclusive as i32;
    let sequencer = v1::SequencerBody { path: "/l".into(), instance: 2, mode, generation: 6, ..Default::default() };
    let write = v1::WriteContents { path: "/a".into(), sequencers: vec![sequencer], ..Default::default() };
    entry(index, index, Command::WriteContents(write), &[("/a", view(1, index))])
}

/// The same entry, refused.
fn refused(fact: Fact, code: &str) -> Fact {
    match fact {
        Fact::Applied(mut applied) => {
            let error = v1::Error { code: code.to_string(), ..Default::default() };
            applied.result.result = Some(cell_result::Result::Error(error));
            applied.changed.clear();
            Fact::Applied(applied)
        }
        other => other,
    }
}

/// Session 5 of Ann, a list with these principals, and the file that it closes.
fn closed(principals: &str) -> Vec<Fact> {
    let caller = Some(v1::CellCaller { principal: "ann".into(), ..Default::default() });
    let mut start = entry(1, 0, Command::StartSession(v1::StartSession { caller, ..Default::default() }), &[]);
    if let Fact::Applied(applied) = &mut start {
        let done = v1::StartSessionDone { session: 5 };
        applied.result.result = Some(cell_result::Result::StartSession(done));
    }
    let list = |index, lines: &str| {
        let write = v1::WriteContents { path: DOORS.into(), contents: lines.to_string().into(), ..Default::default() };
        entry(index, index, Command::WriteContents(write), &[(DOORS, view(8, index))])
    };
    vec![start, list(2, "ann"), write_closed(3), list(4, principals)]
}

fn write_closed(index: u64) -> Fact {
    let write = v1::WriteContents { path: CLOSED.into(), ..Default::default() };
    entry(index, index, Command::WriteContents(write), &[(CLOSED, behind_doors(9, 3))])
}

/// What a node shows that the list closes.
fn behind_doors(instance: u64, contents: u64) -> View {
    let acl = Some(v1::NodeAcl { read: "doors".into(), ..Default::default() });
    View { stat: Some(v1::NodeStat { instance, acl, ..Default::default() }), digest: contents }
}

/// Session 5 of Ann, who is not on the list, and a directory that is closed by an answered change after she could see that
/// something is absent there.
fn shut_room() -> Vec<Fact> {
    let set = |index, view: View| entry(index, index, Command::WriteAcl(v1::WriteAcl::default()), &[(ROOM, view)]);
    let mut facts = closed("bob");
    facts.extend([set(5, view(7, 0)), absent_in_room(), asked(6, Call::Change(Change::Other))]);
    facts.extend([set(6, behind_doors(7, 0)), absent_in_room(), told(6, done())]);
    facts
}

fn absent_in_room() -> Fact {
    Fact::Cached { session: 5, sighting: sighting(&format!("{ROOM}/x"), &View::default()) }
}

fn runs(exclusive: bool) -> Fact {
    Fact::Runs { session: 5, path: "/l".into(), order: (2, 6), exclusive }
}

/// The change of the list is answered before the closed file is shown.
fn shown_closed(principals: &str) -> Vec<Fact> {
    let mut facts = closed(principals);
    facts.insert(3, asked(4, Call::Change(Change::Other)));
    facts.push(told(4, done()));
    facts
}

/// Facts that hold, and one more that breaks the claim.
fn broken() -> Vec<(&'static str, Vec<Fact>, Fact)> {
    let read = |view: &View| Answer::Saw(vec![sighting("/a", view)]);
    let cached = |view: &View| Fact::Cached { session: 5, sighting: sighting("/a", view) };
    let own = |fact: Fact| match fact {
        Fact::Applied(mut applied) => {
            applied.command.epoch = 0;
            Fact::Applied(applied)
        }
        other => other,
    };
    let new_master = |index, epoch| match entry(index, 0, Command::NewMaster(v1::NewMaster::default()), &[]) {
        Fact::Applied(mut applied) => {
            let done = v1::NewMasterDone { epoch, ..Default::default() };
            applied.result.result = Some(cell_result::Result::NewMaster(done));
            Fact::Applied(applied)
        }
        other => other,
    };
    let unannounced = match write(1, 1, 7) {
        Fact::Applied(mut applied) => {
            applied.unannounced.push(Key::listing("/"));
            Fact::Applied(applied)
        }
        other => other,
    };
    let ephemeral = || {
        let stat = v1::NodeStat { instance: 4, ephemeral: true, ..Default::default() };
        let open = v1::CreateOrOpen { path: "/x".into(), handle: 1, ..Default::default() };
        entry(1, 1, Command::Open(open), &[("/x", View { stat: Some(stat), digest: 0 })])
    };
    vec![
        ("answers_fit_the_agreed_order", vec![write(1, 1, 7), asked(2, Call::Read)], told(2, read(&view(1, 8)))),
        (
            "answers_fit_the_agreed_order",
            vec![write(1, 1, 7), write(2, 2, 8), cached(&view(1, 8)), asked(3, Call::Read)],
            Fact::Told { op: op(3), number: None, answer: read(&view(1, 7)) },
        ),
        (
            "no_cached_read_after_its_write_returned",
            vec![
                write(1, 1, 7),
                asked(2, Call::Change(Change::Other)),
                write(2, 2, 8),
                cached(&view(1, 7)),
                told(2, done()),
            ],
            cached(&view(1, 7)),
        ),
        ("one_holder_per_exclusive_lock", vec![take(1, 1, 1)], take(2, 2, 2)),
        ("one_holder_per_exclusive_lock", vec![touched((1, 1)), touched((1, 2))], touched((1, 1))),
        ("checked_resource_never_goes_back", vec![resource(5, 1), resource(5, 2)], resource(5, 1)),
        ("checked_resource_never_goes_back", vec![resource(5, 1)], resource(6, 1)),
        (
            "sequencers_grow",
            vec![asked(1, acquire()), take(1, 1, 1), told(1, acquired(4)), asked(2, acquire())],
            told(2, acquired(4)),
        ),
        ("acknowledged_calls_take_effect_once", vec![write(1, 1, 7)], write(2, 1, 8)),
        ("acknowledged_calls_take_effect_once", vec![asked(1, acquire())], told(1, acquired(1))),
        (
            "acknowledged_calls_take_effect_once",
            vec![asked(1, Call::Change(Change::Other)), write(1, 1, 7)],
            told(1, Answer::Refused("cell.no_node".into())),
        ),
        (
            "sessions_end_only_after_their_leases",
            vec![Fact::Lease { session: 5, until: Mono(9_000_000_000) }],
            stop(1, true),
        ),
        (
            "sessions_end_only_after_their_leases",
            vec![Fact::Serves { session: 5, until: Mono(9_000_000_000) }],
            stop(1, true),
        ),
        ("ended_sessions_stay_ended", vec![stop(1, true)], Fact::Session { session: 5, condition: Condition::Safe }),
        ("ended_sessions_stay_ended", vec![stop(1, true), asked(4, Call::Change(Change::Other))], told(4, done())),
        ("ended_sessions_stay_ended", vec![stop(1, true)], write(2, 3, 1)),
        ("ephemerals_end_with_their_sessions", vec![ephemeral()], stop(2, true)),
        ("lost_locks_are_held_back", vec![take(1, 1, 1), stop(2, true)], own_session(take(3, 2, 1))),
        (
            "sequencers_die_with_their_locks",
            [vec![write(1, 1, 7)], checked(false).to_vec(), checked(true)[..1].to_vec()].concat(),
            checked(true)[1].clone(),
        ),
        ("waiters_are_served_in_order", queue(), granting(6)),
        ("forged_handles_open_nothing", vec![Fact::Forged { accepted: false }], Fact::Forged { accepted: true }),
        ("closed_handles_stay_closed", vec![Fact::Revived { accepted: false }], Fact::Revived { accepted: true }),
        ("changes_are_announced", vec![], unannounced),
        ("guarded_writes_end_with_their_locks", vec![locked(1, 6), guarded(2), locked(3, 7)], guarded(4)),
        ("guarded_writes_end_with_their_locks", vec![locked(1, 6)], refused(guarded(2), "cell.stale_sequencer")),
        ("the_shut_out_stay_out", closed("bob"), write_closed(5)),
        (
            "the_shut_out_stay_out",
            shown_closed("bob"),
            Fact::Cached { session: 5, sighting: sighting(CLOSED, &behind_doors(9, 3)) },
        ),
        (
            "the_shut_out_stay_out",
            [shown_closed("bob"), vec![asked(7, Call::Read)]].concat(),
            Fact::Told { op: op(7), number: None, answer: Answer::Saw(vec![sighting(CLOSED, &behind_doors(9, 3))]) },
        ),
        ("the_shut_out_stay_out", shut_room(), absent_in_room()),
        ("commands_die_with_their_locks", vec![locked(1, 6), runs(true), locked(3, 7)], runs(true)),
        ("commands_die_with_their_locks", vec![locked(1, 6), runs(false), locked(3, 7)], runs(false)),
        ("a_masters_word_ends_with_its_epoch", vec![new_master(1, 1)], own(write(2, 1, 7))),
        ("a_masters_word_ends_with_its_epoch", vec![new_master(1, 2)], new_master(2, 2)),
    ]
}

/// The same entry, for another session.
fn own_session(fact: Fact) -> Fact {
    match fact {
        Fact::Applied(mut applied) => {
            if let Some(actor) = &mut applied.command.actor {
                actor.session = 6;
            }
            Fact::Applied(applied)
        }
        other => other,
    }
}

fn judge(facts: &[Fact]) -> Result<(), String> {
    let mut claims = cell_claims();
    for (i, fact) in facts.iter().enumerate() {
        let at = SimTime(i as u64 * 1_000_000_000);
        let sight = Sight { at, host: HostId(9), clock: &|_| Some(Mono(at.0)) };
        claims.observe(&sight, fact).map_err(|violation| violation.invariant)?;
    }
    claims.conclude().map_err(|violation| violation.invariant)
}

#[test]
fn every_claim_about_the_cell_is_broken_by_the_facts_that_break_it() {
    for (claim, sound, last) in broken() {
        assert_eq!(judge(&sound), Ok(()), "{claim}: {sound:?}");
        let facts = [sound, vec![last]].concat();
        assert_eq!(judge(&facts), Err(claim.to_string()), "{facts:?}");
    }
}

#[test]
fn a_watch_that_hears_nothing_after_a_change_is_noticed_at_the_end() {
    let watching = Fact::Watching { session: 5, handle: 2, path: "/a".into(), instance: 1, events: 1 };
    let changed = |index, generation| {
        let stat = v1::NodeStat { instance: 1, content_generation: generation, ..Default::default() };
        let view = View { stat: Some(stat), digest: generation };
        entry(index, index, Command::WriteContents(v1::WriteContents::default()), &[("/a", view)])
    };
    let heard = Fact::Notified { session: 5, handle: 2, kind: v1::CellEventKind::ContentsChanged };
    let sound = [changed(1, 1), watching.clone(), changed(2, 2), changed(3, 3), heard.clone()];
    assert_eq!(judge(&sound), Ok(()));
    let missed = [changed(1, 1), watching, changed(2, 2), heard, changed(3, 3)];
    assert_eq!(judge(&missed), Err("an_event_follows_the_last_change".to_string()));
}

#[test]
fn whoever_is_let_in_or_was_when_it_looked_is_not_shut_out() {
    let cached = || Fact::Cached { session: 5, sighting: sighting(CLOSED, &behind_doors(9, 3)) };
    assert_eq!(judge(&[shown_closed("ann"), vec![cached(), write_closed(5)]].concat()), Ok(()));
    assert_eq!(judge(&[closed("bob"), vec![cached()]].concat()), Ok(()), "the change was not answered yet");
}

#[test]
fn who_shares_a_lock_may_run_beside_others_who_do() {
    let shared = |index, lock_generation| {
        let lock = LockMode::Shared as i32;
        let stat = v1::NodeStat { instance: 2, lock_generation, lock, ..Default::default() };
        let view = View { stat: Some(stat), digest: index };
        entry(index, index, Command::WriteContents(v1::WriteContents::default()), &[("/l", view)])
    };
    assert_eq!(judge(&[shared(1, 6), runs(false), shared(2, 7), runs(false)]), Ok(()));
    assert_eq!(judge(&[shared(1, 6), shared(2, 7), runs(true)]), Err("commands_die_with_their_locks".to_string()));
}

#[test]
fn who_gave_up_is_not_overtaken() {
    let gone = Fact::Unqueued { session: 5, numbers: BTreeSet::from([1]) };
    assert_eq!(judge(&[queue(), vec![gone, granting(6)]].concat()), Ok(()));
}

#[test]
fn every_claim_about_the_cell_has_facts_that_break_it() {
    let named: BTreeSet<&str> = broken().iter().map(|(claim, _, _)| *claim).collect();
    let claims = cell_claims().counts();
    let missing: Vec<&String> = claims.keys().filter(|claim| !named.contains(claim.as_str())).collect();
    assert_eq!(missing, ["an_event_follows_the_last_change"]);
}
