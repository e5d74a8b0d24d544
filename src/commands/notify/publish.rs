//! `tidings notify publish`: a new version of an object.

use super::within;
use crate::cli::notify::Publish;
use crate::commands::{remote, runtime};
use crate::output;
use serde_json::json;
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{Publication, publish};
use tidings_node::{Clock as _, SystemClock};

pub fn run(args: Publish) -> Result<(), Error> {
    let version = version(&args.version)?;
    let payload = args.payload.as_deref().map(remote::content).transpose()?.unwrap_or_default();
    let remote = within(args.application.clone(), args.remote);
    let publication =
        Publication { source: args.source.into(), payload, ..Publication::new(args.object.clone(), version) };
    runtime()?.block_on(async {
        let client = Client::connect(remote::config(&remote)?).await?;
        publish(&client, [publication]).await
    })?;
    if remote.json {
        output::json(&json!({ "app": args.application, "object": args.object, "version": version }));
    } else {
        output::line(format_args!("published {} of {}", version, args.object));
    }
    Ok(())
}

fn version(text: &str) -> Result<u64, Error> {
    if text == "now" {
        return Ok(SystemClock.now().wall.0);
    }
    text.parse().map_err(|_| {
        Error::new("notify.bad_version", Class::Invalid, format!("`{text}` is no version"))
            .hint("Use a number from 1 to 2^63-1 that grows, or `now`.")
    })
}
