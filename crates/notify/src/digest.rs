//! F7: the digest of a set of registrations, and its descent by prefixes of hashes.
//!
//! A digest is a count and a sum of keyed 128-bit hashes modulo 2¹²⁸: independent of order, one addition a change. A
//! node of the descent is the same sum over the objects whose hashes begin with a prefix; no tree is stored.

use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_wire::v1;
use xxhash_rust::xxh3::Xxh3;

/// Children of a node.
pub const FAN_OUT: usize = 16;
/// A node of so many objects names them.
pub const LEAF: u32 = 32;
/// Up to so many objects a set is replaced whole.
pub const REPLACE_UP_TO: usize = 256;
/// Hexadecimal digits of a hash: no prefix is longer.
const DIGITS: usize = 32;
/// Prefixes of one query: an answer of 64 nodes stays below 64 KiB of names.
pub const MAX_PREFIXES: usize = 64;

/// The hash of an object under a client's salt.
pub fn hash(salt: &[u8], object: &[u8]) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&(salt.len() as u32).to_be_bytes());
    hasher.update(salt);
    hasher.update(object);
    hasher.digest128()
}

/// How many, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// How many objects.
    pub count: u32,
    /// The sum of their hashes.
    pub sum: u128,
}

impl Digest {
    /// The digest after an object came.
    pub fn add(&mut self, hash: u128) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(hash);
    }

    /// The digest after an object went.
    pub fn remove(&mut self, hash: u128) {
        self.count -= 1;
        self.sum = self.sum.wrapping_sub(hash);
    }

    /// The digest in a message, if it is one.
    pub fn of_message(message: &v1::RegistrationDigest) -> Option<Digest> {
        let sum = u128::from_be_bytes(message.sum.as_ref().try_into().ok()?);
        Some(Digest { count: message.count, sum })
    }
}

impl From<Digest> for v1::RegistrationDigest {
    fn from(digest: Digest) -> v1::RegistrationDigest {
        v1::RegistrationDigest { count: digest.count, sum: Bytes::copy_from_slice(&digest.sum.to_be_bytes()) }
    }
}

/// Whether a hash lies below a prefix of digits.
pub fn below(hash: u128, prefix: &[u8]) -> bool {
    prefix.len() <= DIGITS && prefix.iter().enumerate().all(|(at, digit)| digit_of(hash, at) == *digit)
}

fn digit_of(hash: u128, at: usize) -> u8 {
    (hash >> (124 - 4 * at)) as u8 & 0xf
}

/// What lies below a prefix: how many, the digests of the children, and the first names.
type Below<'a> = (u32, [Digest; FAN_OUT], Vec<&'a [u8]>);

/// Answers a query about a set, in one pass over it; `None` if a prefix is none.
pub fn answer<'a>(
    salt: &[u8],
    objects: impl Iterator<Item = &'a [u8]>,
    prefixes: &[Bytes],
) -> Option<Vec<v1::SyncNode>> {
    let valid = |prefix: &Bytes| prefix.len() < DIGITS && prefix.iter().all(|digit| usize::from(*digit) < FAN_OUT);
    if prefixes.len() > MAX_PREFIXES || !prefixes.iter().all(valid) {
        return None;
    }
    let mut nodes: BTreeMap<&[u8], Below<'_>> =
        prefixes.iter().map(|prefix| (prefix.as_ref(), Default::default())).collect();
    // Which lengths there are below two digits, as bits: whatever is asked for, few objects are looked for more than once.
    let mut lengths = [0u32; FAN_OUT * FAN_OUT];
    for prefix in prefixes {
        let of = |at: usize| prefix.get(at).map_or(0..FAN_OUT, |digit| usize::from(*digit)..usize::from(*digit) + 1);
        for (first, second) in of(0).flat_map(|first| of(1).map(move |second| (first, second))) {
            lengths[first * FAN_OUT + second] |= 1 << prefix.len();
        }
    }
    let mut path = [0; DIGITS];
    for object in objects {
        let hash = hash(salt, object);
        path.iter_mut().enumerate().for_each(|(at, digit)| *digit = digit_of(hash, at));
        let mut wanted = lengths[usize::from(path[0]) * FAN_OUT + usize::from(path[1])];
        while wanted != 0 {
            let length = wanted.trailing_zeros() as usize;
            wanted &= wanted - 1;
            if let Some((count, children, names)) = nodes.get_mut(&path[..length]) {
                *count += 1;
                children[usize::from(path[length])].add(hash);
                if *count <= LEAF {
                    names.push(object);
                }
            }
        }
    }
    let node = |(prefix, (count, children, names)): (&[u8], Below<'_>)| {
        let leaf = count <= LEAF;
        let children = if leaf { Vec::new() } else { children.map(Into::into).to_vec() };
        let objects = if leaf { names.into_iter().map(Bytes::copy_from_slice).collect() } else { Vec::new() };
        v1::SyncNode { prefix: Bytes::copy_from_slice(prefix), leaf, children, objects }
    };
    Some(nodes.into_iter().map(node).collect())
}

/// The digests of a node's children in a set.
pub fn children(hashes: impl Iterator<Item = u128>, prefix: &[u8]) -> [Digest; FAN_OUT] {
    let mut children = [Digest::default(); FAN_OUT];
    for hash in hashes.filter(|hash| below(*hash, prefix)) {
        children[usize::from(digit_of(hash, prefix.len()))].add(hash);
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hashes_are_pinned() {
        // Both sides, of every version, compute the same.
        assert_eq!(hash(&[7; 16], b"object"), 60_169_108_767_705_709_924_138_237_480_350_342_201);
        assert_ne!(hash(&[7; 16], b"object"), hash(&[8; 16], b"object"));
        assert_ne!(hash(b"ab", b"c"), hash(b"a", b"bc"));
    }

    proptest! {
        #[test]
        fn a_digest_forgets_the_order_and_what_went(mut names in proptest::collection::btree_set(".{0,6}", 0..20), gone in ".{0,6}") {
            let mut digest = Digest::default();
            names.iter().rev().for_each(|name| digest.add(hash(b"salt", name.as_bytes())));
            if names.insert(gone.clone()) {
                digest.add(hash(b"salt", gone.as_bytes()));
            }
            digest.remove(hash(b"salt", gone.as_bytes()));
            names.remove(&gone);
            let mut again = Digest::default();
            names.iter().for_each(|name| again.add(hash(b"salt", name.as_bytes())));
            prop_assert_eq!(digest, again);
            prop_assert_eq!(Digest::of_message(&digest.into()), Some(digest));
        }
    }

    #[test]
    fn an_answer_is_the_sum_over_each_prefix() {
        let names: Vec<String> = (0..2_000).map(|i| format!("object-{i}")).collect();
        let objects = || names.iter().map(|name| name.as_bytes());
        let root = answer(b"s", objects(), &[Bytes::new()]).unwrap().remove(0);
        assert!(!root.leaf && root.children.len() == FAN_OUT);
        let hashes = || objects().map(|name| hash(b"s", name));
        for (at, child) in children(hashes(), &[]).into_iter().enumerate() {
            assert_eq!(root.children[at], child.into());
        }
        let deep = answer(b"s", objects(), &[vec![3, 1, 4].into(), vec![3].into()]).unwrap();
        assert!(!deep[0].leaf && deep[1].leaf);
        assert!(deep[1].objects.iter().all(|name| below(hash(b"s", name), &[3, 1, 4])));
        assert_eq!(answer(b"s", objects(), &[vec![16].into()]), None);
        assert_eq!(answer(b"s", objects(), &[vec![0; 32].into()]), None);
    }
}
