//! The claim about refused writes.

use tidings_sim::scenarios::store::fact::{Action, CellName, ClientFact, OpName, Outcome};

use super::log_claims::judge;
use tidings_sim::invariants::refused_writes_leave_no_trace::*;
use tidings_sim::kernel::HostId;

#[test]
fn a_refused_write_that_is_read_is_noticed_in_either_order() {
    let cell = CellName { group: 0, row: 0 };
    let op = |number| OpName { client: HostId(0), number };
    let action = Action::Write { cells: vec![cell], timestamp: 9, tombstone: false, fence: None, append: None };
    let asked = (0, ClientFact::Asked { op: op(1), action });
    let refused = (0, ClientFact::Told { op: op(1), outcome: Outcome::Refused });
    let read = (0, ClientFact::Told { op: op(2), outcome: Outcome::Cells(vec![(cell, Some(9))]) });
    let judged = |facts: &[_]| judge(&mut RefusedWritesLeaveNoTrace::default(), facts);
    assert_eq!(judged(&[asked.clone(), refused.clone()]), Ok(()));
    assert!(judged(&[asked.clone(), refused.clone(), read.clone()]).is_err());
    assert!(judged(&[asked, read, refused]).is_err());
}
