//! A file of the cell as a checker of histories sees it: a register with a generation, which comes and goes. What has an
//! unknown outcome may have happened at any later time, or never.

use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the search may take for one history.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The end of what has no known end.
pub const NEVER: i64 = i64::MAX;

/// The model: each file by itself.
#[derive(Clone, Debug)]
pub struct File;

/// How a file is changed. No two writes have the same contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// New contents, under a condition or not.
    Write { contents: u64, if_generation: Option<u64> },
    /// It comes to be, or is opened where it may be there already.
    Create { contents: u64, exclusive: bool },
    /// It goes, under a condition or not.
    Delete { if_generation: Option<u64> },
}

/// What a client did to one file, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    /// It saw generation and contents (`None` = not shown), or that there is no file.
    Saw(Option<(u64, Option<u64>)>),
    /// It changed it so, and was told the generation afterwards or not.
    Did(Change, Option<u64>),
    /// It may have changed it so.
    MayHaveDone(Change),
    /// It was told that there is none.
    Missing,
    /// It was told that there is one.
    Present,
    /// It was told that its generation is another one.
    Differs(u64),
}

/// Generation and contents, while there is a file.
pub type Register = Option<(u64, u64)>;

/// The file after a change; `None` = the change is refused.
fn changed(state: Register, change: &Change) -> Option<Register> {
    let expected = |wanted: &Option<u64>, generation: u64| wanted.is_none_or(|wanted| wanted == generation);
    match (change, state) {
        (Change::Write { contents, if_generation }, Some((generation, _))) if expected(if_generation, generation) => {
            Some(Some((generation + 1, *contents)))
        }
        (Change::Delete { if_generation }, Some((generation, _))) if expected(if_generation, generation) => Some(None),
        (Change::Create { contents, .. }, None) => Some(Some((1, *contents))),
        (Change::Create { exclusive: false, .. }, present) => Some(present),
        _ => None,
    }
}

/// A history in parts that have nothing to do with each other.
pub fn by_name<M: Model<Op = (String, D)>, D: Clone>(history: &[Operation<M>]) -> Vec<Vec<Operation<M>>> {
    let mut parts: BTreeMap<&str, Vec<Operation<M>>> = BTreeMap::new();
    for operation in history {
        parts.entry(&operation.op.0).or_default().push(operation.clone());
    }
    parts.into_values().collect()
}

/// One operation of a history, from its call to its return.
pub fn operation<M: Model>(client: u32, (call_time, return_time): (i64, i64), op: M::Op) -> Operation<M> {
    Operation { client_id: Some(client), call_time, return_time, op, metadata: None }
}

/// Whether there is an order of it all that one copy could have gone through.
pub fn judge<M: Model>(history: &[Operation<M>]) -> CheckResult {
    check_operations_timeout(history, PATIENCE)
}

impl Model for File {
    type State = Register;
    type Op = (String, Deed);
    type Metadata = ();

    fn partition_operations(history: &[Operation<File>]) -> Vec<Vec<Operation<File>>> {
        by_name(history)
    }

    fn init() -> Register {
        None
    }

    fn step(state: &Register, (_, deed): &Self::Op) -> (bool, Register) {
        match deed {
            Deed::Saw(None) | Deed::Missing => (state.is_none(), *state),
            Deed::Saw(Some((generation, contents))) => {
                let same = |(known, value): (u64, u64)| known == *generation && contents.is_none_or(|it| it == value);
                (state.is_some_and(same), *state)
            }
            Deed::Did(change, told) => match changed(*state, change) {
                Some(after) => {
                    let as_told = told.is_none_or(|told| after.is_some_and(|(generation, _)| generation == told));
                    (as_told, after)
                }
                None => (false, *state),
            },
            Deed::MayHaveDone(change) => (true, changed(*state, change).unwrap_or(*state)),
            Deed::Present => (state.is_some(), *state),
            Deed::Differs(wanted) => (state.is_some_and(|(generation, _)| generation != *wanted), *state),
        }
    }
}
