//! The node's data directory: who may use it, in which format, and what lies where.
//!
//! ```text
//!   <data>/FORMAT          the format's number; a newer one than ours is refused, never guessed at
//!   <data>/ENTRY           how the node entered its cluster, `found` or `join`; which: `cluster 0123456789abcdef`; and,
//!                          once both logs have begun, `begun`: an empty one is lost from then on
//!   <data>/LOCK            held while a node runs
//!   <data>/group-0/log     the agreed log of the cell, its vote and snapshots: its state is in memory
//!   <data>/group-1/log     the agreed log of the store and its vote
//!   <data>/group-1/state   the state that the log feeds
//! ```

use crate::config::Entry;
use parking_lot::Mutex;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, GroupId};
use tidings_consensus::{ClusterId, Identity};
use tidings_log::{DirLock, LockError};

/// The format that this version writes and the newest it reads.
pub const FORMAT: u32 = 1;

/// What the FORMAT file begins with, so that nobody takes another program's directory for ours.
const FORMAT_MARK: &str = "tidings-data ";

/// How often, and how long apart, a taken lock is tried again: half a second in all.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// An open data directory. Dropping it gives the lock back.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Held while what `ENTRY` says is changed: the groups learn things while the node starts.
    changing: Arc<Mutex<()>>,
    /// The kernel releases it even after SIGKILL.
    lock: DirLock,
    made: Made,
}

/// What was made when the directory was opened.
#[derive(Debug, Default)]
struct Made {
    /// Directories, innermost first.
    directories: Vec<PathBuf>,
    /// The lock's file.
    lock: bool,
    /// The directory's format: nothing else was in it.
    format: bool,
}

impl Made {
    /// Removes directories that are empty by now.
    fn take_back(&self) {
        for directory in &self.directories {
            if let Err(error) = fs::remove_dir(directory) {
                tracing::debug!(directory = %directory.display(), %error, "a directory of a refused start stays");
                return;
            }
        }
    }
}

/// A data directory that is only looked at. No node starts on it meanwhile.
#[derive(Debug)]
pub struct Look {
    _lock: Option<DirLock>,
}

/// What a directory says of the node's cluster. Those of earlier versions say nothing, or not which it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entered {
    /// How the node entered it.
    pub entry: Option<Entry>,
    /// Which it is; unknown until its members have agreed on a number, or one of them has spoken to this node.
    pub cluster: Option<ClusterId>,
    /// Whether all groups have begun their logs here: one that is empty later is lost.
    pub begun: bool,
}

const ENTRY: &str = "ENTRY";
const LOCK: &str = "LOCK";

impl Entered {
    /// What the directory at `path` says.
    pub fn read(path: &Path) -> Result<Entered, Error> {
        let file = path.join(ENTRY);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Entered::default()),
            Err(e) => return Err(cannot(&file, "read", &e)),
        };
        let mut entered = Entered::default();
        for line in text.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("found", "") => entered.entry = Some(Entry::Found),
                ("join", "") => entered.entry = Some(Entry::Join),
                ("begun", "") => entered.begun = true,
                ("cluster", digits) if digits.parse::<ClusterId>().is_ok() => entered.cluster = digits.parse().ok(),
                _ => return Err(unreadable_entry(&file)),
            }
        }
        if entered == Entered::default() {
            return Err(unreadable_entry(&file));
        }
        Ok(entered)
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let entry = match self.entry {
            Some(Entry::Found) => "found\n",
            Some(Entry::Join) => "join\n",
            None => "",
        };
        let cluster = self.cluster.map_or(String::new(), |cluster| format!("cluster {cluster}\n"));
        let begun = if self.begun { "begun\n" } else { "" };
        write_whole(path, ENTRY, &format!("{entry}{cluster}{begun}"))
    }

    /// Changes what the directory says, with `changing` held.
    fn change(path: &Path, changing: &Mutex<()>, change: impl FnOnce(&mut Entered)) -> Result<(), Error> {
        let _one_at_a_time = changing.lock();
        let mut entered = Entered::read(path)?;
        change(&mut entered);
        entered.write(path)
    }
}

fn unreadable_entry(file: &Path) -> Error {
    let message = format!("{} does not say how the node entered its cluster", file.display());
    Error::new("node.bad_format", Class::Failed, message).hint(
        "It holds `found` or `join`, `cluster` with 16 hexadecimal digits, and `begun`; restore it from a backup.",
    )
}

impl DataDir {
    /// Opens a directory, making it if it is not there.
    pub fn open(path: &Path) -> Result<DataDir, Error> {
        let mut made = Made { lock: !path.join(LOCK).exists(), ..Made::default() };
        if !path.exists() {
            let missing = path.ancestors().take_while(|place| !place.as_os_str().is_empty() && !place.exists());
            made.directories = missing.map(Path::to_owned).collect();
            let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
            created.map_err(|e| cannot(path, "create", &e)).inspect_err(|_| made.take_back())?;
            // So that the whole directory is there after a loss of power.
            for parent in holders(&made.directories) {
                let synced = File::open(parent).and_then(|dir| dir.sync_all());
                synced.map_err(|e| cannot(parent, "sync", &e)).inspect_err(|_| made.take_back())?;
            }
        }
        check_permissions(path)?;
        let lock = lock(path)?;
        match has_format(path).and_then(|has| if has { Ok(true) } else { refuse_foreign(path).map(|()| false) }) {
            Ok(has) => made.format = !has,
            Err(error) => {
                // Somebody else's directory is left as it was.
                if made.lock {
                    let _ = lock.remove(path);
                }
                made.take_back();
                return Err(error);
            }
        }
        let dir = DataDir { path: path.to_owned(), changing: Arc::default(), lock, made };
        if dir.made.format
            && let Err(error) = begin_format(path)
        {
            dir.abandon();
            return Err(error);
        }
        Ok(dir)
    }

    /// Takes back what this start has made of a new directory, unless a group has begun its log: whoever was refused leaves
    /// nothing behind.
    pub fn abandon(self) {
        let groups = [GroupId::CELL, GroupId::STORE];
        let untouched = groups.iter().all(|group| is_empty(&group_path(&self.path, *group, "log")) == Ok(true));
        if !self.made.format || !untouched {
            return;
        }
        for group in groups {
            // Without a log it holds nothing that was ever promised.
            let _ = fs::remove_dir_all(self.path.join(format!("group-{group}")));
        }
        for file in ["FORMAT", ENTRY].iter().flat_map(|name| [(*name).to_owned(), format!("{name}.new")]) {
            let _ = fs::remove_file(self.path.join(file));
        }
        if self.made.lock {
            let _ = self.lock.remove(&self.path);
        }
        self.made.take_back();
    }

    /// Checks a directory as [`DataDir::open`] does, and writes nothing.
    pub fn look(path: &Path) -> Result<Look, Error> {
        check_permissions(path)?;
        let lock = DirLock::take_to_look(path).map_err(cannot_lock)?;
        if !has_format(path)? {
            refuse_foreign(path)?;
        }
        Ok(Look { _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of a group's agreed log; made if it is not there.
    pub fn log_of(&self, group: GroupId) -> Result<PathBuf, Error> {
        self.group(group, "log")
    }

    /// The directory of a group's state; made if it is not there.
    pub fn state_of(&self, group: GroupId) -> Result<PathBuf, Error> {
        self.group(group, "state")
    }

    /// Whether no group has begun its log.
    pub fn is_new(&self) -> Result<bool, Error> {
        for group in [GroupId::CELL, GroupId::STORE] {
            if !is_empty(&self.log_of(group)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the directory says of the node's cluster.
    pub fn entered(&self) -> Result<Entered, Error> {
        Entered::read(&self.path)
    }

    /// Writes down how the node enters its cluster.
    pub fn enter(&self, entry: Entry) -> Result<(), Error> {
        Entered { entry: Some(entry), ..Entered::default() }.write(&self.path)
    }

    /// Writes down that all groups have begun their logs. Before that a crash may have left one without, which is no loss.
    pub fn begin(&self) -> Result<(), Error> {
        match self.entered()?.begun {
            true => Ok(()),
            false => Entered::change(&self.path, &self.changing, |entered| entered.begun = true),
        }
    }

    /// Which cluster the node belongs to; what it learns of that is written down here.
    pub fn identity(&self) -> Result<Identity, Error> {
        let (path, changing) = (self.path.clone(), self.changing.clone());
        Ok(Identity::new(self.entered()?.cluster, move |cluster| {
            let kept = Entered::change(&path, &changing, |entered| entered.cluster = Some(cluster));
            kept.map_err(io::Error::other)
        }))
    }

    fn group(&self, group: GroupId, what: &str) -> Result<PathBuf, Error> {
        let path = group_path(&self.path, group, what);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| cannot(&path, "create", &e))?;
        // What is durable in a directory is worth nothing if the directory itself is not.
        for made in [Some(path.as_path()), path.parent(), Some(self.path.as_path())].into_iter().flatten() {
            File::open(made).and_then(|dir| dir.sync_all()).map_err(|e| cannot(made, "sync", &e))?;
        }
        Ok(path)
    }
}

/// What to do when a log is gone.
pub const LOST_HINT: &str = "If other members hold the data, let them remove this one and add it under a new number, started \
                             with --join and an empty directory: under its old number it could undo what it promised. \
                             Otherwise restore the directory from a backup.";

/// The logs in the directory at `path` that have begun and of which nothing is left.
pub fn lost_logs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut lost = Vec::new();
    if Entered::read(path)?.begun {
        for log in [GroupId::CELL, GroupId::STORE].map(|group| group_path(path, group, "log")) {
            if is_empty(&log)? {
                lost.push(log);
            }
        }
    }
    Ok(lost)
}

fn group_path(path: &Path, group: GroupId, what: &str) -> PathBuf {
    path.join(format!("group-{group}")).join(what)
}

/// Whether a directory holds nothing, or is not there.
fn is_empty(path: &Path) -> Result<bool, Error> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(cannot(path, "read", &e)),
    }
}

fn check_permissions(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|e| cannot(path, "read", &e))?;
    if !metadata.is_dir() {
        return Err(Error::new("node.bad_data_dir", Class::Invalid, format!("{} is not a directory", path.display()))
            .hint("Name a directory with --data."));
    }
    let mode = metadata.permissions().mode();
    if mode & 0o022 != 0 {
        let message = format!("others than its owner can write to {} (mode {:03o})", path.display(), mode & 0o777);
        return Err(Error::new("node.bad_permissions", Class::Refused, message)
            .hint(format!("`chmod go-w {}`", path.display())));
    }
    Ok(())
}

/// Takes the lock. A process that was just killed may still be on its way out, so it is tried for a moment.
fn lock(path: &Path) -> Result<DirLock, Error> {
    for _ in 0..LOCK_TRIES {
        match try_lock(path) {
            Err(e) if e.code == "node.data_dir_locked" => std::thread::sleep(LOCK_PAUSE),
            taken => return taken,
        }
    }
    try_lock(path)
}

fn try_lock(path: &Path) -> Result<DirLock, Error> {
    DirLock::take(path).map_err(cannot_lock)
}

fn cannot_lock(e: LockError) -> Error {
    match e {
        LockError::Held { path, pid } => {
            let holder = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            let message = format!("the data directory {} is in use by {holder}", path.display());
            Error::new("node.data_dir_locked", Class::Refused, message)
                .hint("Stop that process, or give this one a directory of its own with --data.")
        }
        LockError::Io { path, source } => cannot(&path, "lock", &source),
    }
}

/// Whether the directory says its format, and that it is one we read.
fn has_format(path: &Path) -> Result<bool, Error> {
    let file = path.join("FORMAT");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(cannot(&file, "read", &e)),
    };
    let number = text.strip_prefix(FORMAT_MARK).and_then(|rest| rest.trim_end().parse::<u32>().ok());
    match number {
        Some(FORMAT) => Ok(true),
        Some(newer) if newer > FORMAT => {
            let message = format!(
                "{} has format {newer}, written by a newer version; this one reads up to {FORMAT}",
                path.display()
            );
            Err(Error::new("node.newer_format", Class::Refused, message)
                .hint("Run the version that wrote it, or a later one. Nothing was changed."))
        }
        _ => {
            let message = format!("{} does not say which format the directory has", file.display());
            Err(Error::new("node.bad_format", Class::Failed, message)
                .hint("If the file was damaged, restore it from a backup; `tidings doctor` looks at the rest."))
        }
    }
}

/// A directory without a format can become ours only if there is nothing else in it.
fn refuse_foreign(path: &Path) -> Result<(), Error> {
    let mut entries = fs::read_dir(path).map_err(|e| cannot(path, "read", &e))?;
    let foreign =
        entries.find_map(|entry| entry.ok().filter(|e| e.file_name() != LOCK && e.file_name() != "FORMAT.new"));
    if let Some(entry) = foreign {
        let message =
            format!("{} has no FORMAT file but is not empty: {:?} is in it", path.display(), entry.file_name());
        return Err(Error::new("node.bad_data_dir", Class::Refused, message)
            .hint("Name an empty directory, or one of a Tidings node, with --data."));
    }
    Ok(())
}

/// Where directories are entered: the one above each.
fn holders(directories: &[PathBuf]) -> impl Iterator<Item = &Path> {
    let above = directories.iter().filter_map(|directory| directory.parent());
    above.map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above })
}

/// Marks a directory as ours.
fn begin_format(path: &Path) -> Result<(), Error> {
    write_whole(path, "FORMAT", &format!("{FORMAT_MARK}{FORMAT}\n"))
}

/// Writes a small file beside its place and renames it: a crash leaves no half of it.
fn write_whole(path: &Path, name: &str, text: &str) -> Result<(), Error> {
    let (file, temporary) = (path.join(name), path.join(format!("{name}.new")));
    let written = File::create(&temporary)
        .and_then(|mut new| new.write_all(text.as_bytes()).and_then(|()| new.sync_all()))
        .and_then(|()| fs::rename(&temporary, &file))
        .and_then(|()| File::open(path)?.sync_all());
    written.map_err(|e| cannot(&file, "write", &e))
}

fn cannot(path: &Path, what: &str, e: &io::Error) -> Error {
    let shown = path.display();
    let message = format!("cannot {what} {shown}: {e}");
    match e.kind() {
        io::ErrorKind::PermissionDenied => {
            let owner = path.ancestors().find_map(|p| fs::metadata(p).ok()).map_or(0, |m| m.uid());
            let me = rustix::process::geteuid().as_raw();
            Error::new("node.bad_permissions", Class::Refused, message)
                .hint(format!("It belongs to user {owner}; this process runs as user {me}."))
        }
        io::ErrorKind::StorageFull => {
            Error::new("node.disk_full", Class::Failed, message).hint("Free some space on the disk.")
        }
        _ => Error::new("node.bad_data_dir", Class::Failed, message)
            .hint("Name a directory on a disk of this machine with --data, or look what is wrong with this one."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(result: Result<DataDir, Error>) -> String {
        result.expect_err("this directory cannot be used").code.into_owned()
    }

    #[test]
    fn a_directory_is_made_locked_and_found_again() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        let dir = DataDir::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let error = DataDir::open(&path).unwrap_err();
        assert_eq!(error.code, "node.data_dir_locked");
        assert!(error.message.contains(&format!("process {}", std::process::id())), "{error}");
        let log = dir.log_of(GroupId::STORE).unwrap();
        assert!(log.ends_with("group-1/log") && log.is_dir());
        drop(dir);
        assert!(DataDir::open(&path).unwrap().state_of(GroupId::CELL).unwrap().ends_with("group-0/state"));
    }

    /// Which are synced, so that a loss of power leaves none of a new path out.
    #[test]
    fn every_directory_that_was_made_is_entered_in_the_one_above() {
        let above = |made: &[&str]| -> Vec<PathBuf> {
            let made: Vec<PathBuf> = made.iter().map(PathBuf::from).collect();
            holders(&made).map(Path::to_owned).collect()
        };
        assert_eq!(above(&["/srv/a/b", "/srv/a"]), [PathBuf::from("/srv/a"), PathBuf::from("/srv")]);
        assert_eq!(above(&["data"]), [PathBuf::from(".")]);
        assert!(above(&[]).is_empty());
        let dir = tempfile::tempdir().unwrap();
        let opened = DataDir::open(&dir.path().join("a/b")).unwrap();
        assert_eq!(opened.made.directories, [dir.path().join("a/b"), dir.path().join("a")]);
    }

    #[test]
    fn a_start_that_is_refused_leaves_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        let dir = DataDir::open(&path).unwrap();
        dir.enter(Entry::Found).unwrap();
        assert_eq!(dir.is_new(), Ok(true));
        dir.state_of(GroupId::STORE).unwrap();
        dir.abandon();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        // What was there before stays: the directory, and everything of one that has begun.
        let empty = temp.path().join("empty");
        DirBuilder::new().mode(0o700).create(&empty).unwrap();
        DataDir::open(&empty).unwrap().abandon();
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        let dir = DataDir::open(&empty).unwrap();
        fs::write(dir.log_of(GroupId::CELL).unwrap().join("vote"), "").unwrap();
        dir.abandon();
        let dir = DataDir::open(&empty).unwrap();
        assert_eq!(dir.is_new(), Ok(false));
        dir.abandon();
        assert!(empty.join("FORMAT").exists() && empty.join("LOCK").exists());
        // Not even a lock is left in somebody else's.
        let foreign = temp.path().join("foreign");
        DirBuilder::new().mode(0o700).create(&foreign).unwrap();
        fs::write(foreign.join("letter"), "").unwrap();
        assert_eq!(code(DataDir::open(&foreign)), "node.bad_data_dir");
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    }

    #[test]
    fn a_newer_or_unreadable_format_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("data");
        drop(DataDir::open(&path).unwrap());
        for (text, expected) in
            [("tidings-data 2\n", "node.newer_format"), ("", "node.bad_format"), ("7\n", "node.bad_format")]
        {
            fs::write(path.join("FORMAT"), text).unwrap();
            assert_eq!(code(DataDir::open(&path)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_directory_keeps_how_and_which_cluster_was_entered() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("data");
        let dir = DataDir::open(&path).unwrap();
        assert_eq!(dir.entered(), Ok(Entered::default()), "a directory of an earlier version");
        let cluster = ClusterId::new(0x2f);
        for (text, entry, number, begun) in [
            ("join\n", Some(Entry::Join), None, false),
            ("found\ncluster 000000000000002f\n", Some(Entry::Found), cluster, false),
            ("found\ncluster 000000000000002f\nbegun\n", Some(Entry::Found), cluster, true),
            ("begun\n", None, None, true),
        ] {
            fs::write(path.join(ENTRY), text).unwrap();
            assert_eq!(dir.entered(), Ok(Entered { entry, cluster: number, begun }));
            dir.entered().unwrap().write(&path).unwrap();
            assert_eq!(fs::read_to_string(path.join(ENTRY)).unwrap(), text);
            assert_eq!(dir.identity().unwrap().known(), number);
        }
        for damaged in ["", "founded\n", "join\ncluster 2f\n", "found\ncluster 0000000000000000\n"] {
            fs::write(path.join(ENTRY), damaged).unwrap();
            assert_eq!(dir.entered().unwrap_err().code, "node.bad_format", "{damaged:?}");
        }
    }

    #[test]
    fn a_log_is_lost_only_after_it_has_begun() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("data");
        let dir = DataDir::open(&path).unwrap();
        dir.enter(Entry::Found).unwrap();
        assert_eq!(lost_logs(&path), Ok(Vec::new()), "a crash came between the first starts of the two groups");
        let logs = [GroupId::CELL, GroupId::STORE].map(|group| dir.log_of(group).unwrap());
        logs.iter().for_each(|log| fs::write(log.join("vote"), "").unwrap());
        dir.begin().unwrap();
        assert_eq!(lost_logs(&path), Ok(Vec::new()));
        // What the groups learn later is kept beside it.
        Entered::change(&path, &dir.changing, |entered| entered.cluster = ClusterId::new(7)).unwrap();
        assert!(dir.entered().is_ok_and(|entered| entered.begun && entered.entry == Some(Entry::Found)));
        fs::remove_file(logs[1].join("vote")).unwrap();
        assert_eq!(lost_logs(&path), Ok(vec![logs[1].clone()]));
        fs::remove_dir_all(path.join("group-0")).unwrap();
        assert_eq!(lost_logs(&path), Ok(logs.to_vec()));
    }

    #[test]
    fn other_directories_files_and_open_permissions_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().join("home");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("letter.txt"), "dear").unwrap();
        fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(code(DataDir::open(&home)), "node.bad_data_dir");
        assert_eq!(code(DataDir::open(&home.join("letter.txt"))), "node.bad_data_dir");
        let open = temp.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(code(DataDir::open(&open)), "node.bad_permissions");
    }
}
