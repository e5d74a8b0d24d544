//! The directories of tables as the cell keeps them: files that are read consistently and replaced if nobody else has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidings_predicate::Key;
use tidings_tables::calls::{Access, Caller};
use tidings_tables::directory::{Directory, Properties};
use tidings_tables::names::TableId;

/// The table that stays.
pub const LASTING: u8 = 0;
/// The table that is dropped now and then, and made again.
pub const PASSING: u8 = 1;

/// A directory as it was read.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Another number whenever it was changed or made anew.
    pub version: u64,
    /// What it says.
    pub directory: Arc<Directory>,
}

#[derive(Debug, Default)]
struct Everything {
    tables: BTreeMap<u8, Entry>,
    last: u64,
    /// Rows of the store that cannot be reached, by the last byte of their keys.
    failing: Vec<u8>,
}

/// What outlives processes.
#[derive(Clone, Debug, Default)]
pub struct Files(Arc<Mutex<Everything>>);

impl Files {
    fn with<T>(&self, act: impl FnOnce(&mut Everything) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A table as it is now.
    pub fn read(&self, table: u8) -> Option<Entry> {
        self.with(|all| all.tables.get(&table).cloned())
    }

    /// All tables.
    pub fn all(&self) -> Vec<(u8, Entry)> {
        self.with(|all| all.tables.iter().map(|(name, entry)| (*name, entry.clone())).collect())
    }

    /// Replaces a directory that nobody has changed meanwhile.
    pub fn write_if(&self, table: u8, version: u64, directory: Directory) -> bool {
        self.with(|all| {
            let last = all.last + 1;
            let Some(entry) = all.tables.get_mut(&table).filter(|entry| entry.version == version) else { return false };
            *entry = Entry { version: last, directory: Arc::new(directory) };
            all.last = last;
            true
        })
    }

    /// Makes a table, cut at these keys.
    pub fn create(&self, table: u8, cuts: Vec<Key>) {
        self.with(|all| {
            all.last += 1;
            let id = TableId((u64::from(table) << 32) | all.last);
            // Marks of deletions go while the world runs.
            let properties = Properties { access: Access::Public, tombstones_s: 60, ..Properties::default() };
            if let Ok(directory) = Directory::create(id, &maker(), properties, cuts) {
                all.tables.insert(table, Entry { version: all.last, directory: Arc::new(directory) });
            }
        });
    }

    /// Drops a table.
    pub fn drop_table(&self, table: u8) -> Option<TableId> {
        self.with(|all| all.tables.remove(&table)).map(|entry| entry.directory.table())
    }

    /// From now on rows that end with one of these bytes cannot be reached.
    pub fn fail_rows(&self, bytes: Vec<u8>) {
        self.with(|all| all.failing = bytes);
    }

    /// Whether a row cannot be reached.
    pub fn fails(&self, row: &[u8]) -> bool {
        self.with(|all| row.last().is_some_and(|last| all.failing.contains(last)))
    }
}

/// The application that makes tables.
fn maker() -> Caller {
    Caller {
        access: Access::App,
        app: "app".to_owned(),
        user: String::new(),
        principal: "app:app/maker".to_owned(),
        claims: tidings_predicate::Packed::empty(),
        expires: None,
    }
}
