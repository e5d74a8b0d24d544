//! Day one with one node, and every mistake with its own name.

use super::{hears, lines, publish, registered, start, start_with, told, watcher};
use crate::process::{http, turn, until};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn what_is_published_is_heard() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = server.start_command(&["notify", "watch", "shop", "prices", "stock", "--json"]);
    // Nobody has published: both are unknown, and to be fetched.
    until("both are unknown", || {
        let unknown =
            |name: &str| lines(&watcher).iter().any(|line| line["object"] == name && line["version"].is_null());
        (unknown("prices") && unknown("stock")).then_some(())
    });
    publish(&server, "prices", 7);
    hears(&watcher, "prices", 7);
    // What rides along is heard where all is well.
    let published = server.run(&["notify", "publish", "shop", "stock", "3", "--payload", "{\"n\":1}", "--json"]).json();
    assert_eq!(published, json!({ "app": "shop", "object": "stock", "version": 3 }));
    hears(&watcher, "stock", 3);
    let mut version = 3;
    until("a payload is heard", || {
        version += 1;
        server.run(&["notify", "publish", "shop", "stock", &version.to_string(), "--payload", "good news"]);
        hears(&watcher, "stock", version);
        lines(&watcher).iter().any(|line| line["payload"] == "good news").then_some(())
    });
    // By REST, one and many.
    let (status, _) = http("POST", server.address, "/v1/notify/shop/prices", "{\"version\": 8}").unwrap();
    assert_eq!(status, 204);
    hears(&watcher, "prices", 8);
    let many =
        "{\"publications\": [{\"object\": \"prices\", \"version\": 9}, {\"object\": \"stock\", \"version\": 900}]}";
    assert_eq!(http("POST", server.address, "/v1/notify/shop", many).unwrap().0, 204);
    hears(&watcher, "prices", 9);
    hears(&watcher, "stock", 900);
    // An earlier version changes nothing; another application's is another object.
    publish(&server, "prices", 2);
    assert_eq!(server.run(&["notify", "publish", "blog", "prices", "99"]).code, 0);
    publish(&server, "prices", 10);
    hears(&watcher, "prices", 10);
    let versions: Vec<u64> =
        lines(&watcher).iter().filter(|l| l["object"] == "prices").filter_map(|l| l["version"].as_u64()).collect();
    assert!(versions.iter().all(|version| [7, 8, 9, 10].contains(version)), "{versions:?}");

    // What is heard by the fast path may not be stored yet.
    told(&server, "prices", 10);
    let objects = server.run(&["notify", "objects", "shop", "--json"]).json();
    assert_eq!(objects["objects"].as_array().unwrap().len(), 2);
    assert_eq!(objects["objects"][0]["version"], 10);
    registered(&server, "prices", 1);
    let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
    assert_eq!((&clients["clients"][0]["registrations"], &clients["clients"][0]["node"]), (&2.into(), &1.into()));
    let (_, listed) = http("GET", server.address, "/v1/notify-clients/shop", "").unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["clients"].as_array().unwrap().len(), 1);
    // Offline as soon as it is gone.
    drop(watcher);
    until("the client is offline", || {
        server.run(&["notify", "clients", "shop", "--json"]).json()["clients"][0]["node"].is_null().then_some(())
    });
}

#[test]
fn many_versions_are_published_from_a_file() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = server.start_command(&["notify", "watch", "shop", "stock", "--json"]);
    registered(&server, "stock", 1);
    let file = dir.path().join("versions.ndjson");
    let mut versions: String = (0..600).map(|n| format!("{{\"object\": \"o{n}\", \"version\": 1}}\n")).collect();
    versions += "\n{\"object\": \"stock\", \"version\": 901, \"payload\": \"x\", \"source\": \"me\"}\n";
    std::fs::write(&file, &versions).unwrap();
    let file = file.to_str().unwrap();
    let published = server.run(&["notify", "publish", "shop", "--from", file, "--json"]).json();
    assert_eq!(published, json!({ "published": 601 }));
    hears(&watcher, "stock", 901);
    std::fs::write(file, "{\"object\": \"stock\", \"version\": 902}\n{\"object\": \"stock\"}\n").unwrap();
    let publish_file = ["notify", "publish", "shop", "--from", file];
    let said = server.run(&publish_file);
    said.failed(2, "line 2: missing field `version`");
    said.failed(2, "1 version before is published");
    hears(&watcher, "stock", 902);
    std::fs::write(file, "{\"object\": \"stock\", \"version\": 0}\n").unwrap();
    server.run(&publish_file).failed(2, "0 is no version");
    server.run(&["notify", "publish", "shop", "--from", "no-such-file"]).failed(1, "no-such-file");
    for (missing, args) in
        [("OBJECT", &["notify", "publish", "shop"][..]), ("VERSION", &["notify", "publish", "shop", "o"])]
    {
        let said = server.run(args);
        assert!(said.code == 2 && said.err.contains(missing), "{said:?}");
    }
    std::fs::write(file, b"\xef\xbb\xbf{\"object\": {\"base64\": \"c3RvY2s=\"}, \"version\": 903}\n\xff\n").unwrap();
    server.run(&publish_file).failed(2, "line 2: it is not UTF-8; 1 version before is published");
    hears(&watcher, "stock", 903);
    for (line, why) in [
        (json!({ "object": "", "version": 1 }), "the object's name has 0 bytes"),
        (json!({ "object": "tables/t", "version": 1 }), "by tables alone"),
        (json!({ "object": "o", "version": 1, "payload": "x".repeat(4_097) }), "the payload has 4097 bytes"),
        (json!({ "object": "o", "version": 1, "payload": { "base64": "?" } }), "that is no base64"),
    ] {
        std::fs::write(file, line.to_string()).unwrap();
        server.run(&publish_file).failed(2, why);
    }
    // What a slow writer has said is published before he says more.
    let mut slow = crate::process::tidings();
    let from = ["notify", "publish", "shop", "--from", "-", "--server", &server.url()].map(str::to_owned);
    let mut slow = slow.args(from).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = slow.stdin.take().unwrap();
    std::io::Write::write_all(&mut said, b"{\"object\": \"stock\", \"version\": 904}\n").unwrap();
    hears(&watcher, "stock", 904);
    drop(said);
    assert!(slow.wait().unwrap().success());
    // Whoever is read no more says goodbye.
    let program = crate::process::tidings().get_program().to_string_lossy().into_owned();
    let line = format!("'{program}' notify watch shop o1 o2 --server {} | head -n 1", server.url());
    let mut piped = crate::process::Running::start(std::process::Command::new("sh").args(["-c", &line]));
    let mut version = 1;
    until("it has ended", || {
        version += 1;
        publish(&server, "o1", version);
        (!piped.is_running()).then_some(())
    });
    let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
    assert_eq!(clients["clients"].as_array().unwrap().len(), 1, "{clients}");
}

#[test]
fn a_reset_or_a_wipe_makes_everybody_fetch() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let watcher = watcher(&server);
    publish(&server, "prices", u64::MAX >> 1);
    hears(&watcher, "prices", u64::MAX >> 1);
    let unknown = |count: usize| {
        until("the version is unknown", || {
            (lines(&watcher).iter().filter(|line| line["version"].is_null()).count() >= count).then_some(())
        });
    };
    unknown(1);
    server.run(&["notify", "reset", "shop"]).failed(2, "makes every client of `shop` fetch");
    assert_eq!(server.run(&["notify", "reset", "shop", "--yes", "--json"]).json()["generation"], 1);
    unknown(2);
    // The poisonous version is gone: a smaller one is news again.
    publish(&server, "prices", 5);
    hears(&watcher, "prices", 5);
    server.run(&["notify", "wipe"]).failed(2, "register again");
    assert_eq!(server.run(&["notify", "wipe", "--yes"]).code, 0);
    unknown(3);
    publish(&server, "prices", 6);
    hears(&watcher, "prices", 6);
}

/// F10: who keeps nothing gives his id back; who has too many is told.
#[test]
fn ids_are_given_back_and_one_too_many_is_refused_by_name() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start_with(dir.path(), "ids = 1\n");
    publish(&server, "o", 1);
    let watch = ["notify", "watch", "shop", "o", "--json"];
    let first = server.start_command(&watch);
    hears(&first, "o", 1);
    assert_eq!(server.run(&watch).failed_json(4)["code"], "notify.too_many_ids");
    // One that ends in order makes room for the next at once, and so on.
    first.signal(Signal::INT);
    assert_eq!(first.ended().code, 0);
    for _ in 0..3 {
        let said = server.run(&[&watch[..], &["--count", "1"]].concat());
        assert_eq!(said.code, 0, "{said:?}");
    }
    until("nobody is left", || {
        let clients = server.run(&["notify", "clients", "shop", "--json"]).json();
        clients["clients"].as_array()?.is_empty().then_some(())
    });
}

#[test]
fn every_mistake_has_its_own_name() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    publish(&server, "o", 1);
    server.run(&["notify", "publish", "shop", "o", "soon"]).failed(2, "`soon` is no version");
    server.run(&["notify", "publish", "shop", "o", "0"]).failed(2, "0 is no version");
    server.run(&["notify", "publish", "shop", "", "1"]).failed(2, "0 bytes");
    server.run(&["notify", "publish", "shop", &"x".repeat(257), "1"]).failed(2, "257 bytes");
    server.run(&["notify", "publish", "shop", "o", "1", "--payload", &"x".repeat(4_097)]).failed(2, "4097 bytes");
    server.run(&["notify", "publish", "shop", "o", "-1"]).failed(2, "`-1` is no version");
    for wrong in [&["watch", "shop", "o", ""][..], &["objects", "shop", ""], &["trace", "shop", "", "--log"]] {
        server.run(&[&["notify"], wrong].concat()).failed(2, "0 bytes");
    }
    server.run(&["notify", "watch", "shop", &"x".repeat(257)]).failed(2, "257 bytes");
    server.run(&["notify", "publish", "My Shop", "o", "1"]).failed(2, "`My Shop` cannot name an application");
    server.run(&["notify", "objects", "shop", "nope"]).failed(3, "an object `nope`");
    assert_eq!(http("GET", server.address, "/v1/notify/shop/nope", "").unwrap().0, 404);
    server.run(&["notify", "clients", "shop", "--app", "blog"]).failed(2, "two applications");
    server
        .run(&["notify", "watch", "shop", "o", "--state", "/no/such/dir/state"])
        .failed(1, "cannot keep a client's state");
    for wrong in [&["objects", "shop", "--limit", "0"][..], &["watch", "shop", "o", "--count", "0"]] {
        assert_eq!(server.run(&[&["notify"], wrong].concat()).code, 2, "{wrong:?}");
    }
    // An older version is taken, and changes nothing: whoever publishes it sees that.
    publish(&server, "o", 5);
    until("version 5 is known", || {
        let said = server.run(&["notify", "publish", "shop", "o", "4"]);
        (said.code == 0 && said.out.contains("4 of o is older than 5")).then_some(())
    });
    assert_eq!(server.run(&["notify", "publish", "shop", "o", "3", "--json"]).json()["known"], 5);
    // What a terminal would obey is printed as it is written.
    publish(&server, "red\u{1b}[31m", 1);
    until("a strange name is listed", || {
        server.run(&["notify", "objects", "shop"]).out.contains("red\\u{1b}[31m").then_some(())
    });
    let (status, said) = http("POST", server.address, "/v1/notify/shop/o", "{\"version\": -1}").unwrap();
    assert_eq!(status, 400, "{said}");
    crate::process::run(&["notify", "objects", "shop", "--server", "http://127.0.0.1:1", "--timeout", "2"])
        .failed(5, "");
}
