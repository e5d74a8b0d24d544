//! Handles, reads, changes, events.

use super::harness::*;
use bytes::Bytes;
use prost::Message as _;
use tidings_base::agreed::Refusal;
use tidings_wire::v1;
use tidings_wire::v1::CellEventKind as Kind;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::placed_read::Answer;

#[test]
fn a_file_is_created_written_read_and_deleted() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let handle = cell.file(&mut a, "/f");
    let Ok(Message::Done(done)) = cell.call(&mut a, write(at_handle(handle), "one")) else { panic!() };
    assert_eq!(done.stat.unwrap().content_generation, 1 + 1);
    let found = cell.read(&a, "/f");
    assert_eq!(found.contents, "one");
    assert!(found.stamp.is_some());
    assert!(matches!(cell.call(&mut a, delete(at_handle(handle))), Ok(Message::Done(_))));
    assert_eq!(cell.read(&a, "/f").stat, None);
    assert_eq!(cell.code(&mut a, write(at_handle(handle), "two")), "cell.node_gone");
    cell.file(&mut a, "/f");
    assert_eq!(cell.code(&mut a, write(at_handle(handle), "two")), "cell.node_gone");
}

#[test]
fn an_open_of_what_exists_and_is_permanent_costs_no_proposal() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    cell.instant = false;
    let opened = cell.open(&mut b, all("/f", Some(v1::CreateNode::default())));
    assert!(!opened.created && opened.stamp.is_some());
    assert!(cell.log.is_empty());
    cell.instant = true;
    assert!(cell.call(&mut b, close(opened.handle)).is_ok());
    assert!(cell.call(&mut b, close(opened.handle)).is_ok(), "a repeat of a close is no mistake");
    assert_eq!(cell.code(&mut b, close(1_000)), "cell.bad_handle");
}

#[test]
fn what_opens_refuse() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.open(&mut a, all("/d", directory()));
    cell.file(&mut a, "/f");
    let file = || Some(v1::CreateNode::default());
    let exclusive = Some(v1::CreateNode { exclusive: true, ..Default::default() });
    let large = Some(v1::CreateNode { contents: Bytes::from(vec![0; (256 << 10) + 1]), ..Default::default() });
    for (open, code) in [
        (all("/none", None), "cell.no_node"),
        (all("none", None), "cell.bad_path"),
        (all("/no/parent", file()), "cell.no_parent"),
        (all("/f/below", file()), "cell.not_a_directory"),
        (all("/d", file()), "cell.is_a_directory"),
        (all("/f", directory()), "cell.not_a_directory"),
        (all("/f", exclusive), "cell.node_exists"),
        (all("/large", large), "cell.too_large"),
    ] {
        assert_eq!(cell.code(&mut a, Message::Open(open)), code);
    }
    assert_eq!(cell.ask(a.inside(0, Message::Open(all("/f", None)))).unwrap_err().code, "cell.bad_call");
    assert_eq!(cell.code(&mut a, delete(at_path("/"))), "cell.denied");
    assert!(cell.read(&a, "/f").stat.is_some(), "the session lives on");
}

#[test]
fn handles_and_watches_are_bounded() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    for _ in 0..1_000 {
        cell.open(&mut a, all("/", None));
    }
    assert_eq!(cell.code(&mut a, Message::Open(all("/", None))), "cell.too_many_watches");
    let unwatched = || v1::OpenNode { path: "/".into(), read: true, ..Default::default() };
    for _ in 1_000..4_096 {
        a.answered_below = a.number + 1;
        cell.open(&mut a, unwatched());
    }
    a.answered_below = a.number + 1;
    assert_eq!(cell.code(&mut a, Message::Open(unwatched())), "cell.too_many_handles");
    assert!(cell.call(&mut a, close(1)).is_ok());
    cell.open(&mut a, all("/", None));
}

#[test]
fn the_tokens_of_a_session_fit_one_resumption() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let path = format!("/{}", "n".repeat(1_000));
    let long = || v1::OpenNode { path: path.clone(), read: true, ..Default::default() };
    cell.file(&mut a, &path);
    let mut tokens = Vec::new();
    let refused = loop {
        a.answered_below = a.number + 1;
        match cell.call(&mut a, Message::Open(long())) {
            Ok(Message::Opened(opened)) => tokens.push(opened.token),
            other => break other.unwrap_err(),
        }
        assert!(tokens.len() < 4_096);
    };
    assert_eq!(refused.code, "cell.too_many_handles");
    let resume = v1::ResumeSession { handles: tokens.clone(), ..Default::default() };
    assert!((600 << 10..768 << 10).contains(&resume.encoded_len()), "{}", resume.encoded_len());
    assert!(cell.call(&mut a, close(2)).is_ok());
    a.answered_below = a.number + 1;
    cell.open(&mut a, long());
    cell.fail_over();
    assert!(cell.resume(&mut a, tokens).unwrap().gone.is_empty());
    // One of before was not presented, and one was closed.
    cell.open(&mut a, long());
    cell.open(&mut a, long());
    assert_eq!(cell.code(&mut a, Message::Open(long())), "cell.too_many_handles", "they are counted after a fail-over");
}

#[test]
fn handles_that_the_log_is_asked_for_count_too() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.instant = false;
    let mut asked = Vec::new();
    for n in 0..900 {
        let create = Some(v1::CreateNode { exclusive: true, ..Default::default() });
        let open = v1::OpenNode { path: format!("/{n:0>1000}"), read: true, create, ..Default::default() };
        let request = a.numbered(Message::Open(open));
        asked.push(cell.send(request));
    }
    while cell.apply_one() {}
    let answers: Vec<_> = asked.into_iter().map(|op| cell.take(op).unwrap()).collect();
    let tokens: Vec<Bytes> = answers
        .iter()
        .filter_map(|answer| match answer {
            Ok(Message::Opened(opened)) => Some(opened.token.clone()),
            _ => None,
        })
        .collect();
    let refused = answers.iter().filter(|answer| matches!(answer, Err(error) if error.code == "cell.too_many_handles"));
    assert_eq!(refused.count() + tokens.len(), 900);
    let resume = v1::ResumeSession { handles: tokens.clone(), ..Default::default() };
    assert!((600 << 10..768 << 10).contains(&resume.encoded_len()), "{}", resume.encoded_len());
    // What was decided is counted once: closed, it makes room.
    cell.instant = true;
    assert!(cell.call(&mut a, close(1)).is_ok());
    a.answered_below = a.number + 1;
    cell.file(&mut a, &format!("/{:0>1000}", "last"));
}

#[test]
fn what_does_not_fit_one_answer_comes_in_several_or_is_refused() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    let contents = Bytes::from(vec![7; 256 << 10]);
    let paths: Vec<String> = (0..5).map(|n| format!("/large{n}")).collect();
    for path in &paths {
        cell.open(&mut a, all(path, Some(v1::CreateNode { contents: contents.clone(), ..Default::default() })));
    }
    let Ok(Message::ManyRead(many)) = cell.ask(a.inside(0, Message::ReadMany(v1::ReadMany { paths }))) else {
        panic!()
    };
    assert_eq!(many.nodes.len(), 2);
    assert!(many.encoded_len() < 1 << 20 && many.nodes.iter().all(|node| node.contents == contents));
    let mut create = |cell: &mut Cell, path: &str, create| {
        a.answered_below = a.number + 1;
        let open = v1::OpenNode { path: path.into(), read: true, create, ..Default::default() };
        let opened = cell.call(&mut a, Message::Open(open));
        let handle = if let Ok(Message::Opened(opened)) = &opened { opened.handle } else { 0 };
        cell.call(&mut a, close(handle)).map(|_| ()).and(opened.map(|_| ()))
    };
    create(&mut cell, "/d", directory()).unwrap();
    for n in 0..1_200 {
        create(&mut cell, &format!("/d/{n:0>900}"), Some(v1::CreateNode::default())).unwrap();
    }
    let list = Message::Read(v1::ReadNode { target: at_path("/d"), children: true, ..Default::default() });
    let refused = cell.ask(Client::operator().outside(list)).unwrap_err();
    assert_eq!(refused.code, "cell.listing_too_large");
    create(&mut cell, "/full", directory()).unwrap();
    for n in 0..8_192 {
        create(&mut cell, &format!("/full/{n}"), Some(v1::CreateNode::default())).unwrap();
    }
    let list = Message::Read(v1::ReadNode { target: at_path("/full"), children: true, ..Default::default() });
    let Ok(Message::NodeRead(listed)) = cell.ask(Client::operator().outside(list)) else { panic!() };
    assert!(listed.children.len() == 8_192 && listed.encoded_len() < 1 << 20);
    let refused = create(&mut cell, "/full/one-more", Some(v1::CreateNode::default()));
    assert!(refused.is_err());
    let open = all("/full/one-more", Some(v1::CreateNode::default()));
    assert_eq!(cell.code(&mut a, Message::Open(open)), "cell.directory_full");
}

#[test]
fn many_names_are_read_in_one_call() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    assert!(cell.call(&mut a, write(at_path("/f"), "x")).is_ok());
    let paths = ["/f", "/none", "/"].map(String::from).to_vec();
    let Ok(Message::ManyRead(many)) = cell.ask(a.inside(0, Message::ReadMany(v1::ReadMany { paths }))) else {
        panic!()
    };
    let found: Vec<_> = many.nodes.iter().map(|node| (node.stat.is_some(), node.contents.as_ref())).collect();
    assert_eq!(found, [(true, &b"x"[..]), (false, b""), (true, b"")]);
    assert!(many.nodes.iter().all(|node| node.stamp.is_some()));
    let paths = vec!["/f".into(); 129];
    assert_eq!(cell.code(&mut a, Message::ReadMany(v1::ReadMany { paths })), "cell.bad_call");
}

/// Gives `/acl/mine` to the client a alone, and has the lists of a node say so.
fn keep_to_a(cell: &mut Cell, a: &mut Client, path: &str) {
    let list = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    cell.open(a, all("/acl/mine", Some(list)));
    let acl = Some(v1::NodeAcl { read: "mine".into(), ..Default::default() });
    let set = v1::SetAcl { target: at_path(path), acl, ..Default::default() };
    assert!(cell.call(a, Message::SetAcl(set)).is_ok());
}

#[test]
fn an_open_for_nothing_and_a_watch_need_the_right_to_read() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.file(&mut a, "/f");
    cell.open(&mut a, all("/e", ephemeral()));
    for path in ["/f", "/e"] {
        keep_to_a(&mut cell, &mut a, path);
        let nothing = v1::OpenNode { path: path.into(), ..Default::default() };
        let watch = v1::OpenNode { write: true, events: 1, ..nothing.clone() };
        let write = v1::OpenNode { write: true, ..nothing.clone() };
        assert_eq!(cell.code(&mut b, Message::Open(nothing.clone())), "cell.denied");
        assert_eq!(cell.code(&mut b, Message::Open(watch)), "cell.denied");
        cell.open(&mut b, write);
        cell.open(&mut a, nothing);
    }
}

#[test]
fn whoever_may_read_no_more_hears_no_more() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    cell.open(&mut a, all("/d", directory()));
    let watch = || v1::OpenNode { path: "/d".into(), read: true, events: 2, ..Default::default() };
    cell.open(&mut a, watch());
    cell.open(&mut b, watch());
    let heard = |cell: &mut Cell, client: &mut Client| {
        let mut names = Vec::new();
        while let Some(kept) = cell.keep_alive(client) {
            names.extend(kept.batch.unwrap_or_default().events.into_iter().flat_map(|event| event.children));
        }
        names
    };
    cell.file(&mut a, "/d/one");
    assert_eq!(heard(&mut cell, &mut b), ["one"]);
    b.held = None;
    keep_to_a(&mut cell, &mut a, "/d");
    heard(&mut cell, &mut b);
    cell.file(&mut a, "/d/two");
    assert_eq!(heard(&mut cell, &mut b), [""; 0]);
    assert!(heard(&mut cell, &mut a).contains(&"two".into()));
}

#[test]
fn rights_are_checked_each_time() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let list = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    cell.open(&mut a, all("/acl/mine", Some(list)));
    let handle = cell.file(&mut b, "/f");
    let acl = Some(v1::NodeAcl { read: "mine".into(), write: "mine".into(), change: String::new() });
    let set = v1::SetAcl { target: at_path("/f"), acl, ..Default::default() };
    assert!(cell.call(&mut a, Message::SetAcl(set)).is_ok());
    let by_handle = Message::Read(v1::ReadNode { target: at_handle(handle), ..Default::default() });
    assert_eq!(cell.ask(b.inside(0, by_handle)).unwrap_err().code, "cell.denied");
    assert_eq!(cell.ask(b.inside(0, read("/f"))).unwrap_err().code, "cell.denied");
    assert_eq!(cell.code(&mut b, write(at_handle(handle), "x")), "cell.denied");
    assert_eq!(cell.code(&mut b, acquire(handle, v1::LockMode::Shared)), "cell.denied");
    assert_eq!(cell.code(&mut b, Message::Open(all("/f", None))), "cell.denied");
    assert!(cell.call(&mut a, write(at_path("/f"), "x")).is_ok());
    // Nor does it hear that the node is there, or of what kind.
    let exclusive = Some(v1::CreateNode { exclusive: true, ..Default::default() });
    for create in [exclusive, directory()] {
        assert_eq!(cell.code(&mut b, Message::Open(all("/f", create))), "cell.denied");
    }
}

#[test]
fn answers_with_a_place_stand_one_after_the_other_and_refusals_do_too() {
    let mut cell = Cell::new();
    let (mut a, b) = (cell.client("a"), cell.client("b"));
    let placed = |cell: &mut Cell, client: &Client, path: &str| {
        let place = v1::ReadPlace::Newest as i32;
        let read = v1::ReadNode { target: at_path(path), contents: true, place, ..Default::default() };
        let answer = cell.ask(client.outside(Message::Read(read)));
        let Ok(Message::PlacedRead(v1::PlacedRead { place: Some(at), answer: Some(said) })) = answer else {
            panic!("{answer:?}")
        };
        let said = match said {
            Answer::Found(found) => found.stat.map(|_| found.contents).unwrap_or_default(),
            Answer::Refused(error) => error.code.into(),
        };
        ((at.incarnation, at.height, at.index), said)
    };
    let (absent, _) = placed(&mut cell, &a, "/f");
    let (again, _) = placed(&mut cell, &a, "/other");
    assert!(again > absent && again.2 == absent.2 + 1, "{absent:?} {again:?}");
    cell.file(&mut a, "/f");
    assert!(cell.call(&mut a, write(at_path("/f"), "x")).is_ok());
    let (written, contents) = placed(&mut cell, &a, "/f");
    assert!(written > again && contents == "x", "{written:?}");
    keep_to_a(&mut cell, &mut a, "/f");
    let (closed, refused) = placed(&mut cell, &b, "/f");
    assert!(closed > written && refused == "cell.denied", "{closed:?} {refused:?}");
    assert_eq!(placed(&mut cell, &b, "/").1, "cell.is_a_directory");
    let by_handle = v1::ReadNode { target: at_handle(1), place: v1::ReadPlace::Newest as i32, ..Default::default() };
    assert_eq!(cell.ask(a.inside(0, Message::Read(by_handle))).unwrap_err().code, "cell.bad_call");
}

#[test]
fn a_listing_shows_of_what_is_closed_its_name_and_kind() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let list = v1::CreateNode { contents: "app:app/a".into(), ..Default::default() };
    cell.open(&mut a, all("/acl/mine", Some(list)));
    let acl = Some(v1::NodeAcl { read: "mine".into(), ..Default::default() });
    let made = |directory| Some(v1::CreateNode { directory, acl: acl.clone(), ..Default::default() });
    cell.open(&mut a, all("/d", directory()));
    cell.open(&mut a, all("/d/closed", made(true)));
    cell.open(&mut a, all("/d/file", made(false)));
    cell.file(&mut b, "/d/open");
    let mut listed = |client: &Client| {
        let list = v1::ReadNode { target: at_path("/d"), children: true, ..Default::default() };
        let answer = cell.ask(client.inside(0, Message::Read(list)));
        let Ok(Message::NodeRead(read)) = answer else { panic!("{answer:?}") };
        read.children
    };
    let (shown, hidden) = (listed(&a), listed(&b));
    assert_eq!(shown.len(), 3);
    for (child, whole) in hidden.iter().zip(&shown) {
        let kind = whole.stat.as_ref().unwrap().directory;
        let bare =
            v1::Child { name: whole.name.clone(), stat: Some(v1::NodeStat { directory: kind, ..Default::default() }) };
        assert_eq!(*child, if whole.name == "open" { whole.clone() } else { bare });
    }
}

#[test]
fn watchers_hear_of_contents_children_and_the_end() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let directory = cell.open(&mut b, all("/d", directory())).handle;
    let file = cell.file(&mut a, "/d/f");
    let watched = cell.open(&mut b, all("/d/f", None)).handle;
    let batch = cell.keep_alive(&mut b).unwrap().batch.unwrap();
    assert_eq!((batch.events[0].handle, &batch.events[0].children[..]), (directory, &["f".to_string()][..]));
    // A watcher that is slow hears of much at once, each thing once.
    for n in 0..20 {
        assert!(cell.call(&mut a, write(at_handle(file), &n.to_string())).is_ok());
        cell.file(&mut a, &format!("/d/{n}"));
    }
    assert!(cell.call(&mut a, delete(at_handle(file))).is_ok());
    let batch = cell.keep_alive(&mut b).unwrap().batch.unwrap();
    let kinds: Vec<_> = batch.events.iter().map(|event| (event.handle, event.kind())).collect();
    assert_eq!(
        kinds,
        [(watched, Kind::ContentsChanged), (directory, Kind::ChildrenChanged), (watched, Kind::HandleInvalid)]
    );
    assert_eq!((batch.events[1].children.len(), batch.events[1].more), (16, true));
}

#[test]
fn ephemeral_nodes_go_with_their_last_opener_and_their_directories_when_empty() {
    let mut cell = Cell::new();
    let (mut a, mut b) = (cell.client("a"), cell.client("b"));
    let room = v1::CreateNode { ephemeral: true, directory: true, ..Default::default() };
    let room = cell.open(&mut a, all("/room", Some(room))).handle;
    let mine = cell.open(&mut a, all("/room/a", ephemeral())).handle;
    let shared = cell.open(&mut b, all("/room/a", None)).handle;
    let watch = cell.open(&mut b, all("/", None)).handle;
    assert!(cell.call(&mut a, close(mine)).is_ok());
    assert!(cell.read(&b, "/room/a").stat.is_some(), "another one has it open");
    assert!(cell.call(&mut a, close(room)).is_ok());
    assert!(cell.read(&b, "/room/a").stat.is_some());
    cell.hold(&mut b);
    assert!(cell.call(&mut b, close(shared)).is_ok());
    assert_eq!(cell.read(&a, "/room/a").stat, None);
    assert_eq!(cell.read(&a, "/room").stat, None, "reaped once it was empty");
    let batch = cell.kept(&mut b).unwrap().batch.unwrap();
    assert!(batch.events.iter().any(|event| event.handle == watch && event.children == ["room"]));
    // And when the session is lost.
    cell.open(&mut a, all("/e", ephemeral()));
    cell.pass(secs(13));
    let c = cell.client("c");
    assert_eq!(cell.read(&c, "/e").stat, None);
}

#[test]
fn a_repeat_attaches_to_the_change_under_way() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    cell.instant = false;
    let request = a.numbered(write(at_path("/f"), "x"));
    let (first, second) = (cell.send(request.clone()), cell.send(request.clone()));
    assert_eq!(cell.log.len(), 1);
    assert_eq!(cell.take(first).unwrap().unwrap_err().code, "cell.busy");
    cell.apply_one();
    assert!(matches!(cell.take(second), Some(Ok(Message::Done(_)))));
    assert!(matches!(cell.ask(request), Ok(Message::Done(_))), "and later it is answered from the window");
    assert!(cell.log.is_empty());
}

#[test]
fn what_the_log_does_not_take_is_not_made_and_blocks_nothing() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    cell.instant = false;
    let request = a.numbered(write(at_path("/f"), "x"));
    let op = cell.send(request);
    assert_eq!(cell.read(&a, "/f").stamp, None);
    cell.refuse_one(Refusal::Busy);
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.busy");
    assert!(cell.read(&a, "/f").stamp.is_some());
}

#[test]
fn an_unknown_outcome_keeps_the_key_blocked_until_it_is_decided() {
    for applied in [true, false] {
        let mut cell = Cell::new();
        let mut a = cell.client("a");
        cell.file(&mut a, "/f");
        cell.instant = false;
        let request = a.numbered(write(at_path("/f"), "x"));
        let op = cell.send(request);
        let (proposal, command) = cell.log.pop_front().unwrap();
        cell.hear(tidings_base::agreed::Heard::Unknown { op: proposal });
        assert_eq!(cell.read(&a, "/f").stamp, None);
        if applied {
            let _ = cell.apply(&command);
        }
        assert_eq!((cell.read(&a, "/f").stamp, cell.take(op)), (None, None));
        assert!(cell.apply_one(), "something that decides it");
        let answer = cell.take(op).unwrap();
        assert_eq!(answer.is_ok(), applied);
        assert!(cell.read(&a, "/f").stamp.is_some());
    }
}

#[test]
fn a_call_whose_time_is_up_is_told_what_is_known() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    cell.instant = false;
    let request = a.numbered(write(at_path("/f"), "x"));
    let op = cell.send(request);
    cell.pass(millis(10_100));
    assert_eq!(cell.take(op).unwrap().unwrap_err().code, "cell.outcome_unknown");
    cell.apply_one();
    assert_eq!(cell.read(&a, "/f").contents, "x");
}

#[test]
fn open_operations_are_bounded() {
    let mut cell = Cell::new();
    let mut a = cell.client("a");
    cell.file(&mut a, "/f");
    cell.instant = false;
    let lapsed = cell.now.mono;
    cell.hear(tidings_base::agreed::Heard::LeaseUntil(lapsed));
    for _ in 0..65_536 {
        cell.send(a.inside(0, read("/f")));
    }
    assert_eq!(cell.ask(a.inside(0, read("/f"))).unwrap_err().code, "cell.busy");
}
