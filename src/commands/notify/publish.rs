//! `tidings notify publish`: a new version of an object, or of many.

use super::within;
use crate::cli::Remote;
use crate::cli::notify::Publish;
use crate::commands::{remote, runtime};
use crate::output::{self, broken};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{MAX_NAME, MAX_PAYLOAD, MAX_VERSION, Publication, publish};
use tidings_node::{Clock as _, SystemClock};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};
use tokio::sync::mpsc;

/// Publications of one question, and their bytes, about: less than a message may have.
const AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 256 << 10;
/// What tables publish themselves.
const RESERVED: &[u8] = b"tables/";

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
    object: Text,
    version: u64,
    source: Option<Text>,
    payload: Option<Text>,
}

/// Bytes as REST takes them: a string where they are text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Bytes { base64: String },
}

impl Text {
    fn bytes(self) -> Result<Bytes, String> {
        match self {
            Text::Plain(text) => Ok(text.into()),
            Text::Bytes { base64 } => match STANDARD.decode(base64) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(format!("that is no base64: {error}")),
            },
        }
    }
}

/// What a line publishes, or what is wrong with it.
fn parse(line: &[u8], source: &Bytes) -> Result<Publication, String> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let (object, version) = (line.object.bytes()?, line.version);
    let source = line.source.map(Text::bytes).transpose()?.unwrap_or_else(|| source.clone());
    let payload = line.payload.map(Text::bytes).transpose()?.unwrap_or_default();
    match () {
        () if !(1..=MAX_NAME).contains(&object.len()) => Err(format!("the object's name has {} bytes", object.len())),
        () if !(1..=MAX_VERSION).contains(&version) => Err(format!("{version} is no version")),
        () if payload.len() > MAX_PAYLOAD => Err(format!("the payload has {} bytes", payload.len())),
        () if object.starts_with(RESERVED) => Err("objects under `tables/` are published by tables alone".to_owned()),
        () => Ok(Publication { object, version, source, payload }),
    }
}

/// A line with its number, if it could be read.
type Numbered = std::io::Result<(u64, Vec<u8>)>;

/// Lines of a file with their numbers, those that are empty left out. They are read beside what is done with them, so that
/// those of a slow writer are not waited for.
fn lines(file: &Path) -> Result<mpsc::Receiver<Numbered>, Error> {
    let input: Box<dyn Read + Send> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).map_err(|error| unreadable(file, error))?),
    };
    let (sender, lines) = mpsc::channel(AT_ONCE);
    std::thread::spawn(move || {
        for (number, line) in (1..).zip(BufReader::new(input).split(b'\n')) {
            let mark = |line: Vec<u8>| line.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(line);
            let line = line.map(|line| (number, if number == 1 { mark(line) } else { line }));
            let empty = line.as_ref().is_ok_and(|(_, line)| line.trim_ascii().is_empty());
            let ends = line.is_err();
            if !empty && (sender.blocking_send(line).is_err() || ends) {
                return;
            }
        }
    });
    Ok(lines)
}

fn unreadable(file: &Path, error: std::io::Error) -> Error {
    broken(format_args!("cannot read {}", file.display()), error)
}

/// Publishes what a file says, line by line; what is before a line that cannot be is durable.
fn many(file: &Path, source: &str, remote: &Remote) -> Result<(), Error> {
    let source = Bytes::copy_from_slice(source.as_bytes());
    let mut lines = lines(file)?;
    let count = runtime()?.block_on(async {
        let client = Client::connect(remote::config(remote)?).await?;
        let (mut count, mut some) = (0, Vec::new());
        while lines.recv_many(&mut some, AT_ONCE).await > 0 {
            let (mut batch, mut bytes, mut first, mut wrong) = (Vec::new(), 0, 0, None);
            for line in some.drain(..) {
                let (number, line) = match line {
                    Ok(line) => line,
                    Err(error) => {
                        wrong = Some(unreadable(file, error));
                        break;
                    }
                };
                match parse(&line, &source) {
                    Err(why) => {
                        wrong = Some(bad_line(number, &why));
                        break;
                    }
                    Ok(publication) => batch.push(publication),
                }
                first = if batch.len() == 1 { number } else { first };
                bytes += line.len();
                if bytes > BYTES_AT_ONCE {
                    count += publish_some(&client, std::mem::take(&mut batch), first, count).await?;
                    bytes = 0;
                }
            }
            count += publish_some(&client, batch, first, count).await?;
            if let Some(error) = wrong {
                return Err(with_count(error, count));
            }
        }
        Ok(count)
    })?;
    match (remote.json, count) {
        (true, _) => output::json(&json!({ "published": count })),
        (false, 1) => output::line("1 version is published"),
        (false, _) => output::line(format_args!("{count} versions are published")),
    }
    Ok(())
}

async fn publish_some(client: &Client, batch: Vec<Publication>, first: u64, before: usize) -> Result<usize, Error> {
    let count = batch.len();
    if count > 0 {
        let published = publish(client, batch).await;
        published.map_err(|error| {
            let message = format!("from line {first} on: {}", error.message);
            with_count(Error { message, ..error }, before)
        })?;
    }
    Ok(count)
}

fn bad_line(number: u64, why: &str) -> Error {
    Error::new("notify.bad_line", Class::Invalid, format!("line {number}: {why}"))
        .hint("A line is {\"object\": \"prices\", \"version\": 42}, perhaps with a source and a payload.")
}

/// What went wrong, and how much is published all the same.
fn with_count(error: Error, published: usize) -> Error {
    let before =
        if published == 1 { "1 version before is".to_owned() } else { format!("{published} versions before are") };
    let message = format!("{}; {before} published", error.message);
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
