//! `tidings bft status`: how far each replica is.

use crate::cli::bft::Asks;
use crate::commands::runtime;
use crate::output;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::client::{Client, Options};
use tidings_bft::frame;
use tidings_bft::membership::{ClientSecrets, Membership};
use tidings_sketch::ReplicaId;

/// How long replicas have to be reached, and then to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks each, and prints.
pub fn run(args: &Asks) -> Result<(), Error> {
    let membership = Arc::new(super::group(&args.group)?);
    let secrets = super::client(&args.client, &membership)?;
    let statuses = runtime()?.block_on(ask(membership.clone(), secrets))?;
    if args.json {
        let rows = (0..).zip(&statuses).map(|(number, status): (u16, _)| match status {
            Some(of) => json!({ "replica": number, "height": of.height, "snapshot": of.snapshot, "votes": of.votes,
                                "closing": of.closed, "waiting": of.waiting }),
            None => json!({ "replica": number }),
        });
        output::json(&rows.collect::<Vec<_>>());
    } else {
        let rows = (0..).zip(&statuses).map(|(number, status): (u16, _)| row(number, &membership, status.as_ref()));
        output::table(["REPLICA", "ADDRESS", "HEIGHT", "SNAPSHOT", "VOTES", "WAITING"], rows);
    }
    let (there, enough) = (statuses.iter().flatten().count(), 2 * usize::from(membership.faults()) + 1);
    if there < enough {
        return Err(Error::new("bft.too_few", Class::Unreachable, format!("{there} replicas answer"))
            .hint(format!("{enough} must; look at those that are missing")));
    }
    Ok(())
}

pub(super) async fn ask(
    membership: Arc<Membership>,
    secrets: ClientSecrets,
) -> Result<Vec<Option<frame::Status>>, Error> {
    let size = membership.size();
    // Nothing is ordered here, so nonces do not matter.
    let mut client = Client::start(membership, secrets, &Options::after(0))?;
    let _ = tokio::time::timeout(PATIENCE, client.connected(usize::from(size))).await;
    let asked = (0..size).map(|number| client.status(ReplicaId(number), PATIENCE));
    Ok(futures::future::join_all(asked).await)
}

fn row(number: u16, membership: &Membership, status: Option<&frame::Status>) -> [String; 6] {
    let address = membership.replicas()[usize::from(number)].clients.to_string();
    let told = |tell: fn(&frame::Status) -> String| status.map_or_else(|| "-".to_owned(), tell);
    [
        number.to_string(),
        address,
        told(|of| of.height.to_string()),
        told(|of| of.snapshot.to_string()),
        told(|of| {
            match (of.votes, of.closed) {
                (_, true) => "closing",
                (true, false) => "yes",
                (false, false) => "no",
            }
            .to_owned()
        }),
        told(|of| of.waiting.to_string()),
    ]
}
