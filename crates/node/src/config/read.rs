//! Reading the file: what is wrong, where, and what was expected.

use super::{Config, bad};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidings_base::{Class, Error};

/// The largest configuration file worth reading; anything larger is some other file.
const MAX_FILE: u64 = 1 << 20;

pub(super) fn load(path: &Path) -> Result<Config, Error> {
    let shown = path.display();
    let length = fs::metadata(path).map_err(|e| unreadable(path, &e))?.len();
    if length > MAX_FILE {
        return Err(bad(format!("{shown}: {length} bytes are no configuration file")));
    }
    let text = fs::read_to_string(path).map_err(|e| unreadable(path, &e))?;
    let mut config: Config = toml::from_str(&text).map_err(|e| {
        let place = e.span().map(|span| line_and_column(&text, span.start));
        let place = place.map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
        bad(format!("{shown}{place}: {}", e.message().trim().replace('\n', ", ")))
            .hint("Unknown keys are refused; the configuration reference lists all keys and their defaults.")
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    config.resolve(base);
    Ok(config)
}

/// An error of [`Config::validate`] with the place in the file that it speaks of: that of the first key it names which is
/// there. What a flag or a default brought has no place.
pub(super) fn locate(path: &Path, mut error: Error) -> Error {
    let text = fs::read_to_string(path).unwrap_or_default();
    let place = error.message.split('`').skip(1).step_by(2).find_map(|key| line_of(&text, key));
    if let Some(line) = place.filter(|_| error.code == "node.bad_config") {
        error.message = format!("{}:{line}: {}", path.display(), error.message);
    }
    error
}

/// The line, from 1, that gives a key its value: `table.key`, or `key` before the first table.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let (table, key) = key.rsplit_once('.').unwrap_or(("", key));
    let mut here = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.starts_with('[') {
            here = line.trim_start_matches('[').split(']').next().unwrap_or_default().to_owned();
        } else if here == table && line.split_once('=').is_some_and(|(name, _)| name.trim() == key) {
            return Some(number);
        }
    }
    None
}

impl Config {
    /// Sees relative paths from the file's directory, so that a configuration means the same wherever it is read.
    fn resolve(&mut self, base: &Path) {
        let resolve = |path: &mut PathBuf| *path = base.join(&*path);
        resolve(&mut self.data);
        if let Some(tls) = &mut self.tls {
            resolve(&mut tls.certificate);
            resolve(&mut tls.key);
            tls.client_ca.iter_mut().for_each(resolve);
        }
        for issuer in &mut self.auth.issuers {
            issuer.jwks.iter_mut().for_each(resolve);
            issuer.public_key.iter_mut().for_each(resolve);
        }
        for hook in self.notify.hooks.values_mut() {
            hook.acl.iter_mut().chain(&mut hook.ca).for_each(resolve);
        }
    }
}

fn unreadable(path: &Path, e: &io::Error) -> Error {
    let shown = path.display();
    match e.kind() {
        io::ErrorKind::NotFound => {
            Error::new("node.no_config", Class::NotFound, format!("there is no configuration file {shown}"))
                .hint("Check the path, or let `tidings init DIR` write one.")
        }
        _ => bad(format!("cannot read {shown}: {e}")),
    }
}

/// The line and column of a byte, both from 1; columns count characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_its_table() {
        let text = "node = 1\n[cell]\nlease = \"1s\"\n\n[notify]   \n lease=\"2s\" # short\n";
        assert_eq!(line_of(text, "node"), Some(1));
        assert_eq!((line_of(text, "cell.lease"), line_of(text, "notify.lease")), (Some(3), Some(6)));
        assert_eq!((line_of(text, "lease"), line_of(text, "notify.renew")), (None, None));
    }

    #[test]
    fn places_count_from_one_in_characters() {
        let text = "a = 1\nß = 2\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 6), (2, 1));
        assert_eq!(line_and_column(text, 9), (2, 3));
        assert_eq!(line_and_column(text, 999), (3, 1));
    }
}
