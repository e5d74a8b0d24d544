//! A connection for one command.

use crate::cli::Remote;
use crate::commands::{remote, runtime};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{Lookup, LookupOptions, Placement};

/// Connects and lets `work` ask, each time within `--timeout`.
pub fn with_placement<T>(remote: &Remote, work: impl AsyncFnOnce(&Placement) -> Result<T, Error>) -> Result<T, Error> {
    runtime()?.block_on(async {
        let client = remote::connect(remote).await?;
        let placement = Placement::new(client).within(Duration::from_secs(remote.timeout));
        work(&placement).await
    })
}

/// Connects and lets `work` look up; the first table must come within `--timeout`. Says when the connection is lost.
pub fn with_lookup<T>(
    remote: &Remote,
    namespace: &str,
    work: impl AsyncFnOnce(&Lookup) -> Result<T, Error>,
) -> Result<T, Error> {
    runtime()?.block_on(async {
        let client = remote::connect(remote).await?;
        let options =
            LookupOptions { connect_within: Duration::from_secs(remote.timeout), ..LookupOptions::new(namespace) };
        let lookup = Lookup::connect(client.clone(), options).await?;
        remote::tell_connection(&client, remote.json);
        work(&lookup).await
    })
}
