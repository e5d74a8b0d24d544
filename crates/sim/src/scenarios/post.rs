//! Where letters lie whose messages have no encoding of their own: the network carries their numbers. Whoever receives one gets
//! a copy.

use crate::kernel::{Effect, HostId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tidings_base::Outbox;

/// Letters that are kept: those of the longest delay, and of a pause.
const KEPT: usize = 1 << 16;

/// What a letter must tell of itself.
pub trait Marked: Clone {
    /// A number that goes with it, so that another letter is another trace.
    fn mark(&self) -> u64;
}

#[derive(Debug)]
struct Lying<L> {
    first: u64,
    letters: VecDeque<L>,
}

/// Where letters lie.
#[derive(Clone, Debug)]
pub struct Post<L>(Arc<Mutex<Lying<L>>>);

impl<L> Default for Post<L> {
    fn default() -> Post<L> {
        Post(Arc::new(Mutex::new(Lying { first: 0, letters: VecDeque::new() })))
    }
}

impl<L: Marked> Post<L> {
    /// Sends a letter.
    pub fn send<F>(&self, out: &mut Outbox<Effect<F>>, to: HostId, letter: L) {
        let mut bytes = BytesMut::with_capacity(16);
        let mark = letter.mark();
        let mut lying = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.put_u64(lying.first + lying.letters.len() as u64);
        bytes.put_u64(mark);
        lying.letters.push_back(letter);
        if lying.letters.len() > KEPT {
            lying.letters.pop_front();
            lying.first += 1;
        }
        out.put(Effect::Send { to, bytes: bytes.freeze() });
    }

    /// A letter that has come.
    pub fn open(&self, bytes: &Bytes) -> Option<L> {
        let number = (bytes.len() == 16).then(|| bytes.clone().get_u64())?;
        let lying = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lying.letters.get(usize::try_from(number.checked_sub(lying.first)?).ok()?).cloned()
    }
}
