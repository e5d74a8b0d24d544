//! The door for clients: a listener, and one task a connection.

use crate::frame::{LONGEST_QUESTION, Question, next_frame};
use crate::seat::{Durable, Seat};
use bytes::Bytes;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Answers that wait to be written to one connection. More are dropped: the client asks again.
const MOST_ANSWERS: usize = 2_048;
/// The most reads of a slow service at a time.
const MOST_SLOW: usize = 128;
/// The most connections at a time.
const MOST_CONNECTIONS: usize = 4_096;

/// A listener for clients, until it is dropped.
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens at the address.
    pub async fn start<S: Durable>(address: SocketAddr, seat: Arc<Seat<S>>) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Server { address, task: tokio::spawn(accept(listener, seat)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<S: Durable>(listener: TcpListener, seat: Arc<Seat<S>>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let slow = Arc::new(Semaphore::new(MOST_SLOW));
    // Connections end with the listener: the set aborts its tasks when it is dropped.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (seat, slow) = (seat.clone(), slow.clone());
                connections.spawn(async move {
                    serve(stream, seat, slow).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve<S: Durable>(stream: TcpStream, seat: Arc<Seat<S>>, slow: Arc<Semaphore>) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let (sink, answers) = mpsc::channel(MOST_ANSWERS);
    let listening = async {
        let mut read = BufReader::new(read);
        while let Some(frame) = next_frame(&mut read, LONGEST_QUESTION).await {
            match Question::read(frame) {
                Ok(question) if S::SLOW && question.may_take_long() => {
                    // More than there is room for are dropped: the client orders the read, or asks somebody else.
                    if let Ok(permit) = slow.clone().try_acquire_owned() {
                        let (seat, sink) = (seat.clone(), sink.clone());
                        tokio::task::spawn_blocking(move || {
                            seat.ask(question, &sink);
                            drop(permit);
                        });
                    }
                }
                Ok(question) => seat.ask(question, &sink),
                Err(error) => return tracing::debug!(%error, "a client does not speak our language"),
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = answer(write, answers) => {}
    }
}

async fn answer(mut stream: OwnedWriteHalf, mut answers: mpsc::Receiver<Bytes>) {
    while let Some(answer) = answers.recv().await {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
