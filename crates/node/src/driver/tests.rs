use super::*;
use crate::clock::PausedClock;
use parking_lot::Mutex;
use std::sync::Arc;
use tidings_base::{Now, Timers};

/// Echoes an input at once, and again after as many seconds as it says.
#[derive(Default)]
struct Echo {
    timers: Timers<u64>,
}

impl Machine for Echo {
    type Input = u64;
    type Output = (u64, Mono);

    fn handle(&mut self, now: Now, input: u64, out: &mut Outbox<(u64, Mono)>) {
        out.put((input, now.mono));
        self.timers.set(input, now.mono + Duration::from_secs(input));
    }

    fn wake(&mut self, now: Now, out: &mut Outbox<(u64, Mono)>) {
        while let Some(input) = self.timers.pop_due(now.mono) {
            out.put((input, now.mono));
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.deadline()
    }
}

/// Collects outputs, and how many came before each flush.
#[derive(Clone, Default)]
struct Collect {
    outputs: Arc<Mutex<Vec<(u64, Mono)>>>,
    flushed_at: Arc<Mutex<Vec<usize>>>,
}

impl Perform<(u64, Mono)> for Collect {
    fn perform(&mut self, output: (u64, Mono)) {
        self.outputs.lock().push(output);
    }

    fn flush(&mut self) {
        self.flushed_at.lock().push(self.outputs.lock().len());
    }
}

const fn second(n: u64) -> Mono {
    Mono(n * 1_000_000_000)
}

#[tokio::test(start_paused = true)]
async fn outputs_come_in_order_and_timers_at_their_deadline() {
    let collect = Collect::default();
    let (handle, task) = spawn("echo", Echo::default(), collect.clone(), PausedClock::start(), 16);
    for input in [7, 3] {
        handle.send(input).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let expected = [(7, second(0)), (3, second(0)), (3, second(3)), (7, second(7))];
    assert_eq!(*collect.outputs.lock(), expected);
    assert_eq!(*collect.flushed_at.lock(), [2, 3, 4], "inputs that wait together are one batch");
    drop(handle);
    assert_eq!(task.await.unwrap().deadline(), None);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_machine_has_taken_every_input() {
    let collect = Collect::default();
    let (handle, task) = spawn("echo", Echo::default(), collect.clone(), PausedClock::start(), 1_000);
    for input in 0..1_000 {
        handle.send(input + 1).await.unwrap();
    }
    drop(handle);
    let machine = task.await.unwrap();
    assert_eq!(collect.outputs.lock().len() + machine.timers.len(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_so_and_a_stopped_machine_too() {
    let (handle, task) = spawn("echo", Echo::default(), |_| {}, PausedClock::start(), 1);
    handle.try_send(1).unwrap();
    assert_eq!(handle.try_send(2), Err(NotTaken::Busy(2)));
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(handle.try_send(3), Err(NotTaken::Stopped(3)));
    assert_eq!(handle.send(4).await, Err(NotTaken::Stopped(4)));
}

/// Always due: the kind of bug that must not take the node down with it.
struct Restless(u64);

impl Machine for Restless {
    type Input = u64;
    type Output = u64;
    fn handle(&mut self, _: Now, input: u64, out: &mut Outbox<u64>) {
        out.put(input);
    }
    fn wake(&mut self, _: Now, _: &mut Outbox<u64>) {
        self.0 += 1;
    }
    fn deadline(&self) -> Option<Mono> {
        Some(Mono(0))
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_always_due_still_hears_its_inputs() {
    let (outputs, mut seen) = mpsc::unbounded_channel();
    let perform = move |output| outputs.send(output).unwrap();
    let (handle, task) = spawn("restless", Restless(0), perform, PausedClock::start(), 4);
    handle.send(9).await.unwrap();
    assert_eq!(seen.recv().await, Some(9));
    drop(handle);
    assert!(task.await.unwrap().0 > 0);
}

/// Wrong in itself: it cannot take an input.
struct Fragile;

impl Machine for Fragile {
    type Input = u64;
    type Output = u64;
    fn handle(&mut self, _: Now, input: u64, _: &mut Outbox<u64>) {
        panic!("{input} on purpose");
    }
    fn wake(&mut self, _: Now, _: &mut Outbox<u64>) {}
    fn deadline(&self) -> Option<Mono> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_panics_has_ended() {
    let (handle, task) = spawn("fragile", Fragile, |_| {}, PausedClock::start(), 4);
    assert!(futures::poll!(std::pin::pin!(handle.ended())).is_pending());
    handle.send(9).await.unwrap();
    handle.ended().await;
    assert!(task.await.err().is_some_and(|error| error.is_panic()));
}
