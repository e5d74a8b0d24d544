//! Every command that people are shown has examples in its help, and each of them can be typed.

use super::Cli;
use clap::{ArgMatches, Command, CommandFactory};

/// The commands that can be run, with the words that lead to them.
fn runnable(command: &Command, words: &[String], found: &mut Vec<(Vec<String>, Command)>) {
    let below: Vec<&Command> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
    if below.is_empty() || !command.is_subcommand_required_set() {
        found.push((words.to_vec(), command.clone()));
    }
    for below in below {
        runnable(below, &[words, &[below.get_name().to_owned()]].concat(), found);
    }
}

/// The examples in a help text: what stands indented behind the word.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().skip_while(|line| !line.starts_with("Example")).skip(1);
    lines.map_while(|line| line.strip_prefix("  ").map(str::to_owned)).collect()
}

/// A line as a shell takes it apart, up to where its output goes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (None, '>' | '|') => break,
            (None, ' ') => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == c => quote = None,
            _ => word.get_or_insert_default().push(c),
        }
    }
    assert_eq!(quote, None, "a quote is left open: {line}");
    words.into_iter().chain(word).collect()
}

/// The words that led to what was matched.
fn led_to(matches: &ArgMatches) -> Vec<String> {
    let chain = std::iter::successors(matches.subcommand(), |(_, below)| below.subcommand());
    chain.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_command_has_examples_and_each_can_be_typed() {
    let mut all = Vec::new();
    runnable(&Cli::command(), &[], &mut all);
    assert!(all.len() > 50, "{} commands", all.len());
    let mut wrong = Vec::new();
    for (path, command) in &all {
        let examples = examples(command);
        let parsed = examples.iter().map(|line| (line, Cli::command().try_get_matches_from(words(line))));
        let mut shown = false;
        for (line, parsed) in parsed {
            match parsed {
                Ok(matches) => shown |= led_to(&matches) == *path,
                Err(error) => wrong.push(format!("`{line}`: {error}")),
            }
        }
        if !shown {
            wrong.push(format!("`tidings {}` has no example of itself", path.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_are_taken_apart_as_by_a_shell() {
    let line = r#"tidings table put a '{"b": 1}' "$C d" -- > x"#;
    assert_eq!(words(line), ["tidings", "table", "put", "a", r#"{"b": 1}"#, "$C d", "--"]);
}
