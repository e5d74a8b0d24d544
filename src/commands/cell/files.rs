//! `tidings cell ls|cat|put|mkdir|rm|stat`: small files and directories.

use super::connect::{changing, looking, make_parents, open_making_parents, staying};
use super::show::{self, Stat};
use crate::cli::Remote;
use crate::commands::remote::{content, told as as_json};
use crate::commands::signals::Signals;
use crate::output;
use bytes::Bytes;
use serde_json::json;
use std::io::Write;
use tidings_base::Error;
use tidings_cell::{NodePath, error};
use tidings_client::cell::{Cell, Sequencer, SessionEvent, SessionOptions, Stat as NodeStat};
use tidings_wire::v1::{self, cell_message::Message, node_target::Target};

/// How often a directory that is being filled while it is deleted is tried again.
const DELETE_ATTEMPTS: usize = 8;

/// Lists a directory.
pub fn ls(path: &str, long: bool, remote: &Remote) -> Result<(), Error> {
    let children = looking(remote, async |cell| cell.list(path).await?.ok_or_else(|| error::no_node(path)))?;
    if remote.json {
        let child = |child: &tidings_client::cell::Child| {
            let stat = serde_json::to_value(Stat::new(&below(path, &child.name), &child.stat));
            stat.map_err(|error| output::broken("cannot print a node", error))
        };
        output::json(&children.iter().map(child).collect::<Result<Vec<_>, _>>()?);
    } else if long {
        output::table(
            ["NAME", "KIND", "LENGTH", "GENERATION", "LOCK"],
            children.iter().map(|child| {
                let stat = &child.stat;
                if stat.instance == 0 {
                    // It may not be read.
                    return [child.name.clone(), show::kind(stat).into(), String::new(), String::new(), String::new()];
                }
                let kind =
                    if stat.ephemeral { format!("ephemeral {}", show::kind(stat)) } else { show::kind(stat).into() };
                let size = if stat.directory { stat.children } else { stat.length };
                let generation = if stat.directory { String::new() } else { stat.content_generation.to_string() };
                [child.name.clone(), kind, size.to_string(), generation, show::lock(stat).to_owned()]
            }),
        );
    } else {
        for child in &*children {
            output::line(format_args!("{}{}", child.name, if child.stat.directory { "/" } else { "" }));
        }
    }
    Ok(())
}

fn below(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Prints the contents of a file, byte for byte.
pub fn cat(path: &str, remote: &Remote) -> Result<(), Error> {
    let file = looking(remote, async |cell| cell.read(path).await?.ok_or_else(|| error::no_node(path)))?;
    if file.stat().directory {
        return Err(error::is_a_directory(path));
    }
    if remote.json {
        let generation = file.stat().content_generation;
        output::json(&json!({ "path": path, "contents": as_json(file.contents()), "generation": generation }));
    } else {
        let mut out = std::io::stdout().lock();
        // A reader that went away has read enough.
        let _ = out.write_all(file.contents()).and_then(|()| out.flush());
    }
    Ok(())
}

/// Shows the metadata of a node.
pub fn stat(path: &str, remote: &Remote) -> Result<(), Error> {
    let stat = looking(remote, async |cell| cell.stat(path).await?.ok_or_else(|| error::no_node(path)))?;
    if remote.json {
        output::json(&Stat::new(path, &stat));
        return Ok(());
    }
    let ephemeral = if stat.ephemeral { "ephemeral " } else { "" };
    let (size, unit) = if stat.directory { (stat.children, "children") } else { (stat.length, "bytes") };
    let rows = [
        ["path", path],
        ["kind", &format!("{ephemeral}{}", show::kind(&stat))],
        ["holds", &format!("{size} {unit}")],
        ["checksum", &format!("{:016x}", stat.checksum)],
        ["instance", &stat.instance.to_string()],
        ["content generation", &stat.content_generation.to_string()],
        ["lock generation", &stat.lock_generation.to_string()],
        ["ACL generation", &stat.acl_generation.to_string()],
        [
            "lock",
            &match stat.lock_holders {
                0 | 1 => show::lock(&stat).to_owned(),
                holders => format!("{} by {holders}", show::lock(&stat)),
            },
        ],
        ["may read", &show::acl_name(&stat.acl.read)],
        ["may write", &show::acl_name(&stat.acl.write)],
        ["may change ACLs", &show::acl_name(&stat.acl.change)],
    ];
    show::pairs(rows);
    Ok(())
}

/// Makes a directory.
pub fn mkdir(path: &str, parents: bool, remote: &Remote) -> Result<(), Error> {
    changing(remote, async |cell| match parents {
        true => cell.create_directories(path).await,
        false => cell.open(path).write().create_directory().exclusive().await.map(drop),
    })?;
    if remote.json {
        output::json(&json!({ "path": path, "made": true }));
    } else {
        output::line(format_args!("made {path}"));
    }
    Ok(())
}

/// How a file is to be written.
pub struct Put {
    pub path: String,
    pub value: String,
    pub if_generation: Option<u64>,
    pub create_only: bool,
    pub ephemeral: bool,
    pub hold: bool,
    pub sequencers: Vec<Sequencer>,
}

/// Writes a file.
pub fn put(put: &Put, remote: &Remote) -> Result<(), Error> {
    if put.ephemeral && !put.hold {
        return Err(output::usage("an ephemeral file goes when its session ends, and that is when this command does")
            .hint(
                "Add --hold to keep it until this command is interrupted, or run something under `tidings cell lock`.",
            ));
    }
    let contents = content(&put.value)?;
    if put.hold {
        return staying(remote, SessionOptions::default(), async |cell| hold(cell, put, contents, remote).await);
    }
    let stat = changing(remote, async |cell| write(cell, put, contents).await)?;
    told(&put.path, &stat, remote);
    Ok(())
}

fn told(path: &str, stat: &NodeStat, remote: &Remote) {
    if remote.json {
        output::json(&Stat::new(path, stat));
    } else {
        output::line(format_args!("{path}: generation {}, {} bytes", stat.content_generation, stat.length));
    }
}

async fn write(cell: &Cell, put: &Put, contents: Bytes) -> Result<NodeStat, Error> {
    let path = &put.path;
    if put.create_only {
        let create = || cell.open(path).write().create_file(contents.clone()).exclusive();
        return Ok(open_making_parents(cell, path, create).await?.opened_stat().clone());
    }
    if put.if_generation.is_none() && put.sequencers.is_empty() {
        return match cell.write(path, contents.clone()).await {
            Err(error) if error.code == "cell.no_parent" => {
                make_parents(cell, path).await?;
                cell.write(path, contents).await
            }
            written => written,
        };
    }
    let set = v1::SetContents {
        target: target(path)?,
        contents,
        if_generation: put.if_generation,
        sequencers: tokens(&put.sequencers),
    };
    changed(cell.request(Message::SetContents(set)).await?)
}

/// Keeps an ephemeral file for as long as nobody interrupts.
async fn hold(cell: &Cell, put: &Put, contents: Bytes, remote: &Remote) -> Result<(), Error> {
    let path = &put.path;
    let mut signals = Signals::listen()?;
    let mut events = cell.events();
    let open = || {
        let open = cell.open(path).write();
        // A generation is one of a file that is there.
        if put.if_generation.is_some() {
            return open;
        }
        let open = open.create_file(contents.clone());
        let open = if put.ephemeral { open.ephemeral() } else { open };
        if put.create_only { open.exclusive() } else { open }
    };
    let handle = open_making_parents(cell, path, open).await?;
    let stat = match handle.created() {
        true => handle.opened_stat().clone(),
        false if put.ephemeral && !handle.opened_stat().ephemeral => {
            return Err(error::node_exists(format_args!("permanent file {path}")));
        }
        false => handle.set_contents(contents.clone(), put.if_generation).await?,
    };
    told(path, &stat, remote);
    loop {
        tokio::select! {
            _ = signals.next() => return handle.close().await,
            event = events.next() => if matches!(event, None | Some(SessionEvent::Expired)) {
                return Err(error::expired(cell.session()));
            },
        }
    }
}

/// Deletes a node, or a whole directory.
pub fn rm(
    path: &str,
    recursive: bool,
    yes: bool,
    if_generation: Option<u64>,
    sequencers: &[Sequencer],
    remote: &Remote,
) -> Result<(), Error> {
    if recursive && !yes {
        let what = format_args!("deleting {path} with everything under it cannot be undone");
        return Err(output::unconfirmed(what, "Add --yes; `tidings cell backup FILE` saves the whole cell first."));
    }
    let deleted = changing(remote, async |cell| match recursive {
        true => delete_all(cell, path).await,
        false => {
            let delete = v1::DeleteNode { target: target(path)?, if_generation, sequencers: tokens(sequencers) };
            changed(cell.request(Message::Delete(delete)).await?).map(|_| 1)
        }
    })?;
    if remote.json {
        output::json(&json!({ "path": path, "deleted": deleted }));
    } else {
        output::line(format_args!(
            "deleted {path}{}",
            if recursive { format!(", {deleted} nodes") } else { String::new() }
        ));
    }
    Ok(())
}

/// From the leaves up. What others delete meanwhile is fine; what they add is deleted too, a few times.
async fn delete_all(cell: &Cell, path: &str) -> Result<u64, Error> {
    let mut deleted = 0;
    let mut attempts = 0;
    // A directory stands below its children, and is met again when they are gone.
    let mut stack = vec![NodePath::parse(path)?.as_str().to_owned()];
    if cell.stat(path).await?.is_none() {
        return Err(error::no_node(path));
    }
    while let Some(last) = stack.last().cloned() {
        match cell.delete(&last).await {
            Ok(()) => deleted += 1,
            Err(error) if error.code == "cell.no_node" => {}
            Err(error) if error.code == "cell.not_empty" => {
                let children = cell.list(&last).await?;
                let before = stack.len();
                stack.extend(children.iter().flat_map(|all| all.iter()).map(|child| below(&last, &child.name)));
                attempts += usize::from(stack.len() == before);
                if attempts > DELETE_ATTEMPTS {
                    return Err(error);
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        stack.pop();
    }
    Ok(deleted)
}

fn tokens(sequencers: &[Sequencer]) -> Vec<Bytes> {
    sequencers.iter().map(|sequencer| sequencer.token().clone()).collect()
}

/// The target of a request by path.
pub fn target(path: &str) -> Result<Option<v1::NodeTarget>, Error> {
    let path = NodePath::parse(path)?.as_str().to_owned();
    Ok(Some(v1::NodeTarget { target: Some(Target::Path(path)) }))
}

/// The metadata after a change; of what is gone there is none.
pub fn changed(answer: Message) -> Result<NodeStat, Error> {
    match answer {
        Message::Done(done) => Ok(done.stat.map(NodeStat::from).unwrap_or_default()),
        _ => Err(crate::commands::remote::unexpected()),
    }
}

/// Sequencers as they are typed.
pub fn sequencers(texts: &[String]) -> Result<Vec<Sequencer>, Error> {
    texts.iter().map(|text| text.parse()).collect()
}
