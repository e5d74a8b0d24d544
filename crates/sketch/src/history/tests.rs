use super::*;
use crate::sketch::{Of, Sketching};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn key(number: u64) -> Sketch {
    Sketching::new([7; 32]).begin(Of::Request).number(number).finish()
}

fn answer(number: u64) -> Sketch {
    Sketching::new([7; 32]).begin(Of::Response).number(number).finish()
}

fn at(height: u64) -> Stamp {
    Stamp::Ordered(sigma(1, height))
}

fn sigma(life: u64, height: u64) -> Sigma {
    Sigma::new(Incarnation(life), height, 0).expect("it is small")
}

fn table(entries: usize) -> History {
    History::new(&Options { shards: 1, ..Options::of(entries) })
}

fn put(history: &History, key: u64, answered: u64, stamp: Stamp) -> Change {
    let key = self::key(key);
    history.update(history.visit(&key), &key, answer(answered), stamp)
}

fn seen(history: &History, key: u64) -> Option<Sketch> {
    let key = self::key(key);
    history.look(history.visit(&key), &key).map(|entry| entry.sketch)
}

#[test]
fn an_older_answer_never_replaces_a_newer_one() {
    let history = table(100);
    assert_eq!(put(&history, 1, 10, at(5)), Change::New);
    assert_eq!(put(&history, 1, 11, at(7)), Change::Changed);
    assert_eq!(put(&history, 1, 10, at(6)), Change::Older);
    assert_eq!(put(&history, 1, 12, at(7)), Change::Older);
    assert_eq!(put(&history, 1, 11, at(8)), Change::Same);
    assert_eq!(seen(&history, 1), Some(answer(11)));
}

#[test]
fn what_was_evicted_does_not_come_back_as_the_newest() {
    // One bucket: the twentieth slot changes hands from the twenty-first key on.
    let history = table(10);
    for number in 0..20 {
        assert_eq!(put(&history, number, 0, at(100 + number)), Change::New);
    }
    assert_eq!(put(&history, 20, 0, at(200)), Change::New);
    let gone: Vec<u64> = (0..20).filter(|number| seen(&history, *number).is_none()).collect();
    assert_eq!(gone, [19]);
    assert_eq!(put(&history, 19, 1, at(119)), Change::Older, "the floor is at what was evicted");
    assert_eq!(put(&history, 19, 1, at(201)), Change::New);
    assert_eq!(history.len(), 20);
}

#[test]
fn a_flood_of_new_keys_replaces_itself() {
    let history = table(10);
    for number in 0..20 {
        put(&history, number, 0, at(100 + number));
        history.used(history.visit(&key(number)), &key(number));
    }
    (1_000..2_000).for_each(|number| {
        put(&history, number, 0, at(number));
    });
    let kept = (0..20).filter(|number| seen(&history, *number).is_some()).count();
    assert_eq!(kept, 19, "nothing but the slot of probation is taken");
    // Whoever is asked for again leaves probation, at the cost of somebody who was not.
    history.used(history.visit(&key(1_999)), &key(1_999));
    put(&history, 5_000, 0, at(5_000));
    assert!(seen(&history, 1_999).is_some() && seen(&history, 5_000).is_some());
}

#[test]
fn an_answer_that_is_not_remembered_takes_older_ones_with_it() {
    let history = table(100);
    put(&history, 1, 10, at(5));
    let visit = history.visit(&key(1));
    assert_eq!(history.forget(visit, &key(1), at(4)), Change::Older);
    assert_eq!(seen(&history, 1), Some(answer(10)));
    assert_eq!(history.forget(visit, &key(1), at(9)), Change::Changed);
    assert_eq!(put(&history, 1, 10, at(8)), Change::Older);
    assert_eq!(put(&history, 1, 10, at(10)), Change::New);
}

#[test]
fn a_new_life_of_the_group_clears_the_table() {
    let history = History::new(&Options { shards: 8, ..Options::of(100) });
    (0..50).for_each(|number| {
        put(&history, number, 0, at(1_000));
    });
    assert_eq!(put(&history, 1, 3, Stamp::Ordered(sigma(2, 1))), Change::New, "places begin anew");
    assert!((0..50).all(|number| seen(&history, number).is_some() == (number == 1)));
    assert_eq!(put(&history, 2, 0, at(2_000)), Change::Older, "an answer of the old life is none");
}

#[test]
fn votes_that_overlap_and_differ_are_forgotten() {
    let voted = |began, ended| Stamp::Voted { began, ended };
    let history = table(100);
    assert_eq!(put(&history, 1, 10, voted(1, 4)), Change::New);
    assert_eq!(put(&history, 1, 10, voted(3, 6)), Change::Same);
    assert_eq!(put(&history, 1, 11, voted(5, 8)), Change::Disputed, "it began before the last one ended");
    assert_eq!(seen(&history, 1), None);
    assert_eq!(put(&history, 1, 10, voted(7, 9)), Change::Older, "it began before the dispute ended");
    assert_eq!(put(&history, 1, 11, voted(10, 12)), Change::New);
    assert_eq!(put(&history, 1, 12, voted(13, 14)), Change::Changed);
}

#[test]
fn a_lost_range_takes_its_entries_and_the_answers_under_way() {
    let history = History::new(&Options { shards: 16, ..Options::of(1_000) });
    (0..200).for_each(|number| {
        put(&history, number, 0, at(10));
    });
    let half = KeyRange::new(KeyHash(0), KeyHash(u64::MAX >> 1));
    let (lost, kept): (Vec<u64>, Vec<u64>) = (0..200).partition(|number| half.contains(key(*number).position()));
    let visit = history.visit(&key(lost[0]));
    history.drop_range(half);
    assert!(lost.iter().all(|number| seen(&history, *number).is_none()));
    assert!(kept.iter().all(|number| seen(&history, *number).is_some()));
    assert_eq!(history.update(visit, &key(lost[0]), answer(1), at(11)), Change::Void);
    assert_eq!(put(&history, lost[0], 1, at(10)), Change::Older);
    assert_eq!(put(&history, lost[0], 1, at(11)), Change::New);
    history.drop_range(KeyRange::FULL);
    assert!(history.is_empty());
}

/// Found by the world: a key that shares its tag with others was compared with whichever slot came first.
#[test]
fn keys_that_share_a_tag_do_not_let_old_answers_in() {
    let mut rng = tidings_base::Seeded::new(1);
    for _ in 0..50 {
        let history = History::new(&Options { shards: 1, tag_mask: 1, ..Options::of(100) });
        let (mut newest, mut made) = (BTreeMap::<u64, u64>::new(), BTreeMap::new());
        for _ in 0..400 {
            let (number, place) = (rng.below(12), rng.between(1, 10_000));
            made.insert(answer(number * 100_000 + place), (number, place));
            put(&history, number, number * 100_000 + place, at(place));
            let known = newest.entry(number).or_default();
            *known = place.max(*known);
            for (number, place) in &newest {
                let own = seen(&history, *number).map(|seen| made[&seen]).filter(|(of, _)| of == number);
                assert!(own.is_none_or(|own| own == (*number, *place)), "{number}: {own:?}, not {place}");
            }
        }
    }
}

/// Where another key with its tag is found in place of what was evicted, the floor holds all the same.
#[test]
fn what_was_evicted_does_not_come_back_in_the_slot_of_another_key() {
    // Two buckets.
    let history = History::new(&Options { shards: 1, tag_mask: 0xff, ..Options::of(36) });
    let spot = |number: u64| {
        let Spot { tag, words } = history.spot(&key(number));
        (tag, words.map(|word| word >> 31))
    };
    let first = (0..).find(|number| spot(*number).1 == [0, 1]).unwrap();
    let tag = spot(first).0;
    let other = (0..).find(|number| spot(*number) == (tag, [1, 1])).unwrap();
    // Twenty of the one and nineteen of the other, each with a tag of its own.
    let alone = |bucket: u32, count: usize| {
        let mut tags = BTreeSet::from([tag]);
        let numbers = (0..).filter(|number| spot(*number).1 == [bucket; 2]);
        numbers.filter(|number| tags.insert(spot(*number).0)).take(count).collect::<Vec<u64>>()
    };
    let (near, far) = (alone(0, 20), alone(1, 19));
    near[..19].iter().chain(&far).for_each(|number| assert_eq!(put(&history, *number, 0, at(5)), Change::New));
    assert_eq!((put(&history, first, 18, at(18)), put(&history, other, 10, at(10))), (Change::New, Change::New));
    assert_eq!(put(&history, near[19], 0, at(20)), Change::New, "the first one's slot is the one that goes");
    assert_eq!(put(&history, first, 12, at(12)), Change::Older);
    assert_eq!((seen(&history, first), seen(&history, other)), (None, None), "nobody knows whose it was");
    assert_eq!((put(&history, first, 18, at(18)), put(&history, first, 19, at(19))), (Change::Older, Change::New));
}

#[test]
fn the_list_bit_stays_with_its_entry() {
    let history = table(100);
    put(&history, 1, 10, at(5));
    let visit = history.visit(&key(1));
    history.list(visit, &key(1), true);
    put(&history, 1, 11, at(6));
    assert!(history.look(visit, &key(1)).unwrap().black, "black-listed requests are kept up");
    history.list(visit, &key(1), false);
    assert_eq!(history.look(visit, &key(1)).map(|e| (e.black, e.sketch)), Some((false, answer(11))));
}

#[test]
fn a_table_holds_what_it_is_made_for() {
    let entries = 100_000;
    let history = History::new(&Options::of(entries as usize));
    (0..entries).for_each(|number| {
        put(&history, number, number, at(number + 1));
    });
    let found = (0..entries).filter(|number| seen(&history, *number) == Some(answer(*number))).count();
    assert!(found as f64 >= 0.99 * entries as f64, "{found} of {entries}");
}

/// Threads race for the same few keys. An answer's number is its place, so the newest of each must win.
#[test]
fn the_newest_wins_whoever_comes_last() {
    let history = Arc::new(table(100));
    let threads = (0..4u64).map(|thread| {
        let history = Arc::clone(&history);
        std::thread::spawn(move || {
            for step in 0..2_000u64 {
                let place = (step * 7 + thread * 13) % 2_000 + 1;
                put(&history, step % 5, place * 8 + step % 5, at(place * 8 + step % 5));
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    for number in 0..5u64 {
        let newest = (0..4u64)
            .flat_map(|thread| (0..2_000u64).map(move |step| (step, (step * 7 + thread * 13) % 2_000 + 1)))
            .filter(|(step, _)| step % 5 == number)
            .map(|(_, place)| place * 8 + number)
            .max();
        assert_eq!(seen(&history, number), newest.map(answer));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64, u64),
    Forget(u64, u64),
    Used(u64),
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..40, 0u64..4, 1u64..200).prop_map(|(key, answer, place)| Step::Put(key, answer, place)),
        1 => (0u64..40, 1u64..200).prop_map(|(key, place)| Step::Forget(key, place)),
        2 => (0u64..40).prop_map(Step::Used),
        1 => Just(Step::Drop),
    ]
}

proptest! {
    /// The reference: the newest place of each key that was ever reported. Whatever the table still knows, it is that
    /// or newer than nothing: an entry is never older than anything the table was told of the same key.
    #[test]
    fn an_entry_is_never_older_than_what_was_told(steps in proptest::collection::vec(step(), 0..400)) {
        let history = table(10);
        let mut newest: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, answered, place) => {
                    put(&history, key, answered, at(place));
                    let known = newest.entry(key).or_default();
                    if place > known.0 {
                        *known = (place, Some(answered));
                    }
                }
                Step::Forget(number, place) => {
                    history.forget(history.visit(&key(number)), &key(number), at(place));
                    let known = newest.entry(number).or_default();
                    if place > known.0 {
                        *known = (place, None);
                    }
                }
                Step::Used(number) => history.used(history.visit(&key(number)), &key(number)),
                Step::Drop => history.drop_range(KeyRange::FULL),
            }
            for (number, (place, answered)) in &newest {
                let entry = history.look(history.visit(&key(*number)), &key(*number));
                if let Some(entry) = entry {
                    prop_assert_eq!(entry.sigma, sigma(1, *place));
                    prop_assert_eq!(Some(entry.sketch), answered.map(answer));
                }
            }
        }
    }
}

/// A table of sixteen shards with a hundred keys, and the upper half of the ring.
fn to_be_carried() -> (History, Options, KeyRange) {
    let options = Options { shards: 16, ..Options::of(2_000) };
    let history = History::new(&options);
    for number in 0..100 {
        assert_eq!(put(&history, number, number, at(10 + number)), Change::New);
    }
    let range = KeyRange::new(KeyHash(1 << 63), KeyHash(u64::MAX));
    (history, options, range)
}

/// Rule J: with a range that is handed over its entries go along, and no others.
#[test]
fn entries_of_whole_shards_are_carried() {
    let (history, options, range) = to_be_carried();
    let carried = history.carry(range);
    let inside = |number: &u64| range.contains(key(*number).position());
    assert_eq!(carried.len(), (0..100).filter(inside).count());
    let carried = Carried::from_bytes(&carried.to_bytes()).expect("what was written is read");
    let other = History::new(&options);
    assert_eq!(other.take_over(range, &carried, true), carried.len());
    for number in 0..100 {
        assert_eq!(seen(&other, number), inside(&number).then(|| answer(number)), "{number}");
    }
    let some = (0..100).find(inside).expect("half of them are");
    assert_eq!(put(&other, some, 777, at(some)), Change::Older, "a place means the same everywhere");
    assert_eq!(put(&other, some, 777, at(1_000)), Change::Changed);

    // A shard that is not within the range as a whole stays.
    let short = KeyRange::new(range.start, KeyHash(u64::MAX - 1));
    let last = |number: &u64| key(*number).position().0 >> 60 == 15;
    assert_eq!(history.carry(short).len(), (0..100).filter(|number| inside(number) && !last(number)).count());
    assert_eq!(History::new(&options).take_over(short, &carried, true), history.carry(short).len());
    let divided = Options { shards: 32, ..options };
    assert_eq!(History::new(&divided).take_over(range, &carried, true), 0);
    assert!(Carried::default().is_empty() && other.take_over(range, &Carried::default(), true) == 0);
}

/// Ticks are each table's own: carried entries count as of the hand-over, however far the other table had come.
#[test]
fn entries_without_an_order_are_as_of_the_hand_over() {
    let (history, options, range) = to_be_carried();
    let voted = History::new(&options);
    for _ in 0..1_000 {
        voted.tick();
    }
    let vote = |history: &History| Stamp::Voted { began: history.tick(), ended: history.tick() };
    for number in 0..100 {
        put(&voted, number, number, vote(&voted));
    }
    let number = (0..100).find(|number| range.contains(key(*number).position())).expect("half of them are");
    let other = History::new(&options);
    let before = Stamp::Voted { began: other.tick(), ended: other.tick() };
    assert!(other.take_over(range, &voted.carry(range), false) > 0);
    assert_eq!(seen(&other, number), Some(answer(number)));
    assert_eq!(put(&other, number, 777, vote(&other)), Change::Changed, "a vote that began later decides");
    assert_eq!(put(&other, number, number, before), Change::Disputed, "one that began before does not");
    // Of another life of the group nothing is taken.
    let later = History::new(&options);
    put(&later, 1, 1, Stamp::Ordered(sigma(2, 1)));
    assert_eq!(later.take_over(range, &history.carry(range), true), 0);
}

#[test]
fn spoilt_entries_are_none() {
    let (history, _, range) = to_be_carried();
    let bytes = history.carry(range).to_bytes();
    for end in 0..bytes.len() {
        assert_eq!(Carried::from_bytes(&bytes[..end]), None);
    }
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        Carried::from_bytes(&bytes)
    };
    assert_eq!(spoilt(0, 2), None, "another form");
    assert_eq!(spoilt(12, bytes[12] ^ 1), None, "another number of entries");
    assert_eq!(spoilt(bytes.len() - 1, 2), None, "neither black nor not");
    assert_eq!(spoilt(bytes.len() - 2, 255), None, "no place");
    // What names a shard or bucket that is not there is passed over.
    let (_, options, _) = to_be_carried();
    let elsewhere = spoilt(24 + 3, 255).expect("it is read");
    assert_eq!(History::new(&options).take_over(range, &elsewhere, true), elsewhere.len() - 1);
}
