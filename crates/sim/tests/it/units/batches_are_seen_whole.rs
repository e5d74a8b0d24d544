//! The claim about batches.

use tidings_sim::scenarios::store::fact::{Action, CellName, ClientFact, Outcome};

use super::log_claims::judge;
use tidings_sim::invariants::batches_are_seen_whole::*;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::store::fact::OpName;

#[test]
fn a_half_of_a_batch_is_noticed() {
    let cells = [0, 1].map(|row| CellName { group: 0, row });
    let op = |number| OpName { client: HostId(0), number };
    let cells_of = cells.to_vec();
    let action = Action::Write { cells: cells_of, timestamp: 9, tombstone: false, fence: None, append: None };
    let asked = (0, ClientFact::Asked { op: op(1), action });
    let scan = |first, second| {
        let outcome = Outcome::Cells(vec![(cells[0], first), (cells[1], second)]);
        (0, ClientFact::Told { op: op(2), outcome })
    };
    let judged = |seen| judge(&mut BatchesAreSeenWhole::default(), &[asked.clone(), seen]);
    assert_eq!(judged(scan(Some(9), Some(9))), Ok(()));
    assert_eq!(judged(scan(Some(9), Some(12))), Ok(()));
    assert_eq!(judged(scan(Some(3), None)), Ok(()));
    assert!(judged(scan(Some(9), Some(3))).is_err());
    assert!(judged(scan(Some(9), None)).is_err());
}
