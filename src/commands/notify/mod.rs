//! `tidings notify …`: publications, listeners, and what is there.
//!
//! ```text
//!   publish.rs   one question, durable when answered
//!   watch.rs     a listener of the library, which survives restarts of servers
//!   lists.rs     clients, objects, resets
//!   traces.rs    the latest notifications, as nodes remember them
//!   keys.rs      keys of tokens
//! ```

mod keys;
mod lists;
mod publish;
mod traces;
mod watch;

use crate::cli::Remote;
use crate::cli::notify::Notify;
use crate::output;
use tidings_base::{Class, Error};
use tidings_client::notify::MAX_NAME;
use tidings_node::AppName;

/// Runs one of the sub-commands.
pub fn run(command: Notify) -> Result<(), Error> {
    match command {
        Notify::Publish(args) => publish::run(args),
        Notify::Watch(args) => watch::watch(args),
        Notify::Trace { application, object, log: true, count, remote } => {
            traces::list(named(object)?, count, &within(application, remote)?)
        }
        Notify::Trace { application, object, log: false, count, remote } => {
            watch::trace(named(object)?, count, &within(application, remote)?)
        }
        Notify::RotateKeys { remote } => keys::rotate(&remote),
        Notify::Clients { application, limit, remote } => lists::clients(limit, &within(application, remote)?),
        Notify::Objects { application, object, limit, remote } => {
            lists::objects(object.map(named).transpose()?, limit, &within(application, remote)?)
        }
        Notify::Reset { application, yes, remote } => {
            let what = format!("makes every client of `{application}` fetch all it has registered");
            confirmed(yes, &what)?;
            lists::reset(false, &within(application, remote)?)
        }
        Notify::Wipe { yes, remote } => {
            confirmed(yes, "makes every client of every application register again and fetch")?;
            lists::reset(true, &remote)
        }
    }
}

/// The name of an object; one that cannot be is known before anybody is asked.
fn named(object: String) -> Result<String, Error> {
    match object.len() {
        1..=MAX_NAME => Ok(object),
        length => Err(Error::new("notify.bad_size", Class::Invalid, format!("the object's name has {length} bytes"))
            .hint(format!("It may have 1 to {MAX_NAME} bytes."))),
    }
}

/// Asks in an application. Who names another one by --app cannot mean both.
fn within(application: String, remote: Remote) -> Result<Remote, Error> {
    AppName::parse(&application)?;
    match &remote.app {
        Some(app) if *app != application => {
            Err(output::usage(format_args!("`{application}` and --app {app} name two applications"))
                .hint("Commands of Notify take the application as their first argument; leave --app out."))
        }
        _ => Ok(Remote { app: Some(application), ..remote }),
    }
}

fn confirmed(yes: bool, what: &str) -> Result<(), Error> {
    match yes {
        true => Ok(()),
        false => Err(output::unconfirmed(format_args!("this {what}"), "Say --yes if that is what you want.")),
    }
}
