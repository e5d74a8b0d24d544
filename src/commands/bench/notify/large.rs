//! What one message costs a registrar, of a client that has registered as much as it may: others wait for as long.

use super::model::{AT_ONCE, Model};
use super::tidings::name;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::repeat;
use crate::commands::bench::report::{Figures, Goal};
use crate::stopwatch::Stopwatch;
use tidings_base::{Class, Error};
use tidings_notify::digest::{FAN_OUT, MAX_PREFIXES};
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// Measures both.
pub fn costs(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let many = effort.notify.large;
    let mut model = Model::new()?;
    let token = model.connect(0, many);
    let mut op = many as u64;
    let digit = |number: usize| (number % FAN_OUT) as u8;
    // As deep as a set of so many goes, and deeper.
    let prefixes =
        (0..MAX_PREFIXES).map(|at| vec![digit(at), digit(at / FAN_OUT), digit(7 * at), digit(at / 3)].into());
    let query = v1::SyncQuery { op, prefixes: prefixes.collect() };
    let asked = repeat(effort, || {
        let (token, query) = (token.clone(), Some(query.clone()));
        let up = v1::NotifyUp { token, latest: op, first: op + 1, query, contact: 1, ..Default::default() };
        let watch = Stopwatch::start();
        let told = model.up(0, up);
        let took = watch.elapsed();
        let answered = told.iter().any(|down| down.answer.as_ref().is_some_and(|it| it.nodes.len() == MAX_PREFIXES));
        let unanswered =
            || Error::new("bench.wrong_answer", Class::Failed, "a question about prefixes was not answered");
        answered.then_some(took.as_secs_f64() * 1_000.0).ok_or_else(unanswered)
    })?;
    let ended = repeat(effort, || {
        // The first ones, the last ones and those between, wherever they stand.
        let ends = (0..AT_ONCE).map(|at| (op as usize - many + at) * 31 % many);
        let unregister = |object| v1::RegistrationChange { change: Some(Change::Unregister(name(object).into())) };
        let changes: Vec<v1::RegistrationChange> = ends.map(unregister).collect();
        let first = op + 1;
        op += changes.len() as u64;
        let watch = Stopwatch::start();
        model.say(0, &token, first, changes);
        Ok(watch.elapsed().as_secs_f64() * 1_000.0)
    })?;
    let of = format!("of a client with {many} registrations");
    let name = format!("notify: a registrar's time for a question about {MAX_PREFIXES} prefixes {of}");
    figures.add(&name, "ms", Some(Goal::AtMost(50.0)), &asked);
    let name = format!("notify: a registrar's time for a message that ends {AT_ONCE} {of}");
    figures.add(&name, "ms", Some(Goal::AtMost(50.0)), &ended);
    Ok(())
}
