//! A session for one command.

use crate::cli::Remote;
use crate::commands::{remote, runtime};
use crate::output;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_cell::NodePath;
use tidings_client::Client;
use tidings_client::cell::{Cell, Handle, Link, Open, SessionOptions};

/// How long the end of a lock or a session may take before it is left to the lease.
pub const FAREWELL: Duration = Duration::from_secs(3);

/// Creates a session. A cell without a master is an error after `--timeout`, one without a majority at once.
async fn begin(client: Client, remote: &Remote, options: SessionOptions) -> Result<Cell, Error> {
    let begin_within = Duration::from_secs(remote.timeout);
    Link::new(client)?.session(SessionOptions { begin_within, ..options }).await
}

/// Ends a session in order.
pub async fn farewell(cell: Cell) {
    // What it could not say in time, its lease says.
    let _ = tokio::time::timeout(FAREWELL, cell.close()).await;
}

/// Looks at something, within `--timeout`.
pub fn looking<T>(remote: &Remote, work: impl AsyncFnOnce(&Cell) -> Result<T, Error>) -> Result<T, Error> {
    within(remote, Class::Unreachable, work)
}

/// Changes something, within `--timeout`.
pub fn changing<T>(remote: &Remote, work: impl AsyncFnOnce(&Cell) -> Result<T, Error>) -> Result<T, Error> {
    within(remote, Class::OutcomeUnknown, work)
}

fn within<T>(remote: &Remote, late: Class, work: impl AsyncFnOnce(&Cell) -> Result<T, Error>) -> Result<T, Error> {
    runtime()?.block_on(async {
        let client = remote::connect(remote).await?;
        let cell = begin(client, remote, SessionOptions::default()).await?;
        let done = tokio::time::timeout(Duration::from_secs(remote.timeout), work(&cell)).await;
        farewell(cell).await;
        done.unwrap_or_else(|_| {
            let message = format!("the cell did not answer within {} s", remote.timeout);
            Err(Error::new("cell.no_answer", late, message)
                .hint("`tidings status` says whether it has a master; --timeout waits for longer."))
        })
    })
}

/// Works for as long as it takes, and says when the connection is lost meanwhile.
pub fn staying<T>(
    remote: &Remote,
    options: SessionOptions,
    work: impl AsyncFnOnce(&Cell) -> Result<T, Error>,
) -> Result<T, Error> {
    runtime()?.block_on(async {
        let client = remote::connect(remote).await?;
        let told = client.clone();
        let cell = begin(client, remote, options).await?;
        remote::tell_connection(&told, remote.json);
        drop(told);
        let done = work(&cell).await;
        farewell(cell).await;
        done
    })
}

/// Opens what may have to be created, and creates the directories above it if they are missing.
pub async fn open_making_parents(cell: &Cell, path: &str, open: impl Fn() -> Open) -> Result<Handle, Error> {
    match open().await {
        Err(error) if error.code == "cell.no_parent" => {
            make_parents(cell, path).await?;
            open().await
        }
        opened => opened,
    }
}

/// Creates the directories above a path, and says so.
pub async fn make_parents(cell: &Cell, path: &str) -> Result<(), Error> {
    if let Some(parent) = NodePath::parse(path)?.parent().filter(|parent| !parent.is_root()) {
        cell.create_directories(parent.as_str()).await?;
        output::note(format_args!("made {}", parent.as_str()));
    }
    Ok(())
}
