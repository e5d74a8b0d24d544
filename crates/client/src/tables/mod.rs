//! Tables, for services: records are read and written, and a query can be watched.
//!
//! ```text
//!   Tables ── create, alter, drop, list, access ──▶ any node
//!     │ table("prices")
//!     ├─ Table: write, get, read ─────────▶ any node ──▶ the owner of the partition
//!     └─ Table::watch ─▶ Watch: events ◀── one operation of the connection, opened again from its cursor when it closes
//! ```
//! Every write has an operation id of this library's own (R6): sent twice, it is done once, so that writes are tried again
//! until the client's deadline, whatever happens to connections and servers in between.
//!
//! It remembers up to where it has seen partitions (R5): reads that are `Committed` are answered by copies that are not behind
//! that, and its writes to one record take effect in the order in which they were begun.
//!
//! What it deliberately does not do: keep records. Devices that work offline have a library of their own.

pub mod csv;
mod floors;
pub mod form;
mod operations;
mod read;
pub mod shown;
mod watch;
mod write;

pub use form::{Columns, Record};
pub use operations::{Begun, Operations};
pub use read::{ReadOptions, Rows};
pub use tidings_predicate::query::{Aggregate, Ask, AskLookup, Direction};
pub use tidings_predicate::{Key, PartitionValue, Value};
pub use tidings_wire::v1::{
    PartitionInfo, PartitionSize, ReadLevel, RecordOperation, TableAccessChange, TableAcl, TableAclEntry, TableColumn,
    TableInfo, TableLevel, TablePartitionBy, TableProperties, TableQueriesReply, TableQuery, TableRight,
    TablesNodeLoad,
};
pub use watch::{Event, Watch, WatchOptions, event_of, objects};
pub use write::{Conflict, Outcome, Write};

use crate::{Client, ClientConfig, Request};
use floors::Floors;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};

/// The tables of an application. Cheap to clone.
#[derive(Clone)]
pub struct Tables {
    client: Client,
    operations: Arc<Operations>,
    floors: Arc<Floors>,
    /// Of the pauses between attempts.
    seed: u64,
}

/// One table. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    tables: Tables,
    name: Arc<str>,
}

impl Tables {
    /// The tables behind a client.
    pub fn new(client: Client) -> Result<Tables, Error> {
        let operations = Operations::new()?;
        Ok(Tables { client, seed: operations.seed(), operations: Arc::new(operations), floors: Arc::default() })
    }

    /// Connects, and fails if no server can be reached at the first attempt.
    pub async fn connect(config: ClientConfig) -> Result<Tables, Error> {
        Tables::new(Client::connect(config).await?)
    }

    /// A table by its name, whether there is one or not.
    pub fn table(&self, name: impl Into<Arc<str>>) -> Table {
        Table { tables: self.clone(), name: name.into() }
    }

    /// Makes a table.
    pub async fn create(&self, name: &str, properties: TableProperties) -> Result<TableInfo, Error> {
        self.create_cut(name, properties, []).await
    }

    /// Makes a table that is cut at these keys from the beginning.
    pub async fn create_cut(
        &self,
        name: &str,
        properties: TableProperties,
        cuts: impl IntoIterator<Item = Key>,
    ) -> Result<TableInfo, Error> {
        let cuts = cuts.into_iter().map(form::key_to).collect();
        self.info(Message::Create(v1::TableCreate { table: name.into(), properties: Some(properties), cuts })).await
    }

    /// Replaces the properties of a table, if it has this generation still; 0 = whatever it has.
    pub async fn alter(&self, name: &str, properties: TableProperties, generation: u64) -> Result<TableInfo, Error> {
        let properties = Some(properties);
        self.info(Message::Alter(v1::TableAlter { table: name.into(), properties, generation, said: None })).await
    }

    /// Replaces these properties of a table, named as the fields of [`TableProperties`], and leaves the others as they are, also
    /// as somebody makes them at the same time.
    pub async fn alter_only(
        &self,
        name: &str,
        fields: &[&str],
        properties: TableProperties,
        generation: u64,
    ) -> Result<TableInfo, Error> {
        let said = Some(v1::TableSaid { fields: fields.iter().map(|field| (*field).to_owned()).collect() });
        let properties = Some(properties);
        self.info(Message::Alter(v1::TableAlter { table: name.into(), properties, generation, said })).await
    }

    /// Cuts the partition that holds a key before that key.
    pub async fn split(&self, name: &str, at: Key) -> Result<TableInfo, Error> {
        self.info(Message::Split(v1::TableSplit { table: name.into(), at: Some(form::key_to(at)) })).await
    }

    /// Joins the partition that holds a key with the one behind it.
    pub async fn merge(&self, name: &str, at: Key) -> Result<TableInfo, Error> {
        self.info(Message::Merge(v1::TableMerge { table: name.into(), at: Some(form::key_to(at)) })).await
    }

    /// Who may do what with a table; none = its level alone decides. Told to whoever administers it.
    pub async fn access(&self, name: &str) -> Result<Option<TableAcl>, Error> {
        let access = v1::TableAccess { table: name.into(), ..Default::default() };
        Ok(self.info(Message::Access(access)).await?.acl)
    }

    /// Changes who may do what. The first change makes a list: what it does not allow is denied, but to the table's own
    /// application and to operators.
    pub async fn change_access(
        &self,
        name: &str,
        changes: impl IntoIterator<Item = TableAccessChange>,
    ) -> Result<TableInfo, Error> {
        let (table, changes) = (name.into(), changes.into_iter().collect());
        self.list_access(v1::TableAccess { table, listed: Some(true), changes }).await
    }

    /// Takes a table's list of access away: its level alone decides.
    pub async fn open_access(&self, name: &str) -> Result<TableInfo, Error> {
        let access = v1::TableAccess { table: name.into(), listed: Some(false), changes: Vec::new() };
        self.list_access(access).await
    }

    /// What is changed twice is changed once.
    async fn list_access(&self, access: v1::TableAccess) -> Result<TableInfo, Error> {
        match self.ask_again(Message::Access(access)).await? {
            Message::Info(info) => Ok(info),
            _ => Err(unexpected()),
        }
    }

    /// Drops a table with everything in it.
    pub async fn drop(&self, name: &str) -> Result<(), Error> {
        match self.ask(Message::Drop(v1::TableDrop { table: name.into() })).await? {
            Message::Dropped(_) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// All tables of the application.
    pub async fn list(&self) -> Result<Vec<TableInfo>, Error> {
        match self.ask(Message::List(v1::TableList {})).await? {
            Message::ListReply(reply) => Ok(reply.tables),
            _ => Err(unexpected()),
        }
    }

    /// A table, its partitions, and what their owners say of them.
    pub async fn stat(&self, name: &str) -> Result<TableInfo, Error> {
        self.info(Message::Stat(v1::TableStat { table: name.into() })).await
    }

    /// Live queries of a table, whichever nodes their clients are connected to. Told to whoever administers it.
    pub async fn queries(&self, name: &str) -> Result<TableQueriesReply, Error> {
        match self.ask(Message::Queries(v1::TableQueries { table: name.into(), alone: false })).await? {
            Message::QueriesReply(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    /// How Tables fares, node by node. Told to operators.
    pub async fn load(&self) -> Result<Vec<TablesNodeLoad>, Error> {
        match self.ask(Message::Load(v1::TablesLoad { alone: false })).await? {
            Message::LoadReply(reply) => Ok(reply.nodes),
            _ => Err(unexpected()),
        }
    }

    async fn info(&self, message: Message) -> Result<TableInfo, Error> {
        match self.ask(message).await? {
            Message::Info(info) => Ok(info),
            _ => Err(unexpected()),
        }
    }

    async fn ask(&self, message: Message) -> Result<Message, Error> {
        answer(self.client.call(Request::new(body(message))).await?)
    }

    /// Asks something that is done once however often it arrives.
    async fn ask_again(&self, message: Message) -> Result<Message, Error> {
        answer(self.client.call(Request::new(body(message)).idempotent()).await?)
    }
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn body(message: Message) -> Body {
    Body::Tables(v1::TablesMessage { caller: None, partition: None, message: Some(message) })
}

fn answer(body: Body) -> Result<Message, Error> {
    match body {
        Body::Tables(v1::TablesMessage { message: Some(message), .. }) => Ok(message),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> Error {
    Error::new("tables.unexpected", Class::Failed, "the answer is of another kind than the question")
        .hint("Client and server may be of different versions.")
}
