//! Runs seeds of a scenario without the program: `cargo run -p tidings-sim --example simulate -- store 1 20 [minutes] [mutant]`.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant};
use tidings_sim::{Options, Printing, run_seeds};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, or: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let name = args.get(1).map_or("store", String::as_str);
    let (first, last, minutes) = (number(2, 1), number(3, 20), number(4, 20));
    let mutant = args.get(5).filter(|name| !name.is_empty()).map(|name| name.parse().expect("a mutant"));
    let trace = if args.get(6).is_some_and(|arg| arg == "trace") { Printing::Print } else { Printing::Off };
    let options = Options { simulated: Duration::from_secs(minutes * 60), mutant, trace };
    let begin = Instant::now();
    let jobs = std::env::var("JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let report = run_seeds(name, first..=last, &options, jobs, &mut |seed, report| {
        for failure in &report.failures {
            println!("seed {seed} at {}: {}: {}", failure.at, failure.invariant, failure.message);
        }
        true
    })
    .expect("a scenario");
    let took = begin.elapsed().as_secs_f64();
    println!("{}", serde_json::to_string_pretty(&report).expect("a report"));
    let hours = report.simulated_seconds / 3_600.0;
    println!(
        "{took:.1} s, {:.1} simulated hours a minute, {:.0} operations and {:.0} faults an hour, {:.0} events/s, {} red",
        hours / took * 60.0,
        report.operations as f64 / hours,
        report.fault_count() as f64 / hours,
        report.events as f64 / took,
        report.failures.len()
    );
}
