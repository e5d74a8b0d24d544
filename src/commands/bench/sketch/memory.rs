//! What an entry of the history table takes, and how many are found again.

use crate::commands::bench::Effort;
use crate::commands::bench::report::{Figures, Goal};
use crate::commands::probe;
use tidings_base::{Class, Error, Incarnation};
use tidings_sketch::history::{History, Options};
use tidings_sketch::sigma::{Sigma, Stamp};
use tidings_sketch::sketch::{Of, Sketch, Sketching};

/// Inserts as many entries as a table is made for.
pub fn measure(effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let entries = effort.sketch.entries;
    let sketching = Sketching::new([7; 32]);
    let sketch = |of, number: u64| -> Sketch { sketching.begin(of).number(number).finish() };
    let before = resident()?;
    let history = History::new(&Options::of(usize::try_from(entries).unwrap_or(usize::MAX)));
    for number in 0..entries {
        let key = sketch(Of::Request, number);
        let sigma = Sigma::new(Incarnation(1), number + 1, 0).ok_or_else(|| failed("an order has an end"))?;
        history.update(history.visit(&key), &key, sketch(Of::Response, number), Stamp::Ordered(sigma));
    }
    let grown = resident()?.saturating_sub(before);
    let is_found = |number: &u64| {
        let key = sketch(Of::Request, *number);
        let entry = history.look(history.visit(&key), &key);
        entry.is_some_and(|entry| entry.sketch == sketch(Of::Response, *number))
    };
    let found = (0..entries).filter(is_found).count();
    if found == 0 {
        return Err(failed("nothing is found again"));
    }
    let what = format!("sketch: history table of {entries} entries");
    let share = 100.0 * found as f64 / entries as f64;
    figures.add(
        &format!("{what}: memory by entry found"),
        "B",
        Some(Goal::AtMost(45.0)),
        &[grown as f64 / found as f64],
    );
    figures.add(&format!("{what}: found again"), "%", Some(Goal::AtLeast(95.0)), &[share]);
    Ok(())
}

fn resident() -> Result<u64, Error> {
    probe::resident(std::process::id()).ok_or_else(|| failed("the size of this process cannot be read here"))
}

fn failed(message: &str) -> Error {
    Error::new("bench.failed", Class::Failed, message)
}
