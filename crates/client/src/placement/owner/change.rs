//! What was granted and revoked, as applications hear it.

use super::super::stream::{Mailbox, Merge};
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidings_placement::Leased;

/// Changes that one item may tell of; a reader that is further behind asks what is held instead.
const MOST_TOLD: usize = 65_536;

/// What was granted and what was revoked, in this order of time: first revoked, then granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnershipChange {
    /// Ranges that are held from now on.
    pub granted: Vec<Leased>,
    /// Those of them whose state came along by a clean move; the others begin empty.
    pub clean: Vec<Leased>,
    /// Ranges that are held no more.
    pub revoked: Vec<Leased>,
    /// The reader was too slow and some changes were left out: [`Owner::held`](super::Owner::held) says what is held.
    pub missed: bool,
}

impl From<tidings_placement::owner::OwnershipChange> for OwnershipChange {
    fn from(change: tidings_placement::owner::OwnershipChange) -> OwnershipChange {
        OwnershipChange {
            clean: change.granted.iter().filter(|(_, token)| token.is_some()).map(|(leased, _)| *leased).collect(),
            granted: change.granted.into_iter().map(|(leased, _)| leased).collect(),
            revoked: change.revoked,
            missed: false,
        }
    }
}

impl Merge for OwnershipChange {
    fn absorb(&mut self, later: OwnershipChange) {
        self.granted.extend(later.granted);
        self.clean.extend(later.clean);
        self.revoked.extend(later.revoked);
        self.missed |= later.missed;
        if self.granted.len() + self.revoked.len() > MOST_TOLD {
            *self = OwnershipChange { missed: true, ..OwnershipChange::default() };
        }
    }
}

/// Changes of ownership as a stream; it ends with the owner.
pub struct Changes {
    pub(super) mailbox: Arc<Mailbox<OwnershipChange>>,
}

impl Changes {
    /// The next change; `None` once the owner has left.
    pub async fn next(&mut self) -> Option<OwnershipChange> {
        std::future::poll_fn(|cx| self.mailbox.poll(cx)).await
    }
}

impl Stream for Changes {
    type Item = OwnershipChange;
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OwnershipChange>> {
        self.mailbox.poll(cx)
    }
}
