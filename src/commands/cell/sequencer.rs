//! `tidings cell sequencer check|show`.

use super::connect::looking;
use super::show;
use crate::cli::cell::Sequencer as Command;
use crate::commands::remote::unexpected;
use crate::output;
use serde_json::json;
use std::cmp::Ordering;
use std::process::ExitCode;
use tidings_base::Error;
use tidings_cell::{error, token};
use tidings_client::cell::Sequencer;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::{CheckSequencer, SequencerBody};

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
        Command::Show { token, against, json } => {
            let body = token::unverified_sequencer(token::sequencer_from_text(&token)?.as_ref())?;
            let order = match against {
                Some(other) => {
                    let other = token::unverified_sequencer(token::sequencer_from_text(&other)?.as_ref())?;
                    Some(token::compare_sequencers(&body, &other)?)
                }
                None => None,
            };
            print(&body, order, json);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print(body: &SequencerBody, order: Option<Ordering>, json: bool) {
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
    ];
    let compared = order.map(|order| ["than the other", order]);
    show::pairs(rows.into_iter().chain(compared));
}
