//! Roles, epochs, leases and barriers.

use crate::harness::{LEASE, World};
use std::time::Duration;
use tidings_base::agreed::{Heard, MAX_COMMAND, Refusal, Role};
use tidings_base::time::stretched;
use tidings_base::{Epoch, NodeId};
use tidings_consensus::{Mutant, ProposeError, Standing};
use tidings_wire::v1::{self, RaftMessage, raft_message::Body};

#[test]
fn one_member_is_ready_at_once_and_its_epoch_grows_with_every_start() {
    let mut world = World::running(1, 1);
    let mut last = Epoch(0);
    for _ in 0..5 {
        let began = world.elapsed();
        let role = world.wait(world.group(NodeId(1)).ready());
        let Role::Leader { epoch } = role else { panic!("the only member is {role:?}") };
        assert!(epoch > last, "{epoch} after {last}");
        assert!(world.elapsed() - began < Duration::from_millis(300), "no other replica needs to be waited for");
        last = epoch;
        world.put("something");
        world.power_off(NodeId(1));
        world.start(NodeId(1));
    }
    world.wait(world.group(NodeId(1)).ready());
    assert_eq!(world.list(NodeId(1)).len(), 5);
}

#[test]
fn one_member_applies_without_waiting_for_a_tick() {
    let world = World::running(1, 4);
    world.wait(world.group(NodeId(1)).ready());
    let began = world.elapsed();
    for n in 0..100 {
        world.put(format!("{n}"));
    }
    assert!(world.elapsed() - began < Duration::from_millis(500), "{:?}", world.elapsed() - began);
}

#[test]
fn a_leader_without_others_stops_at_once() {
    let mut world = World::running(3, 5);
    world.put("first");
    let (leader, _) = world.leader();
    for node in [1, 2, 3].map(NodeId).into_iter().filter(|node| *node != leader) {
        world.power_off(node);
    }
    world.sleep(LEASE * 2);
    let began = world.elapsed();
    world.shut_down(leader);
    assert!(world.elapsed() - began < LEASE, "nobody could take over");
}

#[test]
fn a_barrier_passes_by_the_lease_and_by_a_round_without_it() {
    let world = World::running(3, 2);
    let index = world.put("first");
    let (leader, _) = world.leader();
    let group = world.group(leader);
    world.sleep(LEASE);
    world.isolate(leader);
    assert!(world.wait(group.barrier()).unwrap() >= index, "the lease lasts a while");
    world.sleep(LEASE);
    assert!(matches!(world.wait(group.barrier()), Err(Refusal::NotLeader { .. })), "nobody confirmed it");
    world.mend();
    let later = world.put("second");
    let (leader, _) = world.leader();
    assert!(world.wait(world.group(leader).barrier()).unwrap() >= later);
}

#[test]
fn barriers_of_a_leader_that_gave_its_lease_up_take_rounds() {
    let mut world = World::running(3, 3);
    // Heartbeats so rare that the lease runs out between them: every barrier needs a round then.
    world.put("first");
    for node in [1, 2, 3].map(NodeId) {
        world.power_off(node);
    }
    world.timings.heartbeat = LEASE / 3;
    world.timings.election = LEASE / 2;
    for node in [1, 2, 3].map(NodeId) {
        world.start(node);
    }
    for n in 0..20 {
        let index = world.put(format!("{n}"));
        let (leader, _) = world.leader();
        let groups = [world.group(leader), world.group(leader)];
        let passed = world.wait(async { tokio::join!(groups[0].barrier(), groups[1].barrier()) });
        assert!(passed.0.unwrap() >= index && passed.1.unwrap() >= index);
        world.sleep(LEASE / 5);
    }
}

/// The latest end of a lease that `node` announced before now.
fn lease_of(world: &World, node: NodeId) -> Duration {
    let leases = world.told(node).into_iter().filter(|told| matches!(told.heard, Heard::LeaseUntil(_)));
    leases.filter_map(|told| told.until).max().unwrap()
}

/// When the first leadership after `epoch` was announced.
fn next_leadership(world: &World, epoch: Epoch) -> Duration {
    let later = |heard: &Heard| matches!(heard, Heard::Role(Role::Leader { epoch: e }) if *e > epoch);
    let told = [1, 2, 3].map(NodeId).into_iter().flat_map(|node| world.told(node));
    told.filter(|told| later(&told.heard)).map(|told| told.at).min().unwrap()
}

#[test]
fn restarted_voters_keep_still_until_the_lease_they_forgot_is_over() {
    for seed in 10..16 {
        let mut world = World::running(3, seed);
        world.put("first");
        world.sleep(LEASE * 4);
        let (leader, epoch) = world.leader();
        world.isolate(leader);
        for node in [1, 2, 3].map(NodeId).into_iter().filter(|node| *node != leader) {
            world.power_off(node);
            world.start(node);
        }
        let restarted = world.elapsed();
        world.until("another leader", |world| world.leader().1 > epoch);
        let led = next_leadership(&world, epoch);
        assert!(led >= lease_of(&world, leader), "seed {seed}: led from {led:?}");
        // Clocks run up to 10 % fast or slow, so (1+ρ) leases of theirs are at least one lease.
        assert!(led >= restarted + LEASE, "seed {seed}");
        assert!(led <= restarted + stretched(LEASE) * 10, "seed {seed}: it must not take for ever");
    }
}

#[test]
fn shutting_down_hands_over_after_the_lease_and_sooner_than_an_election() {
    for seed in 20..24 {
        let mut world = World::running(3, seed);
        world.put("first");
        world.sleep(LEASE * 4);
        let (leader, epoch) = world.leader();
        let began = world.elapsed();
        world.shut_down(leader);
        world.until("another leader", |world| world.leader().1 > epoch);
        let led = next_leadership(&world, epoch);
        assert!(led >= lease_of(&world, leader), "seed {seed}: within the lease");
        assert!(led <= began + LEASE * 2, "seed {seed}: took {:?}", led - began);
        world.put("second");
        world.start(leader);
        world.until("it catches up", |world| world.list(leader).len() == 2);
    }
}

#[test]
fn a_hand_over_keeps_serving_until_the_new_leader_does() {
    let world = World::running(3, 25);
    world.put("first");
    world.sleep(LEASE * 2);
    let (leader, epoch) = world.leader();
    let group = world.group(leader);
    let during = world.wait(async {
        let (handed, proposed) = tokio::join!(group.hand_over(), async {
            let mut applied = 0;
            for n in 0..10 {
                tokio::time::sleep(LEASE / 20).await;
                applied += usize::from(group.propose(format!("{n}").into()).await.is_ok());
            }
            applied
        });
        assert!(handed);
        proposed
    });
    assert!(during >= 5, "{during} of 10 were applied meanwhile");
    assert!(world.leader().1 > epoch);
}

#[test]
fn what_is_too_much_or_too_large_is_refused_and_a_cut_off_leader_answers_in_time() {
    let mut world = World::new(3, 3, 30);
    world.limits.proposals = 4;
    for node in [1, 2, 3].map(NodeId) {
        world.start(node);
    }
    world.put("first");
    let (leader, _) = world.leader();
    let group = world.group(leader);
    let large = world.wait(group.propose(vec![0; MAX_COMMAND + 1].into()));
    assert_eq!(large, Err(ProposeError::Refused(Refusal::TooLarge)));
    let largest = world.wait(group.propose(vec![1; MAX_COMMAND].into()));
    assert!(largest.is_ok(), "{largest:?}");

    world.isolate(leader);
    let answers = world.wait(async {
        let asked = (0..6).map(|n| group.propose(format!("{n}").into()));
        futures::future::join_all(asked).await
    });
    let busy = answers.iter().filter(|a| **a == Err(ProposeError::Refused(Refusal::Busy))).count();
    let unknown = answers.iter().filter(|a| **a == Err(ProposeError::Unknown)).count();
    assert_eq!((busy, unknown), (2, 4), "{answers:?}");
    world.mend();
    world.put("last");
}

#[test]
fn a_follower_names_the_leader_and_status_tells_how_things_stand() {
    let world = World::running(3, 31);
    world.put("first");
    world.sleep(LEASE);
    let (leader, epoch) = world.leader();
    let follower = [1, 2, 3].map(NodeId).into_iter().find(|n| *n != leader).unwrap();
    let refused = Refusal::NotLeader { leader: Some(leader) };
    assert_eq!(world.wait(world.group(follower).propose("x".into())), Err(ProposeError::Refused(refused)));
    assert_eq!(world.wait(world.group(follower).barrier()), Err(refused));

    let status = world.group(leader).status();
    assert_eq!((status.standing, status.epoch, status.leader), (Standing::Leader, Some(epoch), Some(leader)));
    assert_eq!((status.committed, status.applied), (status.last, status.last));
    assert_eq!(status.members.iter().filter(|m| m.voter && m.lag == Some(0)).count(), 3);
    assert_eq!(world.group(follower).status().standing, Standing::Follower);
    assert_eq!(world.group(follower).address(leader), Some(format!("host-{leader}")));
}

/// Whether a replica finds itself in touch with a majority. Asked inside: only there the clocks are the world's.
fn in_touch(world: &World, node: NodeId) -> bool {
    let group = world.group(node);
    world.wait(async move { group.in_touch() })
}

#[test]
fn who_is_cut_off_from_the_majority_knows_it() {
    cut_off(None);
}

#[test]
#[should_panic(expected = "it may still believe that it leads")]
fn a_leader_that_never_looks_is_noticed() {
    cut_off(Some(Mutant::AlwaysInTouch));
}

fn cut_off(mutant: Option<Mutant>) {
    let world = World::running_without(mutant, 3, 32);
    world.put("first");
    world.sleep(LEASE);
    let (leader, epoch) = world.leader();
    let all = [1, 2, 3].map(NodeId);
    assert!(all.into_iter().all(|node| in_touch(&world, node)));
    world.isolate(leader);
    world.sleep(LEASE * 3);
    assert!(!in_touch(&world, leader), "it may still believe that it leads");
    world.until("another leads", |world| world.leader().1 > epoch);
    let others = all.into_iter().filter(|node| *node != leader);
    world.until("the others are in touch", |world| others.clone().all(|node| in_touch(world, node)));
    // A follower knows it too.
    let (next, _) = world.leader();
    let follower = others.clone().find(|node| *node != next).unwrap();
    world.isolate(follower);
    world.sleep(LEASE * 3);
    assert!(!in_touch(&world, follower));
    world.mend();
    world.until("all are in touch", |world| all.into_iter().all(|node| in_touch(world, node)));
}

#[test]
fn an_append_that_is_accepted_beside_a_vote_is_not_answered_as_a_promise() {
    append_beside_vote(None);
}

#[test]
#[should_panic(expected = "a promise beside a vote")]
fn a_voter_that_promises_beside_a_vote_is_noticed() {
    append_beside_vote(Some(Mutant::PromiseBesideVote));
}

#[test]
#[should_panic(expected = "a promise beside a vote")]
fn an_answer_that_counts_as_a_promise_without_being_one_is_noticed() {
    append_beside_vote(Some(Mutant::CountedPromise));
}

/// An append and a vote for a later term reach a follower together. While the vote is being considered, the leader must
/// not take the append for a promise that it is not given. (openraft's own lease happens to refuse this vote; it is
/// trusted for nothing.)
fn append_beside_vote(mutant: Option<Mutant>) {
    let world = World::running_without(mutant, 3, 33);
    world.put("first");
    world.sleep(LEASE);
    let (leader, _) = world.leader();
    let [follower, candidate] = [1, 2, 3].map(NodeId).into_iter().filter(|n| *n != leader).collect::<Vec<_>>()[..]
    else {
        panic!("two others")
    };
    let group = world.group(follower);
    let term = group.status().term;
    let message = |from: NodeId, body| RaftMessage { group: 7, from: from.0, body: Some(body), cluster: 0 };
    let append = || {
        let ballot = v1::RaftBallot { term, node: leader.0, committed: true };
        message(leader, Body::Append(v1::RaftAppend { ballot: Some(ballot), ..Default::default() }))
    };
    let vote = || {
        let ballot = v1::RaftBallot { term: term + 1, node: candidate.0, committed: false };
        let last = v1::RaftLogId { term, index: group.status().last.0 };
        message(candidate, Body::Vote(v1::RaftVote { ballot: Some(ballot), last: Some(last), ..Default::default() }))
    };
    world.isolate(follower);
    world.sleep(LEASE * 3);
    let alone = world.wait(group.receive(append())).body;
    assert!(matches!(alone, Some(Body::AppendReply(_))), "it follows this leader still: {alone:?}");
    let promised = world.wait(group.receive(vote())).body;
    assert!(matches!(promised, Some(Body::Unavailable(_))), "and has promised not to vote: {promised:?}");

    world.sleep(LEASE * 3);
    let call = |message| {
        let group = group.clone();
        tokio::spawn(async move { group.receive(message).await.body })
    };
    let (appended, voted) = world.wait(async { tokio::join!(call(append()), call(vote())) });
    let (appended, voted) = (appended.unwrap(), voted.unwrap());
    assert!(matches!(voted, Some(Body::VoteReply(_))), "the vote was considered: {voted:?}");
    assert!(matches!(appended, Some(Body::Unavailable(_))), "a promise beside a vote: {appended:?}");
}

/// It keeps still after its start, and then it is told that it will stop: the end of the silence changes nothing.
#[test]
fn whoever_stands_no_more_is_not_elected_when_its_silence_ends() {
    for seed in 30..40 {
        let mut world = World::running(3, seed);
        world.put("first");
        world.sleep(LEASE * 4);
        let (leader, epoch) = world.leader();
        let stops = [1, 2, 3].map(NodeId).into_iter().find(|node| *node != leader).unwrap();
        world.power_off(stops);
        world.start(stops);
        world.group(stops).stand_no_more();
        world.power_off(leader);
        world.until("another leader", |world| world.leader().1 > epoch);
        assert_ne!(world.leader().0, stops, "seed {seed}");
    }
}
