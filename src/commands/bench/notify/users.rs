//! The paper's Figure 6: ever more users, each with one client and five objects, who publish and are heard of ever so often.
//!
//! What takes the paper's users minutes takes these as many seconds: a publication of each user every 8, a heartbeat every
//! 20. Each crowd has a node of its own, so that the first is measured as the last.

use super::load::{Audience, Load};
use super::node;
use super::tidings::Tidings;
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, median};
use std::path::Path;
use std::time::Duration;
use tidings_base::Error;
use tokio::runtime::Runtime;

/// Objects of each user.
const OBJECTS: usize = 5;
/// Between two publications of a user, and between two heartbeats.
const PUBLISHES: u64 = 8;
const HEARTBEAT: Duration = Duration::from_secs(20);
/// How many times the first crowd.
const TIMES: [usize; 4] = [1, 4, 12, 23];

pub fn measure(place: &Path, runtime: &Runtime, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let mut first = None;
    for times in TIMES {
        let users = effort.notify.users * times;
        let server = node::start(&place.join(format!("notify-users-{times}")), Duration::ZERO, None)?;
        let runs = runtime.block_on(async {
            let peer = Tidings::new(server.url()).heartbeat(HEARTBEAT);
            let load = Load::begin(&peer, Audience { listeners: users, objects: OBJECTS }, |_| false).await?;
            // Where users are so few that nothing would be heard in the time, they publish more often.
            let rate = (users as u64 / PUBLISHES).max(20);
            let mut runs = Vec::new();
            for _ in 0..effort.repetitions {
                runs.push(load.at_rate(server.pid(), rate, effort.seconds, |_| false).await?);
            }
            Ok::<_, Error>(runs)
        })?;
        let processor: Vec<f64> = runs.iter().map(|run| run.server).collect();
        let latency: Vec<f64> = runs.iter().map(|run| run.p50).collect();
        figures.add(&format!("notify: {users} users: processor of the node"), "% of a core", None, &processor);
        figures.add(&format!("notify: {users} users: to the callback, p50"), "ms", None, &latency);
        let first = *first.get_or_insert(median(&processor));
        if times > 1 {
            let name = format!("notify: {times} times the users: processor, against the first");
            figures.add(&name, "x", None, &[median(&processor) / first]);
        }
    }
    Ok(())
}
