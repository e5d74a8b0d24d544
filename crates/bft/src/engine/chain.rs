//! Simplex and marshal over the wires of a replica.

use super::batch::Batch;
use super::delivery::Outlet;
use super::proposer::Proposer;
use super::wires::Lines;
use super::{Finalization, Identity, Mailbox, Runtime, Scheme};
use commonware_broadcast::buffered;
use commonware_consensus::marshal::resolver::p2p as resolver;
use commonware_consensus::marshal::standard::Inline;
use commonware_consensus::marshal::{self, Start, core::Actor};
use commonware_consensus::simplex::{self, Engine, Floor, ForwardPolicy, SkipBudget, SkipPolicy, elector::RoundRobin};
use commonware_consensus::types::{Epoch, FixedEpocher, ViewDelta};
use commonware_cryptography::Digestible;
use commonware_cryptography::certificate::{ConstantProvider, Verifier};
use commonware_parallel::Sequential;
use commonware_runtime::Handle;
use commonware_runtime::buffer::paged::CacheRef;
use commonware_storage::archive::prunable;
use commonware_storage::translator::EightCap;
use commonware_utils::{NZDuration, NZU16, NZU64, NZUsize};
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;
use tidings_base::{Class, Error};

/// How long a leader may take to propose. A replica that is gone costs as much, until it is skipped.
const LEADER: Duration = Duration::from_millis(1_000);
/// How long a leader waits for a command before it proposes an empty batch.
pub const PATIENCE: Duration = Duration::from_millis(400);
/// One epoch is a life of the group: at a thousand batches a second it lasts for millions of years.
const EPOCH: NonZeroU64 = NZU64!(1 << 62);
/// Batches that are delivered and not yet acknowledged, at most.
const UNACKNOWLEDGED: NonZeroUsize = NZUsize!(16);
/// Views behind the last final one that are kept for those who are behind.
const RETENTION: ViewDelta = ViewDelta::new(256);

/// Batches in one file of an archive: old ones are removed by whole files. Stands fast as long as a directory is used.
pub const SECTION: NonZeroU64 = NZU64!(512);

const MAILBOX: NonZeroUsize = NZUsize!(1_024);
const BUFFER: NonZeroUsize = NZUsize!(1 << 20);

/// A running order.
pub struct Chain {
    /// Where it is asked for batches.
    pub order: Mailbox,
    /// The height up to which batches were acknowledged before.
    pub acknowledged: u64,
    /// Ends when simplex does.
    pub simplex: Handle<()>,
    /// Ends when marshal does.
    pub marshal: Handle<()>,
}

/// From where an order begins where nothing of it is on disk.
pub enum Beginning {
    /// From its first batch.
    Genesis,
    /// From a batch that enough replicas have given their word for: the state before it was taken over.
    Floor(Finalization),
}

fn archive<C>(name: &str, cache: &CacheRef, codec_config: C) -> prunable::Config<EightCap, C> {
    let partition = |part: &str| format!("{name}-{part}");
    prunable::Config {
        translator: EightCap,
        metadata_partition: partition("metadata"),
        key_partition: partition("keys"),
        key_page_cache: cache.clone(),
        value_partition: partition("values"),
        compression: None,
        codec_config,
        items_per_section: SECTION,
        key_write_buffer: BUFFER,
        value_write_buffer: BUFFER,
        replay_buffer: BUFFER,
    }
}

/// Starts the order of a replica. What is on its disk goes before the beginning that is named.
pub async fn start<E: Runtime>(
    context: &E,
    identity: &Identity,
    beginning: Beginning,
    lines: Lines<E>,
    proposer: Proposer,
    outlet: Outlet,
) -> Result<Chain, Error> {
    let failed = |message: String| Error::new("bft.engine", Class::Failed, message);
    let scheme = identity.scheme().ok_or_else(|| failed("the replica is not of its group".into()))?;
    let cache = CacheRef::new(NZU16!(4_096 - 12), NZUsize!(1_024));
    let genesis = Batch::genesis(&identity.group).digested();
    let (start, floor) = match beginning {
        Beginning::Genesis => (Start::Genesis(genesis.clone()), Floor::Genesis(genesis.digest())),
        Beginning::Floor(word) => (Start::Floor(word.clone()), Floor::Finalized(word)),
    };

    let prefix = identity.public().to_string();
    let named = |name: &str| format!("{prefix}-{name}");
    let words = archive(&named("words"), &cache, Scheme::certificate_codec_config_unbounded());
    let words = prunable::Archive::init(context.child("words"), words).await;
    let words = words.map_err(|error| failed(format!("the archive of certificates: {error}")))?;
    let batches = prunable::Archive::init(context.child("batches"), archive(&named("batches"), &cache, ())).await;
    let batches = batches.map_err(|error| failed(format!("the archive of batches: {error}")))?;
    let epocher = FixedEpocher::new(EPOCH);
    let config = marshal::Config {
        provider: ConstantProvider::new(scheme.clone()),
        epocher: epocher.clone(),
        start,
        partition_prefix: named("order"),
        mailbox_size: MAILBOX,
        view_retention: RETENTION,
        prunable_items_per_section: NZU64!(1_024),
        page_cache: cache.clone(),
        replay_buffer: BUFFER,
        key_write_buffer: BUFFER,
        value_write_buffer: BUFFER,
        block_codec_config: (),
        max_repair: NZUsize!(32),
        max_pending_acks: UNACKNOWLEDGED,
        strategy: Sequential,
    };
    let (actor, order, known) = Actor::init(context.child("marshal"), words, batches, config).await;
    let acknowledged = known.processed().map_or(0, |processed| processed.height().get());

    let missing = resolver::Config {
        public_key: identity.public(),
        peer_provider: lines.peers.clone(),
        blocker: lines.peers.clone(),
        mailbox_size: MAILBOX,
        fetch_timeout: NZDuration!(Duration::from_secs(2)),
        fetch_retry_delay: Duration::from_millis(100),
        priority_requests: false,
        priority_responses: false,
    };
    let missing = resolver::init(context.child("backfill"), missing, lines.backfill);
    let spread = buffered::Config {
        public_key: identity.public(),
        mailbox_size: MAILBOX,
        deque_size: 64,
        priority: false,
        codec_config: (),
        peer_provider: lines.peers.clone(),
        strategy: Sequential,
    };
    let (engine, buffer) = buffered::Engine::<_, _, Batch, _, _>::new(context.child("spread"), spread);
    engine.start(lines.batches);
    let marshal = actor.start(outlet, buffer, missing);

    let automaton = Inline::new(context.child("automaton"), proposer, order.clone(), epocher);
    let config = simplex::Config {
        scheme,
        elector: RoundRobin::<commonware_cryptography::Sha256>::default(),
        blocker: lines.peers,
        automaton: automaton.clone(),
        relay: automaton.clone(),
        reporter: automaton,
        track_historical_votes: false,
        strategy: Sequential,
        partition: named("votes"),
        mailbox_size: MAILBOX,
        epoch: Epoch::zero(),
        floor,
        replay_buffer: BUFFER,
        write_buffer: BUFFER,
        page_cache: cache,
        leader_timeout: LEADER,
        certification_timeout: 2 * LEADER,
        timeout_retry: 2 * LEADER,
        view_retention: RETENTION,
        skip: SkipPolicy::Enabled { timeout: 5 * LEADER, budget: SkipBudget::Participants },
        fetch_timeout: NZDuration!(Duration::from_secs(2)),
        fetch_retry_delay: Duration::from_millis(100),
        forward: ForwardPolicy::SilentVoters,
    };
    let engine = Engine::new(context.child("simplex"), config);
    let simplex = engine.start(lines.votes, lines.certificates, lines.missed);
    Ok(Chain { order, acknowledged, simplex, marshal })
}
