//! Rules one by one, where the larger stories do not reach them.

use super::*;

pub(super) fn poll(owner: &str, address: &str) -> v1::OwnerPoll {
    v1::OwnerPoll {
        namespace: "n".into(),
        owner: owner.into(),
        address: address.into(),
        incarnation: 1,
        nonce: 7,
        seq: 1,
        wait_ms: 1_000,
        ..Default::default()
    }
}

fn ask(world: &mut World, poll: v1::OwnerPoll) -> Option<Result<Message, Error>> {
    let op = world.op(Asker::Operator);
    world.feed(0, Input::Owner { op, poll: Box::new(poll) });
    let at = world.answers.iter().position(|(answered, _)| *answered == op)?;
    Some(world.answers.remove(at).1)
}

#[test]
fn what_an_owner_says_of_itself_is_checked_by_name() {
    let mut world = World::new();
    for (owner, address, code) in [
        ("", "a:1", "placement.bad_owner"),
        ("a", "", "placement.bad_address"),
        ("a", ":80", "placement.bad_address"),
        ("a", "host:0", "placement.bad_address"),
        ("a", "host:99999", "placement.bad_address"),
        ("a", "two words:1", "placement.bad_address"),
        ("a", "http://", "placement.bad_address"),
        ("a", "host", "placement.bad_address"),
        ("a", "host:", "placement.bad_address"),
        ("a", "host:+80", "placement.bad_address"),
        ("a", "host:80/path", "placement.bad_address"),
        ("a", "::1", "placement.bad_address"),
        ("a", "::1:80", "placement.bad_address"),
        ("a", "[::1]", "placement.bad_address"),
        ("a", "[::1]80", "placement.bad_address"),
        ("a", "[]:80", "placement.bad_address"),
        ("a", "://host:80", "placement.bad_address"),
        ("a", "http://:80", "placement.bad_address"),
        ("a", "http://host:0/path", "placement.bad_address"),
    ] {
        let refused = ask(&mut world, poll(owner, address)).unwrap().unwrap_err();
        assert_eq!(refused.code, code, "{owner} {address}");
    }
    for address in ["host:1", "[::1]:80", "http://host/path", "https://host:443", "https://[::1]/", "10.0.0.7:65535"] {
        assert!(ask(&mut world, v1::OwnerPoll { owner: address.into(), ..poll("", address) }).unwrap().is_ok());
    }
    let nameless = v1::OwnerPoll { incarnation: 0, ..poll("a", "a:1") };
    assert_eq!(ask(&mut world, nameless).unwrap().unwrap_err().code, "placement.bad_owner");
    let elsewhere = v1::OwnerPoll { namespace: "m".into(), ..poll("a", "a:1") };
    assert_eq!(ask(&mut world, elsewhere).unwrap().unwrap_err().code, "placement.no_namespace");
}

#[test]
fn keys_are_bounded_by_name() {
    assert!(crate::key_hash(&[7; crate::MAX_KEY]).is_ok());
    assert_eq!(crate::key_hash(&[7; crate::MAX_KEY + 1]).unwrap_err().code, "placement.key_too_long");
}

#[test]
fn a_namespaces_configuration_is_checked_by_name() {
    let mut world = World::new();
    let create = |config| Message::NamespaceCreate(v1::NamespaceCreate { namespace: "m".into(), config: Some(config) });
    let good = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
    for (config, code) in [
        (v1::NamespaceConfig { lease_ms: 5_000, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { policy: "magic".into(), ..good.clone() }, "placement.bad_policy"),
        (v1::NamespaceConfig { virtual_nodes: 5_000, ..good.clone() }, "placement.bad_virtual_nodes"),
        (v1::NamespaceConfig { rebalance_ms: 1, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { drain_ms: 999, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { drain_ms: u32::MAX, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { rebalance_ms: u32::MAX, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { lease_ms: u32::MAX, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { renew_ms: 99, ..good.clone() }, "placement.bad_times"),
        (v1::NamespaceConfig { renew_ms: 12_000, ..good.clone() }, "placement.bad_times"),
    ] {
        assert_eq!(world.operate(create(config)).unwrap_err().code, code);
    }
    for name in ["", "leader", ".", ".."] {
        let create = v1::NamespaceCreate { namespace: name.into(), config: Some(good.clone()) };
        let refused = world.operate(Message::NamespaceCreate(create)).unwrap_err();
        assert_eq!(refused.code, "placement.bad_namespace", "{name}");
    }
    world.operate(create(good)).unwrap();
}

#[test]
fn a_leader_whose_session_runs_out_fails_its_held_polls_at_that_instant() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let until = world.now + 100 * MS;
    world.feed(0, Input::SessionUntil(until));
    assert_eq!(world.managers[0].gauges(world.now()).held, 1);
    let mut out = Outbox::new();
    world.now = until;
    let now = world.now();
    assert!(world.managers[0].deadline().unwrap() <= until);
    world.managers[0].wake(now, &mut out);
    assert!(
        out.drain().any(|output| matches!(output, Output::Fail { error, .. } if error.code == "placement.not_leader"))
    );
    assert_eq!(world.managers[0].gauges(now).held, 0);
}

#[test]
fn a_leader_in_jeopardy_tells_lookups_and_operators_nothing() {
    let mut world = World::new();
    let (held, list) = (world.op(Asker::Operator), Message::NamespaceList(v1::NamespaceList {}));
    let poll = v1::LookupPoll { namespace: "n".into(), wait_ms: 10_000, ..Default::default() };
    let instance = world.managers[0].pools["n"].meta.instance;
    let known = v1::LookupPoll { instance, lsn: world.managers[0].pools["n"].commits.published(), ..poll.clone() };
    world.feed(0, Input::Lookup { op: held, poll: known });
    assert_eq!(world.answers.len(), 0, "it is held");
    let now = world.now;
    world.feed(0, Input::SessionUntil(now));
    let (op, failed) = world.answers.pop().unwrap();
    assert_eq!((op, &*failed.unwrap_err().code), (held, "placement.not_leader"));
    let op = world.op(Asker::Operator);
    world.feed(0, Input::Lookup { op, poll });
    assert_eq!(world.answers.pop().unwrap().1.unwrap_err().code, "placement.not_leader");
    assert_eq!(world.operate(list).unwrap_err().code, "placement.not_leader");
}

#[test]
fn a_namespace_is_there_when_the_cell_has_it_and_gone_when_the_cell_says_so() {
    let mut world = World::new();
    let get = |namespace: &str| Message::TableGet(v1::TableGet { namespace: namespace.into(), from: 0 });
    let create = Message::NamespaceCreate(v1::NamespaceCreate { namespace: "m".into(), config: None });
    world.mute = true;
    let op = world.op(Asker::Operator);
    world.feed(0, Input::Operate { op, request: create.clone() });
    assert_eq!(world.answers.len(), 0, "nobody knows yet");
    assert_eq!(world.operate(get("m")).unwrap_err().code, "placement.unsettled");
    assert_eq!(world.operate(create.clone()).unwrap_err().code, "placement.unsettled");
    let delete = Message::NamespaceDelete(v1::NamespaceDelete { namespace: "n".into() });
    let op = world.op(Asker::Operator);
    world.feed(0, Input::Operate { op, request: delete.clone() });
    assert_eq!(world.operate(get("n")).unwrap_err().code, "placement.unsettled");
    let elsewhere = v1::LookupPoll { namespace: "n".into(), ..Default::default() };
    let op = world.op(Asker::Operator);
    world.feed(0, Input::Lookup { op, poll: elsewhere });
    assert_eq!(world.answers.pop().unwrap().1.unwrap_err().code, "placement.unsettled");
    world.mute = false;
    world.pass(Duration::from_secs(1));
    assert_eq!(world.answers.iter().filter(|(_, answer)| answer.is_ok()).count(), 2, "both are told");
    assert!(world.operate(get("m")).is_ok());
    assert_eq!(world.operate(get("n")).unwrap_err().code, "placement.no_namespace");
    assert_eq!(world.operate(create).unwrap_err().code, "placement.namespace_exists");
}

#[test]
fn a_range_that_is_refused_again_and_again_goes_to_somebody_else_for_a_while() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    // It speaks, is given its part, and never claims any of it.
    let (mut seq, mut heard, mut epoch, mut grants) = (0, 0, 0, Vec::new());
    for _ in 0..8 {
        seq += 1;
        let asked = ask(&mut world, v1::OwnerPoll { seq, heard, epoch, wait_ms: 0, ..poll("b", "b:1") });
        world.pass(300 * MS);
        let answer = asked.or_else(|| world.answers.pop().map(|(_, answer)| answer)).unwrap().unwrap();
        let Message::OwnerAnswer(answer) = answer else { panic!("not an answer") };
        (heard, epoch) = (answer.seq, answer.epoch);
        grants.push(answer.grants.len());
    }
    assert!(grants.iter().any(|count| *count > 0), "{grants:?}");
    assert_eq!(grants.last(), Some(&0), "barred: {grants:?}");
    assert_eq!(world.share(0), 1.0, "the other has it meanwhile");
}

#[test]
fn an_unhealthy_owner_is_given_nothing_until_it_is_well() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(1));
    assert!(world.share(1) > 0.2);
    world.tell_owner(1, owner::Input::Healthy(false));
    world.pass(Duration::from_secs(2));
    assert_eq!((world.share(0), world.share(1)), (1.0, 0.0));
    world.tell_owner(1, owner::Input::Healthy(true));
    world.pass(Duration::from_secs(2));
    assert!(world.share(1) > 0.2);
    assert_eq!(world.covered(), 1.0);
}

fn live(world: &mut World) -> Vec<(String, bool)> {
    let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    list.owners.into_iter().map(|info| (info.owner.unwrap_or_default().id, info.live)).collect()
}

#[test]
fn an_owner_that_has_left_is_gone_at_once_and_its_name_is_free() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(1));
    assert_eq!(live(&mut world), [("a".to_owned(), true), ("b".to_owned(), true)]);
    world.tell_owner(1, owner::Input::Leave);
    world.pass(MS * 500);
    assert_eq!(live(&mut world), [("a".to_owned(), true), ("b".to_owned(), false)]);
    assert_eq!((world.share(0), world.covered()), (1.0, 1.0));
    // One that is ill is there still.
    world.add_owner(owner_options("b", 2), None);
    world.pass(Duration::from_secs(1));
    assert!(world.share(2) > 0.2);
    world.tell_owner(2, owner::Input::Healthy(false));
    world.pass(Duration::from_secs(1));
    assert_eq!(live(&mut world)[1], ("b".to_owned(), true));
}

#[test]
fn a_drain_that_is_cancelled_leaves_everything_where_it_is() {
    let mut world = World::new();
    world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(1));
    let alone = world.owners[0].checks.held(world.now).len();
    let drain = |cancel| Message::OwnerDrain(v1::OwnerDrain { namespace: "n".into(), owner: "a".into(), cancel });
    world.operate(drain(false)).unwrap();
    world.pass(Duration::from_secs(5));
    world.operate(drain(true)).unwrap();
    world.pass(Duration::from_secs(120));
    assert_eq!((world.share(0), world.owners[0].checks.held(world.now).len()), (1.0, alone));
    assert!(!world.owners[0].drained);
    let nobody = Message::OwnerDrain(v1::OwnerDrain { namespace: "n".into(), owner: "x".into(), cancel: false });
    assert_eq!(world.operate(nobody).unwrap_err().code, "placement.no_owner");
}

#[test]
fn few_ranges_are_frozen_at_a_time() {
    let mut world = World::new();
    world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(1));
    world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, None);
    world.pass(Duration::from_secs(2));
    // Its hand-overs hang: what is not frozen is served.
    assert!((1..=8).contains(&world.owners[0].exports), "{}", world.owners[0].exports);
    assert!(world.share(0) > 0.85, "{}", world.share(0));
}

#[test]
fn a_draining_owner_goes_on_draining_under_a_new_leader_and_its_time_ends() {
    let mut world = World::new();
    world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, None);
    world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, None);
    world.pass(Duration::from_secs(200));
    world.tell_owner(0, owner::Input::Drain);
    world.pass(Duration::from_secs(5));
    world.depose();
    world.elect(1);
    world.pass(Duration::from_secs(90));
    assert!(world.owners[0].drained);
    assert_eq!(world.share(1), 1.0);
}

#[test]
fn owners_that_are_long_gone_make_room() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(1));
    world.owners[1].up = false;
    world.pass(Duration::from_secs(300));
    let list = |world: &mut World| {
        let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
        let Message::OwnerListReply(list) = list else { panic!("not a list") };
        list.owners.into_iter().filter_map(|info| info.owner).map(|o| (o.index, o.id)).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut world), [(1, "a".to_owned())]);
    let watching = world.add_lookup();
    world.add_owner(owner_options("c", 1), None);
    world.pass(Duration::from_secs(2));
    assert_eq!(list(&mut world), [(1, "a".to_owned()), (2, "c".to_owned())]);
    let table = world.lookups[watching].0.table();
    assert_eq!(table.owners.values().map(|owner| owner.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    // A leader that reads what was left behind knows the same.
    world.depose();
    world.elect(1);
    assert_eq!(list(&mut world).len(), 2);
}

#[test]
fn an_owner_that_was_forgotten_is_back_at_once() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(120));
    world.owners[1].up = false;
    world.pass(Duration::from_secs(300));
    world.owners[1].up = true;
    world.pass(Duration::from_secs(5));
    assert!((0.3..0.7).contains(&world.share(1)), "b has {}", world.share(1));
    assert_eq!(world.covered(), 1.0);
}

#[test]
fn lookups_that_a_new_leader_finds_behind_are_told_together() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let table = world.operate(Message::TableGet(v1::TableGet { namespace: "n".into(), from: 0 })).unwrap();
    let Message::TableReply(v1::TableReply { info: Some(info), .. }) = table else { panic!("not a table") };
    world.depose();
    world.elect(1);
    let (instance, lsn, epoch) = (info.instance, info.lsn, info.epoch);
    let poll = v1::LookupPoll { namespace: "n".into(), instance, lsn, epoch, wait_ms: 30_000, from: 0 };
    let polls: Vec<OpId> = (0..3_000).map(|_| world.op(Asker::Operator)).collect();
    for op in &polls {
        world.feed(1, Input::Lookup { op: *op, poll: poll.clone() });
    }
    let told = |world: &World| world.answers.iter().filter(|(op, answer)| polls.contains(op) && answer.is_ok()).count();
    assert_eq!(told(&world), 0);
    world.pass(Duration::from_secs(3));
    assert_eq!(told(&world), 3_000);
    assert!((2..=50).contains(&world.pushes), "by {} messages", world.pushes);
}

#[test]
fn a_restarted_owner_gets_its_own_part_back_and_nobody_elses_moves() {
    let mut world = World::new();
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "dir".into() });
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner::Options { proof: proof.clone(), ..owner_options("b", 1) }, None);
    world.pass(Duration::from_secs(1));
    let before = world.owners[0].checks.held(world.now);
    let share = world.share(1);
    world.owners[1].up = false;
    world.owners[1].checks.publish(&[]);
    world.add_owner(owner::Options { proof, ..owner_options("b", 2) }, None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.owners[0].checks.held(world.now), before);
    assert_eq!(world.share(2), share);
}

#[test]
fn many_lookups_are_told_with_one_message() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(20));
    let polls: Vec<OpId> = (0..3_000).map(|_| world.op(Asker::Operator)).collect();
    let table = world.operate(Message::TableGet(v1::TableGet { namespace: "n".into(), from: 0 })).unwrap();
    let Message::TableReply(v1::TableReply { info: Some(info), .. }) = table else { panic!("not a table") };
    for op in &polls {
        let poll = v1::LookupPoll {
            namespace: "n".into(),
            instance: info.instance,
            lsn: info.lsn,
            epoch: 1,
            wait_ms: 30_000,
            from: 0,
        };
        world.feed(0, Input::Lookup { op: *op, poll });
    }
    assert_eq!(world.managers[0].gauges(world.now()).held, 3_001);
    world.feed(0, Input::Cancel { op: polls[0] });
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(1));
    let told = world.answers.iter().filter(|(op, _)| polls.contains(op));
    let told: Vec<&Bytes> = told
        .map(|(_, answer)| match answer {
            Ok(Message::LookupAnswer(answer)) => &answer.shared,
            other => panic!("not an answer to a lookup: {other:?}"),
        })
        .collect();
    assert_eq!(told.len(), 2_999, "all but the one that went away");
    let encoded: std::collections::BTreeSet<*const u8> = told.iter().map(|shared| shared.as_ptr()).collect();
    assert!(!told[0].is_empty() && encoded.len() <= world.pushes, "encoded {} times", encoded.len());
    assert!((2..=6).contains(&world.pushes), "by {} messages", world.pushes);
}

#[test]
fn a_loss_is_told_even_if_a_later_clean_move_waits_for_an_earlier_commit() {
    let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta { instance: 9, ..Default::default() });
    pool.commits.numbers_from(1, 8);
    let row = |start: u64| *pool.table.get(KeyHash(start)).unwrap();
    let (first, second) = (row(0), row(1 << 56));
    // Lost at 5, moved cleanly at 9, while 8 is on its way elsewhere.
    pool.table.put(KeyHash(0), table::Range { changed: 9, lost: 5, owner: 1, ..first });
    pool.table.put(KeyHash(1 << 56), table::Range { changed: 9, lost: 9, owner: 1, ..second });
    let mut out = Outbox::new();
    let poll = v1::LookupPoll { instance: 9, lsn: 4, ..Default::default() };
    pool.look(1, OpId(1), &poll, &mut out);
    let Some(Output::Answer { message: Message::LookupAnswer(answer), .. }) = out.drain().next() else { panic!("?") };
    let told: Vec<(u64, u64)> = answer.ranges.iter().map(|range| (range.start, range.lost_lsn)).collect();
    assert_eq!((answer.lsn, told), (7, vec![(0, 5)]), "the other's loss is told once, when it is published");
}

/// A commit of unknown outcome is put there again and refused; whether the first one had come through.
fn put_twice(came: bool) -> Vec<Output> {
    let mut manager = Manager::new(Options::default());
    let mut feed = |input| {
        let (now, mut out) = (Now { mono: Mono(1), wall: Wall(0) }, Outbox::new());
        manager.handle(now, input, &mut out);
        out.drain().collect::<Vec<_>>()
    };
    feed(Input::SessionUntil(Mono(u64::MAX)));
    feed(Input::Elected { epoch: 1 });
    feed(Input::Listed { names: Ok(Vec::new()) });
    let create = v1::NamespaceCreate { namespace: "n".into(), config: None };
    let first = feed(Input::Operate { op: OpId(1), request: Message::NamespaceCreate(create) });
    let Some(Output::Commit { id, bytes, .. }) = first.first().cloned() else { panic!("{first:?}") };
    let read = feed(Input::Committed { id, outcome: Outcome::Unknown });
    let [Output::Read { id, .. }] = read[..] else { panic!("{read:?}") };
    let again = feed(Input::FileRead { id, contents: Ok(None) });
    let [Output::Commit { id, .. }] = again[..] else { panic!("{again:?}") };
    // The first one had come through late.
    let read = feed(Input::Committed { id, outcome: Outcome::Conflict });
    let [Output::Read { id, .. }] = read[..] else { panic!("it gives up: {read:?}") };
    let contents = if came { Some((1, bytes)) } else { None };
    feed(Input::FileRead { id, contents: Ok(contents) })
}

#[test]
fn a_commit_that_was_put_twice_may_conflict_with_itself() {
    let done = put_twice(true);
    assert!(done.iter().any(|output| matches!(output, Output::Answer { op: OpId(1), .. })), "{done:?}");
}

#[test]
fn a_commit_that_conflicts_with_nothing_is_a_deposed_leader_s() {
    // Put there again and again it would be refused again and again.
    let done = put_twice(false);
    assert!(done.contains(&Output::StepDown), "{done:?}");
}

#[test]
fn numbers_are_never_used_twice_even_when_they_end() {
    let mut world = World::new();
    let pool = world.managers[0].pools.get_mut("n").unwrap();
    let last = tidings_base::LeaseNumber::MAX.get();
    pool.meta.next_lease = last - 1;
    pool.commits.numbers_from(last - 1, 100);
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(5));
    let mut leases: Vec<u32> = world.owners[0].checks.held(world.now).iter().map(|l| l.lease.get()).collect();
    leases.sort_unstable();
    assert_eq!(leases, [last - 1, last], "two numbers were left; nothing else is given");
}

/// An owner played by hand.
#[derive(Default)]
pub(super) struct Hand {
    seq: u64,
    heard: u64,
    epoch: u64,
}

impl Hand {
    /// Says something, and takes the answer in as an owner does.
    pub(super) fn say(&mut self, world: &mut World, poll: v1::OwnerPoll) -> Result<v1::OwnerAnswer, Error> {
        self.seq += 1;
        let Hand { seq, heard, epoch } = *self;
        let asked = ask(world, v1::OwnerPoll { seq, heard, epoch, wait_ms: 0, ..poll });
        world.pass(300 * MS);
        match asked.or_else(|| world.answers.pop().map(|(_, answer)| answer)).unwrap()? {
            Message::OwnerAnswer(answer) => {
                (self.heard, self.epoch) = (answer.seq, answer.epoch);
                Ok(answer)
            }
            other => panic!("not an answer to an owner: {other:?}"),
        }
    }
}

#[test]
fn a_grant_that_was_dropped_and_is_made_again_ends_like_any_other() {
    let (mut world, mut hand) = (World::new(), Hand::default());
    let b = || poll("b", "b:1");
    let granted = (0..4).any(|_| !hand.say(&mut world, b()).unwrap().grants.is_empty());
    assert!(granted);
    // It claims nothing: the grant crossed a message of its own. It is not made again before its first end has passed.
    let now = world.now;
    world.feed(0, Input::SessionUntil(now));
    for _ in 0..8 {
        assert_eq!(hand.say(&mut world, b()).unwrap_err().code, "placement.not_leader");
        world.pass(Duration::from_secs(2));
    }
    let until = world.now + Duration::from_secs(3_600);
    world.feed(0, Input::SessionUntil(until));
    assert!(!hand.say(&mut world, b()).unwrap().grants.is_empty());
    // It is never heard of again.
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(0), 1.0);
}

#[test]
fn what_is_recalled_before_its_owner_took_it_goes_where_it_is_wanted() {
    let (mut world, mut hand) = (World::new(), Hand::default());
    let b = || poll("b", "b:1");
    let granted = (0..4).any(|_| !hand.say(&mut world, b()).unwrap().grants.is_empty());
    assert!(granted);
    world.add_owner(owner_options("a", 1), None);
    world.pass(50 * MS);
    assert_eq!(world.share(0), 0.0, "its part is recalled, and may be in use");
    // Nothing is claimed: the grant crossed a message, so it was never in use.
    hand.say(&mut world, b()).unwrap();
    assert!(world.share(0) > 0.2, "a has {}", world.share(0));
}

#[test]
fn a_namespace_that_is_made_again_never_shortens_what_was_promised() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    let delete = || Message::NamespaceDelete(v1::NamespaceDelete { namespace: "n".into() });
    let create = |lease_ms| {
        let config = v1::NamespaceConfig { lease_ms, renew_ms: 500, ..Default::default() };
        Message::NamespaceCreate(v1::NamespaceCreate { namespace: "n".into(), config: Some(config) })
    };
    world.operate(delete()).unwrap();
    // Longer leases do no harm: the next leader waits longer than it must.
    world.operate(create(30_000)).unwrap();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.share(0), 1.0);
    world.operate(delete()).unwrap();
    assert_eq!(world.operate(create(10_000)).unwrap_err().code, "placement.leases_run");
    // A leader that was elected since knows of it, too: the owner is silent and holds its leases still.
    world.owners[0].up = false;
    world.depose();
    world.elect(1);
    assert_eq!(world.operate(create(10_000)).unwrap_err().code, "placement.leases_run");
    world.pass(Duration::from_secs(34));
    assert_eq!(world.covered(), 0.0);
    world.operate(create(10_000)).unwrap();
}

#[test]
fn a_later_lease_of_a_range_never_ends_before_an_earlier_one() {
    let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta::default());
    pool.lease_until(KeyHash(0), Mono(90));
    pool.lease_until(KeyHash(0), Mono(50));
    assert_eq!(pool.table.get(KeyHash(0)).unwrap().until, Mono(90));
}

#[test]
fn a_process_is_granted_nothing_before_its_own_record_is_in_the_cell() {
    let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta::default());
    (pool.now, pool.mutant) = (Mono(1), None);
    let (mut rng, mut out) = (Seeded::new(1), Outbox::new());
    let mut seq = 0;
    let mut told = |pool: &mut pool::Pool, commit: bool| {
        seq += 1;
        let epoch = u64::from(seq > 1);
        let said = v1::OwnerPoll { seq, heard: seq - 1, epoch, ..poll("a", "a:1") };
        pool.hear(1, OpId(seq), said, &mut rng, None, &mut out).unwrap();
        if commit {
            pool.begin_commit(Kind::Owners(0));
            pool.commit_done(Kind::Owners(0), 1);
        } else {
            pool.news(1);
        }
        pool.answer(1, true, None, &mut out);
        match out.drain().last() {
            Some(Output::Answer { message: Message::OwnerAnswer(answer), .. }) => answer.grants.len(),
            other => panic!("no answer: {other:?}"),
        }
    };
    assert_eq!(told(&mut pool, false), 0, "hello");
    // It was recorded for the process before this one, which has gone meanwhile.
    let range = *pool.table.get(KeyHash(0)).unwrap();
    pool.table.put(KeyHash(0), table::Range { owner: 1, holder: table::Holder::Fresh, ..range });
    assert_eq!(told(&mut pool, false), 0, "the next leader would not know of this process");
    assert_eq!(told(&mut pool, true), 1, "told at once when it is there");
    // An index is used again while the record of the owner that had it is on its way.
    let member = |pool: &mut pool::Pool, id: &str| {
        let record = v1::TableOwner { index: 1, id: id.into(), incarnation: 1, ..Default::default() };
        pool.members.insert(1, pool::Member::new(record));
    };
    member(&mut pool, "b");
    pool.begin_commit(Kind::Owners(0));
    member(&mut pool, "c");
    pool.commit_done(Kind::Owners(0), 2);
    assert!(!pool.members[&1].committed, "the record of another");
}

/// F4: the lock is free again when this arrives, and the next process has it.
#[test]
fn the_first_words_of_a_process_that_has_died_free_nothing_of_the_next_ones() {
    let mut world = World::new();
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "dir".into() });
    world.add_owner(owner::Options { proof: proof.clone(), ..owner_options("a", 3) }, None);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.share(0), 1.0);
    for incarnation in [2, 3] {
        let late = v1::OwnerPoll { incarnation, proof: proof.clone(), ..poll("a", "a:1") };
        assert_eq!(ask(&mut world, late).unwrap().unwrap_err().code, "placement.owner_id_in_use");
    }
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(30));
    assert!(world.share(0) > 0.0 && world.share(0) + world.share(1) > 0.999, "it holds what it held, and hands over");
}

#[test]
fn one_owners_word_deposes_no_leader() {
    let mut world = World::new();
    let refused = ask(&mut world, v1::OwnerPoll { epoch: 99, ..poll("a", "a:1") }).unwrap().unwrap_err();
    assert_eq!(refused.code, "placement.not_leader");
    assert!(world.managers[0].leads());
}

#[test]
fn a_full_file_of_owners_fits_the_cell() {
    let mut world = World::new();
    let long = "x".repeat(128);
    let proof = |boot_id: &str| Some(v1::ExclusivityProof { boot_id: boot_id.into(), lock_id: long.clone() });
    let refused = ask(&mut world, v1::OwnerPoll { proof: proof(&"x".repeat(129)), ..poll("a", "a:1") });
    assert_eq!(refused.unwrap().unwrap_err().code, "placement.bad_owner");
    let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta::default());
    for index in 0..file::OWNERS_PER_FILE {
        let name = "x".repeat(256);
        let record = v1::TableOwner {
            index: u32::MAX - index,
            id: name.clone(),
            address: name,
            incarnation: u64::MAX,
            draining: true,
            virtual_nodes: u32::MAX,
            proof: proof(&long),
            nonce: u64::MAX,
            changed_lsn: u64::MAX,
        };
        pool.members.insert(index, pool::Member::new(record));
    }
    let (_, bytes) = pool.begin_commit(Kind::Owners(0));
    assert!((200_000..256 * 1_024).contains(&bytes.len()), "{}", bytes.len());
}

#[test]
fn a_drain_is_answered_when_it_is_in_the_cell_and_no_proof_is_shown() {
    let mut world = World::new();
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "dir".into() });
    world.add_owner(owner::Options { proof, ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(1));
    let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    let table = world.operate(Message::TableGet(v1::TableGet { namespace: "n".into(), from: 0 })).unwrap();
    let Message::TableReply(table) = table else { panic!("not a table") };
    let shown = list.owners.into_iter().filter_map(|info| info.owner).chain(table.owners);
    assert_eq!(shown.map(|owner| (owner.proof, owner.nonce)).collect::<Vec<_>>(), [(None, 0), (None, 0)]);
    world.mute = true;
    let op = world.op(Asker::Operator);
    let drain = v1::OwnerDrain { namespace: "n".into(), owner: "a".into(), cancel: false };
    world.feed(0, Input::Operate { op, request: Message::OwnerDrain(drain) });
    let answered = |world: &World| world.answers.iter().any(|(answered, _)| *answered == op);
    assert!(!answered(&world), "nobody knows whether it is there");
    world.mute = false;
    world.pass(Duration::from_secs(1));
    assert!(answered(&world));
}
