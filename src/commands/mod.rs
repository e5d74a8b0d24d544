//! One file a command.

mod app;
mod bench;
mod bft;
mod cell;
mod completions;
mod doctor;
mod feed;
mod init;
mod member;
mod notify;
mod place;
mod probe;
mod remote;
mod serve;
mod signals;
mod sim;
mod sketch;
mod status;
mod store;
mod table;

use crate::cli::Command;
use crate::output::broken;
use std::process::ExitCode;
use tidings_base::Error;

/// Runs what was typed.
pub fn run(command: Command) -> Result<ExitCode, Error> {
    let done = match command {
        // These pass on how another program ended.
        Command::Cell(command) => return cell::run(command),
        Command::CellGuard(args) => return cell::guard::run(args),
        // It says whether something is wrong.
        Command::Status(remote) => return status::run(remote),
        Command::Serve(args) => serve::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Init(args) => init::run(args),
        Command::Member(command) => member::run(command, member::ALL),
        Command::App(command) => app::run(command),
        Command::Place(command) => place::run(command),
        Command::Notify(command) => notify::run(command),
        Command::Table(command) => table::run(command),
        Command::Sketch(command) => sketch::run(command),
        Command::Bft(command) => bft::run(command),
        Command::Store(command) => store::run(command),
        Command::Feed(command) => feed::run(command),
        Command::Sim(args) => sim::run(args),
        Command::Bench(args) => bench::run(args),
        Command::BenchServer(args) => serve::run_without_store(args),
        Command::BenchNode(args) => bench::notify::node::run(args),
        Command::BenchCrowd(args) => bench::notify::crowd::run(args),
        Command::Completions { shell } => completions::run(shell),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The runtime of commands that talk or serve: one worker a core.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Runtime::new().map_err(|error| broken("cannot start the runtime", error))
}
