//! What is told to applications, as streams that a slow reader cannot make grow.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// What waits for one reader at most; beyond it the last that waits takes in what comes.
const MOST_WAITING: usize = 256;

/// Something that can be told together with what came after it.
pub(crate) trait Merge: Clone {
    /// Makes this one tell both; bounded in size.
    fn absorb(&mut self, later: Self);
}

/// What waits for one reader.
pub(crate) struct Mailbox<T> {
    inner: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    items: VecDeque<T>,
    ended: bool,
    reader: Option<Waker>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox { inner: Mutex::new(Waiting { items: VecDeque::new(), ended: false, reader: None }) }
    }
}

impl<T: Merge> Mailbox<T> {
    fn tell(&self, item: T) {
        self.with(|waiting| {
            let full = waiting.items.len() >= MOST_WAITING;
            match waiting.items.back_mut() {
                Some(last) if full => last.absorb(item),
                _ => waiting.items.push_back(item),
            }
        });
    }
}

impl<T> Mailbox<T> {
    fn with(&self, change: impl FnOnce(&mut Waiting<T>)) {
        let mut waiting = self.inner.lock();
        change(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The next item; `None` once nothing comes any more and everything was read.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut waiting = self.inner.lock();
        match waiting.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if waiting.ended => Poll::Ready(None),
            None => {
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// All readers of one stream. The first one reads from the beginning, so that nothing is missed between the start and its
/// subscription; later ones from where they came.
pub(crate) struct Readers<T> {
    first: Option<Arc<Mailbox<T>>>,
    all: Vec<Weak<Mailbox<T>>>,
    ended: bool,
}

impl<T: Merge> Readers<T> {
    pub(crate) fn new() -> Readers<T> {
        Readers { first: Some(Arc::default()), all: Vec::new(), ended: false }
    }

    pub(crate) fn subscribe(&mut self) -> Arc<Mailbox<T>> {
        let mailbox = self.first.take().unwrap_or_default();
        if self.ended {
            mailbox.with(|waiting| waiting.ended = true);
        }
        self.all.retain(|reader| reader.strong_count() > 0);
        self.all.push(Arc::downgrade(&mailbox));
        mailbox
    }

    pub(crate) fn tell(&self, item: &T) {
        if let Some(first) = &self.first {
            first.tell(item.clone());
        }
        for reader in self.all.iter().filter_map(Weak::upgrade) {
            reader.tell(item.clone());
        }
    }

    /// Nothing comes any more; what waits is still read.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        for reader in self.all.iter().filter_map(Weak::upgrade) {
            reader.with(|waiting| waiting.ended = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[derive(Clone, Debug, PartialEq)]
    struct Sum(u64);

    impl Merge for Sum {
        fn absorb(&mut self, later: Sum) {
            self.0 += later.0;
        }
    }

    #[tokio::test]
    async fn the_first_reader_misses_nothing_and_a_slow_one_hears_everything_in_fewer_pieces() {
        let mut readers = Readers::new();
        for _ in 0..MOST_WAITING + 10 {
            readers.tell(&Sum(1));
        }
        let (first, second) = (readers.subscribe(), readers.subscribe());
        readers.end();
        let (mut sum, mut pieces) = (0, 0);
        while let Some(item) = poll_fn(|cx| first.poll(cx)).await {
            sum += item.0;
            pieces += 1;
        }
        assert_eq!((sum, pieces), (MOST_WAITING as u64 + 10, MOST_WAITING));
        assert_eq!(poll_fn(|cx| second.poll(cx)).await, None);
    }
}
