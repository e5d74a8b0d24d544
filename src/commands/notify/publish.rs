//! `tidings notify publish`: a new version of an object, or of many.

use super::within;
use crate::cli::Remote;
use crate::cli::notify::Publish;
use crate::commands::{remote, runtime};
use crate::output::{self, broken};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{Publication, publish};
use tidings_node::{Clock as _, SystemClock};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};

/// Publications of one question, and their bytes, about: less than a message may have.
const AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 256 << 10;

pub fn run(args: Publish) -> Result<(), Error> {
    let remote = within(args.application.clone(), args.remote)?;
    match (args.from, args.object, args.version) {
        (Some(file), ..) => many(&file, &args.source, &remote),
        (None, Some(object), Some(version)) => {
            let payload = args.payload.as_deref().map(remote::content).transpose()?.unwrap_or_default();
            one(&args.application, &object, &version, (args.source.into(), payload), &remote)
        }
        (None, ..) => Err(Error::new("cli.incomplete", Class::Invalid, "an object and its version are missing")),
    }
}

fn one(
    application: &str,
    object: &str,
    version: &str,
    (source, payload): (Bytes, Bytes),
    remote: &Remote,
) -> Result<(), Error> {
    let version = self::version(version)?;
    let publication = Publication { source, payload, ..Publication::new(object.to_owned(), version) };
    let known = runtime()?.block_on(async {
        let client = Client::connect(remote::config(remote)?).await?;
        publish(&client, [publication]).await?;
        Ok::<_, Error>(known(&client, object).await)
    })?;
    let later = known.filter(|known| *known > version);
    let shown = remote::printed(object.as_bytes());
    if remote.json {
        let mut told = json!({ "app": application, "object": object, "version": version });
        if let Some(later) = later {
            told["known"] = later.into();
        }
        output::json(&told);
    } else if let Some(later) = later {
        output::line(format_args!("{version} of {shown} is older than {later}, which is known: nobody is told"));
    } else {
        output::line(format_args!("published {version} of {shown}"));
    }
    Ok(())
}

/// A line of a file with many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    object: String,
    version: u64,
    source: Option<String>,
    #[serde(default)]
    payload: String,
}

/// Publishes what a file says, line by line; what is before a line that cannot be is durable.
fn many(file: &Path, source: &str, remote: &Remote) -> Result<(), Error> {
    let failed = |error| broken(format_args!("cannot read {}", file.display()), error);
    let input: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let count = runtime()?.block_on(async {
        let client = Client::connect(remote::config(remote)?).await?;
        let (mut count, mut batch, mut bytes, mut first) = (0, Vec::new(), 0, 1);
        for (number, line) in (1..).zip(BufReader::new(input).lines()) {
            let line = line.map_err(failed)?;
            if line.trim().is_empty() {
                continue;
            }
            if batch.len() == AT_ONCE || bytes + line.len() > BYTES_AT_ONCE {
                count += publish_some(&client, std::mem::take(&mut batch), (first, number - 1), count).await?;
                (bytes, first) = (0, number);
            }
            bytes += line.len();
            let parsed: Result<Line, _> = serde_json::from_str(&line);
            match parsed {
                Ok(Line { object, version, source: own, payload }) => batch.push(Publication {
                    source: own.unwrap_or_else(|| source.to_owned()).into(),
                    payload: payload.into(),
                    ..Publication::new(object, version)
                }),
                Err(error) => {
                    let error = Error::new("notify.bad_line", Class::Invalid, error.to_string()).hint(
                        "A line is {\"object\": \"prices\", \"version\": 42}, perhaps with a source and a payload.",
                    );
                    count += publish_some(&client, batch, (first, number - 1), count).await?;
                    return Err(at_lines((number, number), count, error));
                }
            }
        }
        Ok(count + publish_some(&client, batch, (first, u64::MAX), count).await?)
    })?;
    match remote.json {
        true => output::json(&json!({ "published": count })),
        false => output::line(format_args!("{count} versions are published")),
    }
    Ok(())
}

async fn publish_some(
    client: &Client,
    batch: Vec<Publication>,
    lines: (u64, u64),
    before: usize,
) -> Result<usize, Error> {
    let count = batch.len();
    if count > 0 {
        publish(client, batch).await.map_err(|error| at_lines(lines, before, error))?;
    }
    Ok(count)
}

/// What went wrong in these lines of a file, and how much of it is published all the same.
fn at_lines((first, last): (u64, u64), published: usize, error: Error) -> Error {
    let lines = match last {
        _ if first == last => format!("line {first}"),
        u64::MAX => format!("line {first} and behind it"),
        _ => format!("lines {first} to {last}"),
    };
    let message = format!("{lines}: {}; {published} versions before are published", error.message);
    Error { message, ..error }
}

/// The version that is known of an object, for a publisher to see that his is older. It is published either way, so nothing
/// that goes wrong here is worth a word.
async fn known(client: &Client, object: &str) -> Option<u64> {
    let list = Message::ObjectList(v1::ObjectList { object: object.to_owned().into(), limit: 1 });
    let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(list) });
    match client.call(body).await.ok()? {
        Body::Notify(v1::NotifyMessage { message: Some(Message::ObjectListReply(reply)), .. }) => {
            reply.objects.first().map(|object| object.version)
        }
        _ => None,
    }
}

fn version(text: &str) -> Result<u64, Error> {
    if text == "now" {
        return Ok(SystemClock.now().wall.0);
    }
    text.parse().map_err(|_| {
        Error::new("notify.bad_version", Class::Invalid, format!("`{text}` is no version"))
            .hint("Use a number from 1 to 2^63-1 that grows, or `now`.")
    })
}
