//! What happens in a world, and how often it did.

use super::MS;
use tidings_base::Seeded;

/// What happens in a world besides the usual.
pub struct Plan {
    pub(super) wipe_at: Option<u64>,
    pub(super) reset_at: Option<u64>,
    pub(super) loss: f64,
    pub(super) hooks: bool,
    /// Storage is cloned. Whoever is superseded learns that with its next heartbeat at the latest, so there are some.
    pub(super) clones: bool,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut rng = Seeded::new(seed).fork("plan");
        let at = |rng: &mut Seeded| rng.between(4_000, 14_000) * MS;
        Plan {
            wipe_at: rng.one_in(3).then(|| at(&mut rng)),
            reset_at: rng.one_in(3).then(|| at(&mut rng)),
            loss: [0.0, 0.05, 0.3][rng.below(3) as usize],
            hooks: rng.one_in(4),
            clones: rng.one_in(4),
        }
    }
}

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(super) published: u64,
    pub(super) notified: u64,
    pub(super) unknown: u64,
    pub(super) moved: u64,
    pub(super) crashed: u64,
    pub(super) wiped: u64,
    pub(super) reset: u64,
    pub(super) row_failures: u64,
    pub(super) answers_withheld: u64,
    pub(super) scratched: u64,
    pub(super) collected: u64,
    pub(super) not_registered: u64,
    pub(super) restarts: u64,
    pub(super) superseded: u64,
    pub(super) refused: u64,
}

impl Counts {
    fn list(&self) -> [u64; 15] {
        let Counts { published, notified, unknown, moved, crashed, wiped, reset, row_failures, .. } = *self;
        let Counts { answers_withheld, scratched, collected, not_registered, restarts, superseded, refused, .. } =
            *self;
        [
            published,
            notified,
            unknown,
            moved,
            crashed,
            wiped,
            reset,
            row_failures,
            answers_withheld,
            scratched,
            collected,
            not_registered,
            restarts,
            superseded,
            refused,
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        self.published += other.published;
        self.notified += other.notified;
        self.unknown += other.unknown;
        self.moved += other.moved;
        self.crashed += other.crashed;
        self.wiped += other.wiped;
        self.reset += other.reset;
        self.row_failures += other.row_failures;
        self.answers_withheld += other.answers_withheld;
        self.scratched += other.scratched;
        self.collected += other.collected;
        self.not_registered += other.not_registered;
        self.restarts += other.restarts;
        self.superseded += other.superseded;
        self.refused += other.refused;
    }

    pub fn all_happened(&self) -> bool {
        self.list().iter().all(|count| *count > 0)
    }
}
