//! Writes: blind or conditional, whole records or some of their columns.

use super::form::{self, Columns, Record};
use super::{Begun, Table, unexpected};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_predicate::{Key, Value};
use tidings_wire::v1;
use tidings_wire::v1::record_condition::Expected;
use tidings_wire::v1::record_write::Change;
use tidings_wire::v1::record_written::Outcome as Committed;
use tidings_wire::v1::tables_message::Message;

/// How often a write goes on under another id after somebody else had its own.
const FORKS: usize = 3;

/// How long after the operation before it the answer to an operation may come: the two are decided together as a rule.
const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// What is to be done to a record.
#[derive(Clone, Debug)]
pub struct Write {
    key: Key,
    what: What,
    expected: Option<u64>,
    reader: Columns,
    operation: Option<v1::RecordOperation>,
}

#[derive(Clone, Debug)]
enum What {
    Put { columns: Columns, audience: String },
    Patch { columns: Columns, remove: Vec<String> },
    Delete,
}

impl Write {
    /// Replaces a whole record.
    pub fn put<N: Into<String>>(key: impl Into<Key>, columns: impl IntoIterator<Item = (N, Value)>) -> Write {
        let columns = named(columns);
        Write::new(key, What::Put { columns, audience: String::new() })
    }

    /// Sets some columns of a record and keeps the others. A record that the writer cannot see cannot be patched.
    pub fn patch<N: Into<String>>(key: impl Into<Key>, columns: impl IntoIterator<Item = (N, Value)>) -> Write {
        Write::new(key, What::Patch { columns: named(columns), remove: Vec::new() })
    }

    /// Deletes a record.
    pub fn delete(key: impl Into<Key>) -> Write {
        Write::new(key, What::Delete)
    }

    /// The same record, for those readers alone for whom this predicate holds.
    pub fn audience(mut self, predicate: impl Into<String>) -> Write {
        if let What::Put { audience, .. } = &mut self.what {
            *audience = predicate.into();
        }
        self
    }

    /// The same patch, which takes a column away.
    pub fn remove(mut self, column: impl Into<String>) -> Write {
        if let What::Patch { remove, .. } = &mut self.what {
            remove.push(column.into());
        }
        self
    }

    fn new(key: impl Into<Key>, what: What) -> Write {
        Write { key: key.into(), what, expected: None, reader: Columns::new(), operation: None }
    }

    /// The same under a name of the caller's own (R6), rather than one of this library's: whoever repeats it later, from
    /// wherever, hears what became of it.
    pub fn operation(mut self, operation: v1::RecordOperation) -> Write {
        self.operation = Some(operation);
        self
    }

    /// The same, if the record has this version; 0 = if there is none.
    pub fn if_version(mut self, version: u64) -> Write {
        self.expected = Some(version);
        self
    }

    /// The same by a writer that says this of itself as a reader: what audiences see as `reader`. They decide whether it may patch
    /// the record, and whether a conflict shows it.
    pub fn reader(mut self, reader: Columns) -> Write {
        self.reader = reader;
        self
    }

    fn message(&self, table: &str) -> Result<v1::RecordWrite, Error> {
        let change = match &self.what {
            What::Put { columns, audience } => {
                Change::Put(v1::RecordPut { data: Some(form::data_to(columns)?), audience: audience.clone() })
            }
            What::Patch { columns, remove } => {
                Change::Patch(v1::RecordPatch { data: Some(form::data_to(columns)?), remove: remove.clone() })
            }
            What::Delete => Change::Delete(v1::RecordDelete {}),
        };
        let condition = self.expected.map(|version| v1::RecordCondition { expected: Some(Expected::Version(version)) });
        Ok(v1::RecordWrite {
            table: table.to_owned(),
            key: Some(form::key_to(self.key.clone())),
            operation: self.operation.clone(),
            condition,
            change: Some(change),
            reader: Some(form::data_to(&self.reader)?),
            ..Default::default()
        })
    }
}

fn named<N: Into<String>>(columns: impl IntoIterator<Item = (N, Value)>) -> Columns {
    columns.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is durable, as this version.
    Committed(u64),
    /// The record was not as expected; nothing was written.
    Conflict(Conflict),
}

/// Why a conditional write failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Conflict {
    /// The record is this one.
    Theirs(Record),
    /// There is no record.
    Absent,
    /// There is one that the writer may not see (R7).
    Hidden,
    /// An earlier write of this client, which this one follows, has failed.
    Dependent,
}

impl Outcome {
    /// The version that was committed; a conflict as an error.
    pub fn committed(self) -> Result<u64, Error> {
        match self {
            Outcome::Committed(version) => Ok(version),
            Outcome::Conflict(conflict) => Err(conflict.into()),
        }
    }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Error {
        let message = match &conflict {
            Conflict::Theirs(theirs) => format!("the record has version {}", theirs.version),
            Conflict::Absent => "there is no such record".to_owned(),
            Conflict::Hidden => "the record is not as expected, and not shown to this writer".to_owned(),
            Conflict::Dependent => "a write that this one follows has failed".to_owned(),
        };
        Error::new("tables.conflict", Class::Refused, message).hint("Read it again and decide anew.")
    }
}

impl TryFrom<v1::RecordWritten> for Outcome {
    type Error = Error;

    fn try_from(written: v1::RecordWritten) -> Result<Outcome, Error> {
        use v1::record_conflict::Conflict as Said;
        let conflict = match written.outcome.ok_or_else(unexpected)? {
            Committed::Version(version) => return Ok(Outcome::Committed(version)),
            Committed::Conflict(conflict) => conflict,
        };
        Ok(Outcome::Conflict(match conflict.conflict.ok_or_else(unexpected)? {
            Said::Theirs(theirs) => Conflict::Theirs(theirs.try_into()?),
            Said::Absent(_) => Conflict::Absent,
            Said::Hidden(_) => Conflict::Hidden,
            Said::Dependent(_) => Conflict::Dependent,
        }))
    }
}

impl Table {
    /// Writes, once, however often it has to be sent.
    pub async fn write(&self, write: Write) -> Result<Outcome, Error> {
        let message = write.message(&self.name)?;
        if message.operation.is_some() {
            return match self.tables.ask_again(Message::Write(message)).await? {
                Message::Written(written) => self.written(written),
                _ => Err(unexpected()),
            };
        }
        for _ in 0..FORKS {
            let begun = self.tables.operations.begin(self.name.clone(), write.key.clone()).await?;
            if let Some(Change::Put(v1::RecordPut { data: Some(data), .. })) = &message.change {
                begun.puts(data);
            }
            match self.decide(&begun, &message).await {
                Ok(Message::Written(written)) => return self.written(written),
                Ok(_) => return Err(unexpected()),
                Err(error) if error.code == "tables.forked" => begun.forked()?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::new("tables.forked", Class::Refused, "other clients use the names of this one's operations")
            .hint("Was this process cloned? Start it again."))
    }

    /// Sends an operation until it is decided. Its server waits for the one before it on the record; if that has ended and is not
    /// known there (it was refused on the way, nobody waited for it any more, or it was of another record of the same key in a
    /// partitioned table), it is sent anew, after what is still before it.
    async fn decide(&self, begun: &Begun<'_>, write: &v1::RecordWrite) -> Result<Message, Error> {
        loop {
            let operation = begun.operation();
            let after = operation.after;
            let write = v1::RecordWrite { operation: Some(operation), ..write.clone() };
            let answer = self.tables.ask_again(Message::Write(write));
            if after == 0 {
                return answer.await;
            }
            let ended = async {
                begun.has_ended(after).await;
                tokio::time::sleep(ON_ITS_WAY).await;
            };
            tokio::select! {
                answer = answer => return answer,
                () = ended => {}
            }
        }
    }

    /// R5: whatever is read later is not older than what was written, or stood in the way.
    fn written(&self, written: v1::RecordWritten) -> Result<Outcome, Error> {
        let partition = written.partition;
        let outcome = Outcome::try_from(written)?;
        let seen = match &outcome {
            Outcome::Committed(version) => *version,
            Outcome::Conflict(Conflict::Theirs(theirs)) => theirs.version,
            Outcome::Conflict(_) => 0,
        };
        if let Some(v1::PartitionRef { table, number }) = partition {
            self.tables.floors.raise(&self.name, table, [(number, seen)]);
        }
        Ok(outcome)
    }

    /// Replaces a whole record, whatever it was; the version that it has then.
    pub async fn put<N: Into<String>>(
        &self,
        key: impl Into<Key>,
        columns: impl IntoIterator<Item = (N, Value)>,
    ) -> Result<u64, Error> {
        self.write(Write::put(key, columns)).await?.committed()
    }

    /// Sets some columns of a record.
    pub async fn patch<N: Into<String>>(
        &self,
        key: impl Into<Key>,
        columns: impl IntoIterator<Item = (N, Value)>,
    ) -> Result<u64, Error> {
        self.write(Write::patch(key, columns)).await?.committed()
    }

    /// Deletes a record, whether there is one or not.
    pub async fn delete(&self, key: impl Into<Key>) -> Result<u64, Error> {
        self.write(Write::delete(key)).await?.committed()
    }
}
