//! How long a cached read takes, over a cell inside the process.
//!
//! ```sh
//! cargo run --release -p tidings-client --example cached_reads
//! ```

use std::hint::black_box;
use std::time::Instant;
use tidings_base::Error;
use tidings_client::cell::testing::TestCell;

/// Enough for a steady figure within a second or two.
const READS: u32 = 5_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let test = TestCell::start();
    let cell = test.connect().await?;
    cell.write("/config", "x".repeat(100)).await?;
    let handle = cell.open("/config").read().await?;
    handle.contents_and_stat().await?;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    for _ in 0..3 {
        let (before, began) = (cell.observed(), Instant::now());
        for i in 0..READS {
            // The renewals of the lease must have their turn.
            if i % 10_000 == 0 {
                tokio::task::yield_now().await;
            }
            black_box(handle.contents_and_stat().await?);
        }
        let each = began.elapsed() / READS;
        println!("{each:?} a read, {} of {READS} from the cache", cell.observed().cached - before.cached);
    }
    Ok(())
}
