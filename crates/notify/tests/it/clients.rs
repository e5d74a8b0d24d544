//! The client's rules, and its conversation with a registrar.

use crate::desk::{Desk, channel, lease};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use tidings_base::{Machine, Mono, Now, Outbox, Wall};
use tidings_notify::client::{Client, Event, Input, Options, Output};
use tidings_notify::mutant::Mutant;
use tidings_notify::registrar::{self, Registrar};
use tidings_notify::token::Keys;
use tidings_wire::v1;

/// A client and a registrar, and a channel between them that counts.
struct Pair {
    desk: Desk<Registrar>,
    client: Client,
    state: Option<Bytes>,
    events: Vec<Event>,
    /// What was told, and is not acknowledged yet.
    news: Vec<(Bytes, u64)>,
    up: usize,
    down: usize,
    open: bool,
    left: bool,
}

impl Pair {
    fn new(mutant: Option<Mutant>) -> Pair {
        Pair::of(registrar::Options::default(), Options { mutant, ..Default::default() })
    }

    fn of(registrar: registrar::Options, client: Options) -> Pair {
        let (desk, client) = (Desk::registrar(registrar), Client::new(client));
        Pair {
            desk,
            client,
            state: None,
            events: Vec::new(),
            news: Vec::new(),
            up: 0,
            down: 0,
            open: false,
            left: false,
        }
    }

    fn now(&self) -> Now {
        Now { mono: Mono(self.desk.ms * 1_000_000), wall: Wall(0) }
    }

    fn tell(&mut self, input: Input) {
        let (now, mut out) = (self.now(), Outbox::new());
        self.client.handle(now, input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Outbox<Output>) {
        for output in out {
            match output {
                Output::Connect => self.open = true,
                Output::Send(up) => {
                    self.up += up.encoded_len();
                    let (caller, channel) = (crate::desk::ann(), channel(1));
                    self.desk.give(registrar::Input::Up { caller, channel, lease: lease(), message: up });
                }
                Output::WriteState(state) => self.state = Some(state),
                Output::Event(event) => {
                    if let Event::Notify { object, version, .. } = &event {
                        self.news.push((object.clone(), *version));
                    }
                    self.events.push(event);
                }
                Output::Left => self.left = true,
            }
        }
    }

    /// Lets both talk for a while; every object has version 1.
    fn talk(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.desk.match_all(1);
            if std::mem::take(&mut self.open) {
                self.tell(Input::Opened);
            }
            for down in self.desk.downs() {
                self.down += down.encoded_len();
                self.tell(Input::Received(Box::new(down)));
            }
            self.desk.pass(10);
            let (now, mut out) = (self.now(), Outbox::new());
            self.client.wake(now, &mut out);
            self.perform(out);
            for (object, version) in std::mem::take(&mut self.news) {
                self.tell(Input::Acked { object, version });
            }
        }
    }

    fn start(&mut self, names: impl Iterator<Item = String>) {
        self.tell(Input::Start { state: self.state.clone() });
        for name in names {
            self.tell(Input::Register { object: name.into(), known: 1 });
        }
        self.tell(Input::Reissued);
    }

    fn registered(&self) -> usize {
        let done = |event: &&Event| matches!(event, Event::RegistrationStatus { registered: true, .. });
        self.events.iter().filter(done).count()
    }
}

fn names(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|at| format!("an object with the number {at:08}"))
}

#[test]
fn f7_few_objects_are_replaced_whole_and_nothing_is_resent_when_digests_agree() {
    let mut pair = Pair::new(None);
    pair.start(names(100));
    pair.talk(500);
    assert!(pair.client.is_synced());
    assert_eq!(pair.registered(), 100);
    // A restart with the same intent costs a handshake and two digests.
    pair.client = Client::new(Options { seed: 1, ..Default::default() });
    pair.events.clear();
    (pair.up, pair.down) = (0, 0);
    pair.start(names(100));
    pair.talk(500);
    assert!(pair.client.is_synced());
    assert!(pair.up + pair.down < 1_500, "{} + {} bytes", pair.up, pair.down);
}

#[test]
fn f7_three_differences_in_fifty_thousand_cost_kilobytes() {
    let mut pair = Pair::new(None);
    pair.start(names(50_000));
    pair.talk(20_000);
    assert!(pair.client.is_synced());
    pair.client = Client::new(Options { seed: 1, ..Default::default() });
    (pair.up, pair.down) = (0, 0);
    let gone: BTreeSet<String> = names(2).collect();
    pair.start(names(50_000).filter(|name| !gone.contains(name)).chain(["one that is new".to_owned()]));
    pair.talk(3_000);
    assert!(pair.client.is_synced());
    println!("50,000 registrations, 3 differences: {} bytes up, {} bytes down", pair.up, pair.down);
    assert!(pair.up + pair.down < 32 << 10, "{} + {} bytes", pair.up, pair.down);
    assert_eq!(pair.client.intended().count(), 49_999);
}

#[test]
fn f7_without_digests_a_lost_registration_stays_lost() {
    for (mutant, calls) in [(None, 1), (Some(Mutant::DigestIgnored), 0)] {
        let mut pair = Pair::new(mutant);
        pair.start(names(1));
        pair.tell(Input::Opened);
        let mut seen = 0;
        for _ in 0..50 {
            seen += pair.desk.match_all(1).len();
            for down in pair.desk.downs() {
                pair.tell(Input::Received(Box::new(down)));
            }
            pair.desk.pass(10);
            let (now, mut out) = (pair.now(), Outbox::new());
            pair.client.wake(now, &mut out);
            pair.perform(out);
        }
        assert_eq!(seen, calls);
    }
}

#[test]
fn f8_a_client_keeps_its_id_while_keys_are_rotated() {
    let heartbeat = Some(std::time::Duration::from_secs(1));
    let mut pair = Pair::of(registrar::Options::default(), Options { heartbeat, ..Default::default() });
    let keys = |ids: std::ops::RangeInclusive<u32>| {
        let secrets: Vec<(u32, [u8; 1])> = ids.map(|id| (id, [id as u8])).collect();
        registrar::Input::Keys(Keys::new(secrets.iter().map(|(id, secret)| (*id, &secret[..]))))
    };
    pair.desk.give(keys(1..=1));
    pair.start(names(2));
    pair.talk(500);
    let first = pair.state.clone().unwrap();
    for newest in 2..=5 {
        pair.desk.give(keys(newest - 1..=newest));
        pair.talk(2_500);
    }
    assert!(pair.client.is_synced());
    assert!(!pair.events.iter().any(|event| matches!(event, Event::Refused { .. })));
    let state = |bytes: Bytes| v1::NotifyClientState::decode(bytes).unwrap();
    let (first, last) = (state(first), state(pair.state.clone().unwrap()));
    assert_ne!(first.token, last.token, "what is kept is of the newest key");
    assert_eq!((first.session, first.salt, first.generation), (last.session, last.salt, last.generation));
}

#[test]
fn a_version_is_told_once_and_acknowledged_again_when_it_comes_again() {
    let mut pair = Pair::new(None);
    pair.start(names(1));
    pair.talk(300);
    let object = Bytes::from(names(1).next().unwrap());
    let session = {
        let state = v1::NotifyClientState::decode(pair.state.clone().unwrap()).unwrap();
        state.session
    };
    let notification = v1::Notification { object: object.clone(), version: 9, ..Default::default() };
    let down = v1::NotifyDown { session, notifications: vec![notification], ..Default::default() };
    pair.events.clear();
    pair.tell(Input::Received(Box::new(down.clone())));
    pair.tell(Input::Received(Box::new(down.clone())));
    assert_eq!(pair.events.len(), 1);
    pair.tell(Input::Acked { object, version: 9 });
    pair.talk(100);
    let before = pair.up;
    pair.tell(Input::Received(Box::new(down.clone())));
    pair.talk(100);
    assert!(pair.events.len() == 1 && pair.up > before);
    // Another session's messages are not ours.
    let other = v1::NotifyDown { session: session + 1, ..down };
    let before = pair.up;
    pair.tell(Input::Received(Box::new(other)));
    pair.talk(100);
    assert_eq!(pair.up, before);
}

/// F3: without a state nobody knows of which generation the version is that the application has.
#[test]
fn f3_a_version_of_an_unknown_generation_hides_nothing() {
    for (mutant, told) in [(None, 1), (Some(Mutant::GenerationIgnored), 0)] {
        let mut pair = Pair::new(mutant);
        pair.tell(Input::Start { state: None });
        pair.tell(Input::Register { object: "prices".into(), known: 1 << 40 });
        pair.tell(Input::Reissued);
        pair.talk(300);
        let news = pair.events.iter().filter(|event| matches!(event, Event::Notify { version: 1, .. }));
        assert_eq!(news.count(), told, "{mutant:?}");
        // Whoever kept the state knows: what it has is not told again.
        pair.client = Client::new(Options { seed: 1, mutant, ..Default::default() });
        pair.events.clear();
        pair.tell(Input::Start { state: pair.state.clone() });
        pair.tell(Input::Register { object: "prices".into(), known: 1 });
        pair.tell(Input::Register { object: "rates".into(), known: 1 });
        pair.tell(Input::Reissued);
        pair.talk(300);
        assert!(pair.registered() >= 1 && !pair.events.iter().any(|event| matches!(event, Event::Notify { .. })));
    }
}

/// F10: what nobody keeps is given back, and whoever comes next has room.
#[test]
fn f10_a_client_that_keeps_nothing_gives_its_id_back_when_it_leaves() {
    for persistent in [false, true] {
        let room = registrar::Options { max_ids: 1, ..Default::default() };
        let mut pair = Pair::of(room, Options { persistent, ..Default::default() });
        pair.start(names(3));
        pair.talk(500);
        assert!(pair.client.is_synced());
        pair.tell(Input::Leave);
        pair.desk.confirm(true);
        pair.talk(100);
        assert!(pair.left);
        let hello = v1::NotifyHello { nonce: 77, ..Default::default() };
        pair.desk.from(crate::desk::ann(), 2, v1::NotifyUp { hello: Some(hello), ..Default::default() });
        let granted = pair.desk.downs().into_iter().any(|down| down.grant.is_some());
        assert_eq!(granted, !persistent);
    }
    // Without a channel nobody can be told.
    let mut pair = Pair::new(None);
    pair.tell(Input::Leave);
    assert!(pair.left);
}

#[test]
fn state_that_cannot_be_read_is_no_state() {
    let mut pair = Pair::new(None);
    pair.state = Some(Bytes::from_static(b"\xff\xff"));
    pair.start(names(3));
    pair.talk(500);
    assert!(pair.client.is_synced() && pair.registered() == 3);
}

#[test]
fn a_name_that_is_too_long_fails_for_good() {
    let mut pair = Pair::new(None);
    pair.start(["n".repeat(257)].into_iter());
    let failed = |event: &Event| matches!(event, Event::RegistrationFailure { transient: false, .. });
    assert!(pair.events.iter().any(failed));
    assert_eq!(pair.client.intended().count(), 0);
}

/// A node that takes a connection and refuses the channel is not asked ten times a second.
#[test]
fn a_channel_that_opens_and_says_nothing_is_opened_ever_less_often() {
    let mut client = Client::new(Options::default());
    let (mut ms, mut opened, mut out) = (1, 0, Outbox::new());
    let now = |ms: u64| Now { mono: Mono(ms * 1_000_000), wall: Wall(0) };
    client.handle(now(ms), Input::Start { state: None }, &mut out);
    while ms < 600_000 {
        let outputs: Vec<Output> = out.drain().collect();
        if outputs.iter().any(|output| matches!(output, Output::Connect)) {
            opened += 1;
            client.handle(now(ms), Input::Opened, &mut out);
            client.handle(now(ms), Input::Closed, &mut out);
        }
        ms = client.deadline().map_or(u64::MAX, |at| at.0.div_ceil(1_000_000));
        client.wake(now(ms), &mut out);
    }
    assert!((8..20).contains(&opened), "{opened} in ten minutes");
}

/// F7: a hook that does not answer is asked again, ever less often, however many objects it is about.
#[test]
fn f7_what_is_refused_for_now_is_tried_again_ever_less_often() {
    let asking = registrar::Options { hooks: registrar::Hooks::All, ..Default::default() };
    let mut pair = Pair::of(asking, Options::default());
    pair.start(names(20));
    let mut asked = 0;
    for _ in 0..6_000 {
        let (asks, rest) =
            pair.desk.take().into_iter().partition(|out| matches!(out, registrar::Output::Authorize { .. }));
        pair.desk.out = rest;
        for ask in Vec::into_iter(asks) {
            let registrar::Output::Authorize { id, .. } = ask else { continue };
            asked += 1;
            let verdict = registrar::Verdict::Unsure;
            pair.desk.give(registrar::Input::Authorized { id, verdict });
        }
        pair.talk(100);
    }
    assert!(pair.client.is_synced(), "what is refused is left out meanwhile");
    // Ten minutes: after 5 s, 10 s, … 5 min, less what they are spread by.
    assert!((6 * 20..14 * 20).contains(&asked), "{asked} in ten minutes");
}

/// Prints what a million clients would take; run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn memory_of_online_clients() {
    let resident = || -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
    };
    let mut desk = Desk::registrar(registrar::Options { max_ids: u32::MAX, ..Default::default() });
    const CLIENTS: u64 = 100_000;
    let mut before = 0;
    for at in 0..CLIENTS {
        if at == CLIENTS / 2 {
            before = resident();
        }
        let caller = tidings_notify::names::Caller { app: "app".into(), principal: format!("user:app/subject-{at}") };
        let hello = v1::NotifyHello { nonce: at, source: Bytes::from(format!("{at:016}")), ..Default::default() };
        desk.from(caller.clone(), at, v1::NotifyUp { hello: Some(hello), ..Default::default() });
        let grant = desk.downs().into_iter().find_map(|down| down.grant).unwrap();
        let change = |n: u64| {
            let object = Bytes::from(format!("object {:025}", at * 5 + n));
            let interest = v1::ObjectInterest { object, known_version: 1 };
            v1::RegistrationChange { change: Some(v1::registration_change::Change::Register(interest)) }
        };
        let changes = (0..5).map(change).collect();
        let token = grant.token.clone();
        desk.from(caller, at, v1::NotifyUp { token, first: 1, latest: 5, changes, ..Default::default() });
        desk.match_all(1);
        desk.downs();
        desk.store.wipe();
        desk.writes.clear();
    }
    let each = (resident() - before) / (CLIENTS / 2);
    println!(
        "{each} bytes for each online client with five registrations of 32-byte names ({} in memory)",
        desk.machine.clients()
    );
}

/// F3: what was lost before another one took the session over is to be heard of by both.
#[test]
fn who_was_superseded_says_who_it_was() {
    let mut client = Client::new(Options::default());
    let hello = |client: &mut Client, input: Input| {
        let mut out = Outbox::new();
        client.handle(Now { mono: Mono(1_000_000), wall: Wall(0) }, input, &mut out);
        // What it has to say is gathered for a moment.
        client.wake(Now { mono: Mono(100_000_000), wall: Wall(0) }, &mut out);
        out.into_iter().find_map(|output| match output {
            Output::Send(up) => up.hello,
            _ => None,
        })
    };
    hello(&mut client, Input::Start { state: None });
    hello(&mut client, Input::Reissued);
    let first = hello(&mut client, Input::Opened).expect("it says hello");
    let token = Bytes::from_static(b"a token");
    let grant = v1::NotifyGrant {
        token: token.clone(),
        nonce: first.nonce,
        session: 5,
        salt: vec![1; 16].into(),
        ..Default::default()
    };
    let down = v1::NotifyDown { session: 5, grant: Some(grant), ..Default::default() };
    assert_eq!(hello(&mut client, Input::Received(Box::new(down))), None);
    let refusal = v1::NotifyRefusal { reason: v1::NotifyRefused::Superseded.into(), ..Default::default() };
    let down = v1::NotifyDown { session: 5, refusal: Some(refusal), ..Default::default() };
    let again = hello(&mut client, Input::Received(Box::new(down))).expect("it says hello anew");
    assert_eq!(again.previous, token);
}
