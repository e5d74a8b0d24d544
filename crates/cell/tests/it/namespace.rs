//! Rules of the agreed state, one by one.

use crate::common::*;
use tidings_cell::mutant::Mutant;
use tidings_cell::namespace::{MAX_EPHEMERALS, WINDOW};
use tidings_cell::{HandleNumber, SessionId};
use tidings_wire::v1;
use tidings_wire::v1::LockMode::{Exclusive, Shared};
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

#[test]
fn files_and_directories_come_change_and_go() {
    let mut cell = Cell::new();
    let a = cell.start();
    assert!(cell.stat("/").unwrap().directory && cell.stat("/acl").unwrap().directory);
    let made = cell.call(a, create("/etc", 1, directory())).unwrap();
    assert!(made.created);
    let made = cell.call(a, create("/etc/motd", 2, file("hello"))).unwrap().stat.unwrap();
    assert_eq!((made.content_generation, made.acl_generation, made.lock_generation, made.length), (1, 1, 0, 5));
    let again = cell.call(a, create("/etc/motd", 3, file("other"))).unwrap();
    assert!(!again.created && again.stat.unwrap() == made, "an existing file is opened as it is");
    let written = cell.call(a, Command::WriteContents(put("/etc/motd", "bye"))).unwrap().stat.unwrap();
    assert_eq!((written.content_generation, written.length, written.instance), (2, 3, made.instance));
    assert_ne!(written.checksum, made.checksum);
    assert_eq!(cell.state.contents(&place("/etc/motd")).unwrap(), "bye");
    cell.call(a, create("/etc/a", 4, file(""))).unwrap();
    let names = |cell: &Cell, path| -> Vec<String> {
        cell.state.children(&place(path)).unwrap().into_iter().map(|child| child.name).collect()
    };
    assert_eq!(names(&cell, "/etc"), ["a", "motd"]);
    assert_eq!(names(&cell, "/"), ["acl", "etc"]);
    assert_eq!(cell.stat("/etc").unwrap().children, 2);
    cell.call(a, Command::RemoveNode(remove("/etc/motd"))).unwrap();
    assert_eq!((cell.stat("/etc/motd"), cell.stat("/etc").unwrap().children), (None, 1));
    let anew = cell.call(a, create("/etc/motd", 5, file("new"))).unwrap().stat.unwrap();
    assert!(anew.instance > made.instance);
}

#[test]
fn each_refusal_has_its_name() {
    let mut cell = Cell::new();
    let a = cell.start();
    cell.call(a, create("/d", 1, directory())).unwrap();
    let made = cell.call(a, create("/d/f", 2, file("x"))).unwrap().stat.unwrap();
    let exclusive = v1::CreateNode { exclusive: true, ..file("") };
    assert_eq!(cell.refused(a, create("/d/f", 3, exclusive)), "cell.node_exists");
    assert_eq!(cell.refused(a, create("/d/f", 3, directory())), "cell.not_a_directory");
    assert_eq!(cell.refused(a, create("/d", 3, file(""))), "cell.is_a_directory");
    assert_eq!(cell.refused(a, create("/d/f/g", 3, file(""))), "cell.not_a_directory");
    assert_eq!(cell.refused(a, create("/x/y", 3, file(""))), "cell.no_parent");
    assert_eq!(cell.refused(a, create("/d/../y", 3, file(""))), "cell.bad_path");
    assert_eq!(cell.refused(a, create("/d//y", 3, file(""))), "cell.bad_path");
    let unknown = v1::CreateNode { acl: Some(v1::NodeAcl { read: "nobody".into(), ..Default::default() }), ..file("") };
    assert_eq!(cell.refused(a, create("/y", 3, unknown)), "cell.unknown_acl");
    let filled = v1::CreateNode { contents: "x".into(), ..directory() };
    assert_eq!(cell.refused(a, create("/y", 3, filled)), "cell.is_a_directory");
    let large = v1::CreateNode { contents: vec![0; (256 << 10) + 1].into(), ..file("") };
    assert_eq!(cell.refused(a, create("/y", 3, large)), "cell.too_large");
    assert_eq!(cell.refused(a, open("/y", 3)), "cell.no_node");

    assert_eq!(cell.refused(a, Command::WriteContents(put("/y", "x"))), "cell.no_node");
    assert_eq!(cell.refused(a, Command::WriteContents(put("/d", "x"))), "cell.is_a_directory");
    assert_eq!(cell.refused(a, Command::WriteContents(put("/d/f", vec![0; (256 << 10) + 1]))), "cell.too_large");
    let other = v1::WriteContents { if_generation: Some(7), ..put("/d/f", "x") };
    assert_eq!(cell.refused(a, Command::WriteContents(other)), "cell.wrong_generation");
    let gone = v1::WriteContents { instance: made.instance + 1, ..put("/d/f", "x") };
    assert_eq!(cell.refused(a, Command::WriteContents(gone)), "cell.node_gone");
    assert_eq!(cell.refused(a, acl("/d/f", "", "nobody", "")), "cell.unknown_acl");

    assert_eq!(cell.refused(a, Command::RemoveNode(remove("/d"))), "cell.not_empty");
    assert_eq!(cell.refused(a, Command::RemoveNode(remove("/"))), "cell.denied");
    assert_eq!(cell.refused(a, Command::RemoveNode(remove("/acl"))), "cell.denied");
    let other = v1::RemoveNode { if_generation: Some(7), ..remove("/d/f") };
    assert_eq!(cell.refused(a, Command::RemoveNode(other)), "cell.wrong_generation");

    assert_eq!(cell.refused(a, free("/d/f", 2)), "cell.not_held");
    cell.call(a, take("/d/f", 2, Exclusive, 0)).unwrap();
    assert_eq!(cell.refused(a, take("/d/f", 2, Exclusive, 0)), "cell.already_held");
    assert_eq!(cell.refused(a, take("/d/f", 3, Shared, 0)), "cell.lock_held");
    assert_eq!(cell.refused(SessionId(99), open("/d", 1)), "cell.no_session");
    let quota = v1::WriteQuota { app: APP.into(), path: "/d".into(), max_nodes: 1, max_bytes: 0 };
    assert_eq!(cell.refused(a, Command::WriteQuota(quota)), "cell.operators_only");
    let b = cell.start();
    assert_eq!(cell.refused(a, stop(b, false)), "cell.operators_only");
    assert_eq!(cell.refused(a, Command::ReapEphemeral(v1::ReapEphemeral::default())), "cell.bad_command");
}

/// R1.
#[test]
fn a_deposed_master_changes_nothing() {
    for (mutant, lives) in [(None, true), (Some(Mutant::StaleEpochAccepted), false)] {
        let mut cell = Cell::with_mutant(mutant);
        let a = cell.start();
        let old = cell.epoch;
        cell.activate();
        assert_eq!(cell.epoch, old + 1);
        let late = v1::CellCommand { actor: None, epoch: old, command: Some(stop(a, true)) };
        let result = cell.state.apply(&late).result.unwrap();
        assert_eq!(matches!(result, Outcome::Error(ref error) if error.code == "cell.stale_epoch"), lives);
        assert_eq!(cell.state.session(a).is_some(), lives);
    }
}

/// R8.
#[test]
fn a_repeat_is_answered_from_the_window_and_changes_nothing() {
    for (mutant, contents) in [(None, "second"), (Some(Mutant::RepeatApplied), "first")] {
        let mut cell = Cell::with_mutant(mutant);
        let a = cell.start();
        let first = cell.call_as(a, 1, 0, create("/f", 1, file("first"))).unwrap();
        assert!(first.created);
        let wrote = cell.call_as(a, 2, 0, Command::WriteContents(put("/f", "first"))).unwrap();
        cell.call_as(a, 3, 0, Command::WriteContents(put("/f", "second"))).unwrap();
        let again = cell.call_as(a, 2, 0, Command::WriteContents(put("/f", "first"))).unwrap();
        assert_eq!(again == wrote, mutant.is_none());
        assert_eq!(cell.state.contents(&place("/f")).unwrap(), contents);
    }
    let mut cell = Cell::new();
    let a = cell.start();
    let refusal = cell.call_as(a, 1, 0, Command::WriteContents(put("/f", ""))).unwrap_err();
    cell.call_as(a, 2, 0, create("/f", 2, file(""))).unwrap();
    let again = cell.call_as(a, 1, 0, Command::WriteContents(put("/f", ""))).unwrap_err();
    assert_eq!(again, refusal, "a refusal is repeated too");
    assert!(cell.state.result(a, 1).is_some());
    let over = cell.call_as(a, 2 + WINDOW, 2, open("/f", 9)).unwrap_err();
    assert_eq!(over.code, "cell.too_many_outstanding");
    assert!(cell.state.result(a, 1).is_none() && cell.state.result(a, 2).is_some());
    assert_eq!(cell.call_as(a, 1, 0, open("/f", 9)).unwrap_err().code, "cell.answered_already");
}

/// A grant that comes too early is tried again under the number of the acquire.
#[test]
fn a_lock_that_was_held_may_be_granted_later_under_the_same_number() {
    let mut cell = Cell::new();
    let (a, b) = (cell.start(), cell.start());
    cell.call(a, create("/l", 1, file(""))).unwrap();
    cell.call(a, take("/l", 1, Exclusive, 0)).unwrap();
    assert_eq!(cell.call_as(b, 5, 1, take("/l", 1, Exclusive, 0)).unwrap_err().code, "cell.lock_held");
    cell.call(a, free("/l", 1)).unwrap();
    assert_eq!(cell.call_as(b, 5, 1, take("/l", 1, Exclusive, 0)).unwrap().generation, 2);
}

/// etcd #11456: the grant was on its way when the session that asked for it ended.
#[test]
fn a_lock_is_not_granted_to_a_session_that_has_ended() {
    let mut cell = Cell::new();
    let session = cell.start();
    cell.call(session, create("/l", 1, file(""))).unwrap();
    cell.master(stop(session, true));
    assert_eq!(cell.refused(session, take("/l", 1, Exclusive, 0)), "cell.no_session");
    assert_eq!(cell.state.locks().count(), 0);
}

/// R9.
#[test]
fn an_ephemeral_file_goes_with_its_last_opener() {
    let mut cell = Cell::new();
    let (a, b) = (cell.start(), cell.start());
    cell.call(a, create("/e", 1, ephemeral(false))).unwrap();
    cell.call(b, open("/e", 1)).unwrap();
    cell.call(a, close("/e", 1)).unwrap();
    assert!(cell.stat("/e").unwrap().ephemeral);
    assert_eq!(cell.state.openers(&place("/e")), [(b, HandleNumber(1))]);
    assert_eq!((cell.state.ephemerals_of(a).len(), cell.state.ephemerals_of(b).len()), (0, 1));
    cell.master(stop(b, true));
    assert_eq!((cell.stat("/e"), cell.stat("/").unwrap().children), (None, 1));

    let mut cell = Cell::with_mutant(Some(Mutant::EphemeralsStay));
    let a = cell.start();
    cell.call(a, create("/e", 1, ephemeral(false))).unwrap();
    cell.master(stop(a, true));
    assert!(cell.stat("/e").is_some());
}

/// R9.
#[test]
fn an_ephemeral_directory_is_left_for_the_master_to_reap() {
    let mut cell = Cell::new();
    let (a, b) = (cell.start(), cell.start());
    let instance = cell.call(a, create("/d", 1, ephemeral(true))).unwrap().stat.unwrap().instance;
    cell.call(b, create("/d/e", 1, ephemeral(false))).unwrap();
    assert!(cell.state.reapable().is_empty());
    cell.master(stop(a, false));
    assert!(cell.state.reapable().is_empty(), "it has a child");
    cell.master(stop(b, false));
    assert_eq!(cell.state.reapable(), [(place("/d"), instance)]);
    let reap = |instance| Command::ReapEphemeral(v1::ReapEphemeral { app: APP.into(), path: "/d".into(), instance });
    let c = cell.start();
    cell.call(c, open("/d", 1)).unwrap();
    assert!(cell.state.reapable().is_empty(), "somebody opened it");
    cell.master(reap(instance));
    assert!(cell.stat("/d").is_some());
    cell.call(c, close("/d", 1)).unwrap();
    cell.master(reap(instance + 100));
    assert!(cell.stat("/d").is_some(), "another instance");
    cell.master(reap(instance));
    assert!(cell.stat("/d").is_none() && cell.state.reapable().is_empty());
}

/// R10 and the lock's generations.
#[test]
fn a_lost_lock_is_held_back_and_a_released_one_is_not() {
    for mutant in [None, Some(Mutant::NoLockDelay)] {
        let mut cell = Cell::with_mutant(mutant);
        let (a, b, c) = (cell.start(), cell.start(), cell.start());
        let instance = cell.call(a, create("/l", 1, file(""))).unwrap().stat.unwrap().instance;
        assert_eq!(cell.call(a, take("/l", 1, Exclusive, 5_000)).unwrap().generation, 1);
        assert_eq!(cell.state.locks_of(a), [(place("/l"), HandleNumber(1))]);
        assert_eq!(cell.state.locks().count(), 1);
        cell.call(a, free("/l", 1)).unwrap();
        assert_eq!((cell.state.locks().count(), cell.state.locks_of(a).len()), (0, 0));
        assert_eq!(cell.call(b, take("/l", 1, Exclusive, 5_000)).unwrap().generation, 2);
        cell.master(stop(b, true));
        let retry = cell.call(c, take("/l", 1, Exclusive, 0));
        if mutant.is_some() {
            assert!(retry.is_ok());
            continue;
        }
        assert_eq!(retry.unwrap_err().code, "cell.lock_held");
        assert!(cell.stat("/l").unwrap().lock_delayed);
        let delay = cell.state.lock(&place("/l")).unwrap().delay.unwrap();
        assert_eq!((delay.length.as_secs(), delay.exclusive_only), (5, false));
        let end = |delay| Command::EndDelay(v1::EndDelay { app: APP.into(), path: "/l".into(), instance, delay });
        cell.master(end(delay.number + 1));
        assert_eq!(cell.refused(c, take("/l", 1, Exclusive, 0)), "cell.lock_held");
        cell.master(end(delay.number));
        assert_eq!(cell.call(c, take("/l", 1, Exclusive, 0)).unwrap().generation, 3);
        cell.master(stop(c, true));
        assert_eq!(cell.state.locks().count(), 0, "no delay was asked for");
    }
}

/// R11.
#[test]
fn a_sequencer_is_stale_once_the_lock_is_freed() {
    for (mutant, fenced) in [(None, true), (Some(Mutant::SequencerOutlivesLock), false)] {
        let mut cell = Cell::with_mutant(mutant);
        let (a, b) = (cell.start(), cell.start());
        let instance = cell.call(a, create("/l", 1, file(""))).unwrap().stat.unwrap().instance;
        cell.call(a, create("/data", 2, file(""))).unwrap();
        let generation = cell.call(a, take("/l", 1, Exclusive, 60_000)).unwrap().generation;
        let sequencer = v1::SequencerBody {
            incarnation: cell.state.incarnation().0,
            app: APP.into(),
            path: "/l".into(),
            instance,
            mode: Exclusive as i32,
            generation,
        };
        let guarded = |text: &'static str| {
            Command::WriteContents(v1::WriteContents { sequencers: vec![sequencer.clone()], ..put("/data", text) })
        };
        cell.call(b, guarded("held")).unwrap();
        for wrong in [
            v1::SequencerBody { incarnation: 99, ..sequencer.clone() },
            v1::SequencerBody { instance: 99, ..sequencer.clone() },
            v1::SequencerBody { generation: 99, ..sequencer.clone() },
            v1::SequencerBody { path: "/no".into(), ..sequencer.clone() },
        ] {
            assert!(cell.state.check_sequencer(&wrong).is_err());
        }
        cell.master(stop(a, true));
        assert!(cell.state.lock(&place("/l")).unwrap().delay.is_some());
        assert_eq!(cell.state.check_sequencer(&sequencer).is_err(), fenced, "the delay does not keep it valid");
        assert_eq!(cell.call(b, guarded("freed")).is_err_and(|error| error.code == "cell.stale_sequencer"), fenced);
    }
}

#[test]
fn rights_are_inherited_checked_and_withdrawn_at_apply() {
    let mut cell = Cell::new();
    let (ann, bob) = (cell.start_as("user:shop/ann", false), cell.start_as("user:shop/bob", false));
    let operator = cell.start_as("operator", true);
    cell.call(ann, create("/acl/ann", 1, file("# just her\nuser:shop/ann\n"))).unwrap();
    cell.call(ann, create("/d", 2, directory())).unwrap();
    cell.call(ann, acl("/d", "ann", "ann", "ann")).unwrap();
    assert_eq!(cell.stat("/d").unwrap().acl_generation, 2);
    let made = cell.call(ann, create("/d/f", 3, file("x"))).unwrap().stat.unwrap();
    assert_eq!(made.acl.unwrap().write, "ann", "inherited");
    assert_eq!(cell.refused(bob, open("/d/f", 1)), "cell.denied");
    assert_eq!(cell.refused(bob, create("/d/g", 1, file(""))), "cell.denied");
    assert_eq!(cell.refused(bob, Command::WriteContents(put("/d/f", "y"))), "cell.denied");
    assert_eq!(cell.refused(bob, Command::RemoveNode(remove("/d/f"))), "cell.denied");
    assert_eq!(cell.refused(bob, take("/d/f", 1, Shared, 0)), "cell.denied");
    assert_eq!(cell.refused(bob, acl("/d/f", "", "", "")), "cell.denied");
    // Nor does he learn what is there and what is not.
    for unknown in
        [open("/d/no", 1), create("/d/no/f", 1, file("")), create("/d/f/g", 1, file("")), acl("/d/no", "", "", "")]
    {
        assert_eq!(cell.refused(bob, unknown), "cell.denied");
    }
    assert_eq!(cell.refused(bob, Command::WriteContents(put("/d/no", "y"))), "cell.denied");
    assert_eq!(cell.refused(bob, Command::RemoveNode(remove("/d/no"))), "cell.denied");
    assert_eq!(cell.refused(ann, create("/d/no/f", 4, file(""))), "cell.no_parent");
    assert_eq!(cell.refused(ann, open("/d/no", 4)), "cell.no_node");
    cell.call(operator, Command::WriteContents(put("/d/f", "y"))).unwrap();
    cell.call(ann, Command::WriteContents(put("/acl/ann", "user:shop\n"))).unwrap();
    cell.call(bob, Command::WriteContents(put("/d/f", "z"))).unwrap();
    cell.call(ann, Command::RemoveNode(remove("/acl/ann"))).unwrap();
    assert_eq!(cell.refused(ann, open("/d/f", 9)), "cell.denied");
}

#[test]
fn directories_and_sessions_have_bounds() {
    let mut cell = Cell::new();
    let a = cell.start();
    cell.call(a, create("/q", 1, directory())).unwrap();
    cell.call(a, create("/q/r", 2, directory())).unwrap();
    cell.master(Command::WriteQuota(v1::WriteQuota {
        app: APP.into(),
        path: "/q".into(),
        max_nodes: 3,
        max_bytes: 10,
    }));
    cell.call(a, create("/q/r/f", 3, file("12345678"))).unwrap();
    assert_eq!(cell.refused(a, Command::WriteContents(put("/q/r/f", "12345678901"))), "cell.quota_bytes");
    cell.call(a, Command::WriteContents(put("/q/r/f", "1234567890"))).unwrap();
    assert_eq!(cell.refused(a, create("/q/g", 4, file("1"))), "cell.quota_bytes");
    cell.call(a, create("/q/g", 4, file(""))).unwrap();
    assert_eq!(cell.refused(a, create("/q/r/h", 5, file(""))), "cell.quota_nodes");
    let quota = cell.state.quota(&place("/q")).unwrap();
    assert_eq!((quota.nodes, quota.bytes, quota.max_nodes, quota.max_bytes), (3, 10, 3, 10));
    cell.call(a, Command::RemoveNode(remove("/q/r/f"))).unwrap();
    cell.call(a, create("/q/r/h", 5, file(""))).unwrap();
    let root = cell.state.quota(&place("/")).unwrap();
    assert_eq!((root.nodes, root.bytes, root.max_nodes, root.max_bytes), (5, 0, 200_000, 256 << 20));
    assert!(cell.state.quota(&place("/q/g")).is_none() && cell.state.quota(&place("/none")).is_none());

    for handle in 0..MAX_EPHEMERALS as u64 {
        cell.call(a, create(&format!("/e{handle}"), handle, ephemeral(false))).unwrap();
    }
    assert_eq!(cell.refused(a, create("/more", 9_999, ephemeral(false))), "cell.too_many_ephemerals");
    assert_eq!(cell.refused(a, create("/more", 9_999, ephemeral(true))), "cell.too_many_ephemerals");
    let b = cell.start();
    cell.call(b, create("/more", 1, ephemeral(false))).unwrap();
    assert_eq!(cell.refused(a, open("/more", 9_999)), "cell.too_many_ephemerals");
}

/// R6.
#[test]
fn a_longer_lease_raises_the_ceiling_and_none_is_beyond_it() {
    let mut cell = Cell::new();
    let ceiling = |cell: &Cell| cell.state.ceiling().as_millis();
    assert_eq!(ceiling(&cell), 12_000);
    let caller = Some(v1::CellCaller { app: APP.into(), ..Default::default() });
    let start =
        |lease_ms| Command::StartSession(v1::StartSession { caller: caller.clone(), lease_ms, secret: 0, keeper: 0 });
    cell.master(start(20_000));
    assert_eq!(ceiling(&cell), 20_000);
    cell.master(start(90_000));
    assert_eq!(ceiling(&cell), 60_000);
    assert!(cell.state.sessions().all(|(_, session)| session.lease <= cell.state.ceiling()));
    cell.master(Command::SetCeiling(v1::RaiseCeiling { lease_ms: 15_000, ..Default::default() }));
    assert_eq!(ceiling(&cell), 60_000, "a session has a lease of a minute");
    cell.master(stop(SessionId(2), false));
    cell.master(Command::SetCeiling(v1::RaiseCeiling { lease_ms: 15_000, ..Default::default() }));
    assert_eq!(ceiling(&cell), 20_000);
}

#[test]
fn the_end_of_a_session_is_refused_when_it_gained_something_since() {
    let mut cell = Cell::new();
    let a = cell.start();
    let gains = Some(cell.state.session(a).unwrap().gains);
    cell.call(a, create("/e", 1, ephemeral(false))).unwrap();
    let end = |gains| Command::StopSession(v1::StopSession { session: a.0, lost: true, gains });
    assert!(matches!(cell.master(end(gains)), Outcome::Error(error) if error.code == "cell.busy"));
    let gains = Some(cell.state.session(a).unwrap().gains);
    assert!(matches!(cell.master(end(gains)), Outcome::Applied(_)));
    assert!(cell.state.session(a).is_none() && cell.stat("/e").is_none());
}

/// R12.
#[test]
fn the_first_master_makes_the_keys_and_later_ones_keep_them() {
    let mut cell = Cell::new();
    assert_eq!(cell.state.keys().newest(), 1);
    cell.activate();
    assert_eq!(cell.state.keys().newest(), 1);
    cell.master(Command::RotateKeys(v1::RotateKeys { secret: vec![9; 32].into() }));
    assert_eq!(cell.state.keys().newest(), 2);
    let bad = cell.master(Command::RotateKeys(v1::RotateKeys { secret: vec![9; 31].into() }));
    assert!(matches!(bad, Outcome::Error(error) if error.code == "cell.bad_command"));
    assert_eq!(cell.state.keys().public().to_wire().len(), 2);
}

#[test]
fn a_deleted_node_takes_its_lock_with_it() {
    let mut cell = Cell::new();
    let (a, b) = (cell.start(), cell.start());
    cell.call(a, create("/l", 1, file(""))).unwrap();
    cell.call(a, take("/l", 1, Exclusive, 1_000)).unwrap();
    cell.call(b, Command::RemoveNode(remove("/l"))).unwrap();
    assert!(cell.state.locks_of(a).is_empty() && cell.state.locks().next().is_none());
    cell.call(a, close("/l", 1)).unwrap();
    cell.master(stop(a, true));
}
