//! How many bytes an entry of the history table takes, and how many entries are found again.
//!
//! `cargo run -p tidings-sketch --example history_memory -- 22000000 [INSERTED]`

use std::process::ExitCode;
use tidings_base::Incarnation;
use tidings_sketch::history::{History, Options};
use tidings_sketch::sigma::{Sigma, Stamp};
use tidings_sketch::sketch::{Of, Sketch, Sketching};

fn resident() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4_096)
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (Some(entries), inserted) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: history_memory ENTRIES [INSERTED]");
        return ExitCode::from(2);
    };
    let inserted = inserted.unwrap_or(entries);
    let sketching = Sketching::new([7; 32]);
    let sketch = |of, number: u64| -> Sketch { sketching.begin(of).number(number).finish() };
    let Some(before) = resident() else {
        eprintln!("the size of this process cannot be read here");
        return ExitCode::FAILURE;
    };
    let history = History::new(&Options::of(entries as usize));
    for number in 0..inserted {
        let key = sketch(Of::Request, number);
        let Some(sigma) = Sigma::new(Incarnation(1), number + 1, 0) else { return ExitCode::FAILURE };
        history.update(history.visit(&key), &key, sketch(Of::Response, number), Stamp::Ordered(sigma));
    }
    let grown = resident().unwrap_or(before) - before;
    let remembered = |number: &u64| {
        let key = sketch(Of::Request, *number);
        let entry = history.look(history.visit(&key), &key);
        entry.is_some_and(|entry| entry.sketch == sketch(Of::Response, *number))
    };
    let found = (0..inserted).filter(remembered).count();
    let (per_entry, retained) = (grown as f64 / found as f64, 100.0 * found as f64 / inserted as f64);
    println!("made for {entries}, inserted {inserted}: {per_entry:.1} B an entry found, {retained:.2} % found");
    ExitCode::SUCCESS
}
