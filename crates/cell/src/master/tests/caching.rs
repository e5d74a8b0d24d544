//! Copies, invalidations, acknowledgements (R4, R5, R15).

use super::harness::*;
use crate::mutant::Mutant;
use tidings_base::OpId;
use tidings_wire::v1;
use tidings_wire::v1::LockMode;
use tidings_wire::v1::cell_message::Message;

/// A writer, and a reader that holds a copy of `/f` under its cache lease with a KeepAlive held.
fn writer_and_reader(mutant: Option<Mutant>) -> (Cell, Client, Client) {
    let mut cell = Cell::with(mutant);
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    assert!(cell.read(&b, "/f").stamp.is_some());
    cell.renew(&b).unwrap();
    assert_eq!(cell.keep_alive(&mut b), None);
    (cell, a, b)
}

fn start_write(cell: &mut Cell, a: &mut Client, path: &str, contents: &str) -> OpId {
    let request = a.numbered(write(at_path(path), contents));
    cell.send(request)
}

fn paths(kept: &v1::KeptAlive) -> Vec<(&str, bool)> {
    let batch = kept.batch.as_ref().expect("a batch");
    batch.invalidations.iter().map(|gone| (gone.path.as_str(), gone.listing)).collect()
}

#[test]
fn a_write_waits_for_every_copy_and_readers_see_the_old_value_uncached() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    let op = start_write(&mut cell, &mut a, "/f", "new");
    assert_eq!(cell.take(op), None);
    let kept = cell.kept(&mut b).unwrap();
    assert_eq!(paths(&kept), [("/f", false)]);
    assert_eq!(kept.lease_us, 0);
    let c = cell.client("c");
    let meanwhile = cell.read(&c, "/f");
    assert_eq!((meanwhile.contents.as_ref(), meanwhile.stamp), (&b""[..], None));
    assert_eq!(cell.take(op), None);
    assert_eq!(cell.keep_alive(&mut b), None);
    assert!(matches!(cell.take(op), Some(Ok(Message::Done(_)))));
    let after = cell.read(&b, "/f");
    assert_eq!((after.contents.as_ref(), after.stamp.unwrap().seq), (&b"new"[..], b.processed));
}

#[test]
fn without_the_wait_a_write_returns_while_copies_are_in_use() {
    let (mut cell, mut a, _) = writer_and_reader(Some(Mutant::NoInvalidationWait));
    let op = start_write(&mut cell, &mut a, "/f", "new");
    assert!(cell.take(op).is_some());
}

#[test]
fn a_blocked_key_would_be_cached_during_the_write() {
    let cached = |mutant| {
        let (mut cell, mut a, _) = writer_and_reader(mutant);
        start_write(&mut cell, &mut a, "/f", "new");
        let c = cell.client("c");
        cell.read(&c, "/f").stamp.is_some()
    };
    assert!(!cached(None) && cached(Some(Mutant::CachingDuringWrite)));
}

#[test]
fn a_keep_alive_as_such_acknowledges_nothing() {
    let acknowledged = |mutant, epoch: u64| {
        let (mut cell, mut a, mut b) = writer_and_reader(mutant);
        let op = start_write(&mut cell, &mut a, "/f", "new");
        let seq = cell.kept(&mut b).unwrap().batch.unwrap().seq;
        let ack = Some(v1::CellAck { epoch, seq: if epoch == 0 { 0 } else { seq } });
        let again = cell.send(b.inside(0, Message::KeepAlive(v1::KeepAlive { link: b.link, ack, wait_ms: 0 })));
        if cell.take(op).is_some() {
            return true;
        }
        // The same batch comes again, and no lease with it.
        let Some(Ok(Message::KeptAlive(kept))) = cell.take(again) else { panic!() };
        assert_eq!((kept.batch.unwrap().seq, kept.lease_us), (seq, 0));
        false
    };
    assert!(!acknowledged(None, 0), "an old number");
    assert!(!acknowledged(None, 99), "a number of another epoch");
    assert!(acknowledged(Some(Mutant::ImplicitAck), 0));
}

#[test]
fn whoever_never_acknowledges_holds_a_write_up_until_its_cache_lease_ends_and_no_longer() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    cell.pass(millis(500));
    let op = start_write(&mut cell, &mut a, "/f", "new");
    assert!(cell.kept(&mut b).is_some());
    cell.pass(millis(500));
    // The link is renewed; this session is left out of it.
    assert_eq!(cell.renew(&b).unwrap().owing, [b.session]);
    cell.pass(millis(799));
    assert_eq!(cell.take(op), None);
    cell.pass(millis(1));
    assert!(matches!(cell.take(op), Some(Ok(_))));
    assert_eq!(cell.waits(), [millis(1_300)]);
    // Nobody waits for it a second time; it may cache nothing of this node before it has acknowledged.
    let second = start_write(&mut cell, &mut a, "/f", "newer");
    assert!(cell.take(second).is_some());
    assert_eq!(cell.read(&b, "/f").stamp, None);
    assert_eq!(cell.keep_alive(&mut b), None);
    assert!(cell.read(&b, "/f").stamp.is_some());
    assert!(cell.renew(&b).unwrap().owing.is_empty());
}

#[test]
fn a_second_write_waits_for_the_same_acknowledgement() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    let mut c = cell.client("c");
    let first = start_write(&mut cell, &mut a, "/f", "one");
    assert!(cell.kept(&mut b).is_some());
    let second = start_write(&mut cell, &mut c, "/f", "two");
    assert_eq!((cell.take(first), cell.take(second)), (None, None));
    assert_eq!(cell.keep_alive(&mut b), None);
    assert!(cell.take(first).is_some() && cell.take(second).is_some());
    assert_eq!(cell.read(&a, "/f").contents, "two");
}

#[test]
fn a_writers_own_copy_is_acknowledged_by_its_request_and_older_replies_are_stamped_below() {
    let (mut cell, _, mut b) = writer_and_reader(None);
    let before = cell.read(&b, "/f").stamp.unwrap();
    let Ok(Message::Done(done)) = cell.call(&mut b, write(at_path("/f"), "mine")) else { panic!() };
    assert!(done.stamp.unwrap().seq > before.seq);
    assert_eq!(cell.kept(&mut b), None);
}

#[test]
fn locks_children_and_absence_are_modifications_too() {
    let cached = |path: &str, listing: bool, mutant, change: &dyn Fn(&mut Cell, &mut Client, u64) -> OpId| {
        let mut cell = Cell::with(mutant);
        let (mut a, mut b) = (cell.client("a"), cell.client("b"));
        cell.open(&mut a, all("/d", directory()));
        let handle = cell.file(&mut a, "/d/f");
        let message = Message::Read(v1::ReadNode { target: at_path(path), children: listing, ..Default::default() });
        assert!(matches!(cell.ask(b.inside(0, message)), Ok(Message::NodeRead(read)) if read.stamp.is_some()));
        cell.renew(&b).unwrap();
        cell.hold(&mut b);
        let op = change(&mut cell, &mut a, handle);
        let kept = cell.kept(&mut b);
        assert_eq!(kept.is_some(), cell.take(op).is_none());
        kept.is_some_and(|kept| paths(&kept).contains(&(path, listing)))
    };
    let send = |cell: &mut Cell, a: &mut Client, message| {
        let request = a.numbered(message);
        cell.send(request)
    };
    let lock: &dyn Fn(&mut Cell, &mut Client, u64) -> OpId =
        &|cell, a, handle| send(cell, a, acquire(handle, LockMode::Exclusive));
    assert!(cached("/d/f", false, None, lock) && cached("/d", true, None, lock));
    assert!(!cached("/d/f", false, Some(Mutant::LocksInvalidateNothing), lock));
    assert!(!cached("/", true, None, lock));
    let create = all("/d/g", Some(v1::CreateNode::default()));
    let create: &dyn Fn(&mut Cell, &mut Client, u64) -> OpId =
        &move |cell, a, _| send(cell, a, Message::Open(create.clone()));
    assert!(cached("/d/g", false, None, create), "the absence of a name");
    assert!(cached("/d", true, None, create) && cached("/d", false, None, &delete_f));
    fn delete_f(cell: &mut Cell, a: &mut Client, handle: u64) -> OpId {
        let request = a.numbered(delete(at_handle(handle)));
        cell.send(request)
    }
}

#[test]
fn an_access_list_changes_what_everybody_of_the_application_may_have() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    let create = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    let request = a.numbered(Message::Open(all("/acl/staff", Some(create))));
    let op = cell.send(request);
    let batch = cell.kept(&mut b).unwrap().batch.unwrap();
    assert!(batch.flush);
    assert_eq!((cell.take(op), cell.read(&b, "/f").stamp), (None, None));
    cell.keep_alive(&mut b);
    assert!(cell.take(op).is_some() && cell.read(&b, "/f").stamp.is_some());
}

/// What a session that cached the absence of `/d/x` hears of a change that `a` makes, and whether the change waits for it.
fn absence_after(mutant: Option<Mutant>, there: bool, change: impl FnOnce(&mut Client) -> v1::CellMessage) -> bool {
    let mut cell = Cell::with(mutant);
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let list = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    cell.open(&mut a, all("/acl/staff", Some(list)));
    if there {
        cell.open(&mut a, all("/d", directory()));
    }
    for path in ["/d/x", "/d-x", "/e"] {
        let read = cell.read(&b, path);
        assert!(read.stat.is_none() && read.stamp.is_some());
    }
    cell.renew(&b).unwrap();
    cell.hold(&mut b);
    let request = change(&mut a);
    let op = cell.send(request);
    let Some(kept) = cell.kept(&mut b) else { return false };
    assert_eq!(cell.take(op), None);
    assert!(paths(&kept).contains(&("/d/x", false)) && !paths(&kept).contains(&("/d-x", false)), "{kept:?}");
    // Nothing there is cached before the change is made.
    let c = cell.client("c");
    assert!(cell.read(&c, "/d/x").stamp.is_none() && cell.read(&c, "/d/y").stamp.is_none());
    assert!(cell.read(&c, "/e").stamp.is_some());
    cell.keep_alive(&mut b);
    assert!(matches!(cell.take(op), Some(Ok(_))));
    true
}

fn staff_only() -> v1::NodeAcl {
    v1::NodeAcl { read: "staff".into(), ..Default::default() }
}

#[test]
fn who_may_know_of_an_absence_is_decided_above_it() {
    let set_acl = |a: &mut Client| {
        let set = v1::SetAcl { target: at_path("/d"), acl: Some(staff_only()), ..Default::default() };
        a.numbered(Message::SetAcl(set))
    };
    let create = |a: &mut Client| {
        let create = v1::CreateNode { directory: true, acl: Some(staff_only()), ..Default::default() };
        a.numbered(Message::Open(all("/d", Some(create))))
    };
    let remove = |a: &mut Client| a.numbered(delete(at_path("/d")));
    assert!(
        absence_after(None, true, set_acl) && absence_after(None, false, create) && absence_after(None, true, remove)
    );
    assert!(!absence_after(Some(Mutant::AbsencesStay), true, set_acl));
}

#[test]
fn interest_is_bounded_and_replies_beyond_it_are_not_cacheable() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    for name in 0..4_096 {
        assert!(cell.read(&a, &format!("/n{name}")).stamp.is_some());
    }
    assert!(cell.read(&a, "/n17").stamp.is_some(), "what it may have, it may have again");
    assert_eq!(cell.read(&a, "/beyond").stamp, None);
    // It is told to flush, for nobody's change, and caches anew.
    assert!(cell.keep_alive(&mut a).unwrap().batch.unwrap().flush);
    assert_eq!(cell.read(&a, "/beyond").stamp, None, "not acknowledged yet");
    assert_eq!(cell.keep_alive(&mut a), None);
    assert!(cell.read(&a, "/beyond").stamp.is_some());
    let Ok(Message::SessionList(list)) =
        cell.ask(Client::operator().outside(Message::ListSessions(Default::default())))
    else {
        panic!()
    };
    assert_eq!(list.sessions[0].cached, 1);
    let (mut cell, mut a, mut b) = writer_and_reader(Some(Mutant::InterestForgotten));
    for path in ["/g", "/h", "/i"] {
        assert!(cell.read(&b, path).stamp.is_some());
    }
    cell.file(&mut a, "/i");
    assert_eq!(cell.kept(&mut b), None, "forgotten, and stale");
}

#[test]
fn too_many_reads_of_a_blocked_key_wait_for_the_write() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    let op = start_write(&mut cell, &mut a, "/f", "new");
    let c = cell.client("c");
    for _ in 0..256 {
        assert_eq!(cell.read(&c, "/f").contents, "");
    }
    let late = cell.send(c.inside(0, read("/f")));
    let paths = vec!["/g".to_owned(), "/f".to_owned()];
    let many = cell.send(c.inside(0, Message::ReadMany(v1::ReadMany { paths })));
    assert_eq!((cell.take(late), cell.take(many)), (None, None));
    assert!(cell.read(&c, "/g").stat.is_none(), "others go on");
    cell.kept(&mut b);
    cell.keep_alive(&mut b);
    assert!(cell.take(op).is_some());
    let Some(Ok(Message::NodeRead(read))) = cell.take(late) else { panic!() };
    assert_eq!((read.contents.as_ref(), read.stamp.is_some()), (&b"new"[..], true));
    let Some(Ok(Message::ManyRead(many))) = cell.take(many) else { panic!() };
    assert_eq!(many.nodes[1].contents, "new");
}

#[test]
fn too_many_reads_wait_for_a_change_that_empties_every_cache() {
    let (mut cell, mut a, mut b) = writer_and_reader(None);
    let create = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    let request = a.numbered(Message::Open(all("/acl/staff", Some(create))));
    let op = cell.send(request);
    let c = cell.client("c");
    for name in 0..4_096 {
        assert_eq!(cell.read(&c, &format!("/n{name}")).stamp, None);
    }
    let late = cell.send(c.inside(0, read("/f")));
    assert_eq!((cell.take(op), cell.take(late)), (None, None));
    cell.kept(&mut b);
    cell.keep_alive(&mut b);
    assert!(cell.take(op).is_some());
    assert!(matches!(cell.take(late), Some(Ok(Message::NodeRead(read))) if read.stamp.is_some()));
    // The next one begins to count anew.
    let request = a.numbered(write(at_path("/acl/staff"), "app:app/b"));
    cell.send(request);
    assert_eq!(cell.read(&c, "/n1").stamp, None);
}

#[test]
fn many_invalidations_become_a_flush() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.open(&mut a, all("/d", directory()));
    for name in 0..600 {
        let path = format!("/d/{name}");
        cell.file(&mut a, &path);
        cell.read(&b, &path);
    }
    a.answered_below = a.number;
    cell.renew(&b).unwrap();
    let ops: Vec<OpId> = (0..600).map(|name| start_write(&mut cell, &mut a, &format!("/d/{name}"), "x")).collect();
    let kept = cell.keep_alive(&mut b).unwrap();
    assert!(kept.batch.unwrap().flush);
    cell.keep_alive(&mut b);
    assert!(ops.into_iter().all(|op| cell.take(op).is_some()));
}

#[test]
fn a_session_that_was_ended_is_left_out_of_its_links_renewals() {
    let (mut cell, mut a, b) = writer_and_reader(None);
    let end = Client::operator().outside(Message::EndSession(v1::EndSession { session: b.session }));
    let op = cell.send(end);
    assert_eq!(cell.take(op), None, "its copies are in use until its cache lease ends");
    let written = start_write(&mut cell, &mut a, "/f", "new");
    assert_eq!(cell.take(written), None);
    cell.pass(CACHE_LEASE);
    assert!(cell.take(op).is_none() && cell.take(written).is_some());
    assert_eq!(cell.renew(&b).unwrap().owing, [b.session]);
    cell.pass(LEASE);
    assert!(cell.take(op).is_some());
    assert!(cell.renew(&b).unwrap().owing.is_empty());
}

#[test]
fn a_repeated_open_with_an_old_stat_is_not_cached() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let open = b.numbered(Message::Open(all("/e", ephemeral())));
    let stamped = |cell: &mut Cell| match cell.ask(open.clone()) {
        Ok(Message::Opened(opened)) => opened.stamp.is_some(),
        other => panic!("{other:?}"),
    };
    assert!(stamped(&mut cell) && stamped(&mut cell));
    let op = start_write(&mut cell, &mut a, "/e", "new");
    cell.hold(&mut b);
    assert!(matches!(cell.take(op), Some(Ok(Message::Done(_)))));
    assert!(!stamped(&mut cell), "its stat is older than the write");
}
