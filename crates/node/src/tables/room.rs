//! Room for the directories of tables: all of them are files of one directory of the cell, which takes so many files and bytes, and
//! is listed in one answer.
//!
//! Applications share it. Whoever makes a table, or lets a directory grow, is held to bounds below the cell's; what is there goes on
//! whatever they say: owners acquire it, and it is dropped, for which the rest is kept.

use super::directories::{Entry, TableName};
use super::dropping;
use super::hub::Hub;
use tidings_base::{Class, Error};
use tidings_tables::directory::Directory;
use tokio::sync::MutexGuard;

/// Tables of one application, and of all: the cell takes 8,192 files, a table that is being dropped has two. Those that were dropped
/// count as long as their marks are there.
pub(super) const TABLES_OF_APP: usize = 1_024;
const TABLES: usize = 4_096;
/// Bytes of the listing of all tables: the cell's answers have a megabyte, of which marks beside all of them may take the other half.
const LISTING: usize = 512 << 10;
/// What a file takes of a listing besides its name, at most.
const STAT: usize = 96;
/// Bytes of the directories of one application, and of all: the cell takes 256 MiB.
const BYTES_OF_APP: u64 = 16 << 20;
const BYTES: u64 = 128 << 20;

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    files: usize,
    bytes: u64,
}

impl Share {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// What is taken: by one application, and by all.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    own: Share,
    all: Share,
    listing: usize,
}

impl Taken {
    fn add(&mut self, own: bool, name: &str, bytes: u64) {
        self.all.add(bytes);
        if own {
            self.own.add(bytes);
        }
        // A mark may be longer than the name of its table.
        self.listing += name.len().max(dropping::MARKED) + STAT;
    }

    fn grow(&mut self, bytes: u64) {
        self.own.bytes += bytes;
        self.all.bytes += bytes;
    }

    fn check_tables(&self) -> Result<(), Error> {
        if self.own.files > TABLES_OF_APP {
            return Err(too_many(format!("an application has at most {TABLES_OF_APP} tables")));
        }
        match self.all.files > TABLES || self.listing > LISTING {
            true => Err(too_many("all applications together have as many tables as there is room for".to_owned())),
            false => Ok(()),
        }
    }

    fn check_bytes(&self) -> Result<(), Error> {
        if self.own.bytes > BYTES_OF_APP {
            let most = BYTES_OF_APP >> 20;
            return Err(no_room(format!("what there is to know of an application's tables takes {most} MiB at most")));
        }
        match self.all.bytes > BYTES {
            true => Err(no_room("what there is to know of all tables takes as much as there is room for".to_owned())),
            false => Ok(()),
        }
    }
}

fn too_many(message: String) -> Error {
    Error::new("tables.too_many", Class::Refused, message)
        .hint("Drop tables that are not needed; one that was dropped counts until its records are deleted.")
}

fn no_room(message: String) -> Error {
    Error::new("tables.no_room", Class::Refused, message)
        .hint("Drop tables, join parts, or shorten rules, lists of access and declared columns.")
}

impl Hub {
    /// Waits for the turn to make a table, and refuses one for which there is no room. One at a time: the next is counted with what
    /// this one takes.
    pub(super) async fn room_for(&self, name: &TableName, bytes: usize) -> Result<MutexGuard<'_, ()>, Error> {
        let turn = self.directories.growing.lock().await;
        let mut taken = self.taken(&name.app).await?;
        taken.add(true, &name.path(), bytes as u64);
        taken.check_tables()?;
        taken.check_bytes()?;
        Ok(turn)
    }

    /// The same for a directory that is to be another one; none if that is no larger.
    pub(super) async fn room_to_grow(
        &self,
        entry: &Entry,
        directory: &Directory,
    ) -> Result<Option<MutexGuard<'_, ()>>, Error> {
        let more = directory.encode().len().saturating_sub(entry.directory.encode().len());
        if more == 0 {
            return Ok(None);
        }
        let turn = self.directories.growing.lock().await;
        let mut taken = self.taken(&entry.name.app).await?;
        taken.grow(more as u64);
        taken.check_bytes()?;
        Ok(Some(turn))
    }

    async fn taken(&self, app: &str) -> Result<Taken, Error> {
        let cell = self.the_cell()?;
        let listing = cell.list("/").await?;
        let (mut taken, mut marks) = (Taken::default(), Vec::new());
        for child in listing.iter().flat_map(|listing| listing.iter()) {
            let own = TableName::of_file(&child.name).is_some_and(|name| name.app == app);
            taken.add(own, &child.name, child.stat.length.into());
            if dropping::marked(&child.name).is_some() {
                marks.push(format!("/{}", child.name));
            }
        }
        for mark in cell.read_many(&marks).await?.into_iter().flatten() {
            if dropping::said(mark.contents()).1.is_some_and(|whose| whose == app) {
                taken.own.add(0);
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use tidings_wire::v1;

    /// The cell's own bounds: children of a directory, bytes of a listing and of an application.
    const CELL: (usize, usize, u64) = (8_192, 1 << 20, 256 << 20);

    fn code(checked: Result<(), Error>) -> Option<String> {
        checked.err().map(|error| error.code.into_owned())
    }

    #[test]
    fn tables_are_bounded_for_one_application_and_for_all() {
        let (many, room) = (Some("tables.too_many".to_owned()), Some("tables.no_room".to_owned()));
        let taken = |own: usize, others: usize, name: &str, bytes: u64| {
            let mut taken = Taken::default();
            (0..own).for_each(|_| taken.add(true, name, bytes));
            (0..others).for_each(|_| taken.add(false, name, bytes));
            (code(taken.check_tables()), code(taken.check_bytes()))
        };
        assert_eq!(taken(1_024, 3_072, "shop.t", 1 << 10), (None, None));
        assert_eq!(taken(1_025, 0, "shop.t", 1 << 10), (many.clone(), None));
        assert_eq!(taken(1, 4_096, "shop.t", 1 << 10), (many.clone(), None));
        let long = "a".repeat(63 + 1 + 128);
        assert_eq!(taken(1_000, 800, &long, 0), (None, None));
        assert_eq!(taken(1, 1_900, &long, 0), (many, None));
        assert_eq!(taken(64, 0, "shop.t", 256 << 10), (None, None));
        assert_eq!(taken(65, 0, "shop.t", 256 << 10), (None, room.clone()));
        assert_eq!(taken(1, 512, "shop.t", 256 << 10), (None, room));
    }

    /// All tables that there may be are listed, dropped and acquired.
    #[test]
    fn what_is_there_goes_on_within_the_cells_bounds() {
        let stat = v1::NodeStat {
            instance: u64::MAX,
            content_generation: u64::MAX,
            lock_generation: u64::MAX,
            acl_generation: u64::MAX,
            checksum: u64::MAX,
            length: u32::MAX,
            acl: Some(v1::NodeAcl::default()),
            lock_holders: u32::MAX,
            lock_delayed: true,
            ..Default::default()
        };
        let name = "a".repeat(192);
        let child = v1::Child { name: name.clone(), stat: Some(stat) };
        assert!(child.encoded_len() + 4 <= name.len() + STAT, "{}", child.encoded_len());
        let (children, listing, bytes) = CELL;
        assert!(2 * TABLES <= children && BYTES <= bytes / 2);
        // At the worst all are being dropped.
        let marks = TABLES * (dropping::MARKED + STAT);
        assert!(LISTING + marks <= listing, "{}", LISTING + marks);
    }
}
