//! Measures the state in fjall and the front alone: `cargo run --release -p tidings-store-local --example measure`.
//!
//! No log and no fsync are in these figures; `tidings bench store` has the whole.

use bytes::Bytes;
use std::time::Instant;
use tidings_base::agreed::{AgreedState, Ask, Entry, Heard, Role};
use tidings_base::{Epoch, LogIndex, Machine, Mono, Now, OpId, Outbox, Seeded, Wall};
use tidings_store::front::{Front, Input, Options as FrontOptions, Output, Request};
use tidings_store::messages::{cell, get, put};
use tidings_store::read::Unread;
use tidings_store::{StoreState, command};
use tidings_store_local::{FjallKv, Options};
use tidings_wire::v1::Get;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_message::Message;

const ROWS: u64 = 1_000_000;
const BATCH: usize = 256;
const GETS: u64 = 200_000;

fn write(i: u64) -> Command {
    Command::Apply(put(format!("group{}", i % 64), format!("row{i:09}"), cell("c", 1, vec![b'x'; 100])))
}

/// Wall-clock and processor time since a moment: on a busy machine only the second tells.
struct Since {
    wall: Instant,
    cpu: f64,
}

fn begin() -> Since {
    Since { wall: Instant::now(), cpu: cpu_seconds() }
}

/// Processor time of this process, all threads, from Linux's accounting in ticks of 10 ms; 0 elsewhere.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn report(what: &str, count: u64, since: Since) {
    let (wall, cpu) = (since.wall.elapsed().as_secs_f64(), cpu_seconds() - since.cpu);
    println!(
        "{what}: {count} in {wall:.2} s = {:.0}/s; {cpu:.2} s of processor time = {:.0}/s a core",
        count as f64 / wall,
        count as f64 / cpu
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let mut state = StoreState::open(FjallKv::open(dir.path(), Options::default())?)?;
    let commands: Vec<Bytes> = (0..ROWS).map(|i| command::encode(write(i * 7919 % ROWS))).collect();

    for what in ["new rows applied", "the same rows applied again"] {
        let began = begin();
        for batch in commands.chunks(BATCH) {
            let from = state.position().index.0 + 1;
            let entries = (from..).zip(batch);
            let entries: Vec<_> = entries.map(|(i, command)| Entry { index: LogIndex(i), command }).collect();
            state.apply(&entries, Bytes::new())?;
        }
        report(what, ROWS, began);
    }

    let reader = state.reader();
    let mut rng = Seeded::new(1);
    for (what, columns) in [("random rows read", vec![]), ("random cells read", vec![Bytes::from("c")])] {
        let began = begin();
        for _ in 0..GETS {
            let i = rng.below(ROWS);
            let whole = get(format!("group{}", i % 64), format!("row{i:09}"));
            let row = reader.get(&Get { columns: columns.clone(), ..whole }).map_err(Unread::into_error)?;
            assert!(row.is_some());
        }
        report(what, GETS, began);
    }

    let began = Instant::now();
    state.flush()?;
    println!("flush: {:.3} s; {} bytes on disk", began.elapsed().as_secs_f64(), state.kv().disk_bytes()?);
    drop((state, reader));
    let began = begin();
    let state = StoreState::open(FjallKv::open(dir.path(), Options::default())?)?;
    report(&format!("reopened at entry {}", state.position().index), 1, began);
    drop(state);
    let scratch = tempfile::tempdir()?;
    let began = begin();
    let whole = tidings_store_local::check(dir.path(), scratch.path())?;
    report("pairs checked", whole.pairs, began);

    front();
    Ok(())
}

fn front() {
    let mut front = Front::new(FrontOptions::default());
    let now = Now { mono: Mono(1), wall: Wall(1) };
    let mut out = Outbox::new();
    front.handle(now, Input::Heard(Heard::Role(Role::Leader { epoch: Epoch(1) })), &mut out);
    let requests: Vec<_> = (0..ROWS)
        .map(|i| match write(i) {
            Command::Apply(apply) => Request::Store(Message::Apply(apply)),
            _ => unreachable!(),
        })
        .collect();
    let result = Bytes::from_static(&[0x0a, 0]);
    let began = begin();
    let mut proposed = Vec::with_capacity(BATCH);
    let mut op = OpId(1);
    let mut replies = 0u64;
    for request in requests {
        op = OpId(op.0 + 2);
        front.handle(now, Input::Request { op, request, deadline: None }, &mut out);
        proposed.extend(out.drain().filter_map(|o| match o {
            Output::Ask(Ask::Propose { op, .. }) => Some(op),
            _ => None,
        }));
        if proposed.len() == BATCH {
            for op in proposed.drain(..) {
                let heard = Heard::Applied { op, index: LogIndex(1), result: result.clone() };
                front.handle(now, Input::Heard(heard), &mut out);
            }
            replies += out.drain().count() as u64;
        }
    }
    report("writes through the front", replies, began);
}
