//! How a rule is held: what holds with it must not hold without it.

use tidings_tables::calls::Access;
use tidings_tables::directory::Properties;
use tidings_tables::mutant::Mutant;

pub type Held = Result<(), String>;

pub fn held(holds: bool, what: impl FnOnce() -> String) -> Held {
    if holds { Ok(()) } else { Err(what()) }
}

/// A check that holds, and does not hold without any of these.
pub fn breaks(check: fn(Option<Mutant>) -> Held, mutants: &[Mutant]) {
    check(None).unwrap_or_else(|broken| panic!("{broken}"));
    for mutant in mutants {
        assert!(check(Some(*mutant)).is_err(), "nobody notices {mutant:?}");
    }
}

pub fn public() -> Properties {
    Properties { access: Access::Public, ..Properties::default() }
}
