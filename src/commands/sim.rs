//! `tidings sim`: worlds under faults, each decided by its seed.

use crate::cli::Sim;
use crate::output::{self, Hue, usage};
use crate::stopwatch::Stopwatch;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_sim::{NoSuchScenario, Options, Printing, Report, Scenario};

/// The seeds that run when none are named: enough to see that it works.
const SOME_SEEDS: RangeInclusive<u64> = 1..=20;
/// Runs all seeds there are, for as long as `--minutes` says.
const ALL_SEEDS: RangeInclusive<u64> = 1..=u64::MAX / 4;
/// How many failures are described; the rest are counted.
const SHOWN_FAILURES: usize = 10;

/// Runs what was asked for. It is an error if anything was found, and also if nothing was run.
pub fn run(args: Sim) -> Result<(), Error> {
    let scenarios = chosen(&args.scenario)?;
    let seeds = match (args.seed, args.seeds) {
        (Some(seed), _) => seed..=seed,
        (None, Some((first, last))) => first..=last,
        (None, None) if args.minutes.is_some() => ALL_SEEDS,
        (None, None) => SOME_SEEDS,
    };
    let time = args.minutes.map(|minutes| minutes * 60.0 / scenarios.len() as f64).map(seconds).transpose()?;
    let mut found = 0;
    for scenario in scenarios {
        let report = simulate(scenario, seeds.clone(), &options(&args, scenario)?, time)?;
        if report.seeds_run == 0 {
            return Err(Error::new(
                "sim.nothing_run",
                Class::Failed,
                format!("no seed of `{}` was run", scenario.name),
            )
            .hint("Give it more time with --minutes."));
        }
        if args.json {
            output::json(&report);
        } else {
            print(&report);
        }
        found += report.failures.len();
    }
    match found {
        0 => Ok(()),
        n => Err(Error::new("sim.broken", Class::Failed, format!("{n} seeds broke an invariant"))
            .hint("Each replays exactly, with the command beside it, at the same commit.")),
    }
}

fn chosen(name: &str) -> Result<Vec<&'static Scenario>, Error> {
    if name == "all" {
        return Ok(tidings_sim::scenarios().iter().collect());
    }
    let chosen = tidings_sim::scenario(name).map_err(|NoSuchScenario { name, known }| {
        usage(format_args!("there is no scenario `{name}`")).hint(format!("There are: {known}, or `all`."))
    })?;
    Ok(vec![chosen])
}

fn options(args: &Sim, scenario: &Scenario) -> Result<Options, Error> {
    let mutant = args.mutant.as_deref().map(str::parse).transpose();
    let mutant = mutant.map_err(|why: String| usage(why).hint("Leave --mutant out for a normal run."))?;
    let trace = if args.trace { Printing::Print } else { Printing::Off };
    let simulated = seconds(args.length.unwrap_or(scenario.minutes as f64) * 60.0)?;
    Ok(Options { simulated, trace, mutant })
}

fn seconds(seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| usage("that is no number of minutes").hint("Give --minutes and --length such as 0.5 or 8."))
}

fn simulate(
    scenario: &Scenario,
    seeds: RangeInclusive<u64>,
    options: &Options,
    time: Option<Duration>,
) -> Result<Report, Error> {
    let watch = Stopwatch::start();
    let has_time = || time.is_none_or(|time| watch.elapsed() < time);
    if !has_time() {
        return Ok(Report { scenario: scenario.name.to_owned(), ..Report::default() });
    }
    let bar = progress(scenario.name, &seeds, time);
    // A printed trace is one story: nothing may run beside it.
    let jobs = if options.trace == Printing::Print { 1 } else { cores() };
    let mut failures = 0;
    let report = tidings_sim::run_seeds(scenario.name, seeds, options, jobs, &mut |_, report| {
        failures += report.failures.len();
        match time {
            Some(_) => bar.set_position(watch.elapsed().as_secs()),
            None => bar.inc(1),
        }
        if failures > 0 {
            bar.set_message(format!("{failures} failed"));
        }
        has_time()
    });
    bar.finish_and_clear();
    report.map_err(usage)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A bar over seeds, or over time if that is what ends the run; on terminals only.
fn progress(name: &str, seeds: &RangeInclusive<u64>, time: Option<Duration>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (length, unit) = match time {
        Some(time) => (time.as_secs(), "s"),
        None => (seeds.end() - seeds.start() + 1, "seeds"),
    };
    let bar = ProgressBar::new(length);
    let template = format!("{name} [{{bar:40}}] {{pos}}/{{len}} {unit} {{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

fn print(report: &Report) {
    let (first, last) = report.seeds.unwrap_or_default();
    output::line(format_args!(
        "{}: {} seeds ({first}..{last}), {:.1} simulated hours, {} operations, {} faults, trace {}",
        report.scenario,
        report.seeds_run,
        report.simulated_seconds / 3_600.0,
        report.operations,
        report.fault_count(),
        report.trace_hash
    ));
    let counts = |counts: &std::collections::BTreeMap<String, u64>| {
        counts.iter().map(|(name, count)| [name.clone(), count.to_string()]).collect::<Vec<_>>()
    };
    output::table(["FAULT", "TIMES"], counts(&report.faults));
    output::table(["INVARIANT", "CHECKED"], counts(&report.invariants));
    for failure in report.failures.iter().take(SHOWN_FAILURES) {
        let what = format_args!(" seed {} at {}: {}", failure.seed, failure.at, failure.invariant);
        output::marked(Hue::Bad, "FAILED", what);
        output::line(format_args!("  {}", failure.message));
        output::line(format_args!("  {}   (commit {})", failure.replay, env!("TIDINGS_COMMIT")));
    }
    if report.failures.len() > SHOWN_FAILURES {
        output::line(format_args!("and {} more", report.failures.len() - SHOWN_FAILURES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_every_scenario_and_a_name_is_one() {
        let names = |chosen: Vec<&Scenario>| chosen.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
        let all = names(chosen("all").unwrap());
        assert!(all.contains(&"store") && all.contains(&"cell"), "{all:?}");
        for name in all {
            assert_eq!(names(chosen(name).unwrap()), [name]);
        }
        assert_eq!(chosen("none").err().unwrap().class, Class::Invalid);
    }
}
