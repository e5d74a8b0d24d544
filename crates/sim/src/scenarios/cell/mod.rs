//! Scenario `cell`: the lock service whole, from applications over sessions and masters to the agreed state.
//!
//! ```text
//!   client host: script ⇄ Session ┐            server: Master ⇄ replica (model) ⇄ log on a simulated disk
//!                script ⇄ Session ┼─ line ─▶               └─ Namespace ─┘
//!                       LinkLease ┘            resource: verifies sequencers
//! ```
//! Most seeds run three replicas, some one or five. Applications read through caches, write, compare and set, create and
//! delete, list, watch, take locks and act under them, shut each other out; hosts crash, pause, drift and are cut off;
//! sessions end. After the faults everything must converge: the same state at all replicas, every session served, nothing
//! queued, nothing held.
//!
//! Scenario `cell-directed` is the same world with aimed faults instead of random ones (`director`). In `cell-guarded`
//! applications also change who may look into a directory, and whoever runs a command under a lock is cut off.

pub mod client;
pub mod command;
mod director;
mod doing;
pub mod fact;
mod forger;
pub mod history;
pub mod line;
pub mod recorded;
pub mod resource;
mod run;
mod script;
pub mod seat;
pub mod server;

pub use run::run_recorded;
pub(super) use run::{run, run_directed, run_guarded};

use crate::faults::Site;
use crate::invariants::Claims;
use crate::invariants::a_masters_word_ends_with_its_epoch::AMastersWordEndsWithItsEpoch;
use crate::invariants::acknowledged_calls_take_effect_once::AcknowledgedCallsTakeEffectOnce;
use crate::invariants::an_event_follows_the_last_change::AnEventFollowsTheLastChange;
use crate::invariants::answers_fit_the_agreed_order::AnswersFitTheAgreedOrder;
use crate::invariants::changes_are_announced::ChangesAreAnnounced;
use crate::invariants::checked_resource_never_goes_back::CheckedResourceNeverGoesBack;
use crate::invariants::closed_handles_stay_closed::ClosedHandlesStayClosed;
use crate::invariants::commands_die_with_their_locks::CommandsDieWithTheirLocks;
use crate::invariants::ended_sessions_stay_ended::EndedSessionsStayEnded;
use crate::invariants::ephemerals_end_with_their_sessions::EphemeralsEndWithTheirSessions;
use crate::invariants::forged_handles_open_nothing::ForgedHandlesOpenNothing;
use crate::invariants::guarded_writes_end_with_their_locks::GuardedWritesEndWithTheirLocks;
use crate::invariants::lost_locks_are_held_back::LostLocksAreHeldBack;
use crate::invariants::no_cached_read_after_its_write_returned::NoCachedReadAfterItsWriteReturned;
use crate::invariants::one_holder_per_exclusive_lock::OneHolderPerExclusiveLock;
use crate::invariants::sequencers_die_with_their_locks::SequencersDieWithTheirLocks;
use crate::invariants::sequencers_grow::SequencersGrow;
use crate::invariants::sessions_end_only_after_their_leases::SessionsEndOnlyAfterTheirLeases;
use crate::invariants::the_shut_out_stay_out::TheShutOutStayOut;
use crate::invariants::waiters_are_served_in_order::WaitersAreServedInOrder;
use crate::kernel::{Boot, Effect, Event, HostId, NoStart, Process, Seat as Place};
use crate::model::Temper;
use crate::mutant::Mutant;
use crate::scenarios::member;
use client::Client;
use fact::{CellFact, Fact};
use recorded::SharedSightseer;
use resource::Resource;
use seat::Habits;
use server::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};

/// Directories that every application makes sure of.
pub(crate) const DIRECTORIES: &[&str] = &["/d", "/e"];
/// Files whose locks are taken; they are never deleted.
pub(crate) const LOCKS: &[&str] = &["/lock-a", "/d/lock-b"];
/// Files that come and go.
pub(crate) const FILES: &[&str] = &["/a", "/b", "/c", "/d/a", "/d/b"];
/// Files that end with their openers.
pub(crate) const EPHEMERALS: &[&str] = &["/e/one", "/e/two"];
/// The access list that decides who may read and write [`CLOSED`]. It changes as the run goes.
pub const DOORS: &str = "/acl/doors";
/// A file that is open to those in [`DOORS`] only.
pub const CLOSED: &str = "/closed";
/// A directory that comes and goes, open to all or to those in [`DOORS`] only.
pub const ROOM: &str = "/room";
/// Files in it, mostly absent.
pub(crate) const ROOM_FILES: &[&str] = &["/room/a", "/room/b", "/room/c"];
/// Names that are mostly absent, more than a master remembers for one session.
pub(crate) const HERD: u64 = 4_300;
/// The leader's lease. Pauses, elections and patience are counted in it.
const LEASE: Duration = Duration::from_secs(2);
/// The longest that an acquire is held before its client is told to ask again.
const WAIT: Duration = Duration::from_secs(4);
/// A session without a handle and without a call for so long is ended.
const IDLE: Duration = Duration::from_secs(60);
/// How old the newest key may become: several are used in a run.
const ROTATE: Duration = Duration::from_secs(180);

/// A process of this scenario.
pub enum Actor {
    /// A replica with its master.
    Server(Box<Server>),
    /// A client host.
    Client(Box<Client>),
    /// What locks protect.
    Resource(Box<Resource>),
}

impl Machine for Actor {
    type Input = Event;
    type Output = Effect<CellFact>;

    fn handle(&mut self, now: Now, input: Event, out: &mut Outbox<Effect<CellFact>>) {
        match (self, input) {
            (Actor::Server(server), Event::DiskDone { .. }) => server.disk_done(now, out),
            (Actor::Server(server), Event::Message { from, bytes }) => server.message(now, from, &bytes, out),
            (Actor::Client(client), Event::Message { from, bytes }) => client.receive(now, from, &bytes, out),
            (Actor::Resource(resource), Event::Message { from, bytes }) => resource.receive(now, from, &bytes, out),
            (_, Event::DiskDone { .. }) => {}
        }
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Effect<CellFact>>) {
        match self {
            Actor::Server(server) => server.wake(now, out),
            Actor::Client(client) => client.wake(now, out),
            Actor::Resource(resource) => resource.wake(now, out),
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match self {
            Actor::Server(server) => server.deadline(),
            Actor::Client(client) => client.deadline(),
            Actor::Resource(resource) => resource.deadline(),
        }
    }
}

impl Process for Actor {
    type Fact = CellFact;
}

/// Who lives where.
struct Town {
    servers: Vec<HostId>,
    /// With the number of sessions there.
    clients: Vec<(HostId, usize)>,
    resource: HostId,
    habits: BTreeMap<HostId, Habits>,
    sights: SharedSightseer,
    cache_lease: Duration,
    temper: Temper,
    mutant: Option<Mutant>,
    calm: bool,
    afterglow: bool,
}

impl Town {
    fn server(&self, seat: Place, out: &mut Outbox<Effect<CellFact>>) -> Result<Server, NoStart> {
        let config = member::config(&seat, &self.servers, LEASE, self.temper, self.mutant);
        let mut rng = seat.rng.fork("master");
        let mut secret = [0; 32];
        secret.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&rng.next_u64().to_le_bytes()));
        let options = tidings_cell::master::Options {
            node: config.id,
            secret,
            lease: Duration::from_secs(3),
            cache_lease: self.cache_lease,
            idle: IDLE,
            wait: WAIT,
            rotate: ROTATE,
            alone: false,
            mutant: self.mutant.and_then(Mutant::of_cell),
        };
        Server::start(config, options, self.sights.clone(), seat.disk, !self.calm, seat.now, seat.rng, out)
    }
}

impl Boot<Actor> for Town {
    fn boot(&mut self, seat: Place, out: &mut Outbox<Effect<CellFact>>) -> Result<Actor, NoStart> {
        let servers = self.servers.clone();
        if self.servers.contains(&seat.host) {
            return Ok(Actor::Server(Box::new(self.server(seat, out)?)));
        }
        let Some((host, seats)) = self.clients.iter().find(|(host, _)| *host == seat.host).copied() else {
            return Ok(Actor::Resource(Box::new(Resource::new(servers, seat.rng, seat.starts))));
        };
        let Some(habits) = self.habits.get(&host) else {
            return Err(NoStart::Failed("nobody lives here".to_string()));
        };
        let mut client =
            Client::start(host, seat.starts, servers, self.resource, seats, habits, seat.now, seat.rng, out);
        if self.afterglow {
            client.stop();
        }
        Ok(Actor::Client(Box::new(client)))
    }
}

impl Site<Actor> for Town {
    fn is_whole(&self, process: &Actor) -> bool {
        match process {
            Actor::Server(server) => server.member().is_whole(),
            Actor::Client(_) | Actor::Resource(_) => true,
        }
    }
}

/// The claims about the cell.
pub fn cell_claims() -> Claims<Fact> {
    Claims::new(vec![
        Box::<OneHolderPerExclusiveLock>::default(),
        Box::<CheckedResourceNeverGoesBack>::default(),
        Box::<SequencersGrow>::default(),
        Box::<SequencersDieWithTheirLocks>::default(),
        Box::<NoCachedReadAfterItsWriteReturned>::default(),
        Box::<AnswersFitTheAgreedOrder>::default(),
        Box::<AcknowledgedCallsTakeEffectOnce>::default(),
        Box::<SessionsEndOnlyAfterTheirLeases>::default(),
        Box::<EndedSessionsStayEnded>::default(),
        Box::<AnEventFollowsTheLastChange>::default(),
        Box::<EphemeralsEndWithTheirSessions>::default(),
        Box::<LostLocksAreHeldBack>::default(),
        Box::<WaitersAreServedInOrder>::default(),
        Box::<ForgedHandlesOpenNothing>::default(),
        Box::<ClosedHandlesStayClosed>::default(),
        Box::<ChangesAreAnnounced>::default(),
        Box::<AMastersWordEndsWithItsEpoch>::default(),
        Box::<GuardedWritesEndWithTheirLocks>::default(),
        Box::<TheShutOutStayOut>::default(),
        Box::<CommandsDieWithTheirLocks>::default(),
    ])
}
