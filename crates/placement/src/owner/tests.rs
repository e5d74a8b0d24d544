use super::*;
use tidings_base::{KeyHash, KeyRange, LeaseNumber, Wall};

const LEASE: Duration = Duration::from_secs(12);

struct Bench {
    owner: Owner,
    now: Mono,
    out: Outbox<Output>,
    seq: u64,
}

fn leased(start: u64, last: u64, lease: u32) -> Leased {
    let range = KeyRange::new(KeyHash(start), KeyHash(last));
    Leased { range, lease: LeaseNumber::new(lease).unwrap() }
}

impl Bench {
    fn new(mutant: Option<Mutant>) -> Bench {
        let options = Options {
            namespace: "n".into(),
            owner: "a".into(),
            address: "a:1".into(),
            incarnation: 1,
            seed: 7,
            proof: None,
            hands_over: true,
            renew: Duration::from_millis(2_500),
            mutant,
        };
        let mut bench = Bench { owner: Owner::new(options), now: Mono(1_000), out: Outbox::new(), seq: 0 };
        bench.input(Input::Start);
        bench
    }

    fn now(&self) -> Now {
        Now { mono: self.now, wall: Wall(0) }
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.owner.handle(now, input, &mut self.out);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.owner.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let now = self.now();
            self.owner.wake(now, &mut self.out);
        }
        self.now = end;
    }

    /// What was put out so far: the last poll, if there is one, and the rest.
    fn polls(&mut self) -> Vec<(Ticket, v1::OwnerPoll)> {
        let polls = self.out.drain().filter_map(|output| match output {
            Output::Send { ticket, poll, .. } => Some((ticket, *poll)),
            _ => None,
        });
        polls.collect()
    }

    fn last_poll(&mut self) -> (Ticket, v1::OwnerPoll) {
        self.polls().pop().expect("a poll")
    }

    fn answer(&mut self, poll: &v1::OwnerPoll) -> v1::OwnerAnswer {
        self.seq += 1;
        v1::OwnerAnswer {
            epoch: 1,
            nonce: poll.nonce,
            seq: self.seq,
            heard: poll.seq,
            lease_us: LEASE.as_micros() as u64,
            ..Default::default()
        }
    }

    /// Gets the owner past the first hello; the poll that carries the epoch.
    fn greeted(&mut self) -> (Ticket, v1::OwnerPoll) {
        let (ticket, poll) = self.last_poll();
        let hello = v1::OwnerAnswer { hello: true, ..self.answer(&poll) };
        self.input(Input::Answered { ticket, result: Ok(hello) });
        let (ticket, poll) = self.last_poll();
        assert_eq!(poll.epoch, 1);
        (ticket, poll)
    }

    fn granted(&mut self, lease: Leased) {
        let (ticket, poll) = self.greeted();
        let grants = vec![v1::Grant { range: Some(lease.into()), ..Default::default() }];
        let answer = v1::OwnerAnswer { grants, ..self.answer(&poll) };
        self.input(Input::Answered { ticket, result: Ok(answer) });
    }

    fn claims(&self) -> Vec<Leased> {
        self.owner.claims(self.now)
    }
}

#[test]
fn a_grant_is_dated_from_the_send_time_of_the_poll_it_answers() {
    for (mutant, held) in [(None, false), (Some(Mutant::LeaseFromReceipt), true)] {
        let mut bench = Bench::new(mutant);
        let lease = leased(0, 99, 1);
        let (ticket, poll) = bench.greeted();
        bench.now = bench.now + Duration::from_secs(2);
        let grants = vec![v1::Grant { range: Some(lease.into()), ..Default::default() }];
        let answer = v1::OwnerAnswer { grants, ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        assert_eq!(bench.claims(), [lease]);
        bench.now = bench.now + (LEASE - Duration::from_secs(1));
        assert_eq!(bench.claims() == [lease], held, "{mutant:?}");
    }
}

#[test]
fn a_lapsed_lease_is_refused_and_not_revived() {
    for (mutant, revived) in [(None, false), (Some(Mutant::LapseRevived), true)] {
        let mut bench = Bench::new(mutant);
        let lease = leased(0, 99, 1);
        bench.granted(lease);
        bench.pass(LEASE + Duration::from_secs(1));
        assert_eq!(bench.claims(), []);
        let (ticket, poll) = bench.last_poll();
        let answer = v1::OwnerAnswer { renewals: vec![lease.into()], ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        assert_eq!(bench.claims() == [lease], revived, "{mutant:?}");
        bench.pass(Duration::from_secs(1));
        if !revived {
            assert_eq!(bench.last_poll().1.refused, [v1::LeasedRange::from(lease)]);
        }
    }
}

#[test]
fn a_repeated_grant_does_not_revive_what_lapsed() {
    let mut bench = Bench::new(None);
    let lease = leased(0, 99, 1);
    bench.granted(lease);
    bench.pass(LEASE + Duration::from_secs(1));
    let (ticket, poll) = bench.last_poll();
    let grants = vec![v1::Grant { range: Some(lease.into()), ..Default::default() }];
    let answer = v1::OwnerAnswer { grants, ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    assert_eq!(bench.claims(), []);
}

#[test]
fn an_answer_that_crossed_a_later_poll_is_dropped_for_good() {
    for (mutant, taken) in [(None, false), (Some(Mutant::NoSequenceNumbers), true)] {
        let mut bench = Bench::new(mutant);
        let (ticket, poll) = bench.greeted();
        let grants = vec![v1::Grant { range: Some(leased(0, 99, 1).into()), ..Default::default() }];
        let late = v1::OwnerAnswer { grants, ..bench.answer(&poll) };
        // The owner gives up waiting and asks again before the answer comes.
        bench.pass(Duration::from_secs(5));
        bench.input(Input::Answered { ticket, result: Ok(late) });
        assert_eq!(!bench.claims().is_empty(), taken, "{mutant:?}");
    }
}

#[test]
fn a_racing_answer_still_counts_as_heard() {
    for (mutant, heard) in [(None, 2), (Some(Mutant::HeardNotAdvanced), 1)] {
        let mut bench = Bench::new(mutant);
        let (ticket, poll) = bench.greeted();
        let late = bench.answer(&poll);
        bench.pass(Duration::from_secs(5));
        bench.input(Input::Answered { ticket, result: Ok(late) });
        bench.pass(Duration::from_secs(5));
        assert_eq!(bench.last_poll().1.heard, heard, "{mutant:?}");
    }
}

#[test]
fn lower_epochs_are_refused_and_a_higher_one_is_greeted_before_it_is_believed() {
    let mut bench = Bench::new(None);
    let lease = leased(0, 99, 1);
    bench.granted(lease);
    let (ticket, poll) = {
        bench.pass(Duration::from_millis(10));
        bench.last_poll()
    };
    // A new leader that says "you hold nothing" before we spoke under its epoch.
    let answer = v1::OwnerAnswer { epoch: 2, seq: 1, ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    assert_eq!(bench.claims(), [lease]);
    let (ticket, poll) = bench.last_poll();
    assert_eq!((poll.epoch, poll.heard, &poll.claims[..]), (2, 1, &[lease.into()][..]));
    // The old leader's answer comes late.
    let old = v1::OwnerAnswer { epoch: 1, ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(old) });
    assert_eq!(bench.claims(), [lease]);
}

#[test]
fn what_is_not_in_the_complete_set_is_recalled_before_the_next_poll() {
    let mut bench = Bench::new(None);
    bench.granted(leased(0, 99, 1));
    bench.pass(Duration::from_millis(10));
    let (ticket, poll) = bench.last_poll();
    // The manager has cut the range and recalls the second half; the first keeps its number.
    let answer = v1::OwnerAnswer { renewals: vec![leased(0, 49, 1).into()], ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    bench.pass(Duration::from_millis(10));
    let outputs: Vec<Output> = bench.out.drain().collect();
    let published = outputs.iter().position(|o| matches!(o, Output::Holdings(h) if h.len() == 1)).unwrap();
    let polled = outputs.iter().position(|o| matches!(o, Output::Send { .. })).unwrap();
    assert!(published < polled);
    let revoked = OwnershipChange { granted: vec![], revoked: vec![leased(50, 99, 1)] };
    assert!(outputs.contains(&Output::Changed(revoked)));
    assert_eq!(bench.claims(), [leased(0, 49, 1)]);
}

#[test]
fn a_frozen_range_is_claimed_and_not_served_until_it_is_released_or_the_move_fails() {
    for done in [true, false] {
        let mut bench = Bench::new(None);
        let lease = leased(0, 99, 1);
        bench.granted(lease);
        bench.pass(Duration::from_millis(10));
        let (ticket, poll) = bench.last_poll();
        let to = v1::Move { owner: "b".into(), incarnation: 4, within_ms: 1_000, ..Default::default() };
        let moves = vec![v1::Move { range: Some(lease.into()), token: 5, ..to }];
        let answer = v1::OwnerAnswer { renewals: vec![lease.into()], moves, ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        let outputs: Vec<Output> = bench.out.drain().collect();
        assert!(outputs.contains(&Output::Holdings(vec![])), "frozen: not served");
        assert!(outputs.iter().any(|o| matches!(o, Output::Export(to) if to.token == 5)));
        assert_eq!(bench.claims(), [lease], "frozen: still claimed");
        bench.input(Input::Exported { token: 5, done });
        bench.pass(Duration::from_millis(5));
        let (_, poll) = bench.last_poll();
        let (owner, incarnation) = ("b".into(), 4);
        let said = v1::Handover { range: Some(lease.into()), token: 5, failed: !done, owner, incarnation };
        assert_eq!(poll.released, [said], "a manager that never heard of the move can go on with it");
        assert_eq!(bench.claims().is_empty(), done);
    }
}

#[test]
fn a_clean_grant_without_its_state_is_refused() {
    for (mutant, taken) in [(None, false), (Some(Mutant::MissingTaken), true)] {
        let mut bench = Bench::new(mutant);
        let (ticket, poll) = bench.greeted();
        let grant = v1::Grant { range: Some(leased(0, 99, 3).into()), token: 9, clean: true };
        let answer = v1::OwnerAnswer { grants: vec![grant], ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        assert_eq!(!bench.claims().is_empty(), taken, "{mutant:?}");
        bench.pass(Duration::from_millis(10));
        let refused = bench.last_poll().1.refused;
        assert_eq!(refused == [v1::LeasedRange::from(leased(0, 99, 3))], !taken, "{mutant:?}");
    }
}

#[test]
fn a_move_here_that_is_not_named_any_more_is_over_and_its_state_of_no_use() {
    let mut bench = Bench::new(None);
    let import =
        |token| v1::Move { range: Some(leased(0, 99, 3).into()), token, within_ms: 30_000, ..Default::default() };
    let (ticket, poll) = bench.greeted();
    let answer = v1::OwnerAnswer { imports: vec![import(5)], ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    let answers = |bench: &mut Bench, imports: Vec<v1::Move>, grants: Vec<v1::Grant>| -> Vec<u64> {
        bench.pass(Duration::from_secs(2));
        let (ticket, poll) = bench.last_poll();
        let answer = v1::OwnerAnswer { imports, grants, ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        let over = |output| match output {
            Output::ImportOver(token) => Some(token),
            _ => None,
        };
        bench.out.drain().filter_map(over).collect()
    };
    // The other owner is quicker than the manager: what arrived after the question may be of a move that it does not tell yet.
    bench.pass(Duration::from_secs(2));
    bench.input(Input::Imported { token: 5, done: true });
    bench.input(Input::Imported { token: 6, done: true });
    let (ticket, poll) = bench.last_poll();
    let answer = v1::OwnerAnswer { imports: vec![import(5)], ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    assert!(bench.out.drain().all(|output| !matches!(output, Output::ImportOver(_))));
    assert!(answers(&mut bench, vec![import(5), import(6)], vec![]).is_empty());
    assert_eq!(answers(&mut bench, vec![import(6)], vec![]), [5], "given up");
    let grant = |token| v1::Grant { range: Some(leased(0, 99, 3).into()), token, clean: true };
    assert!(answers(&mut bench, vec![], vec![grant(6)]).is_empty(), "granted");
    assert_eq!(bench.claims(), [leased(0, 99, 3)]);
    assert_eq!(answers(&mut bench, vec![], vec![]), [6], "done");
    // What is over is missing, if a manager should grant it all the same.
    answers(&mut bench, vec![], vec![grant(5)]);
    assert_eq!(bench.claims(), []);
}

#[test]
fn what_arrived_is_told_to_a_manager_that_did_not_name_it_and_kept_while_that_one_does() {
    let mut bench = Bench::new(None);
    let (ticket, poll) = bench.greeted();
    bench.input(Input::Imported { token: 9, done: true });
    let answer = bench.answer(&poll);
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    let answers = |bench: &mut Bench, answer: v1::OwnerAnswer| {
        bench.pass(Duration::from_secs(2));
        let (ticket, poll) = bench.last_poll();
        let said: Vec<u64> = poll.imported.iter().map(|arrived| arrived.token).collect();
        let answer = v1::OwnerAnswer { imports: answer.imports, grants: answer.grants, ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        said
    };
    let unranged = || {
        let imports = vec![v1::Move { token: 9, ..Default::default() }];
        v1::OwnerAnswer { imports, ..Default::default() }
    };
    for _ in 0..3 {
        assert_eq!(answers(&mut bench, unranged()), [9]);
    }
    let grants = vec![v1::Grant { range: Some(leased(0, 99, 3).into()), token: 9, clean: true }];
    answers(&mut bench, v1::OwnerAnswer { grants, ..Default::default() });
    assert_eq!(bench.claims(), [leased(0, 99, 3)]);
    answers(&mut bench, v1::OwnerAnswer::default());
    assert_eq!(answers(&mut bench, v1::OwnerAnswer::default()), [0_u64; 0], "it is over");
}

#[test]
fn state_that_arrived_is_good_for_one_grant() {
    let mut bench = Bench::new(None);
    let grant = |first, last| v1::Grant { range: Some(leased(first, last, 3).into()), token: 9, clean: true };
    let answers = |bench: &mut Bench, renewals: Vec<Leased>, grants: Vec<v1::Grant>| {
        bench.pass(Duration::from_secs(2));
        let (ticket, poll) = bench.last_poll();
        let renewals = renewals.into_iter().map(Into::into).collect();
        // Leaders that know nothing of the move name it back as long as it is said to have arrived.
        let imports = vec![v1::Move { token: 9, ..Default::default() }];
        let answer = v1::OwnerAnswer { renewals, grants, imports, ..bench.answer(&poll) };
        bench.input(Input::Answered { ticket, result: Ok(answer) });
        bench.claims()
    };
    let (ticket, poll) = bench.greeted();
    bench.input(Input::Imported { token: 9, done: true });
    let answer = v1::OwnerAnswer { grants: vec![grant(0, 99)], ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    assert_eq!(bench.claims(), [leased(0, 99, 3)]);
    assert_eq!(answers(&mut bench, vec![], vec![grant(0, 99)]), [leased(0, 99, 3)], "the same once more");
    // Half of it is recalled, and a leader that knows of the move from the table alone grants it as it came: what was made of
    // it since was with the half that went.
    assert_eq!(answers(&mut bench, vec![leased(0, 49, 3)], vec![]), [leased(0, 49, 3)]);
    assert_eq!(answers(&mut bench, vec![leased(0, 49, 3)], vec![grant(50, 99)]), [leased(0, 49, 3)]);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.last_poll().1.refused, [v1::LeasedRange::from(leased(50, 99, 3))]);
}

#[test]
fn what_arrives_behind_a_question_is_not_judged_by_its_answer() {
    let mut bench = Bench::new(None);
    let (ticket, poll) = bench.greeted();
    let import = v1::Move { range: Some(leased(0, 99, 3).into()), token: 5, within_ms: 30_000, ..Default::default() };
    let answer = v1::OwnerAnswer { imports: vec![import], ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    bench.pass(Duration::from_secs(2));
    let (ticket, poll) = bench.last_poll();
    bench.input(Input::Imported { token: 5, done: true });
    // A new leader, that has not heard of the move from anybody.
    let answer = bench.answer(&poll);
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    assert!(bench.out.drain().all(|output| !matches!(output, Output::ImportOver(_))));
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.last_poll().1.imported.len(), 1);
}

#[test]
fn an_unhealthy_owner_holds_nothing_and_asks_for_nothing() {
    let mut bench = Bench::new(None);
    bench.granted(leased(0, 99, 1));
    bench.input(Input::Healthy(false));
    assert_eq!(bench.claims(), []);
    assert!(bench.polls().last().is_some_and(|(_, poll)| poll.claims.is_empty()), "it says so once");
}

#[test]
fn what_is_given_up_is_said_until_a_manager_has_heard_it() {
    for input in [Input::Healthy(false), Input::Leave] {
        let leaves = matches!(input, Input::Leave);
        let mut bench = Bench::new(None);
        bench.granted(leased(0, 99, 1));
        bench.input(input);
        let (ticket, poll) = bench.last_poll();
        assert!(poll.unhealthy && poll.claims.is_empty());
        assert_eq!(poll.wait_ms == 0, leaves, "whoever leaves waits for nothing");
        // An answer of the manager's was lost, so that what this said was dropped as a race (F5).
        bench.seq += 1;
        let crossed = bench.answer(&poll);
        bench.input(Input::Answered { ticket, result: Ok(crossed) });
        assert_eq!(bench.claims(), []);
        bench.pass(Duration::from_secs(1));
        let (ticket, poll) = bench.last_poll();
        assert!(poll.unhealthy && poll.claims.is_empty(), "it is said again");
        let heard = bench.answer(&poll);
        bench.input(Input::Answered { ticket, result: Ok(heard) });
        let left = bench.out.drain().any(|output| output == Output::Left);
        assert_eq!(left, leaves);
        bench.pass(Duration::from_secs(60));
        assert_eq!(bench.polls(), [], "and then no more");
    }
}

#[test]
fn all_managers_are_asked_when_the_leader_is_silent_and_the_leader_alone_once_one_has_answered() {
    let mut bench = Bench::new(None);
    let asked = |bench: &mut Bench| {
        let mut asked = bench.out.drain().filter_map(|output| match output {
            Output::Send { ticket, to, poll, .. } => Some((ticket, to, poll)),
            _ => None,
        });
        asked.next_back().expect("it asks")
    };
    for to in [To::Leader, To::Leader, To::Everyone, To::Everyone] {
        let (ticket, asks, _) = asked(&mut bench);
        assert_eq!(asks, to);
        let silent = Err(Error::new("control.deadline", Class::OutcomeUnknown, "nobody answers"));
        bench.input(Input::Answered { ticket, result: silent });
        bench.now = bench.owner.deadline().unwrap();
        bench.pass(Duration::ZERO);
    }
    let (ticket, _, poll) = asked(&mut bench);
    let hello = v1::OwnerAnswer { hello: true, ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(hello) });
    assert_eq!(asked(&mut bench).1, To::Leader);
}

#[test]
fn after_silence_it_asks_again_behind_a_pause_that_doubles_and_exceeds_the_round_trip() {
    let mut bench = Bench::new(None);
    let (ticket, poll) = bench.greeted();
    bench.now = bench.now + Duration::from_millis(40);
    let answer = bench.answer(&poll);
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    let round_trip = bench.owner.talk.round_trip();
    assert!(round_trip > Duration::ZERO);
    // The poll that nobody answers.
    bench.now = bench.owner.deadline().unwrap();
    bench.pass(Duration::ZERO);
    bench.last_poll();
    for least in [FIRST_PAUSE / 2, FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4] {
        bench.now = bench.owner.deadline().unwrap();
        bench.pass(Duration::ZERO);
        assert_eq!(bench.polls(), [], "not at once");
        let pause = bench.owner.deadline().unwrap().since(bench.now);
        assert!(pause >= round_trip + least && pause <= round_trip + least * 3, "{pause:?} of {least:?}");
        bench.pass(pause);
        bench.last_poll();
    }
}

#[test]
fn another_address_is_told_at_once() {
    let mut bench = Bench::new(None);
    bench.granted(leased(0, 99, 1));
    bench.polls();
    bench.input(Input::Address("a:1".into()));
    assert_eq!(bench.polls(), [], "it is the same");
    bench.input(Input::Address("b:2".into()));
    assert_eq!(bench.last_poll().1.address, "b:2");
}

#[test]
fn what_was_lost_while_it_was_copied_is_not_released_as_handed_over() {
    let mut bench = Bench::new(None);
    let lease = leased(0, 99, 1);
    bench.granted(lease);
    bench.pass(Duration::from_millis(10));
    let (ticket, poll) = bench.last_poll();
    let moves = vec![v1::Move { range: Some(lease.into()), token: 5, within_ms: 60_000, ..Default::default() }];
    let answer = v1::OwnerAnswer { renewals: vec![lease.into()], moves, ..bench.answer(&poll) };
    bench.input(Input::Answered { ticket, result: Ok(answer) });
    bench.input(Input::Healthy(false));
    bench.input(Input::Healthy(true));
    bench.out.drain().for_each(drop);
    bench.input(Input::Exported { token: 5, done: true });
    bench.pass(Duration::from_millis(5));
    let (_, poll) = bench.last_poll();
    assert!(poll.released.iter().all(|handover| handover.failed), "{:?}", poll.released);
    assert_eq!(poll.released.len(), 1);
}
