//! What applications decide, and what waits for it.

use super::*;
use tidings_notify::registrar::{Hooks, Verdict};

#[test]
fn hooks_decide_and_what_they_do_not_know_is_deferred() {
    let options = Options { hooks: Hooks::All, ..Default::default() };
    let mut desk = Desk::registrar(options);
    let grant = desk.hello(1, 11, &none()).unwrap();
    let answer = |desk: &mut Desk<Registrar>, verdict| {
        let out = desk.take();
        let ids = out.iter().filter_map(|out| match out {
            Output::Authorize { id, .. } => Some(*id),
            _ => None,
        });
        let ids: Vec<_> = ids.collect();
        desk.out = out.into_iter().filter(|out| !matches!(out, Output::Authorize { .. })).collect();
        ids.iter().for_each(|id| desk.give(Input::Authorized { id: *id, verdict }));
        ids.len()
    };
    let failures = |desk: &mut Desk<Registrar>| -> Vec<v1::RegistrationFailure> {
        desk.downs().iter().flat_map(|down| &down.statuses).map(|status| status.failure()).collect()
    };
    for (op, verdict, failure) in
        [(1, Verdict::Unsure, v1::RegistrationFailure::Transient), (2, Verdict::No, v1::RegistrationFailure::Permanent)]
    {
        desk.register(&grant, 1, op, b"x");
        assert_eq!(answer(&mut desk, verdict), 1);
        assert_eq!(failures(&mut desk), [failure]);
    }
    desk.register(&grant, 1, 3, b"x");
    assert_eq!(answer(&mut desk, Verdict::Yes), 1);
    desk.match_all(9);
    // Before it is sent: not known, then yes, then no.
    assert_eq!(answer(&mut desk, Verdict::Unsure), 1);
    assert_eq!(notifications(desk.downs()), vec![]);
    desk.pass(1_500);
    assert_eq!(answer(&mut desk, Verdict::Yes), 1);
    assert_eq!(notifications(desk.downs()), [(9, false)]);
    desk.pass(3_000);
    assert!(answer(&mut desk, Verdict::No) >= 1);
    assert_eq!(failures(&mut desk), [v1::RegistrationFailure::Permanent]);
    assert!(!desk.match_all(0)[0].registered);
}

/// Answers every question to the application; how many there were.
fn judge(desk: &mut Desk<Registrar>, verdict: Verdict) -> usize {
    let (asks, rest) = desk.take().into_iter().partition(|out| matches!(out, Output::Authorize { .. }));
    desk.out = rest;
    for ask in &asks {
        if let Output::Authorize { id, .. } = ask {
            desk.give(Input::Authorized { id: *id, verdict });
        }
    }
    Vec::<Output>::len(&asks)
}

#[test]
fn a_hook_that_hangs_holds_up_no_news_of_other_objects() {
    let mut desk = Desk::registrar(Options { hooks: Hooks::All, log_after: Duration::ZERO, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"y");
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    desk.match_all(1);
    judge(&mut desk, Verdict::Yes);
    desk.downs();
    // Nobody answers this one for now.
    desk.register(&grant, 1, 2, b"x");
    let hangs = desk.take();
    let key = desk.key_of(&grant);
    assert_eq!(desk.notify(&key, b"y", 5, false), Some(Outcome::Done));
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    assert_eq!(notifications(desk.downs()), [(5, false)]);
    desk.out.extend(hangs);
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    assert_eq!(desk.match_all(0)[0].object, b"x"[..]);
}

/// What one connection's token allows says nothing of the next one's.
#[test]
fn a_verdict_about_one_connection_is_none_about_another() {
    for verdict in [Verdict::Yes, Verdict::No] {
        let mut desk = Desk::registrar(Options { hooks: Hooks::All, ..Default::default() });
        let grant = desk.hello(1, 11, &none()).unwrap();
        desk.register(&grant, 1, 1, b"x");
        judge(&mut desk, Verdict::Yes);
        desk.match_all(1);
        judge(&mut desk, Verdict::Yes);
        desk.downs();
        let key = desk.key_of(&grant);
        desk.notify(&key, b"x", 5, false);
        let about_the_first = desk.take();
        // The client comes by another connection.
        desk.ack(&grant, 2, b"x", 1, 0);
        let about_the_second = desk.take();
        desk.out = about_the_first;
        assert_eq!(judge(&mut desk, verdict), 1);
        let (told, unregistered) = (notifications(desk.downs()), desk.match_all(0).len());
        assert_eq!((told, unregistered), (vec![], 0), "{verdict:?}");
        desk.out = about_the_second;
        assert_eq!(judge(&mut desk, Verdict::Yes), 1);
        assert_eq!(notifications(desk.downs()), [(5, false)]);
    }
}

#[test]
fn what_rides_along_waits_for_the_hook_and_is_dropped_with_a_later_version() {
    let mut desk =
        Desk::registrar(Options { hooks: Hooks::Of([crate::desk::APP.into()].into()), ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    judge(&mut desk, Verdict::Yes);
    desk.match_all(1);
    judge(&mut desk, Verdict::Yes);
    desk.downs();
    let key = desk.key_of(&grant);
    let hint = |desk: &mut Desk<Registrar>, version, payload: &'static str| {
        let notify = v1::ClientNotify {
            realm: crate::desk::wire_realm(),
            client: Some(key.to_message()),
            object: Bytes::from_static(b"x"),
            version,
            hint: true,
            payload: payload.into(),
            ..Default::default()
        };
        let request = tidings_notify::RequestId(0);
        desk.give(Input::Notify { request, lease: lease(), notify: Box::new(notify) });
    };
    hint(&mut desk, 7, "seven");
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    let sent: Vec<v1::Notification> = desk.downs().into_iter().flat_map(|down| down.notifications).collect();
    assert_eq!((sent[0].version, &sent[0].payload[..], sent[0].times.is_some()), (7, &b"seven"[..], true));
    hint(&mut desk, 8, "eight");
    let earlier = desk.take();
    hint(&mut desk, 9, "nine");
    desk.take();
    desk.out = earlier;
    judge(&mut desk, Verdict::Yes);
    let sent: Vec<v1::Notification> = desk.downs().into_iter().flat_map(|down| down.notifications).collect();
    assert_eq!((sent[0].version, sent[0].payload.is_empty()), (9, true));
}

/// The application is asked of what is not registered when a message comes; by its end that may be something else.
#[test]
fn nothing_is_registered_unasked() {
    let mut desk = Desk::registrar(Options { hooks: Hooks::All, ..Default::default() });
    let grant = desk.hello(1, 11, &none()).unwrap();
    desk.register(&grant, 1, 1, b"x");
    assert_eq!(judge(&mut desk, Verdict::Yes), 1);
    desk.match_all(0);
    desk.downs();
    let interest = v1::ObjectInterest { object: Bytes::from_static(b"x"), known_version: 0 };
    let changes = [Change::Unregister(Bytes::from_static(b"x")), Change::Register(interest)];
    let changes = changes.map(|change| v1::RegistrationChange { change: Some(change) }).to_vec();
    desk.from(
        ann(),
        1,
        v1::NotifyUp { token: grant.token.clone(), first: 2, latest: 3, changes, ..Default::default() },
    );
    let downs = desk.downs();
    let statuses: Vec<_> = downs.iter().flat_map(|down| &down.statuses).map(|status| status.failure()).collect();
    assert_eq!(statuses, [v1::RegistrationFailure::Transient]);
    desk.register(&grant, 1, 4, b"x");
    let asked = |out: &Output| matches!(out, Output::Authorize { sending: false, .. });
    assert!(desk.out.iter().any(asked), "it is asked of the next time");
}
