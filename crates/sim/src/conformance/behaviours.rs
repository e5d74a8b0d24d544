//! The behaviours, scripted and random.

use super::{Behaviour, Session};
use bytes::Bytes;
use tidings_base::agreed::{Heard, MAX_COMMAND, Refusal};
use tidings_base::{NodeId, Seeded};

pub(super) const ALL: &[Behaviour] = &[
    Behaviour { name: "one member agrees with itself", nodes: 1, run: one_order },
    Behaviour { name: "all replicas apply in one order", nodes: 3, run: one_order },
    Behaviour { name: "a follower refuses and names the leader", nodes: 3, run: followers_refuse },
    Behaviour { name: "a command that is too large is refused", nodes: 3, run: too_large },
    Behaviour { name: "a barrier sees what was applied before", nodes: 3, run: barriers },
    Behaviour { name: "a leader cut off answers nothing it cannot know", nodes: 3, run: leader_cut_off },
    Behaviour { name: "a minority changes nothing", nodes: 5, run: minority_alone },
    Behaviour { name: "what was applied survives the loss of all power", nodes: 3, run: power_cut },
    Behaviour { name: "one member survives the loss of power", nodes: 1, run: power_cut },
    Behaviour { name: "a replica that was away catches up", nodes: 3, run: catch_up },
    Behaviour { name: "epochs grow over restarts and elections", nodes: 3, run: epochs_grow },
    Behaviour { name: "random faults break nothing, three replicas", nodes: 3, run: random_faults },
    Behaviour { name: "random faults break nothing, five replicas", nodes: 5, run: random_faults },
];

type Outcome = Result<(), String>;

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

fn one_order(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    let (leader, _) = session.wait_for_leader()?;
    let ops: Vec<_> = (0..40).map(|_| session.propose(leader)).collect();
    let mut last = None;
    for op in ops {
        let answer = session.wait_for_answer(leader, op)?;
        if let Heard::Applied { index, .. } = answer {
            expect(last < Some(index), || format!("{index} was proposed after {last:?} and applied before it"))?;
            last = Some(index);
        }
    }
    expect(last.is_some(), || "a healthy cluster applied none of 40 proposals".to_string())?;
    session.converge()
}

fn followers_refuse(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    session.apply_one()?;
    session.converge()?;
    let (leader, _) = session.wait_for_leader()?;
    let mut named = 0;
    for node in session.up().into_iter().filter(|node| *node != leader) {
        for op in [session.propose(node), session.barrier(node)] {
            let answer = session.wait_for_answer(node, op)?;
            let Heard::Refused { refusal: Refusal::NotLeader { leader: hint }, .. } = answer else {
                if session.leader().is_some_and(|(now, _)| now != leader) {
                    return Ok(()); // Another was elected meanwhile.
                }
                return Err(format!("{node} follows {leader} and answered {answer:?}"));
            };
            named += usize::from(hint == Some(leader));
        }
    }
    let same = session.leader().is_some_and(|(now, _)| now == leader);
    expect(named > 0 || !same, || format!("no follower named {leader} as the leader"))
}

fn too_large(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    let (leader, _) = session.wait_for_leader()?;
    let op = session.propose_bytes(leader, Bytes::from(vec![7; MAX_COMMAND + 1]));
    let answer = session.wait_for_answer(leader, op)?;
    let refused = matches!(answer, Heard::Refused { refusal: Refusal::TooLarge | Refusal::NotLeader { .. }, .. });
    expect(refused, || format!("a command beyond the bound was answered with {answer:?}"))
}

fn barriers(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    let mut passed = 0;
    for round in 0..10 {
        session.apply_one()?;
        let (leader, _) = session.wait_for_leader()?;
        if round % 3 == 0 {
            // Without traffic for some time a lease may have run out: the barrier then needs a round.
            let pause = session.leases(130);
            session.run(pause)?;
        }
        if !session.up().contains(&leader) {
            continue;
        }
        let ops = [session.barrier(leader), session.barrier(leader)];
        for op in ops {
            passed += usize::from(matches!(session.wait_for_answer(leader, op)?, Heard::Passed { .. }));
        }
    }
    expect(passed > 0, || "no barrier passed on a healthy cluster".to_string())
}

/// Sides of a partition: one replica, and the rest.
fn apart(session: &Session<'_>, alone: &[NodeId]) -> [Vec<NodeId>; 2] {
    let rest = session.nodes().into_iter().filter(|node| !alone.contains(node)).collect();
    [alone.to_vec(), rest]
}

fn leader_cut_off(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    session.apply_one()?;
    let (old, old_epoch) = session.wait_for_leader()?;
    let sides = apart(session, &[old]);
    session.cluster().partition(&sides);
    let stranded = [session.propose(old), session.propose(old)];
    session.wait("another leader", |session| session.leader().is_some_and(|(_, epoch)| epoch > old_epoch))?;
    session.apply_one()?;
    let barrier = session.barrier(old);
    let answer = session.wait_for_answer(old, barrier)?;
    expect(matches!(answer, Heard::Refused { .. }), || format!("a deposed leader's barrier ended in {answer:?}"))?;
    for op in stranded {
        let answer = session.wait_for_answer(old, op)?;
        let honest = matches!(answer, Heard::Unknown { .. } | Heard::Refused { .. });
        expect(honest, || format!("a leader without a majority answered {answer:?}"))?;
    }
    session.cluster().heal();
    session.apply_one()?;
    session.converge()
}

fn minority_alone(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    session.apply_one()?;
    let (leader, epoch) = session.wait_for_leader()?;
    let friend = session.nodes().into_iter().find(|node| *node != leader);
    let minority: Vec<NodeId> = [leader].into_iter().chain(friend).collect();
    let sides = apart(session, &minority);
    session.cluster().partition(&sides);
    let op = session.propose(leader);
    session.wait("the majority to elect", |session| session.leader().is_some_and(|(_, now)| now > epoch))?;
    for _ in 0..5 {
        session.apply_one()?;
    }
    let answer = session.wait_for_answer(leader, op)?;
    expect(!matches!(answer, Heard::Applied { .. }), || "a minority applied a proposal".to_string())
}

fn power_cut(session: &mut Session<'_>, rng: &mut Seeded) -> Outcome {
    for _ in 0..3 {
        session.apply_one()?;
        let (leader, _) = session.wait_for_leader()?;
        for _ in 0..rng.between(1, 20) {
            session.propose(leader);
        }
        let pause = session.leases(rng.below(30) as u32);
        session.run(pause)?;
        for node in session.nodes() {
            session.crash(node)?;
        }
        for node in session.nodes() {
            session.restart(node);
        }
    }
    session.apply_one()
}

fn catch_up(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    session.apply_one()?;
    let (leader, _) = session.wait_for_leader()?;
    let away = session.nodes().into_iter().find(|node| *node != leader).unwrap_or(leader);
    session.crash(away)?;
    for _ in 0..15 {
        let (leader, _) = session.wait_for_leader()?;
        let ops: Vec<_> = (0..40).map(|_| session.propose(leader)).collect();
        if let Some(last) = ops.last() {
            session.wait_for_answer(leader, *last)?;
        }
    }
    session.restart(away);
    session.converge()
}

fn epochs_grow(session: &mut Session<'_>, _: &mut Seeded) -> Outcome {
    let mut latest = None;
    for _ in 0..5 {
        session.apply_one()?;
        let (leader, epoch) = session.wait_for_leader()?;
        expect(Some(epoch) > latest, || format!("epoch {epoch} came after {latest:?}"))?;
        latest = Some(epoch);
        session.crash(leader)?;
        let pause = session.leases(50);
        session.run(pause)?;
        session.restart(leader);
        session.wait("a new leadership", |session| session.leader().is_some_and(|(_, epoch)| Some(epoch) > latest))?;
    }
    Ok(())
}

fn random_faults(session: &mut Session<'_>, rng: &mut Seeded) -> Outcome {
    session.wait_for_leader()?;
    for _ in 0..150 {
        match rng.below(12) {
            0..=3 => ask_somebody(session, rng),
            4 => {
                if let Some((leader, _)) = session.leader() {
                    (0..rng.between(1, 10)).for_each(|_| {
                        session.propose(leader);
                    });
                }
            }
            5 => crash_somebody(session, rng)?,
            6 | 7 => {
                if let Some(node) = rng.pick(&session.down()).copied() {
                    session.restart(node);
                }
            }
            8 => split(session, rng),
            9 => session.cluster().heal(),
            _ => {}
        }
        let pause = session.leases(rng.below(60) as u32);
        session.run(pause)?;
    }
    Ok(())
}

fn ask_somebody(session: &mut Session<'_>, rng: &mut Seeded) {
    let leader = session.leader().map(|(node, _)| node).filter(|_| rng.below(4) > 0);
    let Some(node) = leader.or_else(|| rng.pick(&session.up()).copied()) else { return };
    if rng.one_in(3) {
        session.barrier(node);
    } else {
        session.propose(node);
    }
}

fn crash_somebody(session: &mut Session<'_>, rng: &mut Seeded) -> Outcome {
    let victims = if rng.one_in(5) { session.up() } else { rng.pick(&session.up()).copied().into_iter().collect() };
    victims.into_iter().try_for_each(|node| session.crash(node))
}

fn split(session: &mut Session<'_>, rng: &mut Seeded) {
    let mut nodes = session.nodes();
    rng.shuffle(&mut nodes);
    let cut = rng.between(1, nodes.len() as u64 - 1) as usize;
    let (left, right) = nodes.split_at(cut);
    let sides = [left.to_vec(), right.to_vec()];
    session.cluster().partition(&sides);
}
