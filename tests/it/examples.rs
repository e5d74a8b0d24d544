//! Every example configuration loads, and the reference says what the defaults are.

use std::path::{Path, PathBuf};
use tidings_node::Config;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

#[test]
fn the_reference_names_every_key_with_its_default() {
    let path = examples().join("reference.toml");
    let loaded = Config::load(&path).unwrap();
    let mut defaults = Config::default();
    defaults.data = examples().join(&defaults.data);
    assert_eq!(loaded, defaults);

    // A key that exists but is not written down would load as its default too: compare the names.
    let written: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    let existing = toml::Table::try_from(&defaults).unwrap();
    assert_eq!(names("", &written), names("", &existing));
}

fn names(prefix: &str, table: &toml::Table) -> Vec<String> {
    let mut names: Vec<String> = table
        .iter()
        .flat_map(|(key, value)| match value {
            toml::Value::Table(inner) => self::names(&format!("{prefix}{key}."), inner),
            _ => vec![format!("{prefix}{key}")],
        })
        .collect();
    names.sort();
    names
}

#[test]
fn the_three_nodes_agree_on_who_they_are() {
    let nodes: Vec<Config> =
        (1..=3).map(|n| Config::load(examples().join(format!("three-nodes/node-{n}.toml"))).unwrap()).collect();
    for (number, node) in (1..).zip(&nodes) {
        assert_eq!(node.node, number);
        assert_eq!(node.members, nodes[0].members);
        assert_eq!(node.members[number as usize - 1].address, node.listen.to_string());
    }
}
