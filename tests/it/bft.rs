//! `tidings bft`: the keys of a group, what is said of one that does not run, and one that does. `tests/bft` has more of it.

use crate::ports::{free_address, free_port};
use crate::process::run;
#[cfg(feature = "bft")]
use crate::process::{turn, until};
#[cfg(feature = "bft")]
use crate::town::Town;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::tempdir;
use tidings_base::Incarnation;
use tidings_bft::kv::KeyValue;
use tidings_bft::membership::{ClientSecrets, Membership, ReplicaSecrets};
use tidings_bft::sin::Sin;
use tidings_bft::snapshot::EVERY;
use tidings_bft::testing::{Modelled, Part};
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::Block;

fn addresses() -> Vec<String> {
    (0..4).map(|_| format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port())).collect()
}

#[test]
fn a_group_has_keys_that_fit_and_none_is_written_over() {
    let at = tempdir().unwrap();
    let dir = at.path().join("town");
    let (addresses, shown) = (addresses(), dir.display().to_string());
    let mut args = vec!["bft", "keygen", &shown, "--clients", "2"];
    addresses.iter().for_each(|pair| args.extend(["--replica", pair]));
    let said = run(&args);
    assert!(said.code == 0 && said.out.contains("1 of them may lie"), "{said:?}");

    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let group = Membership::parse(&read("group.toml")).unwrap();
    assert_eq!((group.name(), group.size()), ("town", 4));
    let client = ClientSecrets::parse(&read("client-2.toml")).unwrap();
    for number in 0..4 {
        let secrets = ReplicaSecrets::parse(&read(&format!("replica-{number}/secret.toml"))).unwrap();
        assert_eq!(group.replica(&secrets.secret.public()), Some(ReplicaId(number)));
        assert_eq!(secrets.macs[&2], client.mac(ReplicaId(number)));
        assert!(read(&format!("replica-{number}/mark")).starts_with("unborn "));
        let mode = fs::metadata(dir.join(format!("replica-{number}/secret.toml"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else reads a secret");
    }
    run(&args).failed(1, "");
    assert_eq!(group.number(), Membership::parse(&read("group.toml")).unwrap().number(), "it is as it was");

    let (group, client) = (format!("{shown}/group.toml"), format!("{shown}/client-1.toml"));
    let said = run(&["bft", "status", "--group", &group, "--client", &client]);
    assert!(said.code == 5 && said.err.contains("0 replicas answer") && said.out.contains("VOTES"), "{said:?}");
    if cfg!(not(feature = "bft")) {
        let data = format!("{shown}/replica-0");
        run(&["bft", "run", "--group", &group, "--data", &data]).failed(2, "no engine");
    }
}

#[test]
fn what_cannot_be_a_group_is_refused_and_nothing_is_made() {
    let at = tempdir().unwrap();
    let dir = at.path().join("three").display().to_string();
    let addresses = addresses();
    let mut args = vec!["bft", "keygen", &dir];
    addresses.iter().take(3).for_each(|pair| args.extend(["--replica", pair]));
    let said = run(&args);
    assert!(said.code != 0 && said.err.contains("3 replicas"), "{said:?}");
    assert!(!at.path().join("three").exists());
    let said = run(&["bft", "keygen", &dir, "--replica", "127.0.0.1:1"]);
    assert!(said.code == 2 && said.err.contains("two addresses"), "{said:?}");
}

#[test]
fn a_client_of_another_group_is_refused_at_once() {
    let at = tempdir().unwrap();
    let addresses = addresses();
    let [town, other] = ["town", "other"].map(|name| at.path().join(name).display().to_string());
    for dir in [&town, &other] {
        let mut args = vec!["bft", "keygen", dir];
        addresses.iter().for_each(|pair| args.extend(["--replica", pair]));
        assert_eq!(run(&args).code, 0);
    }
    let (group, client) = (format!("{town}/group.toml"), format!("{other}/client-1.toml"));
    for asked in [&["status"][..], &["get", "colour"], &["get", "colour", "--remembered"], &["delete", "colour"]] {
        let named = ["--group", group.as_str(), "--client", client.as_str()];
        let args = [&["bft"][..], asked, &named[..]].concat();
        run(&args).failed(2, "client 1 is not of the group `town`");
    }
}

/// One that boasts of its height keeps the others from their next life until it is left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_liar_does_not_keep_a_group_from_its_next_life() {
    let at = tempdir().unwrap();
    let sins = [None, None, None, Some(Sin::Boaster)];
    let part = |sin| Part { addresses: (free_address(), free_address()), service: KeyValue::default(), sin };
    let town = Modelled::start(at.path(), 1, 1, sins.map(part).into()).await.unwrap();
    for seat in (0..4).map(|number| town.seat(number)) {
        (1..=EVERY).for_each(|height| seat.execute(&Block { height, commands: Vec::new() }).unwrap());
        seat.pool.close();
    }
    let file = |name: &str, text: String| {
        let path = at.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let group = file("group.toml", town.founded.membership.to_text().unwrap());
    let client = file("client.toml", town.founded.clients[0].to_text().unwrap());
    let secret = file("secret.toml", town.founded.replicas[3].to_text().unwrap());
    let [from, next] = ["0", "next"].map(|name| at.path().join(name).display().to_string());
    let rekey = |more: &[&str]| {
        let named = ["--secret", &secret, "--from", &from, "--group", &group, "--client", &client];
        run(&[&["bft", "rekey", &next, "--replica", "3"], &named[..], more].concat())
    };
    let refused = rekey(&[]);
    assert!(refused.code != 0 && refused.err.contains("replica 3 says that it is further ahead"), "{refused:?}");
    assert!(refused.err.contains("--without 3"), "{refused:?}");
    rekey(&["--without", "3", "--without", "2"]).failed(2, "2 replicas cannot be left out: 1 of this group may lie");
    rekey(&["--without", "4"]).failed(2, "there is no replica 4");
    let said = rekey(&["--without", "3"]);
    assert!(said.code == 0 && said.out.contains("life 2"), "{said:?}");
    let read = |name: &str| fs::read_to_string(at.path().join("next").join(name)).unwrap();
    assert_eq!(Membership::parse(&read("group.toml")).unwrap().life(), Incarnation(2));
}

/// Whether replicas or clients would come there.
#[cfg(feature = "bft")]
#[test]
fn an_address_in_use_is_told_with_what_to_do() {
    let at = tempdir().unwrap();
    let dir = at.path().join("town").display().to_string();
    let addresses = addresses();
    let mut args = vec!["bft", "keygen", &dir];
    addresses.iter().for_each(|pair| args.extend(["--replica", pair]));
    assert_eq!(run(&args).code, 0);
    let (group, data) = (format!("{dir}/group.toml"), format!("{dir}/replica-0"));
    for address in addresses[0].split(',') {
        let _taken = std::net::TcpListener::bind(address).unwrap();
        let said = run(&["bft", "run", "--group", &group, "--data", &data]);
        said.failed(4, &format!("cannot listen on {address}"));
        assert!(
            said.err.contains("bft.cannot_listen") && said.err.contains("Does this replica run already?"),
            "{said:?}"
        );
    }
    let mark = fs::read_to_string(format!("{data}/mark")).unwrap();
    assert!(mark.starts_with("unborn "), "it has not begun: {mark}");
}

/// Four processes; one is killed, and comes back.
#[cfg(feature = "bft")]
#[test]
fn a_group_of_four_serves_without_one_of_them() {
    let _turn = turn();
    let mut town = Town::start(4, &[]);
    assert_eq!(town.ask(&["put", "colour", "red"]).code, 0);
    town.kill(1);
    assert_eq!(town.ask(&["put", "colour", "blue"]).code, 0);
    let said = town.ask(&["get", "colour", "--ordered", "--json"]).json();
    assert_eq!((&said["value"], &said["ordered"]), (&"blue".into(), &true.into()));
    let reached = town.heights()[0].unwrap();
    town.begin(1);
    until("it has caught up", || town.heights()[1].filter(|height| *height >= reached));
    assert_eq!(town.ask(&["get", "colour"]).out, "blue\n");
    assert_eq!(town.ask(&["delete", "colour"]).code, 0);
    town.ask(&["get", "colour"]).failed(3, "has no value");
}
