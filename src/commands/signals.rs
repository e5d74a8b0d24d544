//! SIGINT and SIGTERM, for commands that stay until they are told to stop.

use crate::output::broken;
use std::process::ExitCode;
use tidings_base::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Which of the two it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Interrupt,
    Terminate,
}

impl Told {
    /// What a shell says of a command that this signal ended.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(self.shells_code())
    }

    /// The same as a number.
    pub fn shells_code(self) -> u8 {
        match self {
            Told::Interrupt => 130,
            Told::Terminate => 143,
        }
    }
}

/// Heard from when it was made.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen; from now on neither ends the program by itself.
    pub fn listen() -> Result<Signals, Error> {
        let hear = |kind| signal(kind).map_err(|error| broken("cannot listen for signals", error));
        Ok(Signals { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// The next signal.
    pub async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::Interrupt,
            _ = self.terminate.recv() => Told::Terminate,
        }
    }
}
