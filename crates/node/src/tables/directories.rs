//! Directories of tables: one file of the cell each, read through its consistent cache.

use super::hub::Hub;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::cell::{Cell, File, Handle};
use tidings_tables::directory::Directory;
use tidings_tables::names::TableId;
use tidings_tables::refusal::Refusal;

/// The code of what this node cannot do yet, or not now.
pub(super) const NOT_READY: &str = "tables.not_ready";

/// The code of a directory that cannot be read.
const BAD_DIRECTORY: &str = "tables.bad_directory";

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
    pub(super) fn path(&self) -> String {
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

/// All tables that there are.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) entries: Vec<Arc<Entry>>,
    /// Also of those whose directories cannot be read: they are not gone.
    pub(super) names: BTreeSet<TableName>,
}

/// The directories as they were read last.
#[derive(Default)]
pub(super) struct Directories {
    /// As many as there are tables.
    known: RwLock<BTreeMap<TableName, Arc<Entry>>>,
    /// Tables in whose place another of their name was found.
    replaced: Mutex<Vec<Arc<Entry>>>,
    /// One at a time takes more room.
    pub(super) growing: tokio::sync::Mutex<()>,
}

/// Whether a change of a directory may be refused because that grows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// It is somebody's wish, or for a table's size.
    Bounded,
    /// The table would not be served otherwise, and it takes a few digits.
    Free,
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
            Error::new(BAD_DIRECTORY, Class::Failed, format!("the directory of a table cannot be read: {why}"))
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

    /// All tables as they are now. One that cannot be read stops nobody but itself.
    pub(super) async fn tables(&self) -> Result<Listed, Error> {
        let cell = self.the_cell()?;
        let mut listed = Listed::default();
        for child in cell.list("/").await?.iter().flat_map(|listing| listing.iter()) {
            let Some(name) = TableName::of_file(&child.name) else { continue };
            match self.table(&name).await {
                Ok(entry) => listed.entries.push(entry),
                Err(error) if error.class == Class::NotFound => continue,
                Err(error) if error.code == BAD_DIRECTORY => {
                    tracing::debug!(%error, app = name.app, table = name.table, "tables: a directory is left out");
                }
                Err(error) => return Err(error),
            }
            listed.names.insert(name);
        }
        Ok(listed)
    }

    /// Makes a table.
    pub(super) async fn create_table(&self, name: &TableName, directory: &Directory) -> Result<Arc<Entry>, Error> {
        let (cell, contents) = (self.the_cell()?, directory.encode());
        // What is there already is said to be, whether or not there is room for another one.
        if cell.stat(&name.path()).await?.is_some() {
            return Err(Refusal::Exists.into());
        }
        let turn = self.room_for(name, contents.len()).await?;
        let created = cell.open(&name.path()).write().create_file(contents).exclusive().await;
        drop(turn);
        match created {
            Ok(handle) => drop(handle),
            Err(error) if error.code == "cell.node_exists" => return Err(Refusal::Exists.into()),
            Err(error) => return Err(error),
        }
        self.changed.notify_one();
        self.table(name).await
    }

    /// Changes a directory, against others who do so at the same time.
    pub(super) async fn change_table<T, E>(
        &self,
        name: &TableName,
        growth: Growth,
        mut change: impl FnMut(&Entry, &mut Directory) -> Result<T, E>,
    ) -> Result<(Arc<Entry>, T), Error>
    where
        Error: From<E>,
    {
        for _ in 0..ATTEMPTS {
            let entry = self.table(name).await?;
            let mut directory = (*entry.directory).clone();
            let changed = change(&entry, &mut directory)?;
            let _turn = match growth {
                Growth::Bounded => self.room_to_grow(&entry, &directory).await?,
                Growth::Free => None,
            };
            match self.replace(&entry, directory).await {
                Ok(entry) => {
                    self.changed.notify_one();
                    return Ok((Arc::new(entry), changed));
                }
                // Others were quicker, or dropped it.
                Err(error) if error.code == "cell.wrong_generation" || error.class == Class::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(busy())
    }

    /// Writes another directory in the place of one that was read, if it is still the same file with the same contents:
    /// a name that was dropped and made again has another table, whose generations begin anew.
    async fn replace(&self, entry: &Entry, directory: Directory) -> Result<Entry, Error> {
        let file = self.opened_file(entry).await?;
        let stat = file.set_contents(directory.encode(), Some(entry.version.1)).await?;
        let version = (stat.instance, stat.content_generation);
        Ok(Entry { name: entry.name.clone(), version, directory: Arc::new(directory) })
    }

    /// The file that a directory was read from.
    async fn opened_file(&self, entry: &Entry) -> Result<Handle, Error> {
        let file = self.the_cell()?.open(&entry.name.path()).write().await?;
        match file.instance() == entry.version.0 {
            true => Ok(file),
            false => Err(unknown(&entry.name)),
        }
    }

    /// Drops a table: whoever serves it finds out by itself, and what it leaves in the store is deleted later.
    pub(super) async fn drop_table(&self, entry: &Entry) -> Result<(), Error> {
        let mut latest = self.table(&entry.name).await?;
        for _ in 0..ATTEMPTS {
            if latest.version.0 != entry.version.0 {
                return Err(unknown(&entry.name));
            }
            // First the mark: a table that is gone without one would leave its rows for ever.
            self.mark_dropped(&latest).await?;
            let dropped = async { self.opened_file(&latest).await?.delete(Some(latest.version.1)).await };
            match dropped.await {
                Ok(()) => {
                    self.changed.notify_one();
                    return Ok(());
                }
                Err(error) if error.code == "cell.no_node" => return Err(unknown(&entry.name)),
                // It has other partitions by now, which the mark does not know of.
                Err(error) if error.code == "cell.wrong_generation" => latest = self.table(&entry.name).await?,
                Err(error) => return Err(error),
            }
        }
        Err(busy())
    }
}

fn busy() -> Error {
    Error::new("tables.busy", Class::Unreachable, "others change this table at the same time").hint("Try again.")
}

fn unknown(name: &TableName) -> Error {
    let refusal = Error::from(Refusal::UnknownTable);
    Error { message: format!("There is no table `{}`.", name.table), ..refusal }
        .hint("`tidings table ls` lists them; `tidings table create` makes one.")
}

#[cfg(test)]
mod tests {
    use super::super::room;
    use super::*;
    use crate::data_dir::DataDir;
    use crate::services::NodeServices;
    use std::path::Path;
    use std::time::Duration;
    use tidings_base::LeaseNumber;
    use tidings_predicate::Packed;
    use tidings_tables::acl;
    use tidings_tables::calls::{Access, Caller};
    use tidings_tables::directory::Properties;
    use tidings_wire::v1;
    use tidings_wire::v1::cell_message::Message;

    /// A node whose hub has a session with the cell.
    async fn begun(dir: &Path) -> (NodeServices, DataDir, Arc<Hub>) {
        let (services, data) = crate::services::testing::embedded(dir).await;
        let hub = services.tables_here().unwrap().hub.clone();
        let begun = async {
            while hub.the_cell().is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), begun).await.expect("a session with the cell");
        (services, data, hub)
    }

    /// Whoever has a key of an application.
    fn maker(app: &str) -> Caller {
        let (access, principal, app) = (Access::App, format!("app:{app}/k"), app.to_owned());
        Caller { access, app, user: String::new(), principal, claims: Packed::empty(), expires: None }
    }

    fn table_of(app: &str, id: u64) -> Directory {
        Directory::create(TableId(id), &maker(app), Properties::default(), Vec::new()).unwrap()
    }

    /// A name that is dropped and made again has another table: what was decided for the first is not written into it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_late_change_does_not_reach_another_table_of_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let (services, _data, hub) = begun(dir.path()).await;
        let make = |id| table_of("shop", id);
        let name = TableName::parse("shop", "prices").unwrap();
        let first = hub.create_table(&name, &make(1)).await.unwrap();
        hub.drop_table(&first).await.unwrap();
        let second = hub.create_table(&name, &make(2)).await.unwrap();
        // Of the file that is gone, with the generation of the one that is there.
        let version = (first.version.0, second.version.1);
        let stale = Entry { name: name.clone(), version, directory: first.directory.clone() };
        assert_eq!(hub.replace(&stale, make(1)).await.unwrap_err().class, Class::NotFound);
        assert_eq!(hub.drop_table(&stale).await.unwrap_err().class, Class::NotFound);
        assert_eq!(hub.table(&name).await.unwrap().table(), TableId(2));
        // A directory that nobody can read is not gone, and stops no other.
        let broken = hub.the_cell().unwrap().open("/shop.broken").write().create_file(b"{".to_vec()).await;
        drop(broken.unwrap());
        let listed = hub.tables().await.unwrap();
        assert_eq!((listed.entries.len(), listed.names.len()), (1, 2));
        drop(hub);
        crate::gate::Services::stop(&services).await;
    }

    /// Whatever one application has, others make tables, and what is there goes on.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_application_that_has_all_it_may_takes_nothing_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let (services, _data, hub) = begun(dir.path()).await;
        let cell = hub.the_cell().unwrap();
        let name = |app: &str, table: &str| TableName::parse(app, table).unwrap();
        let first = name("shop", "first");
        let entry = hub.create_table(&first, &table_of("shop", 1)).await.unwrap();
        // Files alone: what is in them counts for its bytes.
        let fill = async |kind: &str, count: usize, bytes: usize| {
            let names: Vec<String> = (0..count).map(|n| format!("/shop.{kind}{n}")).collect();
            for some in names.chunks(64) {
                let made = some.iter().map(|path| {
                    let file = cell.open(path).write().create_file(vec![b'{'; bytes]);
                    async { file.await.map(drop) }
                });
                futures::future::try_join_all(made).await.unwrap();
            }
        };
        let code = |refused: Result<Arc<Entry>, Error>| refused.unwrap_err().code.into_owned();
        let grown = async |change: fn(&mut Directory) -> Result<(), Refusal>, growth| {
            hub.change_table(&first, growth, |_, directory| change(directory)).await.map(|(entry, ())| entry)
        };
        let listed: fn(&mut Directory) -> Result<(), Refusal> = |directory| {
            let who = "user:shop/ann".to_owned();
            directory.change_acl(
                &maker("shop"),
                None,
                &[acl::Change { who, allow: acl::Right::ALL.into(), ..Default::default() }],
            )
        };
        let open: fn(&mut Directory) -> Result<(), Refusal> =
            |directory| directory.change_acl(&maker("shop"), Some(false), &[]);
        let acquired: fn(&mut Directory) -> Result<(), Refusal> =
            |directory| directory.acquire(0, LeaseNumber::new(i32::MAX as u32).unwrap()).map(drop);

        fill("t", room::TABLES_OF_APP - 2, 1).await;
        hub.create_table(&name("shop", "last"), &table_of("shop", 2)).await.unwrap();
        assert_eq!(code(hub.create_table(&name("shop", "more"), &table_of("shop", 3)).await), "tables.too_many");
        assert_eq!(code(hub.create_table(&first, &table_of("shop", 3)).await), "tables.exists");
        hub.create_table(&name("blog", "posts"), &table_of("blog", 4)).await.unwrap();
        grown(listed, Growth::Bounded).await.unwrap();

        // One that was dropped counts until its rows are gone: here that waits for files that cannot be read.
        hub.drop_table(&hub.table(&name("shop", "last")).await.unwrap()).await.unwrap();
        assert_eq!(code(hub.create_table(&name("shop", "more"), &table_of("shop", 3)).await), "tables.too_many");
        grown(open, Growth::Bounded).await.unwrap();

        // What the cell itself refuses is said, and nobody is told to try again.
        let quota = async |max_bytes| {
            let set = v1::SetQuota { path: "/".to_owned(), max_nodes: 0, max_bytes };
            cell.request(Message::SetQuota(set)).await.unwrap();
        };
        quota(1).await;
        assert_eq!(code(grown(listed, Growth::Bounded).await), "cell.quota_bytes");
        quota(0).await;

        // Bytes: what grows is refused by name, at once, and everything else goes on.
        fill("b", 64, 256 << 10).await;
        assert_eq!(code(grown(listed, Growth::Bounded).await), "tables.no_room");
        grown(acquired, Growth::Free).await.unwrap();
        assert_eq!(hub.tables().await.unwrap().entries.len(), 2);
        hub.create_table(&name("blog", "notes"), &table_of("blog", 5)).await.unwrap();
        hub.drop_table(&entry).await.unwrap();
        drop((hub, cell));
        crate::gate::Services::stop(&services).await;
    }

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
