//! Do the other members answer, do their clocks go like this one, and do they run the same version?

use super::Check;
use crate::commands::runtime;
use std::collections::BTreeSet;
use std::time::Duration;
use tidings_base::Error;
use tidings_node::services::{Met, Peers};
use tidings_node::{Config, SystemClock};
use tidings_wire::v1;

/// How long a member may take to answer: longer than a connection over a bad line.
const ANSWERS: Duration = Duration::from_secs(3);

/// One check for each member that the configuration names or the server of this node knows; none for a node by itself.
pub fn check(config: &Config) -> Vec<Check> {
    let looked = runtime().and_then(|runtime| runtime.block_on(look(config)));
    looked.unwrap_or_else(|error| vec![Check::from_error("members", error)])
}

async fn look(config: &Config) -> Result<Vec<Check>, Error> {
    let peers = Peers::new(config)?;
    let own = config.advertised(config.listen);
    let named = config.members.iter().map(|member| member.address.clone()).chain(config.contacts.iter().cloned());
    let mut others: BTreeSet<String> = named.collect();
    if others.is_empty() {
        return Ok(Vec::new());
    }
    // Members may have come since the configuration was written.
    if let Ok(here) = peers.status_at(&own, ANSWERS).await {
        others.extend(here.groups.into_iter().flat_map(|group| group.members).map(|member| member.address));
    }
    others.remove(&own);
    let meetings = others.iter().map(async |address| {
        // The first answer waits for its connection, and says too little of the clock.
        match peers.meet(address, ANSWERS, &SystemClock).await {
            Ok(_) => peers.meet(address, ANSWERS, &SystemClock).await,
            Err(error) => Err(error),
        }
    });
    let met = futures::future::join_all(meetings).await;
    Ok(others.iter().zip(met).map(|(address, met)| judge(address, met)).collect())
}

fn judge(address: &str, met: Result<Met, Error>) -> Check {
    let Met { status: v1::StatusReply { node, version, .. }, clock } = match met {
        Ok(met) => met,
        Err(error) => {
            let hint = "Look whether it runs, and whether this machine reaches it; `tidings status` says whether a majority is up.";
            return Check::warning("member", format!("nobody answers at {address}: {error}"), hint);
        }
    };
    let (name, ours) = (format!("node {node} at {address}"), env!("CARGO_PKG_VERSION"));
    match clock {
        Some(gap) if gap.is_too_far() => Check::failed(
            "member",
            format!("the wall clock of {name} is {gap}"),
            "Let NTP or PTP keep the clocks of both: tokens and certificates begin and end at other times there.",
        ),
        _ if version != ours => Check::warning(
            "member",
            format!("{name} runs tidings {version}, this is {ours}"),
            "Fine while you upgrade one node after the other; end it soon.",
        ),
        None => Check::ok("member", format!("{name} runs tidings {version}")),
        Some(gap) => Check::ok("member", format!("{name} runs tidings {version}; its clock is {gap}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use tidings_node::services::ClockGap;

    #[test]
    fn a_member_is_judged_by_its_clock_before_its_version() {
        let met = |version: &str, ahead_us| {
            let status = v1::StatusReply { node: 2, version: version.to_owned(), ..Default::default() };
            judge("a:1", Ok(Met { status, clock: Some(ClockGap { ahead_us, error_us: 500 }) }))
        };
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(met(ours, 400).state, State::Ok);
        assert_eq!(met("0.0.1", 400).state, State::Warning);
        assert_eq!(met("0.0.1", -3_000_000).state, State::Failed);
        assert!(met(ours, -3_000_000).message.contains("3.0 s behind"));
    }
}
