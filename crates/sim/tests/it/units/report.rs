//! Reports that are merged.

use std::collections::BTreeMap;

use tidings_sim::report::*;

fn report(seed: u64, hash: u64) -> Report {
    Report {
        scenario: "store".to_string(),
        seeds_run: 1,
        seeds: Some((seed, seed)),
        simulated_seconds: 60.0,
        operations: 10,
        faults: BTreeMap::from([("kill".to_string(), 2), ("message_dropped".to_string(), 90)]),
        trace_hash: format!("{hash:016x}"),
        ..Report::default()
    }
}

#[test]
fn merging_adds_up_and_depends_on_the_order() {
    let (mut ab, mut ba) = (report(1, 7), report(2, 9));
    ab.merge(report(2, 9));
    ba.merge(report(1, 7));
    assert_eq!((ab.seeds_run, ab.operations, ab.fault_count()), (2, 20, 4));
    assert_eq!(ab.seeds, Some((1, 2)));
    assert_ne!(ab.trace_hash, ba.trace_hash);
    assert!(ab.is_green());
}
