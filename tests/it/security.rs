//! `init`, TLS and keys: a cluster with its own authority lets in who it knows, and nobody else.

use crate::process::{Said, Server, free_port, run, tidings, turn};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tidings_base::Wall;
use tidings_node::config::Member;
use tidings_node::pki;

struct Secured {
    dir: tempfile::TempDir,
    address: String,
}

impl Secured {
    fn new() -> Secured {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let said = run(&["init", dir.path().join("cluster").to_str().unwrap(), "--node", &address]);
        assert_eq!(said.code, 0, "{said:?}");
        Secured { dir, address }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join("cluster").join(name).to_str().unwrap().to_owned()
    }

    fn operator_key(&self) -> String {
        std::fs::read_to_string(self.path("operator.key")).unwrap().trim().to_owned()
    }

    fn ask(&self, key: Option<&str>, args: &[&str]) -> Said {
        let mut command = tidings();
        command.args(args).args(["--server", &format!("https://{}", self.address), "--ca", &self.path("ca.pem")]);
        if let Some(key) = key {
            command.env("TIDINGS_KEY", key);
        }
        command.output().unwrap().into()
    }
}

#[test]
fn a_secured_node_knows_its_operator_and_refuses_everybody_else() {
    let _turn = turn();
    let secured = Secured::new();
    let config = secured.path("node-1/node.toml");
    let report = run(&["doctor", "--config", &config, "--json"]).json();
    assert_eq!(report["healthy"], true, "{report}");

    // `/readyz` is behind TLS here: being able to ask is being ready.
    let server = Server::spawn(&["--config", &config]);
    let key = secured.operator_key();
    let status = crate::process::until("the operator gets an answer", || {
        let said = secured.ask(Some(&key), &["status", "--json"]);
        (said.code == 0).then(|| said.json())
    });
    assert_eq!(status["node"], 1);

    // Its own node behind TLS is no stranger on the port.
    let report = run(&["doctor", "--config", &config, "--json"]).json();
    let port = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "port").unwrap();
    assert_eq!(port["message"], format!("a Tidings server answers on https://{}", secured.address));

    let put = ["store", "put", "g", "r", "c", "v"];
    assert_eq!(secured.ask(Some(&key), &put).code, 0);
    let nobody = secured.ask(None, &put);
    nobody.failed(4, "shows no credential");
    assert!(nobody.err.contains("--key or TIDINGS_KEY"), "{nobody:?}");
    let mut forged = key.clone();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'E' } else { 'A' });
    secured.ask(Some(&forged), &put).failed(4, "the key is unknown, revoked or wrong");
    secured.ask(Some("eyJhbGciOiJub25lIn0.e30."), &put).failed(4, "the token cannot be read");
    // A hint says how to reach this very server.
    let missing = secured.ask(Some(&key), &["store", "get", "g", "none"]);
    missing.failed(3, "there is no row `none`");
    assert!(missing.err.contains(&format!("--server https://{} --ca ", secured.address)), "{missing:?}");

    // An application that nobody has made is a mistake, not a new one.
    for asked in [&["publish", "shpo", "prices", "1"][..], &["watch", "shpo", "prices"], &["objects", "shpo"]] {
        let unmade = secured.ask(Some(&key), &[&["notify"], asked].concat());
        unmade.failed(3, "there is no application `shpo`");
        assert!(unmade.err.contains("`tidings app create NAME`"), "{unmade:?}");
    }
    // What is refused is refused once, in one sentence.
    let shop = secured.ask(Some(&key), &["app", "create", "shop", "--json"]).json();
    let theirs = secured.ask(shop["key"].as_str(), &["store", "get", "g", "r", "--app", "blog"]);
    theirs.failed(4, "may not act in the application `blog` (control.forbidden)");
    assert_eq!(theirs.err.matches("control.forbidden").count(), 1, "{theirs:?}");

    // Without the authority nobody can tell who answers; plain text is not answered at all.
    let url = format!("https://{}", secured.address);
    run(&["status", "--server", &url, "--key", &key, "--timeout", "5"]).failed(2, "no CA is given");
    let plain = format!("http://{}", secured.address);
    let said = run(&["status", "--server", &plain, "--key", &key, "--timeout", "5"]);
    said.failed(5, "no connection to http://");
    assert!(said.err.contains("wants https:// and its CA (--ca)"), "{said:?}");
    // Another cluster's authority vouches for nobody here.
    let other = Secured::new();
    let strange = ["status", "--server", &url, "--ca", &other.path("ca.pem"), "--key", &key, "--timeout", "5"];
    run(&strange).failed(5, "no connection to https://");

    what_it_says_to_try_works(&secured, &server);
    assert_eq!(server.terminate(), 0);
}

/// Types what the server printed, beside the operator's key, and nothing else.
fn what_it_says_to_try_works(secured: &Secured, server: &Server) {
    let said =
        crate::process::until("it says what to try", || Some(server.said()).filter(|said| said.contains("store get")));
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("tidings ")).count(), 6, "{said}");
    let programs = Path::new(env!("CARGO_BIN_EXE_tidings")).parent().unwrap().to_str().unwrap();
    let output = Command::new("sh")
        .args(["-e", "-c", &lines.join("\n")])
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap_or_default()))
        .current_dir(secured.path(""))
        .output();
    let typed = Said::from(output.unwrap());
    assert_eq!(typed.code, 0, "{typed:?}");
    assert!(typed.out.contains("good news"), "{typed:?}");
}

#[test]
fn secrets_are_for_their_owner_and_are_never_overwritten() {
    let secured = Secured::new();
    for secret in ["ca.key", "operator.key", "node-1/node.key"] {
        let mode = std::fs::metadata(secured.path(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret}");
    }
    let key = secured.operator_key();
    let again = run(&["init", secured.path("").as_str(), "--node", &secured.address]);
    again.failed(4, "is there already");
    assert_eq!(secured.operator_key(), key);
    let never = secured.path("never-made");
    run(&["init", &never, "--node", "a:1", "--node", "b:1"]).failed(2, "cannot make a cluster of 2 nodes");
    run(&["init", &never, "--node", "a:1", "--node", "b:1", "--node", "a:1"])
        .failed(2, "two nodes have the address a:1");
    assert!(!Path::new(&never).exists());
    // Several nodes must be told that their cluster is new, and the lines to type do so.
    let three = secured.path("three");
    let said = run(&["init", &three, "--node", "a:1", "--node", "b:1", "--node", "c:1"]);
    assert_eq!(said.out.matches("node.toml --found").count(), 3, "{said:?}");
}

#[test]
fn a_further_node_gets_its_folder_from_the_same_authority() {
    let secured = Secured::new();
    let dir = secured.path("");
    let before = std::fs::read(secured.path("ca.key")).unwrap();
    let said = run(&["init", &dir, "--add", "4=127.0.0.1:7404"]);
    assert!(said.code == 0 && said.out.contains("node-4/node.toml --join"), "{said:?}");
    let report = run(&["doctor", "--config", &secured.path("node-4/node.toml"), "--json"]).json();
    assert_eq!(report["healthy"], true, "{report}");
    let config = std::fs::read_to_string(secured.path("node-4/node.toml")).unwrap();
    assert!(config.contains(&format!("contacts = [\"{}\"]", secured.address)), "{config}");
    run(&["init", &dir, "--add", "4=127.0.0.1:7404"]).failed(4, "is there already");
    let said = run(&["init", &dir, "--add", "5=127.0.0.1:7405", "--json"]).json();
    assert_eq!((&said["nodes"][0]["node"], &said["nodes"][0]["config"]), (&5.into(), &"node-5/node.toml".into()));
    assert!(said["files"].as_array().is_some_and(|files| !files.is_empty()), "{said}");
    run(&["init", &secured.path("no-authority"), "--add", "4=127.0.0.1:7404"]).failed(2, "ca.pem");
    assert_eq!(std::fs::read(secured.path("ca.key")).unwrap(), before);
}

#[test]
fn a_certificate_that_is_no_longer_valid_stops_the_node_and_doctor_says_so() {
    let secured = Secured::new();
    let members = [Member { node: 1, address: secured.address.clone() }];
    let old = secured.dir.path().join("old");
    // The certificates of nodes end after two years.
    pki::init(&old, &members, Wall(1_600_000_000_000_000)).unwrap();
    let config = old.join("node-1/node.toml");
    let config = config.to_str().unwrap();
    run(&["serve", "--config", config]).failed(4, "node.pem expired at 2022");
    let said = run(&["doctor", "--config", config]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("FAILED   certificates: ") && said.out.contains("expired at 2022"), "{said:?}");
}

#[test]
fn a_key_that_others_may_read_stops_the_node() {
    let secured = Secured::new();
    std::fs::set_permissions(secured.path("node-1/node.key"), PermissionsExt::from_mode(0o644)).unwrap();
    run(&["serve", "--config", &secured.path("node-1/node.toml")]).failed(4, "node.key");
}
