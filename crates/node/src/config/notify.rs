//! What can be set about Notify.

use super::{Placement, Time, bad};
use crate::notify::{Format, Hook};
use crate::principal::AppName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::Error;
use tidings_notify::registrar::{Hooks, Options};
use tidings_placement::config::{FailOver, Times};

/// The longest that calls may be gathered: beyond it the delay would be what is measured.
const LONGEST_GATHER: Duration = Duration::from_millis(500);

/// The least that deletions are remembered. Whoever asks the store gives up after 10 s, and what it gave up may still be done as
/// long after: a deletion that was forgotten by then would be undone. It also keeps the looks through the store, a tenth of it
/// apart, from following each other without a pause.
const SHORTEST_TOMBSTONES: Duration = Duration::from_secs(20);

/// Notify: who is told of what. All nodes should be told the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// How long a node may serve its ranges of objects and clients without renewing: so long a dead node's clients and
    /// objects wait for another. Read once, when the cluster is new. 12 s: the shortest that outlasts a fail-over of the
    /// managers.
    pub lease: Time,
    /// How often it renews. 2.5 s.
    pub renew: Time,
    /// How many clients one principal may have. 256: a user's devices and tabs. Raise it where many clients share one
    /// application key.
    pub ids: u32,
    /// How many objects one client may register. 50,000.
    pub registrations: usize,
    /// After so much silence a client counts as offline, though its connection is open. 80 min: four heartbeats.
    pub offline_after: Time,
    /// Clients that have been offline for so long are forgotten. 7 days.
    pub forget_after: Time,
    /// The same for clients that keep nothing across restarts. 1 h.
    pub forget_unkept_after: Time,
    /// What was deleted is remembered in the store for so long: a write that is later than this would be new again. 10 days;
    /// 20 s at least.
    pub keep_tombstones: Time,
    /// How often every registration is taken to its matcher again, so that a loss in the store that nobody noticed does
    /// not last. 1 day.
    pub scrub_every: Time,
    /// How often a new key for clients' tokens is made; the three newest are accepted. 30 days: a token lives for two
    /// months at least.
    pub rotate_keys_every: Time,
    /// How long calls between machines are gathered under load.
    pub gather: Gather,
    /// Who is asked what an application's clients may register and hear, by application.
    pub hooks: BTreeMap<String, Hook>,
    /// How an application's own events are read as publications, by application.
    pub formats: BTreeMap<String, Format>,
}

/// The longest that calls of a stage wait for others that go the same way. Nothing waits while there is little to do; the
/// wait grows with what is under way already. The paper's are 500 ms and 200 ms; 5 ms keep latency low and are enough for
/// batches under load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gather {
    /// Publications on their way to matchers.
    pub bridge: Time,
    /// Notifications on their way to registrars.
    pub matcher: Time,
    /// Registrations on their way to matchers.
    pub registrar: Time,
}

impl Default for Gather {
    fn default() -> Gather {
        let longest = Time::millis(5);
        Gather { bridge: longest, matcher: longest, registrar: longest }
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify {
            lease: Time::seconds(12),
            renew: Time::millis(2_500),
            ids: 256,
            registrations: 50_000,
            offline_after: Time::seconds(80 * 60),
            forget_after: Time::seconds(7 * 24 * 3_600),
            forget_unkept_after: Time::seconds(3_600),
            keep_tombstones: Time::seconds(10 * 24 * 3_600),
            scrub_every: Time::seconds(24 * 3_600),
            rotate_keys_every: Time::seconds(30 * 24 * 3_600),
            gather: Gather::default(),
            hooks: BTreeMap::new(),
            formats: BTreeMap::new(),
        }
    }
}

impl Notify {
    pub(super) fn check(&self, placement: &Placement) -> Result<(), Error> {
        let times = [
            ("lease", self.lease),
            ("renew", self.renew),
            ("offline_after", self.offline_after),
            ("forget_after", self.forget_after),
            ("forget_unkept_after", self.forget_unkept_after),
            ("keep_tombstones", self.keep_tombstones),
            ("scrub_every", self.scrub_every),
            ("rotate_keys_every", self.rotate_keys_every),
        ];
        if let Some((name, _)) = times.into_iter().find(|(_, time)| time.0.is_zero()) {
            return Err(bad(format!("`notify.{name}` is zero")));
        }
        if self.ids == 0 || self.registrations == 0 {
            return Err(bad("`notify.ids` or `notify.registrations` is 0, so nobody could be told anything"));
        }
        if self.keep_tombstones.0 < SHORTEST_TOMBSTONES {
            return Err(bad(format!("`notify.keep_tombstones` is {}", self.keep_tombstones)).hint(
                "Use at least 20s: a write may reach the store so late, and would undo a deletion that is forgotten. The default \
                 is 10d.",
            ));
        }
        let Gather { bridge, matcher, registrar } = self.gather;
        if [bridge, matcher, registrar].iter().any(|time| time.0 > LONGEST_GATHER) {
            return Err(bad("`notify.gather` has more than 500 ms"));
        }
        let mut apps = self.hooks.keys().chain(self.formats.keys());
        apps.try_for_each(|app| AppName::parse(app).map(drop))?;
        self.hooks.iter().try_for_each(|(app, hook)| hook.check(app))?;
        self.formats.iter().try_for_each(|(app, format)| format.check(app))?;
        self.outlasts(placement.fail_over())
    }

    /// F10 of placement: a namespace whose leases are too short is refused, and without its namespace Notify is dead.
    fn outlasts(&self, fail_over: FailOver) -> Result<(), Error> {
        let times = Times { lease: self.lease.into(), renew: self.renew.into() };
        times.check(&fail_over).map_err(|_| {
            let needed = Time(fail_over.session + fail_over.cell + fail_over.round_trip);
            bad(format!(
                "`notify.lease` is {}, renewed every {} (`notify.renew`): it does not outlast a fail-over of the managers",
                self.lease, self.renew
            ))
            .hint(format!(
                "After a renewal it must last for another {needed} (`placement.session`, `.fail_over` and `.round_trip` \
                 together): 12s, renewed every 2500ms, does so with their defaults."
            ))
        })
    }

    /// How registrars behave, beside their seed.
    pub fn registrar(&self, seed: u64, data_centre: String) -> Options {
        Options {
            seed,
            data_centre,
            offline_after: self.offline_after.into(),
            collect_after: self.forget_after.into(),
            collect_unpersisted_after: self.forget_unkept_after.into(),
            max_registrations: self.registrations,
            max_ended: Options::default().max_ended.max(2 * self.registrations as u64),
            max_ids: self.ids,
            scrub_every: self.scrub_every.into(),
            hooks: match self.hooks.is_empty() {
                true => Hooks::None,
                false => Hooks::Of(self.hooks.keys().cloned().collect()),
            },
            ..Options::default()
        }
    }
}
