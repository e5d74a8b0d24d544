//! The claim about fences.

use tidings_sim::scenarios::store::fact::{Action, ClientFact, OpName, Outcome};

use super::log_claims::judge;
use tidings_sim::invariants::fences_never_go_back::*;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::store::fact::CellName;

fn write(number: u64, fence: u64, outcome: Outcome) -> [(u32, ClientFact); 2] {
    let op = OpName { client: HostId(0), number };
    let cells = vec![CellName { group: 3, row: 0 }];
    let action = Action::Write { cells, timestamp: number, tombstone: false, fence: Some(fence), append: None };
    [(0, ClientFact::Asked { op, action }), (0, ClientFact::Told { op, outcome })]
}

fn judged(steps: &[[(u32, ClientFact); 2]]) -> Result<(), String> {
    judge(&mut FencesNeverGoBack::default(), &steps.concat())
}

#[test]
fn a_lower_number_is_taken_only_before_a_higher_one() {
    let fenced = |number| Outcome::Fenced { number };
    assert_eq!(judged(&[write(1, 2, Outcome::Done), write(2, 3, Outcome::Done), write(3, 2, fenced(3))]), Ok(()));
    assert!(judged(&[write(1, 3, Outcome::Done), write(2, 2, Outcome::Done)]).is_err());
    assert!(judged(&[write(1, 3, Outcome::Done), write(2, 4, fenced(2))]).is_err());
    assert!(judged(&[write(1, 1, fenced(5)), write(2, 4, Outcome::Done)]).is_err());
}
