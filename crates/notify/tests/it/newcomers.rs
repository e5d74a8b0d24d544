//! New ids: as many as a principal may have, and counted once.

use crate::desk::{Desk, ann};
use bytes::Bytes;
use tidings_notify::registrar::{Input, Options, Registrar};
use tidings_notify::rows::{StoreId, StoreReply, StoreRequest};
use tidings_wire::v1;
use tidings_wire::v1::NotifyRefused as Refused;

fn desk(max_ids: u32) -> Desk<Registrar> {
    Desk::registrar(Options { max_ids, ..Default::default() })
}

fn comes(desk: &mut Desk<Registrar>, nonce: u64) -> bool {
    desk.hello(nonce, nonce, &Bytes::new()).is_some()
}

/// The counting that waits for the store, and where it begins.
fn counts(desk: &mut Desk<Registrar>) -> Option<(StoreId, Bytes)> {
    let at = desk.held.iter().position(|(_, request)| matches!(request, StoreRequest::Scan(_)))?;
    match desk.held.remove(at) {
        Some((id, StoreRequest::Scan(scan))) => Some((id, scan.start)),
        _ => None,
    }
}

#[test]
fn ids_of_a_principal_are_capped() {
    let mut desk = desk(2);
    assert!(comes(&mut desk, 1) && comes(&mut desk, 2));
    let hello = v1::NotifyHello { nonce: 3, ..Default::default() };
    desk.from(ann(), 3, v1::NotifyUp { hello: Some(hello), ..Default::default() });
    assert_eq!(desk.refusals(), [Refused::TooManyIds]);
}

#[test]
fn ids_beyond_a_page_of_the_store_count_too() {
    let mut desk = desk(3);
    desk.hold = true;
    assert!(!comes(&mut desk, 1), "nobody is welcome before the ids are counted");
    for (page, rows) in [2, 1].into_iter().enumerate() {
        let (id, start) = counts(&mut desk).expect("the ids are counted to their end");
        assert_eq!(start == "on", page == 1);
        let next = (page == 0).then(|| Bytes::from_static(b"on"));
        let created = v1::Cell { column: Bytes::from_static(b"created"), timestamp: 1, value: Some(Bytes::new()) };
        let row = v1::Row { cells: vec![created], ..Default::default() };
        let rows = v1::Rows { rows: vec![row; rows], next };
        desk.give(Input::Stored { id, result: Ok(StoreReply::Rows(rows)) });
    }
    assert_eq!(desk.refusals(), [Refused::TooManyIds]);
}

#[test]
fn ids_are_counted_once_and_again_when_they_seem_to_be_too_many() {
    let mut desk = desk(3);
    assert!(comes(&mut desk, 1));
    // Handshakes that an earlier owner has granted do not come any more.
    desk.pass(400_000);
    desk.hold = true;
    comes(&mut desk, 2);
    assert_eq!(counts(&mut desk), None, "they were counted before");
    comes(&mut desk, 3);
    assert_eq!(counts(&mut desk), None);
    comes(&mut desk, 4);
    assert!(counts(&mut desk).is_some(), "some of them may be gone");
}
