//! Placement by REST: what operators see, lookups, and owners that speak nothing but HTTP (F12).

use super::{create, create_with, found, found_hindered, owner, settled, until};
use crate::cell::Nodes;
use crate::support::{Answer, request};
use http::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_client::placement::Lookup;
use tidings_node::hindrance::Hindrance;

const OWNERS: &str = "/v1/placement/objects/owners";

async fn ask(nodes: &Nodes, method: Method, path: &str, body: Option<Value>) -> Answer {
    nodes.http(0, request(method, path, None, body)).await
}

async fn get(nodes: &Nodes, path: &str) -> Value {
    let answer = nodes.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn register(nodes: &Nodes, name: &str, instance: &str, hands_over: bool) -> Answer {
    let body = json!({"address": format!("{name}.test:80"), "hands_over": hands_over});
    ask(nodes, Method::PUT, &format!("{OWNERS}/{name}?instance={instance}"), Some(body)).await
}

async fn assignments(nodes: &Nodes, name: &str, instance: &str, rest: &str) -> Value {
    get(nodes, &format!("{OWNERS}/{name}/assignments?instance={instance}{rest}")).await
}

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

/// How much of the ring a list of ranges covers.
fn points(ranges: &Value) -> u128 {
    let all = ranges.as_array().unwrap().iter();
    all.map(|range| u128::from(hex(&range["last"]) - hex(&range["start"])) + 1).sum()
}

/// Polls as an application does until it holds the whole ring; the greatest lease number.
async fn holds_all(nodes: &Nodes, name: &str, instance: &str) -> u64 {
    let mut version = 0;
    until("the application holds everything", async || {
        let said = assignments(nodes, name, instance, &format!("&after={version}&wait_ms=500")).await;
        version = said["version"].as_u64().unwrap();
        let greatest = said["ranges"].as_array().unwrap().iter().map(|range| range["lease"].as_u64().unwrap()).max();
        greatest.filter(|_| points(&said["ranges"]) == super::RING)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_and_steer_placement_by_rest() {
    let nodes = found(1).await;
    create(&nodes.client(0), "warm-up").await;
    let config = json!({"lease_ms": 2500, "renew_ms": 400});
    assert_eq!(ask(&nodes, Method::PUT, "/v1/placement/objects", Some(config.clone())).await.status, 201);
    let again = ask(&nodes, Method::PUT, "/v1/placement/objects", Some(config)).await;
    assert_eq!(again.error(), (409, "placement.namespace_exists".into()));
    let tight = ask(&nodes, Method::PUT, "/v1/placement/tight", Some(json!({"lease_ms": 900}))).await;
    assert_eq!(tight.error(), (400, "placement.bad_times".into()));
    for (wrong, code) in [
        (json!({"virtual_nodes": 0}), "placement.bad_virtual_nodes"),
        (json!({"virtual_nodes": 4_000_000}), "placement.bad_virtual_nodes"),
        (json!({"lease_ms": 0}), "placement.bad_times"),
        (json!({"lease_ms": 4_000_000_000_u32}), "placement.bad_times"),
        (json!({"drain_ms": 1}), "placement.bad_times"),
        (json!({"policy": "magic"}), "placement.bad_policy"),
        (json!({"lease_ms": -1}), "control.bad_body"),
        // Serde would take it for the fields in their order.
        (json!([2500, 400]), "control.bad_body"),
    ] {
        let refused = ask(&nodes, Method::PUT, "/v1/placement/wrong", Some(wrong.clone())).await;
        assert_eq!(refused.error(), (400, code.into()), "{wrong}");
    }
    let own = ask(&nodes, Method::PUT, "/v1/placement/.notify", None).await;
    assert_eq!(own.error(), (400, "placement.bad_namespace".into()));
    let names: Vec<Value> = get(&nodes, "/v1/placement").await["namespaces"].as_array().unwrap().clone();
    assert_eq!(names.iter().map(|n| n["namespace"].as_str().unwrap()).collect::<Vec<_>>(), ["objects", "warm-up"]);
    let shown = &names[0]["config"];
    assert_eq!((&shown["lease_ms"], &shown["drain_ms"]), (&json!(2500), &json!(60_000)), "{shown}");
    assert_eq!((&shown["policy"], &shown["virtual_nodes"]), (&json!("hottest"), &json!(64)), "{shown}");
    let unowned = get(&nodes, "/v1/placement/objects/lookup?key=k").await;
    assert_eq!((unowned.get("owner"), unowned["hash"].as_str().map(str::len)), (None, Some(16)));
    let one = owner(nodes.client(0), "one");
    settled("one joins", &[&one]).await;
    until("the node's own lookup knows", async || {
        let hint = get(&nodes, "/v1/placement/objects/lookup?key=k").await;
        (hint["address"] == "one.test:80" && hint["age_ms"].as_u64().unwrap() < 60_000).then_some(())
    })
    .await;
    let table = get(&nodes, "/v1/placement/objects/table").await;
    assert_eq!((points(&table["table"]), &table["hash"]), (super::RING, &json!("xxh3-64/0")));
    assert_eq!((&table["instance"], table["instance"].as_str().map(str::len)), (&names[0]["instance"], Some(16)));
    let ring = get(&nodes, "/v1/placement/objects/ring").await;
    assert_eq!((ring["arcs"].as_array().unwrap().len(), &ring["arcs"][0]["owner"]), (1, &json!("one")));
    assert!(ring["shares"][0]["share"].as_f64().unwrap() > 0.999);
    let owners = get(&nodes, OWNERS).await;
    assert_eq!((&owners["owners"][0]["owner"], &owners["owners"][0]["live"]), (&json!("one"), &json!(true)));
    assert_eq!(owners["owners"][0]["points"], json!(64));
    let dry = ask(&nodes, Method::POST, "/v1/placement/objects/rebalance?dry_run", None).await.json();
    assert!(dry["settling"].as_u64().unwrap() > 0, "it has just joined: {dry}");
    assert!((1..=120_000).contains(&dry["settles_ms"].as_u64().unwrap()), "{dry}");
    let unclear = ask(&nodes, Method::POST, "/v1/placement/objects/rebalance?dry_run=maybe", None).await;
    assert_eq!(unclear.error(), (400, "control.bad_path".into()));
    let drain = format!("{OWNERS}/one/drain");
    assert_eq!(ask(&nodes, Method::POST, &drain, None).await.status, 204);
    assert_eq!(get(&nodes, OWNERS).await["owners"][0]["draining"], json!(true));
    assert_eq!(ask(&nodes, Method::DELETE, &drain, None).await.status, 204);
    let nobody = ask(&nodes, Method::POST, &format!("{OWNERS}/none/drain"), None).await;
    assert_eq!(nobody.error(), (404, "placement.no_owner".into()));
    for (path, expected) in [
        ("/v1/placement/none/table", (404, "placement.no_namespace")),
        ("/v1/placement/none/lookup?key=k", (404, "placement.no_namespace")),
        ("/v1/placement/objects/lookup", (400, "control.bad_path")),
        ("/v1/placement/none/owners/one/check?key=k&instance=a", (404, "placement.no_namespace")),
        ("/v1/placement/objects/owners/one/check?key=k&instance=a", (404, "placement.not_registered")),
        ("/v1/placement/objects/lookup?hash=xyz", (400, "control.bad_path")),
        ("/v1/placement/objects/lookup?hash=00ff", (400, "control.bad_path")),
        (&format!("/v1/placement/objects/lookup?key={}", "k".repeat(1_025)), (400, "placement.key_too_long")),
    ] {
        assert_eq!(nodes.get(path).await.error(), (expected.0, expected.1.to_owned()), "{path}");
    }
    assert_eq!(ask(&nodes, Method::DELETE, "/v1/placement/objects", None).await.status, 204);
    until("the node's lookup is refused", async || {
        (nodes.get("/v1/placement/objects/lookup?key=k").await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_holds_leases_by_http_and_another_run_of_it_begins_anew() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    assert_eq!(register(&nodes, "one", "", false).await.error(), (400, "placement.no_instance".into()));
    let long = register(&nodes, "one", &"i".repeat(129), false).await;
    assert_eq!(long.error(), (400, "placement.bad_instance".into()));
    let nowhere = json!({"address": "one.test:80"});
    let nowhere = ask(&nodes, Method::PUT, "/v1/placement/none/owners/one?instance=a", Some(nowhere)).await;
    assert_eq!(nowhere.error(), (404, "placement.no_namespace".into()));
    assert_eq!(register(&nodes, "one", "first", false).await.status, 201);
    assert_eq!(register(&nodes, "one", "first", false).await.status, 200);
    let greatest = holds_all(&nodes, "one", "first").await;
    let check = |instance: &str| format!("{OWNERS}/one/check?key=k&instance={instance}");
    let held = get(&nodes, &check("first")).await;
    assert_eq!(held["owned"], json!(true), "{held}");
    let remaining = held["remaining_ms"].as_u64().unwrap();
    assert!((1..=2_000).contains(&remaining), "{held}");
    until("lookups find it", async || {
        let hint = get(&nodes, "/v1/placement/objects/lookup?key=k").await;
        (hint["address"] == "one.test:80" && hint["lease"] == held["lease"]).then_some(())
    })
    .await;
    // Another run that has not registered is told so, and changes nothing.
    assert_eq!(nodes.get(&check("second")).await.error(), (404, "placement.not_registered".into()));
    let early = format!("{OWNERS}/one?instance=second");
    assert_eq!(ask(&nodes, Method::DELETE, &early, None).await.error(), (404, "placement.not_registered".into()));
    assert_eq!(get(&nodes, &check("first")).await["owned"], json!(true));
    // Once it registers it is another process: all that the first one held is released, and nobody holds it before the
    // first one, which may live still, believes nothing any more.
    let asked = Instant::now();
    let last = get(&nodes, &check("first")).await;
    let believed = asked + Duration::from_millis(last["remaining_ms"].as_u64().unwrap());
    assert_eq!(register(&nodes, "one", "second", false).await.status, 201);
    assert_eq!(nodes.get(&check("first")).await.error(), (404, "placement.not_registered".into()));
    until("the second run holds under greater numbers", async || {
        let held = get(&nodes, &check("second")).await;
        held["lease"].as_u64().filter(|lease| *lease > greatest)
    })
    .await;
    assert!(Instant::now() >= believed, "the first run believed that it held the key");
    let release = format!("{OWNERS}/one?instance=second");
    assert_eq!(ask(&nodes, Method::DELETE, &release, None).await.status, 204);
    assert_eq!(ask(&nodes, Method::DELETE, &release, None).await.error(), (404, "placement.not_registered".into()));
    // An application that is silent for as long as a lease is gone.
    assert_eq!(register(&nodes, "silent", "run", false).await.status, 201);
    let silent = format!("{OWNERS}/silent/check?key=k&instance=run");
    assert_eq!(nodes.get(&silent).await.status, 200);
    tokio::time::sleep(super::LEASE * 3 / 2).await;
    assert_eq!(nodes.get(&silent).await.error(), (404, "placement.not_registered".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_run_need_not_wait_for_the_end_of_leases() {
    let nodes = found(1).await;
    // Far longer than a test may take.
    create_with(&nodes.client(0), "objects", Duration::from_secs(300), Duration::from_millis(500)).await;
    for run in ["first", "second", "third"] {
        assert_eq!(register(&nodes, "one", run, false).await.status, 201);
        holds_all(&nodes, "one", run).await;
    }
    let gone = format!("{OWNERS}/one?instance=third");
    assert_eq!(ask(&nodes, Method::DELETE, &gone, None).await.status, 204);
    until("the owner is shown as gone", async || {
        let owners = get(&nodes, OWNERS).await;
        (owners["owners"][0]["live"] == json!(false)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_registers_again_may_change_its_address_and_nothing_else() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    let put = async |address: &str, hands_over: bool| {
        let body = json!({"address": address, "hands_over": hands_over});
        ask(&nodes, Method::PUT, &format!("{OWNERS}/one?instance=run"), Some(body)).await
    };
    assert_eq!(put("one.test:80", false).await.status, 201);
    holds_all(&nodes, "one", "run").await;
    // Lookups that are there before learn of it, though no range changes.
    let lookup = Lookup::connect(nodes.client(0), "objects").await.unwrap();
    let known = || lookup.lookup("k").unwrap().hint().map(|hint| (hint.address().to_owned(), hint.lease()));
    let (_, lease) = until("the lookup knows the owner", async || known().filter(|(at, _)| at == "one.test:80")).await;
    assert_eq!(put("elsewhere.test:81", false).await.status, 200);
    let there = Some(("elsewhere.test:81".to_owned(), lease));
    until("it knows where the owner is now", async || (known() == there).then_some(())).await;
    until("lookups and operators know where it is now", async || {
        let held = get(&nodes, &format!("{OWNERS}/one/check?key=k&instance=run")).await;
        let hint = get(&nodes, "/v1/placement/objects/lookup?key=k").await;
        let owners = get(&nodes, OWNERS).await;
        let moved = [&hint["address"], &owners["owners"][0]["address"]].into_iter().all(|at| at == "elsewhere.test:81");
        (held["owned"] == json!(true) && moved).then_some(())
    })
    .await;
    assert_eq!(put("elsewhere.test:81", true).await.error(), (409, "placement.registered_otherwise".into()));
    for wrong in ["no where", "elsewhere.test", ":81", "elsewhere.test:0", ""] {
        assert_eq!(put(wrong, false).await.error(), (400, "placement.bad_address".into()), "{wrong}");
    }
    for (wrong, code) in [
        (json!({"rate": -1}), "placement.bad_load"),
        (
            json!({"rate": 1, "hot": [{"start": "2".repeat(16), "last": "1".repeat(16), "rate": 1}]}),
            "placement.bad_load",
        ),
        (json!({"rate": 1, "hot": [{"start": "1", "last": "2", "rate": 1}]}), "placement.bad_load"),
        (json!([1]), "control.bad_body"),
        (json!({"rate": 1, "hot": [{"start": "1"}]}), "control.bad_body"),
    ] {
        let refused = ask(&nodes, Method::POST, &format!("{OWNERS}/one/load?instance=run"), Some(wrong.clone())).await;
        assert_eq!(refused.error(), (400, code.into()), "{wrong}");
    }
    let owners = get(&nodes, OWNERS).await;
    assert_eq!(owners["owners"][0]["address"], json!("elsewhere.test:81"));
}

/// Whether two hold a key at once, where an application that holds it falls silent.
async fn two_hold_a_key(nodes: &Nodes) -> bool {
    create_with(&nodes.client(0), "objects", Duration::from_secs(20), Duration::from_millis(500)).await;
    assert_eq!(register(nodes, "silent", "run", false).await.status, 201);
    holds_all(nodes, "silent", "run").await;
    let mut believed = Vec::new();
    for n in 0..64 {
        // Dated from before the call.
        let asked = Instant::now();
        let said = get(nodes, &format!("{OWNERS}/silent/check?key=key-{n}&instance=run")).await;
        assert_eq!(said["owned"], json!(true));
        believed.push((format!("key-{n}"), asked + Duration::from_millis(said["remaining_ms"].as_u64().unwrap())));
    }
    let other = owner(nodes.client(0), "other");
    until("the other one holds some", async || {
        // Whoever is asked first is asked before the end of the belief that it is held against.
        let holds = |(key, _): &&(String, Instant)| other.check_now(key).is_some();
        let two = believed.iter().filter(holds).any(|(_, end)| Instant::now() < *end);
        let moved = believed.iter().filter(holds).count();
        (two || moved > 10).then_some(two)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_holds_a_key_while_a_silent_application_may_believe_that_it_does() {
    assert!(!two_hold_a_key(&found(1).await).await);
    let careless = Hindrance { forgets_beliefs: true, ..Hindrance::default() };
    // A machine that is busy for two seconds would hide it once.
    for _ in 0..3 {
        if two_hold_a_key(&found_hindered(1, careless.clone()).await).await {
            return;
        }
    }
    panic!("without F12 two hold a key, and nobody noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_hand_state_over_by_http_and_nothing_is_lost() {
    let nodes = found(1).await;
    create_with(&nodes.client(0), "objects", Duration::from_secs(10), Duration::from_millis(400)).await;
    assert_eq!(register(&nodes, "one", "a", true).await.status, 201);
    holds_all(&nodes, "one", "a").await;
    let lookup = Lookup::connect(nodes.client(0), "objects").await.unwrap();
    let mut losses = lookup.losses();
    assert_eq!(register(&nodes, "two", "b", true).await.status, 201);
    // Both applications poll; the first copies what it is asked to, the second says that it has it.
    let mut copied = 0;
    let (mut one, mut two) = (0, 0);
    until("the second one holds some, and nothing moves", async || {
        let first = assignments(&nodes, "one", "a", &format!("&after={one}&wait_ms=100")).await;
        one = first["version"].as_u64().unwrap();
        for moving in first["moves"].as_array().unwrap() {
            assert_eq!(moving["address"], json!("two.test:80"));
            let token = moving["token"].as_str().unwrap();
            let arrived = Some(json!({"incarnation": moving["incarnation"]}));
            let path = format!("{OWNERS}/two/imports/{token}?instance=b");
            assert_eq!(ask(&nodes, Method::POST, &path, arrived).await.status, 204);
            let path = format!("{OWNERS}/one/moves/{token}?instance=a");
            let ended = ask(&nodes, Method::POST, &path, Some(json!({"done": true}))).await;
            assert_eq!(ended.status, 204, "{}", ended.text());
            copied += 1;
        }
        let second = assignments(&nodes, "two", "b", &format!("&after={two}&wait_ms=100")).await;
        two = second["version"].as_u64().unwrap();
        let (mine, theirs) = (points(&first["ranges"]), points(&second["ranges"]));
        (theirs > super::RING / 8 && mine + theirs == super::RING).then_some(())
    })
    .await;
    assert!(copied > 0);
    let unknown = format!("{OWNERS}/one/moves/00000000000000ff?instance=a");
    let unknown = ask(&nodes, Method::POST, &unknown, Some(json!({"done": true}))).await;
    assert_eq!(unknown.error(), (404, "placement.no_move".into()));
    let told = tokio::time::timeout(Duration::from_millis(300), losses.next()).await;
    assert!(told.is_err(), "a clean move was told as a loss: {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_under_one_version_never_changes() {
    let nodes = found(1).await;
    create(&nodes.client(0), "objects").await;
    assert_eq!(register(&nodes, "one", "run", false).await.status, 201);
    holds_all(&nodes, "one", "run").await;
    let said = assignments(&nodes, "one", "run", "").await;
    assert_eq!(said["state"], json!("serving"));
    let version = said["version"].as_u64().unwrap();
    let future = format!("{OWNERS}/one/assignments?instance=run&after={}", version + 1);
    assert_eq!(nodes.get(&future).await.error(), (400, "placement.unknown_version".into()));
    let _two = owner(nodes.client(0), "two");
    assert_eq!(ask(&nodes, Method::POST, &format!("{OWNERS}/one/drain"), None).await.status, 204);
    let mut told = std::collections::BTreeMap::from([(version, said["state"].clone())]);
    let mut after = version;
    until("it is told that it is drained", async || {
        let said = assignments(&nodes, "one", "run", &format!("&after={after}&wait_ms=500")).await;
        after = said["version"].as_u64().unwrap();
        assert_eq!(told.entry(after).or_insert(said["state"].clone()), &said["state"], "{said}");
        (said["state"] == "drained").then_some(())
    })
    .await;
}
