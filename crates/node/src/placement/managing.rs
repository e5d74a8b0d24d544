//! The manager's machine with what only a node knows: until when its cell session is good, and who hears of what.

use super::errands::Errand;
use super::{Answer, Reign};
use crate::driver::Perform;
use crate::metrics;
use crate::waiting::Waiting;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Machine, Mono, Now, Outbox};
use tidings_placement::manager::file::File;
use tidings_placement::manager::{Counts, Gauges, Input, Manager, Output};
use tokio::sync::{mpsc, watch};

/// How often metrics are brought up to date.
const MEASURE: Duration = Duration::from_secs(1);

/// What is to be done: what the manager wants, or what it measured.
// The manager's own wishes are nearly all of them: a box would only cost.
#[allow(clippy::large_enum_variant)]
pub(super) enum Does {
    Manager(Output),
    Measured(Counts, Gauges),
}

/// The manager, told of its session before everything else that it hears.
pub(super) struct Managing {
    manager: Manager,
    reign: Arc<Mutex<Option<Reign>>>,
    /// The leadership that the manager knows of: a later session's validity says nothing about an earlier lock.
    epoch: u64,
    /// Until when the session is good, as the manager was told last.
    until: Mono,
    measure_at: Mono,
    wants: Outbox<Output>,
}

impl Managing {
    pub(super) fn new(manager: Manager, reign: Arc<Mutex<Option<Reign>>>) -> Managing {
        Managing { manager, reign, epoch: 0, until: Mono(0), measure_at: Mono(0), wants: Outbox::new() }
    }

    /// F1: leases leave only under a session that was valid after the message that they answer came in. `now` was read
    /// after that, and the session is looked at after `now`.
    fn look_at_session(&mut self, now: Now) {
        let until = match &*self.reign.lock() {
            Some(reign) if reign.epoch == self.epoch => reign.cell.lease_until(),
            _ => None,
        };
        let until = until.filter(|until| now.mono < *until).unwrap_or_default();
        if until != self.until {
            self.until = until;
            self.manager.handle(now, Input::SessionUntil(until), &mut self.wants);
        }
    }

    fn hand_on(&mut self, now: Now, out: &mut Outbox<Does>) {
        for output in self.wants.drain() {
            out.put(Does::Manager(output));
        }
        if now.mono >= self.measure_at {
            self.measure_at = now.mono + MEASURE;
            out.put(Does::Measured(self.manager.counts(), self.manager.gauges(now)));
        }
    }
}

impl Machine for Managing {
    type Input = Input;
    type Output = Does;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Does>) {
        match input {
            Input::Elected { epoch } => self.epoch = epoch,
            Input::Deposed => (self.epoch, self.measure_at) = (0, Mono(0)),
            _ => {}
        }
        self.look_at_session(now);
        self.manager.handle(now, input, &mut self.wants);
        self.hand_on(now, out);
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<Does>) {
        self.look_at_session(now);
        self.manager.wake(now, &mut self.wants);
        self.hand_on(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        let session = (self.until > Mono(0)).then_some(self.until);
        let measure = self.manager.leads().then_some(self.measure_at);
        [self.manager.deadline(), session, measure].into_iter().flatten().min()
    }
}

/// Performs what the manager wants.
pub(super) struct Performer {
    waiting: Arc<Waiting<Answer>>,
    errands: mpsc::UnboundedSender<Errand>,
    step_down: watch::Sender<u64>,
    measured: Arc<Mutex<Gauges>>,
    /// Gathered: a leader that takes over reads hundreds of files.
    reads: Vec<(u64, File)>,
    counted: Counts,
    tight: u64,
    damaged: u64,
}

impl Performer {
    pub(super) fn new(
        waiting: Arc<Waiting<Answer>>,
        errands: mpsc::UnboundedSender<Errand>,
        step_down: watch::Sender<u64>,
        measured: Arc<Mutex<Gauges>>,
    ) -> Performer {
        let (reads, counted) = (Vec::new(), Counts::default());
        Performer { waiting, errands, step_down, measured, reads, counted, tight: 0, damaged: 0 }
    }

    fn run(&self, errand: Errand) {
        // Without a clerk the node is stopping.
        let _ = self.errands.send(errand);
    }
}

impl Perform<Does> for Performer {
    fn perform(&mut self, does: Does) {
        match does {
            Does::Manager(Output::Answer { op, message }) => self.waiting.answer(op, Ok(message)),
            Does::Manager(Output::Push { ops, message }) => {
                ops.into_iter().for_each(|op| self.waiting.answer(op, Ok(message.clone())));
            }
            Does::Manager(Output::Fail { op, error }) => self.waiting.answer(op, Err(error)),
            Does::Manager(Output::Commit { id, file, expected, bytes }) => {
                self.run(Errand::Commit { id, file, expected, bytes });
            }
            Does::Manager(Output::Read { id, file }) => self.reads.push((id, file)),
            Does::Manager(Output::List) => self.run(Errand::List),
            Does::Manager(Output::StepDown) => self.step_down.send_modify(|times| *times += 1),
            Does::Measured(counts, gauges) => {
                metrics::placement(&self.counted, &counts, &gauges);
                self.counted = counts;
                *self.measured.lock() = gauges;
                // F10: this node may be configured with slower fail-overs than those that let the namespaces be made.
                if std::mem::replace(&mut self.tight, gauges.tight) < gauges.tight {
                    let namespaces = gauges.tight;
                    tracing::warn!(
                        namespaces,
                        "leases may not outlast a manager's death; `place namespaces` says which"
                    );
                }
                if std::mem::replace(&mut self.damaged, gauges.damaged) < gauges.damaged {
                    let namespaces = gauges.damaged;
                    tracing::warn!(namespaces, "files in the cell cannot be understood; `place namespaces` says which");
                }
            }
        }
    }

    fn flush(&mut self) {
        if !self.reads.is_empty() {
            let reads = std::mem::take(&mut self.reads);
            self.run(Errand::Read(reads));
        }
    }
}
