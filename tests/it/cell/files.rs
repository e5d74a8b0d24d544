//! Day one: files, directories, watches, access lists, quotas; and every mistake with its own name.

use crate::process::{Running, Said, Server, before_dashes, free_port, run, tidings, turn, until};
use rustix::process::Signal;
use serde_json::json;
use std::io::Write;
use std::process::Stdio;

/// A node of its own, and the directory that it keeps its data in.
fn one_node() -> (tempfile::TempDir, Server) {
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    (data, server)
}

fn ok(said: Said) -> Said {
    assert_eq!(said.code, 0, "{said:?}");
    said
}

#[test]
fn an_operator_acts_in_the_application_it_names() {
    let _turn = turn();
    let (_data, server) = one_node();
    // One that is not there is no empty one.
    for command in [
        &["cell", "put", "/config", "of the shop", "--app", "shop"][..],
        &["cell", "locks", "--app", "shop"],
        &["cell", "elect", "/leader", "--who", "--app", "shop"],
        &["store", "get", "g", "row", "--app", "shop"],
        &["table", "ls", "--app", "shop"],
        &["place", "namespaces", "--app", "shop"],
    ] {
        server.run(command).failed(3, "there is no application `shop`");
    }
    ok(server.run(&["app", "create", "shop"]));
    ok(server.run(&["cell", "put", "/config", "of the shop", "--app", "shop"]));
    assert_eq!(ok(server.run(&["cell", "cat", "/config", "--app", "shop"])).out, "of the shop");
    server.run(&["cell", "cat", "/config"]).failed(3, "");
    ok(server.run(&["cell", "quota", "set", "/", "--nodes", "9", "--app", "shop"]));
    let of = |app: &str| server.run(&["cell", "quota", "get", "/", "--json", "--app", app]).json()["max_nodes"].clone();
    assert_eq!(of("shop"), json!(9));
    ok(server.run(&["store", "put", "g", "row", "col", "x", "--app", "shop"]));
    server.run(&["store", "get", "g", "row"]).failed(3, "");
    assert_eq!(server.run(&["cell", "ls", "--app", "../shop"]).code, 4);
}

#[test]
fn names_cannot_command_a_terminal() {
    let _turn = turn();
    let (_data, server) = one_node();
    let (path, shown) = ("/a\u{1b}[2J\nb\u{9b}c", "a\\u{1b}[2J\\nb\\u{9b}c");
    ok(server.run(&["cell", "put", path, "x"]));
    for command in [
        &["cell", "put", path, "y"][..],
        &["cell", "ls"],
        &["cell", "ls", "-l"],
        &["cell", "stat", path],
        &["cell", "watch", "/", "--count", "1"],
        &["cell", "elect", path, "--as", path.trim_start_matches('/'), "--", "true"],
    ] {
        let said = server.run(command);
        let all = format!("{}{}", said.out, said.err);
        assert!(!all.contains(['\u{1b}', '\u{9b}']), "{said:?}");
        assert!(all.contains(shown) || command[1] == "elect", "{said:?}");
    }
    let lock = server.start_command(&["cell", "lock", path, "--", "sleep", "60"]);
    let listed = until("the lock is held", || {
        let said = ok(server.run(&["cell", "locks"]));
        said.out.contains(shown).then_some(said.out)
    });
    assert!(!listed.contains('\u{1b}'), "{listed}");
    drop(lock);
    let refused = server.run(&["cell", "cat", "/no\u{1b}[2J"]);
    assert!(refused.err.contains("/no\\u{1b}[2J") && !refused.err.contains('\u{1b}'), "{refused:?}");
    // Programs get names as they are.
    assert_eq!(server.run(&["cell", "ls", "--json"]).json()[0]["path"], path);
    assert_eq!(server.run(&["cell", "watch", path, "--count", "1", "--json"]).json()["path"], path);
}

#[test]
fn day_one() {
    let _turn = turn();
    let (_data, server) = one_node();
    // Directories are made on the way, and said so.
    let first = server.run(&["cell", "put", "/app/config", "one", "--json"]);
    assert!(first.err.contains("made /app"), "{first:?}");
    let first = first.json();
    assert_eq!(ok(server.run(&["cell", "cat", "/app/config"])).out, "one");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0, 159, 10]).unwrap();
    let from_file = format!("@{}", file.path().display());
    let generation = first["content_generation"].as_u64().unwrap();
    let second =
        server.run(&["cell", "put", "/app/config", &from_file, "--if-generation", &generation.to_string(), "--json"]);
    let second = second.json();
    assert!(second["content_generation"].as_u64() > Some(generation), "{second}");
    assert_eq!(second["length"], 3);
    assert_eq!(second["instance"], first["instance"]);
    let read = server.run(&["cell", "cat", "/app/config", "--json"]).json();
    assert_eq!(read["contents"], json!({ "base64": "AJ8K" }));

    let mut from_stdin = tidings()
        .args(["cell", "put", "/app/typed", "-", "--server", &server.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    from_stdin.stdin.take().unwrap().write_all(b"typed").unwrap();
    let said = ok(from_stdin.wait_with_output().unwrap().into());
    assert!(said.out.starts_with("/app/typed: generation "), "{said:?}");

    ok(server.run(&["cell", "mkdir", "/app/deep/er", "-p"]));
    assert_eq!(ok(server.run(&["cell", "ls", "/app"])).out, "config\ndeep/\ntyped\n");
    let long = ok(server.run(&["cell", "ls", "-l", "/app"]));
    assert!(long.out.starts_with("NAME") && long.out.lines().count() == 4, "{long:?}");
    let listed = server.run(&["cell", "ls", "/app", "--json"]).json();
    assert_eq!(listed[1]["path"], "/app/deep");
    assert_eq!(listed[1]["kind"], "directory");
    let stat = server.run(&["cell", "stat", "/app/config", "--json"]).json();
    assert_eq!(stat, second);
    assert!(ok(server.run(&["cell", "stat", "/app"])).out.contains("3 children"));

    ok(server.run(&["cell", "rm", "/app/typed"]));
    server.run(&["cell", "rm", "-r", "/app"]).failed(2, "cannot be undone");
    assert_eq!(server.run(&["cell", "rm", "-r", "/app", "--yes", "--json"]).json()["deleted"], 4);
    server.run(&["cell", "ls", "/app"]).failed(3, "cell.no_node");
    // What is made again is another node.
    let again = server.run(&["cell", "put", "/app/config", "x", "--create-only", "--json"]).json();
    assert!(again["instance"].as_u64() > first["instance"].as_u64(), "{again}");
}

#[test]
fn every_mistake_has_its_name_and_changes_nothing() {
    let _turn = turn();
    let (_data, server) = one_node();
    ok(server.run(&["cell", "put", "/d/f", "kept"]));
    let long_name = format!("/{}", "x".repeat(1_100));
    let large = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(large.path(), vec![b'x'; (256 << 10) + 1]).unwrap();
    let large = format!("@{}", large.path().display());
    let mistakes: &[(&[&str], i32, &str)] = &[
        (&["put", "no-slash", "x"], 2, "cell.bad_path"),
        (&["put", "/d//f", "x"], 2, "cell.bad_path"),
        (&["put", "/d/../f", "x"], 2, "cell.bad_path"),
        (&["cat", &long_name], 2, "cell.bad_path"),
        (&["put", "/d/f", &large], 2, "cell.too_large"),
        (&["put", "/d/f", "x", "--if-generation", "99"], 4, "cell.wrong_generation"),
        (&["put", "/d/f", "x", "--create-only"], 4, "cell.node_exists"),
        (&["put", "/d/new", "x", "--if-generation", "1"], 3, "cell.no_node"),
        (&["put", "/d/f/below", "x"], 4, "cell.not_a_directory"),
        (&["put", "/d", "x"], 4, "cell.is_a_directory"),
        (&["put", "/d/e", "x", "--ephemeral"], 2, "an ephemeral file"),
        (&["put", "/d/f", "x", "--sequencer", "nonsense"], 2, "cell.bad_sequencer"),
        (&["put", "/d/f", "x", "--sequencer", "seq1.AAAA"], 2, "cell.bad_sequencer"),
        (&["cat", "/d"], 4, "cell.is_a_directory"),
        (&["cat", "/nothing"], 3, "cell.no_node"),
        (&["stat", "/nothing"], 3, "cell.no_node"),
        (&["watch", "/nothing"], 3, "cell.no_node"),
        (&["ls", "/d/f"], 4, "cell.not_a_directory"),
        (&["mkdir", "/no/parent"], 3, "cell.no_parent"),
        (&["mkdir", "/d"], 4, "cell.node_exists"),
        (&["rm", "/d"], 4, "cell.not_empty"),
        (&["rm", "/nothing"], 3, "cell.no_node"),
        (&["rm", "/d/f", "--if-generation", "99"], 4, "cell.wrong_generation"),
        (&["acl", "set", "/d/f", "--read", "nobody-made-it"], 4, "cell.unknown_acl"),
        (&["acl", "set", "/d/f"], 2, "nothing to set"),
        (&["put", "/acl/new", "app:shop\nshop"], 2, "line 2 of the access list `new`"),
        (&["put", "/acl/new", "nobody", "--create-only"], 2, "line 1 of the access list"),
        (&["cat", "/acl/new"], 3, "cell.no_node"),
        (&["quota", "set", "/d"], 2, "nothing to set"),
        (&["quota", "set", "/d/f", "--nodes", "3"], 4, "cell.not_a_directory"),
        (&["member", "add", "1", "127.0.0.1:1"], 4, "node 1 is a voting member already"),
        (&["elect", "/d/f", "--who"], 3, "nobody is elected"),
        (&["sessions", "end", "999999"], 4, "cell.no_session"),
        (&["sequencer", "check", "seq1.AAAA"], 2, "cell.bad_sequencer"),
        (&["member", "remove", "7"], 3, ""),
        (&["restore", "/there/is/no/such/file"], 1, ""),
    ];
    let managers = until("the placement manager has its session", || {
        let sessions = server.run(&["cell", "sessions", "--json"]).json();
        sessions.as_array()?.iter().find(|s| s["app"] == ".placement")?["session"].as_u64()
    });
    server.run(&["cell", "sessions", "end", &managers.to_string()]).failed(4, "a placement manager's own");
    for (args, code, name) in mistakes {
        let said = server.run(&[&["cell"], *args].concat());
        assert_eq!(said.code, *code, "{args:?}: {said:?}");
        assert!(said.err.contains(name) && said.err.starts_with("error: "), "{args:?}: {said:?}");
        assert!(said.err.contains("hint: ") || name.is_empty(), "{args:?}: {said:?}");
    }
    assert_eq!(ok(server.run(&["cell", "cat", "/d/f"])).out, "kept");
    assert_eq!(ok(server.run(&["cell", "ls", "/d"])).out, "f\n");
    // A hint is one for whoever typed it.
    for (args, hint) in [
        (&["sessions", "end", "999999"][..], "`tidings cell sessions` lists"),
        (&["lock", "/d", "--", "true"], "tidings cell lock /d/lock -- CMD"),
        (&["elect", "/d", "--as", "a", "--", "true"], "tidings cell elect /d/leader --as NAME"),
        (&["watch", "/nothing"], "`tidings cell put` makes a file"),
        // A value that does not fit is no flag that nobody knows.
        (&["put", "/d/f", "x", "--if-generation", "-1"], "invalid value '-1'"),
        (&["lock", "/l", "--lease", "-5s", "--", "true"], "a duration is a whole number"),
    ] {
        let said = server.run(&[&["cell"], args].concat());
        assert!(said.code != 0 && said.err.contains(hint), "{args:?}: {said:?}");
    }
    for args in [&["cat", "/d/f", "--timeout", "0"][..], &["watch", "/d/f", "--count", "0"]] {
        assert_eq!(server.run(&[&["cell"], args].concat()).code, 2, "{args:?}");
    }
    run(&["cell", "sequencer", "show", "seq1.***"]).failed(2, "cell.bad_sequencer");
    let nobody = format!("http://127.0.0.1:{}", free_port());
    assert_eq!(run(&["cell", "cat", "/d/f", "--server", &nobody, "--timeout", "2"]).code, 5);
}

#[test]
fn a_watch_tells_of_changes_until_it_has_told_enough_or_is_interrupted() {
    let _turn = turn();
    let (_data, server) = one_node();
    ok(server.run(&["cell", "put", "/w/f", "one"]));
    let watch = server.start_command(&["cell", "watch", "/w/f", "--json", "--count", "4"]);
    let line = |watch: &Running, number| serde_json::from_str::<serde_json::Value>(&watch.line(number)).unwrap();
    assert_eq!(line(&watch, 1)["contents"], "one");
    ok(server.run(&["cell", "put", "/w/f", "two"]));
    assert_eq!(line(&watch, 2)["contents"], "two");
    ok(server.run(&["cell", "rm", "/w/f"]));
    assert_eq!(line(&watch, 3), json!({ "path": "/w/f", "event": "gone" }));
    // It may come back, with its directory even.
    ok(server.run(&["cell", "rm", "/w"]));
    ok(server.run(&["cell", "put", "/w/f", "three"]));
    assert_eq!((&line(&watch, 4)["event"], &line(&watch, 4)["contents"]), (&"present".into(), &"three".into()));
    assert_eq!(watch.ended().code, 0);
    ok(server.run(&["cell", "rm", "/w/f"]));

    let watch = server.start_command(&["cell", "watch", "/w"]);
    assert!(watch.line(1).starts_with("/w present"));
    ok(server.run(&["cell", "put", "/w/new", "x"]));
    assert!(watch.line(2).contains("children: new"), "{}", watch.out());
    watch.signal(Signal::INT);
    assert_eq!(watch.ended().code, 0);
}

#[test]
fn an_ephemeral_file_lives_as_long_as_who_holds_it() {
    let _turn = turn();
    let (_data, server) = one_node();
    let holder = server.start_command(&["cell", "put", "/members/a", "10.0.0.7:80", "--ephemeral", "--hold"]);
    holder.line(1);
    assert_eq!(server.run(&["cell", "stat", "/members/a", "--json"]).json()["ephemeral"], true);
    let sessions = server.run(&["cell", "sessions", "--json"]).json();
    let holding = sessions.as_array().unwrap().iter().find(|session| session["ephemerals"] == 1);
    assert!(holding.is_some(), "{sessions}");
    holder.signal(Signal::TERM);
    assert_eq!(holder.ended().code, 0);
    until("the file is gone", || (server.run(&["cell", "stat", "/members/a"]).code == 3).then_some(()));
}

#[test]
fn a_generation_is_one_of_a_file_that_is_there() {
    let _turn = turn();
    let (_data, server) = one_node();
    let held = server.start_command(&["cell", "put", "/none", "x", "--if-generation", "1", "--hold"]);
    held.ended().failed(3, "cell.no_node");
    assert_eq!(server.run(&["cell", "stat", "/none"]).code, 3);
}

#[test]
fn access_lists_and_operators() {
    let _turn = turn();
    let (_data, server) = one_node();
    let created = server.run(&["app", "create", "shop", "--json"]).json();
    let further = server.run(&["app", "keys", "shop", "--new", "--json"]).json();
    let (one, id, two) =
        (created["key"].as_str().unwrap(), created["id"].as_str().unwrap(), further["key"].as_str().unwrap());
    let as_one = |args: &[&str]| server.run(&before_dashes(&[&["cell"], args].concat(), &["--key", one]));
    let as_two = |args: &[&str]| server.run(&before_dashes(&[&["cell"], args].concat(), &["--key", two]));

    ok(as_one(&["put", "/secret", "x"]));
    assert_eq!(ok(as_two(&["cat", "/secret"])).out, "x");
    // Another application's tree is another tree.
    assert_eq!(server.run(&["cell", "cat", "/secret"]).code, 3);

    ok(as_one(&["put", "/acl/one", &format!("# the first key\napp:shop/{id}\n")]));
    let set = as_one(&["acl", "set", "/secret", "--read", "one", "--write", "one", "--change", "one", "--json"]).json();
    assert_eq!(set["acl"], json!({ "read": "one", "write": "one", "change": "one" }));
    assert_eq!(as_one(&["acl", "get", "/secret", "--json"]).json()["acl"], set["acl"]);
    ok(as_one(&["put", "/secret", "y"]));
    as_two(&["cat", "/secret"]).failed(4, "cell.denied");
    as_two(&["put", "/secret", "z"]).failed(4, "cell.denied");
    as_two(&["lock", "/secret", "--", "true"]).failed(4, "cell.denied");
    as_two(&["acl", "set", "/secret", "--read", ""]).failed(4, "cell.denied");
    assert_eq!(ok(as_one(&["cat", "/secret"])).out, "y");

    for operators in [&["sessions"][..], &["locks"], &["quota", "set", "/", "--nodes", "1"], &["sessions", "end", "1"]]
    {
        let said = as_one(operators);
        assert_eq!(said.code, 4, "{operators:?}: {said:?}");
    }
}

#[test]
fn a_watch_prints_what_changed_and_not_that_the_master_did() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let (path, listen) = (data.path().to_str().unwrap(), format!("127.0.0.1:{}", free_port()));
    let start = || Server::start(&["--data", path, "--listen", &listen]);
    let server = start();
    ok(server.run(&["cell", "put", "/f", "one"]));
    let watch = server.start_command(&["cell", "watch", "/f"]);
    watch.line(1);
    server.kill();
    let server = start();
    ok(server.run(&["cell", "put", "/f", "two"]));
    watch.line(2);
    assert_eq!(watch.out(), "/f present: generation 1: one\n/f contents: generation 2: two\n");
}

#[test]
fn quotas_bound_a_directory() {
    let _turn = turn();
    let (_data, server) = one_node();
    ok(server.run(&["cell", "mkdir", "/q"]));
    let set = server.run(&["cell", "quota", "set", "/q", "--nodes", "2", "--bytes", "10", "--json"]).json();
    assert_eq!((&set["max_nodes"], &set["max_bytes"]), (&json!(2), &json!(10)));
    ok(server.run(&["cell", "put", "/q/a", "12345"]));
    server.run(&["cell", "put", "/q/b", "123456"]).failed(4, "cell.quota_bytes");
    ok(server.run(&["cell", "put", "/q/b", "12345"]));
    server.run(&["cell", "put", "/q/c", ""]).failed(4, "cell.quota_nodes");
    let got = server.run(&["cell", "quota", "get", "/q", "--json"]).json();
    assert_eq!((&got["nodes"], &got["bytes"]), (&json!(2), &json!(10)));
    ok(server.run(&["cell", "quota", "set", "/q", "--nodes", "0"]));
    ok(server.run(&["cell", "put", "/q/c", ""]));
}
