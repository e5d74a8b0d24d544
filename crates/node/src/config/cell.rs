//! What can be set about the cell.

use super::{Config, Member, Time, bad, check_address};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidings_base::Error;
use tidings_cell::master::Options;
use tidings_cell::session::STIR;

/// The longest lease of a session: the bound of the agreed ceiling.
const LONGEST_LEASE: Time = Time::seconds(60);

/// R12: a master has new keys made once a day. 4,096 are kept, so that a handle or sequencer can be eleven years old.
const ROTATE_KEYS: Duration = Duration::from_secs(24 * 3_600);

/// The cell: sessions, leases, locks. All members should be told the same, since any of them may be master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cell {
    /// The lease of a session that asks for none. 12 s: a session survives a fail-over and a few lost packets, and its
    /// KeepAlives cost one message in several seconds. A dead holder's locks are freed no sooner than this.
    pub lease: Time,
    /// The lease under which clients use what they have cached, renewed by each connection twice a second. 1800 ms: a
    /// write waits no longer than this for a client that is gone, and a new master opens as soon as that.
    pub cache_lease: Time,
    /// A session without a handle and without a call for this long is ended. 1 min: long enough for a person at a
    /// terminal, short enough that forgotten ones do not pile up. No less: clients that live on what they have cached make a
    /// call in half of that.
    pub idle: Time,
    /// The longest that the master holds a request for a lock before it lets the client ask again, with its place
    /// kept. 25 s: less than what network equipment lets pass in silence.
    pub wait: Time,
    /// Nodes that run (`serve --join`) and may take the place of a member that stays dead. None by default: a cluster
    /// does not change by itself unless it was told what to use.
    pub spares: Vec<Member>,
    /// Names, as `host:port`, that are looked up (DNS, hosts file) when a member stays dead: every node that runs
    /// (`serve --join`) at one of the addresses is a spare, whatever its number. None by default. A name that cannot be
    /// looked up is logged and looked up again. With TLS a spare's certificate must name its address.
    pub spare_names: Vec<String>,
    /// How long a member stays dead before the leader puts a spare in its place. 4 h: longer than a repair that
    /// brings the member back with its data.
    pub replace_after: Time,
    /// How many sessions this node holds for callers of REST, one for each principal; with more, the one that was idle
    /// longest is closed. 1,000: each costs a few KiB and a message in several seconds.
    pub rest_sessions: usize,
    /// How long such a session stays after its last call. 1 min: scripts that ask now and then share one.
    pub rest_idle: Time,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            lease: Time::seconds(12),
            cache_lease: Time::millis(1_800),
            idle: Time::seconds(60),
            wait: Time::seconds(25),
            spares: Vec::new(),
            spare_names: Vec::new(),
            replace_after: Time::seconds(4 * 3_600),
            rest_sessions: 1_000,
            rest_idle: Time::seconds(60),
        }
    }
}

impl Cell {
    pub(super) fn check(&self, config: &Config) -> Result<(), Error> {
        if self.lease > LONGEST_LEASE || self.lease < Time::seconds(1) {
            return Err(bad(format!("`cell.lease` is {}", self.lease)).hint("Use 1s to 60s."));
        }
        // A renewal that is a few heartbeats late must not empty caches; R6 wants it well below the lease.
        let least = config.timings.heartbeat.0 * 4;
        if self.cache_lease.0 < least || self.cache_lease.0 > self.lease.0 / 2 {
            return Err(bad(format!("`cell.cache_lease` is {}", self.cache_lease)).hint(
                "Use at least four times `timings.heartbeat` and at most half of `cell.lease`; the default is 1800ms.",
            ));
        }
        if self.wait.0 > Duration::from_secs(60) || self.wait.0.is_zero() {
            return Err(bad(format!("`cell.wait` is {}", self.wait)).hint("Use 1ms to 60s."));
        }
        if self.idle.0 < STIR * 2 {
            return Err(bad(format!("`cell.idle` is {}", self.idle)).hint("Use at least 1m."));
        }
        for (name, time) in [("replace_after", self.replace_after), ("rest_idle", self.rest_idle)] {
            if time.0.is_zero() {
                return Err(bad(format!("`cell.{name}` is zero")));
            }
        }
        if self.rest_sessions == 0 {
            return Err(bad("`cell.rest_sessions` is 0, so nobody could use the cell by REST"));
        }
        for name in &self.spare_names {
            check_address("cell.spare_names", name)?;
        }
        for spare in &self.spares {
            check_address("cell.spares.address", &spare.address)?;
            if spare.node == 0 || config.members.iter().any(|member| member.node == spare.node) {
                return Err(bad(format!("`cell.spares` names node {}, which is a member or nobody", spare.node))
                    .hint("A spare is a further node, with a number of its own, started with --join."));
            }
        }
        Ok(())
    }

    /// What the master is told.
    pub fn options(&self, config: &Config, secret: [u8; 32]) -> Options {
        Options {
            node: config.node_id(),
            secret,
            lease: self.lease.into(),
            cache_lease: self.cache_lease.into(),
            idle: self.idle.into(),
            wait: self.wait.into(),
            rotate: ROTATE_KEYS,
            alone: false,
            mutant: None,
        }
    }
}
