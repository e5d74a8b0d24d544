//! What a benchmark prints: the object that scripts read, and the same as a table.

use crate::commands::probe::Machine;
use crate::output;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// The whole answer of `bench`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub bench: String,
    pub machine: Machine,
    pub config: Map<String, Value>,
    pub results: Vec<Measured>,
    pub peers: Vec<Peer>,
    pub ratios: Vec<Ratio>,
}

/// One figure: the median of its repetitions and how far they lie apart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// (largest − smallest) ÷ median, over the repetitions.
    pub spread: f64,
    /// What it should be, if anything says so. Scripts find it among the ratios.
    #[serde(skip)]
    pub goal: Option<Goal>,
}

/// Another program that was measured beside ours.
#[derive(Debug, Serialize)]
pub struct Peer {
    pub name: String,
    pub version: String,
    pub results: Vec<Measured>,
}

/// Two figures compared; with a goal, how far it is met (1 or more: met).
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub name: String,
    pub ratio: f64,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// From one to the other.
    Within(f64, f64),
}

impl Goal {
    /// How far a figure meets it: 1 or more if it does. A goal of none at all is met by none.
    fn met_by(self, value: f64) -> f64 {
        match self {
            Goal::AtMost(most) if value == 0.0 || most == 0.0 => f64::from(u8::from(value <= most)),
            Goal::AtMost(most) => most / value,
            Goal::AtLeast(least) => value / least,
            Goal::Within(least, most) => Goal::AtLeast(least).met_by(value).min(Goal::AtMost(most).met_by(value)),
        }
    }
}

/// What a table shows beside a figure without a goal.
const NO_GOAL: &str = "none";

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtLeast(least) => write!(f, "≥ {}", rounded(*least)),
            Goal::AtMost(most) => write!(f, "≤ {}", rounded(*most)),
            Goal::Within(least, most) => write!(f, "{} to {}", rounded(*least), rounded(*most)),
        }
    }
}

/// The figures of one run, as they come in.
#[derive(Debug, Default)]
pub struct Figures {
    pub results: Vec<Measured>,
    pub ratios: Vec<Ratio>,
    pub peers: Vec<Peer>,
}

impl Figures {
    /// Adds a figure from its repetitions, of which there is at least one.
    pub fn add(&mut self, name: &str, unit: &'static str, goal: Option<Goal>, repetitions: &[f64]) {
        let measured = Measured { goal, ..summary(name, unit, repetitions) };
        eprintln!("  {name}: {}", shown(&measured));
        if let Some(goal) = goal {
            let words = match goal {
                Goal::AtLeast(least) => format!("{name} / goal of at least {least}"),
                Goal::AtMost(most) => format!("goal of at most {most} / {name}"),
                Goal::Within(least, most) => format!("goal of {least} to {most}, {name}"),
            };
            self.ratios.push(Ratio { name: words, ratio: rounded(goal.met_by(measured.value)) });
        }
        self.results.push(measured);
    }
}

/// The middle one of at least one.
pub fn median(repetitions: &[f64]) -> f64 {
    let mut sorted = repetitions.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn summary(name: &str, unit: &'static str, repetitions: &[f64]) -> Measured {
    let mut sorted = repetitions.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (smallest, median, largest) = (sorted[0], median(repetitions), sorted[sorted.len() - 1]);
    let spread = if median == 0.0 { 0.0 } else { (largest - smallest) / median };
    Measured { name: name.to_owned(), value: rounded(median), unit, spread: rounded(spread), goal: None }
}

/// Three digits after the point are more than any of these figures can carry.
fn rounded(x: f64) -> f64 {
    (x * 1_000.0).round() / 1_000.0
}

fn shown(measured: &Measured) -> String {
    let value =
        if measured.value >= 100.0 { format!("{:.0}", measured.value) } else { format!("{:.3}", measured.value) };
    format!("{value} {} (spread {:.0} %)", measured.unit, measured.spread * 100.0)
}

/// A figure as a table shows it.
fn row(m: &Measured) -> [String; 5] {
    let value = if m.value >= 100.0 { format!("{:.0}", m.value) } else { format!("{:.3}", m.value) };
    let goal = m.goal.map_or_else(|| NO_GOAL.to_owned(), |goal| goal.to_string());
    [m.name.clone(), value, m.unit.to_owned(), format!("{:.0} %", m.spread * 100.0), goal]
}

/// Prints a report for people.
pub fn print(report: &Report) {
    let machine = &report.machine;
    output::line(format_args!(
        "{} · {} cores · {} MiB · {} · {} with fsync p50 {} µs · tidings {} ({})",
        machine.processor,
        machine.cores,
        machine.memory_mib,
        machine.system,
        machine.file_system,
        machine.fsync_p50_us,
        machine.tidings,
        machine.build
    ));
    output::table(["RESULT", "VALUE", "UNIT", "SPREAD", "GOAL"], report.results.iter().map(row));
    for peer in &report.peers {
        output::line(format_args!("beside it, {} {}:", peer.name, peer.version));
        output::table(["RESULT", "VALUE", "UNIT", "SPREAD", "GOAL"], peer.results.iter().map(row));
    }
    output::line(format_args!(
        "A figure whose goal is `{NO_GOAL}` is reported for comparison: nothing says what it should be."
    ));
    output::table(
        ["AGAINST THE GOAL", "RATIO"],
        report.ratios.iter().map(|r| [r.name.clone(), format!("{:.2}", r.ratio)]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_find_the_documented_keys() {
        let machine = Machine {
            processor: "p".into(),
            cores: 2,
            memory_mib: 1,
            system: "s".into(),
            file_system: "ext4".into(),
            fsync_p50_us: 1,
            tidings: "0",
            build: "optimised",
        };
        let mut figures = Figures::default();
        figures.add("writes", "1/s", None, &[1.0]);
        let Figures { results, ratios, peers } = figures;
        let report = Report { bench: "store".into(), machine, config: Map::new(), results, peers, ratios };
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&json), ["bench", "config", "machine", "peers", "ratios", "results"]);
        assert_eq!(keys(&json["results"][0]), ["name", "spread", "unit", "value"]);
    }

    #[test]
    fn a_figure_is_the_median_with_its_spread() {
        let measured = summary("writes", "1/s", &[100.0, 90.0, 120.0]);
        assert_eq!((measured.value, measured.spread), (100.0, 0.3));
        assert_eq!(summary("one", "s", &[2.0]).spread, 0.0);
    }

    #[test]
    fn a_ratio_of_one_or_more_meets_its_goal() {
        let mut figures = Figures::default();
        figures.add("writes", "1/s", Some(Goal::AtLeast(50.0)), &[100.0]);
        figures.add("memory", "B", Some(Goal::AtMost(50.0)), &[100.0]);
        assert_eq!(figures.ratios[0].ratio, 2.0);
        assert_eq!(figures.ratios[1].ratio, 0.5);
        assert_eq!([0.0, 1.0].map(|errors| Goal::AtMost(0.0).met_by(errors)), [1.0, 0.0]);
        assert_eq!([0.98, 1.0, 1.02].map(|value| Goal::Within(0.99, 1.01).met_by(value) >= 1.0), [false, true, false]);
    }

    #[test]
    fn every_figure_is_shown_with_its_goal_or_that_it_has_none() {
        let mut figures = Figures::default();
        figures.add("find", "ns", Some(Goal::AtMost(10.0)), &[8.9]);
        figures.add("hashing", "ns", None, &[3.8]);
        let shown: Vec<[String; 5]> = figures.results.iter().map(row).collect();
        assert_eq!(shown[0], ["find", "8.900", "ns", "0 %", "≤ 10"]);
        assert_eq!(shown[1][4], NO_GOAL);
    }
}
