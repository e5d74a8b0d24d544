//! Words count as rules F and H say.

use bytes::Bytes;
use std::time::Duration;
use tidings_base::{Incarnation, Machine, Mono, Now, Outbox, Wall};
use tidings_sketch::direct::client::{Ask, Input, Output, Refusal};
use tidings_sketch::direct::{Client, Digest, Options, Question, Remembered, Word};
use tidings_sketch::group::{self, Kind, Misfit};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketch;
use tidings_sketch::sketcher::How;
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};

const USUAL: Kind = Kind::Byzantine { faults: 1, reads_pass_by: true };
const STRICT: Kind = Kind::Byzantine { faults: 1, reads_pass_by: false };
const PAGE: Bytes = Bytes::from_static(b"page");

struct Desk {
    client: Client,
    now: Now,
    questions: Vec<(ReplicaId, Question)>,
    sent: Vec<(ReplicaId, CallId, u64)>,
    answers: Vec<(u64, Bytes, How, Option<Sigma>)>,
    refused: Vec<(u64, Refusal)>,
}

fn options(kind: Kind, replicas: u16, mutant: Option<Mutant>) -> Options {
    let group = group::Options {
        group: 7,
        client: 3,
        last_nonce: 100,
        replicas,
        kind,
        resend: Duration::from_millis(100),
        give_up: Duration::from_millis(1_000),
        mutant,
    };
    Options { most_waiting: 2, ..Options::of(group, [5; 32]) }
}

fn at(height: u64) -> Sigma {
    Sigma::new(Incarnation(1), height, 0).expect("it is small")
}

fn remembered(what: &Bytes, height: u64) -> Option<Remembered> {
    let sketch = Digest::of_response(Digest::of_request(b"read"), what);
    Some(Remembered { sketch, sigma: at(height) })
}

impl Desk {
    fn new(kind: Kind, mutant: Option<Mutant>) -> Desk {
        let client = Client::new(options(kind, 4, mutant)).expect("it fits");
        let now = Now { mono: Mono(0), wall: Wall(0) };
        let (questions, sent, answers, refused) = Default::default();
        Desk { client, now, questions, sent, answers, refused }
    }

    /// A desk that has asked one read.
    fn reading(kind: Kind, mutant: Option<Mutant>) -> Desk {
        let mut desk = Desk::new(kind, mutant);
        desk.ask(1, true);
        desk
    }

    fn ask(&mut self, id: u64, read: bool) {
        let request = Bytes::from_static(if read { b"read" } else { b"write" });
        self.give(Input::Ask(Ask { id: RequestId(id), read, request }));
    }

    fn give(&mut self, input: Input) {
        let mut out = Outbox::new();
        self.client.handle(self.now, input, &mut out);
        self.take(out);
    }

    fn wait(&mut self, millis: u64) {
        let mut out = Outbox::new();
        self.now.mono = self.now.mono + Duration::from_millis(millis);
        self.client.wake(self.now, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Fast(to, question) => self.questions.push((to, question)),
                Output::Send { to, call, nonce, .. } => self.sent.push((to, call, nonce)),
                Output::Answer { id, response, how, sigma } => self.answers.push((id.0, response, how, sigma)),
                Output::Refuse(id, why) => self.refused.push((id.0, why)),
            }
        }
    }

    fn executor(&self) -> u16 {
        let latest = &self.questions[self.questions.len() - 4..];
        let executing: Vec<u16> = latest.iter().filter(|(_, q)| q.execute).map(|(to, _)| to.0).collect();
        assert_eq!(executing.len(), 1, "one executes");
        executing[0]
    }

    /// Those who do not execute.
    fn others(&self) -> [u16; 3] {
        [1, 2, 3].map(|next| (self.executor() + next) % 4)
    }

    /// A word as it should be, with the answer from whoever executes.
    fn word(&self, from: u16, remembered: Option<Remembered>, answer: &Bytes) -> Word {
        let response = (from == self.executor()).then(|| answer.clone());
        let nonce = self.questions[self.questions.len() - 1].1.nonce;
        Word { from: ReplicaId(from), group: 7, client: 3, nonce, remembered, response }
    }

    fn says(&mut self, from: u16, remembered: Option<Remembered>, answer: &Bytes) {
        let word = self.word(from, remembered, answer);
        self.give(Input::Word(word));
    }

    fn replies(&mut self, from: u16, what: u8) {
        let (_, call, nonce) = self.sent[self.sent.len() - 1];
        let whole = Answer { sketch: Sketch([what; 16]), keep: true, response: Bytes::from(vec![what]) };
        let (from, sigma, result) = (ReplicaId(from), Some(at(50)), whole.sketch);
        let reply = group::Reply { from, group: 7, client: 3, nonce, sigma, result, whole: Some(whole) };
        self.give(Input::Reply(call, reply));
    }
}

#[test]
fn it_needs_a_group_whose_quorums_meet() {
    let misfit = |replicas, kind| Client::new(options(kind, replicas, None)).err();
    assert_eq!((misfit(4, USUAL), misfit(4, STRICT), misfit(5, STRICT)), (None, None, None));
    assert_eq!(misfit(3, USUAL), Some(Misfit::TooFewReplicas));
    assert_eq!(misfit(5, USUAL), Some(Misfit::QuorumsMayMiss));
    assert_eq!(misfit(4, Kind::Origins { faults: 1, quorum: 3 }), Some(Misfit::NoLiarsInOrder));
    assert_eq!(misfit(3, Kind::CrashTolerant), Some(Misfit::NoLiarsInOrder));
}

#[test]
fn three_of_four_that_remember_the_answer_are_enough() {
    let mut desk = Desk::reading(USUAL, None);
    assert_eq!(desk.questions.len(), 4, "all are asked");
    let (executor, [a, b, _]) = (desk.executor(), desk.others());
    desk.says(a, remembered(&PAGE, 9), &PAGE);
    desk.says(executor, remembered(&PAGE, 9), &PAGE);
    assert!(desk.answers.is_empty());
    desk.says(b, remembered(&PAGE, 9), &PAGE);
    assert_eq!(desk.answers, [(1, PAGE, How::Fast, Some(at(9)))]);
    assert!(desk.sent.is_empty() && desk.client.is_idle());
    assert_eq!(desk.client.deadline(), None);
}

#[test]
fn in_the_strict_mode_all_must_remember_it() {
    let mut desk = Desk::reading(STRICT, None);
    (0..3).for_each(|from| desk.says(from, remembered(&PAGE, 9), &PAGE));
    assert!(desk.answers.is_empty());
    desk.says(3, remembered(&PAGE, 9), &PAGE);
    assert_eq!(desk.answers.len(), 1);
    let mut desk = Desk::reading(STRICT, None);
    desk.says(0, None, &PAGE);
    assert_eq!(desk.sent.len(), 4, "one remembers nothing: it is ordered at once");
    (1..3).for_each(|from| desk.replies(from, 8));
    assert_eq!(desk.answers, [(1, Bytes::from_static(&[8]), How::Agreed, Some(at(50)))], "f + 1 replies suffice then");
}

#[test]
fn words_that_are_not_for_this_question_do_not_count() {
    let mut desk = Desk::reading(USUAL, None);
    let (executor, [a, b, c]) = (desk.executor(), desk.others());
    desk.says(executor, remembered(&PAGE, 9), &PAGE);
    desk.says(a, remembered(&PAGE, 9), &PAGE);
    for change in [
        |word: &mut Word| word.group = 8,
        |word: &mut Word| word.client = 4,
        |word: &mut Word| word.nonce -= 1,
        |word: &mut Word| word.from = ReplicaId(4),
    ] {
        let mut word = desk.word(b, remembered(&PAGE, 9), &PAGE);
        change(&mut word);
        desk.give(Input::Word(word));
    }
    desk.says(a, remembered(&PAGE, 9), &PAGE);
    assert!(desk.answers.is_empty(), "and nobody has two words");
    desk.says(b, remembered(&PAGE, 8), &PAGE);
    assert!(desk.answers.is_empty() && desk.sent.is_empty(), "the fourth could decide");
    desk.says(c, None, &PAGE);
    assert_eq!((desk.answers.len(), desk.sent.len()), (0, 4), "no quorum is left: ordered");
}

/// The answer counts only with its own sketch, and whoever executes counts by what it remembers.
#[test]
fn an_answer_that_others_do_not_remember_is_ordered() {
    let other = Bytes::from_static(b"another page");
    let mut desk = Desk::reading(USUAL, None);
    let (executor, others) = (desk.executor(), desk.others());
    others.into_iter().for_each(|from| desk.says(from, remembered(&PAGE, 9), &PAGE));
    assert!(desk.answers.is_empty() && desk.sent.is_empty(), "three are agreed, and there is no answer yet");
    desk.says(executor, remembered(&PAGE, 9), &other);
    assert_eq!((desk.answers.len(), desk.sent.len()), (0, 4));

    let accepted = |mutant| {
        let mut desk = Desk::reading(USUAL, mutant);
        let (executor, [a, b, c]) = (desk.executor(), desk.others());
        desk.says(executor, remembered(&other, 5), &PAGE);
        desk.says(a, remembered(&PAGE, 9), &PAGE);
        desk.says(b, remembered(&PAGE, 9), &PAGE);
        desk.says(c, remembered(&other, 5), &PAGE);
        desk.answers.len()
    };
    assert_eq!((accepted(None), accepted(Some(Mutant::ExecutorTrusted))), (0, 1));
}

/// A page was A, then B, then A again. One honest replica has read it until the first A, one until B, one until the second A; the
/// fourth lies. Reads of B, A and B again, one after the other, must not all be fast: the page was never B after it was A again.
#[test]
fn an_answer_that_comes_back_is_another_one() {
    let (a, b) = (Bytes::from_static(b"A"), Bytes::from_static(b"B"));
    let fast = |mutant, what: &Bytes, heights: [Option<u64>; 4]| {
        let mut desk = Desk::reading(USUAL, mutant);
        for (from, height) in (0..4).zip(heights) {
            desk.says(from, height.and_then(|height| remembered(what, height)), what);
        }
        desk.answers.len() == 1
    };
    // The first is still at 1, the second has read B at 2, the third too; then the third reads A at 3, and the first B at 2.
    let history = |mutant| {
        [
            fast(mutant, &b, [None, Some(2), Some(2), Some(2)]),
            fast(mutant, &a, [Some(1), None, Some(3), Some(3)]),
            fast(mutant, &b, [Some(2), Some(2), None, Some(2)]),
        ]
    };
    assert_eq!(history(Some(Mutant::PlaceUnmatched)), [true; 3]);
    assert_eq!(history(None), [true, false, true]);
}

#[test]
fn who_is_silent_costs_patience_and_then_the_read_is_ordered() {
    let mut desk = Desk::reading(USUAL, None);
    let [a, b, c] = desk.others();
    [a, b, c].into_iter().for_each(|from| desk.says(from, remembered(&PAGE, 9), &PAGE));
    assert_eq!(desk.client.deadline(), Some(Mono(0) + Duration::from_millis(500)));
    desk.wait(499);
    assert!(desk.sent.is_empty());
    desk.wait(1);
    assert_eq!(desk.sent.len(), 4);
    let late = desk.word(desk.executor(), remembered(&PAGE, 9), &PAGE);
    desk.give(Input::Word(late));
    assert!(desk.answers.is_empty(), "too late");
    (0..3).for_each(|from| desk.replies(from, 8));
    assert_eq!(desk.answers, [(1, Bytes::from_static(&[8]), How::Agreed, Some(at(50)))]);

    let mut desk = Desk::reading(USUAL, None);
    let nonce = desk.questions[0].1.nonce;
    desk.give(Input::Unasked(nonce - 1, ReplicaId(desk.executor())));
    assert!(desk.sent.is_empty());
    desk.give(Input::Unasked(nonce, ReplicaId(desk.executor())));
    assert_eq!(desk.sent.len(), 4, "who would execute is not there: nobody waits for it");
}

#[test]
fn one_after_the_other_and_not_too_many() {
    let mut desk = Desk::new(USUAL, None);
    desk.ask(1, false);
    desk.ask(2, true);
    desk.ask(3, false);
    desk.ask(4, true);
    assert_eq!(desk.refused, [(4, Refusal::Busy)]);
    assert_eq!((desk.sent.len(), desk.questions.len()), (4, 0), "the write is under way, the rest waits");
    (0..2).for_each(|from| desk.replies(from, 8));
    assert!(desk.answers.is_empty(), "a write needs 2f + 1 replies too");
    desk.replies(2, 8);
    assert_eq!((desk.answers.len(), desk.questions.len()), (1, 4));
    (0..4).for_each(|from| desk.says(from, remembered(&PAGE, 9), &PAGE));
    assert_eq!(desk.answers.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(desk.sent.len(), 8, "the last one is under way");
    desk.wait(1_000);
    assert_eq!(desk.refused[1..], [(3, Refusal::Group(group::Refusal::Unreachable))]);
    assert!(desk.client.is_idle());
}

#[test]
fn everybody_is_chosen_equally_often() {
    let (mut desk, mut chosen) = (Desk::new(USUAL, None), [0u32; 4]);
    for id in 0..4_000 {
        desk.ask(id, true);
        chosen[usize::from(desk.executor())] += 1;
        (0..4).for_each(|from| desk.says(from, remembered(&PAGE, 9), &PAGE));
    }
    assert!(chosen.iter().all(|times| (850..1_150).contains(times)), "{chosen:?}");
    assert_eq!(desk.client.counts().fast, 4_000);
}

#[test]
fn what_nobody_waits_for_is_not_begun() {
    let mut desk = Desk::reading(USUAL, None);
    desk.ask(2, false);
    desk.ask(3, true);
    desk.give(Input::Forget(RequestId(2)));
    // Of what is under way, or unknown, nothing is forgotten.
    desk.give(Input::Forget(RequestId(1)));
    desk.give(Input::Forget(RequestId(9)));
    for from in 0..4 {
        desk.says(from, remembered(&PAGE, 5), &PAGE);
    }
    assert_eq!((desk.answers.len(), desk.answers[0].0), (1, 1));
    assert!(desk.sent.is_empty() && desk.questions.len() == 8, "the write is not sent, the read behind it is");
    for from in 0..4 {
        desk.says(from, remembered(&PAGE, 5), &PAGE);
    }
    assert_eq!(desk.answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [1, 3]);
    assert!(desk.refused.is_empty() && desk.client.is_idle());
}
