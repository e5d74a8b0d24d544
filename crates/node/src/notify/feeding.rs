//! The feed: publications go in, the bridge takes them out.
//!
//! All bridges of an incarnation are one consumer group. Another incarnation may mean another feed, whose entries have the
//! numbers of others that were dealt with before: it has a group of its own, and an acknowledgement goes to the group that
//! the entry was delivered to (F3).

use super::hub::Hub;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_notify::bridge::Input;
use tidings_wire::v1;
use tidings_wire::v1::feed_message::Message;
use tokio::sync::mpsc;

/// Where publications lie: no application can reach it.
pub(super) const TOPIC: &[u8] = b".notify/publications";
/// Entries of one answer.
const AT_ONCE: u32 = 512;
/// How long a consumer waits for the first entry.
const WAIT: Duration = Duration::from_secs(20);
/// An entry that was not acknowledged in this time goes to another bridge: longer than a bridge needs to put it into
/// scratch.
const REDELIVER: Duration = Duration::from_secs(5);
/// The pause after the feed did not answer.
const PAUSE: Duration = Duration::from_millis(200);
/// Entries that one acknowledgement names.
const ACKS: usize = 1_024;
/// Entries that are remembered: more than a bridge deals with at a time. What it did not take another one may have
/// acknowledged; whatever is forgotten too early comes again.
const MAX_TAKEN: usize = 32_768;

/// The consumer group of all bridges of an incarnation.
pub(super) fn group(incarnation: u64) -> String {
    match incarnation {
        // Before there was one for each.
        0 => "bridges".to_owned(),
        incarnation => format!("bridges-{incarnation}"),
    }
}

/// Entries that the bridge has, by the numbers that it knows them by: no two incarnations share one.
#[derive(Default)]
pub(super) struct Taken {
    taken: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    last: u64,
    /// The highest entry that was seen in the feed, and the latest incarnation whose group this node has consumed for.
    height: Height,
    joined: u64,
    by_entry: BTreeMap<(u64, u64), u64>,
    entries: BTreeMap<u64, (u64, u64)>,
}

/// The highest number of an entry that was seen in the feed under an incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Height {
    pub(super) incarnation: u64,
    number: u64,
}

impl Height {
    /// F3: whether an entry that was appended since should have a higher number: then entries are lost.
    pub(super) fn is_above(self, appended: u64) -> bool {
        appended <= self.number
    }
}

impl Taken {
    /// The highest entry that was seen under an incarnation.
    pub(super) fn height(&self, incarnation: u64) -> Height {
        let height = self.taken.lock().height;
        if height.incarnation == incarnation { height } else { Height { incarnation, number: 0 } }
    }

    /// An entry was seen under this incarnation; the feed of another may have other numbers.
    pub(super) fn rise(&self, incarnation: u64, number: u64) {
        let height = &mut self.taken.lock().height;
        match incarnation.cmp(&height.incarnation) {
            Ordering::Greater => *height = Height { incarnation, number },
            Ordering::Equal => height.number = height.number.max(number),
            Ordering::Less => {}
        }
    }

    /// Whether the feed knows the group of this incarnation, as far as was heard here.
    pub(super) fn has_joined(&self, incarnation: u64) -> bool {
        self.taken.lock().joined == incarnation
    }

    fn join(&self, incarnation: u64, highest: u64) {
        self.rise(incarnation, highest);
        self.taken.lock().joined = incarnation;
    }

    /// The bridge's number of an entry; what is delivered again keeps it. Whatever earlier incarnations had is forgotten.
    fn take(&self, incarnation: u64, number: u64) -> u64 {
        let Entries { last, by_entry, entries, .. } = &mut *self.taken.lock();
        while let Some(((_, _), id)) = by_entry.first_key_value().filter(|((earlier, _), _)| *earlier < incarnation) {
            entries.remove(id);
            by_entry.pop_first();
        }
        let id = *by_entry.entry((incarnation, number)).or_insert_with(|| {
            *last += 1;
            entries.insert(*last, (incarnation, number));
            *last
        });
        if entries.len() > MAX_TAKEN
            && let Some((_, oldest)) = entries.pop_first()
        {
            by_entry.remove(&oldest);
        }
        id
    }

    /// The bridge is done with an entry; whose it was, unless that is forgotten.
    fn done(&self, id: u64) -> Option<(u64, u64)> {
        let mut taken = self.taken.lock();
        let entry = taken.entries.remove(&id)?;
        taken.by_entry.remove(&entry);
        Some(entry)
    }
}

/// The way of acknowledgements from the bridge.
pub(super) fn acks() -> (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>) {
    // As many as the feed has delivered, at most.
    mpsc::unbounded_channel()
}

/// Takes entries to the bridge, once there is a realm.
pub(super) async fn consume(hub: Arc<Hub>) {
    if hub.kept.subscribe().wait_for(Option::is_some).await.is_err() {
        return;
    }
    loop {
        // Without a session with the cell the incarnation may be an old one, whose group is not to come back.
        if hub.cell.subscribe().wait_for(Option::is_some).await.is_err() {
            return;
        }
        let Ok(incarnation) = hub.kept().map(|kept| kept.incarnation) else { return };
        let consume = v1::Consume {
            topic: TOPIC.into(),
            group: group(incarnation).into(),
            limit: AT_ONCE,
            wait_ms: WAIT.as_millis() as u32,
            redeliver_ms: REDELIVER.as_millis() as u32,
        };
        let Ok(stored) = hub.stored() else { return };
        match stored.feed(Message::Consume(consume)).await {
            Ok(Message::Deliveries(v1::Deliveries { deliveries })) => {
                hub.taken.join(incarnation, deliveries.iter().map(|it| it.number).max().unwrap_or(0));
                let taken = |delivery: v1::Delivery| (hub.taken.take(incarnation, delivery.number), delivery.entry);
                hub.bridge(Input::Fed(deliveries.into_iter().map(taken).collect())).await;
            }
            Ok(_) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "notify: the feed does not answer");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Acknowledges what the bridge is done with; what is not acknowledged comes again and changes nothing.
pub(super) async fn acknowledge(hub: Arc<Hub>, mut acked: mpsc::UnboundedReceiver<u64>) {
    let mut ids = Vec::new();
    while acked.recv_many(&mut ids, ACKS).await > 0 {
        let mut by_group: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (incarnation, number) in ids.drain(..).filter_map(|id| hub.taken.done(id)) {
            by_group.entry(incarnation).or_default().push(number);
        }
        for (incarnation, numbers) in by_group {
            let ack = v1::Ack { topic: TOPIC.into(), group: group(incarnation).into(), numbers };
            let Ok(stored) = hub.stored() else { return };
            if let Err(error) = stored.feed(Message::Ack(ack)).await {
                tracing::debug!(%error, "notify: entries were not acknowledged");
                if is_loss(&error) {
                    hub.feed_lost(incarnation).await;
                }
            }
        }
    }
}

/// F3: whether a feed that says so to whoever acknowledges what it delivered is not what it was.
fn is_loss(error: &Error) -> bool {
    matches!(error.code.as_ref(), "feed.never_delivered" | "feed.unknown_group")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Class;

    #[test]
    fn f3_a_feed_that_goes_back_has_lost_entries() {
        let taken = Taken::default();
        assert!(!taken.height(5).is_above(1), "nothing was seen yet");
        taken.join(5, 7);
        taken.rise(5, 3);
        assert!(taken.height(5).is_above(7) && !taken.height(5).is_above(8));
        assert!(taken.has_joined(5) && !taken.has_joined(6) && !taken.height(6).is_above(1));
        // After a loss that was noticed numbers begin anew; what was on its way says nothing of them.
        taken.rise(6, 2);
        taken.rise(5, 9);
        assert!(taken.height(6).is_above(2) && !taken.height(6).is_above(3));
        let said = |code| is_loss(&Error::new(code, Class::Invalid, "no"));
        assert!(said("feed.never_delivered") && said("feed.unknown_group") && !said("feed.no_majority"));
    }

    #[test]
    fn entries_of_another_incarnation_are_others() {
        let taken = Taken::default();
        let (one, two) = (taken.take(5, 1), taken.take(5, 2));
        assert_eq!(taken.take(5, 1), one, "it is delivered again");
        assert_eq!((taken.done(one), taken.done(one)), (Some((5, 1)), None));
        let new = taken.take(6, 2);
        assert_ne!(new, two);
        assert_eq!(taken.done(two), None, "what an earlier feed had is not acknowledged to this one");
        assert_eq!(taken.done(new), Some((6, 2)));
    }

    #[test]
    fn what_nobody_here_acknowledges_is_forgotten_in_the_end() {
        let taken = Taken::default();
        let first = taken.take(5, 1);
        let ids: Vec<u64> = (2..=MAX_TAKEN as u64 + 1).map(|number| taken.take(5, number)).collect();
        assert_eq!(taken.taken.lock().entries.len(), MAX_TAKEN);
        assert_eq!(taken.taken.lock().by_entry.len(), MAX_TAKEN);
        assert_eq!((taken.done(first), taken.done(ids[0])), (None, Some((5, 2))));
    }
}
