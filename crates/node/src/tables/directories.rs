//! Directories of tables: one file of the cell each, read through its consistent cache.

use super::hub::Hub;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::cell::{Cell, File};
use tidings_tables::directory::Directory;
use tidings_tables::names::TableId;
use tidings_tables::refusal::Refusal;

/// The code of what this node cannot do yet, or not now.
pub(super) const NOT_READY: &str = "tables.not_ready";

/// The longest name of a table.
const MAX_NAME: usize = 128;

/// How often a change of a directory is tried against others'.
const ATTEMPTS: usize = 32;

/// A table: the application that it belongs to, and its own name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableName {
    pub(super) app: String,
    pub(super) table: String,
}

impl TableName {
    /// The table that a caller of an application names: one of its own, or `application/table`.
    pub(super) fn parse(app: &str, text: &str) -> Result<TableName, Error> {
        let (app, table) = match text.split_once('/') {
            Some((app, table)) => (crate::principal::AppName::parse(app)?.as_str().to_owned(), table),
            None => (app.to_owned(), text),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if table.is_empty() || table.len() > MAX_NAME || table.starts_with('.') || !table.chars().all(fits) {
            let shown = crate::principal::clip(table);
            return Err(Error::new("tables.bad_name", Class::Invalid, format!("`{shown}` cannot name a table")).hint(
                format!("Use 1 to {MAX_NAME} letters, digits, dashes, underscores and dots, not beginning with a dot."),
            ));
        }
        Ok(TableName { app, table: table.to_owned() })
    }

    /// Names of applications have no dots.
    fn path(&self) -> String {
        format!("/{}.{}", self.app, self.table)
    }

    pub(super) fn of_file(name: &str) -> Option<TableName> {
        let (app, table) = name.split_once('.').filter(|(app, _)| !app.is_empty())?;
        Some(TableName { app: app.to_owned(), table: table.to_owned() })
    }
}

/// A directory as it was read.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: TableName,
    /// The file's instance and the generation of its contents.
    pub(super) version: (u64, u64),
    pub(super) directory: Arc<Directory>,
}

impl Entry {
    pub(super) fn table(&self) -> TableId {
        self.directory.table()
    }
}

/// The directories as they were read last.
#[derive(Default)]
pub(super) struct Directories {
    /// As many as there are tables.
    known: RwLock<BTreeMap<TableName, Arc<Entry>>>,
    /// Tables in whose place another of their name was found.
    replaced: Mutex<Vec<Arc<Entry>>>,
}

impl Directories {
    fn get(&self, name: &TableName) -> Option<Arc<Entry>> {
        self.known.read().get(name).cloned()
    }

    pub(super) fn find(&self, table: TableId) -> Option<Arc<Entry>> {
        self.known.read().values().find(|entry| entry.table() == table).cloned()
    }

    /// Takes what was read, unless something later is known.
    fn take(&self, name: &TableName, file: &File) -> Result<Arc<Entry>, Error> {
        let version = (file.stat().instance, file.stat().content_generation);
        if let Some(known) = self.get(name).filter(|known| known.version == version) {
            return Ok(known);
        }
        let directory = Directory::decode(file.contents()).map_err(|why| {
            Error::new("tables.bad_directory", Class::Failed, format!("the directory of a table cannot be read: {why}"))
                .hint("It is the platform's own; restore the cell from a backup.")
        })?;
        let entry = Arc::new(Entry { name: name.clone(), version, directory: Arc::new(directory) });
        let mut known = self.known.write();
        let newer = known.get(name).is_some_and(|known| known.version > version);
        if !newer {
            let before = known.insert(name.clone(), entry.clone());
            self.replaced.lock().extend(before.filter(|before| before.table() != entry.table()));
        }
        Ok(entry)
    }

    /// Forgets tables that are not there any more, those in whose place others are among them; which they were.
    pub(super) fn keep(&self, listed: &BTreeSet<TableName>) -> Vec<Arc<Entry>> {
        let mut gone = std::mem::take(&mut *self.replaced.lock());
        self.known.write().retain(|name, entry| {
            let stays = listed.contains(name);
            if !stays {
                gone.push(entry.clone());
            }
            stays
        });
        gone
    }
}

impl Hub {
    pub(super) fn the_cell(&self) -> Result<Cell, Error> {
        self.cell.borrow().clone().ok_or_else(|| {
            Error::new(NOT_READY, Class::Unreachable, "this node has no session with the cell yet")
                .hint("It begins one as soon as the cell has a master; try again in a moment.")
        })
    }

    /// A table as it is now.
    pub(super) async fn table(&self, name: &TableName) -> Result<Arc<Entry>, Error> {
        match self.the_cell()?.read(&name.path()).await? {
            Some(file) => self.directories.take(name, &file),
            None => Err(unknown(name)),
        }
    }

    /// All tables as they are now.
    pub(super) async fn tables(&self) -> Result<Vec<Arc<Entry>>, Error> {
        let cell = self.the_cell()?;
        let mut entries = Vec::new();
        for child in cell.list("/").await?.iter().flat_map(|listing| listing.iter()) {
            let Some(name) = TableName::of_file(&child.name) else { continue };
            match self.table(&name).await {
                Ok(entry) => entries.push(entry),
                Err(error) if error.class == Class::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// Makes a table.
    pub(super) async fn create_table(&self, name: &TableName, directory: &Directory) -> Result<Arc<Entry>, Error> {
        let cell = self.the_cell()?;
        let created = cell.open(&name.path()).write().create_file(directory.encode()).exclusive().await;
        match created {
            Ok(handle) => drop(handle),
            Err(error) if error.code == "cell.node_exists" => return Err(Refusal::Exists.into()),
            Err(error) => return Err(error),
        }
        self.changed.notify_one();
        self.table(name).await
    }

    /// Changes a directory, against others who do so at the same time.
    pub(super) async fn change_table<T>(
        &self,
        name: &TableName,
        mut change: impl FnMut(&mut Directory) -> Result<T, Refusal>,
    ) -> Result<(Arc<Entry>, T), Error> {
        let cell = self.the_cell()?;
        for _ in 0..ATTEMPTS {
            let entry = self.table(name).await?;
            let mut directory = (*entry.directory).clone();
            let changed = change(&mut directory)?;
            match cell.write_if(&name.path(), directory.encode(), entry.version.1).await {
                Ok(stat) => {
                    let version = (stat.instance, stat.content_generation);
                    let entry = Entry { name: name.clone(), version, directory: Arc::new(directory) };
                    self.changed.notify_one();
                    return Ok((Arc::new(entry), changed));
                }
                Err(error) if error.class == Class::Refused => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new("tables.busy", Class::Unreachable, "others change this table at the same time")
            .hint("Try again."))
    }

    /// Drops a table: whoever serves it finds out by itself.
    pub(super) async fn drop_table(&self, name: &TableName) -> Result<(), Error> {
        self.the_cell()?.delete(&name.path()).await.map_err(|error| match error.code.as_ref() {
            "cell.no_node" => unknown(name),
            _ => error,
        })?;
        self.changed.notify_one();
        Ok(())
    }
}

fn unknown(name: &TableName) -> Error {
    let refusal = Error::from(Refusal::UnknownTable);
    Error { message: format!("There is no table `{}`.", name.table), ..refusal }
        .hint("`tidings table ls` lists them; `tidings table create` makes one.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_of_its_callers_application_or_of_one_that_is_named() {
        let name = |app: &str, table: &str| TableName { app: app.to_owned(), table: table.to_owned() };
        assert_eq!(TableName::parse("shop", "prices").unwrap(), name("shop", "prices"));
        assert_eq!(TableName::parse("shop", "blog/posts.2").unwrap(), name("blog", "posts.2"));
        assert_eq!(TableName::of_file("blog.posts.2"), Some(name("blog", "posts.2")));
        assert_eq!((TableName::of_file(".key"), TableName::of_file("x")), (None, None));
        for bad in ["", ".x", "a b", "a/b/c", "ä", &"a".repeat(129)] {
            assert_eq!(TableName::parse("shop", bad).unwrap_err().code, "tables.bad_name", "{bad}");
        }
    }
}
