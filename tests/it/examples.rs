//! The example cluster is one: its three files agree with each other.

use std::path::Path;
use tidings_node::Config;

#[test]
fn the_three_nodes_agree_on_who_they_are() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/three-nodes");
    let nodes: Vec<Config> = (1..=3).map(|n| Config::load(examples.join(format!("node-{n}.toml"))).unwrap()).collect();
    for (number, node) in (1..).zip(&nodes) {
        assert_eq!(node.node, number);
        assert_eq!(node.members, nodes[0].members);
        assert_eq!(node.members[number as usize - 1].address, node.listen.to_string());
    }
}
