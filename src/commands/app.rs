//! `tidings app create|keys|ls`: applications and their API keys.

use super::remote::{Asked, ask};
use crate::cli::{App, Remote};
use crate::output;
use serde::Serialize;
use tidings_base::{Class, Error};
use tidings_wire::v1::admin_message::Message;
use tidings_wire::v1::{AppCreate, AppInfo, AppList, KeyCreate, KeyCreated, KeyRevoke};

/// Runs one of the sub-commands.
pub fn run(command: App) -> Result<(), Error> {
    match command {
        App::Create { name, remote } => {
            show_created(&remote, created(&remote, Message::AppCreate(AppCreate { app: name }))?)
        }
        App::Keys { name, new: true, remote, .. } => {
            show_created(&remote, created(&remote, Message::KeyCreate(KeyCreate { app: name }))?)
        }
        App::Keys { name, revoke: Some(id), remote, .. } => revoke(&remote, name, id),
        App::Keys { name, remote, .. } => keys(&remote, &name),
        App::Ls { remote } => list(&remote),
    }
}

#[derive(Serialize)]
struct Created {
    app: String,
    id: String,
    key: String,
}

fn created(remote: &Remote, message: Message) -> Result<KeyCreated, Error> {
    ask(remote, Asked::Admin(message), |answer| match answer {
        Asked::Admin(Message::KeyCreated(created)) => Some(created),
        _ => None,
    })
}

fn show_created(remote: &Remote, KeyCreated { app, id, key }: KeyCreated) -> Result<(), Error> {
    if remote.json {
        output::json(&Created { app, id, key });
    } else {
        output::line(format_args!("application {app}, key {id}:"));
        output::line(format_args!("  {key}"));
        output::line("It is shown this once: only a hash of it is kept.");
    }
    Ok(())
}

fn revoke(remote: &Remote, app: String, id: String) -> Result<(), Error> {
    ask(
        remote,
        Asked::Admin(Message::KeyRevoke(KeyRevoke { app: app.clone(), id: id.clone() })),
        |answer| match answer {
            Asked::Admin(Message::Done(_)) => Some(()),
            _ => None,
        },
    )?;
    if remote.json {
        output::json(&serde_json::json!({ "app": app, "id": id, "revoked": true }));
    } else {
        output::line(format_args!("key {id} of application {app} is revoked"));
    }
    Ok(())
}

#[derive(Serialize)]
struct KeyRow {
    id: String,
    created: String,
    revoked: bool,
}

fn apps(remote: &Remote) -> Result<Vec<AppInfo>, Error> {
    ask(remote, Asked::Admin(Message::AppList(AppList {})), |answer| match answer {
        Asked::Admin(Message::AppListReply(reply)) => Some(reply.apps),
        _ => None,
    })
}

fn keys(remote: &Remote, name: &str) -> Result<(), Error> {
    let app = apps(remote)?.into_iter().find(|app| app.app == name).ok_or_else(|| no_app(name))?;
    let rows: Vec<KeyRow> =
        app.keys.into_iter().map(|k| KeyRow { id: k.id, created: k.created, revoked: k.revoked }).collect();
    if remote.json {
        output::json(&rows);
    } else {
        output::table(
            ["KEY", "CREATED", "STATE"],
            rows.into_iter().map(|k| [k.id, k.created, if k.revoked { "revoked" } else { "valid" }.to_owned()]),
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct AppRow {
    app: String,
    keys: usize,
}

fn list(remote: &Remote) -> Result<(), Error> {
    let valid = |app: &AppInfo| app.keys.iter().filter(|key| !key.revoked).count();
    let rows: Vec<AppRow> = apps(remote)?.into_iter().map(|app| AppRow { keys: valid(&app), app: app.app }).collect();
    if remote.json {
        output::json(&rows);
    } else {
        output::table(["APPLICATION", "VALID KEYS"], rows.into_iter().map(|row| [row.app, row.keys.to_string()]));
    }
    Ok(())
}

fn no_app(app: &str) -> Error {
    Error::new("admin.no_app", Class::NotFound, format!("there is no application `{app}`"))
        .hint("`tidings app ls` lists them; `tidings app create NAME` makes one.")
}
