//! `doctor`: what is well, what is damaged, and what to do.

use crate::process::{Server, run, turn};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidings_log::{RealDisk, SmallFile};

fn doctor(data: &Path) -> crate::process::Said {
    run(&["doctor", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--json"])
}

/// The largest file of the log: the segment that holds the records.
fn segment(data: &Path) -> PathBuf {
    let files = std::fs::read_dir(data.join("group-1/log")).unwrap().map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.max_by_key(|path| path.metadata().unwrap().len()).expect("a log has a segment")
}

#[test]
fn a_machine_without_data_is_well() {
    let dir = tempfile::tempdir().unwrap();
    let report = doctor(&dir.path().join("none-yet")).json();
    assert_eq!(report["healthy"], true, "{report}");
    let names: Vec<&str> = report["checks"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    for expected in ["version", "clock", "configuration", "disk", "port", "certificates", "data directory"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    assert!(!dir.path().join("none-yet").exists(), "looking must not make anything");
}

#[test]
fn damage_in_the_middle_of_the_log_is_named_by_doctor_and_refused_by_serve() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    for row in ["a", "b", "c", "d"] {
        assert_eq!(server.run(&["store", "put", "g", row, "c", "value"]).code, 0);
    }
    assert_eq!(server.terminate(), 0);
    let report = doctor(data.path()).json();
    assert_eq!(report["healthy"], true, "{report}");
    let state = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "state").unwrap();
    assert!(state["message"].as_str().unwrap().contains("all readable"), "{state}");

    let path = segment(data.path());
    let mut bytes = std::fs::read(&path).unwrap();
    // In the first of several records: what follows it says that this is no torn tail.
    let at = bytes.windows(5).position(|window| window == b"value").expect("the first row is in the log");
    bytes[at] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();

    let said = doctor(data.path());
    assert_eq!(said.code, 1, "{said:?}");
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let failed = report["checks"].as_array().unwrap().iter().find(|check| check["state"] == "failed").unwrap();
    let file = path.file_name().unwrap().to_str().unwrap();
    assert!(failed["message"].as_str().unwrap().contains(file), "{failed}");
    assert!(!failed["hint"].as_str().unwrap().is_empty(), "{failed}");

    let said = run(&["serve", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    said.failed(1, file);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "what is damaged is left as it is");
}

/// Every file below a directory with its content.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => found.extend(content(&path)),
            false => drop(found.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn looking_changes_nothing() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    for row in ["a", "b", "c", "d"] {
        assert_eq!(server.run(&["store", "put", "g", row, "c", "value"]).code, 0);
    }
    // No goodbye: a start would have something to mend here.
    server.kill();
    let before = content(data.path());
    let report = doctor(data.path()).json();
    assert_eq!(report["healthy"], true, "{report}");
    let after = content(data.path());
    let changed: Vec<&PathBuf> =
        before.keys().chain(after.keys()).filter(|path| before.get(*path) != after.get(*path)).collect();
    assert!(changed.is_empty(), "{changed:?}");

    // A log that is gone altogether is no fresh start if a state was made from it.
    assert_eq!(Server::embedded(data.path()).terminate(), 0);
    std::fs::remove_dir_all(data.path().join("group-1/log")).unwrap();
    let said = doctor(data.path());
    assert!(said.code == 1 && said.out.contains("its files are gone"), "{said:?}");
    assert!(!data.path().join("group-1/log").exists());
}

#[test]
fn a_group_that_is_gone_is_named_by_doctor_and_not_begun_again() {
    let _turn = turn();
    for group in ["group-0", "group-1"] {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(Server::embedded(data.path()).terminate(), 0);
        // A directory of an earlier version does not say that its groups have begun, until the next start.
        let entry = data.path().join("ENTRY");
        let said = std::fs::read_to_string(&entry).unwrap();
        std::fs::write(&entry, said.replace("begun\n", "")).unwrap();
        assert_eq!(Server::embedded(data.path()).terminate(), 0);
        assert!(std::fs::read_to_string(&entry).unwrap().contains("begun\n"));

        std::fs::remove_dir_all(data.path().join(group)).unwrap();
        let said = doctor(data.path());
        assert_eq!(said.code, 1, "{said:?}");
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let failed: Vec<_> = report["checks"].as_array().unwrap().iter().filter(|c| c["state"] == "failed").collect();
        assert_eq!(failed.len(), 1, "{report}");
        let message = failed[0]["message"].as_str().unwrap();
        assert!(message.contains(group) && message.contains("its files are gone"), "{message}");
        let said = run(&["serve", "--data", data.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
        said.failed(4, "node.lost_group");
    }
}

#[test]
fn a_port_that_somebody_else_has_is_a_failed_check() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = run(&["doctor", "--data", dir.path().join("none").to_str().unwrap(), "--listen", &address]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains(&format!("FAILED   port: cannot listen on {address}")), "{said:?}");
}

#[test]
fn a_bad_configuration_is_one_failed_check() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    std::fs::write(&config, "nodes = 3\n").unwrap();
    let said = run(&["doctor", "--config", config.to_str().unwrap()]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("FAILED   configuration:") && said.out.contains("node.toml:1:1"), "{said:?}");
}

#[test]
fn a_half_written_vote_and_a_lost_log_are_named_by_doctor_and_refused_by_serve() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    assert_eq!(server.run(&["store", "put", "g", "a", "c", "value"]).code, 0);
    assert_eq!(server.terminate(), 0);
    let vote = segment(data.path()).with_file_name("vote");
    let old = std::fs::read(&vote).unwrap();
    std::fs::write(&vote, &old[..old.len() / 2]).unwrap();
    refused(data.path(), "vote is damaged");
    std::fs::write(&vote, &old).unwrap();

    // One of an earlier term, out of a backup: this replica could vote a second time in the terms since.
    assert_eq!(Server::embedded(data.path()).terminate(), 0);
    let whole = std::fs::read(&vote).unwrap();
    std::fs::write(&vote, &old).unwrap();
    refused(data.path(), "it knows of term");
    std::fs::write(&vote, &whole).unwrap();

    std::fs::remove_file(segment(data.path())).unwrap();
    refused(data.path(), "its files are gone");
}

/// Doctor finds what keeps `serve` from starting, and both name it.
fn refused(data: &Path, named: &str) {
    let said = doctor(data);
    assert_eq!(said.code, 1, "{said:?}");
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let failed = report["checks"].as_array().unwrap().iter().find(|check| check["state"] == "failed").unwrap();
    assert!(failed["message"].as_str().unwrap().contains(named), "{failed}");
    // Other groups may have begun, and said so, before.
    let said = run(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(said.code == 1 && said.err.contains(named) && said.err.contains("\nhint: "), "{said:?}");
}

#[test]
fn a_state_that_is_gone_is_missed_once_the_log_has_been_purged() {
    let _turn = turn();
    for group in ["group-0", "group-1"] {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(Server::embedded(data.path()).terminate(), 0);
        assert_eq!(doctor(data.path()).json()["healthy"], true);
        // The first entry is purged: whatever it did is in the state (the cell's: in a snapshot) and nowhere else.
        let disk = RealDisk::open(data.path().join(group).join("log")).unwrap();
        let first_of_term_one = [0x08, 1, 0x10, 1];
        SmallFile::new(Arc::new(disk), "purged", 0x0201).replace(&first_of_term_one).unwrap();
        if group == "group-1" {
            std::fs::remove_dir_all(data.path().join("group-1/state")).unwrap();
        }
        refused(data.path(), "the state ends at entry 0 and the log begins at entry 2");
    }
}

#[test]
fn keys_of_an_issuer_that_are_not_there_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    std::fs::write(
        &config,
        "listen = \"127.0.0.1:0\"\ndata = \"data\"\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"a\"\napp = \"shop\"\n\
         algorithm = \"RS256\"\njwks = \"keys.json\"\n",
    )
    .unwrap();
    let said = run(&["doctor", "--config", config.to_str().unwrap()]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("FAILED   authentication: cannot read ") && said.out.contains("keys.json"), "{said:?}");
    // It says what to do.
    run(&["serve", "--config", config.to_str().unwrap()]).failed(2, "keys.json");
}
