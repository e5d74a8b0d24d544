//! Counters in the memory of a pool of servers, behind a front end that knows whom to ask.
//!
//! ```text
//!   curl ──▶ front ── lookup: who owns this key? ──▶ server: checks its lease, counts, checks again
//!              │ a loss is told: counts that were seen are published again      │ told to stop: hands its counters over
//!              └──────────────── tidings: leases each key to one server ────────┘
//! ```
//! The README beside this says how to run it.

mod front;
mod http;
mod server;

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::process::ExitCode;
use tidings_base::Error;
use tidings_client::{Client, ClientConfig};

/// The namespace that the servers form a pool in.
const NAMESPACE: &str = "counters";

/// Counters in the memory of a pool of servers.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A server of the pool: holds counters in memory
    Server {
        /// Its name in the pool
        #[arg(long)]
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// A front end: asks whichever server owns a key
    Front {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args)]
struct Place {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where tidings is
    #[arg(long, default_value = "http://127.0.0.1:7400", value_delimiter = ',')]
    tidings: Vec<String>,
}

impl Place {
    async fn connect(&self) -> Result<Client, Error> {
        Client::connect(ClientConfig::new(self.tidings.clone())).await
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Server { name, place } => server::run(&name, &place).await,
        Command::Front { place } => front::run(&place).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            eprintln!("hint: {}", error.hint);
            ExitCode::from(error.class.exit_code())
        }
    }
}
