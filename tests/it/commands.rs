//! The command line as scripts use it: names, JSON, exit codes.

use crate::process::{Server, free_port, http, run, tidings, turn};
use std::io::Write;
use std::process::Stdio;

#[test]
fn an_unknown_flag_is_a_usage_error() {
    for args in
        [&["serve", "--no-such-flag"][..], &["no-such-command"], &["sim", "store", "--seeds", "5..1"], &["bench"]]
    {
        let said = run(args);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.starts_with("error: "), "{said:?}");
    }
}

#[test]
fn help_and_version_are_not_errors() {
    for args in [&["--help"][..], &["--version"], &["serve", "--help"], &["bench", "--help"]] {
        let said = run(args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
        assert!(!said.out.is_empty());
    }
}

#[test]
fn completions_exist_for_every_shell_and_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = run(&["completions", shell]);
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.contains("doctor") && said.out.contains("insecure-listen"), "{shell}");
    }
}

#[test]
fn nobody_there_is_unreachable() {
    let url = format!("http://127.0.0.1:{}", free_port());
    run(&["status", "--server", &url, "--timeout", "2"]).failed(5, "");
}

#[test]
fn errors_are_json_where_answers_are() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let told = run(&["status", "--server", &url, "--timeout", "2", "--json"]).failed_json(5);
    assert_eq!((&told["code"], &told["class"]), (&"client.unreachable".into(), &"unreachable".into()));
    // Also what is wrong before any command runs, and beside a report on standard output.
    let told = run(&["store", "get", "g", "--json"]).failed_json(2);
    assert_eq!(told["code"], "cli.usage");
    assert!(told["hint"].as_str().unwrap().contains("Usage: tidings store get"), "{told}");
    assert_eq!(run(&["sim", "no-such-scenario", "--json"]).failed_json(2)["class"], "invalid");
    let unwell = run(&["doctor", "--config", "/no/such/file.toml", "--json"]);
    assert_eq!(unwell.failed_json(1)["code"], "doctor.unwell");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&unwell.out).unwrap()["healthy"], false);
    // What follows `--` is another program's.
    assert!(run(&["cell", "lock", "--", "x", "--json"]).err.starts_with("error: "));
}

#[test]
fn what_is_measured_as_durable_is_not_in_memory() {
    let said = run(&["bench", "store", "--quick", "--dir", "/dev/shm"]);
    said.failed(4, "forgets at power loss");
}

#[test]
fn a_row_larger_than_a_frame_is_one_row() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let content = data.path().join("content");
    std::fs::write(&content, vec![b'x'; 300 << 10]).unwrap();
    for column in ["a", "b", "c", "d"] {
        let put = ["store", "put", "g", "large", column, &format!("@{}", content.display())];
        assert_eq!(server.run(&put).code, 0);
    }
    let row = server.run(&["store", "get", "g", "large", "--json"]).json();
    assert_eq!(row["cells"].as_object().unwrap().len(), 4);
    let found = server.run(&["store", "scan", "g", "--json"]).json();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[0]["cells"].as_object().unwrap().len()), (1, 4));
}

#[test]
fn rows_are_written_read_and_refused() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    for (row, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        let said = server.run(&["store", "put", "g", row, "col", value, "--timestamp", "10", "--json"]);
        assert_eq!(said.json(), serde_json::json!({ "timestamp": 10 }));
    }
    let scan = |more: &[&str]| server.run(&[&["store", "scan", "g"][..], more].concat());
    let names = |found: &serde_json::Value| -> Vec<String> {
        found["rows"].as_array().unwrap().iter().map(|row| row["row"].as_str().unwrap().to_owned()).collect()
    };
    let found = scan(&["--start", "b", "--json"]).json();
    assert_eq!(
        (names(&found), &found["more"], &found["next"]),
        (vec!["b".into(), "c".into()], &false.into(), &().into())
    );
    // Where the limit cuts it short, it says so and where to go on.
    let found = scan(&["--limit", "2", "--json"]).json();
    assert_eq!(
        (names(&found), &found["more"], &found["next"]),
        (vec!["a".into(), "b".into()], &true.into(), &"c".into())
    );
    assert_eq!(scan(&["--limit", "2"]).err, "more rows follow: go on with --start c\n");
    assert_eq!(scan(&["--limit", "3"]).err, "");

    // A condition that does not hold is refused (4) and changes nothing; one that holds is taken.
    server.run(&["store", "put", "g", "a", "col", "9", "--if-timestamp", "9"]).failed(4, "10");
    assert_eq!(
        server.run(&["store", "put", "g", "a", "col", "9", "--if-timestamp", "10", "--timestamp", "11"]).code,
        0
    );
    assert_eq!(server.run(&["store", "get", "g", "a", "--json"]).json()["cells"]["col"]["value"], "9");

    assert_eq!(server.run(&["store", "put", "g", "b", "col", "--delete"]).code, 0);
    let missing = server.run(&["store", "get", "g", "b"]);
    assert_eq!(missing.code, 3, "{missing:?}");

    // A timestamp outside 1 … 2⁶³−1 is bad input.
    assert_eq!(server.run(&["store", "put", "g", "a", "col", "x", "--timestamp", "0"]).code, 2);
}

#[test]
fn content_comes_from_standard_input_and_entries_are_delivered_until_acknowledged() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let consume = |more: &[&str]| {
        let said = server.run(&[&["feed", "consume", "news", "--json"][..], more].concat());
        assert_eq!(said.code, 0, "{said:?}");
        let entry =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["entry"].as_str().unwrap().to_owned();
        said.out.lines().map(entry).collect::<Vec<_>>()
    };
    // A group hears what comes after it made itself known.
    assert!(consume(&["--group", "one", "--wait-ms", "0"]).is_empty());
    assert!(consume(&["--group", "two", "--wait-ms", "0"]).is_empty());
    let mut append = tidings()
        .args(["feed", "append", "news", "-", "second", "--server", &server.url(), "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    append.stdin.take().unwrap().write_all(b"first").unwrap();
    let appended = crate::process::Said::from(append.wait_with_output().unwrap()).json();
    assert_eq!(appended, serde_json::json!({ "first": 1, "last": 2 }));

    assert_eq!(consume(&["--group", "two", "--limit", "1"]), ["first"]);
    assert_eq!(consume(&["--group", "one"]), ["first", "second"]);
    assert!(consume(&["--group", "one", "--wait-ms", "100"]).is_empty());
    assert_eq!(consume(&["--group", "two"]), ["second"]);
    // A wait longer than the time for an answer is no failure, only a wait.
    assert!(consume(&["--group", "one", "--wait-ms", "1500", "--timeout", "1"]).is_empty());
    server.run(&["feed", "consume", "news", "--wait-ms", "60001", "--json"]).failed_json(2);
}

#[test]
fn applications_get_keys_that_work_until_revoked() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let created = server.run(&["app", "create", "shop", "--json"]).json();
    let (id, key) = (created["id"].as_str().unwrap(), created["key"].as_str().unwrap());
    assert!(key.starts_with("tid_"), "{created}");
    assert_eq!(server.run(&["app", "create", "Shop!"]).code, 2);
    assert_eq!(server.run(&["app", "keys", "nobody"]).code, 3);

    // What the application writes is its own; another's eyes do not see it.
    assert_eq!(server.run(&["store", "put", "g", "r", "c", "v", "--key", key]).code, 0);
    assert_eq!(server.run(&["store", "get", "g", "r", "--key", key]).code, 0);
    assert_eq!(server.run(&["store", "get", "g", "r"]).code, 3);
    // An application is not an operator, and a forged key is nobody.
    assert_eq!(server.run(&["app", "ls", "--key", key]).code, 4);
    assert_eq!(server.run(&["store", "get", "g", "r", "--key", &format!("{key}x")]).code, 4);

    // An answer that cannot be written is no success: the key would be lost in silence.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lost = tidings().args(["app", "ls", "--server", &server.url()]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(lost.status.code() == Some(1) && said.contains("cli.unwritten"), "{lost:?}");

    let further = server.run(&["app", "keys", "shop", "--new", "--json"]).json();
    assert_ne!(further["id"], created["id"]);
    assert_eq!(server.run(&["app", "keys", "shop", "--revoke", id, "--json"]).json()["revoked"], true);
    let keys = server.run(&["app", "keys", "shop", "--json"]).json();
    let revoked: Vec<bool> = keys.as_array().unwrap().iter().map(|key| key["revoked"].as_bool().unwrap()).collect();
    assert_eq!(revoked.iter().filter(|revoked| **revoked).count(), 1, "{keys}");
    assert_eq!(server.run(&["app", "ls", "--json"]).json(), serde_json::json!([{ "app": "shop", "keys": 1 }]));
}

#[test]
fn operators_raise_the_incarnation_and_nobody_else_does() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let shown = || server.run(&["store", "incarnation", "--json"]).json()["incarnation"].as_u64().unwrap();
    let first = shown();
    let key = server.run(&["app", "create", "shop", "--json"]).json()["key"].as_str().unwrap().to_owned();
    server.run(&["store", "incarnation", "--raise", "--yes", "--key", &key]).failed(4, "may not write admin");
    server.run(&["store", "incarnation", "--raise"]).failed(2, "raising the incarnation");
    server.run(&["store", "put", "", "r", "c", "v"]).failed(2, "has no name");
    assert_eq!(shown(), first, "what was refused changed nothing");

    // Never below the wall clock's milliseconds, so that it grows even where the earlier one was lost.
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec.unsigned_abs() * 1_000;
    let raised = server.run(&["store", "incarnation", "--raise", "--yes", "--json"]).json();
    assert_eq!(raised["raised"], true);
    let raised = raised["incarnation"].as_u64().unwrap();
    assert!(raised > first && raised >= clock, "{first}, {clock}, {raised}");
    assert_eq!(server.run(&["store", "incarnation"]).out, format!("incarnation {raised}\n"));

    // The same by REST.
    let (status, body) = http("POST", server.address, "/v1/admin/incarnation", "").unwrap();
    let again = serde_json::from_str::<serde_json::Value>(&body).unwrap()["incarnation"].as_u64().unwrap();
    assert!(status == 200 && again > raised, "{status} {body}");
    server.kill();
    let server = Server::embedded(data.path());
    assert_eq!(server.run(&["store", "incarnation", "--json"]).json()["incarnation"], again, "it outlives the process");
}
