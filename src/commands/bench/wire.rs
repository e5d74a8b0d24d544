//! `bench wire`: frames a second over one connection and over many, and what an idle connection costs.
//!
//! The server is a process of its own and both ends share the machine. Frames are measured against a node with services
//! in memory (`tidings bench-server`): every request is authorised and routed like any other, and what is behind it
//! costs next to nothing. Reads are the same with the store behind it. Memory is that of `tidings serve`.

use super::Effort;
use super::rate::{Counter, rate, repeat};
use super::report::{Figures, Goal};
use super::server::Server;
use super::socket::Socket;
use crate::commands::{probe, runtime};
use futures::{StreamExt, TryStreamExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::{Client, ClientConfig};
use tidings_wire::v1::{Frame, StoreMessage, StoreStatus, frame::Body, store_message};

/// Requests at once, on one connection or one on each of as many.
pub const IN_FLIGHT: usize = 64;
/// Connections that are being opened at once: a crowd, not a flood.
const OPENING: usize = 64;
/// Files of this process that are not connections.
const OTHER_FILES: u64 = 100;
/// How long memory may settle before it is looked at.
const SETTLING: Duration = Duration::from_secs(2);

/// Measures everything.
pub fn run(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let runtime = runtime()?;
    let server = Server::without_store(&place.join("wire"))?;
    let rates = repeat(effort, || runtime.block_on(one_connection(&server, effort.seconds)))?;
    figures.add(
        "request/reply frames, one gRPC connection, 64 in flight",
        "1/s",
        Some(Goal::AtLeast(200_000.0)),
        &rates,
    );
    let rates = repeat(effort, || runtime.block_on(many_sockets(&server, effort.seconds)))?;
    figures.add("request/reply frames, 64 WebSockets", "1/s", Some(Goal::AtLeast(100_000.0)), &rates);
    drop(server);

    let server = Server::start(&place.join("reads"))?;
    let rates = repeat(effort, || runtime.block_on(one_connection(&server, effort.seconds)))?;
    figures.add("linearizable reads, one gRPC connection, 64 in flight", "1/s", None, &rates);
    drop(server);

    let mut turns = 0..;
    let bytes = repeat(effort, || {
        let server = Server::start(&place.join(format!("idle-{}", turns.next().unwrap_or(0))))?;
        runtime.block_on(idle(&server, effort.idle))
    })?;
    let name = format!("resident memory per idle WebSocket, of {}", effort.idle);
    figures.add(&name, "B", Some(Goal::AtMost(12_288.0)), &bytes);
    Ok(())
}

/// The smallest request that goes all the way to a part and back; the store answers it with a linearizable read.
fn request() -> Body {
    Body::Store(StoreMessage { message: Some(store_message::Message::Status(StoreStatus {})) })
}

fn check(answer: Option<&Body>) -> Result<(), Error> {
    match answer {
        Some(Body::Store(StoreMessage { message: Some(store_message::Message::StatusReply(_)) })) => Ok(()),
        other => Err(Error::new("bench.wrong_answer", Class::Failed, format!("the server answered {other:?}"))),
    }
}

async fn one_connection(server: &Server, seconds: f64) -> Result<f64, Error> {
    let client = Client::connect(ClientConfig::new([server.url()])).await?;
    let (client, counter) = (Arc::new(client), Arc::new(Counter::default()));
    let callers = (0..IN_FLIGHT).map(|_| {
        let (client, counter) = (client.clone(), counter.clone());
        async move {
            while counter.goes_on() {
                check(Some(&client.call(request()).await?))?;
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(seconds, callers, counter.clone()).await
}

async fn many_sockets(server: &Server, seconds: f64) -> Result<f64, Error> {
    let counter = Arc::new(Counter::default());
    let callers = open(server, IN_FLIGHT).await?.into_iter().map(|mut socket| {
        let counter = counter.clone();
        async move {
            let mut op = 1;
            while counter.goes_on() {
                check(socket.exchange(&Frame { op, more: false, body: Some(request()) }).await?.as_ref())?;
                op += 2;
                counter.add(1);
            }
            Ok(())
        }
    });
    rate(seconds, callers, counter.clone()).await
}

async fn open(server: &Server, count: usize) -> Result<Vec<Socket>, Error> {
    let opening = futures::stream::iter((0..count).map(|_| Socket::open(server.address)));
    opening.buffer_unordered(OPENING).try_collect().await
}

/// What the server's memory grows by, for each connection that was welcomed and then says nothing.
async fn idle(server: &Server, count: usize) -> Result<f64, Error> {
    let files = probe::raise_open_files();
    if files < count as u64 + OTHER_FILES {
        let message = format!("this process may open {files} files, too few for {count} connections");
        return Err(Error::new("bench.few_files", Class::Refused, message).hint("Raise it with `ulimit -n`."));
    }
    // A first few warm the server, so that what it allocates once is not counted.
    drop(open(server, IN_FLIGHT).await?);
    tokio::time::sleep(SETTLING).await;
    let before = resident(server)?;
    let sockets = open(server, count).await?;
    tokio::time::sleep(SETTLING).await;
    let after = resident(server)?;
    drop(sockets);
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

fn resident(server: &Server) -> Result<u64, Error> {
    let gone = || Error::new("bench.no_server", Class::Failed, "the server under test is gone");
    probe::resident(server.pid()).ok_or_else(gone)
}
