//! Day one of an operator, and every mistake with its own name.

use super::Pool;
use crate::process::{http, run, turn, until};

#[test]
fn day_one() {
    let _turn = turn();
    let pool = Pool::start();
    assert_eq!(pool.json(&["namespaces"]), serde_json::json!([]));
    pool.create();
    let made = pool.json(&["namespaces"]);
    assert_eq!(made[0]["namespace"], "n");
    assert_eq!(made[0]["lease_ms"], 2_500);
    assert!(pool.ok(&["namespaces"]).out.contains("every 0.4 s"));
    pool.run(&["lookup", "n", "alice"]).failed(3, "nobody owns `alice`");
    pool.run(&["lookup", "n", "alice", "bob"]).failed(3, "nobody owns `alice`, `bob`");
    pool.run(&["lookup", "n", "alice"]).failed(3, "`tidings place owners n`");
    assert!(pool.ok(&["rebalance", "n"]).out.contains("no load was measured yet"));

    let one = pool.join("one");
    let two = pool.join("two");
    pool.settled(&["one", "two"]);
    let owners = pool.json(&["owners", "n"]);
    assert_eq!(owners.as_array().unwrap().len(), 2);
    assert!(owners.as_array().unwrap().iter().all(|owner| owner["state"] == "live"), "{owners}");
    let share = |at: usize| owners[at]["share_ppm"].as_u64().unwrap();
    assert!((999_000..=1_000_000).contains(&(share(0) + share(1))), "{owners}");
    assert!(owners[0]["heard_ms"].as_u64().unwrap() < 2_500, "{owners}");
    let shown = pool.ok(&["owners", "n"]).out;
    assert!(shown.contains("one:1") && shown.contains(" s ago"), "{shown}");

    let found = pool.json(&["lookup", "n", "alice", "bob"]);
    for key in [&found[0], &found[1]] {
        let owner = if key["owner"] == "one" { &one } else { &two };
        let name = key["key"].as_str().unwrap();
        assert_eq!(owner.check_now(name).map(|lease| u64::from(lease.get())), key["lease"].as_u64(), "{key}");
        assert!(
            key["age_ms"].as_u64().unwrap() < 10_000,
            "since the table was confirmed, not since the machine began: {key}"
        );
        assert_eq!(key["address"], format!("{}:1", key["owner"].as_str().unwrap()));
    }
    assert!(pool.ok(&["lookup", "n", "alice"]).out.contains("AGE"));
    let of_one = pool.json(&["table", "n", "--owner", "one"]);
    assert!(of_one["ranges"].as_array().unwrap().iter().all(|range| range["owner"] == "one"));
    assert!(pool.ok(&["table", "n"]).out.starts_with("FROM"));

    // A drain empties an owner, and says what that cost: this one hands nothing over. Cancelled, it comes back.
    pool.run(&["drain", "n", "one", "--wait"]).failed(1, "that it held was lost");
    let drained = pool.json(&["drain", "n", "one", "--wait"]);
    assert_eq!((&drained["ranges"], &drained["state"]), (&0.into(), &"drained".into()));
    assert_eq!(drained["lost_ranges"], 0, "nothing was left to lose");
    pool.settled(&["two"]);
    assert!(one.held().is_empty());
    let dry = pool.json(&["rebalance", "n", "--dry-run"]);
    assert_eq!(dry["dry_run"], true);
    assert!(dry["settling_ranges"].as_u64().unwrap() > 0 && dry["settles_ms"].as_u64().unwrap() <= 120_000, "{dry}");
    assert!(pool.ok(&["rebalance", "n", "--dry-run"]).out.contains("are left alone for another"));
    pool.ok(&["drain", "n", "one", "--cancel"]);
    pool.settled(&["one", "two"]);
    let lossy = pool.json(&["drain", "n", "two", "--wait", "--allow-loss"]);
    assert!(lossy["lost_ranges"].as_u64().unwrap() > 0, "{lossy}");
    assert_eq!(lossy["takers"], 1);
    // The last one: nobody can take what it holds.
    let last = pool.ok(&["drain", "n", "one"]);
    assert!(last.err.contains("nobody else is there to take what one holds"), "{last:?}");
    pool.ok(&["drain", "n", "one", "--cancel"]);
    // Whoever leaves was heard when it did.
    drop(two);
    until("the one that left is gone", || {
        let owners = pool.json(&["owners", "n"]);
        let gone = owners.as_array()?.iter().find(|owner| owner["owner"] == "two" && owner["state"] == "gone")?;
        assert!(gone["heard_ms"].as_u64().is_some() && gone["rate"] == 0.0, "{gone}");
        Some(())
    });

    pool.run(&["delete", "n"]).failed(2, "takes every key");
    pool.ok(&["delete", "n", "--yes"]);
    pool.run(&["owners", "n"]).failed(3, "no namespace `n`");
    pool.run(&["delete", "n"]).failed(3, "no namespace `n`");
}

#[test]
fn every_mistake_has_its_own_name() {
    let _turn = turn();
    let pool = Pool::start();
    pool.create();
    pool.run(&["create", "n"]).failed(4, "exists already");
    pool.run(&["create", ""]).failed(2, "cannot name a namespace");
    pool.run(&["create", ".notify"]).failed(2, "the platform's own");
    pool.run(&["create", "short", "--lease", "1s", "--renew", "900ms"]).failed(2, "does not outlast");
    pool.run(&["create", "never", "--lease", "0s"]).failed(2, "--lease cannot be 0 s");
    pool.run(&["create", "ever", "--lease", "120m"]).failed(2, "is of no use");
    pool.run(&["create", "slow", "--drain", "2880m"]).failed(2, "`drain_ms` cannot be");
    for (flag, wrong, expected) in [
        ("--virtual-nodes", "0", "1..=1024"),
        ("--virtual-nodes", "5000", "1..=1024"),
        ("--lease", "2h", "such as 500ms, 10s or 2m; write 120m"),
        ("--renew", "11.5s", "such as 500ms, 10s or 2m; write 11500ms"),
    ] {
        let refused = pool.run(&["create", "points", flag, wrong]);
        assert!(refused.code == 2 && refused.err.contains(expected), "{refused:?}");
    }
    pool.run(&["table", "nowhere"]).failed(3, "no namespace `nowhere`");
    pool.run(&["lookup", "nowhere", "k"]).failed(3, "no namespace `nowhere`");
    pool.run(&["lookup", "n", &"k".repeat(1_025)]).failed(2, "1025 bytes");
    pool.run(&["drain", "n", "nobody"]).failed(3, "no owner `nobody`");
    pool.run(&["drain", "n", "nobody", "--cancel"]).failed(3, "`tidings place owners n`");
    pool.run(&["delete", "nowhere"]).failed(3, "no namespace `nowhere`");
    pool.run(&["table", "n", "--owner", "nobody"]).failed(3, "no owner `nobody`");
    pool.run(&["rebalance", "nowhere"]).failed(3, "no namespace");
    // What is said where nobody listens must not be taken for an order.
    let url = "/v1/placement/n/rebalance";
    let (status, said) = http("POST", pool.server.address, url, r#"{"dry_run":true}"#).unwrap();
    assert!(status == 400 && said.contains("a body is not expected"), "{status} {said}");
    let owner = "/v1/placement/n/owners/web";
    let (status, said) =
        http("PUT", pool.server.address, &format!("{owner}?instance=1"), r#"{"address":"web:1"}"#).unwrap();
    assert_eq!(status, 201, "{said}");
    let (status, said) =
        http("POST", pool.server.address, &format!("{owner}/load?instance=1"), r#"{"rate":-5}"#).unwrap();
    assert!(status == 400 && said.contains("-5 is no rate"), "{status} {said}");
    assert_eq!(pool.run(&["create", "both", "--fast", "--lease", "9s"]).code, 2);
    assert_eq!(pool.run(&["lookup", "n"]).code, 2);
    run(&["place", "namespaces", "--server", "http://127.0.0.1:1", "--timeout", "2"]).failed(5, "");
}
