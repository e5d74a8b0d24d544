//! Traces and their hash.

use tidings_sim::clock::SimTime;
use tidings_sim::kernel::HostId;

use tidings_sim::trace::*;

fn hash_of(events: &[(u64, Kind, u32, &[u8])]) -> u64 {
    let mut trace = Trace::new(Printing::Off);
    for (at, kind, host, bytes) in events {
        trace.event(SimTime(*at), *kind, HostId(*host), bytes, String::new);
    }
    trace.hash()
}

#[test]
fn every_part_of_an_event_and_their_order_count() {
    let base = hash_of(&[(1, Kind::Wake, 0, b"a"), (2, Kind::Wake, 0, b"b")]);
    for other in [
        hash_of(&[(2, Kind::Wake, 0, b"b"), (1, Kind::Wake, 0, b"a")]),
        hash_of(&[(1, Kind::Wake, 0, b"a"), (3, Kind::Wake, 0, b"b")]),
        hash_of(&[(1, Kind::Wake, 0, b"a"), (2, Kind::Deliver, 0, b"b")]),
        hash_of(&[(1, Kind::Wake, 0, b"a"), (2, Kind::Wake, 1, b"b")]),
        hash_of(&[(1, Kind::Wake, 0, b"a"), (2, Kind::Wake, 0, b"c")]),
    ] {
        assert_ne!(base, other);
    }
    assert_eq!(base, hash_of(&[(1, Kind::Wake, 0, b"a"), (2, Kind::Wake, 0, b"b")]));
}

#[test]
fn lines_are_kept_up_to_their_bound() {
    let mut trace = Trace::new(Printing::Keep);
    for i in 0..KEPT_LINES as u64 + 10 {
        trace.event(SimTime(i), Kind::Fault, HostId(3), b"", || format!("number {i}"));
    }
    assert_eq!(trace.lines().count(), KEPT_LINES);
    assert!(trace.lines().next().is_some_and(|line| line.ends_with("number 10")));
}
