//! `tidings place …`: namespaces, tables, owners, lookups, drains, rebalancing.
//!
//! ```text
//!   namespaces.rs table.rs drain.rs rebalance.rs    one question to whoever leads (connect.rs)
//!   lookup.rs                                       a lookup of the library, which is told of changes and losses
//! ```

mod connect;
mod drain;
mod lookup;
mod namespaces;
mod rebalance;
mod table;

use crate::cli::place::Place;
use tidings_base::Error;

/// Runs one of the sub-commands.
pub fn run(command: Place) -> Result<(), Error> {
    match command {
        Place::Namespaces { remote } => namespaces::list(&remote),
        Place::Create(args) => namespaces::create(&args),
        Place::Delete { namespace, yes, remote } => namespaces::delete(&namespace, yes, &remote),
        Place::Table { namespace, owner, remote } => table::table(&namespace, owner.as_deref(), &remote),
        Place::Owners { namespace, remote } => table::owners(&namespace, &remote),
        Place::Lookup { namespace, keys, watch: false, remote, .. } => lookup::once(&namespace, &keys, &remote),
        Place::Lookup { namespace, keys, watch: true, count, remote } => {
            lookup::watch(&namespace, &keys, count, &remote)
        }
        Place::Watch { namespace, count, remote } => lookup::watch(&namespace, &[], count, &remote),
        Place::Drain { namespace, owner, cancel: true, remote, .. } => drain::cancel(&namespace, &owner, &remote),
        Place::Drain { namespace, owner, cancel: false, wait, allow_loss, remote } => {
            drain::drain(&drain::Drain { namespace: &namespace, owner: &owner, wait, allow_loss }, &remote)
        }
        Place::Rebalance { namespace, dry_run, remote } => rebalance::run(&namespace, dry_run, &remote),
    }
}
