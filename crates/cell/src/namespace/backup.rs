//! Backups: the trees of a cell in one checksummed file, and the way back into a cell.
//!
//! ```text
//!   file  = head · piece* · end                                                 (numbers big-endian)
//!   head  = "TIDCELLB" · version u32 · incarnation u64 · instances u64 · crc32c u32
//!   piece = 'P' · offset u64 · length u32 · CellBackupNodes · crc32c u32
//!   end   = 'E' · offset u64 · nodes u64 · total u64 · crc32c u32
//! ```
//! Every checksum covers everything of its part before it; every part knows its offset, so that a lost, repeated or
//! moved one is noticed where it stands. Nodes come in the order of application and path, parents before children, with
//! their access lists and quotas. Sessions, locks, ephemeral nodes and keys are not in it.

use super::Namespace;
use super::acl::Lists;
use super::apply::secret;
use super::chunks::ChunkMap;
use super::records::{load_node, node_record};
use super::sessions::Sessions;
use super::touches::Touched;
use super::tree::{NodeKey, Tree};
use crate::error::{self, MAX_CONTENTS};
use crate::path::{ACL_DIRECTORY, Place, parent_str};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tidings_base::{Error, Incarnation};
use tidings_wire::v1;

/// The version that is written; earlier ones are read, later ones refused.
pub const VERSION: u32 = 1;
/// The largest backup that can be restored, and so the largest that is made: its pieces wait in the state of every
/// replica for the last one. What one application may have by default fits, with the longest names.
pub const MAX_BACKUP: u64 = 1 << 30;

const MAGIC: &[u8; 8] = b"TIDCELLB";
const HEAD: usize = 8 + 4 + 8 + 8 + 4;
const PIECE: usize = 1 + 8 + 4;
const END: usize = 1 + 8 + 8 + 8 + 4;
/// A piece is closed when it has this much: a frame's worth.
const PIECE_BYTES: usize = 64 << 10;
/// No piece is longer: one that is full but for a byte, and a file of the largest size after that.
const MAX_PIECE: usize = PIECE_BYTES + MAX_CONTENTS + (16 << 10);

/// What has come of a backup that is being restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Staged {
    pub pieces: Arc<Vec<Bytes>>,
    size: u64,
}

impl Staged {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.size += piece.len() as u64;
        Arc::make_mut(&mut self.pieces).push(piece);
    }
}

/// A backup of a state, made as it is read: all items together are the file. Later changes of the state do not show.
pub fn pieces(state: &Namespace) -> Pieces {
    Pieces { state: state.clone(), places: VecDeque::new(), offset: 0, nodes: 0, ended: false }
}

/// What a backup of a state holds, in order.
fn permanent(state: &Namespace) -> VecDeque<Place> {
    let mut kept: BTreeSet<Place> = BTreeSet::new();
    for (key, _) in state.tree.iter().filter(|(_, node)| !node.ephemeral) {
        // A permanent node keeps the directories above it, ephemeral ones too.
        let mut next = key.place.parent();
        while let Some(place) = next.filter(|place| state.is_ephemeral(place) && !kept.contains(place)) {
            next = place.parent();
            kept.insert(place);
        }
        kept.insert(key.place.clone());
    }
    kept.into_iter().collect()
}

/// See [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    state: Namespace,
    places: VecDeque<Place>,
    offset: u64,
    nodes: u64,
    ended: bool,
}

/// What a node adds to a backup besides its record: its length, and its part of what surrounds a piece.
const AROUND: usize = 8 + PIECE + 4;

impl Pieces {
    /// Whether it can be restored: to be asked before anything is written.
    pub fn check(&self) -> Result<(), Error> {
        self.check_within(MAX_BACKUP)
    }

    fn check_within(&self, bound: u64) -> Result<(), Error> {
        let sizes = self.state.tree.iter().map(|(key, node)| node_record(&key.place, node).encoded_len() + AROUND);
        match sizes.map(|size| size as u64).sum::<u64>() + ((HEAD + END) as u64) > bound {
            true => Err(error::backup_too_large(bound)),
            false => Ok(()),
        }
    }

    fn head(&self) -> BytesMut {
        let mut head = BytesMut::with_capacity(HEAD);
        head.put_slice(MAGIC);
        head.put_u32(VERSION);
        head.put_u64(self.state.incarnation.0);
        head.put_u64(self.state.next_instance);
        head
    }

    fn piece(&mut self) -> BytesMut {
        let (mut nodes, mut size) = (Vec::new(), 0);
        while size < PIECE_BYTES
            && let Some(place) = self.places.pop_front()
        {
            if let Some(node) = self.state.tree.at(&place) {
                let record = v1::CellNodeRecord {
                    ephemeral: false,
                    lock: 0,
                    holders: Vec::new(),
                    delay: None,
                    openers: Vec::new(),
                    ..node_record(&place, node)
                };
                size += record.encoded_len() + 8;
                nodes.push(record);
            }
        }
        self.nodes += nodes.len() as u64;
        let body = v1::CellBackupNodes { nodes }.encode_to_vec();
        let mut piece = BytesMut::with_capacity(PIECE + body.len() + 4);
        piece.put_u8(b'P');
        piece.put_u64(self.offset);
        piece.put_u32(body.len() as u32);
        piece.put_slice(&body);
        piece
    }

    fn end(&self) -> BytesMut {
        let mut end = BytesMut::with_capacity(END);
        end.put_u8(b'E');
        end.put_u64(self.offset);
        end.put_u64(self.nodes);
        end.put_u64(self.offset + END as u64);
        end
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut part = match (self.offset, self.places.is_empty()) {
            (0, _) => {
                self.places = permanent(&self.state);
                self.head()
            }
            (_, false) => self.piece(),
            (_, true) => {
                self.ended = true;
                self.end()
            }
        };
        part.put_u32(crc32c::crc32c(&part));
        self.offset += part.len() as u64;
        Some(part.freeze())
    }
}

/// What a backup holds, once all of it was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The format's version.
    pub version: u32,
    /// The incarnation of the cell it was taken of.
    pub incarnation: u64,
    /// How many nodes.
    pub nodes: u64,
    /// How many bytes all of it has.
    pub total: u64,
}

/// Verifies a backup from its first byte to its last; the error names the first bad offset.
pub fn check(file: impl IntoIterator<Item = Bytes>) -> Result<Summary, Error> {
    read(file.into_iter().collect()).map(|backup| backup.summary)
}

struct Backup {
    summary: Summary,
    instances: u64,
    tree: Tree,
}

fn read(file: VecDeque<Bytes>) -> Result<Backup, Error> {
    let mut rope = Rope { parts: file, offset: 0 };
    let (summary, instances) = read_head(&mut rope)?;
    let mut backup = Backup { summary, instances, tree: Tree::default() };
    let mut last = None;
    loop {
        let at = rope.offset;
        let mut part = rope.take(9, at, "its end is missing")?;
        let (tag, offset) = (part[0], (&part[1..]).get_u64());
        if !matches!(tag, b'P' | b'E') || offset != at {
            return Err(error::damaged_backup(at, "no part begins here"));
        }
        if tag == b'E' {
            part.extend_from_slice(&rope.take(END - 9, at, "its end is cut short")?);
            verify(at, &part)?;
            let mut rest = &part[9..];
            if rest.get_u64() != backup.summary.nodes || rest.get_u64() != rope.offset {
                return Err(error::damaged_backup(at, "its end does not fit what is before it"));
            }
            backup.summary.total = rope.offset;
            if rope.left() > 0 {
                return Err(error::damaged_backup(rope.offset, "something follows its end"));
            }
            return Ok(backup);
        }
        part.extend_from_slice(&rope.take(4, at, "a piece is cut short")?);
        let length = (&part[9..]).get_u32() as usize;
        if length > MAX_PIECE {
            return Err(error::damaged_backup(at, "a piece has an impossible length"));
        }
        part.extend_from_slice(&rope.take(length + 4, at, "a piece is cut short")?);
        verify(at, &part)?;
        let nodes = v1::CellBackupNodes::decode(&part[PIECE..PIECE + length]);
        let nodes = nodes.map_err(|_| error::damaged_backup(at, "a piece cannot be read"))?.nodes;
        for record in nodes {
            let place = take_node(&mut backup, record, &last).map_err(|why| error::damaged_backup(at, &why))?;
            last = Some(place);
        }
    }
}

fn read_head(rope: &mut Rope) -> Result<(Summary, u64), Error> {
    let head = rope.take(HEAD, 0, "it is too short for a backup")?;
    if head[..8] != MAGIC[..] {
        return Err(error::damaged_backup(0, "this is not a backup of a cell"));
    }
    let mut rest = &head[8..];
    let (version, incarnation, instances) = (rest.get_u32(), rest.get_u64(), rest.get_u64());
    verify(0, &head)?;
    if version != VERSION {
        return Err(error::newer_backup(version, VERSION));
    }
    Ok((Summary { version, incarnation, nodes: 0, total: 0 }, instances))
}

/// Takes one node in; its instance will be a new one, larger than any that its path had here or there.
fn take_node(backup: &mut Backup, record: v1::CellNodeRecord, last: &Option<Place>) -> Result<Place, String> {
    let (place, node) = load_node(record)?;
    if last.as_ref().is_some_and(|last| *last >= place) {
        return Err(format!("{place} is out of order"));
    }
    let parent = parent_str(place.path.as_str());
    let in_directory =
        parent.is_none_or(|parent| backup.tree.get(&place.app, parent).is_some_and(|node| node.directory));
    if !in_directory || (parent.is_none() && !node.directory) {
        return Err(format!("{place} is in no directory"));
    }
    if node.contents.len() > MAX_CONTENTS {
        return Err(format!("{place} is too large"));
    }
    if node.ephemeral || !node.openers.is_empty() || !node.lock.is_free() {
        return Err(format!("{place} belongs to a session"));
    }
    backup.tree.insert(NodeKey::new(place.clone()), node);
    backup.summary.nodes += 1;
    Ok(place)
}

fn verify(at: u64, part: &[u8]) -> Result<(), Error> {
    match part.split_last_chunk::<4>() {
        Some((body, sum)) if crc32c::crc32c(body) == u32::from_be_bytes(*sum) => Ok(()),
        _ => Err(error::damaged_backup(at, "the checksum of what begins here is wrong")),
    }
}

/// Bytes in pieces, read from the front.
struct Rope {
    parts: VecDeque<Bytes>,
    offset: u64,
}

impl Rope {
    fn left(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    fn take(&mut self, size: usize, at: u64, missing: &str) -> Result<BytesMut, Error> {
        let mut taken = BytesMut::with_capacity(size);
        while taken.len() < size {
            let Some(front) = self.parts.front_mut() else { return Err(error::damaged_backup(at, missing)) };
            taken.put_slice(&front.split_to(front.len().min(size - taken.len())));
            if front.is_empty() {
                self.parts.pop_front();
            }
        }
        self.offset += size as u64;
        Ok(taken)
    }
}

impl Namespace {
    /// Whether it has nothing but what every application has, and what the platform's own trees begin with: a directory
    /// and the lock of its leader, and what belongs to the platform itself, whose names begin with a dot.
    pub fn is_empty(&self) -> bool {
        self.tree.iter().all(|(key, _)| {
            let path = &key.place.path;
            let own = key.place.app.starts_with('.') && (path.depth() <= 2 || path.as_str().contains("/."));
            path.is_root() || path.as_str() == ACL_DIRECTORY || own
        })
    }

    /// Whether pieces of a backup wait for the next one.
    pub fn has_staged(&self) -> bool {
        self.staged.size > 0
    }

    /// Collects a backup; with its last piece verifies all of it and replaces the cell. What is damaged changes nothing.
    pub(super) fn restore_piece(&mut self, command: &v1::RestorePiece) -> Result<v1::CellApplied, Error> {
        if !command.replace && !self.is_empty() {
            self.staged = Staged::default();
            return Err(error::not_empty_cell());
        }
        let key = (command.total > 0).then(|| secret(&command.secret)).transpose()?;
        self.stage(command)?;
        let Some(key) = key else { return Ok(v1::CellApplied::default()) };
        let staged = std::mem::take(&mut self.staged);
        if staged.size != command.total {
            let why = format!("{} bytes came, and it has {}", staged.size, command.total);
            return Err(error::damaged_backup(staged.size.min(command.total), &why));
        }
        let backup = read(staged.pieces.iter().cloned().collect())?;
        // L1: its holder may be out of reach and believe in its lease for a while. The platform's own wait by themselves.
        if let Some((place, _)) = self.locks().find(|(place, _)| !place.app.starts_with('.')) {
            return Err(error::locks_in_use(&place.path));
        }
        self.replace(backup, Incarnation(command.incarnation), key);
        Ok(v1::CellApplied::default())
    }

    fn stage(&mut self, command: &v1::RestorePiece) -> Result<(), Error> {
        let end = command.offset.saturating_add(command.bytes.len() as u64);
        let repeated = end == self.staged.size && self.staged.pieces.last() == Some(&command.bytes);
        if repeated {
            return Ok(());
        }
        if command.offset == 0 {
            self.staged = Staged::default();
            // Nothing from the beginning: what came before is dropped.
            if command.bytes.is_empty() && command.total == 0 {
                return Ok(());
            }
        }
        if command.offset != self.staged.size {
            let why = "what begins here did not come; send the backup again from its beginning";
            return Err(error::damaged_backup(self.staged.size, why));
        }
        if end > MAX_BACKUP {
            self.staged = Staged::default();
            return Err(error::backup_too_large(MAX_BACKUP));
        }
        self.staged.push(command.bytes.clone());
        Ok(())
    }

    fn replace(&mut self, backup: Backup, at_least: Incarnation, key: [u8; 32]) {
        let elsewhere = Incarnation(backup.summary.incarnation).next();
        self.incarnation = self.incarnation.next().max(at_least).max(elsewhere);
        self.next_instance = self.next_instance.max(backup.instances);
        self.tree = backup.tree;
        self.tree.renumber(&mut self.next_instance);
        self.sessions = Sessions::default();
        (self.held, self.idle) = (ChunkMap::default(), ChunkMap::default());
        self.lists = Lists::default();
        for (key, node) in self.tree.iter().filter(|(key, node)| key.place.path.is_acl() && !node.directory) {
            self.lists.set(&key.place, Some(&node.contents));
        }
        let apps: Vec<Arc<str>> = self.tree.roots().collect();
        apps.iter().for_each(|app| self.ensure_app(app));
        self.keys.add(key);
        self.changed = Touched::All;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Node;
    use super::*;

    #[test]
    fn what_could_not_be_restored_is_not_made() {
        let mut state = Namespace::new();
        state.ensure_app("app");
        for n in 0..2_000u32 {
            let place = Place::parse("app", &format!("/{n}")).unwrap();
            let node = Node::file(u64::from(n) + 9, Bytes::from(vec![1; n as usize % 300]), Arc::default());
            state.tree.insert(NodeKey::new(place), node);
        }
        let size: u64 = pieces(&state).map(|piece| piece.len() as u64).sum();
        assert_eq!(pieces(&state).check(), Ok(()));
        assert_eq!(pieces(&state).check_within(size - 1).unwrap_err().code, "cell.too_large");
        assert_eq!(pieces(&state).check_within(size + size / 4), Ok(()), "the estimate is not far from it");
    }
}
