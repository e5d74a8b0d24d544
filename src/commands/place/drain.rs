//! `tidings place drain`.

use super::connect::with_placement;
use super::table::{no_owner, owner as shown};
use crate::cli::Remote;
use crate::output;
use serde_json::json;
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::Placement;
use tidings_wire::v1::OwnerInfo;

/// How often to look whether a drain is done.
const LOOK: Duration = Duration::from_millis(300);

/// Has everything of an owner moved away.
pub fn drain(namespace: &str, owner: &str, wait: bool, remote: &Remote) -> Result<(), Error> {
    let info = with_placement(remote, async |placement| {
        placement.drain(namespace, owner).await?;
        let mut info = find(placement, namespace, owner).await?;
        while wait && info.ranges > 0 {
            tokio::time::sleep(LOOK).await;
            info = find(placement, namespace, owner).await?;
        }
        Ok(info)
    })?;
    if remote.json {
        output::json(&shown(&info));
    } else if info.ranges == 0 {
        output::line(format_args!("{owner} holds nothing any more"));
    } else {
        let ranges = info.ranges;
        output::line(format_args!("{owner} is draining: {ranges} ranges to go; it gets no new ones"));
    }
    Ok(())
}

async fn find(placement: &Placement, namespace: &str, owner: &str) -> Result<OwnerInfo, Error> {
    let owners = placement.owners(namespace).await?;
    let found = owners.into_iter().find(|info| info.owner.as_ref().is_some_and(|found| found.id == owner));
    found.ok_or_else(|| no_owner(owner))
}

/// Takes an owner back into service.
pub fn cancel(namespace: &str, owner: &str, remote: &Remote) -> Result<(), Error> {
    with_placement(remote, async |placement| placement.cancel_drain(namespace, owner).await)?;
    if remote.json {
        output::json(&json!({ "namespace": namespace, "owner": owner, "draining": false }));
    } else {
        output::line(format_args!("{owner} is in service again"));
    }
    Ok(())
}
