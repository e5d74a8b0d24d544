//! `tidings cell lock -- CMD`: the command runs while the lock is held, and is dead before anybody else can have it.

use crate::process::{Running, Server, lives, turn, until};
use rustix::process::{Pid, Signal, kill_process};

fn one_node() -> (tempfile::TempDir, Server) {
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    (data, server)
}

/// The lock at this path as `tidings cell locks` shows it, if it is not simply free.
fn lock(server: &Server, path: &str) -> Option<serde_json::Value> {
    let locks = server.run(&["cell", "locks", "--json"]).json();
    locks.as_array().unwrap().iter().find(|lock| lock["path"] == path).cloned()
}

fn ends_session_of(server: &Server, path: &str) {
    let held = until("the lock is held", || lock(server, path).filter(|lock| lock["state"] == "exclusive"));
    let session = held["sessions"][0].as_u64().unwrap();
    let said = server.run(&["cell", "sessions", "end", &session.to_string()]);
    assert_eq!(said.code, 0, "{said:?}");
}

/// A command that prints its process id and its sequencer, and does not end when it is asked to.
const STUBBORN: &str = "trap '' TERM; echo $$; echo $TIDINGS_SEQUENCER; while :; do sleep 0.05; done";

#[test]
fn a_lock_delay_that_nobody_would_keep_is_refused() {
    for args in [&["lock", "/l"][..], &["elect", "/l", "--as", "a"]] {
        let said = crate::process::run(&[&["cell"], args, &["--lock-delay", "5m", "--", "true"]].concat());
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("at most 60 s"), "{said:?}");
    }
}

/// R10: without a lock-delay a command must be dead when the lease ends, which a short one does between two KeepAlives.
#[test]
fn a_lease_that_a_healthy_cell_would_lose_is_refused() {
    for args in [&["lock", "/l"][..], &["elect", "/l", "--as", "a"]] {
        for (lease, delay, shortest) in [("1s", "0", "--lease 3s "), ("1500ms", "500ms", "--lease 1650ms ")] {
            let held = ["--lease", lease, "--lock-delay", delay, "--", "true"];
            let said = crate::process::run(&[&["cell"], args, &held].concat());
            said.failed(2, "(cell.lease_too_short)");
            assert!(said.err.contains(shortest), "{said:?}");
        }
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (config, data) = (dir.path().join("node.toml"), dir.path().join("data"));
    std::fs::write(&config, "[cell]\nlease = \"2s\"\ncache_lease = \"1s\"\n").unwrap();
    let (config, data) = (config.to_str().unwrap(), data.to_str().unwrap());
    let server = Server::start(&["--config", config, "--data", data, "--listen", "127.0.0.1:0"]);
    for args in [&["lock", "/l"][..], &["elect", "/l", "--as", "a"]] {
        // The cell's own lease is no better.
        let command = |delay| server.run(&[&["cell"], args, &["--lock-delay", delay, "--", "true"]].concat());
        command("0").failed(2, "a lease of 2 s is too short");
        assert_eq!(command("60s").code, 0);
    }
}

#[test]
fn a_command_runs_with_a_sequencer_and_its_exit_code_is_passed_on() {
    let _turn = turn();
    let (_data, server) = one_node();
    let said = server.run(&[
        "cell",
        "lock",
        "/l/lock",
        "--",
        "sh",
        "-c",
        "echo $TIDINGS_LOCK_PATH $TIDINGS_SEQUENCER; exit 3",
    ]);
    assert_eq!(said.code, 3, "{said:?}");
    let (path, sequencer) = said.out.trim().split_once(' ').unwrap();
    assert_eq!(path, "/l/lock");
    let shown = crate::process::run(&["cell", "sequencer", "show", sequencer, "--json"]).json();
    assert_eq!((shown["path"].as_str(), shown["mode"].as_str()), (Some("/l/lock"), Some("exclusive")));
    assert_eq!(shown["verified"], false);
    // The lock is free, so the sequencer is stale, for good.
    server.run(&["cell", "sequencer", "check", sequencer]).failed(4, "cell.stale_sequencer");
    assert!(lock(&server, "/l/lock").is_none());

    let code = |args: &[&str]| server.run(&[&["cell", "lock", "/l/lock", "--"], args].concat()).code;
    assert_eq!(code(&["true"]), 0);
    assert_eq!(code(&["there-is-no-such-command"]), 127);
    assert_eq!(code(&["/etc/passwd"]), 126);
    let missing = server.run(&["cell", "lock", "/l/lock", "--json", "--", "there-is-no-such-command"]);
    assert_eq!(missing.failed_json(127)["code"], "cli.failed");
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), 137);
    // A later holder's sequencer is newer, and that can be told offline.
    let later = server.run(&["cell", "lock", "/l/lock", "--", "sh", "-c", "echo $TIDINGS_SEQUENCER"]).out;
    let show = ["cell", "sequencer", "show", later.trim(), "--against", sequencer];
    let compared = crate::process::run(&[&show[..], &["--json"]].concat()).json();
    assert_eq!((&compared["against"], &compared["verified"]), (&"newer".into(), &false.into()));
    assert!(crate::process::run(&show).out.contains("not checked"));
    // With the cell's keys what nobody else can have written is told from what anybody can.
    let files = tempfile::tempdir().unwrap();
    let (own, foreign) = (files.path().join("own.keys"), files.path().join("foreign.keys"));
    std::fs::write(&own, server.run(&["cell", "sequencer", "keys"]).out).unwrap();
    let (_other_data, other) = one_node();
    std::fs::write(&foreign, other.run(&["cell", "sequencer", "keys"]).out).unwrap();
    let with = |keys: &std::path::Path| {
        crate::process::run(&[&show[..], &["--keys", keys.to_str().unwrap(), "--json"]].concat())
    };
    let verified = with(&own).json();
    assert_eq!((&verified["against"], &verified["verified"]), (&"newer".into(), &true.into()));
    assert_eq!(with(&foreign).failed_json(2)["code"], "cell.bad_sequencer");
    std::fs::write(&own, "no key").unwrap();
    assert_eq!(with(&own).failed_json(2)["code"], "cli.usage");
}

#[test]
fn who_waits_is_next_and_signals_are_passed_on() {
    let _turn = turn();
    let (_data, server) = one_node();
    let script = "echo $TIDINGS_SEQUENCER; exec sleep 1000";
    let first = server.start_command(&["cell", "lock", "/l", "--", "sh", "-c", script]);
    let sequencer = first.line(1);
    assert_eq!(server.run(&["cell", "sequencer", "check", &sequencer]).out, "valid\n");
    server.run(&["cell", "lock", "/l", "--try", "--", "true"]).failed(4, "cell.lock_held");
    server.run(&["cell", "lock", "/l", "--try", "--shared", "--", "true"]).failed(4, "cell.lock_held");

    let second = server.start_command(&["cell", "lock", "/l", "--", "sh", "-c", "echo second; exit 5"]);
    until("the second waits", || (lock(&server, "/l")?["waiters"] == 1).then_some(()));
    assert!(second.err().contains("waiting for the lock"), "{}", second.err());
    assert_eq!(second.out(), "");
    first.signal(Signal::TERM);
    assert_eq!(first.ended().code, 143);
    let second = second.ended();
    assert_eq!((second.code, second.out.as_str()), (5, "second\n"), "{second:?}");
    server.run(&["cell", "sequencer", "check", &sequencer]).failed(4, "cell.stale_sequencer");

    // Shared holders run side by side, and keep an exclusive one out.
    let shared =
        |_| server.start_command(&["cell", "lock", "/l", "--shared", "--", "sh", "-c", "echo in; exec sleep 1000"]);
    let readers: Vec<Running> = (0..2).map(shared).collect();
    readers.iter().for_each(|reader| assert_eq!(reader.line(1), "in"));
    server.run(&["cell", "lock", "/l", "--try", "--", "true"]).failed(4, "cell.lock_held");
    // One that waits and is interrupted leaves the queue.
    let waits = server.start_command(&["cell", "lock", "/l", "--", "true"]);
    until("it waits", || (lock(&server, "/l")?["waiters"] == 1).then_some(()));
    waits.signal(Signal::INT);
    assert_eq!(waits.ended().code, 130);
    until("it waits no more", || (lock(&server, "/l")?["waiters"] == 0).then_some(()));
}

#[test]
fn a_lost_lock_kills_the_command_and_has_an_exit_code_of_its_own() {
    let _turn = turn();
    let (_data, server) = one_node();
    let held = ["--lease", "2s", "--lock-delay", "3s", "--kill-after", "500ms"];
    let running = server.start_command(&[&["cell", "lock", "/l"], &held[..], &["--", "sh", "-c", STUBBORN]].concat());
    let (pid, sequencer) = (running.line(1), running.line(2));
    assert_eq!(server.run(&["cell", "sequencer", "check", &sequencer]).code, 0);
    ends_session_of(&server, "/l");
    let said = running.ended();
    assert_eq!(said.code, 7, "{said:?}");
    assert!(said.err.contains("error: the lock of /l was lost"), "{said:?}");
    assert_eq!(said.err.matches("(cell.").count(), 1, "one code: {said:?}");
    assert!(!lives(&pid), "the command outlived its lock");
    server.run(&["cell", "sequencer", "check", &sequencer]).failed(4, "cell.stale_sequencer");
    // Held back first, free in the end.
    assert_eq!(server.run(&["cell", "lock", "/l", "--", "echo", "next"]).out, "next\n");
}

#[test]
fn a_deleted_lock_file_kills_the_command_at_once() {
    let _turn = turn();
    let (_data, server) = one_node();
    // Also when the guard cannot do it.
    for stop_guard in [false, true] {
        let running = server.start_command(&["cell", "lock", "/l", "--kill-after", "60s", "--", "sh", "-c", STUBBORN]);
        let pid = running.line(1);
        if stop_guard {
            kill_process(parent(&pid), Signal::STOP).unwrap();
        }
        assert_eq!(server.run(&["cell", "rm", "/l"]).code, 0);
        assert_eq!(running.ended().code, 7);
        assert!(!lives(&pid), "the command outlived its lock");
    }
}

/// The process that started another.
fn parent(pid: &str) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    Pid::from_raw(parent.trim().parse().unwrap()).unwrap()
}

#[test]
fn a_signal_before_the_lock_is_held_starts_nothing() {
    let _turn = turn();
    let (_data, server) = one_node();
    let holder = server.start_command(&["cell", "lock", "/l", "--", "sh", "-c", "echo held; sleep 600"]);
    assert_eq!(holder.line(1), "held");
    let early = server.start_command(&["cell", "lock", "/l", "--", "echo", "started"]);
    until("it hears signals", || hears(early.pid(), Signal::TERM).then_some(()));
    early.signal(Signal::TERM);
    let said = early.ended();
    assert_eq!((said.code, said.out.as_str()), (143, ""), "{said:?}");
    holder.signal(Signal::TERM);
    assert_ne!(holder.ended().code, 0);
}

/// Whether a process has a handler of its own for a signal.
fn hears(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn the_command_dies_in_time_although_nobody_keeps_its_session() {
    let _turn = turn();
    let (_data, server) = one_node();
    let args = ["cell", "lock", "/l", "--lease", "2s", "--lock-delay", "2s", "--", "sh", "-c", STUBBORN];
    // Stopped: the lease runs out, and the command is dead before the lock can be anybody else's (R10).
    let mut stopped = server.start_command(&args);
    let pid = stopped.line(1);
    stopped.signal(Signal::STOP);
    let next =
        server.run(&["cell", "lock", "/l", "--", "sh", "-c", "cat /proc/$0/stat 2>/dev/null || echo dead", &pid]);
    assert!(next.out == "dead\n" || next.out.contains(") Z "), "{next:?}");
    assert!(stopped.is_running());
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.ended().code, 7);

    // Killed: the guard hears of it at once.
    let killed = server.start_command(&args);
    let pid = killed.line(1);
    killed.signal(Signal::KILL);
    until("the command is dead", || (!lives(&pid)).then_some(()));
    assert_eq!(server.run(&["cell", "lock", "/l", "--", "echo", "next"]).out, "next\n");
}

#[test]
fn a_stale_sequencer_writes_nothing() {
    let _turn = turn();
    let (_data, server) = one_node();
    assert_eq!(server.run(&["cell", "put", "/data", "0"]).code, 0);
    let holder = server.start_command(&[
        "cell",
        "lock",
        "/l",
        "--lock-delay",
        "0",
        "--",
        "sh",
        "-c",
        "echo $TIDINGS_SEQUENCER; exec sleep 1000",
    ]);
    let sequencer = holder.line(1);
    assert_eq!(server.run(&["cell", "put", "/data", "1", "--sequencer", &sequencer]).code, 0);
    holder.signal(Signal::TERM);
    assert_eq!(holder.ended().code, 143);
    server.run(&["cell", "put", "/data", "2", "--sequencer", &sequencer]).failed(4, "cell.stale_sequencer");
    server.run(&["cell", "rm", "/data", "--sequencer", &sequencer]).failed(4, "cell.stale_sequencer");
    assert_eq!(server.run(&["cell", "cat", "/data"]).out, "1");
}

#[test]
fn elections_have_one_winner_whom_everybody_can_name() {
    let _turn = turn();
    let (_data, server) = one_node();
    server.run(&["cell", "elect", "/e/leader", "--who"]).failed(3, "nobody is elected");
    let first = server.start_command(&[
        "cell",
        "elect",
        "/e/leader",
        "--as",
        "one",
        "--",
        "sh",
        "-c",
        "echo leading; exec sleep 1000",
    ]);
    assert_eq!(first.line(1), "leading");
    assert_eq!(server.run(&["cell", "elect", "/e/leader", "--who"]).out, "one\n");
    let second = server.start_command(&["cell", "elect", "/e/leader", "--as", "two", "--json"]);
    until("the second stands", || (lock(&server, "/e/leader")?["waiters"] == 1).then_some(()));
    assert_eq!(second.out(), "");
    first.signal(Signal::TERM);
    assert_eq!(first.ended().code, 143);
    let elected: serde_json::Value = serde_json::from_str(&second.line(1)).unwrap();
    assert_eq!(elected["elected"], "two");
    assert_eq!(server.run(&["cell", "elect", "/e/leader", "--who", "--json"]).json()["elected"], "two");
    second.signal(Signal::TERM);
    assert_eq!(second.ended().code, 0);
    server.run(&["cell", "elect", "/e/leader", "--who"]).failed(3, "nobody is elected");
}
