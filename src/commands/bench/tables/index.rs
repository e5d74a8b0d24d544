//! One record against very many subscriptions of the fixed mix ([`tidings_predicate::mix`]).

use crate::commands::bench::Effort;
use crate::commands::bench::rate::repeat;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::probe;
use crate::stopwatch::Stopwatch;
use tidings_base::{Class, Error};
use tidings_predicate::index::{Index, Limits, SubscriptionId, Work};
use tidings_predicate::mix::Mix;
use tidings_predicate::{BadData, Dialect, Key, Packed, Predicate, Scope, Value};

const SEED: u64 = 4;

pub fn bad(error: BadData) -> Error {
    Error::new("bench.data", Class::Failed, error.to_string())
}

pub fn resident() -> f64 {
    probe::resident(std::process::id()).unwrap_or_default() as f64
}

/// Subscribes, and matches records of the mix.
pub fn matching(subscriptions: u64, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let (dialect, before) = (Dialect::default(), resident());
    let (mut index, mut mix) = (Index::new(Limits::default(), SEED), Mix::new(subscriptions, SEED));
    let watch = Stopwatch::start();
    for number in 0..subscriptions {
        let subscription = mix.subscription(number).map_err(bad)?;
        let predicate = Predicate::compile(&subscription.text, &dialect)?;
        index.subscribe(&predicate, &subscription.reader, &subscription.claims)?;
    }
    let (took, after) = (watch.elapsed().as_secs_f64(), resident());
    let each = |name: &str| format!("{name}, {subscriptions} subscriptions");
    figures.add(&each("compile and subscribe"), "µs", None, &[took * 1e6 / subscriptions as f64]);
    if effort.tables.subscriptions.first() == Some(&subscriptions) {
        let bytes = (after - before) / subscriptions as f64;
        figures.add(&each("memory of one, with its reader's data"), "B", Some(Goal::AtMost(400.0)), &[bytes]);
    }

    let records: Vec<(Key, Packed)> =
        (0..effort.tables.records).map(|_| mix.record()).collect::<Result<_, BadData>>().map_err(bad)?;
    let mut work = Work::default();
    let mut matched = 0;
    let times = repeat(effort, || {
        (work, matched) = (Work::default(), 0);
        let mut found: Vec<SubscriptionId> = Vec::new();
        let watch = Stopwatch::start();
        for (key, columns) in &records {
            found.clear();
            let took = index.matches(&Scope::record(key, columns), None, &mut found);
            work.candidates += took.candidates;
            work.evaluated += took.evaluated;
            matched += found.len();
        }
        Ok(watch.elapsed().as_secs_f64() * 1e6 / records.len() as f64)
    })?;
    let goal = (subscriptions == 1_000_000).then_some(Goal::AtMost(10.0));
    let a_record = |count: usize| [count as f64 / records.len() as f64];
    figures.add(&each("match one record"), "µs", goal, &times);
    figures.add(&each("subscriptions that a record is for"), "1", None, &a_record(matched));
    figures.add(&each("predicates evaluated for a record"), "1", None, &a_record(work.evaluated));
    moves(subscriptions, &mut index, &mut mix, &records, figures)
}

/// Moves readers without new subscriptions.
fn moves(
    subscriptions: u64,
    index: &mut Index,
    mix: &mut Mix,
    records: &[(Key, Packed)],
    figures: &mut Figures,
) -> Result<(), Error> {
    let mut readers = Vec::new();
    for (key, columns) in records.iter().take(1_000) {
        index.matches(&Scope::record(key, columns), None, &mut readers);
    }
    let data = readers.iter().map(|_| mix.subscription(0).map(|of| (of.reader, of.claims)));
    let data = data.collect::<Result<Vec<_>, BadData>>().map_err(bad)?;
    let watch = Stopwatch::start();
    for (reader, (data, claims)) in readers.iter().zip(&data) {
        index.update_data(*reader, data, claims)?;
    }
    let took = watch.elapsed().as_secs_f64() * 1e6 / readers.len().max(1) as f64;
    figures.add(&format!("update the data of a reader, {subscriptions} subscriptions"), "µs", None, &[took]);
    Ok(())
}

/// Readers who watch everything, and writers who choose one of them.
pub fn mirror(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let dialect = Dialect::default();
    let mut index = Index::new(Limits::default(), SEED);
    let all = Predicate::compile("true", &dialect)?;
    let readers = effort.tables.readers;
    for number in 0..readers {
        let claims = Packed::columns([("sub", Value::String(format!("user-{number}")))]).map_err(bad)?;
        index.subscribe(&all, &Packed::empty(), &claims)?;
    }
    let writer = Predicate::compile("user.sub == to", &dialect)?;
    let records = (0..effort.tables.records as u64).map(|number| {
        let to = Value::String(format!("user-{}", number * 7_919 % readers));
        Ok((Key::String(format!("message-{number}")), Packed::columns([("to", to)])?))
    });
    let records: Vec<(Key, Packed)> = records.collect::<Result<_, BadData>>().map_err(bad)?;
    let times = repeat(effort, || {
        let mut found = Vec::new();
        let watch = Stopwatch::start();
        for (key, columns) in &records {
            index.matches(&Scope::record(key, columns), Some(&writer), &mut found);
        }
        let took = watch.elapsed().as_secs_f64() * 1e6 / records.len() as f64;
        if found.len() == records.len() {
            return Ok(took);
        }
        let message = format!("{} records were for {} readers instead of one each", records.len(), found.len());
        Err(Error::new("bench.wrong_answer", Class::Failed, message))
    })?;
    figures.add(&format!("find the one of {readers} readers that a writer chose"), "µs", None, &times);
    Ok(())
}

/// Subscriptions that a record is held against one after the other.
const ONE_BY_ONE: u64 = 1_000;
/// Records of one repetition of that.
const HELD: usize = 200;

/// Predicates evaluated without an index, as the paper's processor does it (§7.4).
pub fn one_by_one(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let (dialect, mut mix) = (Dialect::default(), Mix::new(ONE_BY_ONE, SEED));
    let mut subscriptions = Vec::new();
    for number in 0..ONE_BY_ONE {
        let subscription = mix.subscription(number).map_err(bad)?;
        subscriptions.push((Predicate::compile(&subscription.text, &dialect)?, subscription));
    }
    let records: Vec<(Key, Packed)> = (0..HELD).map(|_| mix.record()).collect::<Result<_, BadData>>().map_err(bad)?;
    let mut matched = 0;
    let rates = repeat(effort, || {
        matched = 0;
        let watch = Stopwatch::start();
        for (key, columns) in &records {
            for (predicate, of) in &subscriptions {
                let scope = Scope::record(key, columns).read_by(&of.reader, &of.claims);
                matched += usize::from(predicate.holds(&scope));
            }
        }
        Ok((records.len() * subscriptions.len()) as f64 / watch.elapsed().as_secs_f64())
    })?;
    figures.add("tables: predicates evaluated one by one, one thread (the paper: 70000)", "1/s", None, &rates);
    match matched {
        0 => Err(Error::new("bench.wrong_answer", Class::Failed, "no record was for anybody")),
        _ => Ok(()),
    }
}
