//! How often origins execute a read: once, and N times more whenever the page has changed.

use super::line::Line;
use super::origins::{Origins, Pages};
use super::{PAGE, proxy};
use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use std::time::Duration;
use tidings_base::Error;

/// Transitions by hundred reads. The first read is one, too.
const TRANSITIONS: [u64; 4] = [0, 1, 5, 15];
/// A vote is over when a quorum has answered; so long nothing more may come until all have.
const QUIET: Duration = Duration::from_millis(300);

pub async fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    for origins in effort.sketch.groups {
        for percent in TRANSITIONS {
            let (executions, predicted) = executions(*origins, percent, effort.sketch.reads).await?;
            let name = format!("sketch: executions by read, {origins} origins, {percent} % transitions");
            figures.add(&name, "", None, &[executions]);
            let name = format!("{name}, over 1 + tN");
            figures.add(&name, "×", Some(Goal::Within(0.99, 1.01)), &[executions / predicted]);
        }
    }
    Ok(())
}

/// Executions by read, and what they should be.
async fn executions(count: usize, percent: u64, reads: u64) -> Result<(f64, f64), Error> {
    let origins = Origins::start(count, Pages::new(1, PAGE), Duration::ZERO).await?;
    let server = proxy(&origins, &[])?;
    let mut line = Line::connect(server.address).await?;
    let (mut due, mut transitions) = (0, 0);
    for read in 0..reads {
        due += percent;
        if due >= 100 && read > 0 {
            due -= 100;
            origins.pages.change(0);
            transitions += 1;
        }
        line.get_expecting("/0", &origins.pages.beginning(0)).await?;
    }
    let mut seen = 0;
    while origins.executions() != seen {
        seen = origins.executions();
        tokio::time::sleep(QUIET).await;
    }
    let ratio = (transitions + 1) as f64 / reads as f64;
    Ok((seen as f64 / reads as f64, 1.0 + ratio * count as f64))
}
