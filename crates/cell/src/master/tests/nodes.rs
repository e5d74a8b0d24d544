//! Handles, reads, changes, events.

use super::harness::*;
use bytes::Bytes;
use tidings_base::agreed::Refusal;
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;
use tidings_wire::v1::cell_message::Message;

#[test]
fn a_file_is_created_written_read_and_deleted() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let handle = cell.file(&mut a, "/f");
    let Ok(Message::Done(done)) = cell.call(&mut a, write(at_handle(handle), "one")) else { panic!() };
    assert_eq!(done.stat.unwrap().content_generation, 1 + 1);
    let found = cell.read(&a, "/f");
    assert_eq!(found.contents, "one");
    assert!(found.stamp.is_some());
    assert!(matches!(cell.call(&mut a, delete(at_handle(handle))), Ok(Message::Done(_))));
    assert_eq!(cell.read(&a, "/f").stat, None);
    assert_eq!(cell.code(&mut a, write(at_handle(handle), "two")), "cell.node_gone");
    cell.file(&mut a, "/f");
    assert_eq!(cell.code(&mut a, write(at_handle(handle), "two")), "cell.node_gone");
}
