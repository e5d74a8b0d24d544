//! Moving state from owner to owner (F9): the application copies, the library freezes, releases and bounds the time.
//!
//! ```text
//!   A: frozen (checks fail) ── export: the application copies ──▶ B: receive / imported(token)
//!   A: released, for good                                         B: granted, restamped, served: no loss
//!   … or it fails or takes too long: A serves the range again, and B drops what came
//! ```

use super::core::Core;
use futures::future::BoxFuture;
use std::sync::Arc;
use tidings_base::Error;
use tidings_placement::Leased;
use tidings_placement::owner::Move;

/// How an application moves its state to another owner. An owner without one loses the state of what moves away.
pub trait HandOver: Send + Sync + 'static {
    /// Copies everything of `to.leased.range` to the owner at `to.address`, and returns when that one has acknowledged it
    /// (with [`Owner::imported`](super::Owner::imported) or [`Owner::receive`](super::Owner::receive), for
    /// `to.incarnation` under `to.token`). Meanwhile nobody serves the range; it is given up after `to.within`.
    ///
    /// After `Ok` the range is no longer this owner's; after an error this owner serves it again.
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>>;

    /// Another owner is about to send state; nothing needs to be done.
    fn expect(&self, from: Move) {
        let _ = from;
    }

    /// A range is about to be held whose state has arrived under this token: stamp it with the new number, and forget what
    /// arrived of the range under any other token, for it is older. No check under that number succeeds before this
    /// returns, so it must be quick; it must not call the owner. [`Items`](super::Items) restamp themselves.
    fn restamp(&self, leased: Leased, token: u64) {
        let _ = (leased, token);
    }

    /// A move into this owner is over, done or given up: what arrived under its token and was not restamped will never be
    /// granted. Nothing needs to be done but to free it; it must not call the owner. [`Items`](super::Items) do so themselves.
    fn over(&self, token: u64) {
        let _ = token;
    }
}

/// Lets the application copy, for as long as the move may take, and reports how it ended.
pub(super) fn export(core: &Arc<Core>, hand_over: Arc<dyn HandOver>, to: Move) {
    let (token, within) = (to.token, to.within);
    let core = core.clone();
    tokio::spawn(async move {
        // A task of its own: an application that panics has failed to hand over, and nothing else.
        let mut copying = tokio::spawn(async move { hand_over.export(to).await });
        let copied = tokio::time::timeout(within, &mut copying).await;
        copying.abort();
        let done = match copied {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "a hand-over failed; the range is kept");
                false
            }
            Ok(Err(panic)) => {
                tracing::warn!(%panic, "a hand-over panicked; the range is kept");
                false
            }
            Err(_) => {
                tracing::warn!(?within, "a hand-over took too long; the range is kept");
                false
            }
        };
        core.exported(token, done);
    });
}
