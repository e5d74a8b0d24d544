//! The state machine of the conformance suite.

use bytes::Bytes;

use tidings_base::LogIndex;
use tidings_base::agreed::{AgreedState, Entry};
use tidings_sim::conformance::{ListState, ListView};

#[test]
fn a_picture_makes_the_same_list() {
    let (from, to) = (ListView::new(), ListView::new());
    let mut state = ListState::new(from.clone());
    let entries = [
        Entry { index: LogIndex(1), command: b"" },
        Entry { index: LogIndex(2), command: b"two" },
        Entry { index: LogIndex(3), command: b"three" },
    ];
    state.apply(&entries, Bytes::from_static(b"note")).unwrap();
    let mut copy = ListState::new(to.clone());
    copy.restore(state.position(), state.snapshot().unwrap().as_mut()).unwrap();
    assert_eq!((from.read(), state.position()), (to.read(), copy.position()));
    assert!(copy.apply(&[Entry { index: LogIndex(3), command: b"again" }], Bytes::new()).is_err());
}
