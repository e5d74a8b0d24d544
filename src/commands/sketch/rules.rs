//! The file of rules of `sketch run`: read at the start, at SIGHUP, and when it has changed.

use crate::output::{broken, note};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_sketch::http::Rules;
use tidings_sketch_proxy::{Proxy, parse_rules};
use tokio::signal::unix::{SignalKind, signal};

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The longest file of rules.
const LONGEST: u64 = 1 << 20;

/// A file of rules, and what it said last.
pub struct File {
    path: PathBuf,
    said: String,
}

impl File {
    pub fn new(path: PathBuf) -> File {
        File { path, said: String::new() }
    }

    fn text(&self) -> Result<String, Error> {
        let unreadable = |why: String| {
            let what = format!("{}: {why}", self.path.display());
            Error::new("sketch.bad_rules", Class::Invalid, what).hint("Name a readable file with --rules.")
        };
        let length = std::fs::metadata(&self.path).map_err(|error| unreadable(error.to_string()))?.len();
        if length > LONGEST {
            return Err(unreadable(format!("it is longer than {LONGEST} bytes")));
        }
        std::fs::read_to_string(&self.path).map_err(|error| unreadable(error.to_string()))
    }

    /// The rules as the file says them now.
    pub fn read(&mut self) -> Result<Rules, Error> {
        self.said = self.text()?;
        parse_rules(&self.path.display().to_string(), &self.said)
    }

    /// Gives the proxy's site the file's rules at SIGHUP and when the file says something else. A bad file is refused aloud, and the
    /// old rules stay.
    pub async fn watch(mut self, proxy: &Proxy, site: usize) -> Result<Infallible, Error> {
        let mut hangup = signal(SignalKind::hangup()).map_err(|error| broken("cannot listen for signals", error))?;
        let mut unreadable = false;
        loop {
            let told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let text = self.text();
            let changed = match &text {
                Ok(text) => *text != self.said,
                // Told once: editors replace files, and so it is away for a moment.
                Err(_) => !unreadable,
            };
            unreadable = text.is_err();
            if !told && !changed {
                continue;
            }
            match self.read() {
                Ok(rules) => {
                    let generation = proxy.set_rules(site, rules);
                    note(format_args!("rules of {}: generation {generation}", self.path.display()));
                }
                Err(error) => {
                    proxy.rules_refused();
                    note(format_args!("{error}; the old rules stay"));
                }
            }
        }
    }
}
