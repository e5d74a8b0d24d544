//! `tidings cell backup|restore`: the whole cell to and from one checksummed file.

use super::operators::done;
use crate::cli::Remote;
use crate::commands::remote::{Asked, with_client};
use crate::output::{self, broken};
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use tidings_base::{Class, Error};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::{BackupCell, RestoreCell};

/// The bytes of a piece of a restore: well within a client's frame and a command of the agreed log.
const PIECE: usize = 512 << 10;

/// Streams a backup into a new file. A file of that name exists only once it is whole and synced.
pub fn backup(file: &Path, remote: &Remote) -> Result<(), Error> {
    if fs::symlink_metadata(file).is_ok() {
        return Err(Error::new("cli.exists", Class::Refused, format!("{} exists already", file.display()))
            .hint("Name a new file: a backup never replaces another."));
    }
    let name = file.file_name().ok_or_else(|| output::usage(format_args!("{} names no file", file.display())))?;
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".part-{}", std::process::id()));
    let unfinished = file.with_file_name(unfinished);
    let cannot = |error: std::io::Error| broken(format_args!("cannot write {}", file.display()), error);
    let mut into = OpenOptions::new().write(true).create_new(true).open(&unfinished).map_err(cannot)?;
    let written = receive(remote, &mut into).and_then(|bytes| {
        into.sync_all().map_err(cannot)?;
        fs::rename(&unfinished, file).map_err(cannot)?;
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(cannot)?;
        Ok(bytes)
    });
    if written.is_err() {
        // What is there is worth nothing; that it stays, if it does, matters less than why.
        let _ = fs::remove_file(&unfinished);
    }
    let bytes = written?;
    if remote.json {
        output::json(&json!({ "file": file, "bytes": bytes }));
    } else {
        output::line(format_args!("{bytes} bytes in {}", file.display()));
    }
    Ok(())
}

fn receive(remote: &Remote, into: &mut File) -> Result<u64, Error> {
    let progress = progress(ProgressBar::no_length(), "{spinner} {bytes} received, {bytes_per_sec}");
    with_client(remote, async |caller| {
        let mut bytes = 0;
        let mut pieces = caller.stream(Asked::Cell(Message::Backup(BackupCell {}))).await?;
        while let Some(piece) = pieces.next().await {
            let Asked::Cell(Message::BackupChunk(chunk)) = piece? else {
                return Err(crate::commands::remote::unexpected());
            };
            into.write_all(&chunk.bytes).map_err(|error| broken("cannot write the backup", error))?;
            bytes += chunk.bytes.len() as u64;
            progress.set_position(bytes);
        }
        progress.finish_and_clear();
        Ok(bytes)
    })
}

/// Sends a backup to the cell, piece by piece; the cell checks it whole before anything of it counts.
pub fn restore(file: &Path, replace: bool, yes: bool, remote: &Remote) -> Result<(), Error> {
    if replace && !yes {
        let what = "restoring over a cell deletes what it holds and ends every session";
        return Err(output::unconfirmed(what, "Add --yes; `tidings cell backup FILE` saves what is there first."));
    }
    let cannot = |error: std::io::Error| broken(format_args!("cannot read {}", file.display()), error);
    let from = File::open(file).map_err(cannot)?;
    let total = from.metadata().map_err(cannot)?.len();
    if total == 0 {
        return Err(Error::new("cell.damaged_backup", Class::Invalid, format!("{} is empty", file.display()))
            .hint("Restore a file that `tidings cell backup` finished."));
    }
    let progress = progress(ProgressBar::new(total), "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}");
    with_client(remote, async |caller| {
        let mut offset = 0;
        while offset < total {
            let mut bytes = Vec::with_capacity(PIECE);
            (&from).take(PIECE as u64).read_to_end(&mut bytes).map_err(cannot)?;
            if bytes.is_empty() {
                return Err(broken(format_args!("cannot read {}", file.display()), "it became shorter meanwhile"));
            }
            let next = offset + bytes.len() as u64;
            let total = if next >= total { total } else { 0 };
            let piece = RestoreCell { offset, bytes: Bytes::from(bytes), total, replace };
            caller.ask(Asked::Cell(Message::Restore(piece)), done).await?;
            offset = next;
            progress.set_position(offset);
        }
        progress.finish_and_clear();
        Ok(())
    })?;
    if remote.json {
        output::json(&json!({ "file": file, "bytes": total, "restored": true }));
    } else {
        output::line(format_args!("restored {total} bytes; all earlier sessions and sequencers are void"));
    }
    Ok(())
}

/// Shown on a terminal only; indicatif sees to that.
fn progress(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(error) => unreachable!("the template is ours: {error}"),
    }
}
