//! What a group takes that nobody asks.

use super::town::Town;
use crate::commands::bench::Effort;
use crate::commands::bench::report::Figures;
use crate::commands::probe;
use crate::stopwatch::Stopwatch;
use std::path::Path;
use tidings_base::{Class, Error};
use tidings_bft::kv::KeyValue;

pub async fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let (size, lasts) = effort.bft.idle;
    let town = Town::start(place, size, 1, KeyValue::default).await?;
    // Until it is under way.
    let client = town.client(0).await?;
    client.read(tidings_bft::kv::Request::Get("key".into()).encoded()).await?;
    let (watch, before) = (Stopwatch::start(), processor()?);
    tokio::time::sleep(lasts).await;
    let share = 100.0 * (processor()? - before) / watch.elapsed().as_secs_f64();
    figures.add(&format!("bft: {size} replicas in one process that nobody asks"), "% of a core", None, &[share]);
    drop(client);
    town.stop().await;
    Ok(())
}

/// Seconds of processor time that this process has used.
fn processor() -> Result<f64, Error> {
    let unknown = || Error::new("bench.no_processor_time", Class::Failed, "the system does not tell processor times");
    Ok(probe::processor_time(std::process::id()).ok_or_else(unknown)?.as_secs_f64())
}
