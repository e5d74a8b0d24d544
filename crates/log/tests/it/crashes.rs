//! The log against a model, through appends, syncs, truncations, purges, resets, crashes and failures of the disk.

use bytes::Bytes;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use tidings_base::Seeded;
use tidings_base::disk::Disk;
use tidings_log::testing::SimDisk;
use tidings_log::{Log, MIN_SEGMENT_BYTES, Options, verify};

/// The log as a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    first: u64,
    records: VecDeque<Bytes>,
}

impl Model {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn of(log: &Log) -> Model {
        let (first, next) = (log.first(), log.next());
        let records = log.read(first, next, usize::MAX).unwrap();
        assert_eq!(records.len() as u64, next - first);
        assert!(records.iter().zip(first..).all(|(record, index)| record.0 == index));
        Model { first, records: records.into_iter().map(|(_, payload)| payload).collect() }
    }
}

/// One step, in small numbers that the test fits to the log's present state.
#[derive(Clone, Debug)]
enum Step {
    Append {
        sizes: Vec<u16>,
    },
    Sync,
    Truncate {
        keep: u16,
    },
    Purge {
        drop: u16,
    },
    Reset {
        ahead: u16,
    },
    Read {
        from: u16,
        count: u16,
        max_bytes: u16,
    },
    Crash {
        seed: u64,
    },
    Kill {
        seed: u64,
    },
    FailWrite {
        kind: bool,
    },
    FailSync,
    /// The machine stops in the middle of some later call.
    StopAfter {
        changes: u8,
        power_loss: bool,
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![8 => Just(100u16), 6 => 0u16..200, 2 => 200u16..3000, 1 => 3000u16..20_000];
    let step = prop_oneof![
        12 => prop::collection::vec(size, 1..6).prop_map(|sizes| Step::Append { sizes }),
        6 => Just(Step::Sync),
        2 => any::<u16>().prop_map(|keep| Step::Truncate { keep }),
        2 => any::<u16>().prop_map(|drop| Step::Purge { drop }),
        1 => (0u16..50).prop_map(|ahead| Step::Reset { ahead }),
        3 => (any::<u16>(), 0u16..40, any::<u16>())
            .prop_map(|(from, count, max_bytes)| Step::Read { from, count, max_bytes }),
        4 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        2 => any::<u64>().prop_map(|seed| Step::Kill { seed }),
        1 => any::<bool>().prop_map(|kind| Step::FailWrite { kind }),
        1 => Just(Step::FailSync),
        4 => (0u8..14, any::<bool>(), any::<u64>())
            .prop_map(|(changes, power_loss, seed)| Step::StopAfter { changes, power_loss, seed }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A log on a simulated disk beside the states it may be found in after a crash.
struct Run {
    disk: SimDisk,
    options: Options,
    log: Log,
    /// What the log must be now.
    model: Model,
    /// What it may be after power loss: as it was at the last sync, and after each record since.
    possible: Vec<Model>,
    /// How the machine will stop: whether by power loss or by the death of the process, and with which seed.
    stopping: Option<(bool, u64)>,
    /// Makes each payload different from all others.
    stamp: u64,
}

impl Run {
    fn new(seed: u64, cache_bytes: usize) -> Run {
        let disk = SimDisk::new(seed);
        let options = Options {
            log_id: 9,
            segment_bytes: MIN_SEGMENT_BYTES,
            cache_bytes,
            salt: seed,
            zero_ahead: [0, 512, 1 << 20][seed as usize % 3],
            ..Options::default()
        };
        let (log, recovery) = Log::open(Arc::new(disk.clone()), options.clone()).unwrap();
        assert!(recovery.created);
        let model = Model { first: 1, records: VecDeque::new() };
        Run { disk, options, log, possible: vec![model.clone()], model, stopping: None, stamp: 0 }
    }

    fn payload(&mut self, size: u16) -> Bytes {
        self.stamp += 1;
        let mut bytes = vec![self.stamp as u8; usize::from(size)];
        let stamp = self.stamp.to_le_bytes();
        let len = bytes.len().min(8);
        bytes[..len].copy_from_slice(&stamp[..len]);
        bytes.into()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append { sizes } => {
                let payloads: Vec<Bytes> = sizes.iter().map(|size| self.payload(*size)).collect();
                let done = self.log.append(self.model.next(), &payloads).is_ok();
                self.attempt(done, |run| {
                    for payload in &payloads {
                        run.model.records.push_back(payload.clone());
                        run.possible.push(run.model.clone());
                    }
                });
            }
            Step::Sync => {
                let done = self.log.sync().is_ok();
                self.attempt(done, |run| run.possible = vec![run.model.clone()]);
            }
            Step::Truncate { keep } => {
                let keep = keep as usize % (self.model.records.len() + 1);
                let done = self.log.truncate_from(self.model.first + keep as u64).is_ok();
                self.attempt(done, |run| {
                    run.model.records.truncate(keep);
                    run.possible.push(run.model.clone());
                });
            }
            Step::Purge { drop } => {
                let drop = drop as usize % (self.model.records.len() + 1);
                let first = self.model.first + drop as u64;
                let done = self.log.purge_through(first - 1).is_ok();
                self.attempt(done, |run| {
                    run.model.records.drain(..drop);
                    run.model.first = first;
                    run.synced_unless_nothing(drop > 0);
                });
            }
            Step::Reset { ahead } => {
                let next = self.model.next() + u64::from(ahead);
                let done = self.log.reset(next).is_ok();
                self.attempt(done, |run| {
                    run.model = Model { first: next, records: VecDeque::new() };
                    run.synced_unless_nothing(true);
                });
            }
            Step::Read { from, count, max_bytes } => self.read(from, count, max_bytes),
            Step::Crash { seed } => {
                self.disk.crash(&mut Seeded::new(seed));
                self.reopen(seed);
            }
            Step::Kill { seed } => {
                self.disk.kill();
                self.reopen(seed);
            }
            Step::FailWrite { kind } => {
                let kind = if kind { ErrorKind::StorageFull } else { ErrorKind::Other };
                self.disk.fail_write_after(0, kind);
            }
            Step::FailSync => self.disk.fail_sync_after(0, ErrorKind::Other),
            Step::StopAfter { changes, power_loss, seed } => {
                self.disk.stop_after(u64::from(changes));
                self.stopping = Some((power_loss, seed));
            }
        }
    }

    /// Restarts a machine that stopped.
    fn restart_if_stopped(&mut self) {
        let Some((power_loss, seed)) = self.stopping.filter(|_| self.disk.list().is_err()) else { return };
        if power_loss {
            self.disk.crash(&mut Seeded::new(seed));
        } else {
            self.disk.kill();
        }
        self.reopen(seed);
    }

    fn synced_unless_nothing(&mut self, something: bool) {
        if something {
            self.possible = vec![self.model.clone()];
        }
    }

    /// Brings the model to where a call brought the log. A call that failed may have been performed, partly or
    /// wholly, when the log is opened again. Until then it was not, unless its sync failed, which stops the log.
    fn attempt(&mut self, done: bool, perform: impl FnOnce(&mut Run)) {
        if done {
            perform(self);
            return;
        }
        let (model, possible) = (self.model.clone(), self.possible.clone());
        perform(self);
        let attempted = std::mem::replace(&mut self.possible, possible);
        self.possible.extend(attempted);
        self.possible.push(self.model.clone());
        self.model = model;
        self.restart_if_stopped();
        if self.log.has_failed() {
            self.model = Model::of(&self.log);
            assert!(self.possible.contains(&self.model));
            assert!(self.log.append(self.log.next(), &[Bytes::new()]).is_err(), "a failed log takes no more");
            assert!(self.log.sync().is_err());
        }
    }

    fn read(&mut self, from: u16, count: u16, max_bytes: u16) {
        let from = self.model.first + u64::from(from) % (self.model.records.len() as u64 + 1);
        let to = from + u64::from(count);
        let got = self.log.read(from, to, usize::from(max_bytes)).unwrap();
        let skip = (from - self.model.first) as usize;
        let all: Vec<&Bytes> = self.model.records.iter().skip(skip).take(usize::from(count)).collect();
        let mut expected: Vec<(u64, Bytes)> = Vec::new();
        let mut used = 0;
        for (payload, index) in all.into_iter().zip(from..) {
            used += payload.len();
            if !expected.is_empty() && used > usize::from(max_bytes) {
                break;
            }
            expected.push((index, payload.clone()));
        }
        assert_eq!(got, expected);
        if self.model.first > 0 {
            let purged = self.log.read(self.model.first - 1, self.model.next() + 1, 1);
            assert_eq!(purged.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }

    /// Opens the log as a process does after a machine stopped, sometimes when recovery itself was interrupted before.
    fn reopen(&mut self, seed: u64) {
        let mut rng = Seeded::new(seed).fork("recovery");
        if rng.one_in(3) {
            self.disk.stop_after(rng.below(8));
            if let Ok((log, _)) = Log::open(Arc::new(self.disk.clone()), self.options.clone()) {
                // What an opened log holds is durable.
                self.possible.retain(|model| (model.first, model.next()) == (log.first(), log.next()));
            }
            self.disk.crash(&mut rng);
        }
        let report = verify(&self.disk, Some(9)).unwrap();
        assert!(report.is_sound(), "{:?}", report.damage);
        self.stopping = None;
        let (log, recovery) = Log::open(Arc::new(self.disk.clone()), self.options.clone()).unwrap();
        assert_eq!((recovery.first, recovery.next), (report.first, report.next));
        assert_eq!(recovery.torn, report.torn);
        let found = Model::of(&log);
        assert!(self.possible.contains(&found), "found {found:?}\npossible {:#?}", self.possible);
        self.log = log;
        self.possible = vec![found.clone()];
        self.model = found;
    }

    fn check(&self) {
        assert_eq!((self.log.first(), self.log.next()), (self.model.first, self.model.next()));
        assert_eq!(Model::of(&self.log), self.model);
    }
}

proptest! {
    #[test]
    fn the_log_is_a_list_and_a_crash_leaves_a_prefix_of_what_was_done(
        seed in any::<u64>(),
        cache_bytes in prop_oneof![Just(0usize), Just(1000), Just(1 << 20)],
        steps in steps(),
    ) {
        let mut run = Run::new(seed, cache_bytes);
        for step in steps {
            run.step(step);
            run.restart_if_stopped();
            run.check();
        }
        run.disk.crash(&mut Seeded::new(seed));
        run.reopen(seed);
        run.check();
    }
}

/// Found by the property above: the part of a read that comes from memory counted its bytes differently.
#[test]
fn a_read_counts_every_byte_wherever_it_comes_from() {
    for cache_bytes in [0, 100, 1000] {
        let mut run = Run::new(0, cache_bytes);
        run.step(Step::Append { sizes: vec![100, 100, 100, 100, 0] });
        for from in 0..5 {
            run.step(Step::Read { from, count: 5, max_bytes: 0 });
            run.step(Step::Read { from, count: 5, max_bytes: 250 });
        }
    }
}
