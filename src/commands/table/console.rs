//! `tidings table queries|load`: who watches a table, and how all nodes fare.

use super::with_tables;
use crate::cli::Remote;
use crate::output;
use tidings_base::Error;
use tidings_client::tables::{TableQuery, TablesNodeLoad, shown as told};

pub fn queries(table: &str, remote: &Remote) -> Result<(), Error> {
    let reply = with_tables(remote, async |tables| tables.queries(table).await)?;
    if remote.json {
        output::json(&told::queries(&reply));
        return Ok(());
    }
    output::table(
        ["NODE", "QUERY", "WHO", "PREDICATE", "PARTITIONS", "SILENT", "UNTAKEN", "STATE"],
        reply.queries.iter().map(|query| {
            [
                query.node.to_string(),
                query.number.to_string(),
                query.principal.clone(),
                asked(query),
                query.partitions.to_string(),
                query.silent.to_string(),
                format!("{} ({} bytes)", query.untaken, query.untaken_bytes),
                if query.settling { "settling" } else { "settled" }.to_owned(),
            ]
        }),
    );
    if reply.more {
        output::line("… and more");
    }
    Ok(())
}

/// What a query asks for, in a few words: `--json` has all of it.
fn asked(query: &TableQuery) -> String {
    let predicate = if query.predicate.is_empty() { "(all)".to_owned() } else { query.predicate.clone() };
    let parts = [
        ("projected", !query.project.is_empty()),
        ("ordered", !query.order.is_empty()),
        ("limited", query.limit.is_some()),
        ("aggregated", !query.aggregates.is_empty() || !query.group_by.is_empty()),
    ];
    let parts: Vec<&str> = parts.into_iter().filter(|(_, said)| *said).map(|(part, _)| part).collect();
    match parts.is_empty() {
        true => predicate,
        false => format!("{predicate} [{}]", parts.join(", ")),
    }
}

pub fn load(remote: &Remote) -> Result<(), Error> {
    let nodes = with_tables(remote, async |tables| tables.load().await)?;
    if remote.json {
        output::json(&told::load(&nodes));
        return Ok(());
    }
    let answered = |node: &TablesNodeLoad, kinds: &[&str]| {
        let counts = node.answers.iter().filter(|answers| kinds.contains(&answers.kind.as_str()));
        counts.map(|answers| answers.count).sum::<u64>().to_string()
    };
    output::table(
        ["NODE", "PARTITIONS", "COPIES", "LIVE QUERIES", "READS", "WRITES", "REFUSED", "EVENTS", "UNTAKEN", "OVERRUN"],
        nodes.iter().map(|node| {
            [
                node.node.to_string(),
                node.partitions.to_string(),
                node.copies.to_string(),
                node.queries.to_string(),
                answered(node, &["rows"]),
                answered(node, &["written", "conflict"]),
                answered(node, &["refused"]),
                format!("{} ({} bytes)", node.events, node.event_bytes),
                format!("{} ({} bytes)", node.untaken, node.untaken_bytes),
                node.overrun.to_string(),
            ]
        }),
    );
    Ok(())
}
