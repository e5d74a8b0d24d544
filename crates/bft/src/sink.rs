//! Answers on their way to one connection, bounded in number and in bytes.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Answers that wait to be written to one connection. More are dropped: the client asks again.
const MOST_ANSWERS: usize = 2_048;
/// The most bytes of them. One answer has at most a megabyte and a little.
const MOST_BYTES: usize = 16 << 20;

/// Where answers go.
#[derive(Clone, Debug)]
pub struct Sink {
    answers: mpsc::Sender<(Bytes, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// Where they come from.
#[derive(Debug)]
pub struct Answers(mpsc::Receiver<(Bytes, OwnedSemaphorePermit)>);

/// Both ends of what waits for one connection.
pub fn pair() -> (Sink, Answers) {
    let (answers, waiting) = mpsc::channel(MOST_ANSWERS);
    (Sink { answers, room: Arc::new(Semaphore::new(MOST_BYTES)) }, Answers(waiting))
}

impl Sink {
    /// Lets an answer wait, if there is room for it.
    pub fn put(&self, answer: Bytes) {
        let bytes = u32::try_from(answer.len()).unwrap_or(u32::MAX);
        if let Ok(held) = Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            let _ = self.answers.try_send((answer, held));
        }
    }
}

impl Answers {
    /// The next one, whose bytes count until the second part is dropped; nothing once nobody can answer any more.
    pub async fn next(&mut self) -> Option<(Bytes, OwnedSemaphorePermit)> {
        self.0.recv().await
    }

    /// The next one, if it is there.
    pub fn try_next(&mut self) -> Option<Bytes> {
        self.0.try_recv().ok().map(|(answer, _)| answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_in_bytes_and_in_number() {
        let (sink, mut answers) = pair();
        let long = Bytes::from(vec![0; MOST_BYTES / 4]);
        (0..10).for_each(|_| sink.put(long.clone()));
        assert_eq!(std::iter::from_fn(|| answers.try_next()).count(), 4);
        (0..2 * MOST_ANSWERS).for_each(|_| sink.put(Bytes::from_static(b"short")));
        assert_eq!(std::iter::from_fn(|| answers.try_next()).count(), MOST_ANSWERS);
        sink.put(long);
        assert!(answers.try_next().is_some(), "what was taken counts no more");
    }
}
