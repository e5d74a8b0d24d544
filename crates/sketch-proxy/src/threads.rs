//! A thread for each core. What they share is the machines alone: a client's connection and those to origins that are used for it
//! belong to one thread, so that nobody else has to be woken between a request and its answer
//! (docs/decisions/020-cost-of-a-sketcher.md).

use futures::future::BoxFuture;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use tidings_base::{Class, Error};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

thread_local! {
    /// Which of a proxy's threads this is, if it is one.
    static SEAT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One for each of a proxy's threads, and one for whatever else runs.
pub(crate) struct Each<T> {
    seats: Vec<T>,
    elsewhere: T,
}

impl<T> Each<T> {
    pub(crate) fn new(threads: NonZeroUsize, mut make: impl FnMut() -> T) -> Each<T> {
        Each { seats: (0..threads.get()).map(|_| make()).collect(), elsewhere: make() }
    }

    /// The one of the thread that asks.
    pub(crate) fn own(&self) -> &T {
        SEAT.get().and_then(|seat| self.seats.get(seat)).unwrap_or(&self.elsewhere)
    }
}

/// As many as there are cores, unless told otherwise.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Threads that end when this is dropped, with all that runs on them.
pub(crate) struct Threads {
    all: Vec<Thread>,
    _stop: watch::Sender<()>,
}

struct Thread {
    runtime: Handle,
    /// Clients that it has.
    clients: Arc<AtomicUsize>,
}

impl Threads {
    pub(crate) fn start(count: NonZeroUsize) -> Result<Threads, Error> {
        let (stop, stopped) = watch::channel(());
        let all = (0..count.get()).map(|seat| Thread::start(seat, stopped.clone())).collect::<Result<_, Error>>()?;
        Ok(Threads { all, _stop: stop })
    }

    /// Runs on the thread that has the fewest clients.
    pub(crate) fn run(&self, client: BoxFuture<'static, ()>) {
        let Some(thread) = self.all.iter().min_by_key(|thread| thread.clients.load(Relaxed)) else { return };
        let clients = Arc::clone(&thread.clients);
        clients.fetch_add(1, Relaxed);
        thread.runtime.spawn(async move {
            client.await;
            clients.fetch_sub(1, Relaxed);
        });
    }
}

impl Thread {
    fn start(seat: usize, mut stopped: watch::Receiver<()>) -> Result<Thread, Error> {
        let failed = |error| {
            Error::new("sketch.no_thread", Class::Failed, format!("cannot start a thread: {error}"))
                .hint("The system gives no more threads or descriptors; ask for fewer with --threads.")
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let running = move || {
            SEAT.set(Some(seat));
            // Nothing is ever said: it ends when whoever could say it is gone.
            runtime.block_on(async { drop(stopped.changed().await) });
            // What reads a file at this moment is not waited for.
            runtime.shutdown_background();
        };
        thread::Builder::new().name(format!("sketch-{seat}")).spawn(running).map_err(failed)?;
        Ok(Thread { runtime: handle, clients: Arc::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use tokio::sync::{Notify, mpsc};

    #[tokio::test]
    async fn each_thread_has_its_own_and_clients_are_spread() {
        let three = NonZeroUsize::new(3).unwrap();
        let threads = Threads::start(three).unwrap();
        let mut made = 0;
        let each = Arc::new(Each::new(three, || {
            made += 1;
            made
        }));
        assert_eq!(*each.own(), 4, "this is none of its threads");
        let (said, mut heard) = mpsc::unbounded_channel();
        let leave = Arc::new(Notify::new());
        for _ in 0..6 {
            let (each, said, leave) = (Arc::clone(&each), said.clone(), Arc::clone(&leave));
            threads.run(Box::pin(async move {
                said.send(*each.own()).unwrap();
                leave.notified().await;
            }));
        }
        let mut clients = BTreeMap::new();
        for _ in 0..6 {
            *clients.entry(heard.recv().await.unwrap()).or_insert(0) += 1;
        }
        assert_eq!(clients, BTreeMap::from([(1, 2), (2, 2), (3, 2)]));

        // They end with it, and with them whoever waits there.
        drop((threads, said));
        let ended = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await;
        assert_eq!(ended.expect("threads end"), None);
    }
}
