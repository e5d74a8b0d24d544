//! F10: clients that are long gone.

use super::*;
use tidings_notify::rows::StoreRequest;

fn offline_for_days(desk: &mut Desk<Registrar>) -> v1::NotifyGrant {
    let grant = registered(desk, 5);
    desk.give(Input::Closed(channel(1)));
    desk.take();
    desk.pass(8 * 24 * 3_600_000);
    grant
}

fn confirm(desk: &mut Desk<Registrar>, held: bool) {
    assert!(desk.confirm(held), "collection asks whether the lease held");
}

#[test]
fn f10_a_client_that_is_long_gone_is_collected_in_order_and_not_revived() {
    for (mutant, refused) in [(None, vec![Refused::InvalidId]), (Some(Mutant::CreatedIgnored), vec![])] {
        let mut desk = desk(mutant);
        let grant = offline_for_days(&mut desk);
        let key = desk.key_of(&grant);
        confirm(&mut desk, true);
        let calls = desk.match_all(0);
        assert!(calls.len() == 1 && !calls[0].registered);
        assert_eq!(desk.machine.clients(), 0);
        let left = desk.store.perform(&StoreRequest::Get(v1::Get {
            key: Some(v1::RowKey {
                group: Bytes::from_static(tidings_notify::rows::REGISTRAR),
                row: [&1u64.to_be_bytes()[..], key.as_bytes()].concat().into(),
            }),
            columns: Vec::new(),
        }));
        assert_eq!(left, Ok(tidings_notify::rows::StoreReply::Row(None)));
        desk.register(&grant, 4, 2, b"y");
        assert_eq!(desk.refusals(), refused);
        if mutant.is_none() {
            assert_ne!(desk.hello(5, 55, &grant.token).unwrap().salt, grant.salt);
        }
    }
}

#[test]
fn f10_a_deposed_collector_deletes_nothing_more() {
    let mut desk = desk(None);
    offline_for_days(&mut desk);
    confirm(&mut desk, false);
    assert_eq!(desk.match_all(0).len(), 0);
    // What it left is a row without `created`: the owner that finds it collects it.
    desk.pass(2 * 3_600_000);
    let calls = desk.match_all(0);
    assert!(!calls.is_empty() && calls.iter().all(|call| !call.registered));
    assert_eq!(desk.machine.clients(), 0);
}

#[test]
fn f10_messages_of_a_client_wait_for_its_collection() {
    let mut desk = desk(None);
    let grant = offline_for_days(&mut desk);
    desk.register(&grant, 4, 2, b"y");
    assert_eq!(desk.downs(), vec![]);
    confirm(&mut desk, true);
    desk.match_all(0);
    assert_eq!(desk.refusals(), [Refused::InvalidId]);
}
