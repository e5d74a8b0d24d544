//! Authenticated, encrypted connections from each replica to each, and the channels over them.

use super::batch::Batch;
use super::steady::{Dated, Time};
use super::{Digest, Identity, Runtime, Scheme, engine_key};
use commonware_consensus::marshal::{self, standard::Standard};
use commonware_consensus::simplex;
use commonware_cryptography::ChaCha20Poly1305;
use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::authenticated::lookup::{self, Config, Network};
use commonware_p2p::{Address, AddressableManager};
use commonware_runtime::{Handle, Quota};
use commonware_stream::cups::{self, Cups};
use commonware_stream::sake::{self, Sake};
use commonware_utils::ordered::Map;
use commonware_utils::{NZU32, NZUsize};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;
use tidings_base::Error;

/// One channel: what sends on it, and what receives.
pub type Wire<E> = (lookup::Sender<PublicKey, E>, lookup::Receiver<PublicKey>);

/// The longest message that a channel of ours carries: of passed commands, and of parts of a snapshot.
pub const LONGEST_MESSAGE: usize = 1 << 20;

/// Messages a second from each peer on one channel. They cap the views a second: a view has three of each replica.
const QUOTA: Quota = Quota::per_second(NZU32!(4_096));
/// The same for parts of snapshots and for passed commands, which are long and few.
const SLOW_QUOTA: Quota = Quota::per_second(NZU32!(64));

/// All channels of a replica.
pub struct Wires<E: Runtime> {
    /// What the order runs on.
    pub order: Lines<E>,
    /// Commands that are passed on.
    pub commands: Wire<E>,
    /// Snapshots.
    pub snapshots: Wire<E>,
    /// Ends when the network does.
    pub ended: Handle<()>,
}

/// The channels of the order.
pub struct Lines<E: Runtime> {
    /// Votes of simplex.
    pub votes: Wire<E>,
    /// Certificates of simplex.
    pub certificates: Wire<E>,
    /// Certificates that were missed.
    pub missed: Wire<E>,
    /// Batches as they are proposed.
    pub batches: Wire<E>,
    /// Batches that were missed.
    pub backfill: Wire<E>,
    /// Who the peers are, and who of them is shut out.
    pub peers: lookup::Oracle<PublicKey>,
}

/// Listens at an address, and connects to all replicas of the group. Whose time of day is not about theirs is not connected.
pub fn open<E: Runtime>(context: &E, identity: &Identity, listen: SocketAddr, day: Time) -> Result<Wires<E>, Error> {
    let membership = &identity.group;
    let size = NonZeroUsize::new(membership.replicas().len()).unwrap_or(NZUsize!(1));
    let (mut network, mut peers) = Network::new(context.child("network"), config(identity, listen, size, day));
    let addresses = membership
        .replicas()
        .iter()
        .map(|member| Ok((engine_key(&member.key)?, Address::Symmetric(member.peers))))
        .collect::<Result<Vec<_>, Error>>()?;
    let _ = peers.track(0, Map::from_iter_dedup(addresses));
    let order = Lines {
        votes: network.register(0, QUOTA),
        certificates: network.register(1, QUOTA),
        missed: network.register(2, QUOTA),
        batches: network.register(3, QUOTA),
        backfill: network.register(4, QUOTA),
        peers,
    };
    let (commands, snapshots) = (network.register(5, SLOW_QUOTA), network.register(6, SLOW_QUOTA));
    Ok(Wires { order, commands, snapshots, ended: network.start() })
}

type Handshake = Cups<Dated<Sake<commonware_cryptography::ed25519::PrivateKey>>, ChaCha20Poly1305>;

fn config(identity: &Identity, listen: SocketAddr, size: NonZeroUsize, day: Time) -> Config<Handshake> {
    let replicas = size.get() as u32;
    let longest = [
        LONGEST_MESSAGE,
        simplex::max_payload_size::<Scheme, Digest>(replicas),
        // A batch with its certificate, in a message about snapshots.
        marshal::max_payload_size::<Standard<Batch>, Scheme>(replicas, &()) + 64,
    ];
    let sake = Sake {
        signer: identity.secret.clone(),
        synchrony_bound: Duration::from_secs(5),
        max_handshake_age: Duration::from_secs(10),
        version: sake::Version::V1,
    };
    Config {
        handshake: Cups::new(Dated::new(sake, day), cups::Version::V1),
        namespace: identity.namespace.clone(),
        listen,
        allow_private_ips: true,
        allow_dns: false,
        // Whoever connects proves its key; where it connects from may differ from where it listens.
        bypass_ip_check: true,
        max_message_size: commonware_p2p::max_message_size(&longest),
        max_peers_per_set: size,
        mailbox_size: NZUsize!(1_024),
        send_batch_size: NZUsize!(8),
        handshake_timeout: Duration::from_secs(5),
        dial_timeout: Duration::from_secs(5),
        // A replica that is back is reached again within about a second.
        peer_connection_cooldown: Duration::from_millis(500),
        max_concurrent_handshakes: NZU32!(256),
        allowed_handshake_rate_per_ip: Quota::per_second(NZU32!(64)),
        allowed_handshake_rate_per_subnet: Quota::per_second(NZU32!(256)),
        ping_frequency: Duration::from_secs(5),
        dial_frequency: Duration::from_millis(100),
        tracked_peer_sets: NZUsize!(1),
        block_duration: Duration::from_secs(600),
    }
}
