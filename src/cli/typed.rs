//! What was typed, as far as every command's errors need to know it.

use super::{Cli, Command};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use std::path::PathBuf;
use tidings_base::{Class, Error};

/// How errors are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Typed {
    /// `--json` was given: an error is one JSON object.
    pub json: bool,
    /// ` --server … --ca …` as given: a command that a hint names needs them too.
    pub connection: String,
}

/// Reads the command line. Help, the version and mistakes in plain form end the program here; an error is one for
/// [`Typed::JSON`].
pub fn parse() -> Result<(Command, Typed), Error> {
    let parsed = numbers_may_be_negative(Cli::command()).try_get_matches().and_then(|matches| {
        let typed = Typed::of(&matches);
        Ok((Cli::from_arg_matches(&matches)?.command, typed))
    });
    parsed.map_err(|mistake| {
        let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
        if !json || is_help(mistake.kind()) {
            mistake.exit();
        }
        misuse(&mistake)
    })
}

/// The same commands, to which a negative number or duration is a value that does not fit, and not a flag that nobody knows.
fn numbers_may_be_negative(command: clap::Command) -> clap::Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| {
        let is_duration =
            arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str() == "DURATION"));
        match arg.get_action().takes_values() && !arg.is_last_set() {
            true if is_duration => arg.allow_hyphen_values(true),
            true => arg.allow_negative_numbers(true),
            false => arg,
        }
    });
    below.into_iter().fold(command, |command, name| command.mut_subcommand(name, numbers_may_be_negative))
}

fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion)
}

/// A mistake in what was typed: its first paragraph says what, the others what to type instead.
fn misuse(mistake: &clap::Error) -> Error {
    let told = mistake.render().to_string();
    let (what, instead) = told.split_once("\n\n").unwrap_or((&told, ""));
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let what = one_line(what.trim_start_matches("error: "));
    Error::new("cli.usage", Class::Invalid, what).hint(one_line(instead))
}

impl Typed {
    /// Nothing is known but that JSON is wanted.
    pub const JSON: Typed = Typed { json: true, connection: String::new() };

    fn of(matches: &ArgMatches) -> Typed {
        let mut typed = Typed::default();
        let mut level = Some(matches);
        while let Some(matches) = level {
            typed.json |= matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));
            if is_typed(matches, "server") {
                let servers: Vec<&str> =
                    matches.get_many::<String>("server").unwrap_or_default().map(|s| &**s).collect();
                typed.connection += &format!(" --server {}", quoted(&servers.join(",")));
            }
            if is_typed(matches, "ca")
                && let Some(ca) = matches.get_one::<PathBuf>("ca")
            {
                typed.connection += &format!(" --ca {}", quoted(&ca.to_string_lossy()));
            }
            level = matches.subcommand().map(|(_, below)| below);
        }
        typed
    }

    /// The hint with what the commands that it names need beside, to reach the same server.
    pub fn hint(&self, hint: &str) -> String {
        if self.connection.is_empty() || !names_a_client(hint) {
            return hint.to_owned();
        }
        format!("{hint} (Give it{} as here.)", self.connection)
    }
}

/// Given as a flag, rather than by the environment or by default.
fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches!(matches.try_contains_id(id), Ok(true)) && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Whether one of the commands in back-ticks asks a server.
fn names_a_client(hint: &str) -> bool {
    let cli = Cli::command();
    let named = hint.split("`tidings ").skip(1).filter_map(|rest| rest.split([' ', '`']).next());
    named.filter_map(|name| cli.find_subcommand(name)).any(asks_a_server)
}

fn asks_a_server(command: &clap::Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == "server") || command.get_subcommands().any(asks_a_server)
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.,:_-[]@%+=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(args: &[&str]) -> Typed {
        Typed::of(&Cli::command().try_get_matches_from(args).unwrap())
    }

    #[test]
    fn json_is_found_whatever_the_command() {
        for args in [&["tidings", "status", "--json"][..], &["tidings", "cell", "acl", "get", "/a", "--json"]] {
            assert!(typed(args).json, "{args:?}");
        }
        for args in [&["tidings", "status"][..], &["tidings", "cell", "lock", "/a", "--", "x", "--json"]] {
            assert!(!typed(args).json, "{args:?}");
        }
    }

    #[test]
    fn a_hint_that_names_a_client_command_says_how_to_reach_the_server() {
        let here = typed(&["tidings", "store", "get", "g", "r", "--server", "https://a:1", "--ca", "/c a.pem"]);
        assert_eq!(
            here.hint("`tidings status` says more."),
            "`tidings status` says more. (Give it --server https://a:1 --ca '/c a.pem' as here.)"
        );
        for other in ["`tidings doctor` says more.", "Wait a moment."] {
            assert_eq!(here.hint(other), other);
        }
        let anywhere = typed(&["tidings", "status"]);
        assert_eq!(anywhere.hint("`tidings status` says more."), "`tidings status` says more.");
    }

    #[test]
    fn a_mistake_is_one_sentence_and_what_to_type_instead() {
        let mistake = Cli::command().try_get_matches_from(["tidings", "status", "--no-such"]).unwrap_err();
        let told = misuse(&mistake);
        assert_eq!((told.code.as_ref(), told.class), ("cli.usage", Class::Invalid));
        assert_eq!(told.message, "unexpected argument '--no-such' found");
        assert!(told.hint.contains("Usage: tidings status"), "{}", told.hint);
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("https://[::1]:7400"), "https://[::1]:7400");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
