//! `tidings place namespaces|create|delete`.

use super::connect::with_placement;
use crate::cli::place::Create;
use crate::cli::{Remote, quoted};
use crate::output;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_base::Error;
use tidings_placement::config::effective;
use tidings_wire::v1::{NamespaceConfig, NamespaceInfo};

/// For fast fail-over (F10): known to outlast the death of a manager.
const FAST_LEASE: Duration = Duration::from_secs(12);
const FAST_RENEW: Duration = Duration::from_millis(2_500);

/// Lists namespaces.
pub fn list(remote: &Remote) -> Result<(), Error> {
    let namespaces = with_placement(remote, async |placement| placement.namespaces().await)?;
    if remote.json {
        output::json(&namespaces.iter().map(namespace).collect::<Vec<_>>());
        return Ok(());
    }
    output::table(
        ["NAMESPACE", "OWNERS", "RANGES", "UNOWNED", "MOVING", "LEASE", "RENEWED", "POLICY", "CHANGES"],
        namespaces.iter().map(|info| {
            let config = effective(&info.config.clone().unwrap_or_default());
            [
                info.namespace.clone(),
                info.owners.to_string(),
                info.ranges.to_string(),
                info.unowned.to_string(),
                info.moving.to_string(),
                seconds(config.lease_ms),
                format!("every {}", seconds(config.renew_ms)),
                config.policy,
                info.lsn.to_string(),
            ]
        }),
    );
    Ok(())
}

fn namespace(info: &NamespaceInfo) -> Value {
    let config = effective(&info.config.clone().unwrap_or_default());
    json!({
        "namespace": info.namespace,
        "instance": format!("{:016x}", info.instance),
        "owners": info.owners,
        "ranges": info.ranges,
        "unowned": info.unowned,
        "moving": info.moving,
        "lsn": info.lsn,
        "epoch": info.epoch,
        "lease_ms": config.lease_ms,
        "renew_ms": config.renew_ms,
        "policy": config.policy,
        "virtual_nodes": config.virtual_nodes,
        "drain_ms": config.drain_ms,
        "rebalance_ms": config.rebalance_ms,
    })
}

fn seconds(milliseconds: u32) -> String {
    match milliseconds % 1_000 {
        0 => format!("{} s", milliseconds / 1_000),
        rest => format!("{}.{} s", milliseconds / 1_000, rest / 100),
    }
}

/// Makes a namespace.
pub fn create(args: &Create) -> Result<(), Error> {
    let (lease, renew) = match args.fast {
        true => (Some(FAST_LEASE), Some(FAST_RENEW)),
        false => (args.lease, args.renew),
    };
    let config = NamespaceConfig {
        lease_ms: milliseconds("--lease", lease)?,
        renew_ms: milliseconds("--renew", renew)?,
        policy: args.policy.name().to_owned(),
        virtual_nodes: args.virtual_nodes.unwrap_or_default(),
        drain_ms: milliseconds("--drain", args.drain)?,
        rebalance_ms: milliseconds("--rebalance-every", args.rebalance_every)?,
    };
    let told = effective(&config);
    with_placement(&args.remote, async |placement| placement.create(&args.namespace, config).await)?;
    if args.remote.json {
        output::json(&json!({
            "namespace": args.namespace,
            "created": true,
            "lease_ms": told.lease_ms,
            "renew_ms": told.renew_ms,
            "policy": told.policy,
        }));
    } else {
        let (name, lease, renew) = (&args.namespace, seconds(told.lease_ms), seconds(told.renew_ms));
        output::line(format_args!("{name} is made: leases of {lease}, renewed every {renew}"));
    }
    Ok(())
}

/// A duration as it travels: zero stands for the default, so nobody may ask for it.
fn milliseconds(flag: &str, duration: Option<Duration>) -> Result<u32, Error> {
    let Some(duration) = duration else { return Ok(0) };
    let milliseconds = u32::try_from(duration.as_millis()).ok().filter(|ms| *ms > 0);
    milliseconds.ok_or_else(|| {
        let range = match flag {
            "--lease" => "at most 60m",
            "--renew" => "at least 100ms",
            _ => "1s to 1440m",
        };
        output::usage(format_args!("{flag} cannot be {} s", duration.as_secs()))
            .hint(format!("Use a duration such as 60s, {range}, or leave it out."))
    })
}

/// Deletes a namespace.
pub fn delete(namespace: &str, yes: bool, remote: &Remote) -> Result<(), Error> {
    if !yes {
        // What is not there needs no confirmation.
        with_placement(remote, async |placement| placement.owners(namespace).await)?;
        let what = format_args!("deleting `{namespace}` takes every key from its owner");
        let namespace = quoted(namespace);
        let hint = format!("Add --yes to do it; `tidings place owners {namespace}` shows who is there.");
        return Err(output::unconfirmed(what, &hint));
    }
    with_placement(remote, async |placement| placement.delete(namespace).await)?;
    if remote.json {
        output::json(&json!({ "namespace": namespace, "deleted": true }));
    } else {
        output::line(format_args!("{namespace} is deleted; its owners stop when their leases end"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_as_people_say_them() {
        assert_eq!((seconds(12_000), seconds(2_500)), ("12 s".to_owned(), "2.5 s".to_owned()));
        assert_eq!(milliseconds("--lease", None), Ok(0));
        assert_eq!(milliseconds("--lease", Some(FAST_LEASE)), Ok(12_000));
        for wrong in [Duration::ZERO, Duration::from_secs(u64::MAX)] {
            assert_eq!(milliseconds("--lease", Some(wrong)).unwrap_err().code, "cli.usage");
        }
    }
}
