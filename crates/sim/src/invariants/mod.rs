//! What must hold, one claim a file, named by what it claims.
//!
//! Processes state facts; invariants watch them. An invariant counts what it checked, since one that never looked has
//! proved nothing: a run in which a count stays zero fails.

pub mod a_lapsed_lease_stays_lapsed;
pub mod a_masters_word_ends_with_its_epoch;
pub mod acknowledged_calls_take_effect_once;
pub mod acknowledged_changes_are_kept;
pub mod acknowledged_writes_survive;
pub mod an_event_follows_the_last_change;
pub mod an_operation_has_one_outcome;
pub mod answers_are_whole;
pub mod answers_fit_the_agreed_order;
pub mod answers_were_true;
pub mod applied_once_in_order;
pub mod batches_are_seen_whole;
pub mod calm_requests_are_answered;
pub mod changes_are_announced;
pub mod checked_resource_never_goes_back;
pub mod closed_handles_stay_closed;
pub mod commands_die_with_their_locks;
pub mod compare_and_set_replaces_what_it_saw;
pub mod correct_replicas_never_diverge;
pub mod cursors_are_sealed;
pub mod dropped_tables_stay_dropped;
pub mod ended_sessions_stay_ended;
pub mod ephemerals_end_with_their_sessions;
pub mod every_client_learns_the_latest_version;
pub mod everybody_returns_after_a_wipe;
pub mod fast_answers_were_agreed_on;
pub mod feed_delivers_every_entry;
pub mod fences_never_go_back;
pub mod forged_handles_open_nothing;
pub mod forged_tokens_open_nothing;
pub mod guarded_writes_end_with_their_locks;
pub mod hidden_records_stay_hidden;
pub mod lease_numbers_only_grow;
pub mod leases_are_dated_from_the_question;
pub mod leases_exclude_other_leaders;
pub mod live_queries_equal_fresh_reads;
pub mod live_queries_have_no_clock;
pub mod live_queries_never_go_back;
pub mod losses_are_told;
pub mod lost_locks_are_held_back;
pub mod lost_state_becomes_unknown;
pub mod no_cached_read_after_its_write_returned;
pub mod one_believer_per_key;
pub mod one_holder_per_exclusive_lock;
pub mod one_leader_per_epoch;
pub mod only_published_versions_are_told;
pub mod operations_end_once;
pub mod readers_are_not_overrun;
pub mod reads_are_delayed_once;
pub mod reads_are_linearizable;
pub mod reads_fit_the_definitions;
pub mod reads_keep_their_floors;
pub mod refused_writes_leave_no_trace;
pub mod registrations_follow_intent;
pub mod remembered_answers_were_ordered;
pub mod replicas_agree;
pub mod requests_are_understood;
pub mod sequencers_die_with_their_locks;
pub mod sequencers_grow;
pub mod service_returns_after_faults;
pub mod sessions_end_only_after_their_leases;
pub mod sessions_read_their_writes;
pub mod sound_disks_are_accepted;
pub mod synced_records_survive;
pub mod the_same_cursor_holds_the_same_rows;
pub mod the_shut_out_stay_out;
pub mod unsent_requests_never_arrive;
pub mod waiters_are_served_in_order;
pub mod whoever_is_away_is_told;
pub mod writes_are_linearizable;

use crate::clock::SimTime;
use crate::kernel::HostId;
use std::collections::BTreeMap;
use tidings_base::agreed::Role;
use tidings_base::{LogIndex, Mono};

/// What a replica states about its agreed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFact {
    /// It started and found its log up to this index; `life` grows when its disk is replaced.
    Started {
        /// The last index found.
        last: LogIndex,
        /// Which disk it is.
        life: u64,
    },
    /// A command was proposed here.
    Proposed {
        /// A digest of the command.
        command: u64,
    },
    /// An entry went into the state here.
    Applied {
        /// Where it stands.
        index: LogIndex,
        /// A digest of the command; 0 for the log's own.
        command: u64,
        /// A digest of what the state answered.
        result: u64,
    },
    /// The state was replaced by a picture up to this index.
    Restored {
        /// The last entry in it.
        index: LogIndex,
    },
    /// A proposal was reported applied.
    Answered {
        /// Where it stands.
        index: LogIndex,
        /// A digest of the command.
        command: u64,
    },
    /// Up to this index everything survives a power loss.
    Durable {
        /// The last durable index.
        index: LogIndex,
    },
    /// The role changed.
    Role(Role),
    /// A lease of the leader, on its own clock.
    LeaseUntil(Mono),
    /// The replica itself noticed what must not be.
    Alarm(String),
    /// At the end: the state of this replica.
    Final {
        /// How far it is.
        index: LogIndex,
        /// A digest of all of it.
        state: u64,
    },
}

/// From where a fact is seen.
pub struct Sight<'a> {
    /// The true time.
    pub at: SimTime,
    /// The host that stated it.
    pub host: HostId,
    /// The clock of any host, if a process runs there.
    pub clock: &'a dyn Fn(HostId) -> Option<Mono>,
}

/// One claim.
pub trait Invariant<F> {
    /// The claim, as its file is called.
    fn name(&self) -> &'static str;

    /// Looks at a fact; an error says how the claim was broken.
    fn observe(&mut self, sight: &Sight<'_>, fact: &F) -> Result<(), String>;

    /// Looks at the end, when everything is healed and quiet.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// How often it has checked.
    fn checks(&self) -> u64;
}

/// A broken claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The claim.
    pub invariant: String,
    /// How it was broken.
    pub what: String,
}

impl Violation {
    /// A violation.
    pub fn new(invariant: &str, what: impl Into<String>) -> Violation {
        Violation { invariant: invariant.to_string(), what: what.into() }
    }
}

/// Several claims over the same facts.
pub struct Claims<F> {
    claims: Vec<Box<dyn Invariant<F>>>,
}

impl<F> Claims<F> {
    /// These claims.
    pub fn new(claims: Vec<Box<dyn Invariant<F>>>) -> Claims<F> {
        Claims { claims }
    }

    /// Lets all of them look at a fact.
    pub fn observe(&mut self, sight: &Sight<'_>, fact: &F) -> Result<(), Violation> {
        for claim in &mut self.claims {
            claim.observe(sight, fact).map_err(|what| Violation::new(claim.name(), what))?;
        }
        Ok(())
    }

    /// Lets all of them look at the end, and see that all of them looked.
    pub fn finish(&mut self) -> Result<(), Violation> {
        self.conclude()?;
        match self.claims.iter().find(|claim| claim.checks() == 0) {
            Some(claim) => Err(Violation::new(claim.name(), "it was never checked in this run")),
            None => Ok(()),
        }
    }

    /// Lets all of them look at the end. Some are about what does not happen in every run; whether they ever looked is seen
    /// over many runs.
    pub fn conclude(&mut self) -> Result<(), Violation> {
        for claim in &mut self.claims {
            claim.finish().map_err(|what| Violation::new(claim.name(), what))?;
        }
        Ok(())
    }

    /// How often each has checked.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.claims.iter().map(|claim| (claim.name().to_string(), claim.checks())).collect()
    }
}

/// The claims about any agreed log.
pub fn log_claims() -> Claims<LogFact> {
    Claims::new(vec![
        Box::<replicas_agree::ReplicasAgree>::default(),
        Box::<applied_once_in_order::AppliedOnceInOrder>::default(),
        Box::<acknowledged_writes_survive::AcknowledgedWritesSurvive>::default(),
        Box::<one_leader_per_epoch::OneLeaderPerEpoch>::default(),
        Box::<leases_exclude_other_leaders::LeasesExcludeOtherLeaders>::default(),
        Box::<synced_records_survive::SyncedRecordsSurvive>::default(),
    ])
}
