//! The engine's checksums, held against its files before it opens them. The engine keeps a sum of every table and of
//! its list of tables, but compares neither, and where it stumbles over damage it names no file.
//!
//! ```text
//!   keyspaces/1/current     number and XXH3-128 of the list in force
//!   keyspaces/1/v7          the list: an archive; its section `tables` has each table's number and XXH3-128
//!   keyspaces/1/tables/12   a table, never written again once it is listed
//! ```

use crate::error::OpenError;
use crate::layout::{self, entries};
use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// A table as the list in force knows it.
struct Listed {
    number: u64,
    path: PathBuf,
    sum: u128,
}

/// Compares the lists of tables and the newest `limit` bytes of tables with their checksums. A list in a form that is
/// not known here is left to the engine.
pub(crate) fn verify(generation: &Path, limit: u64) -> Result<(), OpenError> {
    let _held = layout::hold(generation)?;
    let keyspaces = generation.join("keyspaces");
    let mut tables = Vec::new();
    for keyspace in entries(&keyspaces).map_err(OpenError::io(&keyspaces))? {
        tables.extend(listed(&keyspace)?);
    }
    // What a crash spoils is young.
    tables.sort_by_key(|table| Reverse(table.number));
    let mut left = limit;
    for Listed { path, sum, .. } in tables {
        let (length, found) = sum_of(&path)?;
        if found != sum {
            return Err(OpenError::damaged(&path, "the table does not match its checksum"));
        }
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    Ok(())
}

/// The tables of the list in force, once the list itself was found whole.
fn listed(keyspace: &Path) -> Result<Vec<Listed>, OpenError> {
    let current = keyspace.join("current");
    let head = match fs::read(&current) {
        Ok(head) => head,
        // It is made last: the keyspace was never finished.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(OpenError::Io { path: current, error }),
    };
    let mut fields = head.as_slice();
    let (Ok(number), Ok(sum)) = (u64_of(&mut fields), u128_of(&mut fields)) else {
        return Err(OpenError::damaged(&current, format!("it is {} bytes long instead of 25", head.len())));
    };
    let path = keyspace.join(format!("v{number}"));
    let list = fs::read(&path).map_err(|error| unreadable(&path, error))?;
    if xxh3_128(&list) != sum {
        return Err(OpenError::damaged(&path, format!("it does not match its checksum in {}", current.display())));
    }
    let tables = parse(&list, keyspace).unwrap_or_default();
    Ok(tables)
}

fn parse(list: &[u8], keyspace: &Path) -> Option<Vec<Listed>> {
    let archive = sfa::Reader::from_reader(&mut io::Cursor::new(list)).ok()?;
    let section = archive.toc().section(b"tables")?;
    let start = usize::try_from(section.pos()).ok()?;
    let end = start.checked_add(usize::try_from(section.len()).ok()?)?;
    let mut fields = list.get(start..end)?;
    let mut tables = Vec::new();
    for _level in 0..byte_of(&mut fields).ok()? {
        for _run in 0..byte_of(&mut fields).ok()? {
            for _table in 0..u32::from_le_bytes(array_of(&mut fields).ok()?) {
                let number = u64_of(&mut fields).ok()?;
                let kind = byte_of(&mut fields).ok()?;
                let sum = u128_of(&mut fields).ok()?;
                let _sequence = u64_of(&mut fields).ok()?;
                if kind != 0 {
                    return None;
                }
                tables.push(Listed { number, path: keyspace.join("tables").join(number.to_string()), sum });
            }
        }
    }
    Some(tables)
}

/// A file's length and XXH3-128.
fn sum_of(path: &Path) -> Result<(u64, u128), OpenError> {
    let sum = || {
        let mut file = File::open(path)?;
        let (mut buffer, mut hash, mut length) = (vec![0; 1 << 18], Xxh3Default::new(), 0);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok((length, hash.digest128())),
                read => {
                    hash.update(&buffer[..read]);
                    length += read as u64;
                }
            }
        }
    };
    sum().map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: io::Error) -> OpenError {
    match error.kind() {
        ErrorKind::NotFound => OpenError::damaged(path, "it is missing"),
        _ => OpenError::Io { path: path.to_owned(), error },
    }
}

fn array_of<const N: usize>(fields: &mut &[u8]) -> io::Result<[u8; N]> {
    let mut array = [0; N];
    fields.read_exact(&mut array)?;
    Ok(array)
}

fn byte_of(fields: &mut &[u8]) -> io::Result<u8> {
    Ok(u8::from_le_bytes(array_of(fields)?))
}

fn u64_of(fields: &mut &[u8]) -> io::Result<u64> {
    Ok(u64::from_le_bytes(array_of(fields)?))
}

fn u128_of(fields: &mut &[u8]) -> io::Result<u128> {
    Ok(u128::from_le_bytes(array_of(fields)?))
}
