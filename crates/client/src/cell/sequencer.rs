//! Sequencers: what a holder shows to prove that it holds a lock.

use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use tidings_base::Error;
use tidings_cell::token;

/// A signed claim to a lock: opaque, and printable as text that can go into a message, a header or an environment.
///
/// A resource that is given one asks the cell whether it still holds ([`Cell::check_sequencer`](super::Cell)), or keeps
/// the greatest it has seen and refuses smaller ones (`tidings_cell::token::PublicKeys::compare`). The latter fences
/// an old holder only after the new one has touched the resource.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Sequencer {
    token: Bytes,
}

impl Sequencer {
    pub(crate) fn new(token: Bytes) -> Sequencer {
        Sequencer { token }
    }

    /// The token as it travels in messages.
    pub fn token(&self) -> &Bytes {
        &self.token
    }
}

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&token::sequencer_text(&self.token))
    }
}

impl fmt::Debug for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sequencer {
    type Err = Error;

    /// Reads the text form. Whether the lock is still held, and whether the cell made it at all, only the cell knows.
    fn from_str(text: &str) -> Result<Sequencer, Error> {
        Ok(Sequencer { token: token::sequencer_from_text(text)? })
    }
}
