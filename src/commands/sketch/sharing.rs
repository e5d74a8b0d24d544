//! The sketching core that `sketch run --core` joins.

use crate::cli::sketch::Run;
use crate::output::broken;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidings_base::{Class, Error};
use tidings_client::placement::{NamespaceConfig, Placement};
use tidings_client::{Client, ClientConfig, Tls};
use tidings_sketch_proxy::{Core, Secret};

/// Leases of a core that is made here: what a lost proxy held is somebody else's after so long.
const LEASE_MS: u32 = 12_000;
const RENEW_MS: u32 = 2_500;

/// What was typed of a core.
pub struct Sharing {
    nodes: Vec<String>,
    listen: Option<SocketAddr>,
    secret: Option<PathBuf>,
    address: Option<String>,
    namespace: String,
    key: Option<String>,
    ca: Option<PathBuf>,
}

impl Sharing {
    pub fn of(args: &Run) -> Sharing {
        Sharing {
            nodes: args.core.clone(),
            listen: args.core_listen,
            secret: args.core_secret.clone(),
            address: args.core_address.clone(),
            namespace: args.core_namespace.clone(),
            key: args.core_key.clone(),
            ca: args.core_ca.clone(),
        }
    }
}

/// Connects to the nodes and sees that the namespace is there.
pub async fn joined(sharing: &Sharing) -> Result<Option<Core>, Error> {
    if sharing.nodes.is_empty() {
        return Ok(None);
    }
    let secret = sharing.secret.as_ref().ok_or_else(|| {
        missing("--core-secret").hint(
            "Make one by `head -c 32 /dev/urandom > core.secret`, and give every proxy of the core the same: \
             --core-secret core.secret.",
        )
    })?;
    let listen = sharing.listen.ok_or_else(|| {
        missing("--core-listen")
            .hint("Say on which address other proxies are heard, such as --core-listen 10.0.1.1:7500.")
    })?;
    let secret = Secret::new(&read(secret)?)?;
    if let Some(address) = sharing.address.as_deref().filter(|address| !is_address(address)) {
        return Err(Error::new("sketch.bad_address", Class::Invalid, format!("`{address}` is not HOST:PORT"))
            .hint("Say where other proxies reach this one, such as 10.0.1.1:7500."));
    }
    let client = Client::connect(ClientConfig {
        credential: sharing.key.clone().filter(|key| !key.is_empty()),
        tls: sharing.ca.as_deref().map(read).transpose()?.map(|ca| Tls { ca, ..Tls::default() }),
        agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..ClientConfig::new(sharing.nodes.clone())
    })
    .await?;
    make(&Placement::new(client.clone()), &sharing.namespace).await?;
    let mut core = Core::of(client, listen, secret);
    core.owner.namespace.clone_from(&sharing.namespace);
    core.address.clone_from(&sharing.address);
    Ok(Some(core))
}

fn missing(flag: &str) -> Error {
    Error::new("sketch.incomplete_core", Class::Invalid, format!("--core needs {flag}"))
}

/// Makes the namespace unless it is there, or somebody else makes it at the same time.
async fn make(placement: &Placement, name: &str) -> Result<(), Error> {
    let made = placement.namespaces().await?;
    if made.iter().any(|info| info.namespace == name) {
        return Ok(());
    }
    let config = NamespaceConfig { lease_ms: LEASE_MS, renew_ms: RENEW_MS, ..NamespaceConfig::default() };
    match placement.create(name, config).await {
        Err(error) if error.code == "placement.namespace_exists" => Ok(()),
        made => made,
    }
}

fn is_address(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    !host.is_empty() && !text.contains(['/', '@', ' ']) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| broken(format_args!("cannot read {}", path.display()), error))
}
