//! Structured logs: text for terminals, JSON for collectors, always on standard error.

use crate::config::{Log, LogFormat, bad};
use std::io::{self, IsTerminal};
use tidings_base::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends the process's log to standard error. A second call changes nothing, so that several nodes can share a process.
pub fn init(log: &Log) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&log.filter).map_err(|e| {
        bad(format!("`log.filter` is not a filter: {e}"))
            .hint("Use the syntax of RUST_LOG, such as `info,tidings_node=debug`.")
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    // Who installed a subscriber before wanted that one.
    let _ = match log.format {
        LogFormat::Json => registry
            .with(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(io::stderr))
            .try_init(),
        LogFormat::Text => {
            let colour = io::stderr().is_terminal();
            registry.with(tracing_subscriber::fmt::layer().with_ansi(colour).with_writer(io::stderr)).try_init()
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_named() {
        let log = Log { filter: "info,=,".to_owned(), ..Log::default() };
        assert_eq!(init(&log).unwrap_err().code, "node.bad_config");
    }
}
