//! `tidings status`: one screen that says who leads, who lags, and what is wrong.

use super::remote::{Asked, ask};
use crate::cli::Remote;
use crate::output::{self, Hue};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tidings_base::Error;
use tidings_node::services::ClockGap;
use tidings_node::status::{Member, Placement, Status};
use tidings_wire::v1::StatusRequest;
use tidings_wire::v1::admin_message::Message;

/// Something is wrong, as with `doctor`.
const PROBLEMS: u8 = 1;

/// Asks one node and prints what it says; the exit code tells whether something is wrong.
pub fn run(remote: Remote) -> Result<ExitCode, Error> {
    let reply = ask(&remote, Asked::Admin(Message::Status(StatusRequest::default())), |answer| match answer {
        Asked::Admin(Message::StatusReply(reply)) => Some(reply),
        _ => None,
    })?;
    let status = Status::from(reply);
    if remote.json {
        output::json(&status);
    } else {
        print(&status);
    }
    Ok(if status.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

fn print(status: &Status) {
    let cluster = status.cluster.as_deref().unwrap_or("not known yet");
    output::line(format_args!("cluster {cluster}, as node {} sees it", status.node));
    print_nodes(status);
    output::line("");
    print_groups(status);
    if let Some(placement) = &status.placement {
        output::line(shown_placement(placement));
    }
    if !status.contacts.is_empty() {
        output::line(format_args!("no member · asks {}", status.contacts.join(", ")));
    }
    if status.problems.is_empty() {
        output::marked(Hue::Good, "no problems", "");
    }
    for problem in &status.problems {
        output::marked(Hue::Bad, "problem", format_args!(": {problem}"));
    }
}

fn shown_placement(placement: &Placement) -> String {
    let Placement { role, leader, epoch, namespaces, platform_namespaces: own, owners, ranges } = placement;
    let epoch = epoch.map_or(String::new(), |epoch| format!(" (epoch {epoch})"));
    let leader = leader.as_deref().unwrap_or("not known");
    let namespaces = match namespaces.saturating_sub(*own) {
        0 if *own > 0 => format!("{own} namespaces, all the platform's own"),
        _ if *own > 0 => format!("{namespaces} namespaces, {own} of them the platform's own"),
        _ => format!("{namespaces} namespaces"),
    };
    format!("placement: {role}{epoch} · leader {leader} · {namespaces} · {owners} owners, {ranges} ranges")
}

fn print_nodes(status: &Status) {
    let row = |node: u64, address: &str, version: &str, clock: String, uptime_ms, connections: u32, ranges, rates| {
        let up = uptime(Duration::from_millis(uptime_ms));
        let (node, connections) = (node.to_string(), connections.to_string());
        [node, address.to_owned(), version.to_owned(), up, clock, connections, shown_ranges(ranges), shown_rates(rates)]
    };
    let Status { node, address, version, uptime_ms, connections, ranges, rates, .. } = status;
    let asked = row(*node, address, version, "asked".to_owned(), *uptime_ms, *connections, ranges, rates);
    let others = status.nodes.iter().map(|n| {
        let clock = ClockGap { ahead_us: n.clock_ahead_us, error_us: n.clock_error_us }.to_string();
        row(n.node, &n.address, &n.version, clock, n.uptime_ms, n.connections, &n.ranges, &n.rates)
    });
    output::table(
        ["NODE", "ADDRESS", "VERSION", "UP", "CLOCK", "CONNECTIONS", "RANGES", "A SECOND"],
        [asked].into_iter().chain(others),
    );
}

fn print_groups(status: &Status) {
    let member = |m: &Member| match (m.silent, m.voter, m.lag) {
        (true, _, _) => format!("{} (silent)", m.node),
        (false, true, 0) => m.node.to_string(),
        (false, true, lag) => format!("{} ({lag} behind)", m.node),
        (false, false, lag) => format!("{} (learner, {lag} behind)", m.node),
    };
    output::table(
        ["GROUP", "ROLE", "LEADER", "EPOCH", "APPLIED", "MEMBERS"],
        status.groups.iter().map(|group| {
            [
                format!("{} {}", group.group, group.name),
                group.role.clone(),
                group.leader.map_or("none".to_owned(), |leader| leader.to_string()),
                group.epoch.to_string(),
                group.applied.to_string(),
                group.members.iter().map(member).collect::<Vec<_>>().join(", "),
            ]
        }),
    );
}

fn shown_ranges(ranges: &BTreeMap<String, u64>) -> String {
    let shown: Vec<String> = ranges.iter().map(|(part, count)| format!("{part} {count}")).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

/// What happens at all, by its name in the JSON.
fn shown_rates(rates: &BTreeMap<String, f64>) -> String {
    let busy = rates.iter().filter(|(_, rate)| **rate >= 0.05);
    let shown: Vec<String> = busy.map(|(name, rate)| format!("{} {rate:.1}", name.replace('_', " "))).collect();
    if shown.is_empty() { "idle".to_owned() } else { shown.join(", ") }
}

fn uptime(up: Duration) -> String {
    match up.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min", s / 60),
        s @ 3_600..86_400 => format!("{} h {} min", s / 3_600, s / 60 % 60),
        s => format!("{} d {} h", s / 86_400, s / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uptime_has_the_units_of_its_size() {
        let shown: Vec<String> = [59, 60, 7_260, 180_000].map(|s| uptime(Duration::from_secs(s))).into();
        assert_eq!(shown, ["59 s", "1 min", "2 h 1 min", "2 d 2 h"]);
    }

    #[test]
    fn the_platforms_own_namespaces_are_told_from_others() {
        let shown = |namespaces, platform_namespaces| {
            shown_placement(&Placement {
                role: "leading".to_owned(),
                leader: Some("a:1".to_owned()),
                epoch: Some(1),
                namespaces,
                platform_namespaces,
                owners: 4,
                ranges: 9,
            })
        };
        let all =
            "placement: leading (epoch 1) · leader a:1 · 2 namespaces, all the platform's own · 4 owners, 9 ranges";
        assert_eq!(shown(2, 2), all);
        assert!(shown(3, 2).contains("· 3 namespaces, 2 of them the platform's own ·"), "{}", shown(3, 2));
        assert!(shown(0, 0).contains("· 0 namespaces ·"));
    }

    #[test]
    fn what_does_not_happen_is_not_shown() {
        let rates = [("store_calls", 12.34), ("cell_calls", 0.0), ("notifications", 0.04)];
        let rates: BTreeMap<String, f64> = rates.map(|(name, rate)| (name.to_owned(), rate)).into();
        assert_eq!(shown_rates(&rates), "store calls 12.3");
        assert_eq!(shown_rates(&BTreeMap::new()), "idle");
    }
}
