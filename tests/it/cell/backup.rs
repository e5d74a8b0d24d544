//! The whole cell to a file and back; a damaged file is refused, and nothing changes.

use crate::process::{Server, turn};
use rustix::process::Signal;

#[test]
fn a_backup_comes_back_here_and_in_a_new_cell_and_a_damaged_one_nowhere() {
    let _turn = turn();
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("cell.backup");
    let path = file.to_str().unwrap();
    let server = Server::embedded(data.path());
    for number in 0..20 {
        let said = server.run(&["cell", "put", &format!("/b/{number}"), &"x".repeat(100 * number)]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let saved = server.run(&["cell", "backup", path, "--json"]).json();
    assert_eq!(saved["bytes"].as_u64(), Some(std::fs::metadata(&file).unwrap().len()));
    server.run(&["cell", "backup", path]).failed(4, "exists already");
    let generation = |server: &Server| {
        server.run(&["cell", "stat", "/b/7", "--json"]).json()["content_generation"].as_u64().unwrap()
    };
    let before = generation(&server);

    // Over what is there only if it is meant.
    assert_eq!(server.run(&["cell", "put", "/b/7", "changed since"]).code, 0);
    server.run(&["cell", "restore", path]).failed(4, "cell.not_empty_cell");
    server.run(&["cell", "restore", path, "--replace"]).failed(2, "ends every session");

    // Whatever is wrong with a file, it is refused whole, and the message says where.
    let good = std::fs::read(&file).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let longer = [&good[..], b"more"].concat();
    for (what, bytes) in [
        ("flipped", flipped),
        ("short", good[..good.len() - 10].to_vec()),
        ("longer", longer),
        ("other", b"not a backup".to_vec()),
    ] {
        let bad = files.path().join(what);
        std::fs::write(&bad, bytes).unwrap();
        let said = server.run(&["cell", "restore", bad.to_str().unwrap(), "--replace", "--yes"]);
        said.failed(2, "cell.damaged_backup");
        assert!(said.err.contains("offset") || said.err.contains("byte"), "{what}: {said:?}");
    }
    assert_eq!(server.run(&["cell", "cat", "/b/7"]).out, "changed since");

    // A lock is not taken from under whoever holds it.
    let holder = server.start_command(&["cell", "lock", "/l", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(holder.line(1), "held");
    server.run(&["cell", "restore", path, "--replace", "--yes"]).failed(4, "cell.locks_in_use");
    holder.signal(Signal::TERM);
    assert_eq!(holder.ended().code, 143);

    let restored = server.run(&["cell", "restore", path, "--replace", "--yes", "--json"]).json();
    assert_eq!(restored["restored"], true);
    assert_eq!(server.run(&["cell", "cat", "/b/7"]).out, "x".repeat(700));
    assert_eq!(generation(&server), before);

    // A new cell takes it without being told to replace anything.
    let new = Server::embedded(other.path());
    assert_eq!(new.run(&["cell", "restore", path]).code, 0);
    assert_eq!(new.run(&["cell", "cat", "/b/19"]).out.len(), 1_900);
    assert_eq!(new.run(&["cell", "ls", "/b", "--json"]).json().as_array().unwrap().len(), 20);
    // And it is there after a restart.
    assert_eq!(new.terminate(), 0);
    let new = Server::embedded(other.path());
    assert_eq!(new.run(&["cell", "cat", "/b/7"]).out, "x".repeat(700));
}
