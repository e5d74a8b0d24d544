//! Algorithm 1, step by step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::{Incarnation, KeyHash, KeyRange, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_sketch::group;
use tidings_sketch::history::{History, Options as TableOptions};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::{Of, Sketch, Sketching};
use tidings_sketch::sketcher::{
    Allowance, Alone, Ask, Clean, How, Input, Kind, Options, Output, Ranges, Refusal, Sketcher, Way, Writes,
};
use tidings_sketch::{Answer, CallId, ReplicaId, RequestId};

const USUAL: Kind = Kind::Read { way: Way::Usual, after: None };

/// A sketcher in front of pages that are numbers.
struct Desk {
    sketcher: Sketcher<u64, u64>,
    now: Now,
    last_id: u64,
    height: u64,
    /// What the service has for each request.
    pages: BTreeMap<u64, u64>,
    /// Executions: fast reads and replicated ones.
    executed: (u64, u64),
}

#[derive(Debug, PartialEq)]
enum End {
    Answered(u64, How),
    Refused(Refusal),
}

fn key(request: u64) -> Sketch {
    Sketching::new([1; 32]).begin(Of::Request).number(request).finish()
}

fn answer(request: u64, page: u64) -> Answer<u64> {
    let sketch = Sketching::new([1; 32]).begin(Of::Response).field(&key(request).0).number(page).finish();
    Answer { sketch, keep: true, response: page }
}

fn options() -> Options {
    Options { allowance: None, ..Options::of(4, 1, [5; 32]) }
}

impl Desk {
    fn new(options: Options) -> Desk {
        Desk::with(options, Arc::new(Alone))
    }

    fn with(options: Options, ranges: Arc<dyn Ranges>) -> Desk {
        let table = TableOptions { mutant: options.mutant, ..TableOptions::of(1_000) };
        let history = Arc::new(History::new(&table));
        let sketcher = Sketcher::new(options, history, ranges);
        let now = Now { mono: Mono(0), wall: Wall(0) };
        Desk { sketcher, now, last_id: 0, height: 0, pages: BTreeMap::new(), executed: (0, 0) }
    }

    fn give(&mut self, input: Input<u64, u64>) -> Vec<Output<u64, u64>> {
        let mut out = Outbox::new();
        self.sketcher.handle(self.now, input, &mut out);
        out.into_iter().collect()
    }

    fn ask(&mut self, request: u64, kind: Kind) -> Vec<Output<u64, u64>> {
        self.last_id += 1;
        self.give(Input::Ask(Ask { id: RequestId(self.last_id), key: key(request), kind, client: 1, request }))
    }

    /// What is done so much later.
    fn wake_after(&mut self, long: Duration) -> Vec<Output<u64, u64>> {
        self.now.mono = self.now.mono + long;
        let mut out = Outbox::new();
        self.sketcher.wake(self.now, &mut out);
        out.into_iter().collect()
    }

    fn silences(&self) -> u64 {
        self.sketcher.standing(self.now.mono).iter().map(|standing| standing.silences).sum()
    }

    fn sigma(&mut self) -> Sigma {
        self.height += 1;
        Sigma::new(Incarnation(1), self.height, 0).expect("it is small")
    }

    /// Asks, and does what is asked for in turn; `fast` answers for a replica.
    fn read_with(&mut self, request: u64, kind: Kind, fast: impl Fn(ReplicaId, u64) -> Option<u64>) -> End {
        let mut outputs = self.ask(request, kind);
        loop {
            assert_eq!(outputs.len(), 1, "{outputs:?}");
            let page = self.pages.get(&request).copied().unwrap_or(0);
            outputs = match outputs.remove(0) {
                Output::Fast(call, replica, _) => {
                    self.executed.0 += 1;
                    let answered = fast(replica, page).map(|page| answer(request, page));
                    self.give(Input::Fast(call, answered))
                }
                Output::Replicate(call, ..) => {
                    self.executed.1 += 4;
                    let sigma = self.sigma();
                    self.give(Input::Replicated(call, answer(request, page), Some(sigma)))
                }
                Output::Answer { response, how, .. } => return End::Answered(response, how),
                Output::Refuse(_, why) => return End::Refused(why),
            };
        }
    }

    fn read(&mut self, request: u64) -> End {
        self.read_with(request, USUAL, |_, page| Some(page))
    }
}

fn replicated(outputs: &[Output<u64, u64>]) -> CallId {
    match outputs {
        [Output::Replicate(call, ..)] => *call,
        other => panic!("not replicated: {other:?}"),
    }
}

fn fast(outputs: &[Output<u64, u64>]) -> CallId {
    match outputs {
        [Output::Fast(call, ..)] => *call,
        other => panic!("not fast: {other:?}"),
    }
}

/// §3.4: a read costs one execution, and N more if it is a transition (first reads included).
#[test]
fn executions_per_read_are_one_and_n_for_each_transition() {
    let mut desk = Desk::new(options());
    let (reads, every) = (10_000, 20);
    for read in 0..reads {
        let request = read % 10;
        if (read / 10) % every == 0 {
            *desk.pages.entry(request).or_default() += 1;
        }
        let page = desk.pages[&request];
        assert!(matches!(desk.read(request), End::Answered(seen, _) if seen == page));
    }
    let cost = (desk.executed.0 + desk.executed.1) as f64 / reads as f64;
    let expected = 1.0 + 4.0 / every as f64;
    assert!((cost / expected - 1.0).abs() < 0.01, "{cost} executions a read, not {expected}");
}

#[test]
fn a_mismatch_takes_the_agreed_path_and_is_charged() {
    let mut desk = Desk::new(options());
    desk.read(1);
    let wrong = |replica: ReplicaId, page| Some(if replica == ReplicaId(2) { 666 } else { page });
    for _ in 0..200 {
        assert!(matches!(desk.read_with(1, USUAL, wrong), End::Answered(0, _)));
    }
    let standing = desk.sketcher.standing(desk.now.mono);
    assert!(standing[2].mismatches >= 8 && standing[2].ejected, "{standing:?}");
    assert!([0, 1, 3].iter().all(|other| standing[*other].mismatches == 0));
    assert_eq!(desk.sketcher.counts().transitions, 0, "a mismatch without a transition is none");
}

#[test]
fn a_replica_that_is_ahead_is_not_charged() {
    let mut desk = Desk::new(options());
    for page in 0..50 {
        desk.pages.insert(1, page);
        desk.read(1);
    }
    assert!(desk.sketcher.standing(desk.now.mono).iter().all(|standing| standing.mismatches == 0));
    assert!(desk.sketcher.counts().transitions > 10);
}

/// Silences that are charged if the group answers so long after one replica has not.
fn charged_if_the_group_takes(long: Duration) -> u64 {
    let mut desk = Desk::new(options());
    desk.read(1);
    let call = fast(&desk.ask(1, USUAL));
    assert_eq!(desk.sketcher.deadline(), Some(Mono(0) + Duration::from_secs(1)));
    let vote = replicated(&desk.wake_after(Duration::from_secs(1)));
    assert!(desk.give(Input::Fast(call, Some(answer(1, 0)))).is_empty(), "too late");
    desk.now.mono = desk.now.mono + long;
    let sigma = Some(desk.sigma());
    assert_eq!(desk.give(Input::Replicated(vote, answer(1, 0), sigma)).len(), 1);
    desk.silences()
}

/// Rule I: a page that takes its time says nothing against whoever was asked for it.
#[test]
fn a_silent_replica_costs_patience_and_is_charged_if_others_were_in_time() {
    assert_eq!(charged_if_the_group_takes(Duration::from_millis(900)), 1);
    assert_eq!(charged_if_the_group_takes(Duration::from_millis(1_100)), 0);
}

#[test]
fn who_has_begun_to_answer_may_take_as_long_as_a_vote() {
    let mut desk = Desk::new(options());
    desk.read(1);
    let call = fast(&desk.ask(1, USUAL));
    assert!(desk.give(Input::Began(call)).is_empty());
    assert!(desk.wake_after(Duration::from_secs(5)).is_empty());
    let told = desk.give(Input::Fast(call, Some(answer(1, 0))));
    assert!(matches!(told[..], [Output::Answer { how: How::Fast, .. }]), "{told:?}");
    let call = fast(&desk.ask(1, USUAL));
    desk.give(Input::Began(call));
    replicated(&desk.wake_after(Duration::from_secs(10)));
    assert!(desk.give(Input::Began(call)).is_empty() && desk.sketcher.deadline().is_none(), "that is over");
}

#[test]
fn a_write_is_not_given_up_because_it_takes_its_time() {
    let mut desk = Desk::new(Options { writes: Writes::One, ..options() });
    let call = fast(&desk.ask(1, Kind::Write));
    assert!(desk.wake_after(Duration::from_secs(9)).is_empty());
    let told = desk.give(Input::Fast(call, Some(answer(1, 3))));
    assert!(matches!(told[..], [Output::Answer { response: 3, how: How::Unverified, .. }]), "{told:?}");
    let id = desk.last_id + 1;
    fast(&desk.ask(1, Kind::Write));
    assert_eq!(desk.wake_after(Duration::from_secs(10)), [Output::Refuse(RequestId(id), Refusal::NoAnswer)]);
    assert_eq!(desk.silences(), 0, "slow is not silent");
    assert_eq!(desk.read_with(1, Kind::Write, |_, _| None), End::Refused(Refusal::NoAnswer));
    assert_eq!(desk.silences(), 1, "who breaks off is");
}

#[test]
fn an_unverified_read_is_asked_again_once_and_then_waited_for() {
    let mut desk = Desk::new(options());
    let white = Kind::Read { way: Way::One, after: None };
    fast(&desk.ask(1, white));
    let second = fast(&desk.wake_after(Duration::from_secs(1)));
    assert!(desk.wake_after(Duration::from_secs(9)).is_empty());
    let told = desk.give(Input::Fast(second, Some(answer(1, 3))));
    assert!(matches!(told[..], [Output::Answer { response: 3, .. }]) && desk.silences() == 0, "{told:?}");
    // What nobody answers, such as a page that is longer than any may be, is nobody's fault: whoever asks for it has nobody left out.
    for _ in 0..50 {
        assert_eq!(desk.read_with(2, white, |_, _| None), End::Refused(Refusal::NoAnswer));
    }
    assert_eq!(desk.silences(), 0);
    // Somebody is silent, and others are not.
    for _ in 0..100 {
        desk.read_with(1, white, |replica, page| (replica != ReplicaId(2)).then_some(page));
    }
    assert!(
        desk.sketcher.standing(desk.now.mono)[2].ejected
            && desk.sketcher.standing(desk.now.mono)[2].silences == desk.silences()
    );
}

#[test]
fn white_listed_reads_are_unverified_and_leave_no_trace() {
    let mut desk = Desk::new(options());
    let white = Kind::Read { way: Way::One, after: None };
    assert_eq!(desk.read_with(1, white, |_, _| Some(666)), End::Answered(666, How::Unverified));
    assert_eq!(desk.read(1), End::Answered(0, How::Agreed), "nothing is remembered of it");
    assert_eq!(desk.read_with(1, white, |_, _| None), End::Refused(Refusal::NoAnswer));
}

#[test]
fn black_listed_reads_are_never_fast_and_kept_up() {
    let mut desk = Desk::new(options());
    let black = Kind::Read { way: Way::Replicated, after: None };
    assert_eq!(desk.read_with(1, black, |_, _| None), End::Answered(0, How::Agreed));
    desk.pages.insert(1, 5);
    assert_eq!(desk.read_with(1, black, |_, _| None), End::Answered(5, How::Agreed));
    assert_eq!(desk.read(1), End::Answered(5, How::Fast));
}

/// Rule I, and that it is missed: at most f are left out, however many are charged.
#[test]
fn no_more_than_f_are_left_out() {
    for (mutant, left_out) in [(None, 1), (Some(Mutant::AllEjected), 3)] {
        let mut desk = Desk::new(Options { mutant, ..options() });
        for _ in 0..500 {
            desk.read_with(1, USUAL, |replica, page| (replica == ReplicaId(0)).then_some(page));
        }
        let standing = desk.sketcher.standing(desk.now.mono);
        assert_eq!(standing.iter().filter(|standing| standing.ejected).count(), left_out, "{mutant:?}");
    }
}

/// Rules I and L, and that they are missed: what is listed is not tried, and what a client causes is bounded.
#[test]
fn lists_and_allowances_are_kept_to() {
    let allowance = Some(Allowance { burst: 8, every: Duration::from_secs(3_600) });
    let of = |mutant| {
        let mut desk = Desk::new(Options { mutant, allowance, ..options() });
        for page in 0..17 {
            desk.pages.insert(1, page);
            desk.read(1);
        }
        let tried = desk.sketcher.counts().tried_fast;
        let listed_is_tried = desk.read(1) == End::Answered(16, How::Fast);
        assert_eq!(desk.sketcher.counts().tried_fast > tried, listed_is_tried);
        let refused = (100..120).filter(|request| desk.read(*request) == End::Refused(Refusal::TooManyReplicated));
        (listed_is_tried, refused.count())
    };
    assert_eq!(of(None), (false, 13));
    assert_eq!(of(Some(Mutant::BlackListIgnored)), (true, 13));
    assert_eq!(of(Some(Mutant::AllowanceIgnored)), (false, 0));
}

#[test]
fn what_changes_with_every_read_is_listed_until_it_settles() {
    let mut desk = Desk::new(options());
    for page in 0..17 {
        desk.pages.insert(1, page);
        desk.read(1);
    }
    let tried = desk.sketcher.counts().tried_fast;
    (0..16).for_each(|_| assert_eq!(desk.read(1), End::Answered(16, How::Agreed)));
    assert_eq!(desk.sketcher.counts().tried_fast, tried, "no fast read that would most likely fail");
    assert_eq!(desk.read(1), End::Answered(16, How::Fast), "a window without changes ends the probation");
    assert_eq!(desk.sketcher.counts().listed, 2);
}

#[test]
fn requests_clients_and_methods_have_bounds() {
    let mut desk = Desk::new(Options { most_requests: 1, ..options() });
    let call = replicated(&desk.ask(1, USUAL));
    assert_eq!(desk.ask(2, USUAL), [Output::Refuse(RequestId(2), Refusal::Busy)]);
    let sigma = Some(desk.sigma());
    desk.give(Input::Replicated(call, answer(1, 0), sigma));
    assert_eq!(desk.read(2), End::Answered(0, How::Agreed));

    let allowance = Some(Allowance { burst: 3, every: Duration::from_secs(1) });
    let mut desk = Desk::new(Options { allowance, ..options() });
    (0..3).for_each(|request| assert_eq!(desk.read(request), End::Answered(0, How::Agreed)));
    assert_eq!(desk.read(3), End::Refused(Refusal::TooManyReplicated));
    assert_eq!(desk.read(2), End::Answered(0, How::Fast), "what is remembered costs nothing");
    desk.pages.insert(2, 1);
    assert_eq!(desk.read(2), End::Answered(1, How::Agreed), "a transition is not the client's doing");

    let mut desk = Desk::new(Options { allowance, ..options() });
    let own = Kind::Read { way: Way::Personal, after: None };
    (0..3).for_each(|_| assert_eq!(desk.read_with(1, own, |_, _| None), End::Answered(0, How::Agreed)));
    let refused = desk.read_with(1, own, |_, _| None);
    assert_eq!(refused, End::Refused(Refusal::TooManyReplicated), "it costs as much each time");

    let mut desk = Desk::new(Options { writes: Writes::Refused, ..options() });
    assert_eq!(desk.read_with(1, Kind::Write, |_, _| None), End::Refused(Refusal::WritesRefused));
    let mut desk = Desk::new(Options { writes: Writes::One, ..options() });
    assert_eq!(desk.read_with(1, Kind::Write, |_, _| Some(1)), End::Answered(1, How::Unverified));
    assert_eq!(desk.read_with(1, Kind::Write, |_, _| None), End::Refused(Refusal::NoAnswer));
    assert_eq!(desk.executed, (2, 0), "a write goes to one, once");
}

#[test]
fn no_quorum_is_a_refusal_or_by_rule_a_marked_answer() {
    let why = group::Refusal::Disagreement;
    let mut desk = Desk::new(options());
    let call = replicated(&desk.ask(1, USUAL));
    let refused = desk.give(Input::NotReplicated(call, why, Some(answer(1, 7))));
    assert_eq!(refused, [Output::Refuse(RequestId(1), Refusal::Group(why))]);
    let mut desk = Desk::new(Options { unverified_rather_than_none: true, ..options() });
    let call = replicated(&desk.ask(1, USUAL));
    let marked = desk.give(Input::NotReplicated(call, why, Some(answer(1, 7))));
    let unverified = Output::Answer { id: RequestId(1), response: 7, how: How::Unverified, sigma: None };
    assert_eq!(marked, [unverified]);
    replicated(&desk.ask(1, USUAL));
}

/// Rule A: with a share g of replicas that are out of date (here one that lies and one that lags, of four), k stale reads in a row have
/// probability gᵏ: more than six are fewer than 1.6 %.
#[test]
fn stale_reads_in_a_row_are_as_rare_as_an_unforeseen_choice_makes_them() {
    let mut desk = Desk::new(options());
    let (trials, mut rows) = (20_000, [0_u32; 7]);
    for request in 0..trials {
        desk.read(request);
        desk.pages.insert(request, 1);
        let out_of_date = |replica: ReplicaId, page| Some(if replica.0 < 2 { 0 } else { page });
        let mut stale = 0;
        while desk.read_with(request, USUAL, out_of_date) == End::Answered(0, How::Fast) {
            stale += 1;
        }
        rows.iter_mut().take(stale).for_each(|row| *row += 1);
        assert_eq!(desk.read(request), End::Answered(1, How::Fast), "and never again");
        desk.pages.remove(&request);
    }
    for (k, times) in (1..).zip(rows) {
        let (share, trials) = (0.5_f64.powi(k), trials as f64);
        // Four standard deviations of a binomial.
        let near = 4.0 * (trials * share * (1.0 - share)).sqrt();
        assert!((f64::from(times) - trials * share).abs() < near, "{k} in a row {times} times of {trials}");
    }
    assert!(f64::from(rows[6]) < 0.016 * trials as f64, "{rows:?}");
}

/// Rule E: two votes at the same time with two results; which is the newer one is not known.
#[test]
fn overlapping_votes_that_differ_are_not_remembered() {
    let third_is_fast = |mutant| {
        let mut desk = Desk::new(Options { mutant, ..options() });
        two_votes_at_once(&mut desk);
        matches!(desk.ask(1, USUAL)[..], [Output::Fast(..)])
    };
    assert!(third_is_fast(Some(Mutant::OverlapKept)), "without the rule whichever ends last is remembered");
    assert!(!third_is_fast(None));
    let mut desk = Desk::new(options());
    two_votes_at_once(&mut desk);
    let third = replicated(&desk.ask(1, USUAL));
    desk.give(Input::Replicated(third, answer(1, 8), None));
    fast(&desk.ask(1, USUAL));
}

fn two_votes_at_once(desk: &mut Desk) {
    let (first, second) = (replicated(&desk.ask(1, USUAL)), replicated(&desk.ask(1, USUAL)));
    desk.give(Input::Replicated(second, answer(1, 8), None));
    desk.give(Input::Replicated(first, answer(1, 7), None));
}

/// Rule K: a fast read needs an entry above the session's last write.
#[test]
fn a_session_reads_its_own_writes() {
    let mut desk = Desk::new(options());
    desk.read(1);
    let call = replicated(&desk.ask(1, Kind::Write));
    let sigma = desk.sigma();
    let told = desk.give(Input::Replicated(call, answer(1, 1), Some(sigma)));
    let answered = Output::Answer { id: RequestId(2), response: 1, how: How::Agreed, sigma: Some(sigma) };
    assert_eq!(told, [answered], "σ goes into the session");
    desk.pages.insert(1, 1);
    let own = Kind::Read { way: Way::Usual, after: Some(sigma) };
    assert_eq!(desk.read_with(1, own, |_, _| Some(0)), End::Answered(1, How::Agreed));
    assert_eq!(desk.read_with(1, own, |_, page| Some(page)), End::Answered(1, How::Fast));
}

/// §2.3's example of the photos is more than is claimed: what was read of one request says nothing about another. A replica
/// that has seen neither write answers for the access list, one that has seen both answers for the photos.
#[test]
fn across_requests_nothing_is_claimed() {
    let (list, photos) = (1, 2);
    let mut desk = Desk::new(options());
    desk.read(list);
    desk.read(photos);
    let (mother_removed, photos_added) = (1, 1);
    desk.pages.insert(list, mother_removed);
    desk.pages.insert(photos, photos_added);
    assert_eq!(desk.read(photos), End::Answered(photos_added, How::Agreed));
    let stale = desk.read_with(list, USUAL, |_, _| Some(0));
    assert_eq!(stale, End::Answered(0, How::Fast), "the photos are visible, and so they are to her");
}

/// Leases as placement says them at the instant of the call, and what of them the node has dealt with.
#[derive(Debug, Default)]
struct Leases {
    now: Mutex<Option<LeaseNumber>>,
    clean: Mutex<Clean>,
    /// The rule left out: the check alone decides.
    check_alone: bool,
}

impl Leases {
    fn say(&self, number: u32) {
        *self.now.lock().unwrap() = LeaseNumber::new(number).filter(|_| number > 0);
    }

    /// The node hears of its lease, and deals with it.
    fn deal_with(&self, desk: &mut Desk) {
        self.clean.lock().unwrap().lost(KeyRange::FULL);
        desk.give(Input::Lost(KeyRange::FULL));
        if let Some(lease) = *self.now.lock().unwrap() {
            self.clean.lock().unwrap().gained(KeyRange::FULL, lease);
        }
    }
}

impl Ranges for Leases {
    fn held(&self, at: KeyHash) -> Option<LeaseNumber> {
        let now = *self.now.lock().unwrap();
        if self.check_alone { now } else { self.clean.lock().unwrap().held(at, now) }
    }
}

/// A range is lost and granted again before the node has heard of the loss. Another sketcher has answered for it meanwhile.
fn regained_unnoticed(check_alone: bool) -> (End, End) {
    let leases = Arc::new(Leases { check_alone, ..Leases::default() });
    let mut desk = Desk::with(options(), leases.clone());
    leases.say(1);
    leases.deal_with(&mut desk);
    assert_eq!(desk.read(1), End::Answered(0, How::Agreed));
    // Somebody else's now, who has answered with the new page.
    desk.pages.insert(1, 5);
    leases.say(3);
    let stale = |_, _| Some(0);
    let unnoticed = desk.read_with(1, USUAL, stale);
    leases.deal_with(&mut desk);
    (unnoticed, desk.read_with(1, USUAL, stale))
}

/// Rule J: placement tells of losses late, so entries of an earlier lease are used by nobody.
#[test]
fn a_range_that_was_lost_unnoticed_is_not_answered_for() {
    let end = regained_unnoticed(false);
    assert_eq!(end, (End::Refused(Refusal::Moved), End::Answered(5, How::Agreed)));
    assert_eq!(regained_unnoticed(true).0, End::Answered(0, How::Fast), "without the rule a read goes back");
}

/// Rule J: whoever does not hold the range asks the group, and leaves no trace.
#[test]
fn what_goes_past_the_table_is_agreed_on_and_not_remembered() {
    let leases = Arc::new(Leases::default());
    let allowance = Some(Allowance { burst: 3, every: Duration::from_secs(3_600) });
    let mut desk = Desk::with(Options { allowance, writes: Writes::One, ..options() }, leases.clone());
    let aside = |desk: &mut Desk, kind| {
        desk.last_id += 1;
        desk.give(Input::Aside(Ask { id: RequestId(desk.last_id), key: key(1), kind, client: 1, request: 1 }))
    };
    for _ in 0..3 {
        let call = replicated(&aside(&mut desk, USUAL));
        let sigma = desk.sigma();
        let outputs = desk.give(Input::Replicated(call, answer(1, 4), Some(sigma)));
        assert!(matches!(outputs[..], [Output::Answer { response: 4, how: How::Agreed, .. }]), "{outputs:?}");
    }
    // Rule L: whoever makes queries up is held back, whoever holds their range.
    assert_eq!(aside(&mut desk, USUAL), [Output::Refuse(RequestId(4), Refusal::TooManyReplicated)]);
    fast(&aside(&mut desk, Kind::Write));
    fast(&aside(&mut desk, Kind::Read { way: Way::One, after: None }));
    let counts = desk.sketcher.counts();
    assert_eq!((counts.asked, counts.aside, counts.refused), (6, 6, 1), "{counts:?}");
    assert_eq!(desk.read(1), End::Refused(Refusal::Moved));
    leases.say(1);
    leases.deal_with(&mut desk);
    assert_eq!(desk.read(1), End::Refused(Refusal::TooManyReplicated), "it is one allowance");
    desk.now.mono = desk.now.mono + Duration::from_secs(3_600);
    assert_eq!(desk.read(1), End::Answered(0, How::Agreed), "nothing was remembered");
}
