//! `tidings table acl`: who may do what with a table.

use super::with_tables;
use crate::cli::Remote;
use crate::cli::table::Access;
use crate::output;
use serde_json::json;
use tidings_base::Error;
use tidings_client::tables::{TableAccessChange, TableAcl, shown as told};

pub fn run(table: &str, changes: &Access, remote: &Remote) -> Result<(), Error> {
    let removed =
        changes.remove.iter().map(|who| Ok(TableAccessChange { who: who.clone(), remove: true, ..Default::default() }));
    let allowed = changes.allow.iter().map(|text| {
        let (who, allow) = rights(text)?;
        Ok(TableAccessChange { who, allow, ..Default::default() })
    });
    let denied = changes.deny.iter().map(|text| {
        let (who, deny) = rights(text)?;
        Ok(TableAccessChange { who, deny, ..Default::default() })
    });
    let all = removed.chain(allowed).chain(denied).collect::<Result<Vec<_>, Error>>()?;
    let list = with_tables(remote, async |tables| match (changes.off, all.is_empty()) {
        (true, _) => Ok(tables.open_access(table).await?.acl),
        (false, true) => tables.access(table).await,
        (false, false) => Ok(tables.change_access(table, all).await?.acl),
    })?;
    match remote.json {
        true => {
            let entries = list.as_ref().map(told::acl);
            output::json(&json!({ "table": table, "listed": list.is_some(), "entries": entries }));
        }
        false => print(table, list.as_ref()),
    }
    Ok(())
}

fn print(table: &str, list: Option<&TableAcl>) {
    let Some(list) = list else {
        return output::line(format_args!("`{table}` has no list: its level alone decides"));
    };
    let names = |rights: &[i32]| rights.iter().map(|right| told::right_name(*right)).collect::<Vec<_>>().join(",");
    output::table(
        ["WHO", "ALLOWED", "DENIED"],
        list.entries.iter().map(|entry| [entry.who.clone(), names(&entry.allow), names(&entry.deny)]),
    );
}

/// A name, and rights.
fn rights(text: &str) -> Result<(String, Vec<i32>), Error> {
    let bad = |what: String| output::usage(what).hint("Write WHO=RIGHTS, such as user:shop/ann=read,write.");
    let (who, names) = text.rsplit_once('=').ok_or_else(|| bad(format!("`{text}` names no rights")))?;
    let rights = names.split(',').map(|name| told::rights(name).ok_or_else(|| bad(format!("`{name}` is no right"))));
    let rights = rights.collect::<Result<Vec<_>, Error>>()?;
    Ok((who.to_owned(), rights.into_iter().flatten().map(i32::from).collect()))
}
