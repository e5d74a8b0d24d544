//! `tidings place` against a node of its own, with owners of the library beside it.

mod commands;
mod killing;
mod metrics;
mod watching;

use crate::process::{Said, Server, until};
use std::time::Duration;
use tidings_client::placement::{Owner, OwnerOptions};
use tidings_client::{Client, ClientConfig};
use tokio::runtime::Runtime;

/// A node whose managers allow short leases, and owners in this process.
pub struct Pool {
    pub server: Server,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl Pool {
    pub fn start() -> Pool {
        let text = "[placement]\nsession = \"1s\"\nfail_over = \"500ms\"\nround_trip = \"100ms\"\n";
        Pool::at(tempfile::tempdir().unwrap(), text)
    }

    /// The same node, started again with another configuration.
    pub fn restarted(self, text: &str) -> Pool {
        let Pool { server, _data: data, .. } = self;
        assert_eq!(server.terminate(), 0);
        Pool::at(data, text)
    }

    fn at(data: tempfile::TempDir, text: &str) -> Pool {
        let config = data.path().join("node.toml");
        std::fs::write(&config, text).unwrap();
        let (config, dir) = (config.to_str().unwrap().to_owned(), data.path().join("data"));
        let server = Server::start(&["--config", &config, "--data", dir.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
        Pool { server, runtime: Runtime::new().unwrap(), _data: data }
    }

    pub fn run(&self, args: &[&str]) -> Said {
        self.server.run(&[&["place"], args].concat())
    }

    pub fn ok(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{said:?}");
        said
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        self.run(&[args, &["--json"]].concat()).json()
    }

    /// Makes the namespace `n` with leases as short as a cell session allows.
    pub fn create(&self) {
        self.ok(&["create", "n", "--lease", "2500ms", "--renew", "400ms"]);
    }

    /// An owner that joins `n`; `:1` stands behind its name in its address.
    pub fn join(&self, name: &str) -> Owner {
        self.join_with(name, |options| options)
    }

    /// The same with other options.
    pub fn join_with(&self, name: &str, change: impl FnOnce(OwnerOptions) -> OwnerOptions) -> Owner {
        self.runtime.block_on(async {
            let client = Client::connect(ClientConfig::new([self.server.url()])).await.unwrap();
            let mut options = change(OwnerOptions::new("n", name, format!("{name}:1")));
            options.join_within = Duration::from_secs(30);
            Owner::join(client, options).await.unwrap()
        })
    }

    /// Waits until each of these owners has something and nobody else has.
    pub fn settled(&self, names: &[&str]) {
        until("the pool has settled", || {
            let table = self.json(&["table", "n"]);
            let mut owners: Vec<&str> =
                table["ranges"].as_array()?.iter().filter_map(|r| r["owner"].as_str()).collect();
            let all = owners.len() == table["ranges"].as_array()?.len();
            owners.sort_unstable();
            owners.dedup();
            (all && owners == names).then_some(())
        });
    }
}
