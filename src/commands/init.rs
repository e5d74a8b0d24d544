//! `tidings init DIR`: a certificate authority, a folder for each node, the operator's key.

use crate::cli::Init;
use crate::{output, stopwatch};
use tidings_base::{Error, Wall};
use tidings_node::config::Member;
use tidings_node::pki;

/// Makes everything and says how to use it.
pub fn run(args: Init) -> Result<(), Error> {
    let members: Vec<Member> =
        (1..).zip(&args.nodes).map(|(node, address)| Member { node, address: address.clone() }).collect();
    let made = pki::init(&args.dir, &members, Wall(stopwatch::wall_micros()))?;
    let dir = args.dir.display();
    output::line(format_args!("made {} files in {dir}", made.files.len()));
    output::line("");
    for member in &members {
        output::line(format_args!("  tidings serve --config {dir}/node-{}/node.toml", member.node));
    }
    output::line(format_args!(
        "  TIDINGS_KEY=$(cat {dir}/operator.key) tidings status --server https://{} --ca {dir}/ca.pem",
        members[0].address
    ));
    output::line("");
    output::line("Copy each node-N folder to its machine. Keep ca.key and operator.key away from the nodes.");
    Ok(())
}
