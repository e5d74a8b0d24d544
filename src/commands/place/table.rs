//! `tidings place table|owners`.

use super::connect::with_placement;
use crate::cli::{Remote, quoted};
use crate::output;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_base::{Class, Error, KeyHash, KeyRange};
use tidings_wire::v1::{OwnerInfo, TableRange};

/// Shows the table, or what one owner holds of it.
pub fn table(namespace: &str, owner: Option<&str>, remote: &Remote) -> Result<(), Error> {
    let reply = with_placement(remote, async |placement| placement.table(namespace).await)?;
    let owners: BTreeMap<u32, &str> = reply.owners.iter().map(|owner| (owner.index, owner.id.as_str())).collect();
    if let Some(wanted) = owner
        && !owners.values().any(|id| *id == wanted)
    {
        return Err(no_owner(namespace, wanted));
    }
    let name = |range: &TableRange| owners.get(&range.owner).copied();
    let ranges: Vec<&TableRange> =
        reply.ranges.iter().filter(|range| owner.is_none() || name(range) == owner).collect();
    if remote.json {
        let rows: Vec<Value> = ranges.iter().map(|range| row(range, name(range))).collect();
        let info = reply.info.unwrap_or_default();
        let instance = format!("{:016x}", info.instance);
        let (epoch, lsn) = (info.epoch, info.lsn);
        output::json(&json!({
            "namespace": namespace, "instance": instance, "epoch": epoch, "lsn": lsn, "ranges": rows,
        }));
        return Ok(());
    }
    output::table(
        ["FROM", "TO", "SHARE", "OWNER", "LEASE", "RATE", "CHANGED", "LOST"],
        ranges.iter().map(|range| {
            let pinned = if range.pinned { " (pinned)" } else { "" };
            [
                format!("{:016x}", range.start),
                format!("{:016x}", range.last),
                percent(share(range)),
                format!("{}{pinned}", name(range).unwrap_or("nobody")),
                range.lease.to_string(),
                format!("{:.1}/s", range.rate),
                range.changed_lsn.to_string(),
                range.lost_lsn.to_string(),
            ]
        }),
    );
    Ok(())
}

fn row(range: &TableRange, owner: Option<&str>) -> Value {
    json!({
        "start": format!("{:016x}", range.start),
        "last": format!("{:016x}", range.last),
        "owner": owner,
        "lease": range.lease,
        "rate": range.rate,
        "pinned": range.pinned,
        "changed_lsn": range.changed_lsn,
        "lost_lsn": range.lost_lsn,
    })
}

fn share(range: &TableRange) -> f64 {
    KeyRange::new(KeyHash(range.start), KeyHash(range.last)).len() as f64 / KeyRange::FULL.len() as f64
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// No owner of that name is known.
pub fn no_owner(namespace: &str, name: &str) -> Error {
    let what = format!("no owner `{name}` is known in `{namespace}`");
    Error::new("placement.no_owner", Class::NotFound, what)
        .hint(format!("`tidings place owners {}` lists them.", quoted(namespace)))
}

/// Shows owners.
pub fn owners(namespace: &str, remote: &Remote) -> Result<(), Error> {
    let owners = with_placement(remote, async |placement| placement.owners(namespace).await)?;
    if remote.json {
        output::json(&owners.iter().map(owner).collect::<Vec<_>>());
        return Ok(());
    }
    output::table(
        ["OWNER", "ADDRESS", "STATE", "HEARD", "RANGES", "SHARE", "RATE", "LEASES LAST", "POINTS", "INCARNATION"],
        owners.iter().map(|info| {
            let owner = info.owner.clone().unwrap_or_default();
            [
                owner.id,
                owner.address,
                state(info).to_owned(),
                info.heard_ms.map_or("not since the leader began".to_owned(), |ms| format!("{} ago", seconds(ms))),
                info.ranges.to_string(),
                percent(f64::from(info.share_ppm) / 1e6),
                format!("{:.1}/s", info.rate),
                seconds(info.remaining_ms),
                owner.virtual_nodes.to_string(),
                owner.incarnation.to_string(),
            ]
        }),
    );
    Ok(())
}

/// A time as people read it.
pub fn seconds(milliseconds: u64) -> String {
    format!("{}.{} s", milliseconds / 1_000, milliseconds % 1_000 / 100)
}

/// An owner as scripts read it.
pub fn owner(info: &OwnerInfo) -> Value {
    let owner = info.owner.clone().unwrap_or_default();
    json!({
        "owner": owner.id,
        "address": owner.address,
        "state": state(info),
        "ranges": info.ranges,
        "share_ppm": info.share_ppm,
        "rate": info.rate,
        "remaining_ms": info.remaining_ms,
        "heard_ms": info.heard_ms,
        "virtual_nodes": owner.virtual_nodes,
        "incarnation": owner.incarnation,
    })
}

fn state(info: &OwnerInfo) -> &'static str {
    match (info.live, info.owner.as_ref().is_some_and(|owner| owner.draining)) {
        (true, false) => "live",
        (true, true) if info.ranges == 0 => "drained",
        (true, true) => "draining",
        (false, _) => "gone",
    }
}
