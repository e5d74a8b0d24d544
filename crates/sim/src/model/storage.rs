//! What a replica of the model keeps on disk: the real log, the vote, and a picture of the state.
//!
//! Writing is immediate, durability is not: whoever changes something here waits for the disk and then calls
//! [`Storage::flush`]. Between the two, [`Storage::durable`] lags behind [`Storage::last`].

use crate::kernel::NoStart;
use crate::mutant::Mutant;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tidings_base::NodeId;
use tidings_base::disk::Disk;
use tidings_log::{Log, OpenError, Options, SmallFile, SmallFileError, TroubleKind};

/// Small segments, so that simulated hours see many of them.
const SEGMENT_BYTES: u32 = 32 << 10;

/// What the small files hold.
const BALLOT_TAG: u32 = 1;
const PICTURE_TAG: u32 = 2;

/// The most bytes read from the log at once when it is opened.
const READ_BYTES: usize = 1 << 20;

/// Term and vote, and whether this replica may vote at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ballot {
    /// The latest term seen.
    pub term: u64,
    /// Who got the vote of that term.
    pub voted: Option<NodeId>,
    /// The disk is new and has not caught up: no votes, and acknowledgements do not count.
    pub learner: bool,
}

/// A picture of the state at a position of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Term and index of its last entry; zero for none.
    pub last: (u64, u64),
    /// The state's bytes.
    pub bytes: Bytes,
}

/// The storage of one replica.
pub struct Storage {
    log: Log,
    ballot_file: SmallFile,
    picture_file: SmallFile,
    ballot: Ballot,
    ballot_dirty: bool,
    log_dirty: bool,
    picture: Picture,
    /// The entries of the log again, from `first` on, so that reading costs nothing.
    entries: VecDeque<(u64, Bytes)>,
    first: u64,
    durable: u64,
    mutant: Option<Mutant>,
}

impl Storage {
    /// Opens what is on the disk. `new_disk` says that an earlier disk of this replica is gone.
    pub fn open(disk: Arc<dyn Disk>, new_disk: bool, mutant: Option<Mutant>) -> Result<Storage, NoStart> {
        let ballot_file = SmallFile::new(disk.clone(), "ballot", BALLOT_TAG);
        let picture_file = SmallFile::new(disk.clone(), "picture", PICTURE_TAG);
        let ballot = match ballot_file.read().map_err(no_file)? {
            Some(bytes) => decode_ballot(bytes).ok_or_else(|| NoStart::Damaged("ballot: no ballot".into()))?,
            None => Ballot { learner: new_disk && mutant != Some(Mutant::HastyRejoin), ..Ballot::default() },
        };
        let picture = match picture_file.read().map_err(no_file)? {
            Some(bytes) => decode_picture(bytes).ok_or_else(|| NoStart::Damaged("picture: no picture".into()))?,
            None => Picture::default(),
        };
        let options = Options { segment_bytes: SEGMENT_BYTES, cache_bytes: 0, ..Options::default() };
        let (log, _) = Log::open(disk, options).map_err(no_log)?;
        let mut storage = Storage {
            log,
            ballot_file,
            picture_file,
            ballot,
            ballot_dirty: true,
            log_dirty: true,
            picture,
            entries: VecDeque::new(),
            first: 1,
            durable: 0,
            mutant,
        };
        storage.load_entries().map_err(|e| NoStart::Failed(e.to_string()))?;
        Ok(storage)
    }

    fn load_entries(&mut self) -> io::Result<()> {
        let (term, index) = self.picture.last;
        let (first, next) = (self.log.first(), self.log.next());
        let fits = first <= index + 1 && index < next;
        self.first = first;
        let mut from = first;
        while fits && from < next {
            let records = self.log.read(from, next, READ_BYTES)?;
            if records.is_empty() {
                return Err(io::Error::other(format!("the log ends at {from} before its own end at {next}")));
            }
            from += records.len() as u64;
            for (_, record) in records {
                self.entries.push_back(decode_record(record)?);
            }
        }
        let agrees = index < first || self.term_at(index) == Some(term);
        if !fits || !agrees {
            // The picture was made durable, the log behind it was not: the picture wins.
            self.entries.clear();
            self.log.reset(index + 1)?;
            self.first = index + 1;
        }
        Ok(())
    }

    /// Term, vote and learning.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Changes the ballot; nothing may be said on the strength of it before the next flush.
    pub fn set_ballot(&mut self, ballot: Ballot) {
        if ballot != self.ballot {
            self.ballot = ballot;
            self.ballot_dirty = self.mutant != Some(Mutant::LostVote);
        }
    }

    /// Whether the ballot has changed since the last flush.
    pub fn ballot_dirty(&self) -> bool {
        self.ballot_dirty
    }

    /// Whether anything has changed since the last flush.
    pub fn dirty(&self) -> bool {
        self.ballot_dirty || self.log_dirty
    }

    /// The index of the last entry.
    pub fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }

    /// Term and index of the last entry.
    pub fn last_entry(&self) -> (u64, u64) {
        (self.term_at(self.last()).unwrap_or(0), self.last())
    }

    /// The first index that is still there.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Up to here entries survive a power loss.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The picture of the state.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// The term of an entry, as far as it is known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == 0 {
            return Some(0);
        }
        match self.entry(index) {
            Some((term, _)) => Some(*term),
            None if index == self.picture.last.1 => Some(self.picture.last.0),
            None => None,
        }
    }

    /// One entry.
    pub fn entry(&self, index: u64) -> Option<&(u64, Bytes)> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    /// Entries from an index on, at most so many.
    pub fn entries_from(&self, index: u64, most: usize) -> Vec<(u64, Bytes)> {
        let skip = usize::try_from(index.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.entries.len());
        self.entries.range(skip..).take(most).cloned().collect()
    }

    /// Appends at the end; durable only after a flush.
    pub fn append(&mut self, entries: Vec<(u64, Bytes)>) -> io::Result<()> {
        let records: Vec<Bytes> = entries.iter().map(|(term, command)| encode_record(*term, command)).collect();
        self.log.append(self.last() + 1, &records)?;
        self.entries.extend(entries);
        self.log_dirty = true;
        if self.mutant == Some(Mutant::EarlyAcknowledgement) {
            self.durable = self.last();
        }
        Ok(())
    }

    /// Drops everything after an index.
    pub fn truncate_after(&mut self, index: u64) -> io::Result<()> {
        self.log.truncate_after(index)?;
        self.entries.truncate(usize::try_from(index + 1 - self.first).unwrap_or(0));
        self.durable = self.durable.min(index);
        self.log_dirty = true;
        Ok(())
    }

    /// Makes everything durable. The disk has had its time.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.ballot_dirty {
            self.ballot_file.replace(&encode_ballot(&self.ballot))?;
            self.ballot_dirty = false;
        }
        if self.log_dirty {
            if self.mutant != Some(Mutant::SkippedFsync) {
                self.log.sync()?;
            }
            self.log_dirty = false;
        }
        self.durable = self.last();
        Ok(())
    }

    /// Keeps a picture of the state and drops the entries it makes needless, save the last few.
    pub fn keep_picture(&mut self, picture: Picture, spare: u64) -> io::Result<()> {
        self.picture_file.replace(&encode_picture(&picture))?;
        let index = picture.last.1;
        self.picture = picture;
        self.log.purge_through(index.saturating_sub(spare))?;
        while self.first < self.log.first() {
            self.entries.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// Takes over a picture that was made elsewhere: the log begins anew behind it.
    pub fn take_picture(&mut self, picture: Picture) -> io::Result<()> {
        self.picture_file.replace(&encode_picture(&picture))?;
        let index = picture.last.1;
        self.picture = picture;
        self.log.reset(index + 1)?;
        self.entries.clear();
        self.first = index + 1;
        self.durable = index;
        self.log_dirty = true;
        Ok(())
    }
}

fn no_log(error: OpenError) -> NoStart {
    match error {
        OpenError::Refused(ref trouble) if trouble.kind != TroubleKind::Unreadable => {
            NoStart::Damaged(error.to_string())
        }
        OpenError::Refused(_) | OpenError::Disk { .. } => NoStart::Failed(error.to_string()),
    }
}

fn no_file(error: SmallFileError) -> NoStart {
    match error {
        SmallFileError::Damaged { .. } | SmallFileError::Unknown { .. } => NoStart::Damaged(error.to_string()),
        SmallFileError::Disk { .. } => NoStart::Failed(error.to_string()),
    }
}

fn encode_record(term: u64, command: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + command.len());
    out.put_u64_le(term);
    out.put_slice(command);
    out.freeze()
}

fn decode_record(mut record: Bytes) -> io::Result<(u64, Bytes)> {
    match record.try_get_u64_le() {
        Ok(term) => Ok((term, record)),
        Err(_) => Err(io::Error::other("a record is too short for its term")),
    }
}

fn encode_ballot(ballot: &Ballot) -> Bytes {
    let mut out = BytesMut::with_capacity(24);
    out.put_u64_le(ballot.term);
    out.put_u64_le(ballot.voted.map_or(u64::MAX, |node| node.0));
    out.put_u64_le(u64::from(ballot.learner));
    out.freeze()
}

fn decode_ballot(mut bytes: Bytes) -> Option<Ballot> {
    let mut number = || bytes.try_get_u64_le().ok();
    let (term, voted, learner) = (number()?, number()?, number()? != 0);
    Some(Ballot { term, voted: (voted != u64::MAX).then_some(NodeId(voted)), learner })
}

fn encode_picture(picture: &Picture) -> Bytes {
    let mut out = BytesMut::with_capacity(16 + picture.bytes.len());
    out.put_u64_le(picture.last.0);
    out.put_u64_le(picture.last.1);
    out.put_slice(&picture.bytes);
    out.freeze()
}

fn decode_picture(mut bytes: Bytes) -> Option<Picture> {
    let last = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
    Some(Picture { last, bytes })
}
