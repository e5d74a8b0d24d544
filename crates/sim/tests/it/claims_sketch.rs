//! Each claim about Sketch is broken by the facts that break it, and by no others.

use bytes::Bytes;
use tidings_sim::clock::SimTime;
use tidings_sim::invariants::{Claims, Sight};
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::sketch::fact::{Fact, Life};
use tidings_sim::scenarios::sketch::{direct_claims, sketch_claims};
use tidings_sketch::sketcher::How;

const NODE: Life = Life { host: HostId(5), start: 1 };

fn asks(id: u64, write: bool) -> Fact {
    Fact::Asks { id, page: 1, write, own: None, calm: false }
}

fn answered(id: u64, text: &str, how: How) -> Fact {
    Fact::Answered { id, response: Bytes::from(text.to_owned()), how, by: Some(NODE) }
}

fn came(request: &str, result: &str) -> Fact {
    Fact::Came { name: (1, 1), request: Bytes::from(request.to_owned()), result: Bytes::from(result.to_owned()) }
}

fn agreed(text: &str) -> Fact {
    Fact::Agreed { by: NODE, page: 1, response: Bytes::from(text.to_owned()) }
}

/// Page 1 is written: twice.
fn written() -> Vec<Fact> {
    vec![
        asks(1, true),
        came("w 1 1", "1 1"),
        answered(1, "1 1", How::Agreed),
        asks(2, true),
        came("w 1 2", "1 2"),
        answered(2, "1 2", How::Agreed),
    ]
}

fn read(id: u64, text: &str) -> Vec<Fact> {
    vec![asks(id, false), agreed(text), answered(id, text, How::Agreed)]
}

/// Shows facts one second apart; the claim that is broken, if one is.
fn judge(facts: &[Fact]) -> Option<String> {
    broken_by(sketch_claims(), facts)
}

fn broken_by(mut claims: Claims<Fact>, facts: &[Fact]) -> Option<String> {
    for (i, fact) in facts.iter().enumerate() {
        let sight = Sight { at: SimTime(i as u64 * 1_000_000_000), host: HostId(7), clock: &|_| None };
        if let Err(violation) = claims.observe(&sight, fact) {
            return Some(violation.invariant);
        }
    }
    claims.conclude().err().map(|violation| violation.invariant)
}

fn breaks(facts: Vec<Fact>, claim: &str) {
    assert_eq!(judge(&facts).as_deref(), Some(claim), "{facts:?}");
}

fn holds(facts: Vec<Fact>) {
    assert_eq!(judge(&facts), None, "{facts:?}");
}

#[test]
fn answers_were_true() {
    holds([written(), read(3, "1 2")].concat());
    breaks([written(), read(3, "1 7")].concat(), "answers_were_true");
    breaks([written(), read(3, "2 0")].concat(), "answers_were_true");
}

#[test]
fn reads_are_delayed_once() {
    let claim = "reads_are_delayed_once";
    holds([written(), read(3, "1 2"), read(4, "1 2")].concat());
    breaks([written(), read(3, "1 2"), read(4, "1 1")].concat(), claim);
    breaks([written(), read(3, "1 1")].concat(), claim);
}

#[test]
fn sessions_read_their_writes() {
    let own = |own| Fact::Asks { id: 4, page: 1, write: false, own: Some(own), calm: false };
    let early = |own_version| {
        vec![
            own(own_version),
            asks(1, true),
            came("w 1 1", "1 1"),
            answered(1, "1 1", How::Agreed),
            answered(4, "1 1", How::Agreed),
        ]
    };
    holds(early(1));
    breaks(early(2), "sessions_read_their_writes");
}

#[test]
fn one_replicas_word_is_not_enough() {
    let fast = |id| vec![asks(id, false), answered(id, "1 2", How::Fast)];
    holds([written(), read(3, "1 2"), fast(4)].concat());
    breaks([written(), fast(4)].concat(), "fast_answers_were_agreed_on");
}

/// D-Prophecy: no node heard of it, but the order did.
#[test]
fn what_is_remembered_was_ordered() {
    let fast = |id| {
        let response = Bytes::from_static(b"1 2");
        vec![asks(id, false), Fact::Answered { id, response, how: How::Fast, by: None }]
    };
    let judge = |facts: Vec<Fact>| broken_by(direct_claims(), &facts);
    assert_eq!(judge([written(), vec![came("r 1", "1 2")], fast(4)].concat()), None);
    let claim = Some("remembered_answers_were_ordered");
    assert_eq!(judge([written(), fast(4)].concat()).as_deref(), claim);
    assert_eq!(judge([written(), vec![came("r 1", "1 1")], fast(4)].concat()).as_deref(), claim);
}

/// A read whose client died is repeated by others, and was not stale.
#[test]
fn a_read_that_nobody_heard_of_is_repeated() {
    let orders = |id| Fact::Orders { id, client: 8, nonce: 1 };
    let name = (8, 1);
    let came = || Fact::Came { name, request: Bytes::from_static(b"r 1"), result: Bytes::from_static(b"1 1") };
    let stale = |between: Vec<Fact>| {
        let written = written();
        let response = Bytes::from_static(b"1 1");
        let read = vec![asks(9, false), Fact::Answered { id: 9, response, how: How::Fast, by: None }];
        broken_by(direct_claims(), &[written[..3].to_vec(), between, written[3..].to_vec(), read].concat())
    };
    assert_eq!(stale(vec![asks(7, false), orders(7), came()]), None);
    let other = Fact::Orders { id: 7, client: 8, nonce: 2 };
    assert_eq!(stale(vec![asks(7, false), other, came()]).as_deref(), Some("reads_are_delayed_once"));
}

#[test]
fn writes_are_linearizable() {
    let claim = "writes_are_linearizable";
    holds(written());
    breaks([written(), vec![came("w 1 2", "1 3")]].concat(), claim);
    breaks([written(), vec![asks(3, true), came("w 1 3", "1 2"), answered(3, "1 2", How::Agreed)]].concat(), claim);
}

#[test]
fn replicas_are_the_same_at_every_height() {
    let executed = |digest| Fact::Executed { life: 1, height: 3, digest };
    holds(vec![executed(7), executed(7)]);
    breaks(vec![executed(7), executed(8)], "correct_replicas_never_diverge");
}

#[test]
fn who_asks_after_the_faults_is_answered() {
    let claim = "calm_requests_are_answered";
    let calm = || Fact::Asks { id: 9, page: 1, write: false, own: None, calm: true };
    let refused = |moved| Fact::Refused { id: 9, why: "busy".to_owned(), moved };
    holds(vec![calm(), answered(9, "1 0", How::Agreed)]);
    holds(vec![calm(), refused(true)]);
    breaks(vec![calm()], claim);
    breaks(vec![calm(), refused(false)], claim);
}
