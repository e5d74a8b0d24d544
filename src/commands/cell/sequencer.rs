//! `tidings cell sequencer check|keys|show`.

use super::connect::looking;
use super::show;
use crate::cli::cell::Sequencer as Command;
use crate::commands::remote::unexpected;
use crate::output;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::cmp::Ordering;
use std::path::Path;
use std::process::ExitCode;
use tidings_base::Error;
use tidings_cell::token::PublicKeys;
use tidings_cell::{error, token};
use tidings_client::cell::Sequencer;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::{CellKey, CheckSequencer, SequencerBody};

/// Runs one of the sub-commands.
pub fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Check { token, remote } => {
            let sequencer: Sequencer = token.parse()?;
            let checked = looking(&remote, async |cell| {
                let check = CheckSequencer { token: sequencer.token().clone() };
                match cell.request(Message::CheckSequencer(check)).await? {
                    Message::SequencerChecked(checked) => Ok(checked),
                    _ => Err(unexpected()),
                }
            })?;
            let stale = error::stale_sequencer(&checked.why);
            if remote.json {
                let why = (!checked.valid).then_some(checked.why);
                output::json(&json!({ "valid": checked.valid, "why": why }));
                return Ok(if checked.valid { ExitCode::SUCCESS } else { ExitCode::from(stale.class.exit_code()) });
            }
            if !checked.valid {
                return Err(stale);
            }
            output::line("valid");
            Ok(ExitCode::SUCCESS)
        }
        Command::Keys { remote } => {
            let keys = looking(&remote, async |cell| cell.public_keys().await)?.to_wire();
            if remote.json {
                let rows = keys.iter().map(|key| json!({ "id": key.id, "public": STANDARD.encode(&key.public) }));
                output::json(&rows.collect::<Vec<_>>());
            } else {
                keys.iter().for_each(|key| output::line(format_args!("{} {}", key.id, STANDARD.encode(&key.public))));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { token, against, keys, json } => {
            let keys = keys.as_deref().map(read_keys).transpose()?;
            let read = |text: &str| {
                let token = token::sequencer_from_text(text)?;
                match &keys {
                    Some(keys) => keys.verify_sequencer(&token),
                    None => token::unverified_sequencer(&token),
                }
            };
            let body = read(&token)?;
            let order = match against {
                Some(other) => Some(token::compare_sequencers(&body, &read(&other)?)?),
                None => None,
            };
            print(&body, keys.is_some(), order, json);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reads what `cell sequencer keys` printed.
fn read_keys(path: &Path) -> Result<PublicKeys, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| output::broken(format_args!("cannot read {}", path.display()), error))?;
    let key = |line: &str| {
        let (id, public) = line.trim().split_once(' ')?;
        Some(CellKey { id: id.parse().ok()?, public: STANDARD.decode(public).ok()?.into() })
    };
    let keys: Option<Vec<CellKey>> = text.lines().filter(|line| !line.trim().is_empty()).map(key).collect();
    let keys = keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
        let what = format!("{} holds no keys of a cell", path.display());
        output::usage(what).hint("`tidings cell sequencer keys > FILE` writes such a file.")
    })?;
    Ok(PublicKeys::from_wire(&keys))
}

fn print(body: &SequencerBody, verified: bool, order: Option<Ordering>, json: bool) {
    let order = order.map(|order| match order {
        Ordering::Less => "older",
        Ordering::Equal => "the same grant",
        Ordering::Greater => "newer",
    });
    let mode = show::mode(body.mode());
    if json {
        output::json(&json!({
            "app": body.app,
            "path": body.path,
            "mode": mode,
            "incarnation": body.incarnation,
            "instance": body.instance,
            "generation": body.generation,
            "verified": verified,
            "against": order,
        }));
        return;
    }
    let rows = [
        ["application", body.app.as_str()],
        ["path", &body.path],
        ["mode", mode],
        ["incarnation", &body.incarnation.to_string()],
        ["instance", &body.instance.to_string()],
        ["lock generation", &body.generation.to_string()],
        ["signature", if verified { "the cell's" } else { "not checked: anybody can have written this" }],
    ];
    let compared = order.map(|order| ["than the other", order]);
    show::pairs(rows.into_iter().chain(compared));
}
