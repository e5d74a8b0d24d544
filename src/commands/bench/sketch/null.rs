//! Reads that take origins no time, so that what the sketcher itself takes is all that is left: by the length of pages, and by
//! how many reads a client makes on one connection.

use super::PAGE;
use super::line::Line;
use super::origins::{Origins, Pages};
use super::proxy;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate};
use crate::commands::bench::report::Figures;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;

/// Origins: the smallest group that bears a liar.
const ORIGINS: usize = 4;
/// Clients at once.
const CLIENTS: usize = 32;
const SESSIONS: [u64; 2] = [1, 10];
/// A session that does not end.
const ENDLESS: u64 = u64::MAX;

pub async fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    for length in effort.sketch.lengths {
        let origins = Origins::start(ORIGINS, Pages::new(CLIENTS, *length), Duration::ZERO).await?;
        let server = proxy(&origins, &["--agreed-path", "/all"])?;
        let what = format!("{length} bytes");
        let ways = [
            ("from a bare origin", origins.addresses[0], "/usual"),
            (&*format!("all of {ORIGINS} origins execute"), server.address, "/all"),
            (&*format!("sketcher before {ORIGINS} origins"), server.address, "/usual"),
        ];
        for (way, to, prefix) in ways {
            let rates = reads(to, prefix, ENDLESS, effort).await?;
            figures.add(&format!("sketch: null reads of {what}, {way}"), "1/s", None, &rates);
        }
        for session in SESSIONS.into_iter().filter(|_| *length == PAGE) {
            for (way, to, prefix) in ways {
                let rates = reads(to, prefix, session, effort).await?;
                figures.add(
                    &format!("sketch: null reads of {what}, {way}, {session} on a connection"),
                    "1/s",
                    None,
                    &rates,
                );
            }
        }
    }
    Ok(())
}

async fn reads(to: SocketAddr, prefix: &'static str, session: u64, effort: Effort) -> Result<Vec<f64>, Error> {
    let mut rates = Vec::new();
    for _ in 0..effort.repetitions {
        let counter = Arc::new(Counter::default());
        let readers = (0..CLIENTS).map(|page| {
            let counter = counter.clone();
            async move {
                let path = format!("{prefix}/{page}");
                while counter.goes_on() {
                    let mut line = Line::connect(to).await?;
                    let mut left = session;
                    while left > 0 && counter.goes_on() {
                        line.get(&path).await?;
                        counter.add(1);
                        left -= 1;
                    }
                }
                Ok(())
            }
        });
        rates.push(rate(effort.seconds, readers, counter.clone()).await?);
    }
    Ok(rates)
}
