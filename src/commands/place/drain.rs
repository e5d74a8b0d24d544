//! `tidings place drain`.

use super::connect::with_placement;
use super::table::{no_owner, owner as shown, seconds};
use crate::cli::Remote;
use crate::output;
use serde_json::json;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange};
use tidings_client::placement::Loss;
use tidings_placement::config::effective;
use tidings_wire::v1::{OwnerInfo, TableRange, TableReply};

/// How often to look whether a drain is done.
const LOOK: Duration = Duration::from_millis(300);

/// What a drain is told.
pub struct Drain<'a> {
    pub namespace: &'a str,
    pub owner: &'a str,
    /// Come back when it holds nothing.
    pub wait: bool,
    /// Lost state is no failure.
    pub allow_loss: bool,
}

/// Has everything of an owner moved away.
pub fn drain(drain: &Drain<'_>, remote: &Remote) -> Result<(), Error> {
    let Drain { namespace, owner, wait, allow_loss } = *drain;
    let (info, lost, takers) = with_placement(remote, async |placement| {
        let before = placement.table(namespace).await?;
        placement.drain(namespace, owner).await.map_err(|error| named(error, namespace, owner))?;
        let owners = placement.owners(namespace).await?;
        let mut info = find(&owners, namespace, owner)?;
        let takers = takers(&owners);
        if takers == 0 && info.ranges > 0 {
            let config = effective(&before.info.clone().unwrap_or_default().config.unwrap_or_default());
            let within = seconds(config.drain_ms.into());
            let text = format_args!(
                "nobody else is there to take what {owner} holds: unless somebody joins, its state is lost in {within}"
            );
            output::event(remote.json, "nobody_takes", text);
        }
        while wait && info.ranges > 0 {
            tokio::time::sleep(LOOK).await;
            info = find(&placement.owners(namespace).await?, namespace, owner)?;
        }
        let lost = if wait { lost(owner, &before, &placement.table(namespace).await?) } else { 0 };
        Ok((info, lost, takers))
    })?;
    if lost > 0 && !allow_loss {
        let message = format!("{owner} holds nothing any more, and the state of {lost} ranges that it held was lost");
        return Err(Error::new("placement.state_lost", Class::Failed, message).hint(
            "Lookups were told: publish it again. Owners that hand nothing over lose it always (--allow-loss says that this \
             is fine); others may need a longer `tidings place create --drain`.",
        ));
    }
    if remote.json {
        let mut told = shown(&info);
        told["takers"] = takers.into();
        if wait {
            told["lost_ranges"] = lost.into();
        }
        output::json(&told);
    } else if info.ranges == 0 {
        let lost = if lost > 0 { format!("; the state of {lost} ranges was lost") } else { String::new() };
        output::line(format_args!("{owner} holds nothing any more{lost}"));
    } else {
        let ranges = info.ranges;
        output::line(format_args!("{owner} is draining: {ranges} ranges to go; it gets no new ones"));
    }
    Ok(())
}

/// How many ranges lie where an owner held something before, and were lost since, counted as those who watch are told.
fn lost(owner: &str, before: &TableReply, after: &TableReply) -> usize {
    let index = before.owners.iter().find(|known| known.id == owner).map_or(0, |known| known.index);
    let held: Vec<&TableRange> = before.ranges.iter().filter(|range| index > 0 && range.owner == index).collect();
    let known = before.info.as_ref().map_or(0, |info| info.lsn);
    let was_held = |range: &TableRange| held.iter().any(|had| had.start <= range.last && range.start <= had.last);
    let lost = after.ranges.iter().filter(|range| range.lost_lsn > known && was_held(range));
    Loss::new(lost.map(|range| KeyRange::new(KeyHash(range.start), KeyHash(range.last))).collect()).ranges.len()
}

fn find(owners: &[OwnerInfo], namespace: &str, owner: &str) -> Result<OwnerInfo, Error> {
    let found = owners.iter().find(|info| info.owner.as_ref().is_some_and(|found| found.id == owner));
    found.cloned().ok_or_else(|| no_owner(namespace, owner))
}

/// The manager's refusal of an owner that it does not know, in words of the command line.
fn named(error: Error, namespace: &str, owner: &str) -> Error {
    if error.code == "placement.no_owner" { no_owner(namespace, owner) } else { error }
}

/// How many owners may be given ranges.
fn takers(owners: &[OwnerInfo]) -> usize {
    let takes = |info: &&OwnerInfo| info.live && info.owner.as_ref().is_some_and(|owner| !owner.draining);
    owners.iter().filter(takes).count()
}

/// Takes an owner back into service.
pub fn cancel(namespace: &str, owner: &str, remote: &Remote) -> Result<(), Error> {
    let cancelled = with_placement(remote, async |placement| placement.cancel_drain(namespace, owner).await);
    cancelled.map_err(|error| named(error, namespace, owner))?;
    if remote.json {
        output::json(&json!({ "namespace": namespace, "owner": owner, "draining": false }));
    } else {
        output::line(format_args!("{owner} is in service again"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_wire::v1::{NamespaceInfo, TableOwner};

    #[test]
    fn only_what_the_owner_held_and_lost_since_counts() {
        let range = |start, last, owner, lost_lsn| TableRange { start, last, owner, lost_lsn, ..Default::default() };
        let owner = |index, id: &str| TableOwner { index, id: id.to_owned(), ..Default::default() };
        let table = |lsn, ranges| TableReply {
            info: Some(NamespaceInfo { lsn, ..Default::default() }),
            owners: vec![owner(1, "one"), owner(2, "two")],
            ranges,
            next: 0,
        };
        let before = table(10, vec![range(0, 9, 1, 4), range(10, 19, 2, 0), range(20, 29, 1, 0)]);
        let first = [range(0, 4, 2, 12), range(5, 9, 2, 4), range(10, 19, 2, 13)];
        // This one was divided since.
        let divided = [range(20, 23, 1, 14), range(24, 29, 2, 14)];
        let after = table(15, first.into_iter().chain(divided).collect());
        assert_eq!(lost("one", &before, &after), 2);
        assert_eq!(lost("two", &before, &after), 1);
        assert_eq!(lost("three", &before, &after), 0);
    }
}
