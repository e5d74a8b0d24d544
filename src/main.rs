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

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli.command) {
        Ok(code) => code,
        Err(error) => output::fail(&error),
    }
}
