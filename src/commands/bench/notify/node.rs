//! The node under test, which can be made worse than it is: a slow disk, rows that fail.

use super::tidings::{APP, name};
use crate::cli::bench::BenchNode;
use crate::commands::bench::server::Server;
use crate::commands::serve;
use crate::output::broken;
use bytes::Bytes;
use std::path::Path;
use std::time::Duration;
use tidings_base::Error;
use tidings_node::hindrance::Hindrance;
use tidings_notify::names::object_hash;
use tidings_notify::rows::MATCHER;
use tidings_store::faulty::{Fault, Plan, Scope};

/// The part of the ring whose rows fail ends here: an eighth.
const EIGHTH: u64 = 1 << 61;
/// Under which rows lie in a directory that is new.
const INCARNATION: u64 = 1;
/// Everything comes from one address and one principal here.
const CONFIG: &str = "[limits]\nconnections = 40000\nconnections_per_address = 40000\nrequests_per_second = 0\n\
                      [notify]\nids = 1000000\n";

/// Runs a node as it was told.
pub fn run(args: BenchNode) -> Result<(), Error> {
    let rows = match &args.fail_while {
        Some(_) => {
            let row = |at: u64| Bytes::from([INCARNATION.to_be_bytes(), at.to_be_bytes()].concat());
            let groups = Bytes::from_static(MATCHER)..Bytes::from([MATCHER, &[0]].concat());
            Plan::default().rule(Scope::Rows { groups, rows: row(0)..row(EIGHTH) }, Fault::Fail, 1)
        }
        None => Plan::default(),
    };
    let each_sync = Duration::from_micros(args.sync_us);
    let rows_while = args.fail_while;
    serve::run_hindered(args.serve, Hindrance { each_sync, rows, rows_while, ..Hindrance::default() })
}

/// Whether an object's rows fail where an eighth does.
pub fn fails(object: usize) -> bool {
    object_hash(APP, name(object).as_bytes()).0 < EIGHTH
}

/// Starts a node for all clients of a bench and waits until it is ready. An eighth of the matchers' rows fails while there
/// is a file of this name.
pub fn start(place: &Path, each_sync: Duration, fail_while: Option<&Path>) -> Result<Server, Error> {
    std::fs::create_dir_all(place).map_err(|error| broken("cannot make a directory to measure in", error))?;
    let config = place.join("node.toml");
    std::fs::write(&config, CONFIG).map_err(|error| broken("cannot write a configuration", error))?;
    Server::hindered(&config, &place.join("data"), each_sync, fail_while)?.wait_ready()
}
