//! Placement's answers in JSON.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{KeyHash, KeyRange};
use tidings_client::placement::{Hint, Leased};
use tidings_wire::v1;
use utoipa::ToSchema;

/// A point of the ring: 16 hexadecimal digits.
pub(in crate::rest) fn point(at: u64) -> String {
    format!("{at:016x}")
}

pub(in crate::rest) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How a namespace behaves; zero and empty stand for the defaults where one is made, and are told as what they stand for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::rest) struct NamespaceConfig {
    /// The owner's lease; 0 = 60 s.
    #[schema(example = 12000)]
    pub lease_ms: u32,
    /// How often owners renew; 0 = a quarter of the lease.
    #[schema(example = 2500)]
    pub renew_ms: u32,
    /// `paper`, `hottest` or `none`; empty = `hottest`.
    pub policy: String,
    /// Points on the ring that an owner begins with; 0 = 64.
    pub virtual_nodes: u32,
    /// How long a drain may take before what is left is lost; 0 = 60 s.
    pub drain_ms: u32,
    /// How often the policy looks at the measured load; 0 = every 60 s.
    pub rebalance_ms: u32,
}

impl From<NamespaceConfig> for v1::NamespaceConfig {
    fn from(config: NamespaceConfig) -> v1::NamespaceConfig {
        v1::NamespaceConfig {
            lease_ms: config.lease_ms,
            renew_ms: config.renew_ms,
            policy: config.policy,
            virtual_nodes: config.virtual_nodes,
            drain_ms: config.drain_ms,
            rebalance_ms: config.rebalance_ms,
        }
    }
}

impl From<v1::NamespaceConfig> for NamespaceConfig {
    fn from(config: v1::NamespaceConfig) -> NamespaceConfig {
        let config = tidings_placement::config::effective(&config);
        NamespaceConfig {
            lease_ms: config.lease_ms,
            renew_ms: config.renew_ms,
            policy: config.policy,
            virtual_nodes: config.virtual_nodes,
            drain_ms: config.drain_ms,
            rebalance_ms: config.rebalance_ms,
        }
    }
}

/// The namespaces of an application.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Namespaces {
    pub namespaces: Vec<Namespace>,
}

/// A namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Namespace {
    pub namespace: String,
    pub config: NamespaceConfig,
    /// Owners that count as alive.
    pub owners: u32,
    pub ranges: u32,
    /// Ranges that nobody holds.
    pub unowned: u32,
    /// Clean moves under way.
    pub moving: u32,
    /// The last change that was told.
    pub lsn: u64,
    /// Of the manager that leads.
    pub epoch: u64,
    /// Why its leases may not outlast a manager's death; absent = they do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

impl From<v1::NamespaceInfo> for Namespace {
    fn from(info: v1::NamespaceInfo) -> Namespace {
        Namespace {
            namespace: info.namespace,
            config: info.config.unwrap_or_default().into(),
            owners: info.owners,
            ranges: info.ranges,
            unowned: info.unowned,
            moving: info.moving,
            lsn: info.lsn,
            epoch: info.epoch,
            warning: info.warning,
        }
    }
}

/// The whole table of a namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Table {
    #[serde(flatten)]
    pub namespace: Namespace,
    /// What keys are hashed with.
    #[schema(example = "xxh3-64/0")]
    pub hash: String,
    pub table: Vec<TableRange>,
}

/// A range of the ring.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct TableRange {
    /// Its first point.
    #[schema(example = "0000000000000000")]
    pub start: String,
    /// Its last point.
    #[schema(example = "00ffffffffffffff")]
    pub last: String,
    /// Who holds it; absent = nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub lease: u32,
    /// The change that gave it its holder, and the one at which its state was last lost.
    pub changed_lsn: u64,
    pub lost_lsn: u64,
    /// Requests a second, as measured.
    pub rate: f64,
    /// A policy has put it where it is.
    pub pinned: bool,
}

impl From<v1::TableReply> for Table {
    fn from(table: v1::TableReply) -> Table {
        let names: BTreeMap<u32, String> = table.owners.into_iter().map(|owner| (owner.index, owner.id)).collect();
        let range = |range: v1::TableRange| TableRange {
            start: point(range.start),
            last: point(range.last),
            owner: names.get(&range.owner).cloned(),
            lease: range.lease,
            changed_lsn: range.changed_lsn,
            lost_lsn: range.lost_lsn,
            rate: range.rate,
            pinned: range.pinned,
        };
        Table {
            namespace: table.info.unwrap_or_default().into(),
            hash: KeyHash::FUNCTION.to_owned(),
            table: table.ranges.into_iter().map(range).collect(),
        }
    }
}

/// The ring as a picture shows it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Ring {
    #[serde(flatten)]
    pub namespace: Namespace,
    /// All owners that hold something, or could.
    pub shares: Vec<Share>,
    /// Around the ring, from its beginning.
    pub arcs: Vec<Arc>,
}

/// How much of the ring an owner holds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Share {
    pub owner: String,
    pub address: String,
    pub draining: bool,
    /// Of the whole, 0 to 1.
    pub share: f64,
    pub ranges: u32,
    /// Requests a second in its ranges, as measured.
    pub rate: f64,
}

/// A piece of the ring that one owner holds, or nobody.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Arc {
    /// Where it begins, as a part of the whole: 0 to 1.
    pub from: f64,
    /// How long it is, as a part of the whole.
    pub share: f64,
    /// Absent = nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// Of the whole ring, as a part of 1.
fn part(points: u128) -> f64 {
    points as f64 / KeyRange::FULL.len() as f64
}

impl Ring {
    pub(in crate::rest) fn of(table: &v1::TableReply) -> Ring {
        let owner = |index: u32| table.owners.iter().find(|owner| owner.index == index).map(|owner| owner.id.clone());
        let mut arcs: Vec<Arc> = Vec::new();
        let mut sums: BTreeMap<u32, (u128, u32, f64)> = BTreeMap::new();
        for range in &table.ranges {
            let points = u128::from(range.last.saturating_sub(range.start)) + 1;
            let sum = sums.entry(range.owner).or_default();
            *sum = (sum.0 + points, sum.1 + 1, sum.2 + range.rate);
            let owner = owner(range.owner);
            match arcs.last_mut() {
                Some(arc) if arc.owner == owner => arc.share += part(points),
                _ => arcs.push(Arc { from: part(range.start.into()), share: part(points), owner }),
            }
        }
        let shares = table.owners.iter().map(|owner| {
            let (points, ranges, rate) = sums.get(&owner.index).copied().unwrap_or_default();
            Share {
                owner: owner.id.clone(),
                address: owner.address.clone(),
                draining: owner.draining,
                share: part(points),
                ranges,
                rate,
            }
        });
        Ring { namespace: table.info.clone().unwrap_or_default().into(), shares: shares.collect(), arcs }
    }
}

/// Where a key is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Placed {
    /// Where the key stands on the ring.
    pub hash: String,
    /// Its owner; absent = nobody owns it at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Where to ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The number of its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<u32>,
    /// How long ago a manager last confirmed the table.
    pub age_ms: u64,
    /// The last change that the table knows.
    pub lsn: u64,
}

impl Placed {
    pub(in crate::rest) fn new(hash: KeyHash, hint: Option<&Hint<'_>>, age: Duration, lsn: u64) -> Placed {
        Placed {
            hash: point(hash.0),
            owner: hint.map(|hint| hint.owner().to_owned()),
            address: hint.map(|hint| hint.address().to_owned()),
            lease: hint.map(|hint| hint.lease().get()),
            age_ms: millis(age),
            lsn,
        }
    }
}

/// Owners of a namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Owners {
    pub owners: Vec<OwnerInfo>,
}

/// An owner.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct OwnerInfo {
    pub owner: String,
    pub address: String,
    /// The number of its process among all that had its name.
    pub incarnation: u64,
    pub live: bool,
    pub draining: bool,
    pub ranges: u32,
    /// Of the ring, 0 to 1.
    pub share: f64,
    /// Requests a second, as it says.
    pub rate: f64,
    /// Until its leases end at the manager.
    pub remaining_ms: u64,
    /// Since the manager last heard of it, or took over; absent when that is longer ago than a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
}

impl From<v1::OwnerInfo> for OwnerInfo {
    fn from(info: v1::OwnerInfo) -> OwnerInfo {
        let owner = info.owner.unwrap_or_default();
        OwnerInfo {
            owner: owner.id,
            address: owner.address,
            incarnation: owner.incarnation,
            live: info.live,
            draining: owner.draining,
            ranges: info.ranges,
            share: f64::from(info.share_ppm) / 1e6,
            rate: info.rate,
            remaining_ms: info.remaining_ms,
            heard_ms: info.heard_ms,
        }
    }
}

/// What a policy did, or would do.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Rebalanced {
    pub moves: Vec<Planned>,
    pub max_over_mean_before: f64,
    pub max_over_mean_after: f64,
}

/// One thing that a policy does.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct Planned {
    /// `split`, `move`, `merge`, `isolate` or `points`.
    pub kind: String,
    pub start: String,
    pub last: String,
    pub from: String,
    pub to: String,
    pub rate: f64,
    /// Of `points`: how many `to` is to have.
    pub points: u32,
}

impl From<v1::PlannedMove> for Planned {
    fn from(planned: v1::PlannedMove) -> Planned {
        let range = planned.range.unwrap_or_default();
        Planned {
            kind: planned.kind,
            start: point(range.start),
            last: point(range.last),
            from: planned.from,
            to: planned.to,
            rate: planned.rate,
            points: planned.points,
        }
    }
}

/// A range that an application may serve.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct HeldRange {
    pub start: String,
    pub last: String,
    pub lease: u32,
    /// For how long it may be served without asking again, dated from before the request.
    pub remaining_ms: u64,
}

impl From<(Leased, Duration)> for HeldRange {
    fn from((leased, remaining): (Leased, Duration)) -> HeldRange {
        HeldRange {
            start: point(leased.range.start.0),
            last: point(leased.range.last.0),
            lease: leased.lease.get(),
            remaining_ms: millis(remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_joins_neighbours_and_is_whole() {
        let quarter = u64::MAX / 4;
        let range = |n: u64, owner| v1::TableRange {
            start: n * quarter + n,
            last: (n + 1) * quarter + n,
            owner,
            ..Default::default()
        };
        let owner = |index: u32, id: &str| v1::TableOwner { index, id: id.into(), ..Default::default() };
        let table = v1::TableReply {
            info: None,
            ranges: vec![range(0, 1), range(1, 1), range(2, 0), range(3, 2)],
            owners: vec![owner(1, "a"), owner(2, "b"), owner(3, "c")],
            next: 0,
        };
        let ring = Ring::of(&table);
        let arcs: Vec<_> = ring.arcs.iter().map(|arc| (arc.owner.as_deref(), (arc.share * 100.0).round())).collect();
        assert_eq!(arcs, [(Some("a"), 50.0), (None, 25.0), (Some("b"), 25.0)]);
        assert!((ring.arcs.iter().map(|arc| arc.share).sum::<f64>() - 1.0).abs() < 1e-9);
        let shares: Vec<_> = ring.shares.iter().map(|share| (share.owner.as_str(), share.ranges)).collect();
        assert_eq!(shares, [("a", 2), ("b", 1), ("c", 0)]);
    }
}
