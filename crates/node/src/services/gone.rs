//! Numbers of nodes that were members and are none any more: nobody comes back under one. Whoever lost what he promised under a
//! number could undo it there, and those who still send to it would speak to somebody else.
//!
//! Group `.members` of the store (no application can be called that). Row `<group>/<node>`, column `removed`. It is written
//! before the member is removed: a number that is written down and still a member's harms nobody.

use super::{Stored, admin};
use bytes::Bytes;
use tidings_base::{Class, Error, GroupId, NodeId};
use tidings_consensus::Group;
use tidings_wire::v1::store_message::Message;
use tidings_wire::v1::{Apply, Cell, Get, GroupWrite, RowKey, RowWrite};

const MEMBERS: Bytes = Bytes::from_static(b".members");
const REMOVED: Bytes = Bytes::from_static(b"removed");

impl Stored {
    /// Writes down that a node is about to be removed from a group.
    pub(crate) async fn removes(&self, group: GroupId, node: NodeId) -> Result<(), Error> {
        let cell = Cell { column: REMOVED, timestamp: 1, value: Some(Bytes::new()) };
        let row = RowWrite { row: row(group, node), cells: vec![cell] };
        let write = GroupWrite { group: MEMBERS, rows: vec![row], fence: None };
        match self.ask(Message::Apply(Apply { groups: vec![write] })).await? {
            Message::Applied(applied) if applied.failures.is_empty() => Ok(()),
            _ => Err(confused()),
        }
    }

    /// Whether a node was removed from a group once.
    pub(crate) async fn was_removed(&self, group: GroupId, node: NodeId) -> Result<bool, Error> {
        let get = Get { key: Some(RowKey { group: MEMBERS, row: row(group, node) }), columns: vec![REMOVED] };
        match self.ask(Message::Get(get)).await? {
            Message::Rows(rows) => Ok(rows.rows.iter().any(|row| !row.cells.is_empty())),
            _ => Err(confused()),
        }
    }

    /// Refuses a new member under a number that another one had.
    pub(super) async fn refuse_old_number(&self, log: &Group, node: NodeId) -> Result<(), Error> {
        let status = log.status();
        let is_there = status.members.iter().any(|member| member.node == node);
        if is_there || !self.was_removed(status.group, node).await? {
            return Ok(());
        }
        let name = admin::name(log);
        let message =
            format!("node {node} was removed from the {name}'s group, and nobody comes back under its number");
        Err(Error::new("raft.removed_number", Class::Refused, message).hint(
            "Start the node with an empty data directory and --join, under a number that the cluster never knew, and add \
             that.",
        ))
    }
}

fn row(group: GroupId, node: NodeId) -> Bytes {
    format!("{group}/{node}").into()
}

fn confused() -> Error {
    Error::new("admin.bad_record", Class::Failed, "the store answered another question")
}
