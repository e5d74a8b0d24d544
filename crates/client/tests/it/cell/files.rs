//! Files, directories, compare-and-set, access lists, handles.

use super::{code, two};
use tidings_client::cell::testing::TestCell;
use tidings_client::cell::{Acl, SessionOptions, traced};

#[tokio::test(start_paused = true)]
async fn what_one_writes_the_other_reads() {
    let (_test, one, two) = two().await;
    assert_eq!(two.read("/greeting").await.unwrap(), None);
    let stat = one.write("/greeting", "hello").await.unwrap();
    assert_eq!((stat.content_generation, stat.length, stat.directory), (1, 5, false));
    assert_eq!(two.read("/greeting").await.unwrap().unwrap().text(), "hello");
    let stat = one.write("/greeting", "hello again").await.unwrap();
    assert_eq!(stat.content_generation, 2);
    let file = two.read("/greeting").await.unwrap().unwrap();
    assert_eq!((file.text().as_ref(), file.stat()), ("hello again", &stat));
    one.delete("/greeting").await.unwrap();
    assert_eq!(two.read("/greeting").await.unwrap(), None);
    assert_eq!(two.stat("/greeting").await.unwrap(), None);
    assert_eq!(code(two.delete("/greeting").await), "cell.no_node");
}

#[tokio::test(start_paused = true)]
async fn of_two_that_compare_and_set_one_wins() {
    let (_test, one, two) = two().await;
    let generation = one.write("/counter", "0").await.unwrap().content_generation;
    let (a, b) = tokio::join!(one.write_if("/counter", "1", generation), two.write_if("/counter", "2", generation));
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    let loser = if a.is_ok() { b } else { a };
    assert_eq!(code(loser), "cell.wrong_generation");
    let file = one.read("/counter").await.unwrap().unwrap();
    assert_eq!(file.stat().content_generation, generation + 1);
}

#[tokio::test(start_paused = true)]
async fn directories_hold_files_and_are_deleted_empty() {
    let (_test, one, two) = two().await;
    one.create_directories("/app/config").await.unwrap();
    one.create_directories("/app/config").await.unwrap();
    for name in ["b", "a", "c"] {
        one.write(&format!("/app/config/{name}"), name).await.unwrap();
    }
    let listing = two.list("/app/config").await.unwrap().unwrap();
    let names: Vec<&str> = listing.iter().map(|child| child.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(listing.iter().all(|child| child.stat.length == 1));
    assert_eq!(code(one.delete("/app/config").await), "cell.not_empty");
    assert_eq!(code(one.create_directories("/app/config/a/x").await), "cell.not_a_directory");
    assert_eq!(two.list("/nowhere").await.unwrap(), None);
    assert_eq!(code(one.write("/nowhere/file", "").await), "cell.no_parent");
}

#[tokio::test(start_paused = true)]
async fn many_are_read_at_once_in_their_order() {
    let (_test, one, two) = two().await;
    for i in 0..150 {
        one.write(&format!("/f{i}"), i.to_string()).await.unwrap();
    }
    let paths: Vec<String> = (0..200).rev().map(|i| format!("/f{i}")).collect();
    let (files, trace) = traced(two.read_many(&paths)).await;
    assert_eq!(trace.calls, 2, "two requests for two hundred");
    for (path, file) in paths.iter().zip(files.unwrap()) {
        let i: usize = path[2..].parse().unwrap();
        assert_eq!(file.map(|f| f.text().into_owned()), (i < 150).then(|| i.to_string()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_bound_to_its_node() {
    let (_test, one, two) = two().await;
    one.write("/file", "first").await.unwrap();
    let handle = two.open("/file").read().write().await.unwrap();
    assert!(!handle.created() && !handle.is_directory());
    one.delete("/file").await.unwrap();
    one.write("/file", "second").await.unwrap();
    assert_eq!(code(handle.contents_and_stat().await), "cell.node_gone");
    assert_eq!(code(handle.set_contents("third", None).await), "cell.node_gone");
    assert_eq!(two.read("/file").await.unwrap().unwrap().text(), "second");
}

#[tokio::test(start_paused = true)]
async fn rights_are_those_that_were_asked_for() {
    let (_test, one, _two) = two().await;
    one.write("/file", "x").await.unwrap();
    let reader = one.open("/file").read().await.unwrap();
    let refused = [
        code(reader.set_contents("y", None).await),
        code(reader.try_acquire(tidings_client::cell::Mode::Shared).await),
        code(reader.delete(None).await),
    ];
    assert_eq!(refused, ["cell.denied"; 3]);
    let writer = one.open("/file").write().await.unwrap();
    assert_eq!(code(writer.contents_and_stat().await), "cell.denied");
}

#[tokio::test(start_paused = true)]
async fn an_access_list_decides_who_reads() {
    let test = TestCell::start();
    let operator = test.line("operator").link().unwrap().session(SessionOptions::default()).await.unwrap();
    let user = test.line("user:app/ann").link().unwrap().session(SessionOptions::default()).await.unwrap();
    operator.write("/secret", "x").await.unwrap();
    assert!(user.read("/secret").await.unwrap().is_some());
    let handle = operator.open("/secret").read().write().await.unwrap();
    let acl = Acl { read: "few".into(), ..Acl::default() };
    assert_eq!(code(handle.set_acl(acl.clone(), None).await), "cell.unknown_acl");
    operator.write("/acl/few", "user:app/bob\n").await.unwrap();
    let before = handle.stat().await.unwrap().acl_generation;
    let stat = handle.set_acl(acl, Some(before)).await.unwrap();
    assert_eq!((stat.acl.read.as_str(), stat.acl_generation), ("few", before + 1));
    assert_eq!(code(user.read("/secret").await), "cell.denied");
    operator.write("/acl/few", "user:app/ann\n").await.unwrap();
    assert!(user.read("/secret").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused_and_the_session_lives_on() {
    let (_test, one, _two) = two().await;
    for path in ["", "relative", "/a//b", "/../x", "/a\0"] {
        assert_eq!(code(one.read(path).await), "cell.bad_path", "{path}");
        assert_eq!(code(one.write(path, "").await), "cell.bad_path", "{path}");
        assert_eq!(code(one.open(path).read().await), "cell.bad_path", "{path}");
    }
    assert_eq!(code(one.write("/large", vec![0; (256 << 10) + 1]).await), "cell.too_large");
    one.write("/fits", vec![0; 256 << 10]).await.unwrap();
    assert_eq!(one.read("/fits").await.unwrap().unwrap().contents().len(), 256 << 10);
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_handle_fails_every_call_and_keeps_what_it_has() {
    let (_test, one, two) = two().await;
    let mine = one.open("/mine").read().write().lock().create_file("x").ephemeral().await.unwrap();
    let lock = mine.acquire(tidings_client::cell::Mode::Exclusive).await.unwrap();
    let other = two.open("/mine").read().lock().await.unwrap();
    let mut waiting = std::pin::pin!(other.acquire(tidings_client::cell::Mode::Exclusive));
    assert!(super::still_waits(&mut waiting).await);
    other.poison();
    assert_eq!(code(waiting.await), "cell.poisoned");
    assert_eq!(code(other.stat().await), "cell.poisoned");
    mine.poison();
    assert_eq!(code(mine.contents_and_stat().await), "cell.poisoned");
    assert_eq!(code(mine.set_contents("y", None).await), "cell.poisoned");
    // It is not closed: the file is there, and the lock is held.
    let stat = two.stat("/mine").await.unwrap().unwrap();
    assert_eq!(stat.lock, Some(tidings_client::cell::Mode::Exclusive));
    lock.release().await.unwrap();
    assert_eq!(two.stat("/mine").await.unwrap().unwrap().lock, None);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_handle_closes_it() {
    let (_test, one, two) = two().await;
    let handle = one.open("/mine").create_file("x").ephemeral().await.unwrap();
    assert!(handle.created());
    assert!(two.read("/mine").await.unwrap().unwrap().stat().ephemeral);
    drop(handle);
    super::seconds(1).await;
    assert_eq!(two.read("/mine").await.unwrap(), None);
    let handle = one.open("/mine").create_file("x").ephemeral().await.unwrap();
    handle.close().await.unwrap();
    assert_eq!(two.read("/mine").await.unwrap(), None);
    // An open that nobody waited for leaves nothing.
    let open = std::future::IntoFuture::into_future(one.open("/mine").create_file("x").ephemeral());
    drop(tokio::time::timeout(std::time::Duration::ZERO, open).await);
    super::seconds(1).await;
    assert_eq!(two.read("/mine").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn creating_needs_no_right_to_read_and_who_has_no_right_learns_nothing() {
    let test = TestCell::start();
    let as_user = async |name: &str| test.line(name).link().unwrap().session(SessionOptions::default()).await.unwrap();
    let (owner, writer) = (as_user("user:app/owner").await, as_user("user:app/writer").await);
    owner.write("/acl/owner", "user:app/owner\n").await.unwrap();
    let acl = Acl { read: "owner".into(), ..Acl::default() };
    owner.open("/in").write().create_directory().acl(acl).await.unwrap();
    writer.write("/in/file", "x").await.unwrap();
    writer.create_directory("/in/directory").await.unwrap();
    writer.create_directories("/in/more/below").await.unwrap();
    assert_eq!(owner.list("/in").await.unwrap().unwrap().len(), 3);
    assert_eq!(code(writer.list("/in").await), "cell.denied");
    assert_eq!(code(writer.open("/in/none").read().await.map(drop)), "cell.denied");
    assert_eq!(code(writer.open("/in/none").write().await.map(drop)), "cell.no_node");
    // Who may read and not write finds the directory there.
    let acl = Acl { write: "owner".into(), ..Acl::default() };
    owner.open("/out").write().create_directory().acl(acl).await.unwrap();
    writer.create_directory("/out").await.unwrap();
    assert_eq!(code(writer.create_directory("/out/more").await), "cell.denied");
    assert_eq!(code(writer.delete("/out/none").await), "cell.denied");
}
