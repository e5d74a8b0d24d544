//! Answers on their way to one connection, bounded in number and in bytes.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Answers that wait to be written to one connection. More are dropped: the client asks again.
const MOST_ANSWERS: usize = 2_048;
/// The most bytes of them. One answer has at most a megabyte and a little.
const MOST_BYTES: usize = 16 << 20;
/// The most bytes of them on all connections of a client: one that takes nothing does not silence the others.
const MOST_BYTES_OF_A_CLIENT: usize = 64 << 20;

/// What answers to one client may take, shared by its connections.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(MOST_BYTES_OF_A_CLIENT)))
    }
}

/// An answer's bytes count on its connection and for its client until this is dropped.
#[derive(Debug)]
pub struct Held(#[allow(dead_code)] [OwnedSemaphorePermit; 2]);

/// Where answers go.
#[derive(Clone, Debug)]
pub struct Sink {
    number: u64,
    answers: mpsc::Sender<(Bytes, Held)>,
    room: Arc<Semaphore>,
    of_client: Room,
}

/// Where they come from.
#[derive(Debug)]
pub struct Answers(mpsc::Receiver<(Bytes, Held)>);

/// Both ends of what waits for one connection: the number of that, which rises, and the room of its client.
pub fn pair(number: u64, of_client: Room) -> (Sink, Answers) {
    let (answers, waiting) = mpsc::channel(MOST_ANSWERS);
    (Sink { number, answers, room: Arc::new(Semaphore::new(MOST_BYTES)), of_client }, Answers(waiting))
}

impl Sink {
    /// The number of its connection: a later one has a greater one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether nobody takes answers any more.
    pub fn is_gone(&self) -> bool {
        self.answers.is_closed()
    }

    /// Lets an answer wait, if there is room for it.
    pub fn put(&self, answer: Bytes) {
        let bytes = u32::try_from(answer.len()).unwrap_or(u32::MAX);
        let room = [&self.room, &self.of_client.0].map(|room| Arc::clone(room).try_acquire_many_owned(bytes));
        if let [Ok(one), Ok(all)] = room {
            let _ = self.answers.try_send((answer, Held([one, all])));
        }
    }
}

impl Answers {
    /// The next one, whose bytes count until the second part is dropped; nothing once nobody can answer any more.
    pub async fn next(&mut self) -> Option<(Bytes, Held)> {
        self.0.recv().await
    }

    /// The next one, if it is there.
    pub fn try_next(&mut self) -> Option<(Bytes, Held)> {
        self.0.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(answers: &mut Answers) -> usize {
        std::iter::from_fn(|| answers.try_next()).count()
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_in_number() {
        let (sink, mut answers) = pair(1, Room::default());
        let long = Bytes::from(vec![0; MOST_BYTES / 4]);
        (0..10).for_each(|_| sink.put(long.clone()));
        assert_eq!(count(&mut answers), 4);
        (0..2 * MOST_ANSWERS).for_each(|_| sink.put(Bytes::from_static(b"short")));
        assert_eq!(count(&mut answers), MOST_ANSWERS);
        sink.put(long);
        assert!(answers.try_next().is_some(), "what was taken counts no more");
    }

    #[test]
    fn what_waits_for_one_client_is_bounded_on_all_its_connections_together() {
        let (room, long) = (Room::default(), Bytes::from(vec![0; MOST_BYTES]));
        let mut all: Vec<(Sink, Answers)> = (0..8).map(|number| pair(number, room.clone())).collect();
        all.iter().for_each(|(sink, _)| sink.put(long.clone()));
        let waiting: Vec<usize> = all.iter_mut().map(|(_, answers)| count(answers)).collect();
        assert_eq!(waiting, [1, 1, 1, 1, 0, 0, 0, 0]);
        all.iter().take(4).for_each(|(sink, _)| sink.put(long.clone()));
        all.drain(..2);
        all.iter().skip(2).for_each(|(sink, _)| sink.put(long.clone()));
        let waiting: Vec<usize> = all.iter_mut().map(|(_, answers)| count(answers)).collect();
        assert_eq!(waiting, [1, 1, 1, 1, 0, 0], "with a connection goes what waited on it");
    }
}
