//! What happens in a world, and how often it did.

use super::MS;
use tidings_base::Seeded;
use tidings_sketch::replica::liar::Sin;

/// What happens in a world besides the usual.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub liars: usize,
    pub sin: Sin,
    /// Entries that tables are made for: few, so that much is evicted.
    pub entries: usize,
    /// Bits of tags that count: few, so that requests are taken for one another.
    pub tag_bits: u32,
    /// Whether ranges move.
    pub moves: bool,
    /// Whether sketchers crash.
    pub crashes: bool,
    /// When the group begins a new life.
    pub rebirth_at: Option<u64>,
    /// Whether an attacker sends captured replies again.
    pub replays: bool,
    /// Whether replicas fall far behind.
    pub lags: bool,
    /// What goes along with a range that moves.
    pub carries: Carries,
    /// Whether members fail and do not lie: one of them is asked for the newest, and what it says has the place of the state that it
    /// stands on.
    pub tolerant: bool,
}

/// Whether entries go along with a range that moves, and when they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    Nothing,
    /// Once nobody answers for the range any more (rule J). Some moves are called off then, and its owner answers again under
    /// the lease that it had: what it carried is nobody's.
    Frozen,
    /// The rule left out: what a move that was called off had carried goes along with the next one.
    Leaked,
    /// The rule left out: while its owner still does.
    Early,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut rng = Seeded::new(seed).fork("plan");
        Plan {
            seed,
            liars: 1,
            sin: Sin::ALL[seed as usize % Sin::ALL.len()],
            entries: [10, 200][rng.below(2) as usize],
            tag_bits: [2, 32][usize::from(!rng.one_in(4))],
            moves: !rng.one_in(3),
            crashes: rng.one_in(3),
            rebirth_at: rng.one_in(3).then(|| rng.between(1_000, 3_000) * MS),
            replays: rng.one_in(2),
            lags: !rng.one_in(4),
            carries: Carries::Nothing,
            tolerant: false,
        }
    }

    /// The same before a group whose members do not lie.
    pub fn tolerant(seed: u64) -> Plan {
        Plan { tolerant: true, liars: 0, ..Plan::of(seed) }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How often what happened.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub(super) $name: u64),* }

        impl Counts {
            pub fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }

            pub fn fast(&self) -> u64 {
                self.fast
            }

            /// Whether reads were fast, some of them stale, and others were answered with what was and not believed.
            pub fn lagging_members_were_asked(&self) -> bool {
                [self.fast, self.agreed, self.stale, self.mismatches, self.moved, self.reborn].iter().all(|count| *count > 0)
            }

            pub fn all_happened(&self) -> bool {
                [$(self.$name),*].iter().all(|count| *count > 0)
            }
        }
    };
}

counts! {
    reads,
    fast,
    agreed,
    stale,
    writes,
    errors,
    refused,
    moved,
    crashed,
    reborn,
    replayed,
    mismatches,
    silences,
    redelivered,
    own_writes_read,
}
