//! Diagnostics of calls: how long they took, how often they were sent, whether the cache answered.

use super::session::Core;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What the calls in a traced future came to, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// From the beginning to the end of the future.
    pub time: Duration,
    /// Calls that the cell was asked.
    pub calls: u32,
    /// Reads that the cache answered.
    pub cached: u32,
    /// How long the calls waited for answers.
    pub waited: Duration,
    /// Requests of the session that got no answer and were sent again meanwhile.
    pub retries: u64,
}

tokio::task_local! {
    static TRACE: Cell<Trace>;
}

/// Runs a future and tells what its calls of a cell came to.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, traced};
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let (file, trace) = traced(cell.read("/app/config")).await;
/// println!("{} bytes in {:?}, {} retries", file?.unwrap().contents().len(), trace.time, trace.retries);
/// # Ok(()) }
/// ```
pub async fn traced<F: Future>(future: F) -> (F::Output, Trace) {
    let began = Instant::now();
    let traced = async {
        let output = future.await;
        (output, TRACE.with(Cell::get))
    };
    let (output, trace) = TRACE.scope(Cell::default(), traced).await;
    (output, Trace { time: began.elapsed(), ..trace })
}

fn change(change: impl FnOnce(&mut Trace)) {
    let _ = TRACE.try_with(|cell| {
        let mut trace = cell.get();
        change(&mut trace);
        cell.set(trace);
    });
}

pub(crate) fn hit() {
    change(|trace| trace.cached += 1);
}

/// A call begins; `None` where nobody traces.
pub(crate) fn begin(core: &Arc<Core>) -> Option<(Instant, u64)> {
    TRACE.try_with(|_| ()).ok()?;
    Some((Instant::now(), core.observed().unanswered))
}

pub(crate) fn end(core: &Arc<Core>, begun: Option<(Instant, u64)>) {
    let Some((at, unanswered)) = begun else { return };
    let retries = core.observed().unanswered - unanswered;
    change(|trace| {
        trace.calls += 1;
        trace.waited += at.elapsed();
        trace.retries += retries;
    });
}
