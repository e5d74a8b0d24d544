//! The door for clients: a listener, and one task a connection.
//!
//! Whoever comes is a stranger until it has answered a [challenge](crate::greeting) as a registered client, and is asked nothing before
//! that. Strangers take each other's place when they are many, and so do the connections of one client: nobody keeps others out by
//! being there, however long it is silent. What waited on a connection that has ended goes with it.

use crate::frame::{LONGEST_QUESTION, Question, TOGETHER, framed, next_frame};
use crate::greeting::{Challenge, Hello, LONGEST_GREETING};
use crate::seat::{Durable, Seat};
use crate::sink::{self, Answers, Room, Sink};
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// The most reads of a slow service at a time, and of one client: it leaves a quarter to others.
const MOST_SLOW: usize = 128;
const SLOW_OF_A_CLIENT: usize = 96;

/// How a door is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most connections that have not shown whose they are. 4,096: honest ones do within a moment.
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
        let door = Door { seat, guests: Mutex::default(), options };
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
    guests: Mutex<Guests>,
    options: Options,
}

/// One connection: its number, and what it is told when it has to leave.
type Guest = (u64, Arc<Notify>);

/// Who is here, each queue in the order in which they came.
struct Guests {
    strangers: VecDeque<Guest>,
    clients: BTreeMap<u64, Theirs>,
    slow: Arc<Semaphore>,
}

/// The connections of one client, and what they share.
struct Theirs {
    guests: VecDeque<Guest>,
    share: Share,
}

/// What one client may hold of a replica, by however many connections.
#[derive(Clone)]
struct Share {
    room: Room,
    /// Slow reads: its own, and everybody's.
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Share {
    /// A place for a slow read, if there is one.
    fn place(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let own = self.own.clone().try_acquire_owned().ok()?;
        Some([own, self.all.clone().try_acquire_owned().ok()?])
    }
}

impl Theirs {
    /// Nobody is here, and nothing that somebody asked is read still.
    fn is_over(&self) -> bool {
        self.guests.is_empty() && self.share.own.available_permits() == SLOW_OF_A_CLIENT
    }
}

impl Default for Guests {
    fn default() -> Guests {
        let slow = Arc::new(Semaphore::new(MOST_SLOW));
        Guests { strangers: VecDeque::new(), clients: BTreeMap::new(), slow }
    }
}

impl Guests {
    fn came(&mut self, guest: Guest, options: &Options) {
        self.strangers.push_back(guest);
        make_room(&mut self.strangers, options.strangers);
    }

    /// A stranger has shown which client it is, unless it was told to leave before.
    fn known(&mut self, number: u64, client: u64, options: &Options) -> Option<Share> {
        let at = self.strangers.iter().position(|(stranger, _)| *stranger == number)?;
        let guest = self.strangers.remove(at)?;
        let theirs = self.clients.entry(client).or_insert_with(|| Theirs {
            guests: VecDeque::new(),
            share: Share {
                room: Room::default(),
                own: Arc::new(Semaphore::new(SLOW_OF_A_CLIENT)),
                all: self.slow.clone(),
            },
        });
        theirs.guests.push_back(guest);
        make_room(&mut theirs.guests, options.of_a_client);
        Some(theirs.share.clone())
    }

    /// A client that goes while its slow reads go on has its share still when it comes again. There are as many clients as the group
    /// has registered.
    fn left(&mut self, number: u64, client: Option<u64>) {
        let Some(client) = client else { return self.strangers.retain(|(guest, _)| *guest != number) };
        if let Entry::Occupied(mut theirs) = self.clients.entry(client) {
            theirs.get_mut().guests.retain(|(guest, _)| *guest != number);
            if theirs.get().is_over() {
                theirs.remove();
            }
        }
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
                    let mut whose = None;
                    tokio::select! {
                        () = serve(stream, guest, &door, &mut whose) => {}
                        () = leaves.notified() => tracing::debug!("a connection has made room for others"),
                    }
                    door.guests.lock().left(guest, whose.as_ref().map(|(client, _)| *client));
                    if let Some((client, sink)) = whose {
                        door.seat.left(client, &sink);
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Whose a connection is, and where answers to it go.
type Whose = Option<(u64, Sink)>;

async fn serve<S: Durable>(stream: TcpStream, guest: u64, door: &Arc<Door<S>>, whose: &mut Whose) {
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let Some(hello) = greet(&mut read, &mut write, door).await else { return };
    let Some(share) = door.guests.lock().known(guest, hello.client, &door.options) else { return };
    let (sink, answers) = sink::pair(guest, share.room.clone());
    *whose = Some((hello.client, sink.clone()));
    tokio::select! {
        () = listen(read, hello.client, door, &share, &sink) => {}
        () = answer(write, answers, door.options.takes) => {}
    }
}

/// Has a connection show whose it is.
async fn greet<S: Durable>(
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
    door: &Door<S>,
) -> Option<Hello> {
    let challenge = Challenge::draw().ok()?;
    write.write_all(&framed(&challenge.encoded())).await.ok()?;
    let hello = Hello::read(next_frame(read, LONGEST_GREETING).await?).ok();
    let known = hello.filter(|hello| door.seat.knows(hello, &challenge));
    if known.is_none() {
        tracing::debug!("somebody does not show which client it is");
    }
    known
}

/// Takes questions of this client alone: whoever repeats another one's is shown out.
async fn listen<S: Durable>(
    mut read: BufReader<OwnedReadHalf>,
    client: u64,
    door: &Arc<Door<S>>,
    share: &Share,
    sink: &Sink,
) {
    while let Some(frame) = next_frame(&mut read, LONGEST_QUESTION).await {
        match Question::read(frame) {
            Ok(question) if question.client() != client => {
                return tracing::debug!(client, "a client repeats what another one has asked");
            }
            Ok(question) if S::SLOW && question.may_take_long() => {
                // More than there is room for are dropped: the client orders the read, or asks somebody else.
                if let Some(place) = share.place() {
                    let (door, sink) = (door.clone(), sink.clone());
                    tokio::task::spawn_blocking(move || {
                        if !sink.is_gone() {
                            door.seat.ask(question, &sink);
                        }
                        drop(place);
                    });
                }
            }
            Ok(question) => door.seat.ask(question, sink),
            Err(error) => return tracing::debug!(%error, "a client does not speak our language"),
        }
    }
}

/// Writes what is answered, until the client is gone or takes too long. What waits goes together: a block answers many.
async fn answer(mut stream: OwnedWriteHalf, mut answers: Answers, takes: Duration) {
    while let Some((first, held)) = answers.next().await {
        let (mut together, mut all_held) = (first.to_vec(), vec![held]);
        while together.len() < TOGETHER
            && let Some((next, held)) = answers.try_next()
        {
            together.extend_from_slice(&next);
            all_held.push(held);
        }
        if !matches!(tokio::time::timeout(takes, stream.write_all(&together)).await, Ok(Ok(()))) {
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
        assert!(guests.known(0, 9, &options).is_none(), "whoever was told to leave is nobody's any more");
        guests.known(1, 9, &options);
        guests.known(2, 9, &options);
        (3..5).for_each(|number| guests.came(all[number].clone(), &options));
        assert_eq!(told(&all), [false; 7], "clients take no place of strangers");
        guests.known(3, 9, &options);
        guests.known(4, 8, &options);
        assert_eq!(told(&all), [false, true, false, false, false, false, false], "one too many of client 9");
        assert!(guests.known(3, 8, &options).is_none(), "client 9 stays who it is");
        [(1, 9), (2, 9), (3, 9), (4, 8)].into_iter().for_each(|(number, client)| guests.left(number, Some(client)));
        guests.came(all[5].clone(), &options);
        guests.left(5, None);
        assert!(guests.strangers.is_empty() && guests.clients.is_empty(), "nothing is left of whoever has left");
    }

    #[test]
    fn one_client_leaves_places_for_slow_reads_to_others() {
        let (mut guests, options) = (Guests::default(), Options::default());
        let comes = |guests: &mut Guests, number: u64, client: u64| {
            guests.came((number, Arc::new(Notify::new())), &options);
            guests.known(number, client, &options).unwrap()
        };
        let takes = |share: &Share| -> Vec<_> { std::iter::from_fn(|| share.place()).take(MOST_SLOW).collect() };
        let first = comes(&mut guests, 1, 9);
        let mut held: Vec<_> = (0..SLOW_OF_A_CLIENT / 2).map(|_| first.place().unwrap()).collect();
        // By another connection, after the first one has ended: its reads go on.
        guests.left(1, Some(9));
        held.extend(takes(&comes(&mut guests, 2, 9)));
        assert_eq!(held.len(), SLOW_OF_A_CLIENT);
        let others = takes(&comes(&mut guests, 3, 8));
        assert_eq!(others.len(), MOST_SLOW - SLOW_OF_A_CLIENT);
        drop((held, others));
        assert_eq!(takes(&comes(&mut guests, 4, 9)).len(), SLOW_OF_A_CLIENT, "what has ended is free again");
        [(2, 9), (3, 8), (4, 9)].into_iter().for_each(|(number, client)| guests.left(number, Some(client)));
        assert!(guests.clients.is_empty(), "nothing is left of whoever has left");
    }
}
