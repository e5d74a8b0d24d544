//! The cell over real sockets: sessions by frames, one node and three, with and without their master.

mod frames;
mod held;
mod library;
mod members;
mod operators;
mod rest;
mod rights;

pub use crate::ports::free_address;
use crate::support::{Answer, request, send_http1};
use bytes::Bytes;
use http::Method;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tidings_base::Error;
use tidings_client::{Client, ClientConfig, Request};
use tidings_node::config::{Entry, Member, Time};
use tidings_node::hindrance::Hindrance;
use tidings_node::{Config, Node};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::node_target::Target;
use tidings_wire::{Body, v1};
use tokio::net::TcpStream;

/// How long anything here may take before the test is called stuck.
pub const STUCK: Duration = Duration::from_secs(30);

/// Looks again and again until there is something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(STUCK, looking).await.unwrap_or_else(|_| panic!("stuck before: {what}"))
}

/// Nodes in this process, each with a directory and a port of its own.
pub struct Nodes {
    dir: TempDir,
    pub configs: Vec<Config>,
    pub nodes: Vec<Option<Node>>,
}

impl Nodes {
    /// A new cluster of so many members, ready.
    pub async fn found(members: usize) -> Nodes {
        Nodes::found_with(members, |_| {}).await
    }

    /// The same with another configuration.
    pub async fn found_with(members: usize, change: impl Fn(&mut Config)) -> Nodes {
        Nodes::found_hindered(members, change, Hindrance::default()).await
    }

    /// The same of nodes that are made worse than they are.
    pub async fn found_hindered(members: usize, change: impl Fn(&mut Config), worse: Hindrance) -> Nodes {
        let dir = tempfile::tempdir().unwrap();
        let addresses: Vec<SocketAddr> = (0..members).map(|_| free_address()).collect();
        let list: Vec<Member> =
            (1..).zip(&addresses).map(|(node, at)| Member { node, address: at.to_string() }).collect();
        let configs = (1..).zip(&addresses).map(|(node, at)| {
            let mut config = Config::embedded(data(&dir, node), *at);
            config.node = node;
            config.timings.drain = Time::millis(500);
            if members > 1 {
                config.members = list.clone();
                config.entry = Some(Entry::Found);
            }
            change(&mut config);
            config
        });
        let mut nodes = Nodes { configs: configs.collect(), nodes: Vec::new(), dir };
        let starts = nodes.configs.iter().map(|config| Node::start_hindered(config.clone(), worse.clone()));
        nodes.nodes = futures::future::join_all(starts).await.into_iter().map(|node| Some(node.unwrap())).collect();
        for config in &mut nodes.configs {
            config.entry = None;
        }
        nodes.ready().await;
        nodes
    }

    /// Adds a node that waits to be made a member.
    pub async fn joining(&mut self) -> Member {
        self.join_at(free_address()).await
    }

    pub async fn join_at(&mut self, at: SocketAddr) -> Member {
        let node = self.nodes.len() as u64 + 1;
        let mut config = Config::embedded(data(&self.dir, node), at);
        config.node = node;
        config.entry = Some(Entry::Join);
        config.timings.drain = Time::millis(500);
        self.nodes.push(Some(Node::start(config.clone()).await.unwrap()));
        self.configs.push(Config { entry: None, ..config });
        Member { node, address: at.to_string() }
    }

    pub async fn ready(&self) {
        for node in self.nodes.iter().flatten() {
            until("all nodes are ready", async || node.ready().ok()).await;
        }
    }

    pub fn url(&self, at: usize) -> String {
        format!("http://{}", self.configs[at].listen)
    }

    pub fn client(&self, at: usize) -> Client {
        Client::new(ClientConfig::new([self.url(at)])).unwrap()
    }

    /// A client that knows all nodes.
    pub fn clients(&self) -> Client {
        Client::new(ClientConfig::new((0..self.configs.len()).map(|at| self.url(at)))).unwrap()
    }

    /// What a living node's status says of the cell's group.
    pub async fn cell_status(&self, at: usize) -> Option<v1::GroupStatus> {
        self.group_status(at, "cell").await
    }

    /// What a node says of a group.
    pub async fn group_status(&self, at: usize, name: &str) -> Option<v1::GroupStatus> {
        let status = v1::admin_message::Message::Status(v1::StatusRequest::default());
        let asked = Body::Admin(v1::AdminMessage { message: Some(status) });
        match self.client(at).call(Request::new(asked).within(Duration::from_secs(2))).await.ok()? {
            Body::Admin(v1::AdminMessage { message: Some(v1::admin_message::Message::StatusReply(reply)) }) => {
                reply.groups.into_iter().find(|group| group.name == name)
            }
            _ => None,
        }
    }

    /// The place of the living node that leads the cell's group.
    pub async fn master(&self) -> usize {
        until("a living node is master", async || {
            for at in (0..self.nodes.len()).filter(|at| self.nodes[*at].is_some()) {
                if let Some(group) = self.cell_status(at).await
                    && group.role == "leader"
                {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    /// Ends a node as SIGKILL would.
    pub async fn kill(&mut self, at: usize) {
        self.nodes[at].take().unwrap().crash().await;
    }

    pub async fn restart(&mut self, at: usize) {
        self.nodes[at] = Some(Node::start(self.configs[at].clone()).await.unwrap());
    }

    /// Asks a node over HTTP.
    pub async fn http(&self, at: usize, request: http::Request<http_body_util::Full<Bytes>>) -> Answer {
        send_http1(TcpStream::connect(self.configs[at].listen).await.unwrap(), request).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.http(0, request(Method::GET, path, None, None)).await
    }
}

fn data(dir: &TempDir, node: u64) -> PathBuf {
    dir.path().join(format!("data-{node}"))
}

/// A session by hand: what a client library does, without its cleverness.
pub struct Raw {
    pub client: Client,
    pub session: u64,
    pub secret: u64,
    pub epoch: u64,
    pub link: u64,
    number: AtomicU64,
}

pub fn path(path: &str) -> Option<v1::NodeTarget> {
    Some(v1::NodeTarget { target: Some(Target::Path(path.to_owned())) })
}

pub async fn ask(client: &Client, message: v1::CellMessage) -> Result<Message, Error> {
    match client.call(Request::new(Body::Cell(message)).within(STUCK).idempotent()).await? {
        Body::Cell(v1::CellMessage { message: Some(answer), .. }) => Ok(answer),
        other => panic!("not of the cell: {other:?}"),
    }
}

/// Asks without a session.
pub async fn ask_bare(client: &Client, message: Message) -> Result<Message, Error> {
    ask(client, v1::CellMessage { message: Some(message), ..Default::default() }).await
}

impl Raw {
    pub async fn start(client: Client) -> Raw {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let secret = NEXT.fetch_add(1, Ordering::Relaxed);
        let link = secret + 1_000_000;
        let create = v1::CreateSession { lease_ms: 0, secret, link, keeper: 0 };
        let created =
            until("the cell is open", async || match ask_bare(&client, Message::CreateSession(create)).await {
                Ok(Message::SessionCreated(created)) => Some(created),
                Ok(other) => panic!("not a session: {other:?}"),
                Err(error) if error.code == "cell.opening" || error.code == "cell.not_master" => None,
                Err(error) => panic!("no session: {error}"),
            })
            .await;
        Raw { client, session: created.session, secret, epoch: created.epoch, link, number: AtomicU64::new(1) }
    }

    pub fn message(&self, number: u64, message: Message) -> v1::CellMessage {
        let call = v1::CellCall {
            session: self.session,
            secret: self.secret,
            number,
            answered_below: number.max(1),
            epoch: self.epoch,
        };
        v1::CellMessage { call: Some(call), message: Some(message), caller: None }
    }

    pub async fn call(&self, message: Message) -> Result<Message, Error> {
        let number = match message {
            Message::Read(_) | Message::ReadMany(_) | Message::KeepAlive(_) | Message::ResumeSession(_) => 0,
            _ => self.number.fetch_add(1, Ordering::Relaxed),
        };
        let message = self.message(number, message);
        let started = tokio::time::Instant::now();
        loop {
            match ask(&self.client, message.clone()).await {
                Err(error) if error.code == "cell.opening" && started.elapsed() < STUCK => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                answer => return answer,
            }
        }
    }

    pub async fn open(&self, open: v1::OpenNode) -> Result<v1::NodeOpened, Error> {
        match self.call(Message::Open(open)).await? {
            Message::Opened(opened) => Ok(opened),
            other => panic!("not opened: {other:?}"),
        }
    }

    pub async fn put(&self, at: &str, contents: &'static str) -> Result<v1::NodeOpened, Error> {
        let create = v1::CreateNode { contents: contents.into(), ..Default::default() };
        self.open(v1::OpenNode { path: at.into(), read: true, write: true, create: Some(create), ..Default::default() })
            .await
    }

    pub async fn set(
        &self,
        at: &str,
        contents: &'static str,
        if_generation: Option<u64>,
    ) -> Result<v1::NodeStat, Error> {
        let set = v1::SetContents { target: path(at), contents: contents.into(), if_generation, sequencers: vec![] };
        match self.call(Message::SetContents(set)).await? {
            Message::Done(done) => Ok(done.stat.unwrap_or_default()),
            other => panic!("not done: {other:?}"),
        }
    }

    pub async fn read(&self, at: &str) -> Result<v1::NodeRead, Error> {
        let read =
            v1::ReadNode { target: path(at), contents: true, children: false, uncached: true, ..Default::default() };
        match self.call(Message::Read(read)).await? {
            Message::NodeRead(read) => Ok(read),
            other => panic!("not read: {other:?}"),
        }
    }

    pub async fn keep_alive(&self, ack: Option<v1::CellAck>) -> Result<v1::KeptAlive, Error> {
        match self.call(Message::KeepAlive(v1::KeepAlive { link: self.link, ack, wait_ms: 0 })).await? {
            Message::KeptAlive(kept) => Ok(kept),
            other => panic!("not kept alive: {other:?}"),
        }
    }
}
