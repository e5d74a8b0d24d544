//! Making a CA, certificates, configurations and the operator's key.

use super::node_name;
use crate::config::{Config, Member, bad, check_address};
use crate::keys::Key;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidings_base::{Class, Error, NodeId, Wall};
use time::OffsetDateTime;

/// How long the CA is valid: longer than a cluster keeps its hardware.
const CA_VALID: Duration = Duration::from_secs(3_650 * 86_400);

/// How long a node's certificate is valid: two years, what clients commonly accept at most.
const NODE_VALID: Duration = Duration::from_secs(730 * 86_400);

/// Certificates begin this long before they are made, for machines whose clocks are behind.
const EARLIER: Duration = Duration::from_secs(3_600);

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// All files, in the order they were made.
    pub files: Vec<PathBuf>,
    /// The operator's key, also in the file `operator.key`.
    pub operator_key: String,
}

/// Makes everything that a cluster of these nodes needs, in a directory that must be empty or not there.
pub fn init(dir: &Path, nodes: &[Member], now: Wall) -> Result<Summary, Error> {
    if !matches!(nodes.len(), 1 | 3 | 5) {
        return Err(bad(format!("cannot make a cluster of {} nodes", nodes.len())).hint("Name 1, 3 or 5."));
    }
    for node in nodes {
        check_address("the node's address", &node.address)?;
    }
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(exists(dir));
    }
    let mut writer = Writer { files: Vec::new() };
    writer.directory(dir)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = ca_params(now)?.self_signed(&key).map_err(failed)?.pem();
    writer.file(&dir.join("ca.pem"), &certificate, 0o644)?;
    writer.file(&dir.join("ca.key"), &key.serialize_pem(), 0o600)?;
    let operator = Key::operator()?;
    writer.file(&dir.join("operator.key"), &format!("{}\n", operator.reveal()), 0o600)?;
    let ca = Ca { issuer: Issuer::from_ca_cert_pem(&certificate, key).map_err(failed)?, certificate };
    let operator_hash = operator.hash()?;
    for node in nodes {
        ca.write_node(&mut writer, dir, node, nodes, None, &operator_hash, now)?;
    }
    Ok(Summary { files: writer.files, operator_key: operator.reveal() })
}

/// Makes what one more node needs, with the CA that [`init`] made. Its configuration names all `members`, itself
/// included, if they are several; otherwise it is a node that joins, and knows the nodes that were made before as contacts.
/// The operator's key is the one of the directory.
pub fn add_node(dir: &Path, node: &Member, members: &[Member], now: Wall) -> Result<Vec<PathBuf>, Error> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map_err(|e| {
            bad(format!("cannot read {}: {e}", path.display())).hint("`tidings init DIR` makes the CA and its key.")
        })
    };
    let certificate = read("ca.pem")?;
    let key = KeyPair::from_pem(&read("ca.key")?).map_err(failed)?;
    let operator = Key::parse(read("operator.key")?.trim()).ok_or_else(|| bad("operator.key holds no key"))?;
    let ca = Ca { issuer: Issuer::from_ca_cert_pem(&certificate, key).map_err(failed)?, certificate };
    let mut writer = Writer { files: Vec::new() };
    let joins = if members.len() == 1 { Some(made_before(dir, node)?) } else { None };
    ca.write_node(&mut writer, dir, node, members, joins, &operator.hash()?, now)?;
    Ok(writer.files)
}

/// The addresses of the nodes that the directory has folders for, but the one that is made.
fn made_before(dir: &Path, node: &Member) -> Result<Vec<String>, Error> {
    let own = format!("node-{}", node.node);
    let entries = fs::read_dir(dir).map_err(|e| bad(format!("cannot read {}: {e}", dir.display())))?;
    let folders = entries.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("node-") && name != own)
    });
    // A folder that was moved away or emptied tells of no node.
    let mut addresses: Vec<String> = folders
        .filter_map(|folder| Config::load(folder.path().join("node.toml")).ok())
        .filter_map(|config| config.advertise)
        .collect();
    addresses.sort();
    Ok(addresses)
}

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Ca {
    #[allow(clippy::too_many_arguments)] // What one folder is made of; two callers.
    fn write_node(
        &self,
        writer: &mut Writer,
        dir: &Path,
        node: &Member,
        members: &[Member],
        joins: Option<Vec<String>>,
        operator_hash: &str,
        now: Wall,
    ) -> Result<(), Error> {
        check_address("the node's address", &node.address)?;
        let folder = dir.join(format!("node-{}", node.node));
        writer.directory(&folder)?;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = node_params(node, now)?.signed_by(&key, &self.issuer).map_err(failed)?;
        writer.file(&folder.join("node.pem"), &certificate.pem(), 0o644)?;
        writer.file(&folder.join("node.key"), &key.serialize_pem(), 0o600)?;
        writer.file(&folder.join("ca.pem"), &self.certificate, 0o644)?;
        writer.file(&folder.join("node.toml"), &node_toml(node, members, joins.as_deref(), operator_hash), 0o600)
    }
}

fn ca_params(now: Wall) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name = named("Tidings cluster CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(now, CA_VALID)?;
    Ok(params)
}

fn node_params(node: &Member, now: Wall) -> Result<CertificateParams, Error> {
    let name = node_name(NodeId(node.node));
    let host = host_of(&node.address)?;
    // Loopback names too: the command line on the node's own machine uses them.
    let mut names = vec![name.clone(), host.to_owned(), "localhost".into(), "127.0.0.1".into(), "::1".into()];
    names.dedup();
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = named(&name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = validity(now, NODE_VALID)?;
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn validity(now: Wall, lasts: Duration) -> Result<(OffsetDateTime, OffsetDateTime), Error> {
    let at = |wall: Wall| {
        let seconds = i64::try_from(wall.0 / 1_000_000).unwrap_or(i64::MAX);
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|e| bad(format!("this machine's clock is absurd: {e}")))
    };
    let begin = Wall(now.0.saturating_sub(u64::try_from(EARLIER.as_micros()).unwrap_or(0)));
    Ok((at(begin)?, at(now + lasts)?))
}

fn host_of(address: &str) -> Result<&str, Error> {
    let host = address.rsplit_once(':').map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    host.filter(|host| !host.is_empty()).ok_or_else(|| {
        bad(format!("`{}` is no address of a node", crate::principal::clip(address)))
            .hint("Give a host and a port, such as `10.0.0.1:7400`.")
    })
}

/// The node's configuration as a file that explains itself.
fn node_toml(node: &Member, members: &[Member], joins: Option<&[String]>, operator_hash: &str) -> String {
    let port = node.address.rsplit_once(':').map_or("7400", |(_, port)| port);
    // A name may resolve to anything, so a node that is known by name listens everywhere.
    let host = host_of(&node.address).ok().and_then(|host| host.parse::<IpAddr>().ok());
    let listen = match host {
        Some(IpAddr::V4(ip)) => format!("{ip}:{port}"),
        Some(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        None => format!("0.0.0.0:{port}"),
    };
    let flag = if joins.is_some() { " --join` the first time, then without `--join" } else { "" };
    let mut toml = format!(
        "# Node {id} of a Tidings cluster. Start it with `tidings serve --config node.toml{flag}`.\n\
         # Relative paths are seen from this file's directory.\n\
         node = {id}\n\
         data = \"data\"\n\
         listen = \"{listen}\"\n\
         advertise = \"{address}\"\n\
         {joins}\
         \n\
         [tls]\n\
         certificate = \"node.pem\"\n\
         key = \"node.key\"\n\
         client_ca = \"ca.pem\"\n\
         \n\
         [auth]\n\
         # A hash; the key itself is in operator.key where `tidings init` ran.\n\
         operator_key_hash = \"{operator_hash}\"\n",
        id = node.node,
        address = node.address,
        joins = joins.map_or(String::new(), |contacts| {
            // While it is no member, it asks these.
            format!("joins = true\ncontacts = {contacts:?}\n")
        }),
    );
    if members.len() > 1 {
        for member in members {
            // Writing to a string cannot fail.
            let _ = write!(toml, "\n[[members]]\nnode = {}\naddress = \"{}\"\n", member.node, member.address);
        }
    }
    toml
}

/// Writes files that must not be there yet.
struct Writer {
    files: Vec<PathBuf>,
}

impl Writer {
    fn directory(&self, path: &Path) -> Result<(), Error> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| cannot_write(path, &e))
    }

    fn file(&mut self, path: &Path, text: &str, mode: u32) -> Result<(), Error> {
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Err(exists(path)),
            Err(e) => return Err(cannot_write(path, &e)),
        };
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| cannot_write(path, &e))?;
        self.files.push(path.to_owned());
        Ok(())
    }
}

fn exists(path: &Path) -> Error {
    Error::new("node.init_exists", Class::Refused, format!("{} is there already", path.display()))
        .hint("Keys are never overwritten: name another directory, or move this one away.")
}

fn cannot_write(path: &Path, e: &std::io::Error) -> Error {
    Error::new("node.cannot_write", Class::Failed, format!("cannot write {}: {e}", path.display()))
}

fn failed(e: rcgen::Error) -> Error {
    Error::new("node.cannot_certify", Class::Failed, format!("cannot make a certificate: {e}"))
}
