//! Lookups and checks: what every request of an application pays.

use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::stopwatch::Stopwatch;
use std::hint::black_box;
use std::time::Duration;
use tidings_base::{Error, KeyHash, KeyRange, LeaseNumber, Seeded};
use tidings_client::placement::{Clock, Directory, Leased, TableOwner};
use tidings_placement::check::{Checks, Holding};
use tidings_placement::lookup::{Row, Table};

/// The pool: as in the paper's testbed.
const OWNERS: u32 = 200;
const RANGES: u32 = 64;

/// What a lookup and a check may cost.
const LOOKUP_NS: f64 = 10.0;
const CHECK_NS: f64 = 25.0;
/// Where there is no fast clock: a check costs a clock read and this.
const BESIDE_CLOCK_NS: f64 = 10.0;

/// A table of 12,800 ranges with random borders, owned in turn by chance.
fn table(rng: &mut Seeded) -> Table {
    let mut starts: Vec<u64> = (1..OWNERS * RANGES).map(|_| rng.next_u64()).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let mut table = Table::default();
    for (i, start) in starts.iter().enumerate() {
        let last = starts.get(i + 1).map_or(u64::MAX, |next| next - 1);
        let owner = Some(1 + rng.below(OWNERS.into()) as u32);
        let lease = LeaseNumber::new(i as u32 + 1).unwrap_or_default();
        table.rows.insert(KeyHash(*start), Row { last: KeyHash(last), owner, lease });
    }
    for index in 1..=OWNERS {
        table.owners.insert(index, TableOwner { id: format!("owner-{index}"), address: format!("host-{index}:1") });
    }
    table
}

/// What one owner of that table checks against.
fn checks(table: &Table, clock: &Clock) -> Checks {
    let checks = Checks::new();
    let until = clock.mono() + Duration::from_secs(3_600);
    let own = table.rows.iter().filter(|(_, row)| row.owner == Some(1));
    let holdings: Vec<Holding> = own
        .map(|(start, row)| {
            let leased = Leased { range: KeyRange::new(*start, row.last), lease: row.lease };
            Holding { leased, until }
        })
        .collect();
    checks.publish(&holdings);
    checks
}

/// Nanoseconds that one call takes, over all keys.
fn nanos<T>(keys: &[T], mut call: impl FnMut(&T) -> u64) -> f64 {
    let (watch, mut sum) = (Stopwatch::start(), 0u64);
    for key in keys {
        sum = sum.wrapping_add(call(key));
    }
    black_box(sum);
    watch.elapsed().as_secs_f64() * 1e9 / keys.len() as f64
}

pub fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let mut rng = Seeded::new(1);
    let table = table(&mut rng);
    let directory = Directory::of(&table);
    let (boot, fast) = (Clock::boot(), Clock::fast());
    let checks = checks(&table, &boot);
    let hashes: Vec<KeyHash> = (0..effort.placement.reads).map(|_| KeyHash(rng.next_u64())).collect();
    // Half of the keys that an owner is asked for are its own; a check of another's ends at the search.
    let own: Vec<KeyHash> = own_keys(&table, &mut rng, effort.placement.reads);
    let names: Vec<String> = hashes.iter().take(1 << 16).map(|hash| format!("user/{:016x}", hash.0)).collect();

    let mut repeat = |name: &str, goal, call: &mut dyn FnMut() -> f64| {
        let taken: Vec<f64> = (0..effort.repetitions).map(|_| call()).collect();
        figures.add(name, "ns", goal, &taken);
        taken[taken.len() / 2]
    };
    let goal = Some(Goal::AtMost(LOOKUP_NS));
    let find = |hash: &KeyHash| directory.find(*hash).map_or(0, |found| u64::from(found.owner));
    repeat("placement: lookup, 200 owners × 64 ranges, hashed keys", goal, &mut || nanos(&hashes, find));
    let hash = |name: &String| KeyHash::of(name.as_bytes()).0;
    repeat("placement: hashing a key of 21 bytes", None, &mut || nanos(&names, hash));
    let bare = repeat("placement: bare read of boot time", None, &mut || nanos(&hashes, |_| boot.mono().0));
    let by_boot = |hash: &KeyHash| checks.check_now(*hash, || boot.mono()).map_or(0, |lease| u64::from(lease.get()));
    let goal = Some(Goal::AtMost(bare + BESIDE_CLOCK_NS));
    repeat("placement: check by boot time", goal, &mut || nanos(&own, by_boot));
    if fast.is_fast() {
        let name = "placement: bare read of the time-stamp counter";
        repeat(name, None, &mut || nanos(&hashes, |_| fast.mono().0));
        let by_tsc = |hash: &KeyHash| checks.check_now(*hash, || fast.mono()).map_or(0, |lease| lease.get().into());
        let goal = Some(Goal::AtMost(CHECK_NS));
        repeat("placement: check by the time-stamp counter", goal, &mut || nanos(&own, by_tsc));
    } else {
        eprintln!("  no time-stamp counter that can be trusted: checks were measured by boot time only");
    }
    scaling(&checks, &own, if fast.is_fast() { &fast } else { &boot }, figures);
    Ok(())
}

fn own_keys(table: &Table, rng: &mut Seeded, count: usize) -> Vec<KeyHash> {
    let ranges: Vec<(u64, u64)> =
        (table.rows.iter()).filter(|(_, row)| row.owner == Some(1)).map(|(start, row)| (start.0, row.last.0)).collect();
    let key = |_| match rng.pick(&ranges).copied() {
        Some((start, last)) => KeyHash(rng.between(start, last)),
        None => KeyHash(rng.next_u64()),
    };
    (0..count).map(key).collect()
}

/// Checks a second by all cores over those by one: nothing is written, so nothing should be shared.
fn scaling(checks: &Checks, keys: &[KeyHash], clock: &Clock, figures: &mut Figures) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let call = |hash: &KeyHash| checks.check_now(*hash, || clock.mono()).map_or(0, |lease| u64::from(lease.get()));
    let one = 1.0 / nanos(keys, call);
    let all: f64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| 1.0 / nanos(keys, call))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
    });
    figures.add(&format!("placement: checks by {threads} threads over those by one"), "×", None, &[all / one]);
}
