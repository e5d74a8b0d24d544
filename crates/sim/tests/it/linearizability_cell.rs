//! What clients of the cell saw, judged by a checker that knows nothing of the log: files as registers with a generation,
//! compare-and-set, creation and deletion, reads through caches among the rest; locks with their generations. Each file and
//! each lock is judged by itself, and what has an unknown outcome may have happened at any later time, or never.

use crate::register::{Change as Changed, Deed, File, NEVER, by_name, judge, operation};
use porcupine_rs::{CheckResult, Model, Operation};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidings_cell::mutant::Mutant as Rule;
use tidings_sim::Options;
use tidings_sim::mutant::Mutant;
use tidings_sim::scenarios::cell::fact::{Answer, Call, Change, Fact, Key, OpName, Sighting};
use tidings_sim::scenarios::cell::run_recorded;
use tidings_wire::v1;

/// The files of the workload that come and go.
const FILES: [&str; 5] = ["/a", "/b", "/c", "/d/a", "/d/b"];

/// A lock: its generation, and who is known to hold it by session and handle.
///
/// Acquires of unknown outcome are left out: a generation may be skipped, and whoever shares the lock may share it with
/// somebody unknown.
#[derive(Clone, Debug)]
struct Lock;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Held {
    generation: u64,
    exclusive: bool,
    holders: BTreeSet<(u64, u64)>,
}

/// What a session did to a lock.
#[derive(Clone, Debug)]
enum Hold {
    /// It got it, under this generation.
    Took((u64, u64), bool, u64),
    /// It gave it back.
    Freed((u64, u64)),
    /// It may have given it back.
    MayHaveFreed((u64, u64)),
    /// It ended, some time after it was last served, or never.
    Gone(u64),
}

impl Held {
    fn taken(&self, who: (u64, u64), exclusive: bool, generation: u64) -> Option<Held> {
        let shares = !exclusive && !self.exclusive;
        let fits = match generation.cmp(&self.generation) {
            Ordering::Less => false,
            Ordering::Equal => shares,
            Ordering::Greater => self.holders.is_empty(),
        };
        let mut holders = self.holders.clone();
        (fits && holders.insert(who)).then_some(Held { generation, exclusive, holders })
    }

    fn without(&self, gone: impl Fn(&(u64, u64)) -> bool) -> Held {
        let holders = self.holders.iter().copied().filter(|who| !gone(who)).collect();
        Held { holders, ..*self }
    }
}

impl Model for Lock {
    type State = Held;
    type Op = (String, Hold);
    type Metadata = ();

    fn partition_operations(history: &[Operation<Lock>]) -> Vec<Vec<Operation<Lock>>> {
        by_name(history)
    }

    fn init() -> Held {
        Held::default()
    }

    fn step(state: &Held, (_, hold): &Self::Op) -> (bool, Held) {
        match hold {
            Hold::Took(who, exclusive, generation) => match state.taken(*who, *exclusive, *generation) {
                Some(next) => (true, next),
                None => (false, state.clone()),
            },
            Hold::Freed(who) => (state.holders.contains(who), state.without(|holder| holder == who)),
            Hold::MayHaveFreed(who) => (true, state.without(|holder| holder == who)),
            Hold::Gone(session) => (true, state.without(|(of, _)| of == session)),
        }
    }
}

fn saw(sighting: &Sighting) -> Option<(String, Deed)> {
    let Key { path, listing } = &sighting.key;
    let stat = sighting.stat.as_ref().filter(|_| !listing && FILES.contains(&path.as_str()))?;
    let shown = stat.as_ref().map(|stat| (stat.content_generation, sighting.digest));
    Some((path.clone(), Deed::Saw(shown)))
}

/// The file that a call changes, how, and under which condition.
fn changes(change: &Change) -> Option<(&String, Changed, Option<u64>)> {
    match *change {
        Change::Write { ref path, contents, if_generation } => {
            Some((path, Changed::Write { contents, if_generation }, if_generation))
        }
        Change::Create { ref path, contents, exclusive } => Some((path, Changed::Create { contents, exclusive }, None)),
        Change::Delete { ref path, if_generation } => Some((path, Changed::Delete { if_generation }, if_generation)),
        Change::Release { .. } | Change::Other => None,
    }
}

/// What an answer says about files.
fn about_files(call: &Call, answer: &Answer) -> Vec<(String, Deed)> {
    let change = match (call, answer) {
        (Call::Change(change), _) => change,
        (_, Answer::Saw(sightings)) => return sightings.iter().filter_map(saw).collect(),
        _ => return Vec::new(),
    };
    let Some((path, change, wanted)) = changes(change) else { return Vec::new() };
    let deed = match (answer, wanted) {
        (Answer::Done { stat }, _) => {
            Deed::Did(change, stat.as_ref().map(|stat: &v1::NodeStat| stat.content_generation))
        }
        (Answer::Saw(_), _) => Deed::Did(change, None),
        (Answer::Unknown, _) => Deed::MayHaveDone(change),
        (Answer::Refused(code), _) if code == "cell.no_node" => Deed::Missing,
        (Answer::Refused(code), _) if code == "cell.node_exists" => Deed::Present,
        (Answer::Refused(code), Some(wanted)) if code == "cell.wrong_generation" => Deed::Differs(wanted),
        _ => return Vec::new(),
    };
    if FILES.contains(&path.as_str()) { vec![(path.clone(), deed)] } else { Vec::new() }
}

/// What an answer says about locks.
fn about_locks(session: u64, call: &Call, answer: &Answer) -> Option<(String, Hold)> {
    let (path, hold) = match (call, answer) {
        (Call::Acquire { path, handle, exclusive }, Answer::Acquired { generation, .. }) => {
            (path, Hold::Took((session, *handle), *exclusive, *generation))
        }
        (Call::Change(Change::Release { path, handle }), Answer::Done { .. }) => {
            (path, Hold::Freed((session, *handle)))
        }
        (Call::Change(Change::Release { path, handle }), Answer::Unknown) => {
            (path, Hold::MayHaveFreed((session, *handle)))
        }
        _ => return None,
    };
    Some((path.clone(), hold))
}

/// The histories of a run: files and locks. Time is the order of what was recorded.
#[derive(Default)]
struct Histories {
    files: Vec<Operation<File>>,
    locks: Vec<Operation<Lock>>,
    /// When each session last asked something that was answered, and which locks it took.
    sessions: BTreeMap<u64, (i64, BTreeSet<String>)>,
}

impl Histories {
    fn of(record: &[Fact]) -> Histories {
        let mut all = Histories::default();
        let mut asked: BTreeMap<OpName, (i64, u64, Call)> = BTreeMap::new();
        for (at, fact) in (0..).step_by(2).zip(record) {
            match fact {
                Fact::Asked { op, session, call } => {
                    asked.insert(*op, (at, *session, call.clone()));
                }
                Fact::Told { op, answer, .. } => {
                    if let Some((begun, session, call)) = asked.remove(op) {
                        let end = if *answer == Answer::Unknown { NEVER } else { at + 1 };
                        all.add(op.client.0, (begun, end), session, &call, answer);
                    }
                }
                Fact::Cached { sighting, .. } => {
                    let seen = saw(sighting).map(|deed| operation(0, (at, at + 1), deed));
                    all.files.extend(seen);
                }
                _ => {}
            }
        }
        for (op, (begun, session, call)) in asked {
            all.add(op.client.0, (begun, NEVER), session, &call, &Answer::Unknown);
        }
        for (session, (last, locks)) in std::mem::take(&mut all.sessions) {
            let gone = |lock| operation(0, (last, NEVER), (lock, Hold::Gone(session)));
            all.locks.extend(locks.into_iter().map(gone));
        }
        all
    }

    fn add(&mut self, client: u32, (begun, end): (i64, i64), session: u64, call: &Call, answer: &Answer) {
        let (last, locks) = self.sessions.entry(session).or_default();
        if !matches!(answer, Answer::Unknown | Answer::Refused(_) | Answer::Broken(_)) {
            *last = begun.max(*last);
        }
        if let Some(hold) = about_locks(session, call, answer) {
            locks.insert(hold.0.clone());
            self.locks.push(operation(client, (begun, end), hold));
        }
        let deeds = about_files(call, answer);
        self.files.extend(deeds.into_iter().map(|deed| operation(client, (begun, end), deed)));
    }

    fn judge(&self) -> (CheckResult, CheckResult) {
        (judge(&self.files), judge(&self.locks))
    }
}

/// The histories of one seed, after two and a half minutes of faults.
fn recorded(seed: u64, directed: bool, mutant: Option<Rule>) -> Histories {
    let options =
        Options { simulated: Duration::from_secs(150), mutant: mutant.map(Mutant::Cell), ..Options::default() };
    let (report, record) = run_recorded(seed, &options, directed);
    assert!(mutant.is_some() || report.failures.is_empty(), "{:?}", report.failures);
    Histories::of(&record)
}

#[test]
fn files_and_locks_are_linearizable_through_caches_crashes_and_unknown_outcomes() {
    let (mut files, mut locks, mut unknown) = (0, 0, 0);
    for (seed, directed) in [(21, false), (22, false), (23, false), (24, false), (1, true), (2, true)] {
        let all = recorded(seed, directed, None);
        assert_eq!(all.judge(), (CheckResult::Ok, CheckResult::Ok), "seed {seed}, directed {directed}");
        files += all.files.len();
        locks += all.locks.len();
        unknown += all.files.iter().filter(|operation| operation.return_time == NEVER).count();
    }
    assert!(files > 4_000 && locks > 200 && unknown > 10, "{files} {locks} {unknown}");
}

/// Without the witness of the log, too, a rule is missed when it is left out: R2, and the wait for acknowledgements.
#[test]
fn a_rule_that_is_left_out_is_found_by_what_clients_saw() {
    for (directed, rule) in [(true, Rule::ReadWithoutLease), (false, Rule::NoInvalidationWait)] {
        let illegal = |seed| recorded(seed, directed, Some(rule)).judge().0 == CheckResult::Illegal;
        assert!((1..=8).any(illegal), "{rule} was not found");
    }
}

fn locking(holds: &[(i64, i64, Hold)]) -> CheckResult {
    let operations =
        holds.iter().map(|(call, end, hold)| operation::<Lock>(1, (*call, *end), ("/lock".to_string(), hold.clone())));
    judge(&operations.collect::<Vec<_>>())
}

#[test]
fn two_holders_of_an_exclusive_lock_are_found_unless_one_may_have_lost_it() {
    let (ann, bob) = ((1, 1), (2, 1));
    let both = [(0, 1, Hold::Took(ann, true, 1)), (2, 3, Hold::Took(bob, true, 2))];
    assert_eq!(locking(&both), CheckResult::Illegal);
    let gone = |from| (from, NEVER, Hold::Gone(1));
    assert_eq!(locking(&[&both[..], &[gone(1)]].concat()), CheckResult::Ok);
    assert_eq!(locking(&[&both[..], &[gone(4)]].concat()), CheckResult::Illegal, "it was served after that");
    assert_eq!(locking(&[&both[..], &[(1, NEVER, Hold::MayHaveFreed(ann))]].concat()), CheckResult::Ok);
    let same = [(0, 1, Hold::Took(ann, true, 1)), (2, 3, Hold::Freed(ann)), (4, 5, Hold::Took(bob, true, 1))];
    assert_eq!(locking(&same), CheckResult::Illegal, "generations grow");
    let shared = [(0, 1, Hold::Took(ann, false, 1)), (2, 3, Hold::Took(bob, false, 1))];
    assert_eq!(locking(&shared), CheckResult::Ok);
}
