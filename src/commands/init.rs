//! `tidings init DIR`: a certificate authority, a folder for each node, the operator's key; later, further nodes.

use crate::cli::Init;
use crate::{output, stopwatch};
use serde_json::{Value, json};
use std::path::Path;
use tidings_base::{Error, Wall};
use tidings_node::config::Member;
use tidings_node::pki;

/// Makes everything and says how to use it.
pub fn run(args: Init) -> Result<(), Error> {
    if let Some((node, address)) = args.add {
        return add(&args.dir, Member { node, address }, args.json);
    }
    let members: Vec<Member> =
        (1..).zip(&args.nodes).map(|(node, address)| Member { node, address: address.clone() }).collect();
    if let Some((_, again)) = args.nodes.iter().enumerate().find(|(i, node)| args.nodes[..*i].contains(node)) {
        return Err(output::usage(format_args!("two nodes have the address {again}"))
            .hint("Each node listens at an address of its own."));
    }
    let made = pki::init(&args.dir, &members, Wall(stopwatch::wall_micros()))?;
    let dir = args.dir.display();
    if args.json {
        output::json(
            &json!({ "dir": args.dir, "files": made.files, "nodes": members.iter().map(node).collect::<Vec<_>>() }),
        );
        return Ok(());
    }
    output::line(format_args!("made {} files in {dir}", made.files.len()));
    output::line("");
    // Several members must be told that they begin something new.
    let found = if members.len() > 1 { " --found" } else { "" };
    for member in &members {
        output::line(format_args!("  tidings serve --config {dir}/node-{}/node.toml{found}", member.node));
    }
    output::line(format_args!(
        "  TIDINGS_KEY=$(cat {dir}/operator.key) tidings status --server https://{} --ca {dir}/ca.pem",
        members[0].address
    ));
    output::line("");
    output::line("Copy each node-N folder to its machine. Keep ca.key and operator.key away from the nodes.");
    if members.len() > 1 {
        output::line("--found is for the first start of a new cluster, never again.");
    }
    Ok(())
}

/// A node as scripts read it.
fn node(member: &Member) -> Value {
    json!({ "node": member.node, "address": member.address, "config": format!("node-{}/node.toml", member.node) })
}

/// Makes what one more node needs, or, once its old folder is moved away, a node whose certificate is about to end.
fn add(dir: &Path, new: Member, json: bool) -> Result<(), Error> {
    // It is told of no members: those that run will add it, and tell it.
    let files = pki::add_node(dir, &new, std::slice::from_ref(&new), Wall(stopwatch::wall_micros()))?;
    if json {
        output::json(&json!({ "dir": dir, "files": files, "nodes": [node(&new)] }));
        return Ok(());
    }
    let (dir, number) = (dir.display(), new.node);
    output::line(format_args!("made {} files in {dir}/node-{number}", files.len()));
    output::line("");
    output::line(format_args!("  tidings serve --config {dir}/node-{number}/node.toml --join"));
    output::line("");
    output::line(
        "Copy the folder to its machine. --join is for the first start of a node that is new; one that has its data",
    );
    output::line("already, and gets a new certificate, starts without it.");
    Ok(())
}
