//! The paper's Figure 11 in small: what is published while a part of the matchers' rows fails waits in scratch, and whoever was
//! not told the fast way hears of it once they are back.

use super::load::{Audience, Load};
use super::node;
use super::tidings::Tidings;
use crate::commands::bench::Effort;
use crate::commands::bench::report::Figures;
use crate::output::broken;
use crate::stopwatch::Stopwatch;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidings_base::Error;

/// How long a node may take to notice that rows fail, or do no more.
const NOTICED: Duration = Duration::from_millis(500);
/// Rounds of versions that are published meanwhile.
const ROUNDS: usize = 5;

/// The file while which rows fail.
pub struct Sign(PathBuf);

impl Sign {
    pub fn in_directory(place: &Path) -> Result<Sign, Error> {
        std::fs::create_dir_all(place).map_err(|error| broken("cannot make a directory to measure in", error))?;
        Ok(Sign(place.join("rows-fail")))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Rows fail when this returns.
    pub async fn show(&self) -> Result<(), Error> {
        std::fs::write(&self.0, "").map_err(|error| broken("cannot make rows fail", error))?;
        tokio::time::sleep(NOTICED).await;
        Ok(())
    }

    fn take_down(&self) -> Result<(), Error> {
        std::fs::remove_file(&self.0).map_err(|error| broken("cannot mend rows", error))
    }
}

pub async fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let sign = Sign::in_directory(place)?;
    let server = node::start(place, Duration::ZERO, Some(sign.path()))?;
    let load = Load::begin(&Tidings::new(server.url()), Audience::USUAL, |_| false).await?;
    let failing: Vec<usize> = (0..load.objects()).filter(|object| node::fails(*object)).collect();
    let (mut buffered, mut heard, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.repetitions {
        sign.show().await?;
        for _ in 0..ROUNDS {
            load.publish_each(&failing).await?;
        }
        tokio::time::sleep(NOTICED).await;
        buffered.push((failing.len() * ROUNDS) as f64);
        // Whoever is online may have been told before anything of it was stored.
        heard.push(100.0 * (1.0 - load.waiting() as f64 / failing.len() as f64));
        sign.take_down()?;
        let back = Stopwatch::start();
        load.all_heard().await?;
        told.push(back.elapsed().as_secs_f64() * 1e3);
    }
    let name = "notify: published and durable while their rows fail";
    figures.add(name, "versions", None, &buffered);
    figures.add("notify: objects whose last version was heard though their rows fail", "%", None, &heard);
    figures.add("notify: once rows are back, until everything was heard", "ms", None, &told);
    Ok(())
}
