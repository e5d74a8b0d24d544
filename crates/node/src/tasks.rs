//! Tasks of a part of the node, which end together.

use crate::driver::Handle;
use parking_lot::Mutex;
use tokio::task::{JoinHandle, JoinSet};

/// Tasks that run until they end or all are stopped.
pub(crate) struct Tasks {
    /// Absent once they are stopped.
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks { tasks: Mutex::new(Some(JoinSet::new())) }
    }
}

impl Tasks {
    /// Runs something.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.tasks.lock().as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }

    /// Ends a machine with the others.
    pub(crate) fn run<I, M: Send + 'static>(&self, (handle, driving): (Handle<I>, JoinHandle<M>)) -> Handle<I> {
        struct Abort<M>(JoinHandle<M>);
        impl<M> Drop for Abort<M> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let mut driving = Abort(driving);
        self.spawn(async move {
            let _ = (&mut driving.0).await;
        });
        handle
    }

    /// Stops all.
    pub(crate) async fn stop(&self) {
        let tasks = self.tasks.lock().take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }
}
