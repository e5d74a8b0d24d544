//! Lists of access: a file that says who may hear of what, read again when it changes.
//!
//! ```text
//!   # Groups of principals, then patterns of objects and who may hear of what they match.
//!   @staff = user:shop/alice user:shop/bob
//!   prices/* = *
//!   inbox/alice/* = user:shop/alice @staff
//! ```
//! A principal is named as access lists of the cell name it: `user:shop` stands for all of its users, `*` for everybody.
//! What no line allows is refused. A file that cannot be read, or has a line that cannot, allows nothing and refuses nothing
//! until it is mended.

use super::pattern;
use crate::config::bad;
use crate::principal::clip;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidings_base::Error;
use tidings_notify::registrar::Verdict;

/// The largest file.
const MAX_FILE: u64 = 1 << 20;
/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A file, and what it says.
pub(super) struct AclFile {
    path: PathBuf,
    kept: Mutex<Kept>,
}

struct Kept {
    /// When the file was changed, and its length; `None` if it could not be looked at.
    seen: Option<(SystemTime, u64)>,
    /// What it says; `None` while that cannot be read.
    list: Option<Arc<List>>,
}

/// Who may hear of what.
#[derive(Debug, Default, PartialEq, Eq)]
struct List {
    rules: Vec<(String, BTreeSet<String>)>,
}

impl AclFile {
    /// Reads a file; one that cannot be read is told.
    pub(super) fn open(path: PathBuf) -> Result<AclFile, Error> {
        let (seen, list) = read(&path)?;
        Ok(AclFile { path, kept: Mutex::new(Kept { seen: Some(seen), list: Some(Arc::new(list)) }) })
    }

    /// Whether a principal may hear of an object.
    pub(super) fn judge(&self, principal: &str, object: &[u8]) -> Verdict {
        let list = self.kept.lock().list.clone();
        match list.map(|list| list.allows(principal, object)) {
            Some(true) => Verdict::Yes,
            Some(false) => Verdict::No,
            None => Verdict::Unsure,
        }
    }

    /// Reads the file again if it is another one than before.
    fn look(&self) {
        let seen = look_at(&self.path).ok();
        if seen.is_some() && seen == self.kept.lock().seen {
            return;
        }
        let before = self.kept.lock().list.is_some();
        let (seen, list) = match read(&self.path) {
            Ok((seen, list)) => {
                tracing::info!(path = %self.path.display(), "notify: a list of access was read again");
                (Some(seen), Some(Arc::new(list)))
            }
            Err(error) => {
                if before || seen.is_some() {
                    tracing::error!(%error, "notify: a list of access cannot be read; what it decides is deferred");
                }
                (seen, None)
            }
        };
        *self.kept.lock() = Kept { seen, list };
    }
}

/// Looks at files now and then, for as long as it is polled.
pub(super) async fn follow(files: &[Arc<AclFile>]) {
    loop {
        tokio::time::sleep(LOOK).await;
        for file in files {
            let file = file.clone();
            // A disk may be slow; nobody waits for it.
            let _ = tokio::task::spawn_blocking(move || file.look()).await;
        }
    }
}

fn look_at(path: &Path) -> io::Result<(SystemTime, u64)> {
    let about = std::fs::metadata(path)?;
    Ok((about.modified()?, about.len()))
}

fn read(path: &Path) -> Result<((SystemTime, u64), List), Error> {
    let shown = path.display();
    let unreadable = |e: io::Error| bad(format!("cannot read {shown}: {e}"));
    // Looked at before it is read: a change in between is seen the next time.
    let seen = look_at(path).map_err(unreadable)?;
    if seen.1 > MAX_FILE {
        return Err(bad(format!("{shown}: {} bytes are no list of access", seen.1)));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let list = List::parse(&text).map_err(|(line, what)| {
        bad(format!("{shown}:{line}: {what}"))
            .hint("A line is `pattern = who …` or `@group = who …`, or begins with `#`.")
    })?;
    Ok((seen, list))
}

impl List {
    /// The list that a text is; otherwise the line that is wrong, and why.
    fn parse(text: &str) -> Result<List, (usize, String)> {
        let mut groups: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut list = List::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, who)) = line.split_once(" = ") else {
                return Err((number, format!("`{}` names nobody", clip(line))));
            };
            let mut principals = BTreeSet::new();
            for one in who.split_whitespace() {
                match one.strip_prefix('@') {
                    None => drop(principals.insert(one.to_owned())),
                    Some(_) => match groups.get(one) {
                        Some(members) => principals.extend(members.iter().cloned()),
                        None => return Err((number, format!("there is no group `{}` above", clip(one)))),
                    },
                }
            }
            if principals.is_empty() {
                return Err((number, format!("`{}` names nobody", clip(line))));
            }
            match name.trim() {
                group if group.starts_with('@') => drop(groups.insert(group, principals)),
                pattern => list.rules.push((pattern.to_owned(), principals)),
            }
        }
        Ok(list)
    }

    fn allows(&self, principal: &str, object: &[u8]) -> bool {
        let named = |who: &BTreeSet<String>| {
            let mut prefixes = principal.match_indices('/').map(|(at, _)| &principal[..at]);
            who.contains("*") || who.contains(principal) || prefixes.any(|prefix| who.contains(prefix))
        };
        self.rules.iter().any(|(pattern, who)| pattern::matches(pattern.as_bytes(), object) && named(who))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_patterns_and_who_may_hear_of_them() {
        let list = List::parse(
            "# who hears of what\n@staff = user:shop/alice user:shop/bob\n\nprices/* = *\ninbox/alice/* = user:shop/alice\n\
             audit = @staff app:shop\n",
        )
        .unwrap();
        for (principal, object, allowed) in [
            ("user:shop/eve", "prices/1", true),
            ("user:shop/alice", "inbox/alice/1", true),
            ("user:shop/bob", "inbox/alice/1", false),
            ("user:shop/bob", "audit", true),
            ("user:shop/eve", "audit", false),
            ("app:shop/key", "audit", true),
            ("app:shopping/key", "audit", false),
            ("user:shop/eve", "elsewhere", false),
        ] {
            assert_eq!(list.allows(principal, object.as_bytes()), allowed, "{principal} {object}");
        }
        assert_eq!(List::parse("a = *\nb\n").unwrap_err().0, 2);
        assert_eq!(List::parse("a = \n").unwrap_err().0, 1);
        assert_eq!(List::parse("a = @nobody\n").unwrap_err(), (1, "there is no group `@nobody` above".into()));
    }
}
