//! Replies count as rules E and F say.

use std::time::Duration;
use tidings_base::{Incarnation, Machine, Mono, Now, Outbox, Wall};
use tidings_sketch::group::{Group, Input, Kind, Misfit, Options, Output, Refusal, Reply};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketch;
use tidings_sketch::{Answer, CallId, ReplicaId};

const CALL: CallId = CallId(1);

struct Desk {
    group: Group<&'static str, u8>,
    now: Now,
    nonce: u64,
    sent: Vec<(u16, bool)>,
    done: Option<(u8, Option<Sigma>)>,
    refused: Option<(Refusal, Option<u8>)>,
}

fn options(replicas: u16, kind: Kind) -> Options {
    Options {
        group: 7,
        client: 3,
        last_nonce: 100,
        replicas,
        kind,
        resend: Duration::from_millis(100),
        give_up: Duration::from_millis(1_000),
        mutant: None,
    }
}

fn answer(what: u8) -> Answer<u8> {
    Answer { sketch: Sketch([what; 16]), keep: true, response: what }
}

fn sigma(height: u64) -> Option<Sigma> {
    Sigma::new(Incarnation(1), height, 0)
}

impl Desk {
    fn new(replicas: u16, kind: Kind) -> Desk {
        let group = Group::new(options(replicas, kind)).expect("it fits");
        let now = Now { mono: Mono(0), wall: Wall(0) };
        let mut desk = Desk { group, now, nonce: 0, sent: Vec::new(), done: None, refused: None };
        desk.give(Input::Ask(CALL, "request"));
        desk
    }

    fn give(&mut self, input: Input<&'static str, u8>) {
        let mut out = Outbox::new();
        self.group.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn wait(&mut self, millis: u64) {
        let mut out = Outbox::new();
        self.now.mono = self.now.mono + Duration::from_millis(millis);
        self.group.wake(self.now, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Outbox<Output<&'static str, u8>>) {
        for output in out {
            match output {
                Output::Send { to, nonce, whole, .. } => {
                    assert!(self.nonce == 0 || self.nonce == nonce, "a command that is sent again is the same");
                    self.nonce = nonce;
                    self.sent.push((to.0, whole));
                }
                Output::Done(_, answer, sigma) => self.done = Some((answer.response, sigma)),
                Output::Refused(_, why, one) => self.refused = Some((why, one.map(|one| one.response))),
            }
        }
    }

    /// A whole reply as it should be, for a test to change.
    fn proper(&self, from: u16, what: u8, sigma: Option<Sigma>) -> Reply<u8> {
        let whole = Some(answer(what));
        Reply {
            from: ReplicaId(from),
            group: 7,
            client: 3,
            nonce: self.nonce,
            sigma,
            result: Sketch([what; 16]),
            whole,
        }
    }

    fn says(&mut self, from: u16, what: u8, sigma: Option<Sigma>) {
        let reply = self.proper(from, what, sigma);
        self.give(Input::Reply(CALL, reply));
    }
}

const BYZANTINE: Kind = Kind::Byzantine { faults: 1, reads_pass_by: false };

#[test]
fn groups_that_cannot_bear_their_liars_are_refused() {
    let misfit = |replicas, kind| Group::<(), ()>::new(options(replicas, kind)).err();
    assert_eq!(misfit(4, BYZANTINE), None);
    assert_eq!(misfit(3, BYZANTINE), Some(Misfit::TooFewReplicas));
    assert_eq!(misfit(5, BYZANTINE), None);
    assert_eq!(misfit(5, Kind::Byzantine { faults: 1, reads_pass_by: true }), Some(Misfit::QuorumsMayMiss));
    assert_eq!(misfit(3, Kind::Origins { faults: 1, quorum: 2 }), None);
    assert_eq!(misfit(5, Kind::Origins { faults: 2, quorum: 2 }), Some(Misfit::QuorumTooSmall));
    assert_eq!(misfit(2, Kind::Origins { faults: 1, quorum: 2 }), Some(Misfit::TooFewOrigins));
    assert_eq!(misfit(0, Kind::CrashTolerant), Some(Misfit::TooFewReplicas));
}

#[test]
fn replies_count_together_only_if_all_of_it_is_equal() {
    let mut desk = Desk::new(4, BYZANTINE);
    desk.says(0, 1, sigma(5));
    for change in [
        |reply: &mut Reply<u8>| reply.group = 8,
        |reply: &mut Reply<u8>| reply.client = 4,
        |reply: &mut Reply<u8>| reply.nonce -= 1,
        |reply: &mut Reply<u8>| reply.from = ReplicaId(4),
        |reply: &mut Reply<u8>| reply.from = ReplicaId(0),
        |reply: &mut Reply<u8>| reply.sigma = None,
    ] {
        let mut reply = desk.proper(1, 1, sigma(5));
        change(&mut reply);
        desk.give(Input::Reply(CALL, reply));
        assert_eq!(desk.done, None);
    }
    desk.says(1, 1, sigma(6));
    desk.says(2, 2, sigma(5));
    assert_eq!(desk.done, None, "another place, another result");
    desk.says(3, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));
    assert_eq!(desk.group.differed(), [0, 0, 1, 0]);
}

#[test]
fn where_reads_pass_the_order_by_more_replies_are_needed() {
    let mut desk = Desk::new(4, Kind::Byzantine { faults: 1, reads_pass_by: true });
    desk.says(0, 1, sigma(5));
    desk.says(1, 1, sigma(5));
    assert_eq!(desk.done, None);
    desk.says(2, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));
}

#[test]
fn replicas_that_differ_are_not_waited_for() {
    let passed_by = |faults| Kind::Byzantine { faults, reads_pass_by: true };
    let differ = Some((Refusal::Disagreement, Some(0)));
    for (replicas, kind, refused_after) in [(4, passed_by(1), 3), (7, passed_by(2), 4), (4, BYZANTINE, 4)] {
        let mut desk = Desk::new(replicas, kind);
        for from in 0..refused_after {
            assert_eq!(desk.refused, None, "{from} of {replicas} have spoken, and the others could decide");
            desk.says(from, from as u8, sigma(5));
            // Whoever says something else later is not believed either.
            desk.says(from, 0, sigma(5));
        }
        assert_eq!((desk.refused, desk.done), (differ, None));
    }

    // Who is away is waited for, and may decide: it is asked again.
    let mut desk = Desk::new(4, passed_by(1));
    desk.give(Input::Failed(CALL, ReplicaId(3)));
    [1, 1, 2].into_iter().zip(0..).for_each(|(what, from)| desk.says(from, what, sigma(5)));
    desk.wait(100);
    assert_eq!((desk.refused, desk.sent.last().map(|(to, _)| *to)), (None, Some(3)));
    desk.says(3, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));
}

#[test]
fn a_body_must_have_the_hash_that_the_quorum_says() {
    let mut desk = Desk::new(4, BYZANTINE);
    assert_eq!(desk.sent.iter().filter(|(_, whole)| *whole).count(), 1, "one sends the body");
    let liar = desk.sent.iter().find(|(_, whole)| *whole).expect("one was asked").0;
    let forged = Reply { whole: Some(answer(9)), ..desk.proper(liar, 1, sigma(5)) };
    desk.give(Input::Reply(CALL, forged));
    desk.sent.clear();
    let honest = (liar + 1) % 4;
    let hash = Reply { whole: None, ..desk.proper(honest, 1, sigma(5)) };
    desk.give(Input::Reply(CALL, hash));
    assert_eq!(
        (desk.done, desk.sent.len()),
        (None, 1),
        "the hash is agreed on; one of the quorum is asked for the body"
    );
    for _ in 0..4 {
        desk.wait(100);
    }
    assert!(desk.sent.contains(&(honest, true)), "{:?}", desk.sent);
    desk.says(honest, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));
}

#[test]
fn origins_are_voted_on_and_asked_once() {
    let origins = Kind::Origins { faults: 2, quorum: 3 };
    let mut desk = Desk::new(5, origins);
    desk.says(0, 9, None);
    desk.says(1, 1, None);
    desk.says(2, 1, None);
    desk.wait(500);
    assert_eq!((desk.done, desk.sent.len()), (None, 5), "nobody is asked twice");
    desk.says(3, 1, None);
    assert_eq!(desk.done, Some((1, None)));

    let mut desk = Desk::new(5, origins);
    (0..4).for_each(|from| desk.says(from, from as u8 / 2, None));
    assert_eq!(desk.refused, None, "the fifth could decide");
    desk.says(4, 7, None);
    assert_eq!(desk.refused, Some((Refusal::Disagreement, Some(0))));

    let mut desk = Desk::new(5, origins);
    desk.says(0, 1, None);
    (1..4).for_each(|from| desk.give(Input::Failed(CALL, ReplicaId(from))));
    assert_eq!(desk.refused, Some((Refusal::Unreachable, Some(1))), "two are left, three are needed");
}

#[test]
fn who_could_not_be_asked_is_counted_once_whatever_it_says() {
    let voted = Kind::Origins { faults: 1, quorum: 3 };
    let mut desk = Desk::new(4, voted);
    desk.give(Input::Failed(CALL, ReplicaId(0)));
    (0..3).for_each(|from| desk.says(from, 1, None));
    assert_eq!(desk.done, None, "two that were asked say so");
    desk.says(3, 1, None);
    assert_eq!(desk.done, Some((1, None)));

    let mut desk = Desk::new(4, voted);
    [0, 0].map(ReplicaId).into_iter().for_each(|unasked| desk.give(Input::Failed(CALL, unasked)));
    desk.says(1, 1, None);
    desk.says(0, 2, None);
    assert_eq!(desk.refused, None, "two others could decide");
    desk.says(2, 3, None);
    assert_eq!(desk.refused, Some((Refusal::Unreachable, Some(1))));
    desk.says(3, 4, None);
}

#[test]
fn a_group_that_does_not_lie_is_asked_one_after_the_other() {
    let mut desk = Desk::new(3, Kind::CrashTolerant);
    let first = desk.sent[0].0;
    assert_eq!(desk.sent, [(first, true)]);
    desk.give(Input::Failed(CALL, ReplicaId(first)));
    desk.wait(100);
    assert_eq!(desk.sent[1..], [((first + 1) % 3, true), ((first + 2) % 3, true)]);
    desk.says((first + 1) % 3, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));

    let mut desk = Desk::new(3, Kind::CrashTolerant);
    (0..12).for_each(|_| desk.wait(100));
    assert_eq!(desk.refused, Some((Refusal::Unreachable, None)));

    // All of them refuse, more often than there are members: the next round asks again, and whoever is back then is heard.
    let mut desk = Desk::new(3, Kind::CrashTolerant);
    for round in 0..3 {
        let asked = desk.sent.len();
        for _ in 0..6 {
            let last = desk.sent.last().expect("one is asked").0;
            desk.give(Input::Failed(CALL, ReplicaId(last)));
        }
        assert!(desk.sent.len() >= asked + 3, "round {round}: {:?}", desk.sent);
        desk.wait(100);
    }
    desk.says(1, 1, sigma(5));
    assert_eq!(desk.done, Some((1, sigma(5))));
}
