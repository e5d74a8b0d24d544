//! What people and scripts read: tables, JSON, errors as a sentence and a hint, exit codes.

use crate::cli::Typed;
use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use tidings_base::{Class, Error};

/// Prints a line for people to standard output, without anything that a terminal would obey.
pub fn line(text: impl Display) {
    exact(plain(&text.to_string()));
}

/// A text on one line, with whatever a terminal would obey as it is written: names are anybody's.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut plain = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => plain.extend(c.escape_default()),
            false => plain.push(c),
        }
    }
    plain.into()
}

/// The same of a text that may have several lines.
fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Prints a line for programs to standard output, as it is. A reader that went away (`| head`) ends the program quietly, a
/// full disk does not: what was asked for is done, and its answer is lost.
pub fn exact(text: impl Display) {
    if let Err(unwritten) = try_exact(text) {
        unwritten.end();
    }
}

/// The same, for those who have something to do before they end.
pub fn try_exact(text: impl Display) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Unwritten)
}

/// What is asked for could not be printed.
pub struct Unwritten(io::Error);

impl Unwritten {
    /// Ends the program: in silence if nobody reads any more.
    pub fn end(self) -> ! {
        if self.0.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        let error = Error::new("cli.unwritten", Class::Failed, format!("the answer could not be written: {}", self.0))
            .hint("What was asked for may be done all the same: look before you run it again.");
        tell(&error, false);
        std::process::exit(error.class.exit_code().into());
    }
}

/// What a word says at a glance.
#[derive(Clone, Copy)]
pub enum Hue {
    Good,
    Doubtful,
    Bad,
}

/// Prints a line for people that begins with a word in the colour of what it says.
pub fn marked(hue: Hue, mark: &str, rest: impl Display) {
    exact(format_args!("{}{}", hued(hue, mark), plain(&rest.to_string())));
}

/// A text in the colour of what it says, if people read it: on a terminal, unless `NO_COLOR` is set.
fn hued(hue: Hue, text: impl Display) -> String {
    let wanted = |unset: Option<std::ffi::OsString>| unset.is_none_or(|value| value.is_empty());
    match io::stdout().is_terminal() && wanted(std::env::var_os("NO_COLOR")) {
        true => coloured(hue, text),
        false => text.to_string(),
    }
}

fn coloured(hue: Hue, text: impl Display) -> String {
    let code = match hue {
        Hue::Good => 32,
        Hue::Doubtful => 33,
        Hue::Bad => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Prints a value as JSON: indented for a terminal, one line for a pipe.
pub fn json(value: &impl Serialize) {
    let text =
        if io::stdout().is_terminal() { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    match text {
        Ok(text) => exact(text),
        Err(error) => unreachable!("what is printed has only string keys: {error}"),
    }
}

/// Prints rows under a heading, without lines between them, as wide as the terminal allows.
pub fn table<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = Table::new();
    // It is bold on terminals alone.
    let heading = heading.map(|name| Cell::new(name).add_attribute(Attribute::Bold));
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(heading);
    for row in rows {
        table.add_row(row.map(|cell| plain(&cell).into_owned()));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    exact(table.trim_fmt());
}

/// Prints the error that ended a command, and says the exit code of its class.
pub fn fail(mut error: Error, typed: &Typed) -> ExitCode {
    error.hint = typed.hint(&typed_hint(&error));
    tell(&error, typed.json);
    ExitCode::from(error.class.exit_code())
}

/// A hint as somebody who types can follow it. Those of the parts and of the client library speak to programs, which hold
/// sessions and handles and know several servers.
fn typed_hint(error: &Error) -> String {
    let words = match error.code.as_ref() {
        // It says already what to type.
        _ if error.hint.contains("`tidings ") => error.hint.as_str(),
        "store.not_leader" | "feed.not_leader" | "cell.not_master" | "placement.not_leader" | "raft.not_leader" => {
            "Try again in a moment; `tidings status` names the leaders. Give several servers to --server, separated by commas."
        }
        "placement.no_manager" | "cell.not_begun" => {
            "Look at --server; `tidings status` says who leads, and whether a majority is up."
        }
        "cell.no_node" | "cell.no_parent" => {
            "`tidings cell ls` shows what is there; `tidings cell put` makes a file, `tidings cell mkdir` a directory."
        }
        "control.too_large" | "store.too_large" | "feed.too_large" | "cli.too_large" => {
            "A value of the store and an entry of the feed have at most 1 MiB, a file of the cell 256 KiB: keep what is larger \
             elsewhere, and its name here."
        }
        "cell.closed" | "cell.poisoned" | "cell.expired" | "cell.no_session" => {
            "Run the command again: it begins a session of its own. Locks and ephemeral files of the ended one are gone."
        }
        "store.outcome_unknown"
        | "feed.outcome_unknown"
        | "control.lost"
        | "control.deadline"
        | "cell.outcome_unknown" => "It may or may not have happened: look at what is there before you run it again.",
        "placement.unexpected" | "cell.unexpected" | "control.long_answer" | "cell.bad_call" => {
            "Client and server may be of different versions: compare `tidings --version` and `tidings status`."
        }
        _ => error.hint.as_str(),
    };
    words.to_owned()
}

/// Prints an error on standard error: one sentence and a hint for people, one JSON object on a line for scripts.
pub fn tell(error: &Error, as_json: bool) {
    let Error { code, class, message, hint, .. } = error;
    let (said, advised) = (plain_lines(message), plain_lines(hint));
    let mut err = io::stderr().lock();
    // Nothing can be done about a standard error that cannot be written to.
    let _ = match as_json {
        true => writeln!(err, "{}", json!({ "code": code, "class": class.name(), "message": message, "hint": hint })),
        false if hint.is_empty() => writeln!(err, "error: {said} ({code})"),
        false => writeln!(err, "error: {said} ({code})\nhint: {advised}"),
    };
}

/// Tells people something beside the answer, on standard error.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", plain_lines(&text.to_string()));
}

/// Tells of something that happens to a command that goes on, on standard error: a line for people, an object for scripts.
pub fn event(as_json: bool, event: &str, text: impl Display) {
    match as_json {
        true => {
            let _ = writeln!(io::stderr().lock(), "{}", json!({ "event": event, "message": text.to_string() }));
        }
        false => note(text),
    }
}

/// Something that takes a `--yes`, and had none.
pub fn unconfirmed(what: impl Display, hint: &str) -> Error {
    Error::new("cli.not_confirmed", Class::Invalid, what.to_string()).hint(hint)
}

/// Something on this machine that did not work, with the operating system's reason.
pub fn broken(what: impl Display, reason: impl Display) -> Error {
    Error::new("cli.failed", Class::Failed, format!("{what}: {reason}"))
        .hint("That is what this machine says, not the server: look at the path, its permissions and the space there.")
}

/// Something that was typed and cannot be meant.
pub fn usage(message: impl Display) -> Error {
    Error::new("cli.usage", Class::Invalid, message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_printed_as_it_is_written() {
        assert_eq!(plain("prïces 1"), "prïces 1");
        assert_eq!(plain("a\nb\x1b[2J\u{9b}"), "a\\nb\\u{1b}[2J\\u{9b}");
        assert_eq!(plain_lines("a\nb\r"), "a\nb\\r");
    }

    #[test]
    fn hints_of_libraries_are_told_in_words_of_the_command_line() {
        let library =
            Error::new("placement.not_leader", Class::Unreachable, "no").hint("The library does so by itself.");
        assert!(typed_hint(&library).contains("`tidings status`"));
        let typed = library.hint("`tidings status` names all.");
        assert_eq!(typed_hint(&typed), "`tidings status` names all.");
        let other = Error::new("cell.not_empty", Class::Refused, "no").hint("Empty it.");
        assert_eq!(typed_hint(&other), "Empty it.");
        assert!(!broken("cannot read x", "no").hint.is_empty());
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(coloured(Hue::Bad, "problem"), "\x1b[31mproblem\x1b[0m");
        // Tests write to no terminal.
        if !io::stdout().is_terminal() {
            assert_eq!(hued(Hue::Bad, "problem"), "problem");
        }
    }
}
