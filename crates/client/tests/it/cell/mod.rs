//! The cell's client over the real machines: a cell inside the process, on paused time.

mod caching;
mod files;
mod helpers;
mod locks;
mod sessions;
mod watches;

use std::time::Duration;
use tidings_base::Error;
use tidings_client::cell::testing::{Line, TestCell};
use tidings_client::cell::{Cell, SessionOptions};

/// A cell with two sessions, each over a line of its own.
async fn two() -> (TestCell, Cell, Cell) {
    let test = TestCell::start();
    let (one, two) = (test.connect().await.unwrap(), test.connect().await.unwrap());
    (test, one, two)
}

/// A session over a line that the test can cut.
async fn over_line(test: &TestCell) -> (Line, Cell) {
    let line = test.line("app:app/cut");
    let cell = line.link().unwrap().session(SessionOptions::default()).await.unwrap();
    (line, cell)
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("an error was expected").code.into_owned()
}

async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

/// A future that must not be ready for a while.
async fn still_waits<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::time::timeout(Duration::from_millis(200), future).await.is_err()
}

/// What must come soon.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it should have come by now")
}
