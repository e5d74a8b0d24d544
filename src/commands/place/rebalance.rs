//! `tidings place rebalance`.

use super::connect::with_placement;
use crate::cli::Remote;
use crate::output;
use serde_json::{Value, json};
use tidings_base::Error;
use tidings_wire::v1::{PlannedMove, RebalanceReply};

/// The policy that does nothing.
const NO_POLICY: &str = "none";

/// Lets the policy act, or tells what it would do.
pub fn run(namespace: &str, dry_run: bool, remote: &Remote) -> Result<(), Error> {
    let (reply, policy) = with_placement(remote, async |placement| {
        let reply = placement.rebalance(namespace, dry_run).await?;
        let all = placement.namespaces().await?;
        let config = all.into_iter().find(|info| info.namespace == namespace).and_then(|info| info.config);
        Ok((reply, config.unwrap_or_default().policy))
    })?;
    let (before, after) = (reply.max_over_mean_before, reply.max_over_mean_after);
    if remote.json {
        let steps: Vec<Value> = reply.moves.iter().map(step).collect();
        output::json(&json!({
            "namespace": namespace,
            "dry_run": dry_run,
            "policy": policy,
            "steps": steps,
            "max_over_mean_before": before,
            "max_over_mean_after": after,
            "rate": reply.rate,
            "settling_ranges": reply.settling,
            "settles_ms": reply.settles_ms,
        }));
        return Ok(());
    }
    if reply.moves.is_empty() {
        output::line(idle(&reply, &policy));
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

/// Why nothing is to be done.
fn idle(reply: &RebalanceReply, policy: &str) -> String {
    if policy == NO_POLICY {
        return format!(
            "nothing to do: the policy of this namespace is `{NO_POLICY}`, which leaves ranges where they are"
        );
    }
    let ratio = format!("the busiest owner is at {:.2} of the mean", reply.max_over_mean_before);
    let settling = match reply.settling {
        0 => String::new(),
        n => {
            // The last moment counts.
            let left = reply.settles_ms.div_ceil(1_000);
            format!("{n} ranges changed hands a short time ago, and are left alone for another {left} s at most")
        }
    };
    match (reply.rate > 0.0, reply.settling > 0) {
        (false, false) => "nothing to do: no load was measured yet".to_owned(),
        (false, true) => format!("nothing to do: no load was measured yet; {settling}"),
        (true, false) => format!("nothing to do: the load is spread well enough, or cannot be spread better; {ratio}"),
        (true, true) => format!("nothing to do yet: {settling}; {ratio}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_nothing_to_do_says_why() {
        let reply = |rate, settling| RebalanceReply {
            max_over_mean_before: 1.8,
            rate,
            settling,
            settles_ms: u64::from(settling) * 1_001,
            ..Default::default()
        };
        let idle = |reply: &RebalanceReply| super::idle(reply, "hottest");
        assert!(super::idle(&reply(9.0, 3), NO_POLICY).contains("the policy of this namespace is `none`"));
        assert_eq!(idle(&reply(0.0, 0)), "nothing to do: no load was measured yet");
        assert!(idle(&reply(0.0, 3)).contains("no load was measured yet; 3 ranges"), "{}", idle(&reply(0.0, 3)));
        assert!(idle(&reply(9.0, 0)).contains("well enough") && idle(&reply(9.0, 0)).contains("1.80 of the mean"));
        let settling = idle(&reply(9.0, 3));
        assert!(settling.contains("for another 4 s") && settling.contains("1.80 of the mean"), "{settling}");
        assert!(!settling.contains("well enough"), "{settling}");
    }
}
