//! Random commands: the namespace answers as the model does, and changes no more than it said it would.

use crate::common::{APP, place};
use crate::reference::{Answer, Model};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, VecDeque};
use tidings_cell::mutant::Mutant;
use tidings_cell::namespace::{CellState, Namespace, Right, Touched};
use tidings_cell::{CacheKey, Place, SessionId};
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;
use tidings_wire::v1::cell_result::Result as Outcome;

const PATHS: [&str; 11] = ["/", "/acl", "/acl/x", "/acl/y", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f", "/e/g"];
const PRINCIPALS: [&str; 2] = ["user:shop/ann", "user:shop/bob"];

/// What a step is made of: the kind of command, and dice.
type Step = (u8, u8, u8, u8, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0u8..40, any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>()), 1..250)
}

/// Every run begins with a master, two sessions and a directory.
const BEGINNING: [Step; 4] = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 1), (1, 0, 0, 1, 1), (10, 0, 4, 2, 1)];

/// Makes commands out of dice, as masters would: paths that mostly exist, instances and epochs that are mostly right.
struct Maker {
    epoch: u64,
    number: u64,
}

impl Maker {
    fn command(&mut self, state: &Namespace, (kind, who, at, a, b): Step) -> v1::CellCommand {
        let sessions: Vec<u64> = state.sessions().map(|(id, _)| id.0).collect();
        let session = match sessions.as_slice() {
            [] => 1,
            some => some[who as usize % some.len()],
        };
        let path = PATHS[at as usize % PATHS.len()];
        let body = match kind {
            0 => Command::NewMaster(v1::NewMaster { node: 1, secret: vec![3; 32].into(), cache_lease_ms: 1_800 }),
            1..4 if sessions.len() < 5 => {
                let principal = PRINCIPALS[a as usize % 2].into();
                let caller = v1::CellCaller { app: APP.into(), principal, privileged: false };
                Command::StartSession(v1::StartSession { caller: Some(caller), lease_ms: 0, secret: 0, keeper: 0 })
            }
            4 => Command::StopSession(v1::StopSession { session, lost: a.is_multiple_of(2), gains: None }),
            5 | 6 => self.end_delay(state, path),
            7 => Command::ReapEphemeral(self.reap(state, path, a)),
            8 => Command::WriteQuota(v1::WriteQuota {
                app: APP.into(),
                path: path.into(),
                max_nodes: u64::from(a % 8),
                max_bytes: u64::from(b % 32),
            }),
            9 => Command::Nothing(v1::CellNothing {}),
            _ => self.session_command(state, SessionId(session), kind, path, a, b),
        };
        let own = kind >= 10 || (1..4).contains(&kind) && sessions.len() >= 5;
        self.number += u64::from(own && !b.is_multiple_of(16));
        let answered_below = self.number.saturating_sub(u64::from(a % 64));
        let number = self.number.saturating_sub(if b.is_multiple_of(16) { u64::from(a % 3) } else { 0 });
        let actor = own.then_some(v1::CellActor { session, number: number.max(1), answered_below });
        let stale = kind != 0 && a == 77;
        v1::CellCommand { actor, epoch: self.epoch - u64::from(stale), command: Some(body) }
    }

    fn end_delay(&self, state: &Namespace, path: &str) -> Command {
        let held = state.locks().find(|(place, _)| place.path.as_str() >= path);
        let (at, delay) = match held {
            Some((at, lock)) => (at.clone(), lock.delay.map_or(0, |delay| delay.number)),
            None => (place(path), 1),
        };
        let (app, path, instance) = (APP.into(), at.path.to_string(), state.instance(&at).unwrap_or(9));
        Command::EndDelay(v1::EndDelay { app, path, instance, delay })
    }

    fn reap(&self, state: &Namespace, path: &str, a: u8) -> v1::ReapEphemeral {
        let (at, instance) = state.reapable().into_iter().next().unwrap_or((place(path), 1));
        let instance = instance + u64::from(a.is_multiple_of(9));
        v1::ReapEphemeral { app: APP.into(), path: at.path.to_string(), instance }
    }

    fn session_command(&self, state: &Namespace, session: SessionId, kind: u8, path: &str, a: u8, b: u8) -> Command {
        // What gives something back mostly names what the session has.
        let has = [state.locks_of(session), state.ephemerals_of(session)].concat();
        let has = has.get(usize::from(b) % has.len().max(1)).filter(|_| !b.is_multiple_of(4));
        let (path, handle) = match has {
            Some((place, handle)) if (20..24).contains(&kind) || kind >= 37 => (place.path.to_string(), handle.0),
            _ => (path.to_owned(), u64::from(b % 3)),
        };
        let app = APP.to_owned();
        let here = state.stat(&place(&path));
        let instance = match a % 8 {
            0 => 0,
            1 => 1_000,
            _ => here.as_ref().map_or(0, |stat| stat.instance),
        };
        let if_generation = (a.is_multiple_of(5))
            .then(|| here.as_ref().map_or(1, |stat| stat.content_generation) + u64::from(b.is_multiple_of(3)));
        let acl = v1::NodeAcl { read: list(a), write: list(b), change: list(a ^ b) };
        let sequencers = if b.is_multiple_of(4) { self.sequencers(state, a) } else { Vec::new() };
        match kind {
            10..20 => {
                let contents = if path.starts_with("/acl/") {
                    PRINCIPALS[usize::from(b % 2)].as_bytes().to_vec().into()
                } else {
                    vec![b; usize::from(b % 8)].into()
                };
                let directory = matches!(path.as_str(), "/a" | "/a/b" | "/e") != (a % 16 == 1);
                let contents = if directory { bytes::Bytes::new() } else { contents };
                let (ephemeral, exclusive) = (a.is_multiple_of(3), a.is_multiple_of(7));
                let acl = (b % 8 == 1).then_some(acl);
                let create = v1::CreateNode { ephemeral, directory, contents, acl, exclusive };
                let create = (a % 5 != 4).then_some(create);
                let (read, write, lock) = (a.is_multiple_of(2), a.is_multiple_of(4), b % 4 == 3);
                Command::Open(v1::CreateOrOpen { app, path, create, handle, read, write, lock })
            }
            20..24 => Command::Close(v1::CloseOpen { app, path, instance, handle, closed: Vec::new() }),
            24..28 => {
                let contents =
                    if b.is_multiple_of(2) { PRINCIPALS[0].as_bytes().to_vec() } else { vec![a; usize::from(a % 9)] };
                let contents = contents.into();
                Command::WriteContents(v1::WriteContents { app, path, instance, contents, if_generation, sequencers })
            }
            28 | 29 => {
                let if_generation = if_generation.map(|_| here.map_or(1, |stat| stat.acl_generation));
                let acl = Some(acl);
                Command::WriteAcl(v1::WriteAcl { app, path, instance, acl, if_generation, sequencers })
            }
            30..33 => Command::RemoveNode(v1::RemoveNode { app, path, instance, if_generation, sequencers }),
            33..37 => {
                let lock_delay_ms = u32::from(b % 4) * 1_000;
                Command::TakeLock(v1::TakeLock {
                    app,
                    path,
                    instance,
                    handle,
                    mode: 1 + i32::from(a % 2),
                    lock_delay_ms,
                })
            }
            _ => Command::FreeLock(v1::FreeLock { app, path, instance, handle }),
        }
    }

    /// A sequencer of some lock, as it is or as it was.
    fn sequencers(&self, state: &Namespace, a: u8) -> Vec<v1::SequencerBody> {
        let held: Vec<_> = state.locks().collect();
        let Some((place, lock)) = held.get(usize::from(a) % held.len().max(1)) else { return Vec::new() };
        let mode = if lock.mode == v1::LockMode::Unspecified { 2 } else { lock.mode as i32 };
        vec![v1::SequencerBody {
            incarnation: 1,
            app: APP.into(),
            path: place.path.to_string(),
            instance: state.instance(place).unwrap_or_default(),
            mode,
            generation: lock.generation - u64::from(a.is_multiple_of(4)),
        }]
    }
}

fn list(dice: u8) -> String {
    ["", "", "x", "y", "z"][usize::from(dice % 5)].into()
}

fn answer(result: v1::CellResult) -> Answer {
    match result.result.unwrap() {
        Outcome::NewMaster(done) => Ok((None, false, done.epoch)),
        Outcome::StartSession(done) => Ok((None, false, done.session)),
        Outcome::Applied(done) => Ok((done.stat, done.created, done.generation)),
        Outcome::Error(error) => Err(error.code),
    }
}

/// Everything that a cached answer can show.
fn shown(state: &Namespace) -> BTreeMap<CacheKey, Option<v1::NodeRead>> {
    let mut all = BTreeMap::new();
    for path in PATHS {
        let at = place(path);
        let read = |contents, children| {
            let stat = Some(state.stat(&at)?);
            Some(v1::NodeRead { stat, contents, children, stamp: None })
        };
        let contents = state.contents(&at).unwrap_or_default();
        all.insert(CacheKey::node(at.clone()), read(contents, Vec::new()));
        all.insert(CacheKey::listing(at.clone()), read(Default::default(), state.children(&at).unwrap_or_default()));
    }
    all
}

/// Who may know of each name whether it is there.
fn may_know(state: &Namespace) -> BTreeMap<Place, Vec<bool>> {
    let caller =
        |principal: &&str| v1::CellCaller { app: APP.into(), principal: (*principal).into(), privileged: false };
    let callers: Vec<v1::CellCaller> = PRINCIPALS.iter().map(caller).collect();
    let known = |at: &Place| callers.iter().map(|caller| state.may(caller, at, Right::Read).is_ok()).collect();
    PATHS.iter().map(|path| place(path)).map(|at| (at.clone(), known(&at))).collect()
}

fn same(state: &Namespace, model: &Model) -> Result<(), TestCaseError> {
    for path in PATHS {
        let at = place(path);
        prop_assert_eq!(state.stat(&at), model.stat(path));
        let contents = model.nodes.get(path).map(|node| node.contents.clone());
        prop_assert_eq!(
            state.contents(&at).map(|contents| contents.to_vec()).unwrap_or_default(),
            contents.unwrap_or_default()
        );
        let children: Option<Vec<String>> =
            state.children(&at).map(|all| all.into_iter().map(|child| child.name).collect());
        let expected = model.nodes.get(path).map(|_| model.children(path));
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        prop_assert_eq!(children, expected.map(|all| all.into_iter().map(name).collect::<Vec<_>>()));
        if let Some(quota) = state.quota(&at) {
            prop_assert_eq!((quota.nodes, quota.bytes), model.used(path));
        }
        let openers: Vec<_> = state.openers(&at).iter().map(|who| (who.0.0, who.1.0)).collect();
        let expected = model.nodes.get(path).map(|node| node.openers.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(openers, expected.unwrap_or_default());
    }
    let plain = |held: Vec<(Place, tidings_cell::HandleNumber)>| -> Vec<(String, u64)> {
        held.into_iter().map(|(place, handle)| (place.path.to_string(), handle.0)).collect()
    };
    for id in model.session_ids() {
        prop_assert_eq!(plain(state.locks_of(SessionId(id))), model.locks_of(id));
        prop_assert_eq!(plain(state.ephemerals_of(SessionId(id))), model.ephemerals_of(id));
    }
    prop_assert_eq!(state.sessions().map(|(id, _)| id.0).collect::<Vec<_>>(), model.session_ids());
    let held: std::collections::BTreeSet<_> = state.locks().map(|(place, _)| place.path.to_string()).collect();
    prop_assert!(held.iter().map(String::as_str).eq(model.held()));
    let mut reapable = state.reapable();
    reapable.sort();
    prop_assert!(reapable.iter().map(|(place, instance)| (place.path.as_str(), *instance)).eq(model.reapable()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_namespace_answers_as_the_model_does(steps in steps()) {
        let (mut state, mut model) = (Namespace::new(), Model::default());
        let mut maker = Maker { epoch: 0, number: 0 };
        for step in BEGINNING.into_iter().chain(steps) {
            let command = maker.command(&state, step);
            let (got, expected) = (answer(state.apply(&command)), model.apply(&command));
            prop_assert_eq!(&got, &expected, "{:?}", command);
            maker.epoch = state.epoch().0;
            same(&state, &model)?;
        }
        let copy = copied(&state);
        prop_assert!(copy == state, "a snapshot makes the same state, with everything that follows from it");
        prop_assert_eq!(copy.digest(), state.digest());
    }

    /// R5: what changed is within what was said before the command, whatever was applied in between; and what was
    /// noted as changed is what a reader can see to have changed, and what somebody else may see now.
    #[test]
    fn no_command_changes_more_than_it_touches(steps in steps(), lags in proptest::collection::vec(0usize..6, 1..20)) {
        let mut state = Namespace::new();
        let mut maker = Maker { epoch: 0, number: 0 };
        let mut earlier: VecDeque<Namespace> = VecDeque::new();
        for (at, step) in BEGINNING.into_iter().chain(steps).enumerate() {
            let mut command = maker.command(&state, step);
            earlier.push_front(state.clone());
            earlier.truncate(6);
            let then = &earlier[lags[at % lags.len()].min(earlier.len() - 1)];
            if let Some(Command::StopSession(stop)) = &mut command.command {
                let Some(session) = then.session(SessionId(stop.session)) else { continue };
                stop.gains = Some(session.gains);
            }
            let touches = then.touches(&command);
            let (before, knew) = (shown(&state), may_know(&state));
            state.apply(&command);
            maker.epoch = state.epoch().0;
            let changed = state.changed();
            for (key, value) in shown(&state) {
                prop_assert!(before[&key] == value || changed.covers(&key), "{key:?} changed unnoted by {command:?}");
            }
            for (at, known) in may_know(&state) {
                let noted = knew[&at] == known || changed.covers_absence(&at);
                prop_assert!(noted, "others may know of {at} unnoted by {command:?}");
            }
            prop_assert!(touches.covers_all(changed), "{command:?} touches {touches:?} and changed {changed:?}");
        }
    }
}

fn copied(state: &Namespace) -> Namespace {
    use tidings_base::agreed::{AgreedState, Position};
    let mut from = CellState::new();
    *from.shared().write() = state.clone();
    let mut picture = from.snapshot().unwrap();
    let mut to = CellState::new();
    to.restore(Position::default(), &mut *picture).unwrap();
    to.shared().read().clone()
}

/// R5: without it, what a lock shows is not invalidated.
#[test]
fn the_mutant_that_invalidates_nothing_for_locks_is_seen() {
    for (mutant, covered) in [(None, true), (Some(Mutant::LocksInvalidateNothing), false)] {
        let mut cell = crate::common::Cell::with_mutant(mutant);
        let a = cell.start();
        let make = crate::common::create("/l", 1, crate::common::file(""));
        let actor = v1::CellActor { session: a.0, number: 1, answered_below: 1 };
        let command = v1::CellCommand { actor: Some(actor), epoch: cell.epoch, command: Some(make) };
        let touches = cell.state.touches(&command);
        cell.state.apply(&command);
        assert_eq!(touches.covers_all(cell.state.changed()), covered);
        assert!(touches.covers(&CacheKey::node(place("/l"))));
        assert!(!matches!(touches, Touched::All));
    }
}

/// R5: without it, whoever is shut out of a directory keeps what was absent in it.
#[test]
fn the_mutant_that_leaves_absences_is_seen() {
    for (mutant, covered) in [(None, true), (Some(Mutant::AbsencesStay), false)] {
        let mut cell = crate::common::Cell::with_mutant(mutant);
        let a = cell.start();
        let acl = v1::WriteAcl { app: APP.into(), path: "/".into(), ..Default::default() };
        let actor = v1::CellActor { session: a.0, number: 1, answered_below: 1 };
        let command = v1::CellCommand { actor: Some(actor), epoch: cell.epoch, command: Some(Command::WriteAcl(acl)) };
        let touches = cell.state.touches(&command);
        cell.state.apply(&command);
        assert_eq!(touches.covers_all(cell.state.changed()), covered);
        assert_eq!(touches.covers_absence(&place("/far/below")), covered);
    }
}

/// The dice reach what they are meant to reach: every kind of success, and every refusal of the model.
#[test]
fn the_random_commands_reach_every_branch() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut reached: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..100 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut state = Namespace::new();
        let mut maker = Maker { epoch: 0, number: 0 };
        for step in BEGINNING.into_iter().chain(steps) {
            let command = maker.command(&state, step);
            let kind = format!("{:?}", command.command.as_ref().unwrap());
            let kind = kind.split('(').next().unwrap_or_default().to_owned();
            let what = match answer(state.apply(&command)) {
                Ok((_, created, _)) if state.changed().is_empty() => format!("{kind} kept {created}"),
                Ok((_, created, _)) => format!("{kind} changed {created}"),
                Err(code) => code,
            };
            *reached.entry(what).or_default() += 1;
            maker.epoch = state.epoch().0;
        }
    }
    for what in [
        "Close changed false",
        "EndDelay changed false",
        "FreeLock changed false",
        "Open changed true",
        "Open kept false",
        "ReapEphemeral changed false",
        "RemoveNode changed false",
        "StopSession changed false",
        "TakeLock changed false",
        "WriteAcl changed false",
        "WriteContents changed false",
        "WriteContents kept false",
        "cell.already_held",
        "cell.answered_already",
        "cell.denied",
        "cell.lock_held",
        "cell.node_gone",
        "cell.not_empty",
        "cell.not_held",
        "cell.quota_bytes",
        "cell.quota_nodes",
        "cell.stale_epoch",
        "cell.stale_sequencer",
        "cell.unknown_acl",
        "cell.wrong_generation",
    ] {
        assert!(reached.get(what).is_some_and(|times| *times > 2), "{what} is hardly reached: {reached:#?}");
    }
}
