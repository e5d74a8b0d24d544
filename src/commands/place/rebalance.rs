//! `tidings place rebalance`.

use super::connect::with_placement;
use crate::cli::Remote;
use crate::output;
use serde_json::{Value, json};
use tidings_base::Error;
use tidings_wire::v1::PlannedMove;

/// Lets the policy act, or tells what it would do.
pub fn run(namespace: &str, dry_run: bool, remote: &Remote) -> Result<(), Error> {
    let reply = with_placement(remote, async |placement| placement.rebalance(namespace, dry_run).await)?;
    let (before, after) = (reply.max_over_mean_before, reply.max_over_mean_after);
    if remote.json {
        let steps: Vec<Value> = reply.moves.iter().map(step).collect();
        output::json(&json!({
            "namespace": namespace,
            "dry_run": dry_run,
            "steps": steps,
            "max_over_mean_before": before,
            "max_over_mean_after": after,
        }));
        return Ok(());
    }
    if reply.moves.is_empty() {
        output::line("nothing to do: the load is spread well enough, or none was measured yet");
        return Ok(());
    }
    output::table(
        ["STEP", "FROM", "TO", "RANGE", "RATE"],
        reply.moves.iter().map(|planned| {
            let range = planned.range.unwrap_or_default();
            let range = match planned.kind.as_str() {
                "points" => format!("{} points on the ring", planned.points),
                _ => format!("{:016x}..={:016x}", range.start, range.last),
            };
            let rate = format!("{:.1}/s", planned.rate);
            [planned.kind.clone(), planned.from.clone(), planned.to.clone(), range, rate]
        }),
    );
    let would = if dry_run { "would be" } else { "will be" };
    output::line(format_args!("the busiest owner is at {before:.2} of the mean and {would} at {after:.2}"));
    Ok(())
}

fn step(planned: &PlannedMove) -> Value {
    let range = planned.range.unwrap_or_default();
    json!({
        "step": planned.kind,
        "from": planned.from,
        "to": planned.to,
        "start": format!("{:016x}", range.start),
        "last": format!("{:016x}", range.last),
        "rate": planned.rate,
        "points": planned.points,
    })
}
