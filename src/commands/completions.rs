//! `tidings completions SHELL`.

use crate::cli::Cli;
use crate::output;
use clap::CommandFactory;
use tidings_base::Error;

/// Prints the completions of one shell.
pub fn run(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidings", &mut script);
    output::exact(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
