//! `tidings cell acl get|set`: who may read, write and change a node.

use super::connect::{changing, looking};
use super::files::{changed, target};
use super::show;
use crate::cli::Remote;
use crate::cli::cell::Acl;
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_cell::error;
use tidings_client::cell::Stat;
use tidings_wire::v1::{self, cell_message::Message};

/// Runs one of the sub-commands.
pub fn run(command: Acl) -> Result<(), Error> {
    match command {
        Acl::Get { path, remote } => {
            let stat = looking(&remote, async |cell| cell.stat(&path).await?.ok_or_else(|| error::no_node(&path)))?;
            print(&path, &stat, &remote);
            Ok(())
        }
        Acl::Set { read: None, write: None, change: None, .. } => Err(output::usage("there is nothing to set")
            .hint("Give --read, --write or --change; the empty name is everybody of the application.")),
        Acl::Set { path, read, write, change, if_generation, remote } => {
            let stat = changing(&remote, async |cell| {
                let stat = cell.stat(&path).await?.ok_or_else(|| error::no_node(&path))?;
                let acl = v1::NodeAcl {
                    read: read.unwrap_or(stat.acl.read),
                    write: write.unwrap_or(stat.acl.write),
                    change: change.unwrap_or(stat.acl.change),
                };
                // Names that were not given are those just read: nobody else's change is undone.
                let if_generation = Some(if_generation.unwrap_or(stat.acl_generation));
                let set = v1::SetAcl { target: target(&path)?, acl: Some(acl), if_generation, sequencers: Vec::new() };
                changed(cell.request(Message::SetAcl(set)).await?)
            })?;
            print(&path, &stat, &remote);
            Ok(())
        }
    }
}

fn print(path: &str, stat: &Stat, remote: &Remote) {
    if remote.json {
        output::json(&json!({ "path": path, "acl": show::acl(&stat.acl), "acl_generation": stat.acl_generation }));
    } else {
        let row = |what: &str, name: &str| [what.to_owned(), show::acl_name(name)];
        output::table(
            ["MAY", "ACL"],
            [row("read", &stat.acl.read), row("write", &stat.acl.write), row("change ACLs", &stat.acl.change)],
        );
    }
}
