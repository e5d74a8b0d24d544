//! What a console draws: how all nodes fare, whose the ranges are, and how much there is of an application.

use super::NAMESPACE;
use super::hub::Hub;
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::Placement;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message;

/// How long the manager of the ranges may take: whoever draws asks again.
const TABLE: Duration = Duration::from_secs(5);

/// Objects, and clients, that a count looks at; beyond them it says that there are more.
const COUNTED: usize = 100_000;

impl Hub {
    /// How this node fares, or all that answer, with the ranges.
    pub(super) async fn load(&self, load: v1::NotifyLoad) -> Result<v1::NotifyLoadReply, Error> {
        let mut nodes = vec![self.stages.load(self.told.node, self.channels.len())];
        if load.alone {
            return Ok(v1::NotifyLoadReply { nodes, table: None });
        }
        let placement = Placement::new(self.through.clone()).within(TABLE);
        let others = self.ask_others(None, Message::Load(v1::NotifyLoad { alone: true }));
        let (others, table) = tokio::join!(others, placement.table(NAMESPACE));
        nodes.extend(others.into_iter().flat_map(|answer| match answer {
            Message::LoadReply(reply) => reply.nodes,
            _ => Vec::new(),
        }));
        nodes.sort_by_key(|load| load.node);
        Ok(v1::NotifyLoadReply { nodes, table: Some(table?) })
    }

    /// How much there is of an application.
    pub(super) async fn count(&self, app: &str) -> Result<v1::NotifyCountReply, Error> {
        let (objects, more_objects) = self.find_objects(app, &[], COUNTED).await?;
        let (clients, more_clients) = self.find_clients(app, COUNTED).await?;
        Ok(v1::NotifyCountReply {
            objects: objects.len() as u64,
            registrations: objects.iter().map(|object| u64::from(object.registrations)).sum(),
            pending: objects.iter().filter(|object| object.pending).count() as u64,
            clients: clients.len() as u64,
            online: clients.iter().filter(|client| client.channel.is_some()).count() as u64,
            unacknowledged: clients.iter().map(|client| u64::from(client.unacknowledged)).sum(),
            unknown: clients.iter().map(|client| u64::from(client.unknown)).sum(),
            more: more_objects || more_clients,
        })
    }
}
