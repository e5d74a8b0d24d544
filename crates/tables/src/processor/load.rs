//! R1: how busy a partition is, and where. One that stays busy is cut in the middle of what is asked for, so that its halves may
//! find owners of their own; where one record is what everybody wants a cut would not help.

use crate::rows;
use std::time::Duration;
use tidings_base::Mono;
use tidings_predicate::Key;

/// How long requests are counted, and how many times in a row they must be many.
const WINDOW: Duration = Duration::from_secs(10);
const WINDOWS: u32 = 3;
/// Keys that are remembered, one of so many requests: whoever asks in turns seldom does so in as many.
const SAMPLED: usize = 64;
const ONE_OF: u64 = 17;
/// Of those that are remembered, how many each half must have.
const LEAST: usize = SAMPLED / 4;

/// How busy a partition is.
#[derive(Debug, Default)]
pub(super) struct Load {
    begun: Mono,
    requests: u64,
    busy: u32,
    /// Requests for one record each, and some of the keys that were asked for last, in no order.
    keyed: u64,
    keys: Vec<Key>,
}

impl Load {
    /// Counts a request for a record, or for several; where to cut, if there were as many a second as `busy` for long. It is
    /// said again if nothing comes of it.
    pub fn count(&mut self, now: Mono, key: Option<&Key>, busy: u64) -> Option<Key> {
        self.requests += 1;
        if let Some(key) = key {
            self.keyed += 1;
            if self.keyed.is_multiple_of(ONE_OF) {
                match self.keys.get_mut((self.keyed / ONE_OF) as usize % SAMPLED) {
                    Some(old) => old.clone_from(key),
                    None => self.keys.push(key.clone()),
                }
            }
        }
        let passed = now.since(self.begun);
        if passed < WINDOW {
            return None;
        }
        // After a pause the first request begins anew.
        let many = u128::from(self.requests) >= u128::from(busy) * passed.as_millis() / 1_000;
        self.busy = if many { self.busy + 1 } else { 0 };
        (self.begun, self.requests) = (now, 0);
        if self.busy < WINDOWS || self.keys.len() < SAMPLED {
            return None;
        }
        self.busy = 0;
        self.middle()
    }

    /// A key that parts what was asked for about in half, if there is one.
    fn middle(&self) -> Option<Key> {
        let mut keys: Vec<&Key> = self.keys.iter().collect();
        keys.sort_unstable();
        let middle = keys[keys.len() / 2];
        let (before, behind) = (keys.partition_point(|key| *key < middle), keys.partition_point(|key| *key <= middle));
        let cut = [before, behind].into_iter().find(|cut| (LEAST..=keys.len() - LEAST).contains(cut))?;
        // Bounds are told to more than may read the record behind one: they are no longer than they must be.
        Some(rows::between(keys[cut - 1], keys[cut]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: u64 = 100;

    /// Asks for keys in turn, at a rate, for so many seconds; where it was said to cut.
    fn cuts(load: &mut Load, from: u64, seconds: u64, rate: u64, key: impl Fn(u64) -> Option<Key>) -> Vec<Key> {
        let at = |number| Mono(0) + Duration::from_secs(from) + Duration::from_millis(number * 1_000 / rate);
        (0..seconds * rate).filter_map(|number| load.count(at(number), key(number).as_ref(), BUSY)).collect()
    }

    /// As good as any number.
    fn any(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }

    fn spread(number: u64) -> Option<Key> {
        Some(format!("key-{:03}", any(number) % 1_000).as_str().into())
    }

    #[test]
    fn what_stays_busy_is_cut_in_the_middle_of_what_is_asked_for() {
        let mut load = Load::default();
        let cuts = cuts(&mut load, 100, 35, 2 * BUSY, spread);
        let [cut] = &cuts[..] else { panic!("{cuts:?}") };
        assert!((Key::from("key-2")..Key::from("key-8")).contains(cut), "{cut:?}");
    }

    #[test]
    fn what_is_busy_for_a_moment_or_never_is_not() {
        let mut load = Load::default();
        assert_eq!(cuts(&mut load, 100, 60, BUSY / 2, spread), []);
        for minute in 3..10 {
            assert_eq!(cuts(&mut load, minute * 60, 15, 5 * BUSY, spread), []);
        }
    }

    #[test]
    fn one_record_that_everybody_wants_is_not_cut_in_half() {
        let hot = |number: u64| if any(number) % 10 < 9 { Some("key-5".into()) } else { spread(number) };
        let mut load = Load::default();
        assert_eq!(cuts(&mut load, 100, 120, 2 * BUSY, hot), []);
        // Whoever asks for everything says nothing of where.
        assert_eq!(cuts(&mut Load::default(), 100, 120, 2 * BUSY, |_| None), []);
    }

    #[test]
    fn a_hot_record_beside_others_is_parted_from_them() {
        let hot = |number: u64| if any(number) % 10 < 5 { Some("a-hot-one".into()) } else { spread(number) };
        let cuts = cuts(&mut Load::default(), 100, 35, 2 * BUSY, hot);
        assert!(cuts.iter().all(|cut| Key::from("a-hot-one") < *cut), "{cuts:?}");
        assert_eq!(cuts.len(), 1);
    }
}
