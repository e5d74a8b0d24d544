//! `init`, TLS and keys: a cluster with its own authority lets in who it knows, and nobody else.

use crate::process::{Said, Server, free_port, run, tidings, turn};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
    secured.ask(None, &put).failed(4, "");
    let mut forged = key.clone();
    let last = forged.pop().unwrap();
    forged.push(if last == 'A' { 'E' } else { 'A' });
    secured.ask(Some(&forged), &put).failed(4, "");
    secured.ask(Some("eyJhbGciOiJub25lIn0.e30."), &put).failed(4, "");

    // Without the authority nobody can tell who answers; plain text is not answered at all.
    let url = format!("https://{}", secured.address);
    run(&["status", "--server", &url, "--key", &key, "--timeout", "5"]).failed(2, "");
    let plain = format!("http://{}", secured.address);
    assert_eq!(run(&["status", "--server", &plain, "--key", &key, "--timeout", "5"]).code, 5);
    assert_eq!(server.terminate(), 0);
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
    assert_ne!(again.code, 0, "{again:?}");
    assert!(again.err.starts_with("error: "), "{again:?}");
    assert_eq!(secured.operator_key(), key);
    assert_eq!(run(&["init", "/tmp/never-made", "--node", "a:1", "--node", "b:1"]).code, 2);
    assert!(!Path::new("/tmp/never-made").exists());
}

#[test]
fn a_key_that_others_may_read_stops_the_node() {
    let secured = Secured::new();
    std::fs::set_permissions(secured.path("node-1/node.key"), PermissionsExt::from_mode(0o644)).unwrap();
    run(&["serve", "--config", &secured.path("node-1/node.toml")]).failed(4, "node.key");
}
