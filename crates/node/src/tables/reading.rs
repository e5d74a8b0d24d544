//! Reads over all partitions of a table: in the order of keys, one page of an answer at a time.

use super::convert;
use super::directories::{Entry, TableName};
use super::hub::Hub;
use super::looking_up::{Eyes, Found, TOGETHER, Turns};
use super::requests::Asked;
use super::serving::{CALL, for_partition, malformed, partition_at};
use bytes::Bytes;
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_client::Answers;
use tidings_client::tables::form::{into_json, key_of, key_to, query_of};
use tidings_predicate::Key;
use tidings_predicate::query::{Ask, Query};
use tidings_tables::acl::Right;
use tidings_tables::calls::{Answer, Call, Page, Span, Visible};
use tidings_tables::directory::{Partition, Properties};
use tidings_tables::gather::{Gather, Reading};
use tidings_tables::names::PartitionId;
use tidings_tables::refusal::Refusal;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};
use tokio::time::Instant;

/// Bytes of a page: with a record of the largest size it fits a client's frame.
pub(super) const PAGE: usize = 960 << 10;

/// Bytes of one record, which is told alone: the largest with what stands around it fits a client's frame.
const RECORD: usize = (1 << 20) + (32 << 10);

/// Where a read is.
#[derive(Clone, Debug)]
enum At {
    /// Before this key, or before all.
    From(Option<Key>),
    /// Behind this one.
    After(Key),
}

/// A read over all partitions, as far as it has come.
struct Course {
    name: TableName,
    /// Whoever reads, to this table's application.
    caller: v1::TablesCaller,
    /// The same to its own: a look-up may lead back there.
    own: v1::TablesCaller,
    read: v1::RecordRead,
    ask: Ask,
    at: At,
    before: Option<Key>,
    rows: Vec<v1::Record>,
    bytes: usize,
    positions: BTreeMap<u32, u64>,
    /// The table that they are of.
    table: u64,
    until: Instant,
}

/// Whether a query is looked at as a new one, or was taken before, and goes on whatever its table has become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Now,
    Before,
}

/// What became of a course.
enum Ends {
    /// There is nothing more.
    Done,
    /// The page is full.
    Full,
}

impl Course {
    /// Whether records are the answer as they are.
    fn is_plain(&self) -> bool {
        let ask = &self.ask;
        ask.project.is_empty()
            && ask.order.is_empty()
            && ask.group_by.is_empty()
            && ask.aggregates.is_empty()
            && ask.lookup.is_none()
    }

    /// R1: finds where it begins and ends, as the table names its records.
    fn locate(&mut self, properties: &Properties) -> Result<(), Error> {
        convert::locate(properties, &mut self.read)?;
        let query = self.read.query.clone().unwrap_or_default();
        self.before = query.before.and_then(key_of);
        self.at = match self.read.cursor.is_empty() {
            true => At::From(query.from.and_then(key_of)),
            false => {
                let key = v1::RecordKey::decode(self.read.cursor.clone()).ok().and_then(key_of);
                At::After(key.ok_or(Refusal::BadCursor)?)
            }
        };
        Ok(())
    }

    /// R5: floors of a table that was dropped say nothing of its namesake, whose positions begin anew.
    fn of(&mut self, table: u64) {
        self.table = table;
        if self.read.floors_of > 0 && self.read.floors_of != table {
            self.read.floors.clear();
        }
    }

    fn span(&self) -> Span {
        match &self.at {
            At::From(from) => Span::Between(from.clone(), self.before.clone()),
            At::After(key) => Span::After(key.clone(), self.before.clone()),
        }
    }

    /// The same as a message to another node.
    fn message(&self, whole: bool) -> v1::RecordRead {
        let mut read = v1::RecordRead { whole, cursor: Bytes::new(), ..self.read.clone() };
        let query = read.query.get_or_insert_default();
        match &self.at {
            At::From(from) => query.from = from.clone().map(key_to),
            At::After(key) => read.after = Some(key_to(key.clone())),
        }
        read
    }

    /// R5: the client has seen partitions up to here, whoever has answered which piece.
    fn reached(&mut self, piece: &v1::RecordRows) {
        for at in &piece.positions {
            let seen = self.positions.entry(at.partition).or_default();
            *seen = at.position.max(*seen);
        }
    }

    /// Goes on behind a partition; whether there is anything.
    fn pass(&mut self, part: &Partition) -> bool {
        let Some(end) = &part.end else { return false };
        let ends = self.before.as_ref().is_some_and(|before| before <= end);
        self.at = At::From(Some(end.clone()));
        !ends
    }

    /// Takes a record in the form that was asked for; whether there was room for it.
    fn take(&mut self, mut record: v1::Record) -> Result<bool, Error> {
        self.shape(&mut record)?;
        let size = record.encoded_len();
        if !self.rows.is_empty() && self.bytes + size > PAGE {
            return Ok(false);
        }
        if self.read.as_json && size > RECORD {
            return Err(too_large(format!("as JSON a record has {size} bytes")));
        }
        self.bytes += size;
        if let Some(key) = record.key.clone().and_then(key_of) {
            self.at = At::After(key);
        }
        self.rows.push(record);
        Ok(true)
    }

    /// As JSON a record may be several times as large.
    fn shape(&self, record: &mut v1::Record) -> Result<(), Error> {
        match &mut record.data {
            Some(data) if self.read.as_json => into_json(data),
            _ => Ok(()),
        }
    }

    fn is_full(&self) -> bool {
        self.ask.limit.is_some_and(|limit| self.rows.len() >= limit)
    }

    /// Everything there is, in the form that was asked for, if it fits so many bytes.
    fn finish_within(mut self, most: usize) -> Result<v1::RecordRows, Error> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.iter_mut().try_for_each(|row| self.shape(row))?;
        let size: usize = rows.iter().map(v1::Record::encoded_len).sum();
        if size > most {
            return Err(too_large(format!("the answer has {size} bytes")));
        }
        self.rows = rows;
        self.finish(Ends::Done)
    }

    fn finish(self, ends: Ends) -> Result<v1::RecordRows, Error> {
        // The next page begins behind the last row of this one, whichever partition the next row is in.
        let last = self.rows.last().and_then(|row| row.key.as_ref());
        let cursor = match (ends, last) {
            (Ends::Full, Some(key)) => Bytes::from(key.encode_to_vec()),
            _ => Bytes::new(),
        };
        let positions = self.positions.into_iter();
        let positions = positions.map(|(partition, position)| v1::PartitionPosition { partition, position });
        Ok(v1::RecordRows { rows: self.rows, cursor, positions: positions.collect(), table: self.table })
    }
}

/// Pieces of a partition's answer, here or elsewhere.
enum Pieces {
    Here {
        asked: Asked,
        /// A copy's first piece, which says that there is an answer.
        first: Option<Page>,
        partition: u32,
        audiences: bool,
    },
    There(Box<Answers>),
}

impl Pieces {
    async fn next(&mut self) -> Result<Option<v1::RecordRows>, Error> {
        match self {
            Pieces::Here { first: first @ Some(_), partition, audiences, .. } => {
                Ok(first.take().map(|page| convert::page_to(*partition, page, *audiences)))
            }
            Pieces::Here { asked, partition, audiences, .. } => match asked.next().await {
                Some(Ok(Answer::Page(page))) => Ok(Some(convert::page_to(*partition, page, *audiences))),
                Some(Ok(_)) => Err(malformed()),
                Some(Err(refusal)) => Err(refusal.into()),
                None => Ok(None),
            },
            Pieces::There(answers) => match answers.next().await.transpose()? {
                Some(Body::Tables(v1::TablesMessage { message: Some(Message::Rows(rows)), .. })) => Ok(Some(rows)),
                Some(_) => Err(malformed()),
                None => Ok(None),
            },
        }
    }
}

impl Hub {
    /// Reads one record, or a page of what a query selects.
    pub(super) async fn read(
        self: &Arc<Self>,
        caller: &v1::TablesCaller,
        read: v1::RecordRead,
        taken: Taken,
    ) -> Result<v1::RecordRows, Error> {
        let name = TableName::parse(&caller.app, &read.table)?;
        if read.audiences && !owns(caller, &name) {
            return Err(Error::new(
                "tables.applications_only",
                Class::Refused,
                "audiences are told to a table's own application",
            )
            .hint("Read without them, or with that application's key."));
        }
        let ask = read.query.as_ref().map(query_of).transpose()?.unwrap_or_default();
        let mut course = Course {
            caller: convert::relative(caller, &name.app),
            own: caller.clone(),
            name,
            ask,
            at: At::From(None),
            before: None,
            rows: Vec::new(),
            bytes: 0,
            positions: BTreeMap::new(),
            table: 0,
            until: Instant::now() + CALL,
            read,
        };
        loop {
            match self.readable(&course).await {
                Ok(entry) => {
                    course.of(entry.table().0);
                    if taken == Taken::Now && course.read.cursor.is_empty() {
                        self.check_columns(&course.ask, &entry.directory.properties)?;
                    }
                    break course.locate(&entry.directory.properties)?;
                }
                Err(error) => self.again(error, course.until).await?,
            }
        }
        if course.read.key.is_some() {
            self.read_one(&mut course).await?;
            return course.finish_within(RECORD);
        }
        if course.is_plain() {
            let ends = self.read_plain(&mut course).await?;
            return course.finish(ends);
        }
        self.read_computed(&mut course).await?;
        course.finish_within(PAGE)
    }

    /// Refuses a query that names a column which its table can never have.
    fn check_columns(&self, ask: &Ask, properties: &Properties) -> Result<(), Error> {
        let dialect = self.strict_dialect(properties);
        match dialect.closed {
            true => Ok(Query::compile(ask, &dialect).map(drop)?),
            false => Ok(()),
        }
    }

    async fn read_one(self: &Arc<Self>, course: &mut Course) -> Result<(), Error> {
        let key = convert::key(&course.read.key)?;
        loop {
            let attempt = async {
                let entry = self.readable(course).await?;
                let part = partition_at(&entry, &key)?.number;
                let partition = entry.directory.partition_id(part);
                self.pieces(course, partition, Span::Only(key.clone()), false).await?.next().await
            };
            match attempt.await {
                Ok(piece) => {
                    let rows = piece.unwrap_or_default();
                    course.reached(&rows);
                    course.rows = rows.rows;
                    return Ok(());
                }
                Err(error) => self.again(error, course.until).await?,
            }
        }
    }

    /// Records as they are, partition after partition, until the page is full.
    async fn read_plain(self: &Arc<Self>, course: &mut Course) -> Result<Ends, Error> {
        loop {
            match self.plain_partition(course).await {
                Ok(Some(ends)) => return Ok(ends),
                Ok(None) => {}
                // What came before it stays: the rest is read from whoever has it now.
                Err(error) => self.again(error, course.until).await?,
            }
        }
    }

    async fn plain_partition(self: &Arc<Self>, course: &mut Course) -> Result<Option<Ends>, Error> {
        let (part, partition) = self.next_partition(course).await?;
        let mut pieces = self.pieces(course, partition, course.span(), false).await?;
        while let Some(piece) = pieces.next().await? {
            course.reached(&piece);
            for record in piece.rows {
                if !course.take(record)? {
                    return Ok(Some(Ends::Full));
                }
                if course.is_full() {
                    return Ok(Some(Ends::Done));
                }
            }
        }
        Ok((!course.pass(&part)).then_some(Ends::Done))
    }

    /// Projections, orders, groups and look-ups: at the partition if it has everything, here otherwise.
    async fn read_computed(self: &Arc<Self>, course: &mut Course) -> Result<(), Error> {
        loop {
            match self.try_computed(course).await {
                Ok(()) => return Ok(()),
                Err(error) => self.again(error, course.until).await?,
            }
        }
    }

    async fn try_computed(self: &Arc<Self>, course: &mut Course) -> Result<(), Error> {
        let entry = self.readable(course).await?;
        let begin = course.at.clone();
        course.rows.clear();
        let from = match &begin {
            At::From(from) => from.as_ref(),
            At::After(key) => Some(key),
        };
        let alone = entry.directory.within(from, course.before.as_ref()).count() == 1;
        if alone && course.ask.lookup.is_none() {
            let (_, partition) = self.next_partition(course).await?;
            let mut pieces = self.pieces(course, partition, course.span(), true).await?;
            let mut size = 0;
            while let Some(piece) = pieces.next().await? {
                course.reached(&piece);
                size += piece.rows.iter().map(v1::Record::encoded_len).sum::<usize>();
                if size > PAGE {
                    return Err(too_large(format!("the answer has more than {PAGE} bytes")));
                }
                course.rows.extend(piece.rows);
            }
            return Ok(());
        }
        let gathered = self.gather(course, &self.dialect(&entry.directory.properties)).await;
        // Another attempt begins where this one did.
        course.at = begin;
        course.rows = gathered?;
        Ok(())
    }

    async fn gather(
        self: &Arc<Self>,
        course: &mut Course,
        dialect: &tidings_predicate::Dialect,
    ) -> Result<Vec<v1::Record>, Error> {
        let who = convert::caller_of(&course.caller);
        let data = convert::data(&course.read.reader)?;
        let reading = Reading { data, claims: who.claims, now: self.clock.now().wall };
        let mut gather = Gather::new(&course.ask, dialect, reading)?;
        let (mut found, mut turns) = (Found::default(), Turns::default());
        'partitions: loop {
            let (part, partition) = self.next_partition(course).await?;
            let mut pieces = self.pieces(course, partition, course.span(), false).await?;
            while let Some(piece) = pieces.next().await? {
                course.reached(&piece);
                let records: Vec<Visible> = piece.rows.into_iter().filter_map(convert::record_of).collect();
                for records in records.chunks(TOGETHER) {
                    let eyes = Eyes { caller: &course.own, name: &course.name, read: &course.read };
                    let named = self.look_up(eyes, (&mut gather, &mut turns), records, &mut found).await?;
                    for (record, at) in records.iter().zip(&named) {
                        gather.add(record, found.at(at))?;
                        if gather.is_full() {
                            break 'partitions;
                        }
                        turns.after(gather.steps()).await;
                    }
                }
            }
            if !course.pass(&part) {
                break;
            }
        }
        Ok(gather.finish()?.into_iter().map(convert::row_to).collect())
    }

    /// The table as it is now, if whoever reads may: looked at again before each partition.
    async fn readable(&self, course: &Course) -> Result<Arc<Entry>, Error> {
        let entry = self.table(&course.name).await?;
        entry.directory.may(&convert::caller_of(&course.caller), Right::Read)?;
        Ok(entry)
    }

    /// The partition that a read is in.
    async fn next_partition(&self, course: &Course) -> Result<(Partition, PartitionId), Error> {
        let entry = self.readable(course).await?;
        let part = match &course.at {
            At::From(None) => entry.directory.partitions.first(),
            At::From(Some(key)) | At::After(key) => entry.directory.find(key),
        };
        let part = part.ok_or(Refusal::Moved)?.clone();
        let partition = entry.directory.partition_id(part.number);
        Ok((part, partition))
    }

    /// Begins to read a partition, wherever it is served.
    async fn pieces(
        self: &Arc<Self>,
        course: &Course,
        partition: PartitionId,
        span: Span,
        whole: bool,
    ) -> Result<Pieces, Error> {
        let address = self.owner_of(partition).ok_or(Refusal::Moved)?;
        let ask = || {
            let read = convert::read_of(&course.read, partition.number, span.clone(), whole, self.deadline())?;
            Ok::<_, Error>((convert::caller_of(&course.caller), read))
        };
        let (number, audiences) = (partition.number, course.read.audiences);
        if address == self.told.address {
            let (who, read) = ask()?;
            let asked = self.ask(partition, who, Call::Read(Box::new(read))).await;
            return Ok(Pieces::Here { asked, first: None, partition: number, audiences });
        }
        if let Some((asked, first)) = self.at_copy(partition, &course.read, ask).await? {
            return Ok(Pieces::Here { asked, first: Some(first), partition: number, audiences });
        }
        let message = match &span {
            Span::Only(_) => course.read.clone(),
            _ => course.message(whole),
        };
        let body = for_partition(&course.caller, partition, Message::Read(message));
        let left = course.until.saturating_duration_since(Instant::now());
        Ok(Pieces::There(Box::new(self.peers()?.begin(&address, body, left).await?)))
    }
}

/// Whether somebody may copy a table as its application does: with the audiences of its records.
fn owns(caller: &v1::TablesCaller, name: &TableName) -> bool {
    caller.privileged && caller.app == name.app
}

pub(super) fn too_large(message: impl Into<String>) -> Error {
    Error::new("tables.answer_too_large", Class::Invalid, message)
        .hint("Add a limit, or project fewer columns; whole records come page by page.")
}
