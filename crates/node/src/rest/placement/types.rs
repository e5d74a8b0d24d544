//! Placement's answers in JSON.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange};
use tidings_client::placement::{Hint, Leased};
use tidings_wire::v1;
use utoipa::ToSchema;

/// A point of the ring: 16 hexadecimal digits.
pub(in crate::rest) fn point(at: u64) -> String {
    format!("{at:016x}")
}

/// The same back: all sixteen digits, for fewer could stand for the beginning as well as for the end.
pub(in crate::rest) fn point_of(text: &[u8]) -> Option<u64> {
    let fits = text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    std::str::from_utf8(text).ok().filter(|_| fits).and_then(|text| u64::from_str_radix(text, 16).ok())
}

pub(in crate::rest) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How a namespace is to behave; what is left out has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::rest) struct NewNamespace {
    /// The owner's lease; 60 s unless it is said, an hour at most.
    #[schema(example = 12000)]
    pub lease_ms: Option<u32>,
    /// How often owners renew; every quarter of the lease unless it is said, every 100 ms at most.
    #[schema(example = 2500)]
    pub renew_ms: Option<u32>,
    /// `paper`, `hottest` (unless it is said) or `none`.
    pub policy: Option<String>,
    /// Points on the ring that an owner begins with, 1 to 1024; 64 unless it is said.
    pub virtual_nodes: Option<u32>,
    /// How long a drain may take before what is left is lost, a second to a day; 60 s unless it is said.
    pub drain_ms: Option<u32>,
    /// How often the policy looks at the measured load, every second to once a day; every 60 s unless it is said.
    pub rebalance_ms: Option<u32>,
}

impl NewNamespace {
    /// The same as it travels, where zero and nothing stand for the defaults: nobody may ask for these by name.
    pub(in crate::rest) fn checked(self) -> Result<v1::NamespaceConfig, Error> {
        let said = |key: &str, code: &'static str, value: Option<u32>| match value {
            Some(0) => Err(Error::new(code, Class::Invalid, format!("`{key}` cannot be 0"))
                .hint("Leave it out for the default; /openapi.json describes it.")),
            value => Ok(value.unwrap_or_default()),
        };
        let policy = match self.policy {
            Some(policy) if policy.is_empty() => {
                return Err(Error::new("placement.bad_policy", Class::Invalid, "`policy` is empty")
                    .hint("Use `hottest`, `paper` or `none`, or leave it out."));
            }
            policy => policy.unwrap_or_default(),
        };
        Ok(v1::NamespaceConfig {
            lease_ms: said("lease_ms", "placement.bad_times", self.lease_ms)?,
            renew_ms: said("renew_ms", "placement.bad_times", self.renew_ms)?,
            policy,
            virtual_nodes: said("virtual_nodes", "placement.bad_virtual_nodes", self.virtual_nodes)?,
            drain_ms: said("drain_ms", "placement.bad_times", self.drain_ms)?,
            rebalance_ms: said("rebalance_ms", "placement.bad_times", self.rebalance_ms)?,
        })
    }
}

/// How a namespace behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(in crate::rest) struct NamespaceConfig {
    /// The owner's lease.
    #[schema(example = 12000)]
    pub lease_ms: u32,
    /// How often owners renew.
    #[schema(example = 2500)]
    pub renew_ms: u32,
    /// `paper`, `hottest` or `none`.
    pub policy: String,
    /// Points on the ring that an owner begins with.
    pub virtual_nodes: u32,
    /// How long a drain may take before what is left is lost.
    pub drain_ms: u32,
    /// How often the policy looks at the measured load.
    pub rebalance_ms: u32,
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
    /// Which of all namespaces that ever had this name: 16 hexadecimal digits. Another one means that everything was lost.
    #[schema(example = "9f2c33a1d04e7b15")]
    pub instance: String,
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
            instance: point(info.instance),
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
    /// Its points on the ring: policies change them.
    pub points: u32,
    /// Requests a second, as it says; 0 of one that is gone.
    pub rate: f64,
    /// Until its leases end at the manager.
    pub remaining_ms: u64,
    /// Since the leader last heard of it; absent if it has not since it leads.
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
            points: owner.virtual_nodes,
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
    /// The busiest owner as a multiple of the mean; 1 if nothing was measured.
    pub max_over_mean_before: f64,
    pub max_over_mean_after: f64,
    /// Requests a second of all owners, as measured.
    pub rate: f64,
    /// Ranges that are left where they are, since they changed hands within the last two rounds of the policy.
    pub settling: u32,
    /// Until the last of these has settled.
    pub settles_ms: u64,
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
    fn points_are_hexadecimal_digits_and_nothing_else() {
        for at in [0, 7, u64::MAX] {
            assert_eq!(point_of(point(at).as_bytes()), Some(at));
        }
        assert_eq!(point_of(b"00000000000000Ff"), Some(255));
        for wrong in ["", "00ff", "+000000000000001", "0x00000000000001", "000000000000000g", "00000000000000001"] {
            assert_eq!(point_of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn no_setting_of_a_namespace_is_zero_by_name() {
        let made = |json: serde_json::Value| serde_json::from_value::<NewNamespace>(json).unwrap().checked();
        assert_eq!(made(serde_json::json!({})), Ok(v1::NamespaceConfig::default()));
        assert_eq!(made(serde_json::json!({"lease_ms": 12_000})).unwrap().lease_ms, 12_000);
        for (key, code) in [
            ("lease_ms", "placement.bad_times"),
            ("renew_ms", "placement.bad_times"),
            ("drain_ms", "placement.bad_times"),
            ("rebalance_ms", "placement.bad_times"),
            ("virtual_nodes", "placement.bad_virtual_nodes"),
        ] {
            assert_eq!(made(serde_json::json!({ key: 0 })).unwrap_err().code, code, "{key}");
        }
        assert_eq!(made(serde_json::json!({"policy": ""})).unwrap_err().code, "placement.bad_policy");
    }

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
