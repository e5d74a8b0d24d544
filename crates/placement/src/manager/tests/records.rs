//! What the cell has, and what is told of it: nothing before it is there, nothing that is not understood.

use super::*;
use prost::Message as _;
use std::collections::BTreeSet;
use tidings_base::LeaseNumber;

/// The same world, led by managers that leave a rule out.
fn world(mutant: Option<Mutant>) -> World {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.pass(Duration::from_secs(1));
    world.depose();
    for (seed, manager) in world.managers.iter_mut().enumerate() {
        *manager = Manager::new(Options { seed: seed as u64, mutant });
    }
    world.elect(1);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.share(0), 1.0);
    world
}

/// The owners that an operator sees, with their addresses.
fn shown(world: &mut World) -> Vec<String> {
    let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    list.owners.into_iter().filter_map(|info| info.owner).map(|owner| owner.address).collect()
}

#[test]
fn nothing_is_granted_by_a_commit_of_which_nobody_knows_what_became() {
    for (mutant, granted) in [(None, false), (Some(Mutant::UnknownIsDone), true)] {
        let mut world = world(mutant);
        world.mute = true;
        world.add_owner(owner_options("b", 1), None);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.share(1) > 0.0, granted, "F3, {mutant:?}");
        world.mute = false;
        world.pass(Duration::from_secs(1));
        assert!(world.share(1) > 0.1, "it is known in the end, {mutant:?}");
    }
}

#[test]
fn a_new_leader_uses_no_number_of_its_predecessors_block() {
    for (mutant, reused) in [(None, false), (Some(Mutant::NumbersReused), true)] {
        let mut world = world(mutant);
        let last = world.owners[0].checks.held(world.now).iter().map(|leased| leased.lease).max().unwrap();
        world.add_owner(owner_options("b", 1), None);
        world.pass(Duration::from_secs(1));
        let held = world.owners[1].checks.held(world.now);
        assert_eq!(held.iter().any(|leased| leased.lease <= last), reused, "F8, {mutant:?}");
    }
}

#[test]
fn leases_that_a_fail_over_would_interrupt_are_refused() {
    for mutant in [None, Some(Mutant::TimesUnchecked)] {
        let mut world = world(mutant);
        world.operate(Message::NamespaceDelete(v1::NamespaceDelete { namespace: "n".into() })).unwrap();
        world.pass(Duration::from_secs(15));
        let config = v1::NamespaceConfig { lease_ms: 6_000, renew_ms: 2_000, ..Default::default() };
        let create = v1::NamespaceCreate { namespace: "n".into(), config: Some(config) };
        let refused = world.operate(Message::NamespaceCreate(create)).err().map(|error| error.code);
        assert_eq!(refused, mutant.is_none().then(|| "placement.bad_times".into()), "F10");
        if refused.is_none() {
            world.pass(Duration::from_secs(5));
            let before = world.owners[0].checks.held(world.now);
            assert_eq!(world.share(0), 1.0);
            // Why it is refused: as long as F10 counts for a fail-over, and the lease is over.
            world.depose();
            world.pass(FailOver::default().session + FailOver::default().cell);
            world.elect(0);
            world.pass(Duration::from_secs(10));
            assert_ne!(world.owners[0].checks.held(world.now), before);
        }
    }
}

#[test]
fn an_owner_is_shown_as_the_cell_has_it() {
    let mut world = world(None);
    world.mute = true;
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "lock".into() });
    world.add_owner(owner::Options { proof: proof.clone(), ..owner_options("b", 1) }, None);
    assert_eq!(shown(&mut world), ["a:1"], "its record is on its way");
    world.mute = false;
    world.pass(Duration::from_secs(1));
    assert_eq!(shown(&mut world), ["a:1", "b:1"]);
    let watching = world.add_lookup();
    world.pass(Duration::from_secs(1));
    // A later process of the same name, with another address.
    world.mute = true;
    world.owners[1].up = false;
    world.owners[1].checks.publish(&[]);
    world.add_owner(owner::Options { proof, ..owner_options("b", 2) }, None);
    assert_eq!(shown(&mut world), ["a:1", "b:1"]);
    world.mute = false;
    world.pass(Duration::from_secs(1));
    assert_eq!(shown(&mut world), ["a:1", "b:2"]);
    let theirs = world.owners[2].checks.held(world.now);
    let (found, _) = world.lookups[watching].0.table().find(theirs[0].range.start).unwrap();
    assert_eq!(found.address, "b:2");
}

/// Where a lookup says that everything is that an owner holds.
fn addresses(world: &World, lookup: usize, owner: usize) -> BTreeSet<String> {
    let held = world.owners[owner].checks.held(world.now);
    assert!(!held.is_empty());
    let table = world.lookups[lookup].0.table();
    held.iter().map(|leased| table.find(leased.range.start).unwrap().0.address.clone()).collect()
}

fn only(address: &str) -> BTreeSet<String> {
    BTreeSet::from([address.to_owned()])
}

#[test]
fn a_lookup_that_waits_is_told_of_an_address_that_changes() {
    for (mutant, now) in [(None, "c:9"), (Some(Mutant::AddressUntold), "a:1")] {
        let mut world = world(mutant);
        world.add_owner(owner_options("b", 1), None);
        world.pass(Duration::from_secs(1));
        let watching = world.add_lookup();
        world.pass(Duration::from_secs(1));
        world.tell_owner(0, owner::Input::Address("c:9".into()));
        world.pass(200 * MS);
        assert_eq!(addresses(&world, watching, 0), only(now), "{mutant:?}");
        assert_eq!(addresses(&world, watching, 1), only("b:1"));
        assert_eq!(world.lookups[watching].1, [], "nothing was lost");
    }
}

#[test]
fn an_address_is_told_by_later_leaders_too() {
    let mut world = world(None);
    let watching = world.add_lookup();
    world.pass(Duration::from_secs(1));
    let (away, instance) = (world.lookups[watching].0.lsn(), world.managers[1].pools["n"].meta.instance);
    // Nobody hears whether it is in the cell before another one leads.
    world.mute = true;
    world.tell_owner(0, owner::Input::Address("c:9".into()));
    world.pass(200 * MS);
    assert_eq!(addresses(&world, watching, 0), only("a:1"), "F3: it may not be there");
    world.mute = false;
    world.depose();
    world.elect(0);
    world.pass(Duration::from_secs(2));
    assert_eq!(addresses(&world, watching, 0), only("c:9"));
    // A leader that has given nothing yet has no numbers left, and sets some aside.
    world.tell_owner(0, owner::Input::Address("d:9".into()));
    world.pass(200 * MS);
    assert_eq!(addresses(&world, watching, 0), only("d:9"));
    // A lookup that was away all the time, at whoever leads then.
    world.depose();
    world.elect(1);
    let op = world.op(Asker::Operator);
    let poll = v1::LookupPoll { namespace: "n".into(), instance, lsn: away, wait_ms: 30_000, ..Default::default() };
    world.feed(1, Input::Lookup { op, poll });
    world.pass(Duration::from_secs(2));
    let answer = world.answers.drain(..).find(|(answered, _)| *answered == op).expect("told").1;
    let Ok(Message::LookupAnswer(answer)) = answer else { panic!("not an answer to a lookup") };
    let owners = lookup::unpacked(answer).unwrap().owners;
    assert_eq!(owners.into_iter().map(|owner| owner.address).collect::<Vec<_>>(), ["d:9"]);
}

#[test]
fn the_address_of_a_later_process_is_told_with_what_was_on_its_way_to_the_earlier_one() {
    for (mutant, now) in [(None, "b:2"), (Some(Mutant::AddressUntold), "b:1")] {
        let mut pool = pool::Pool::create(Mono(1), "n".into(), v1::PlacementMeta { instance: 9, ..Default::default() });
        (pool.now, pool.mutant) = (Mono(1), mutant);
        pool.commits.numbers_from(1, 1);
        pool.begin_commit(Kind::Meta);
        pool.commit_done(Kind::Meta, 1);
        let record = |incarnation: u64| {
            let (id, address) = ("b".to_owned(), format!("b:{incarnation}"));
            v1::TableOwner { index: 1, id, address, incarnation, ..Default::default() }
        };
        pool.members.insert(1, pool::Member::recorded(record(1)));
        // A range is on its way to it when a later process registers; its record follows.
        pool.assign(KeyHash(0), 1, None, false);
        pool.begin_commit(Kind::Segment(0));
        pool.members.get_mut(&1).unwrap().record = record(2);
        pool.members.get_mut(&1).unwrap().committed = false;
        pool.commit_done(Kind::Segment(0), 1);
        let mut told = Told::default();
        told.ask(&mut pool);
        assert_eq!(told.address, "b:1", "F3: the later one's is not in the cell");
        pool.begin_commit(Kind::Owners(0));
        pool.commit_done(Kind::Owners(0), 2);
        told.ask(&mut pool);
        assert_eq!(told.address, now, "{mutant:?}");
    }
}

/// What a lookup knows that asks a namespace by hand.
#[derive(Default)]
struct Told {
    lsn: u64,
    instance: u64,
    address: String,
}

impl Told {
    /// Asks, and takes what is said.
    fn ask(&mut self, pool: &mut pool::Pool) {
        let (mut out, poll) =
            (Outbox::new(), v1::LookupPoll { instance: self.instance, lsn: self.lsn, ..Default::default() });
        pool.due = tidings_base::Timers::new();
        pool.look(1, OpId(1), &poll, &mut out);
        pool.push(1, &mut Seeded::new(1), &mut out);
        let said = out.drain().find_map(|output| match output {
            Output::Answer { message: Message::LookupAnswer(said), .. } => Some(said),
            Output::Push { message: Message::LookupAnswer(said), .. } => Some(said),
            _ => None,
        });
        let said = lookup::unpacked(said.expect("it is told")).unwrap();
        (self.lsn, self.instance) = (said.lsn, said.instance);
        if let Some(owner) = said.owners.into_iter().next() {
            self.address = owner.address;
        }
    }
}

/// Rewrites a namespace's record as another program might have left it, and lets the other manager lead.
fn rewritten(world: &mut World, change: impl FnOnce(&mut v1::PlacementMeta)) -> v1::NamespaceInfo {
    let file = File { namespace: "n".into(), kind: Kind::Meta };
    let mut meta = v1::PlacementMeta::decode(world.files[&file].1.clone()).unwrap();
    change(&mut meta);
    world.depose();
    world.files.insert(file, (99, meta.encode_to_vec().into()));
    world.elect(1 - world.leader);
    world.pass(Duration::from_secs(1));
    let list = world.operate(Message::NamespaceList(v1::NamespaceList {})).unwrap();
    let Message::NamespaceListReply(mut list) = list else { panic!("not a list") };
    list.namespaces.remove(0)
}

#[test]
fn a_namespace_of_another_hash_is_left_alone() {
    let mut world = world(None);
    let info = rewritten(&mut world, |meta| meta.hash = "md5/7".into());
    assert!(info.warning.contains("`md5/7`"), "{}", info.warning);
    let get = Message::TableGet(v1::TableGet { namespace: "n".into(), from: 0 });
    assert_eq!(world.operate(get).unwrap_err().code, "placement.damaged");
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(0), 0.0, "nothing is renewed");
    let info = rewritten(&mut world, |meta| meta.hash = KeyHash::FUNCTION.into());
    assert_eq!(info.warning, "");
    world.pass(Duration::from_secs(20));
    assert_eq!(world.share(0), 1.0);
}

#[test]
fn operators_are_told_when_few_lease_numbers_are_left() {
    let mut world = world(None);
    let last = LeaseNumber::MAX.get();
    let info = rewritten(&mut world, |meta| meta.next_lease = last - 9);
    assert!(info.warning.contains("only 10 lease numbers"), "{}", info.warning);
    let now = world.now();
    assert_eq!(world.managers[world.leader].gauges(now).tight, 0, "leases outlast a fail-over");
    let info = rewritten(&mut world, |meta| meta.next_lease = last + 1);
    assert!(info.warning.contains("used up"), "{}", info.warning);
}

#[test]
fn a_file_that_cannot_be_understood_stops_its_own_namespace_only() {
    let mut world = world(None);
    let create = |name: &str| Message::NamespaceCreate(v1::NamespaceCreate { namespace: name.into(), config: None });
    world.operate(create("torn")).unwrap();
    for kind in [Kind::Meta, Kind::Owners(0), Kind::Segment(7)] {
        let file = File { namespace: "torn".into(), kind };
        let before = world.files.insert(file.clone(), (9, Bytes::from_static(&[0xff; 5])));
        world.depose();
        world.elect(1);
        world.pass(Duration::from_secs(1));
        assert_eq!(world.share(0), 1.0, "the other one is led");
        for request in [create("torn"), Message::TableGet(v1::TableGet { namespace: "torn".into(), from: 0 })] {
            assert_eq!(world.operate(request).unwrap_err().code, "placement.damaged", "{kind:?}");
        }
        let list = world.operate(Message::NamespaceList(v1::NamespaceList {})).unwrap();
        let Message::NamespaceListReply(list) = list else { panic!("not a list") };
        let warnings: Vec<_> = list.namespaces.iter().map(|info| info.warning.contains(&file.path())).collect();
        assert_eq!(warnings, [false, true]);
        let now = world.now();
        let gauges = world.managers[world.leader].gauges(now);
        assert_eq!((gauges.damaged, gauges.tight), (1, 0));
        assert_eq!(world.files.get(&file).map(|(generation, _)| *generation), Some(9), "it is left as it is");
        match before {
            Some(before) => world.files.insert(file, before),
            None => world.files.remove(&file),
        };
    }
}

/// What an operator is told of an owner.
fn told(world: &mut World, id: &str) -> v1::OwnerInfo {
    let list = world.operate(Message::OwnerList(v1::OwnerList { namespace: "n".into(), from: 0 })).unwrap();
    let Message::OwnerListReply(list) = list else { panic!("not a list") };
    let is = |info: &v1::OwnerInfo| info.owner.as_ref().is_some_and(|owner| owner.id == id);
    list.owners.into_iter().find(is).unwrap()
}

#[test]
fn owners_are_shown_as_heard_when_they_were() {
    let mut world = World::new();
    world.add_owner(owner_options("a", 1), None);
    world.add_owner(owner_options("b", 1), None);
    world.pass(Duration::from_secs(5));
    assert!(told(&mut world, "a").heard_ms.unwrap() <= 2_500);
    // It leaves as it should: it was heard just now, and is gone.
    world.tell_owner(0, owner::Input::Leave);
    world.pass(Duration::from_secs(1));
    let gone = told(&mut world, "a");
    assert!(!gone.live && (1_000..=3_500).contains(&gone.heard_ms.unwrap()), "{gone:?}");
    // Another leader has not heard of who is silent, though its leases may run.
    world.owners[1].up = false;
    world.depose();
    world.elect(1);
    world.pass(Duration::from_secs(1));
    let silent = told(&mut world, "b");
    assert_eq!((silent.live, silent.heard_ms), (true, None));
    world.owners[1].up = true;
    world.pass(Duration::from_secs(5));
    assert!(told(&mut world, "b").heard_ms.is_some());
}

#[test]
fn a_rate_is_of_the_process_that_measured_it_and_ends_with_it() {
    let mut world = World::new();
    let proof = Some(v1::ExclusivityProof { boot_id: "boot".into(), lock_id: "dir".into() });
    world.add_owner(owner::Options { proof: proof.clone(), ..owner_options("a", 1) }, None);
    world.add_owner(owner_options("b", 1), None);
    for index in [0, 1] {
        let load = v1::OwnerLoad { rate: 50.0, ..Default::default() };
        world.tell_owner(index, owner::Input::Load(load));
    }
    world.pass(Duration::from_secs(5));
    assert_eq!((told(&mut world, "a").rate, told(&mut world, "b").rate), (50.0, 50.0));
    world.tell_owner(1, owner::Input::Leave);
    world.pass(Duration::from_secs(1));
    assert_eq!(told(&mut world, "b").rate, 0.0, "it is gone");
    // Another process takes the name at once, and has measured nothing yet.
    world.owners[0].up = false;
    world.owners[0].checks.publish(&[]);
    world.add_owner(owner::Options { proof, ..owner_options("a", 2) }, None);
    world.pass(Duration::from_secs(1));
    let another = told(&mut world, "a");
    assert_eq!((another.live, another.rate, another.owner.unwrap().incarnation), (true, 0.0, 2));
    world.tell_owner(2, owner::Input::Load(v1::OwnerLoad { rate: 7.0, ..Default::default() }));
    world.pass(Duration::from_secs(5));
    assert_eq!(told(&mut world, "a").rate, 7.0);
}

#[test]
fn the_platforms_own_namespaces_are_counted_apart() {
    let mut world = World::new();
    let config = v1::NamespaceConfig { lease_ms: 12_000, renew_ms: 2_500, ..Default::default() };
    let create = v1::NamespaceCreate { namespace: ".notify".into(), config: Some(config) };
    world.operate(Message::NamespaceCreate(create)).unwrap();
    let now = world.now();
    let gauges = world.managers[world.leader].gauges(now);
    assert_eq!((gauges.namespaces, gauges.platform), (2, 1));
}
