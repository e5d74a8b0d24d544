//! R1: copies of hot partitions that other nodes own. A node that passes on many reads of one follows it, and answers them itself.
//!
//! Nobody has to be told: a copy is of use to the clients of its own node, which is where load comes from. What the copy does
//! not answer (it is behind the client's floor, or not there yet) is passed on as before.

use super::directories::Entry;
use super::hub::Hub;
use super::requests::Asked;
use crate::metrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Mono;
use tidings_tables::calls::{Answer, Call, Caller, Page, Read};
use tidings_tables::names::{PartitionId, QueryId, Term};
use tidings_tables::processor::Input;
use tidings_wire::v1;

/// How long reads are counted before it is decided what they are worth.
const WINDOW: Duration = Duration::from_secs(5);
/// How long a copy is kept that is read less than a tenth as often as is worth one.
const COOL: Duration = Duration::from_secs(60);
/// How long a partition is left alone that was too large to be copied.
const REFUSED: Duration = Duration::from_secs(600);
/// Partitions that are counted at a time; what comes beyond is passed on, uncounted.
const COUNTED: usize = 4_096;

/// What is copied here, and what is worth it.
pub(super) struct Copies {
    /// Reads a second that are worth a copy; 0 = none are.
    worth: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when, and how often partitions of others have been read.
    begun: Mono,
    read: BTreeMap<PartitionId, u64>,
    followed: BTreeMap<PartitionId, Followed>,
    /// Until when these are left alone.
    refused: BTreeMap<PartitionId, Mono>,
    last: u64,
}

struct Followed {
    /// The term that the processor was told.
    term: Term,
    /// When it was last read often.
    warm: Mono,
}

impl Copies {
    pub(super) fn new(worth: u64) -> Copies {
        Copies { worth, state: Mutex::default() }
    }

    /// Counts a read that a copy could answer; whether there is one.
    fn count(&self, partition: PartitionId) -> bool {
        if self.worth == 0 {
            return false;
        }
        let mut state = self.state.lock();
        if state.read.len() < COUNTED || state.read.contains_key(&partition) {
            *state.read.entry(partition).or_default() += 1;
        }
        state.followed.contains_key(&partition)
    }

    /// How many copies there are.
    pub(super) fn count_followed(&self) -> usize {
        self.state.lock().followed.len()
    }

    /// What is to be followed from now on, and what no more.
    fn decide(&self, now: Mono) -> (Vec<PartitionId>, Vec<PartitionId>) {
        let mut state = self.state.lock();
        let passed = now.since(state.begun);
        if passed < WINDOW {
            return (Vec::new(), Vec::new());
        }
        let read = std::mem::take(&mut state.read);
        state.begun = now;
        state.refused.retain(|_, until| *until > now);
        let often = |reads: u64, least: u64| u128::from(reads) * 1_000 >= u128::from(least) * passed.as_millis();
        for (partition, copy) in &mut state.followed {
            if often(read.get(partition).copied().unwrap_or_default(), self.worth.div_ceil(10)) {
                copy.warm = now;
            }
        }
        let cold =
            state.followed.iter().filter(|(_, copy)| now.since(copy.warm) > COOL).map(|(cold, _)| *cold).collect();
        let anew =
            |partition: &PartitionId| !state.followed.contains_key(partition) && !state.refused.contains_key(partition);
        let hot = read.iter().filter(|(_, reads)| often(**reads, self.worth)).map(|(hot, _)| *hot);
        (hot.filter(anew).collect(), cold)
    }

    /// The processor cannot copy it.
    pub(super) fn refuse(&self, partition: PartitionId, now: Mono) {
        let mut state = self.state.lock();
        state.followed.remove(&partition);
        state.refused.insert(partition, now + REFUSED);
    }

    /// Whether the processor is to be told of this copy in this term; from now on it was. One that was given up since it was looked
    /// at is none any more.
    fn tells(&self, partition: PartitionId, term: Term) -> bool {
        let mut state = self.state.lock();
        let before = state.followed.get_mut(&partition).map(|copy| std::mem::replace(&mut copy.term, term));
        before.is_some_and(|before| before != term)
    }
}

/// Whether a copy may answer a read: of whoever says what it has seen (R5), and asks for no more than `committed`.
fn fits_copy(read: &v1::RecordRead, partition: PartitionId) -> bool {
    let level = matches!(read.level(), v1::ReadLevel::Committed | v1::ReadLevel::Uncommitted);
    level && read.floors.iter().any(|floor| floor.partition == partition.number && floor.position > 0)
}

impl Hub {
    /// The copy's answer to a read of a partition that another node owns, if there is one: the first piece, and where others
    /// come from.
    pub(super) async fn at_copy(
        self: &Arc<Self>,
        partition: PartitionId,
        read: &v1::RecordRead,
        ask: impl FnOnce() -> Result<(Caller, Read), tidings_base::Error>,
    ) -> Result<Option<(Asked, Page)>, tidings_base::Error> {
        if !fits_copy(read, partition) || !self.copies.count(partition) {
            return Ok(None);
        }
        let (caller, read) = ask()?;
        let mut asked = self.ask(partition, caller, Call::Read(Box::new(read))).await;
        // Whatever else the copy says the owner decides.
        let page = match asked.next().await {
            Some(Ok(Answer::Page(page))) => Some(page),
            _ => None,
        };
        metrics::tables_copied(page.is_some());
        Ok(page.map(|page| (asked, page)))
    }

    /// Begins and ends copies, and tells the processor what directories say of those that there are.
    pub(super) async fn look_at_copies(&self, entries: &[Arc<Entry>]) {
        let now = self.clock.now().mono;
        let (hot, mut gone) = self.copies.decide(now);
        let followed: Vec<PartitionId> = self.copies.state.lock().followed.keys().copied().collect();
        for partition in hot.iter().chain(&followed).copied() {
            let entry = entries.iter().find(|entry| entry.table() == partition.table);
            let part = entry.and_then(|entry| {
                let part = entry.directory.partitions.iter().find(|part| part.number == partition.number);
                Some((entry, part?))
            });
            match part.filter(|_| self.lease(partition).is_none()) {
                Some((entry, part)) if !gone.contains(&partition) => {
                    if !followed.contains(&partition) {
                        tracing::debug!(%partition, "tables: a hot partition is copied here");
                        let copy = Followed { term: Term::default(), warm: now };
                        self.copies.state.lock().followed.insert(partition, copy);
                    }
                    if self.copies.tells(partition, part.term) {
                        self.follow_copy(partition, entry, part).await;
                    }
                }
                _ => gone.push(partition),
            }
        }
        gone.sort_unstable();
        gone.dedup();
        for partition in gone {
            self.copies.state.lock().followed.remove(&partition);
            self.processor(Input::Unfollow { partition }).await;
        }
        metrics::tables_copies(self.copies.count_followed());
    }

    async fn follow_copy(&self, partition: PartitionId, entry: &Entry, part: &tidings_tables::directory::Partition) {
        let number = {
            let mut state = self.copies.state.lock();
            state.last += 1;
            state.last
        };
        let query = QueryId::of_copy(self.gateway_id, number);
        let (entry, properties) = (Box::new(part.clone()), Box::new(entry.directory.properties.clone()));
        self.processor(Input::Follow { partition, query, entry, properties }).await;
        // Given up while the word was on its way: nobody would end it any more.
        if !self.copies.state.lock().followed.contains_key(&partition) {
            self.processor(Input::Unfollow { partition }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_tables::names::TableId;

    fn partition(number: u32) -> PartitionId {
        PartitionId { table: TableId(1), number }
    }

    fn at(seconds: u64) -> Mono {
        Mono(0) + Duration::from_secs(seconds)
    }

    fn reads(copies: &Copies, number: u32, many: u64) {
        (0..many).for_each(|_| {
            copies.count(partition(number));
        });
    }

    fn follow(copies: &Copies, number: u32, now: Mono) {
        copies.state.lock().followed.insert(partition(number), Followed { term: Term::default(), warm: now });
    }

    #[test]
    fn what_is_read_often_is_copied_until_it_is_not() {
        let copies = Copies::new(100);
        assert_eq!(copies.decide(at(100)), (vec![], vec![]));
        reads(&copies, 1, 500);
        reads(&copies, 2, 499);
        assert_eq!(copies.decide(at(104)), (vec![], vec![]));
        assert_eq!(copies.decide(at(105)), (vec![partition(1)], vec![]));
        follow(&copies, 1, at(105));
        assert!(copies.count(partition(1)) && !copies.count(partition(2)));
        // A tenth is enough to keep it.
        for second in (110..300).step_by(5) {
            reads(&copies, 1, 50);
            assert_eq!(copies.decide(at(second)), (vec![], vec![]), "{second}");
        }
        let ends = (300..400).step_by(5).find(|second| {
            reads(&copies, 1, 40);
            copies.decide(at(*second)).1 == [partition(1)]
        });
        assert_eq!(ends, Some(360));
    }

    #[test]
    fn what_does_not_fit_is_left_alone_for_a_while() {
        let copies = Copies::new(100);
        copies.decide(at(100));
        copies.refuse(partition(1), at(100));
        for second in [105, 110, 695] {
            reads(&copies, 1, 100_000);
            assert_eq!(copies.decide(at(second)).0, [], "{second}");
        }
        reads(&copies, 1, 100_000);
        assert_eq!(copies.decide(at(701)).0, [partition(1)]);
    }

    #[test]
    fn the_processor_is_told_of_a_copy_in_each_term_once_and_of_none_that_was_given_up() {
        let (copies, term) = (Copies::new(100), |term| Term::new(term).unwrap());
        follow(&copies, 1, at(100));
        assert!(copies.tells(partition(1), term(3)) && !copies.tells(partition(1), term(3)));
        assert!(copies.tells(partition(1), term(4)));
        // It did not fit, while another one was told of.
        copies.refuse(partition(1), at(101));
        assert!(!copies.tells(partition(1), term(5)));
    }

    #[test]
    fn nothing_is_copied_where_it_is_not_wanted_and_counting_is_bounded() {
        let copies = Copies::new(0);
        reads(&copies, 1, 100_000);
        assert_eq!(copies.decide(at(100)), (vec![], vec![]));
        let copies = Copies::new(1);
        (0..10_000).for_each(|number| reads(&copies, number, 1));
        assert_eq!(copies.state.lock().read.len(), COUNTED);
    }

    #[test]
    fn only_whoever_says_what_it_has_seen_is_answered_from_a_copy() {
        let floor = |position| v1::PartitionPosition { partition: 1, position };
        let read = |level: v1::ReadLevel, floors| v1::RecordRead { level: level.into(), floors, ..Default::default() };
        for (level, fits) in [
            (v1::ReadLevel::Committed, true),
            (v1::ReadLevel::Uncommitted, true),
            (v1::ReadLevel::CommittedWio, false),
            (v1::ReadLevel::Latest, false),
            (v1::ReadLevel::Unspecified, false),
        ] {
            assert_eq!(fits_copy(&read(level, vec![floor(7)]), partition(1)), fits, "{level:?}");
            assert!(!fits_copy(&read(level, vec![floor(7)]), partition(2)));
            assert!(!fits_copy(&read(level, vec![floor(0)]), partition(1)));
            assert!(!fits_copy(&read(level, vec![]), partition(1)));
        }
    }
}
