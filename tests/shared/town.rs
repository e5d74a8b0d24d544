//! A BFT group whose replicas are processes of the binary.

use crate::ports::free_port;
use crate::process::{Running, Said, run, tidings};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidings_bft::client::{Client, Options};
use tidings_bft::membership::{ClientSecrets, Membership};

/// A group whose replicas are processes.
pub struct Town {
    pub dir: TempDir,
    pub replicas: Vec<Option<Running>>,
    pub sins: Vec<Option<&'static str>>,
    /// The web servers beside the replicas; where there are none, they have keys and values.
    pub origins: Vec<SocketAddr>,
    /// How each replica is run besides.
    pub args: &'static [&'static str],
}

impl Town {
    /// So many replicas, of which the last ones have these sins.
    pub fn start(size: usize, sins: &[&'static str]) -> Town {
        Town::beside(size, sins, Vec::new(), &[])
    }

    /// The same, each beside a web server, or with other arguments.
    pub fn beside(size: usize, sins: &[&'static str], origins: Vec<SocketAddr>, args: &'static [&'static str]) -> Town {
        let dir = tempfile::tempdir().unwrap();
        let pairs: Vec<String> =
            (0..size).map(|_| format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port())).collect();
        let town = dir.path().join("town").display().to_string();
        let mut typed = vec!["bft", "keygen", &town, "--clients", "3"];
        pairs.iter().for_each(|pair| typed.extend(["--replica", pair]));
        assert_eq!(run(&typed).code, 0);
        let honest = std::iter::repeat_n(None, size - sins.len());
        let sins = honest.chain(sins.iter().map(|sin| Some(*sin))).collect();
        let mut town = Town { dir, replicas: (0..size).map(|_| None).collect(), sins, origins, args };
        (0..size).for_each(|number| town.begin(number));
        town.replicas.iter().flatten().for_each(|replica| drop(replica.line(1)));
        town
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("town").join(name)
    }

    /// Starts a replica, and does not wait for it.
    pub fn begin(&mut self, number: usize) {
        let mut command = tidings();
        command.args(["bft", "run", "--log", "warn", "--group"]).arg(self.at("group.toml"));
        command.arg("--data").arg(self.at(&format!("replica-{number}")));
        command.args(self.args);
        if let Some(sin) = self.sins[number] {
            command.args(["--sin", sin]);
        }
        if let Some(origin) = self.origins.get(number) {
            command.args(["--origin", &origin.to_string()]);
        }
        self.replicas[number] = Some(Running::start(&mut command));
    }

    pub fn kill(&mut self, number: usize) {
        let replica = self.replicas[number].take().unwrap();
        replica.signal(Signal::KILL);
        replica.ended();
    }

    pub fn ask(&self, args: &[&str]) -> Said {
        let (group, client) = (self.at("group.toml"), self.at("client-1.toml"));
        let named = ["--group", text(&group), "--client", text(&client)];
        run(&[&["bft"], args, &named].concat())
    }

    /// The heights of those that answer.
    pub fn heights(&self) -> Vec<Option<u64>> {
        let said = self.ask(&["status", "--json"]);
        let rows: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        rows.as_array().unwrap().iter().map(|row| row["height"].as_u64()).collect()
    }

    /// The second client, in this process.
    pub async fn client(&self) -> Client {
        let read = |name: &str| std::fs::read_to_string(self.at(name)).unwrap();
        let membership = Arc::new(Membership::parse(&read("group.toml")).unwrap());
        let secrets = ClientSecrets::parse(&read("client-2.toml")).unwrap();
        let options = Options { resend: Duration::from_millis(300), ..Options::after(0) };
        Client::start(membership, secrets, &options).unwrap()
    }
}

/// A path as it is typed.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
