//! What a connected client costs its node, and what a million of them would cost a registrar.

use super::model::Model;
use super::peer::{Hears, Peer, PeerConnection};
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::bench::server::Server;
use crate::commands::probe;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use tidings_base::{Class, Error};

/// Registrations of each client.
const REGISTRATIONS: usize = 5;
/// Clients that are being connected at once.
const CONNECTING: usize = 64;
/// Clients that the node is warmed with, so that what it allocates once is not counted.
const WARMING: usize = 200;
/// Files of a process that are not connections.
const OTHER_FILES: u64 = 300;
/// The registrar that is modelled.
const MILLION: f64 = 1e6;

/// Nobody publishes here.
struct Deaf;

impl Hears for Deaf {
    fn hears(&self, _: usize, _: u64) {}
}

type Connected = (Arc<dyn PeerConnection>, Box<dyn Send + Sync>);

async fn connected(peer: &dyn Peer, range: std::ops::Range<usize>) -> Result<Vec<Connected>, Error> {
    let connecting = range.map(|client| async move {
        let device = peer.device().await?;
        let objects = (client * REGISTRATIONS..(client + 1) * REGISTRATIONS).collect();
        let listening = device.listen(objects, Arc::new(Deaf)).await?;
        Ok::<_, Error>((device, listening))
    });
    futures::stream::iter(connecting).buffer_unordered(CONNECTING).try_collect().await
}

/// Growth of the node's resident memory for each client that is online and silent.
pub async fn connections(server: &Server, peer: &dyn Peer, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let files = probe::raise_open_files().saturating_sub(OTHER_FILES);
    let count = effort.notify.connections.min(usize::try_from(files).unwrap_or(usize::MAX));
    if count < effort.notify.connections / 2 {
        let message = format!("this process may open {files} files, too few for {} connections", count);
        return Err(Error::new("bench.few_files", Class::Refused, message).hint("Raise it with `ulimit -n`."));
    }
    let warming = WARMING.min(count / 4);
    let warm = connected(peer, 0..warming).await?;
    tokio::time::sleep(effort.notify.settling).await;
    let before = resident(server.pid())?;
    let held = connected(peer, warming..count).await?;
    tokio::time::sleep(effort.notify.settling).await;
    let grown = resident(server.pid())?.saturating_sub(before);
    let name =
        format!("notify: resident memory per idle WebSocket client with {REGISTRATIONS} registrations, of {count}");
    figures.add(&name, "B", Some(Goal::AtMost(12_288.0)), &[grown as f64 / held.len() as f64]);
    drop((warm, held));
    Ok(())
}

/// A registrar in this process, with so many clients online, each with objects of its own: memory for a million of them.
pub fn modelled(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let own = std::process::id();
    let mut model = Model::new()?;
    for client in 0..effort.notify.modelled / 10 {
        model.connect(client, REGISTRATIONS);
    }
    let (before, first) = (resident(own)?, model.registrar.clients());
    for client in effort.notify.modelled / 10..effort.notify.modelled {
        model.connect(client, REGISTRATIONS);
    }
    let grown = resident(own)?.saturating_sub(before);
    let each = grown as f64 / (model.registrar.clients() - first) as f64;
    let name = format!(
        "notify: registrar's state for 1,000,000 clients online with {REGISTRATIONS} objects each, from {}",
        effort.notify.modelled
    );
    figures.add(&name, "GB", Some(Goal::AtMost(1.5)), &[each * MILLION / 1e9]);
    Ok(())
}

fn resident(pid: u32) -> Result<u64, Error> {
    let gone = || Error::new("bench.no_server", Class::Failed, "the server under test is gone");
    probe::resident(pid).ok_or_else(gone)
}
