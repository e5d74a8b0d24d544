//! What is cached, and for how long.

use super::*;

#[test]
fn entries_are_served_until_the_earlier_end_of_both_leases() {
    let mut bench = Bench::begun(options());
    let start = bench.now;
    bench.renew_link(seconds(1.6), &[]);
    assert_eq!(bench.take_cache(), [CacheChange::Until(start + seconds(1.6))]);
    bench.renew_link(seconds(60.0), &[]);
    assert_eq!(bench.take_cache(), [CacheChange::Until(start + seconds(10.8))]);
    // An older lease that arrives late changes nothing.
    bench.renew_link(seconds(30.0), &[]);
    assert_eq!(bench.take_cache(), []);
}

#[test]
fn a_lease_of_the_link_counts_only_for_sessions_that_its_master_knew() {
    let mut bench = Bench::begun(options());
    let lease = Lease { epoch: EPOCH, asked: Mono(bench.now.0 + 1), until: bench.now + seconds(1.0), owing: vec![] };
    for useless in [
        Lease { epoch: EPOCH - 1, ..lease.clone() },
        Lease { asked: Mono(lease.asked.0 - 1), ..lease.clone() },
        Lease { owing: vec![7, ME], ..lease.clone() },
    ] {
        bench.input(Input::CacheLease(useless));
        assert_eq!(bench.take_cache(), []);
    }
    bench.input(Input::CacheLease(Lease { owing: vec![7], ..lease.clone() }));
    assert_eq!(bench.take_cache(), [CacheChange::Until(lease.until)]);
}

#[test]
fn after_a_lapse_everything_is_flushed_before_anything_is_served_again() {
    let mut bench = Bench::begun(options());
    bench.keep_alive();
    bench.renew_link(seconds(1.0), &[]);
    bench.call(read("/slow"));
    let (slow, _) = bench.take_sent();
    bench.rest.clear();
    // Nobody woke the machine in time.
    bench.now = bench.now + seconds(1.5);
    bench.renew_link(seconds(1.0), &[]);
    let changes = bench.take_cache();
    assert_eq!(changes.last(), Some(&CacheChange::Until(bench.now + seconds(1.0))));
    assert!(changes[..changes.len() - 1].contains(&CacheChange::Flush));
    // The question was asked under the old lease.
    bench.answer(slow, found(9));
    assert_eq!(bench.take_put(), Vec::<String>::new());
}

#[test]
fn an_answer_stamped_below_what_was_processed_is_used_and_not_cached() {
    for (mutant, cached) in [(None, vec![]), (Some(Mutant::StampIgnored), vec!["/a"])] {
        let mut bench = Bench::caching(Options { mutant, ..options() });
        let (kept, _) = bench.keep_alive();
        let op = bench.call(read("/a"));
        let (ticket, _) = bench.take_sent();
        bench.answer(kept, batch(3, &["/a"], vec![]));
        bench.answer(ticket, found(2));
        assert_eq!(bench.take_put(), cached);
        assert_eq!(bench.take_answers(), [(op, Ok(found(2)))]);
    }
}

#[test]
fn nothing_is_acknowledged_before_it_is_done() {
    let invalidated = |mutant| {
        let mut bench = Bench::caching(Options { mutant, ..options() });
        let (kept, _) = bench.keep_alive();
        bench.call(read("/a"));
        let (ticket, _) = bench.take_sent();
        bench.answer(ticket, found(0));
        bench.take_cache();
        bench.answer(kept, batch(1, &["/a"], vec![]));
        assert_eq!(bench.keep_alive().1.ack.unwrap().seq, 1);
        bench.take_cache()
    };
    assert_eq!(invalidated(None), [CacheChange::Drop { path: path("/a"), listing: false }]);
    assert_eq!(invalidated(Some(Mutant::ImplicitAck)), []);
}

#[test]
fn answers_without_a_stamp_or_of_another_epoch_are_not_cached() {
    let mut bench = Bench::caching(options());
    bench.keep_alive();
    for stamp in [None, Some(v1::CacheStamp { epoch: EPOCH + 1, seq: 9 })] {
        bench.call(read("/a"));
        let (ticket, _) = bench.take_sent();
        bench.answer(ticket, Message::NodeRead(v1::NodeRead { stamp, ..Default::default() }));
        assert_eq!(bench.take_put(), Vec::<String>::new());
    }
}

#[test]
fn absences_listings_many_and_opens_are_cached() {
    let mut bench = Bench::caching(options());
    bench.keep_alive();
    let stat = Some(v1::NodeStat { length: 3, ..Default::default() });
    let absent = v1::NodeRead { stamp: stamp(0), ..Default::default() };
    let there = v1::NodeRead { stat: stat.clone(), contents: "abc".into(), stamp: stamp(0), ..Default::default() };
    let cases = [
        (read("/absent"), Message::NodeRead(absent.clone()), vec!["/absent"]),
        (
            Message::Read(v1::ReadNode { target: target("/dir"), children: true, ..Default::default() }),
            Message::NodeRead(there.clone()),
            vec!["/dir/*", "/dir"],
        ),
        (
            Message::Read(v1::ReadNode {
                target: target("/both"),
                children: true,
                contents: true,
                ..Default::default()
            }),
            Message::NodeRead(there.clone()),
            vec!["/both/*", "/both"],
        ),
        (
            Message::ReadMany(v1::ReadMany { paths: vec!["/1".into(), "/2".into()] }),
            Message::ManyRead(v1::ManyRead { nodes: vec![there, absent] }),
            vec!["/1", "/2"],
        ),
        (
            Message::Open(open("/opened")),
            Message::Opened(v1::NodeOpened { handle: 1, stat: stat.clone(), stamp: stamp(0), ..Default::default() }),
            vec!["/opened"],
        ),
        // The contents are known already: the stat alone does not replace them.
        (
            Message::Read(v1::ReadNode { target: target("/1"), ..Default::default() }),
            Message::NodeRead(v1::NodeRead { stat, stamp: stamp(0), ..Default::default() }),
            vec![],
        ),
    ];
    for (question, answer, cached) in cases {
        bench.call(question);
        let (ticket, _) = bench.take_sent();
        bench.answer(ticket, answer);
        assert_eq!(bench.take_put(), cached);
    }
}

#[test]
fn an_own_change_drops_what_it_touches_and_lets_nothing_in_until_it_is_answered() {
    let mut bench = Bench::caching(options());
    bench.keep_alive();
    bench.call(read("/d/a"));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, found(0));
    bench.call(read("/d/a"));
    let (before, _) = bench.take_sent();
    bench.take_cache();
    bench.order.clear();
    bench.call(write("/d/a"));
    assert_eq!(bench.order, ["drop", "send"]);
    assert_eq!(bench.take_cache(), [CacheChange::Drop { path: path("/d/a"), listing: false }]);
    let (change, _) = bench.take_sent();
    bench.call(read("/d/a"));
    let (during, _) = bench.take_sent();
    bench.call(read("/d/other"));
    let (other, _) = bench.take_sent();
    bench.answer(before, found(0));
    assert_eq!(bench.take_put(), Vec::<String>::new());
    // Refused or not: what was asked before the answer may be older than the change.
    bench.fail(change, failure("cell.wrong_generation", Class::Refused));
    bench.answer(during, found(0));
    assert_eq!(bench.take_put(), Vec::<String>::new());
    bench.answer(other, found(0));
    assert_eq!(bench.take_put(), ["/d/other"]);
    bench.call(read("/d/a"));
    let (after, _) = bench.take_sent();
    bench.answer(after, found(0));
    assert_eq!(bench.take_put(), ["/d/a"]);
}

#[test]
fn an_own_change_of_who_may_look_drops_what_is_below() {
    let changes = [
        Message::SetAcl(v1::SetAcl { target: target("/d"), ..Default::default() }),
        Message::Delete(v1::DeleteNode { target: target("/d"), ..Default::default() }),
        Message::Open(v1::OpenNode { create: Some(v1::CreateNode::default()), ..open("/d") }),
    ];
    for change in changes {
        let mut bench = Bench::caching(options());
        bench.keep_alive();
        for name in ["/d-x", "/d/x", "/d/x/y"] {
            bench.call(read(name));
            let (ticket, _) = bench.take_sent();
            bench.answer(ticket, found(0));
        }
        bench.call(read("/d/before"));
        let (before, _) = bench.take_sent();
        bench.take_cache();
        bench.call(change);
        let (change, _) = bench.take_sent();
        let dropped = ["/d/x", "/d/x/y"].map(|gone| CacheChange::Drop { path: path(gone), listing: false });
        assert_eq!(bench.take_cache(), dropped);
        bench.call(read("/d/during"));
        let (during, _) = bench.take_sent();
        bench.fail(change, failure("cell.denied", Class::Refused));
        bench.answer(before, found(0));
        bench.answer(during, found(0));
        assert_eq!(bench.take_put(), Vec::<String>::new());
        bench.call(read("/d/after"));
        let (after, _) = bench.take_sent();
        bench.answer(after, found(0));
        assert_eq!(bench.take_put(), ["/d/after"]);
    }
}

#[test]
fn the_answer_to_an_own_change_is_a_floor() {
    let mut bench = Bench::caching(options());
    bench.keep_alive();
    bench.call(read("/elsewhere"));
    let (slow, _) = bench.take_sent();
    bench.call(write("/d/a"));
    let (change, _) = bench.take_sent();
    bench.answer(change, done(4));
    bench.answer(slow, found(3));
    assert_eq!(bench.take_put(), Vec::<String>::new());
}

#[test]
fn a_change_of_an_access_list_flushes_everything() {
    let mut bench = Bench::caching(options());
    bench.keep_alive();
    bench.call(write("/acl/admins"));
    assert_eq!(bench.take_cache(), [CacheChange::Flush]);
    bench.take_sent();
    bench.call(read("/a"));
    let (ticket, _) = bench.take_sent();
    bench.answer(ticket, found(0));
    assert_eq!(bench.take_put(), Vec::<String>::new());
}

#[test]
fn the_cache_is_bounded_oldest_first() {
    let mut bench = Bench::caching(Options { cache: 2, ..options() });
    bench.keep_alive();
    for name in ["/1", "/2", "/3"] {
        bench.call(read(name));
        let (ticket, _) = bench.take_sent();
        bench.answer(ticket, found(0));
    }
    let dropped = CacheChange::Drop { path: path("/1"), listing: false };
    assert_eq!(bench.take_cache().iter().filter(|change| **change == dropped).count(), 1);
}
