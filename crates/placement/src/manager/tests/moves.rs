//! Clean moves (F9): how they end when their time, a drain or their leader does.

use super::rules::{Hand, poll};
use super::*;

/// Has a namespace's owner drained, or taken back.
pub(super) fn drain(world: &mut World, owner: &str, cancel: bool) {
    let drain = v1::OwnerDrain { namespace: "n".into(), owner: owner.into(), cancel };
    world.operate(Message::OwnerDrain(drain)).unwrap();
}

/// With the rule and without it, and whether state is lost then.
const CUT_SHORT: [(Option<Mutant>, bool); 2] = [(None, false), (Some(Mutant::MovesCutShort), true)];

#[test]
fn a_drain_that_is_cancelled_loses_nothing_that_was_handed_over() {
    for (mutant, lost) in CUT_SHORT {
        let mut world = World::new();
        world.managers[0].options.mutant = mutant;
        for name in ["a", "b"] {
            world.add_owner(owner::Options { hands_over: true, ..owner_options(name, 1) }, Some(true));
        }
        world.pass(Duration::from_secs(30));
        let watching = world.add_lookup();
        world.owners[0].hand_over = None;
        drain(&mut world, "a", false);
        world.pass(Duration::from_secs(1));
        let moves = std::mem::take(&mut world.owners[0].hanging);
        assert!(!moves.is_empty());
        // The other has it, and this one has just heard so, when the drain is cancelled.
        for to in &moves {
            world.tell_owner(1, owner::Input::Imported { token: to.token, done: true });
            world.tell_owner(0, owner::Input::Exported { token: to.token, done: true });
        }
        drain(&mut world, "a", true);
        world.owners[0].hand_over = Some(true);
        world.pass(Duration::from_secs(1));
        assert_eq!(!world.lookups[watching].1.is_empty(), lost, "{mutant:?}");
        // What is wanted here comes back in its turn.
        world.pass(Duration::from_secs(120));
        assert!(world.share(0) > 0.2, "a has {}", world.share(0));
        assert_eq!((world.covered(), world.owners[0].drained), (1.0, false));
        assert_eq!(!world.lookups[watching].1.is_empty(), lost, "{mutant:?}");
    }
}

/// An owner played by hand that hands over, with all that it holds.
struct Giver {
    hand: Hand,
    held: Vec<v1::LeasedRange>,
}

impl Giver {
    /// Says what it holds and what it has handed over, and takes the complete set from the answer.
    fn say(&mut self, world: &mut World, released: Vec<v1::Handover>) -> v1::OwnerAnswer {
        let claims = self.held.clone();
        let said = v1::OwnerPoll { hands_over: true, claims, released, ..poll("giver", "giver:1") };
        let answer = self.hand.say(world, said).unwrap();
        if !answer.hello {
            let granted = answer.grants.iter().filter_map(|grant| grant.range);
            self.held = answer.renewals.iter().copied().chain(granted).collect();
        }
        answer
    }

    /// Says for so long that nothing has changed.
    fn go_on(&mut self, world: &mut World, time: Duration) {
        let end = world.now + time;
        while world.now < end {
            world.pass(2_000 * MS);
            self.say(world, Vec::new());
        }
    }
}

/// An owner that holds everything, a second one that has the state of a range that is to move, and a lookup; the move.
fn handing_over(mutant: Option<Mutant>) -> (World, Giver, v1::Move) {
    let (mut world, mut giver) = (World::new(), Giver { hand: Hand::default(), held: Vec::new() });
    world.managers[0].options.mutant = mutant;
    for _ in 0..4 {
        giver.say(&mut world, Vec::new());
    }
    assert!(!giver.held.is_empty());
    world.add_lookup();
    world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, Some(true));
    let begun = (0..4).find_map(|_| giver.say(&mut world, Vec::new()).moves.into_iter().next());
    let begun = begun.expect("a move");
    world.tell_owner(0, owner::Input::Imported { token: begun.token, done: true });
    (world, giver, begun)
}

/// The giver says that it has handed the range over; whether its state was lost all the same.
fn loses(world: &mut World, giver: &mut Giver, begun: &v1::Move) -> bool {
    let start = KeyHash(begun.range.unwrap().start);
    giver.held.retain(|held| held.start != start.0);
    let released = v1::Handover { range: begun.range, token: begun.token, ..Default::default() };
    giver.say(world, vec![released]);
    giver.say(world, Vec::new());
    world.pass(Duration::from_secs(1));
    let held = world.owners[0].checks.held(world.now);
    assert!(held.iter().any(|leased| leased.range.contains(start)), "the receiver has it, with its state or without");
    world.lookups[0].1.iter().any(|range| range.contains(start))
}

#[test]
fn a_hand_over_that_ends_as_its_time_does_goes_through() {
    for (mutant, lost) in CUT_SHORT {
        let (mut world, mut giver, begun) = handing_over(mutant);
        let within = Duration::from_millis(begun.within_ms.into());
        giver.go_on(&mut world, within - Duration::from_secs(4));
        world.pass(Duration::from_secs(5));
        assert_eq!(loses(&mut world, &mut giver, &begun), lost, "{mutant:?}");
    }
}

#[test]
fn a_hand_over_that_ends_as_its_drain_does_goes_through() {
    for (mutant, lost) in CUT_SHORT {
        let (mut world, mut giver, begun) = handing_over(mutant);
        world.managers[0].pools.get_mut("n").unwrap().meta.config.as_mut().unwrap().drain_ms = 10_000;
        drain(&mut world, "giver", false);
        giver.go_on(&mut world, Duration::from_secs(7));
        world.pass(Duration::from_secs(4));
        assert_eq!(loses(&mut world, &mut giver, &begun), lost, "{mutant:?}");
        // All else was recalled, and is the other's.
        giver.go_on(&mut world, Duration::from_secs(50));
        assert_eq!(world.share(0), 1.0, "{mutant:?}");
    }
}

#[test]
fn a_hand_over_of_which_nothing_is_said_is_given_up_in_the_end() {
    let (mut world, mut giver, begun) = handing_over(None);
    let named = |answer: v1::OwnerAnswer| answer.moves.iter().any(|to| to.token == begun.token);
    giver.go_on(&mut world, Duration::from_secs(32));
    assert!(named(giver.say(&mut world, Vec::new())), "its time is over, and its holder's word is waited for");
    giver.go_on(&mut world, Duration::from_secs(14));
    assert!(!named(giver.say(&mut world, Vec::new())));
    assert_eq!(world.lookups[0].1, [], "its holder has kept it");
}

/// With the rule and without it, and whether state is lost then.
const FORGOTTEN: [(Option<Mutant>, bool); 2] = [(None, false), (Some(Mutant::MovesForgotten), true)];

/// Two owners, of which the first is copying ranges to the second, a lookup, and a second manager with or without a rule.
fn copying(mutant: Option<Mutant>) -> (World, Vec<owner::Move>) {
    let mut world = World::new();
    world.managers[1].options.mutant = mutant;
    world.add_owner(owner::Options { hands_over: true, ..owner_options("a", 1) }, None);
    world.pass(Duration::from_secs(1));
    world.add_lookup();
    world.add_owner(owner::Options { hands_over: true, ..owner_options("b", 1) }, Some(true));
    world.pass(Duration::from_secs(1));
    let moves = std::mem::take(&mut world.owners[0].hanging);
    assert!(!moves.is_empty());
    (world, moves)
}

/// The second owner has the state, unless it is lost on the way, and the first has heard so.
fn copied(world: &mut World, moves: &[owner::Move], arrives: bool) {
    for to in moves {
        if arrives {
            world.tell_owner(1, owner::Input::Imported { token: to.token, done: true });
        }
        world.tell_owner(0, owner::Input::Exported { token: to.token, done: true });
    }
}

/// Whether the second owner has what was moved, and whether a loss of it was told.
fn outcome(world: &World, moves: &[owner::Move]) -> (bool, bool) {
    let held = world.owners[1].checks.held(world.now);
    let has = |to: &owner::Move| held.iter().any(|leased| leased.range.contains(to.leased.range.start));
    let lost = |to: &owner::Move| world.lookups[0].1.iter().any(|range| range.overlaps(to.leased.range));
    (moves.iter().all(has), moves.iter().any(lost))
}

#[test]
fn a_move_that_ends_while_nobody_leads_goes_through_whoever_speaks_first() {
    for (mutant, lost) in FORGOTTEN {
        for (silent, arrives) in [(0, true), (1, true), (1, false)] {
            let (mut world, moves) = copying(mutant);
            world.depose();
            copied(&mut world, &moves, arrives);
            world.owners[silent].up = false;
            world.elect(1);
            world.pass(Duration::from_secs(4));
            world.owners[silent].up = true;
            world.owners[0].hand_over = Some(true);
            world.pass(Duration::from_secs(8));
            let what = format!("{mutant:?}, {silent} speaks later, arrives: {arrives}");
            assert_eq!(outcome(&world, &moves), (true, lost || !arrives), "{what}");
            world.pass(Duration::from_secs(60));
            assert_eq!(world.covered(), 1.0, "{what}");
        }
    }
}

#[test]
fn a_move_that_ends_while_nobody_leads_goes_through_whoever_has_come_meanwhile() {
    let (mut world, moves) = copying(None);
    world.depose();
    copied(&mut world, &moves, true);
    world.owners[0].up = false;
    world.elect(1);
    // The ring of the next leader changes hands inside of what moves, before its holder says a word.
    for name in ["c", "d", "e"] {
        world.add_owner(owner::Options { hands_over: true, ..owner_options(name, 1) }, Some(true));
    }
    world.pass(Duration::from_secs(4));
    let cut = |to: &owner::Move| world.managers[1].pools["n"].table.touched(to.leased.range).len() > 1;
    assert!(moves.iter().any(cut));
    world.owners[0].up = true;
    world.owners[0].hand_over = Some(true);
    world.pass(Duration::from_secs(60));
    assert_eq!((world.covered(), outcome(&world, &moves).1), (1.0, false));
}

#[test]
fn a_move_that_its_leader_recorded_and_did_not_tell_goes_through() {
    for (mutant, lost) in FORGOTTEN {
        let (mut world, moves) = copying(mutant);
        // What is recorded from here on is recorded, and its leader does not hear of it.
        world.mute = true;
        copied(&mut world, &moves, true);
        world.pass(100 * MS);
        world.depose();
        world.mute = false;
        let recorded = world.files.iter().filter_map(|(file, (_, bytes))| match file.kind {
            Kind::Segment(n) => file::decode_segment(n, bytes.clone()),
            _ => None,
        });
        assert!(recorded.flatten().any(|(_, range)| range.token == Some(moves[0].token)));
        world.elect(1);
        world.owners[0].hand_over = Some(true);
        world.pass(Duration::from_secs(8));
        assert_eq!(outcome(&world, &moves), (true, lost), "{mutant:?}");
        world.pass(Duration::from_secs(60));
        assert_eq!((world.covered(), outcome(&world, &moves).1), (1.0, lost), "{mutant:?}");
    }
}

#[test]
fn a_copy_that_is_not_done_when_its_leader_dies_is_begun_anew() {
    let (mut world, moves) = copying(None);
    world.depose();
    world.owners[0].hand_over = Some(true);
    world.elect(1);
    world.pass(Duration::from_secs(4));
    // Too late: these moves are over.
    copied(&mut world, &moves, true);
    world.pass(Duration::from_secs(60));
    assert_eq!((world.covered(), outcome(&world, &moves)), (1.0, (true, false)));
}

#[test]
fn what_is_on_its_way_to_an_owner_that_is_ill_or_has_left_goes_to_somebody_else() {
    for ill in [true, false] {
        let (mut world, moves) = copying(None);
        world.mute = ill;
        copied(&mut world, &moves, true);
        if ill {
            // Recorded, and not told.
            world.pass(100 * MS);
        }
        world.depose();
        world.mute = false;
        world.owners[0].up = false;
        let last = if ill { owner::Input::Healthy(false) } else { owner::Input::Leave };
        world.tell_owner(1, last);
        world.elect(1);
        world.pass(Duration::from_secs(3));
        world.owners[0].up = true;
        world.pass(Duration::from_secs(5));
        assert_eq!(world.share(0), 1.0, "ill: {ill}");
    }
}

#[test]
fn nobody_is_drained_while_something_is_on_its_way_to_it() {
    let (mut world, moves) = copying(None);
    assert_eq!(world.share(1), 0.0);
    world.tell_owner(1, owner::Input::Drain);
    world.pass(Duration::from_secs(1));
    assert!(!world.owners[1].drained);
    copied(&mut world, &moves, true);
    world.pass(Duration::from_secs(10));
    assert_eq!((world.owners[1].drained, world.share(0)), (true, 1.0));
    assert_eq!(world.lookups[0].1, [], "it came back as it went");
}
