//! Snapshots: the state of a replica at a height, as bytes that are the same at every honest one.
//!
//! Replies to clients are part of it: a replica that caught up by state transfer answers retransmissions too (rule F). Each
//! replica signs the hash of its own; f + 1 equal ones contain an honest one's (rule G). Of a service that the order alone does
//! not decide, which commands were answered is part of it, and not what the answers were: honest replicas differ in them.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::frame::{LONGEST_RESULT, put_sigma, read_sigma};
use crate::keys::{Purpose, Secret, Signature};
use crate::membership::Membership;
use crate::mutant::Mutant;
use crate::seat::Durable;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidings_base::Incarnation;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::{Replica, WINDOW, Window};

/// A snapshot is taken every so many blocks: at the same heights everywhere.
pub const EVERY: u64 = 256;
/// The longest snapshot that is taken over from others.
pub const LONGEST: usize = 1 << 30;

const FORMAT: u8 = 1;

/// A replica's state at a height.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last block that it has executed.
    pub height: u64,
    /// Of the bytes.
    pub hash: [u8; 32],
    /// The state.
    pub bytes: Bytes,
}

impl Snapshot {
    /// The snapshot of a replica's state.
    pub fn of<S: Durable>(replica: &Replica<S>) -> Snapshot {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        out.put_u64(replica.incarnation().0);
        out.put_u64(replica.height());
        out.put_u64(replica.windows().len() as u64);
        for (client, window) in replica.windows() {
            out.put_u64(client);
            out.put_u64(window.floor);
            out.put_u64(window.replies.len() as u64);
            for (nonce, (sigma, result)) in &window.replies {
                out.put_u64(*nonce);
                put_sigma(&mut out, *sigma);
                put_bytes(&mut out, if S::ORDERED { result } else { &[] });
            }
        }
        replica.service().save(&mut out);
        Snapshot::from_bytes(replica.height(), out.freeze())
    }

    /// What these bytes would be the snapshot of.
    pub fn from_bytes(height: u64, bytes: Bytes) -> Snapshot {
        Snapshot { height, hash: *blake3::hash(&bytes).as_bytes(), bytes }
    }

    /// The replica that it is of, in this life of the group, which began with this service.
    pub fn replica<S: Durable>(&self, life: Incarnation, empty: &S) -> Result<Replica<S>, Malformed> {
        let replica = self.whole(empty)?;
        if replica.incarnation() == life { Ok(replica) } else { Err(Malformed::Unknown) }
    }

    /// The replica that begins this life of the group with what was left of an earlier one.
    pub fn reborn<S: Durable>(&self, life: Incarnation, empty: &S) -> Result<Replica<S>, Malformed> {
        let replica = self.whole(empty)?;
        if replica.incarnation() < life { Ok(replica.reborn(life)) } else { Err(Malformed::Unknown) }
    }

    fn whole<S: Durable>(&self, empty: &S) -> Result<Replica<S>, Malformed> {
        let mut reader = Reader::new(self.bytes.clone());
        let (format, life, height) = (reader.byte()?, Incarnation(reader.number()?), reader.number()?);
        if format != FORMAT || height != self.height {
            return Err(Malformed::Unknown);
        }
        let mut clients = BTreeMap::new();
        for _ in 0..reader.number()? {
            let client = reader.number()?;
            clients.insert(client, read_window(&mut reader)?);
        }
        let service = empty.load(&mut reader)?;
        reader.end()?;
        Ok(Replica::restored(life, height, clients, service))
    }
}

fn read_window(reader: &mut Reader) -> Result<Window, Malformed> {
    let (floor, mut known) = (reader.number()?, BTreeMap::new());
    let replies = reader.number()?;
    if replies > WINDOW as u64 {
        return Err(Malformed::Long);
    }
    for _ in 0..replies {
        let (nonce, sigma) = (reader.number()?, read_sigma(reader)?);
        // Copied, so that a reply does not keep the whole snapshot in memory.
        known.insert(nonce, (sigma, Bytes::copy_from_slice(&reader.bytes(LONGEST_RESULT)?)));
    }
    Ok(Window::new(floor, known))
}

/// One replica's word for the hash of its state at a height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// The height.
    pub height: u64,
    /// The hash of the state there.
    pub hash: [u8; 32],
    /// Of the replica, for its group.
    pub signature: Signature,
}

impl Attestation {
    /// Gives a replica's word.
    pub fn new(group: &Membership, secret: &Secret, snapshot: &Snapshot) -> Attestation {
        let (height, hash) = (snapshot.height, snapshot.hash);
        let signature = secret.sign(Purpose::Snapshot, &attested(group, height, &hash));
        Attestation { height, hash, signature }
    }

    /// Whether this replica gave it.
    pub fn verify(&self, group: &Membership, by: ReplicaId) -> bool {
        let member = group.replicas().get(usize::from(by.0));
        let message = attested(group, self.height, &self.hash);
        member.is_some_and(|member| member.key.verify(Purpose::Snapshot, &message, &self.signature))
    }
}

fn attested(group: &Membership, height: u64, hash: &[u8; 32]) -> Vec<u8> {
    [group.identity().as_slice(), &height.to_be_bytes(), hash].concat()
}

/// Who has given their word for what: the latest word of each replica counts.
#[derive(Debug, Default)]
pub struct Tally {
    words: BTreeMap<ReplicaId, Attestation>,
    mutant: Option<Mutant>,
}

impl Tally {
    /// Takes a replica's word, if it is its own.
    pub fn add(&mut self, group: &Membership, by: ReplicaId, word: Attestation) -> bool {
        let right = word.verify(group, by);
        if right {
            self.words.insert(by, word);
        }
        right
    }

    /// The same without a rule, for tests.
    #[doc(hidden)]
    pub fn without(self, mutant: Option<Mutant>) -> Tally {
        Tally { mutant, ..self }
    }

    /// The highest state that f + 1 have given their word for, and who they are.
    pub fn agreed(&self, group: &Membership) -> Option<(u64, [u8; 32], BTreeSet<ReplicaId>)> {
        let mut said: BTreeMap<(u64, [u8; 32]), BTreeSet<ReplicaId>> = BTreeMap::new();
        for (by, word) in &self.words {
            said.entry((word.height, word.hash)).or_default().insert(*by);
        }
        let fewer = if self.mutant == Some(Mutant::OneWordEnough) { 0 } else { usize::from(group.faults()) };
        let enough = |by: &BTreeSet<ReplicaId>| by.len() > fewer;
        let ((height, hash), by) = said.into_iter().rev().find(|(_, by)| enough(by))?;
        Some((height, hash, by))
    }
}

/// What a replica has kept.
#[derive(Debug, Default)]
pub struct Kept {
    /// The last state of an earlier life, with which this one begins.
    pub first: Option<Snapshot>,
    /// A state of this life.
    pub latest: Option<Snapshot>,
}

/// Where a replica keeps its latest snapshot.
#[derive(Debug)]
pub struct Shelf {
    directory: PathBuf,
}

impl Shelf {
    /// The shelf in a directory, which is made if it is not there.
    pub fn open(directory: &Path) -> io::Result<Shelf> {
        fs::create_dir_all(directory)?;
        Ok(Shelf { directory: directory.to_owned() })
    }

    /// Keeps a snapshot in place of the one before. It is there after a crash, whole.
    pub fn keep(&self, snapshot: &Snapshot) -> io::Result<()> {
        let (whole, half) = (self.directory.join("snapshot"), self.directory.join("snapshot.new"));
        let mut file = File::create(&half)?;
        file.write_all(&snapshot.hash)?;
        file.write_all(&snapshot.height.to_be_bytes())?;
        file.write_all(&snapshot.bytes)?;
        file.sync_all()?;
        fs::rename(half, whole)?;
        File::open(&self.directory)?.sync_all()
    }

    /// The one that was kept, as what it is in this life of the group.
    pub fn kept(&self, group: &Membership) -> io::Result<Kept> {
        let latest = self.latest()?;
        let is_first = latest.as_ref().is_some_and(|snapshot| group.begins() == Some(&snapshot.hash));
        Ok(if is_first { Kept { first: latest, latest: None } } else { Kept { first: None, latest } })
    }

    /// The one that was kept, if there is one. A damaged one is an error, not none.
    pub fn latest(&self) -> io::Result<Option<Snapshot>> {
        let bytes = match fs::read(self.directory.join("snapshot")) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut reader = Reader::new(bytes.clone());
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the snapshot is damaged");
        let (hash, height) = (reader.array::<32>(), reader.number());
        let (Ok(hash), Ok(height)) = (hash, height) else { return Err(damaged()) };
        let snapshot = Snapshot::from_bytes(height, bytes.slice(40..));
        if snapshot.hash == hash { Ok(Some(snapshot)) } else { Err(damaged()) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kv::{KeyValue, Request};
    use crate::membership::tests::group;
    use tidings_sketch::direct::Reads;
    use tidings_sketch::replica::{Block, Command, Service};
    use tidings_sketch::sigma::Sigma;

    /// A page that is another one at each replica.
    #[derive(Clone, Debug)]
    pub(crate) struct Page(pub &'static str);

    impl Service for Page {
        fn execute(&mut self, _: Sigma, _: &Bytes) -> Bytes {
            Bytes::from_static(self.0.as_bytes())
        }
    }

    impl Reads for Page {
        fn is_read(&self, _: &Bytes) -> bool {
            true
        }

        fn read(&self, _: &Bytes) -> Bytes {
            Bytes::from_static(self.0.as_bytes())
        }
    }

    impl Durable for Page {
        const ORDERED: bool = false;

        fn save(&self, _: &mut BytesMut) {}

        fn load(&self, _: &mut Reader) -> Result<Page, Malformed> {
            Ok(self.clone())
        }
    }

    fn replica() -> Replica<KeyValue> {
        let mut replica = Replica::new(Incarnation(1), [1, 2], KeyValue::default());
        for height in 1..=3 {
            let request = Request::Put(Bytes::from(vec![height as u8]), Bytes::from_static(b"value")).encoded();
            replica.execute(&Block { height, commands: vec![Command { client: 1, nonce: height, request }] });
        }
        replica
    }

    #[test]
    fn a_replica_comes_back_with_the_replies_it_gave() {
        let replica = replica();
        let snapshot = Snapshot::of(&replica);
        assert_eq!(snapshot.replica(Incarnation(1), &KeyValue::default()), Ok(replica.clone()));
        let again: Replica<KeyValue> = snapshot.replica(Incarnation(1), &KeyValue::default()).unwrap();
        assert_eq!(again.replied(1, 2), replica.replied(1, 2));
        assert!(snapshot.replica(Incarnation(2), &KeyValue::default()).is_err(), "of another life");
        assert_eq!(snapshot.reborn(Incarnation(2), &KeyValue::default()), Ok(replica.clone().reborn(Incarnation(2))));
        assert!(snapshot.reborn(Incarnation(1), &KeyValue::default()).is_err(), "of the same life");
        for short in 0..snapshot.bytes.len() {
            let cut = Snapshot::from_bytes(3, snapshot.bytes.slice(..short));
            assert!(cut.replica(Incarnation(1), &KeyValue::default()).is_err());
        }
    }

    #[test]
    fn of_answers_that_differ_between_replicas_snapshots_hold_that_they_were_given() {
        let block =
            |height| Block { height, commands: vec![Command { client: 1, nonce: height, request: Bytes::new() }] };
        let replicas = ["morning", "evening"].map(|says| {
            let mut replica = Replica::new(Incarnation(1), [1], Page(says));
            (1..=3).for_each(|height| drop(replica.execute(&block(height))));
            replica
        });
        assert_ne!(replicas[0].replied(1, 2), replicas[1].replied(1, 2));
        let [mut one, other] = replicas;
        assert_eq!(Snapshot::of(&one), Snapshot::of(&other));
        // Whoever goes on from there takes the same snapshots as who never stopped.
        let mut again = Snapshot::of(&one).replica(Incarnation(1), &Page("night")).unwrap();
        for height in [4, 5] {
            one.execute(&block(height));
            again.execute(&block(height));
        }
        again.execute(&Block { height: 6, ..block(2) });
        one.execute(&Block { height: 6, ..block(2) });
        assert_eq!(Snapshot::of(&one), Snapshot::of(&again));
    }

    #[test]
    fn f_and_one_equal_signed_hashes_are_enough_and_fewer_are_not() {
        let founded = group("one");
        let (membership, snapshot) = (&founded.membership, Snapshot::of(&replica()));
        let forged = Snapshot { hash: [9; 32], height: 9, ..snapshot.clone() };
        let word = |by: usize, of: &Snapshot| Attestation::new(membership, &founded.replicas[by].secret, of);
        let mut tally = Tally::default();
        assert!(!tally.add(membership, ReplicaId(1), word(0, &snapshot)), "another one's word");
        assert!(tally.add(membership, ReplicaId(0), word(0, &forged)) && tally.agreed(membership).is_none());
        assert!(tally.add(membership, ReplicaId(1), word(1, &snapshot)) && tally.agreed(membership).is_none());
        assert!(tally.add(membership, ReplicaId(2), word(2, &snapshot)));
        let agreed = tally.agreed(membership);
        assert_eq!(agreed, Some((3, snapshot.hash, BTreeSet::from([ReplicaId(1), ReplicaId(2)]))));
    }

    #[test]
    fn a_kept_snapshot_is_found_and_a_damaged_one_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(directory.path()).unwrap();
        assert_eq!(shelf.latest().unwrap(), None);
        let snapshot = Snapshot::of(&replica());
        shelf.keep(&snapshot).unwrap();
        assert_eq!(shelf.latest().unwrap(), Some(snapshot));
        let path = directory.path().join("snapshot");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(shelf.latest().is_err());
    }
}
