//! R1: how busy a partition is, and where. One that stays busy is cut in the middle of what is asked for, so that its halves may
//! find owners of their own; where one record is what everybody wants a cut would not help. One that has long been quiet may be
//! joined with a neighbour that is as quiet: together they are then far below what is cut.

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

/// A partition with less than this part of the requests that make one busy, and of the bytes that make one large, is quiet.
/// Two that are joined have half of what is cut at most.
const QUIET: u64 = 4;
/// How often it is said that a partition is quiet, or has grown.
pub(super) const SAID: Duration = Duration::from_secs(60);

/// How busy a partition is.
#[derive(Debug, Default)]
pub(super) struct Load {
    begun: Mono,
    /// When it was not quiet last, and when it was said that it is.
    loud: Mono,
    said: Mono,
    requests: u64,
    busy: u32,
    /// Requests for one record each, and some of the keys that were asked for last, in no order.
    keyed: u64,
    keys: Vec<Key>,
}

/// Whether a partition of so many bytes is small enough to be joined with another.
pub(super) fn is_small(bytes: u64, grown: u64) -> bool {
    bytes < grown / QUIET
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
        self.busy = if self.many(passed, busy) { self.busy + 1 } else { 0 };
        self.end_window(now, busy);
        if self.busy < WINDOWS || self.keys.len() < SAMPLED {
            return None;
        }
        self.busy = 0;
        self.middle()
    }

    /// The partition is served from now on; nothing is known of it.
    pub fn begin(&mut self, now: Mono) {
        (self.begun, self.loud, self.said) = (now, now, now);
    }

    /// Whether it has had few requests for so long. Nobody need ask anything for that to be noticed.
    pub fn is_quiet(&mut self, now: Mono, busy: u64, long: Duration) -> bool {
        if now.since(self.begun) > 2 * WINDOW {
            self.busy = 0;
            self.end_window(now, busy);
        }
        // A window that is full already need not end.
        if self.many(WINDOW, busy / QUIET) {
            self.loud = now;
        }
        now.since(self.loud) >= long
    }

    /// The same, if it is time to say so.
    pub fn says_quiet(&mut self, now: Mono, busy: u64, long: Duration) -> bool {
        let says = self.is_quiet(now, busy, long) && now.since(self.said) >= SAID.min(long);
        if says {
            self.said = now;
        }
        says
    }

    /// Whether there were as many requests as that a second.
    fn many(&self, passed: Duration, rate: u64) -> bool {
        u128::from(self.requests) >= u128::from(rate) * passed.as_millis() / 1_000
    }

    fn end_window(&mut self, now: Mono, busy: u64) {
        if self.requests > 0 && self.many(now.since(self.begun), busy / QUIET) {
            self.loud = now;
        }
        (self.begun, self.requests) = (now, 0);
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
    fn what_has_few_requests_for_long_is_quiet_and_says_so_now_and_then() {
        let (long, at) = (Duration::from_secs(600), |seconds| Mono(0) + Duration::from_secs(seconds));
        let mut load = Load::default();
        load.begin(at(1_000));
        assert!(!load.is_quiet(at(1_599), BUSY, long), "it was not looked at for long enough");
        assert!(load.is_quiet(at(1_600), BUSY, long) && load.says_quiet(at(1_601), BUSY, long));
        assert!(!load.says_quiet(at(1_650), BUSY, long) && load.says_quiet(at(1_661), BUSY, long));
        // A few more than a quarter of what is busy, for a quarter of a minute.
        cuts(&mut load, 2_000, 15, BUSY / QUIET + 2, spread);
        assert!(!load.is_quiet(at(2_020), BUSY, long) && !load.is_quiet(at(2_600), BUSY, long));
        // And fewer than that for as long as one likes.
        cuts(&mut load, 2_601, 700, BUSY / QUIET - 2, spread);
        assert!(load.is_quiet(at(3_301), BUSY, long));
        // Many at once are noticed before their window has ended.
        for _ in 0..BUSY * 10 {
            load.count(at(3_302), None, BUSY);
        }
        assert!(!load.is_quiet(at(3_303), BUSY, long) && !load.is_quiet(at(3_370), BUSY, long));
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
