//! The program: one binary that serves and that asks.
//!
//! ```text
//!   cli.rs       what can be typed            output.rs   tables, JSON, errors, exit codes
//!   commands/    one file a command           stopwatch.rs  the one place that reads a clock
//! ```
//! Nothing is decided here: commands read flags, environment and files, call the crates, and print. This is the only
//! place in the workspace that reads any of the three.

mod cli;
mod commands;
mod output;
mod stopwatch;

use std::process::ExitCode;

/// A quarter of a loaded node's processor went into the system's allocator: docs/decisions/014-cost-of-a-notification.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::parse() {
        Ok((command, typed)) => match commands::run(command) {
            Ok(code) => code,
            Err(error) => output::fail(error, &typed),
        },
        Err(mistake) => output::fail(mistake, &cli::Typed::JSON),
    }
}
