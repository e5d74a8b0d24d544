//! The cluster's own certificates: made by `tidings init`, checked at start and by `tidings doctor`.
//!
//! ```text
//!   DIR/ca.pem  ca.key            the cluster's CA; ca.key belongs on no server
//!   DIR/operator.key              the operator's key
//!   DIR/node-1/node.toml          what node 1 runs with: copy the folder to its machine
//!   DIR/node-1/node.pem node.key ca.pem
//! ```
//! A node's identity is one name in its certificate, `node-<id>.nodes.tidings`, and nothing else in it. The same name
//! is what other nodes expect to see when they connect to it, whatever its address is.

mod check;
mod init;

pub use check::{Certificate, check_certificate, check_private, check_usable, node_in_certificate};
pub use init::{Summary, add_node, init};

use tidings_base::NodeId;

/// Ends every node's name; not a domain of the public DNS, so that no public CA vouches for it.
const NODE_DOMAIN: &str = ".nodes.tidings";

/// The name that a node's certificate carries and its peers ask for.
pub fn node_name(node: NodeId) -> String {
    format!("node-{node}{NODE_DOMAIN}")
}

/// The node of a name, if it is one, in the one spelling that [`node_name`] gives it.
pub fn parse_node_name(name: &str) -> Option<NodeId> {
    let number = name.strip_prefix("node-")?.strip_suffix(NODE_DOMAIN)?;
    let node = NodeId(number.parse().ok().filter(|n| *n != 0)?);
    (node_name(node) == name).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_have_one_spelling() {
        assert_eq!(parse_node_name(&node_name(NodeId(7))), Some(NodeId(7)));
        for bad in
            ["node-07.nodes.tidings", "node-0.nodes.tidings", "node-+7.nodes.tidings", "node-7", "x.nodes.tidings"]
        {
            assert_eq!(parse_node_name(bad), None, "{bad}");
        }
    }
}
