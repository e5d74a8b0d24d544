//! What live queries were told and their clients have not taken: bounded in bytes for each connection.
//!
//! Frames are bounded by partition and query, and each may have 256 KiB: a connection with many queries of many partitions could
//! make a node hold any amount. Past its bound a query ends, what it was told is let go at once, and its client is told to read
//! again.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidings_predicate::Key;
use tidings_tables::calls::Visible;
use tidings_tables::gateway::Event;
use tidings_tables::live::Change;
use tidings_tables::refusal::Refusal;
use tokio::sync::Notify;

/// Bytes that all live queries of one connection may have been told and not taken: what one query of four partitions has under
/// way at most, however slow its client is.
pub(super) const UNTAKEN: usize = 64 << 20;
/// What an event weighs besides its records, and a record besides its columns.
const AROUND: usize = 64;

/// What the gateway says of a query; a refusal is the last.
pub(super) type Heard = Result<Event, Refusal>;

/// What all live queries of one connection have not taken, in bytes.
#[derive(Debug, Default)]
pub(super) struct Connection(AtomicUsize);

/// What one live query was told and its client has not taken, in order.
#[derive(Debug)]
pub(super) struct Untaken {
    connection: Arc<Connection>,
    told: Mutex<Told>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Told {
    events: VecDeque<(Heard, usize)>,
    bytes: usize,
    /// Nothing more is told.
    closed: bool,
    /// Not all partitions have switched to the reader's data.
    settling: bool,
}

/// How a query stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Events that were not taken.
    pub events: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Whether not all partitions have switched to its reader's data.
    pub settling: bool,
}

impl Untaken {
    pub(super) fn new(connection: Arc<Connection>) -> Untaken {
        Untaken { connection, told: Mutex::default(), news: Notify::new() }
    }

    /// Tells something, of so many bytes; none = there was no room for it, and the query is over.
    pub(super) fn tell(&self, heard: Heard) -> Option<usize> {
        let size = size_of(&heard);
        let mut told = self.told.lock();
        if told.closed {
            return Some(0);
        }
        match &heard {
            Ok(Event::Settling) => told.settling = true,
            Ok(Event::Settled) => told.settling = false,
            _ => {}
        }
        let fits = self.connection.0.fetch_add(size, Ordering::Relaxed) + size <= UNTAKEN;
        match fits {
            true => {
                told.closed = heard.is_err();
                told.bytes += size;
                told.events.push_back((heard, size));
            }
            false => {
                self.connection.0.fetch_sub(size + told.bytes, Ordering::Relaxed);
                *told = Told { closed: true, ..Told::default() };
                told.events.push_back((Err(Refusal::Ended), 0));
            }
        }
        drop(told);
        self.news.notify_one();
        fits.then_some(size)
    }

    /// Nothing more is told; what was told can be taken.
    pub(super) fn close(&self) {
        self.told.lock().closed = true;
        self.news.notify_one();
    }

    /// What was told next; none after the last. One at a time takes; cancelling it loses nothing.
    pub(super) async fn next(&self) -> Option<Heard> {
        loop {
            {
                let mut told = self.told.lock();
                if let Some((heard, size)) = told.events.pop_front() {
                    told.bytes -= size;
                    self.connection.0.fetch_sub(size, Ordering::Relaxed);
                    return Some(heard);
                }
                if told.closed {
                    return None;
                }
            }
            self.news.notified().await;
        }
    }

    /// Takes what says no more than that the answer is to be read again: how often, and the last cursor among it. What is read
    /// from now on is behind all of it.
    pub(super) fn pass_again(&self) -> (u32, Option<Event>) {
        let (mut told, mut again, mut cursor) = (self.told.lock(), 0, None);
        while let Some((Ok(Event::Again | Event::Progress { .. }), _)) = told.events.front() {
            let Some((heard, size)) = told.events.pop_front() else { break };
            told.bytes -= size;
            self.connection.0.fetch_sub(size, Ordering::Relaxed);
            match heard {
                Ok(Event::Again) => again += 1,
                other => cursor = other.ok(),
            }
        }
        (again, cursor)
    }

    pub(super) fn standing(&self) -> Standing {
        let told = self.told.lock();
        Standing { events: told.events.len(), bytes: told.bytes, settling: told.settling }
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.connection.0.fetch_sub(self.told.get_mut().bytes, Ordering::Relaxed);
    }
}

/// About what an event takes of memory.
fn size_of(heard: &Heard) -> usize {
    let record =
        |record: &Visible| AROUND + key_size(&record.key) + record.columns.as_bytes().len() + record.audience.len();
    AROUND
        + match heard {
            Ok(Event::Reset { rows, .. }) => rows.iter().map(record).sum::<usize>(),
            Ok(Event::Changes(changes)) => changes
                .iter()
                .map(|change| match change {
                    Change::Put(put) => record(put),
                    Change::Leave { key } => AROUND + key_size(key),
                })
                .sum(),
            Ok(Event::Progress { cursor }) => cursor.len(),
            Ok(Event::Again | Event::Settling | Event::Settled) | Err(_) => 0,
        }
}

fn key_size(key: &Key) -> usize {
    match key.own() {
        Key::Bytes(bytes) => bytes.len(),
        Key::String(text) => text.len(),
        Key::Within(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(bytes: usize) -> Heard {
        Ok(Event::Progress { cursor: vec![0; bytes - AROUND] })
    }

    #[tokio::test]
    async fn past_the_bound_of_its_connection_a_query_ends_and_lets_go() {
        let connection = Arc::new(Connection::default());
        let [slow, other] = [(); 2].map(|()| Untaken::new(connection.clone()));
        assert_eq!((slow.tell(event(UNTAKEN / 2)), other.tell(event(1_000))), (Some(UNTAKEN / 2), Some(1_000)));
        assert_eq!(other.tell(Ok(Event::Settling)), Some(AROUND));
        assert_eq!(other.standing(), Standing { events: 2, bytes: 1_000 + AROUND, settling: true });
        assert_eq!(slow.tell(event(UNTAKEN / 2)), None);
        assert_eq!(connection.0.load(Ordering::Relaxed), 1_000 + AROUND);
        assert_eq!(slow.next().await, Some(Err(Refusal::Ended)), "what it was told before is gone");
        assert!(slow.next().await.is_none() && slow.tell(event(1_000)).is_some(), "it is over once");
        // What others were told stays, and there is room again.
        assert_eq!(other.next().await, Some(event(1_000)));
        assert!(other.tell(event(UNTAKEN / 2)).is_some());
        drop(other);
        assert_eq!(connection.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_asks_for_the_same_rows_is_taken_together() {
        let query = Untaken::new(Arc::default());
        assert_eq!(query.pass_again(), (0, None));
        let cursor = |n: u8| Event::Progress { cursor: vec![n] };
        let told = [Event::Again, cursor(1), Event::Again, cursor(2), Event::Settled, Event::Again];
        told.into_iter().for_each(|event| assert!(query.tell(Ok(event)).is_some()));
        assert_eq!(query.pass_again(), (2, Some(cursor(2))));
        assert_eq!(query.pass_again(), (0, None), "what says anything else is told");
        assert_eq!(query.next().await, Some(Ok(Event::Settled)));
        assert_eq!(query.pass_again(), (1, None));
        assert_eq!((query.standing().bytes, query.connection.0.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn what_is_taken_makes_room() {
        let query = Untaken::new(Arc::default());
        for _ in 0..100 {
            assert!((0..2).all(|_| query.tell(event(UNTAKEN / 4)).is_some()));
            assert!(query.next().await.is_some() && query.next().await.is_some());
        }
        query.close();
        assert_eq!(query.next().await, None);
    }
}
