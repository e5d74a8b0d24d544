//! How two versions of a page differ: by content-defined chunks of 1 KiB in expectation, at least 20 for small pages (§8).

use std::collections::BTreeMap;

/// The expected length of a chunk.
const EXPECTED: usize = 1_024;
/// Small pages are cut into so many at least, in expectation.
const LEAST: usize = 20;
/// The shortest chunk that is aimed for.
const SHORTEST: usize = 16;

/// How a version differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The share of its chunks that the one before did not have.
    pub new_chunks: f64,
    /// Whether one contiguous insertion, deletion or replacement made it, which kept at least half of the chunks and at most
    /// doubled their number.
    pub one_edit: bool,
}

/// Numbers that look random, one for each byte: what makes boundaries depend on content alone.
fn gear() -> [u64; 256] {
    let mut state = 0x5eed_u64;
    std::array::from_fn(|_| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    })
}

/// The expected length of chunks of a page of this length: a power of two.
fn aim(length: usize) -> usize {
    let wanted = (length / LEAST).clamp(SHORTEST, EXPECTED);
    1 << wanted.ilog2()
}

/// The hashes of a page's chunks; a boundary is where the last bytes say so, whatever comes before them.
fn cut(page: &[u8], aim: usize) -> Vec<[u8; 16]> {
    let (gear, mask) = (gear(), ((aim - 1) as u64) << 32);
    let (mut chunks, mut start, mut rolling) = (Vec::new(), 0, 0u64);
    let hash = |chunk: &[u8]| {
        let mut short = [0; 16];
        short.copy_from_slice(&tidings_sketch::sketch::BodyHash::of(chunk).0[..16]);
        short
    };
    for (at, byte) in page.iter().enumerate() {
        // The oldest byte leaves the hash as it is shifted out.
        rolling = (rolling << 1).wrapping_add(gear[usize::from(*byte)]);
        if rolling & mask == 0 && at + 1 > start {
            chunks.push(hash(&page[start..=at]));
            start = at + 1;
        }
    }
    if start < page.len() {
        chunks.push(hash(&page[start..]));
    }
    chunks
}

/// A page cut up, so that it need not be kept.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    aim: usize,
    chunks: Vec<[u8; 16]>,
}

impl Chunks {
    /// Cuts a page up.
    pub fn of(page: &[u8]) -> Chunks {
        let aim = aim(page.len());
        Chunks { aim, chunks: cut(page, aim) }
    }

    /// What they take in memory.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * 16
    }

    /// How a page differs from this one before it.
    pub fn difference(&self, after: &[u8]) -> Difference {
        let (old, new) = (&self.chunks, cut(after, self.aim.max(SHORTEST)));
        let mut had: BTreeMap<[u8; 16], usize> = BTreeMap::new();
        old.iter().for_each(|chunk| *had.entry(*chunk).or_default() += 1);
        let known = new.iter().filter(|chunk| match had.get_mut(*chunk) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        });
        let known = known.count();
        let head = old.iter().zip(&new).take_while(|(left, right)| left == right).count();
        let tails = old[head..].iter().rev().zip(new[head..].iter().rev());
        let tail = tails.take_while(|(left, right)| left == right).count();
        Difference {
            new_chunks: if new.is_empty() { 0.0 } else { 1.0 - known as f64 / new.len() as f64 },
            one_edit: 2 * (head + tail) >= old.len() && new.len() <= 2 * old.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(before: &[u8], after: &[u8]) -> Difference {
        Chunks::of(before).difference(after)
    }

    fn page(seed: u64, length: usize) -> Vec<u8> {
        let mut rng = tidings_base::Seeded::new(seed);
        (0..length).map(|_| rng.below(256) as u8).collect()
    }

    #[test]
    fn chunks_are_as_long_as_expected_and_pages_are_whole() {
        let big = page(1, 1 << 20);
        let chunks = cut(&big, aim(big.len())).len();
        assert!((700..1_400).contains(&chunks), "{chunks} chunks of 1 MiB");
        let small = page(2, 2_000);
        assert!(cut(&small, aim(small.len())).len() >= 15);
        assert_eq!(cut(&[], aim(0)).len(), 0);
    }

    #[test]
    fn one_edit_is_told_from_many() {
        let before = page(3, 200_000);
        let mut inserted = before.clone();
        inserted.splice(100_000..100_000, *b"load balancer 7");
        let found = difference(&before, &inserted);
        assert!(found.one_edit && found.new_chunks > 0.0 && found.new_chunks < 0.05, "{found:?}");
        let mut scattered = before.clone();
        (0..200_000).step_by(20_000).for_each(|at| scattered[at] ^= 0xff);
        let found = difference(&before, &scattered);
        assert!(!found.one_edit && found.new_chunks < 0.2, "{found:?}");
        assert_eq!(difference(&before, &page(4, 200_000)), Difference { new_chunks: 1.0, one_edit: false });
        assert_eq!(difference(&before, &before), Difference { new_chunks: 0.0, one_edit: true });
    }
}
