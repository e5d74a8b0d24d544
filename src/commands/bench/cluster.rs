//! Three members as three processes of our own binary, on loopback, each with its own directory.

use super::server::Server;
use crate::output::broken;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidings_base::{Class, Error, GroupId};
use tidings_client::{Client, ClientConfig};
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::{AdminMessage, StatusRequest, frame::Body};

/// How many members: one may be lost.
const MEMBERS: usize = 3;
/// How long members may take to agree on a leader.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at who leads.
const LOOK: Duration = Duration::from_millis(50);

/// Running members; dropped, they are killed.
pub struct Cluster {
    configs: Vec<PathBuf>,
    members: Vec<Option<Server>>,
    urls: Vec<String>,
}

impl Cluster {
    /// Founds a cluster under this directory and waits until it takes calls.
    pub fn start(place: &Path) -> Result<Cluster, Error> {
        std::fs::create_dir_all(place).map_err(|error| broken("cannot make a directory to measure in", error))?;
        let ports = free_ports()?;
        let named = (1..)
            .zip(&ports)
            .map(|(node, port)| format!("[[members]]\nnode = {node}\naddress = \"127.0.0.1:{port}\"\n"));
        let named: String = named.collect();
        let mut configs = Vec::new();
        for (node, port) in (1..).zip(&ports) {
            let path = place.join(format!("node-{node}.toml"));
            // Everything comes from one address here.
            let own = format!("node = {node}\ndata = \"data-{node}\"\nlisten = \"127.0.0.1:{port}\"\n");
            let limits = "[limits]\nconnections_per_address = 20000\nrequests_per_second = 0\n";
            std::fs::write(&path, own + &named + limits)
                .map_err(|error| broken("cannot write a configuration", error))?;
            configs.push(path);
        }
        let members = configs.iter().map(|config| Server::member(config, true)).collect::<Result<Vec<_>, _>>()?;
        let members = members.into_iter().map(|member| member.wait_ready().map(Some)).collect::<Result<_, _>>()?;
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        Ok(Cluster { configs, members, urls })
    }

    /// Where clients find it.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The process of a member that runs.
    pub fn pid(&self, member: usize) -> Result<u32, Error> {
        self.members[member].as_ref().map(Server::pid).ok_or_else(|| failed("the member under test does not run"))
    }

    /// SIGKILL.
    pub fn kill(&mut self, member: usize) {
        // Dropped, it is killed and waited for.
        self.members[member] = None;
    }

    /// Starts a member again and waits until it takes part.
    pub fn restart(&mut self, member: usize) -> Result<(), Error> {
        self.members[member] = Some(Server::member(&self.configs[member], false)?.wait_ready()?);
        Ok(())
    }

    /// The member that leads the cell's group.
    pub async fn master(&self) -> Result<usize, Error> {
        let ask = async {
            loop {
                for (at, url) in self.urls.iter().enumerate() {
                    if self.members[at].is_some() && leads(url).await == Some(at as u64 + 1) {
                        return at;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(PATIENCE, ask).await.map_err(|_| failed("the members under test found no master"))
    }
}

/// Who leads the cell, as this node says.
async fn leads(url: &str) -> Option<u64> {
    let client = Client::connect(ClientConfig::new([url])).await.ok()?;
    let ask = Body::Admin(AdminMessage { message: Some(Message::Status(StatusRequest::default())) });
    let Body::Admin(AdminMessage { message: Some(Message::StatusReply(status)) }) = client.call(ask).await.ok()? else {
        return None;
    };
    let cell = status.groups.iter().find(|group| GroupId(group.group) == GroupId::CELL)?;
    (cell.leader == status.node).then_some(cell.leader)
}

/// Ports that are free at this moment: configurations must name them.
fn free_ports() -> Result<Vec<u16>, Error> {
    let bound: Result<Vec<TcpListener>, _> = (0..MEMBERS).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports = bound.and_then(|all| all.iter().map(|one| one.local_addr().map(|at| at.port())).collect());
    ports.map_err(|error| broken("loopback has no free port", error))
}

fn failed(message: &str) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
