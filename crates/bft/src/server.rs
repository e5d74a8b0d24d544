//! The door for clients: a listener, and one task a connection.
//!
//! Whoever comes is a stranger until it has asked something that a registered client signed. Strangers take each other's place when they
//! are many, and so do the connections of one client: nobody keeps others out by being there, however long it is silent.

use crate::frame::{LONGEST_QUESTION, Question, next_frame};
use crate::seat::{Durable, Seat};
use crate::sink::{self, Answers, Sink};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

/// The most reads of a slow service at a time.
const MOST_SLOW: usize = 128;

/// How a door is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most connections that have not shown whose they are. 4,096: clients that have asked nothing yet are among them.
    pub strangers: usize,
    /// The most connections of one client. 64: it needs one.
    pub of_a_client: usize,
    /// How long a client may take for one answer. 30 s for a megabyte is a slow line.
    pub takes: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { strangers: 4_096, of_a_client: 64, takes: Duration::from_secs(30) }
    }
}

/// A listener for clients, until it is dropped.
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens at the address.
    pub async fn start<S: Durable>(address: SocketAddr, seat: Arc<Seat<S>>) -> io::Result<Server> {
        Server::start_with(address, seat, Options::default()).await
    }

    /// The same, with bounds of its own.
    pub async fn start_with<S: Durable>(
        address: SocketAddr,
        seat: Arc<Seat<S>>,
        options: Options,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let door = Door { seat, slow: Arc::new(Semaphore::new(MOST_SLOW)), guests: Mutex::default(), options };
        Ok(Server { address, task: tokio::spawn(accept(listener, Arc::new(door))) })
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

/// What all connections share.
struct Door<S> {
    seat: Arc<Seat<S>>,
    slow: Arc<Semaphore>,
    guests: Mutex<Guests>,
    options: Options,
}

impl<S: Durable> Door<S> {
    fn ask(&self, guest: u64, question: Question, sink: &Sink) {
        if let Some(client) = self.seat.ask(question, sink) {
            self.guests.lock().known(guest, client, &self.options);
        }
    }
}

/// One connection: its number, and what it is told when it has to leave.
type Guest = (u64, Arc<Notify>);

/// Who is here, each queue in the order in which they came.
#[derive(Default)]
struct Guests {
    strangers: VecDeque<Guest>,
    clients: BTreeMap<u64, VecDeque<Guest>>,
}

impl Guests {
    fn came(&mut self, guest: Guest, options: &Options) {
        self.strangers.push_back(guest);
        make_room(&mut self.strangers, options.strangers);
    }

    /// A stranger has shown which client it is.
    fn known(&mut self, number: u64, client: u64, options: &Options) {
        let Some(at) = self.strangers.iter().position(|(stranger, _)| *stranger == number) else { return };
        let Some(guest) = self.strangers.remove(at) else { return };
        let theirs = self.clients.entry(client).or_default();
        theirs.push_back(guest);
        make_room(theirs, options.of_a_client);
    }

    fn left(&mut self, number: u64) {
        self.strangers.retain(|(guest, _)| *guest != number);
        self.clients.retain(|_, theirs| {
            theirs.retain(|(guest, _)| *guest != number);
            !theirs.is_empty()
        });
    }
}

/// Whoever came first leaves first.
fn make_room(guests: &mut VecDeque<Guest>, most: usize) {
    while guests.len() > most.max(1) {
        if let Some((_, leaves)) = guests.pop_front() {
            leaves.notify_one();
        }
    }
}

async fn accept<S: Durable>(listener: TcpListener, door: Arc<Door<S>>) {
    // Connections end with the listener: the set aborts its tasks when it is dropped.
    let (mut connections, mut number) = (tokio::task::JoinSet::new(), 0);
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                number += 1;
                let (guest, leaves, door) = (number, Arc::new(Notify::new()), door.clone());
                door.guests.lock().came((guest, leaves.clone()), &door.options);
                connections.spawn(async move {
                    tokio::select! {
                        () = serve(stream, guest, &door) => {}
                        () = leaves.notified() => tracing::debug!("a connection has made room for others"),
                    }
                    door.guests.lock().left(guest);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve<S: Durable>(stream: TcpStream, guest: u64, door: &Arc<Door<S>>) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let (sink, answers) = sink::pair();
    let listening = async {
        let mut read = BufReader::new(read);
        while let Some(frame) = next_frame(&mut read, LONGEST_QUESTION).await {
            match Question::read(frame) {
                Ok(question) if S::SLOW && question.may_take_long() => {
                    // More than there is room for are dropped: the client orders the read, or asks somebody else.
                    if let Ok(permit) = door.slow.clone().try_acquire_owned() {
                        let (door, sink) = (door.clone(), sink.clone());
                        tokio::task::spawn_blocking(move || {
                            door.ask(guest, question, &sink);
                            drop(permit);
                        });
                    }
                }
                Ok(question) => door.ask(guest, question, &sink),
                Err(error) => return tracing::debug!(%error, "a client does not speak our language"),
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = answer(write, answers, door.options.takes) => {}
    }
}

/// Writes what is answered, until the client is gone or takes too long.
async fn answer(mut stream: OwnedWriteHalf, mut answers: Answers, takes: Duration) {
    while let Some((answer, _held)) = answers.next().await {
        if !matches!(tokio::time::timeout(takes, stream.write_all(&answer)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    /// Whether each has been told to leave.
    fn told(guests: &[Guest]) -> Vec<bool> {
        guests.iter().map(|(_, leaves)| leaves.notified().now_or_never().is_some()).collect()
    }

    #[test]
    fn whoever_came_first_leaves_first_among_its_kind() {
        let options = Options { strangers: 2, of_a_client: 2, ..Options::default() };
        let (mut guests, all) = (Guests::default(), (0..7).map(|number| (number, Arc::new(Notify::new()))));
        let all: Vec<Guest> = all.collect();
        let mut come = |number: usize| guests.came(all[number].clone(), &options);
        (0..3).for_each(&mut come);
        assert_eq!(told(&all), [true, false, false, false, false, false, false], "one too many");
        guests.known(1, 9, &options);
        guests.known(2, 9, &options);
        (3..5).for_each(|number| guests.came(all[number].clone(), &options));
        assert_eq!(told(&all), [false; 7], "clients take no place of strangers");
        guests.known(3, 9, &options);
        guests.known(4, 8, &options);
        assert_eq!(told(&all), [false, true, false, false, false, false, false], "one too many of client 9");
        guests.known(3, 8, &options);
        guests.left(2);
        guests.left(3);
        guests.left(4);
        assert!(guests.strangers.is_empty() && guests.clients.is_empty(), "client 9 stays who it is");
    }
}
