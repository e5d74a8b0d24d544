//! One object, ever more listeners: from the publication to the last callback.

use super::peer::{Hears, Peer};
use crate::commands::bench::Effort;
use crate::commands::bench::report::Figures;
use crate::stopwatch::Stopwatch;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error};

/// Listeners that share a connection.
const SHARE: usize = 100;
/// Listeners that begin at once.
const BEGINNING: usize = 64;
/// How long everybody may take to hear: far above anything measured.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks: small against what is measured.
const LOOK: Duration = Duration::from_micros(500);
/// Publications of one median, beside the repetitions.
const TIMES: u64 = 5;

/// Counts callbacks of the latest version.
#[derive(Default)]
struct Count {
    version: AtomicU64,
    heard: AtomicU64,
}

impl Hears for Count {
    fn hears(&self, _: usize, version: u64) {
        if version == self.version.load(Ordering::Acquire) {
            self.heard.fetch_add(1, Ordering::AcqRel);
        }
    }
}

pub async fn measure(peer: &dyn Peer, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let (count, service) = (Arc::new(Count::default()), peer.service().await?);
    let mut devices = Vec::new();
    let mut listening = Vec::new();
    let mut version = 0;
    for wanted in effort.notify.fan_outs {
        while devices.len() * SHARE < *wanted {
            devices.push(peer.device().await?);
        }
        let beginning = (listening.len()..*wanted).map(|n| devices[n / SHARE].listen(vec![0], count.clone()));
        listening.extend(futures::stream::iter(beginning).buffer_unordered(BEGINNING).try_collect::<Vec<_>>().await?);
        let mut taken = Vec::new();
        for _ in 0..TIMES * effort.repetitions as u64 {
            version += 1;
            count.heard.store(0, Ordering::Release);
            count.version.store(version, Ordering::Release);
            let begun = Stopwatch::start();
            service.publish(0, version).await?;
            let heard = async {
                while count.heard.load(Ordering::Acquire) < *wanted as u64 {
                    tokio::time::sleep(LOOK).await;
                }
            };
            let missed = |_| Error::new("bench.failed", Class::Failed, "some listeners did not hear of a version");
            tokio::time::timeout(PATIENCE, heard).await.map_err(missed)?;
            taken.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        figures.add(&format!("notify: fan-out to {wanted}, until the last has heard"), "ms", None, &taken);
    }
    Ok(())
}
