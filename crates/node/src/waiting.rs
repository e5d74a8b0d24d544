//! Requests on their way through a machine: who waits for which operation.

use crate::driver::{Handle, NotTaken};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tidings_base::OpId;
use tokio::sync::oneshot;

/// An input of a machine that can say that nobody waits for an operation any more.
pub trait Cancelling {
    /// That input.
    fn cancel(op: OpId) -> Self;
}

/// Requests on their way, by operation.
pub struct Waiting<A> {
    answers: Mutex<HashMap<OpId, oneshot::Sender<A>, Fixed>>,
    begun: AtomicU64,
}

/// Operation ids are small numbers of our own: nobody can choose them to collide.
type Fixed = std::hash::BuildHasherDefault<std::collections::hash_map::DefaultHasher>;

impl<A> Default for Waiting<A> {
    fn default() -> Waiting<A> {
        Waiting { answers: Mutex::default(), begun: AtomicU64::new(0) }
    }
}

impl<A> Waiting<A> {
    /// Names a new request and waits for its answer.
    pub fn begin<I: Cancelling>(self: &Arc<Self>, machine: &Handle<I>) -> Wait<A, I> {
        // Machines take odd numbers for requests; even ones are their own.
        let op = OpId(self.begun.fetch_add(2, Ordering::Relaxed) + 1);
        let (sender, answer) = oneshot::channel();
        self.answers.lock().insert(op, sender);
        Wait { op, answer, waiting: self.clone(), machine: machine.clone() }
    }

    /// Answers a request, if somebody still waits for it.
    pub fn answer(&self, op: OpId, answer: A) {
        let sender = self.answers.lock().remove(&op);
        if let Some(sender) = sender {
            // Who does not wait any more needs no answer.
            let _ = sender.send(answer);
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.answers.lock().len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets go of everybody: each hears that there will be no answer.
    pub fn abandon(&self) {
        self.answers.lock().clear();
    }
}

/// One request on its way: a future of its answer, `None` if the machine has stopped. Dropped before its end, the
/// request is cancelled. Small, since tens of thousands are held at once.
pub struct Wait<A, I: Cancelling> {
    op: OpId,
    answer: oneshot::Receiver<A>,
    waiting: Arc<Waiting<A>>,
    machine: Handle<I>,
}

impl<A, I: Cancelling> Wait<A, I> {
    /// The request's name.
    pub fn op(&self) -> OpId {
        self.op
    }
}

impl<A, I: Cancelling> Future for Wait<A, I> {
    type Output = Option<A>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<A>> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(answer.ok())
    }
}

impl<A, I: Cancelling> Drop for Wait<A, I> {
    fn drop(&mut self) {
        // Whatever was answered is gone from the list.
        if self.waiting.answers.lock().remove(&self.op).is_some() {
            // With a full queue the machine finds out at the request's deadline.
            let _: Result<(), NotTaken<I>> = self.machine.try_send(I::cancel(self.op));
        }
    }
}
