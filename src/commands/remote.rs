//! Asking a server: one connection, one question, one answer (or a few), and content as it is typed.

use super::runtime;
use crate::cli::Remote;
use crate::output::{self, broken};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::{Answers, Client, ClientConfig, ConnectionEvent, Request, Tls};
use tidings_wire::v1::frame::Body;
use tidings_wire::v1::{
    AdminMessage, CellMessage, FeedMessage, NotifyMessage, StoreMessage, admin_message, cell_message, feed_message,
    notify_message, store_message,
};

/// The most that `-` or `@FILE` may bring: more than the largest command of the agreed log would be refused anyway.
const MAX_CONTENT: u64 = 4 << 20;

/// A message of one of the parts that the command line speaks to.
#[derive(Clone, Debug)]
pub enum Asked {
    Admin(admin_message::Message),
    Cell(cell_message::Message),
    Store(store_message::Message),
    Feed(feed_message::Message),
    Notify(notify_message::Message),
}

impl From<Asked> for Body {
    fn from(asked: Asked) -> Body {
        match asked {
            Asked::Admin(message) => Body::Admin(AdminMessage { message: Some(message) }),
            Asked::Cell(message) => Body::Cell(CellMessage { message: Some(message), ..CellMessage::default() }),
            Asked::Store(message) => Body::Store(StoreMessage { message: Some(message) }),
            Asked::Feed(message) => Body::Feed(FeedMessage { message: Some(message) }),
            Asked::Notify(message) => Body::Notify(NotifyMessage { caller: None, message: Some(message) }),
        }
    }
}

impl Asked {
    fn from_body(body: Body) -> Option<Asked> {
        match body {
            Body::Admin(AdminMessage { message }) => message.map(Asked::Admin),
            Body::Cell(CellMessage { message, .. }) => message.map(Asked::Cell),
            Body::Store(StoreMessage { message }) => message.map(Asked::Store),
            Body::Feed(FeedMessage { message }) => message.map(Asked::Feed),
            Body::Notify(NotifyMessage { message, .. }) => message.map(Asked::Notify),
            _ => None,
        }
    }
}

/// An open connection to a server.
pub struct Caller {
    client: Client,
    timeout: Duration,
}

impl Caller {
    /// Asks, and takes out of the answer what `pick` finds there.
    pub async fn ask<T>(&self, asked: Asked, pick: impl FnOnce(Asked) -> Option<T>) -> Result<T, Error> {
        picked(self.client.call(Body::from(asked)).await?, pick)
    }

    /// Asks something that may take this much longer than `--timeout`.
    pub async fn ask_waiting<T>(
        &self,
        asked: Asked,
        wait: Duration,
        pick: impl FnOnce(Asked) -> Option<T>,
    ) -> Result<T, Error> {
        let request = Request::new(Body::from(asked)).within(self.timeout + wait);
        picked(self.client.call(request).await?, pick)
    }

    /// Asks, and takes what `pick` finds out of each frame of a long answer.
    pub async fn ask_many<T>(&self, asked: Asked, pick: impl Fn(Asked) -> Option<T>) -> Result<Vec<T>, Error> {
        let mut stream = self.stream(asked).await?;
        let mut picked = Vec::new();
        while let Some(answer) = stream.next().await {
            picked.push(pick(answer?).ok_or_else(unexpected)?);
        }
        Ok(picked)
    }

    /// Asks for a long answer and takes its frames one by one.
    pub async fn stream(&self, asked: Asked) -> Result<Frames, Error> {
        Ok(Frames(self.client.stream(Body::from(asked)).await?))
    }
}

fn picked<T>(body: Body, pick: impl FnOnce(Asked) -> Option<T>) -> Result<T, Error> {
    Asked::from_body(body).and_then(pick).ok_or_else(unexpected)
}

/// The frames of a long answer.
pub struct Frames(Answers);

impl Frames {
    /// The next one; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Asked, Error>> {
        let body = self.0.next().await?;
        Some(body.and_then(|body| Asked::from_body(body).ok_or_else(unexpected)))
    }
}

/// The answer is of another kind than the question.
pub fn unexpected() -> Error {
    Error::new("cli.unexpected_answer", Class::Failed, "the server answered something else than was asked")
        .hint("Client and server may be of different versions: compare `tidings --version` and `tidings status`.")
}

/// Connects, asks once, and is done.
pub fn ask<T>(remote: &Remote, asked: Asked, pick: impl FnOnce(Asked) -> Option<T>) -> Result<T, Error> {
    with_client(remote, async |caller| caller.ask(asked, pick).await)
}

/// Connects, asks once for an answer of several frames, and is done.
pub fn ask_many<T>(remote: &Remote, asked: Asked, pick: impl Fn(Asked) -> Option<T>) -> Result<Vec<T>, Error> {
    with_client(remote, async |caller| caller.ask_many(asked, pick).await)
}

/// Connects and lets `work` ask as often as it likes.
pub fn with_client<T>(remote: &Remote, work: impl AsyncFnOnce(&Caller) -> Result<T, Error>) -> Result<T, Error> {
    runtime()?.block_on(async {
        let client = connect(remote).await?;
        work(&Caller { client, timeout: Duration::from_secs(remote.timeout) }).await
    })
}

/// Connects as the flags say.
pub async fn connect(remote: &Remote) -> Result<Client, Error> {
    Client::connect(config(remote)?).await
}

/// How to connect as the flags say.
pub fn config(remote: &Remote) -> Result<ClientConfig, Error> {
    let ca = remote.ca.as_deref().map(read_file).transpose()?;
    Ok(ClientConfig {
        // A file that is empty or missing is no key.
        credential: remote.key.clone().filter(|key| !key.is_empty()),
        app: remote.app.clone(),
        tls: ca.map(|ca| Tls { ca, ..Tls::default() }),
        agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
        deadline: Duration::from_secs(remote.timeout),
        connect_timeout: Duration::from_secs(remote.timeout),
        ..ClientConfig::new(remote.server.clone())
    })
}

/// Says on standard error when the connection is lost and when it is back, for as long as the client lives.
pub fn tell_connection(client: &Client, json: bool) {
    let mut connection = client.connection();
    tokio::spawn(async move {
        while let Some(event) = connection.next().await {
            match event {
                ConnectionEvent::Lost(why) => {
                    let text = format!("the connection is lost, trying to connect again: {}", why.message);
                    output::event(json, "disconnected", text);
                }
                ConnectionEvent::Back => output::event(json, "connected", "connected again"),
            }
        }
    });
}

/// A content argument: itself, or `-` for standard input, or `@FILE`.
pub fn content(argument: &str) -> Result<Bytes, Error> {
    let read = |what: &str, reader: &mut dyn Read| {
        let mut bytes = Vec::new();
        match reader.take(MAX_CONTENT + 1).read_to_end(&mut bytes) {
            Err(error) => Err(broken(format_args!("cannot read {what}"), error)),
            Ok(_) if bytes.len() as u64 > MAX_CONTENT => {
                Err(Error::new("cli.too_large", Class::Invalid, format!("{what} is larger than {MAX_CONTENT} bytes")))
            }
            Ok(_) => Ok(Bytes::from(bytes)),
        }
    };
    match argument.strip_prefix('@') {
        _ if argument == "-" => read("standard input", &mut std::io::stdin().lock()),
        Some(path) => {
            let mut file =
                std::fs::File::open(path).map_err(|error| broken(format_args!("cannot read {path}"), error))?;
            read(path, &mut file)
        }
        None => Ok(Bytes::copy_from_slice(argument.as_bytes())),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| broken(format_args!("cannot read {}", path.display()), error))
}

/// Bytes as names in JSON: text as it is, anything else as `base16:…`.
pub fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("base16:".to_owned(), |text, byte| text + &format!("{byte:02x}")),
    }
}

/// Bytes for people: as names are, on one line, and without anything that a terminal would obey.
pub fn printed(bytes: &[u8]) -> String {
    output::plain(&shown(bytes)).into_owned()
}

/// Bytes as values in JSON, as REST tells them: a string where they are text, `{"base64": "…"}` where not.
pub fn told(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_printed_as_it_is_written() {
        assert_eq!(printed("prïces 1".as_bytes()), "prïces 1");
        assert_eq!(printed(b"a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(told(b"a\nb"), "a\nb");
    }

    #[test]
    fn content_is_itself_or_a_file() {
        assert_eq!(content("plain").unwrap(), "plain");
        assert_eq!(content("").unwrap(), "");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0, 159]).unwrap();
        let read = content(&format!("@{}", file.path().display())).unwrap();
        assert_eq!(read.as_ref(), [0, 159]);
        assert_eq!(shown(&read), "base16:009f");
        assert_eq!(told(&read), json!({ "base64": "AJ8=" }));
        assert_eq!(content("@/there/is/no/such/file").unwrap_err().class, Class::Failed);
    }
}
