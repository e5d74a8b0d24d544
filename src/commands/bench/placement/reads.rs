//! Lookups and checks: what every request of an application pays, by the calls that it makes.

use super::canned::Canned;
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::runtime;
use crate::stopwatch::Stopwatch;
use std::hint::black_box;
use std::sync::Arc;
use tidings_base::{Class, Error, KeyHash, Seeded};
use tidings_client::placement::{Clock, Lookup, LookupOptions, Owner, OwnerOptions, OwnerState};
use tidings_wire::v1;

/// The pool: as in the paper's testbed.
const OWNERS: u32 = 200;
const RANGES: u32 = 64;
const NAMESPACE: &str = "bench";

/// What a lookup and a check may cost.
const LOOKUP_NS: f64 = 10.0;
const CHECK_NS: f64 = 25.0;
/// Where there is no fast clock: a check costs a clock read and this.
const BESIDE_CLOCK_NS: f64 = 10.0;

/// A table of 12,800 ranges with random borders, owned in turn by chance.
fn table(rng: &mut Seeded) -> v1::LookupAnswer {
    let mut starts: Vec<u64> = (1..OWNERS * RANGES).map(|_| rng.next_u64()).collect();
    starts.push(0);
    starts.sort_unstable();
    starts.dedup();
    let range = |(i, start): (usize, &u64)| v1::TableRange {
        start: *start,
        last: starts.get(i + 1).map_or(u64::MAX, |next| next - 1),
        owner: 1 + rng.below(OWNERS.into()) as u32,
        lease: i as u32 + 1,
        changed_lsn: 1,
        ..Default::default()
    };
    let ranges = starts.iter().enumerate().map(range).collect();
    let owner = |index| v1::TableOwner {
        index,
        id: format!("owner-{index}"),
        address: format!("host-{index}:1"),
        ..Default::default()
    };
    let owners = (1..=OWNERS).map(owner).collect();
    v1::LookupAnswer { epoch: 1, instance: 1, lsn: 1, snapshot: true, ranges, owners, ..Default::default() }
}

/// The library's own ends, and the keys that they are asked for.
struct Ends {
    lookup: Lookup,
    /// The first owner of the table, by each clock.
    by_boot: Owner,
    by_tsc: Option<Owner>,
    keys: Vec<KeyHash>,
    /// Keys of the first owner: a check of another's would end at the search.
    own: Vec<KeyHash>,
}

async fn owner(canned: &Arc<Canned>, clock: Clock) -> Result<Owner, Error> {
    let options = OwnerOptions::new(NAMESPACE, "owner-1", "host-1:1").clock(clock);
    let owner = Owner::join(canned.clone(), options).await?;
    // It is greeted first, and hears what it holds a moment later.
    while owner.held().is_empty() {
        if owner.state() == OwnerState::Left {
            return Err(Error::new("bench.no_leases", Class::Failed, "the owner was given nothing"));
        }
        tokio::task::yield_now().await;
    }
    Ok(owner)
}

async fn ends(reads: usize, fast: &Clock) -> Result<Ends, Error> {
    let mut rng = Seeded::new(1);
    let table = table(&mut rng);
    let own: Vec<v1::TableRange> = table.ranges.iter().filter(|range| range.owner == 1).cloned().collect();
    let lease = |range: &v1::TableRange| v1::LeasedRange { start: range.start, last: range.last, lease: range.lease };
    let canned = Arc::new(Canned { leases: own.iter().map(lease).collect(), table });
    let own_key = |rng: &mut Seeded| {
        rng.pick(&own)
            .map(|range| (range.start, range.last))
            .map_or(KeyHash(0), |(start, last)| KeyHash(rng.between(start, last)))
    };
    Ok(Ends {
        lookup: Lookup::connect(canned.clone(), LookupOptions::new(NAMESPACE)).await?,
        by_boot: owner(&canned, Clock::boot()).await?,
        by_tsc: match fast.is_fast() {
            true => Some(owner(&canned, fast.clone()).await?),
            false => None,
        },
        keys: (0..reads).map(|_| KeyHash(rng.next_u64())).collect(),
        own: (0..reads).map(|_| own_key(&mut rng)).collect(),
    })
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

fn find(lookup: &Lookup, hash: KeyHash) -> u64 {
    lookup.find(hash, |owner, lease| owner.address.len() as u64 + u64::from(lease.get())).unwrap_or_default()
}

fn hint(lookup: &Lookup, hash: KeyHash) -> u64 {
    let hint = lookup.lookup_hash(hash);
    hint.map_or(0, |hint| hint.address().len() as u64 + u64::from(hint.lease().get()))
}

fn check(owner: &Owner, hash: KeyHash) -> u64 {
    owner.check_hash(hash).map_or(0, |lease| lease.get().into())
}

pub fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let (boot, fast) = (Clock::boot(), Clock::fast());
    let runtime = runtime()?;
    let Ends { lookup, by_boot, by_tsc, keys, own } = runtime.block_on(ends(effort.placement.reads, &fast))?;
    let names: Vec<String> = keys.iter().take(1 << 16).map(|hash| format!("user/{:016x}", hash.0)).collect();

    let mut repeat = |name: &str, goal, call: &mut dyn FnMut() -> f64| {
        let taken: Vec<f64> = (0..effort.repetitions).map(|_| call()).collect();
        figures.add(name, "ns", goal, &taken);
        taken[taken.len() / 2]
    };
    let goal = Some(Goal::AtMost(LOOKUP_NS));
    let name = |call: &str| format!("placement: {call}, 200 owners × 64 ranges, hashed keys");
    repeat(&name("Lookup::find"), goal, &mut || nanos(&keys, |hash| find(&lookup, *hash)));
    repeat(&name("Lookup::lookup_hash"), goal, &mut || nanos(&keys, |hash| hint(&lookup, *hash)));
    let hash = |name: &String| KeyHash::of(name.as_bytes()).0;
    repeat("placement: hashing a key of 21 bytes", None, &mut || nanos(&names, hash));
    let bare = repeat("placement: bare read of boot time", None, &mut || nanos(&keys, |_| boot.mono().0));
    let goal = Some(Goal::AtMost(bare + BESIDE_CLOCK_NS));
    let name = "placement: Owner::check_hash by boot time";
    repeat(name, goal, &mut || nanos(&own, |hash| check(&by_boot, *hash)));
    if let Some(by_tsc) = &by_tsc {
        let name = "placement: bare read of the time-stamp counter";
        repeat(name, None, &mut || nanos(&keys, |_| fast.mono().0));
        let (name, goal) = ("placement: Owner::check_hash by the time-stamp counter", Some(Goal::AtMost(CHECK_NS)));
        repeat(name, goal, &mut || nanos(&own, |hash| check(by_tsc, *hash)));
    } else {
        eprintln!("  no time-stamp counter that can be trusted: checks were measured by boot time only");
    }
    let checking = by_tsc.as_ref().unwrap_or(&by_boot);
    scaling("Lookup::find", &keys, |hash| find(&lookup, *hash), figures);
    scaling("Lookup::lookup_hash", &keys, |hash| hint(&lookup, *hash), figures);
    scaling("Owner::check_hash", &own, |hash| check(checking, *hash), figures);
    Ok(())
}

/// Calls a second by all cores over those by one: nothing that is written is shared.
fn scaling(what: &str, keys: &[KeyHash], call: impl Fn(&KeyHash) -> u64 + Sync, figures: &mut Figures) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let one = 1.0 / nanos(keys, &call);
    let all: f64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| 1.0 / nanos(keys, &call))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
    });
    figures.add(&format!("placement: {what} by {threads} threads over one"), "×", None, &[all / one]);
}
