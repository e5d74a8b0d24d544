//! A node that was removed as a member hands over what it owns by lease of placement: members could not send it what is for its
//! ranges, and nobody should wait for the ends of its leases when it is stopped. For the same reason it leads placement no more.

use crate::notify::Notify;
use crate::placement::Placement;
use crate::tables::Tables;
use std::time::Duration;
use tidings_consensus::Group;

/// How soon that is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// Hands ranges and partitions over once this node is a member no more. It does not become one again: whoever was removed
/// comes back under another number.
pub(super) async fn watch(log: Group, placement: Option<Placement>, notify: Option<Notify>, tables: Option<Tables>) {
    let mut member = false;
    loop {
        tokio::time::sleep(LOOK).await;
        match (log.is_outside(), member) {
            (false, _) => member = true,
            (true, false) => {}
            (true, true) => break,
        }
    }
    tracing::info!("this node is a member no more: it leads no more, and hands over what it owns");
    if let Some(placement) = &placement {
        placement.stand_down();
    }
    let notify = async {
        if let Some(notify) = &notify {
            notify.hand_over().await;
        }
    };
    let tables = async {
        if let Some(tables) = &tables {
            tables.hand_over().await;
        }
    };
    tokio::join!(notify, tables);
}
