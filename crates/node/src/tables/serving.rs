//! What callers ask: tables, writes of one record, and what is at a partition that is served here.

use super::NO_MEMBER;
use super::convert;
use super::cutting::{Why, ceded_to};
use super::directories::{Entry, Growth, TableName};
use super::hub::{Hub, random};
use super::reading::Taken;
use crate::connection::Responder;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Mono};
use tidings_client::tables::form::{into_json, key_to};
use tidings_predicate::Key;
use tidings_tables::acl::Right;
use tidings_tables::calls::{Answer, Call, Caller, Outcome};
use tidings_tables::directory::{Directory, Partition};
use tidings_tables::names::{PartitionId, TableId};
use tidings_tables::refusal::Refusal;
use tidings_wire::v1::record_written::Outcome as Written;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, error, v1};
use tokio::time::Instant;

/// How long a call may be tried: partitions move within a lease, and callers wait for that long.
pub(super) const CALL: Duration = Duration::from_secs(20);
/// The pause before a partition is looked up again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long another node may take to say how large a partition is.
const STAT: Duration = Duration::from_secs(2);

impl Hub {
    /// Answers what has one answer; `request.caller` says who asks.
    pub(super) async fn call(self: &Arc<Self>, request: v1::TablesMessage) -> Result<v1::TablesMessage, Error> {
        let caller = request.caller.unwrap_or_default();
        let partition = request.partition.map(convert::partition_of);
        if partition.is_none() {
            self.refuse_expired(&caller)?;
        }
        let answer = match (request.message, partition) {
            (Some(Message::Create(create)), None) => Message::Info(self.create(&caller, create).await?),
            (Some(Message::Alter(alter)), None) => Message::Info(self.alter(&caller, alter).await?),
            (Some(Message::Drop(drop)), None) => Message::Dropped(self.discard(&caller, &drop.table).await?),
            (Some(Message::Access(access)), None) => Message::Info(self.access(&caller, access).await?),
            (Some(Message::List(_)), None) => Message::ListReply(self.list(&caller).await?),
            (Some(Message::Stat(stat)), None) => Message::Info(self.stat(&caller, &stat.table).await?),
            (Some(Message::Split(split)), None) => {
                Message::Info(self.cut(&caller, &split.table, split.at, true).await?)
            }
            (Some(Message::Merge(merge)), None) => {
                Message::Info(self.cut(&caller, &merge.table, merge.at, false).await?)
            }
            (Some(Message::Write(write)), None) => Message::Written(self.write(&caller, write).await?),
            (Some(Message::Read(read)), None) => Message::Rows(self.read(&caller, read, Taken::Now).await?),
            (Some(Message::Queries(asked)), None) => Message::QueriesReply(self.queries(&caller, asked).await?),
            (Some(Message::Load(asked)), None) => Message::LoadReply(self.load(&caller, asked).await?),
            (Some(message), Some(partition)) => self.at_partition(&caller, partition, message).await?,
            (Some(Message::LiveAsks(asks)), None) => Message::LiveTaken(self.asks(asks).await),
            (Some(Message::LiveNews(news)), None) => Message::LiveTaken(self.news(news).await),
            _ => return Err(error::unsupported()),
        };
        Ok(v1::TablesMessage { message: Some(answer), ..Default::default() })
    }

    /// Refuses whoever's token has expired since its connection began, which is looked at only now and then: what it asks is not
    /// answered as if somebody else had asked it.
    pub(super) fn refuse_expired(&self, caller: &v1::TablesCaller) -> Result<(), Error> {
        match caller.until_us > 0 && self.clock.now().wall.0 >= caller.until_us {
            true => Err(crate::auth::expired()),
            false => Ok(()),
        }
    }

    // ---- tables -----------------------------------------------------------------------------------------------------

    async fn create(&self, caller: &v1::TablesCaller, create: v1::TableCreate) -> Result<v1::TableInfo, Error> {
        let name = self.owned(caller, &create.table)?;
        let said = create.properties.unwrap_or_default();
        self.refuse_promises(&said)?;
        let properties = convert::properties_of(&said)?;
        let cuts = create.cuts.into_iter().map(|key| convert::key(&Some(key))).collect::<Result<_, Error>>()?;
        let (functions, id) = (&self.told.functions, TableId(random()?));
        let directory = Directory::create_with(functions, id, &convert::caller_of(caller), properties, cuts)?;
        let entry = self.create_table(&name, &directory).await?;
        Ok(self.info(&entry, true))
    }

    async fn alter(&self, caller: &v1::TablesCaller, alter: v1::TableAlter) -> Result<v1::TableInfo, Error> {
        let name = TableName::parse(&caller.app, &alter.table)?;
        let new = alter.properties.unwrap_or_default();
        self.refuse_promises(&new)?;
        let caller = convert::caller_of(&convert::relative(caller, &name.app));
        let changed = self.change_table(&name, Growth::Bounded, |entry, directory| {
            if alter.generation > 0 && entry.version.1 != alter.generation {
                return Err(Error::from(Refusal::Changed));
            }
            let properties = match &alter.said {
                Some(said) => convert::laid_over(convert::properties_to(&directory.properties), &new, &said.fields)?,
                None => new.clone(),
            };
            directory.alter_with(&self.told.functions, &caller, convert::properties_of(&properties)?)?;
            Ok(())
        });
        Ok(self.info(&changed.await?.0, true))
    }

    /// Refuses what nothing here keeps: records lie in the cluster's store, and no client leaves writes unsent.
    fn refuse_promises(&self, said: &v1::TableProperties) -> Result<(), Error> {
        if said.lossy {
            return Err(Error::new("tables.lossy", Class::Refused, "no table can be lossy yet")
                .hint("Only devices leave writes unsent, and there are none. Make the table without it."));
        }
        let replication = said.replication.as_str();
        if matches!(replication, "" | convert::REPLICATION) {
            return Ok(());
        }
        let shown = crate::principal::clip(replication);
        let Ok(copies) = replication.parse::<usize>() else {
            let message = format!("there is no replication `{shown}` for tables");
            return Err(Error::new("tables.replication", Class::Invalid, message)
                .hint("Every member of the cluster has the records of every table: `cluster`."));
        };
        self.stored()?.refuse_outside(NO_MEMBER)?;
        let members = self.stored()?.voters();
        match copies == members {
            true => Ok(()),
            false => {
                let message = format!("a table has a copy at each member: {members} here, not {shown}");
                Err(Error::new("tables.replication", Class::Refused, message)
                    .hint("Say `cluster`; `tidings member add` and `remove` change how many members there are."))
            }
        }
    }

    /// Changes a table's list of access, or tells it.
    async fn access(&self, caller: &v1::TablesCaller, access: v1::TableAccess) -> Result<v1::TableInfo, Error> {
        let name = TableName::parse(&caller.app, &access.table)?;
        let caller = convert::caller_of(&convert::relative(caller, &name.app));
        let changes = convert::changes_of(&access.changes)?;
        if changes.is_empty() && access.listed.is_none() {
            let entry = self.table(&name).await?;
            entry.directory.may(&caller, Right::Administer)?;
            return Ok(self.info(&entry, true));
        }
        let change = |_: &Entry, directory: &mut Directory| directory.change_acl(&caller, access.listed, &changes);
        let changed = self.change_table(&name, Growth::Bounded, change).await?;
        // Live queries here of those who are shut out end before this is answered; those at other nodes soon after.
        self.tell_gateway(&changed.0).await;
        Ok(self.info(&changed.0, true))
    }

    async fn discard(&self, caller: &v1::TablesCaller, table: &str) -> Result<v1::TableDropped, Error> {
        let name = self.owned(caller, table)?;
        let entry = self.table(&name).await?;
        entry.directory.may_drop(&convert::caller_of(caller))?;
        self.drop_table(&entry).await?;
        Ok(v1::TableDropped {})
    }

    async fn list(&self, caller: &v1::TablesCaller) -> Result<v1::TableListReply, Error> {
        let who = convert::caller_of(caller);
        // What somebody has no right in at all is not listed.
        let known = |entry: &Arc<Entry>| {
            let may = Right::ALL.map(|right| entry.directory.may(&who, right));
            let shut_out = may.iter().all(|may| matches!(may, Err(Refusal::NotAllowed)));
            entry.name.app == caller.app && !shut_out
        };
        let entries = self.tables().await?.entries.into_iter().filter(known);
        Ok(v1::TableListReply { tables: entries.map(|entry| self.info(&entry, administers(&entry, &who))).collect() })
    }

    async fn stat(self: &Arc<Self>, caller: &v1::TablesCaller, table: &str) -> Result<v1::TableInfo, Error> {
        let name = TableName::parse(&caller.app, table)?;
        let entry = self.table(&name).await?;
        let caller = convert::relative(caller, &name.app);
        let who = convert::caller_of(&caller);
        let whole = administers(&entry, &who);
        if !whole {
            entry
                .directory
                .may(&who, Right::Read)
                .or_else(|refusal| entry.directory.may(&who, Right::Write).map_err(|_| refusal))?;
        }
        let mut info = self.info(&entry, whole);
        if who.is_nobody() {
            return Ok(outline(info));
        }
        // R7: how many records there are counts those that are hidden.
        for part in info.partitions.iter_mut().filter(|_| whole) {
            let partition = entry.directory.partition_id(part.number);
            part.size = self.size(&caller, partition).await;
        }
        Ok(info)
    }

    /// How large a partition is; none if its owner does not say.
    pub(super) async fn size(
        self: &Arc<Self>,
        caller: &v1::TablesCaller,
        partition: PartitionId,
    ) -> Option<v1::PartitionSize> {
        let message = Message::PartitionStat(v1::PartitionStat {});
        let asked = self.at_owner(caller, partition, message, Instant::now() + STAT);
        match tokio::time::timeout(STAT, asked).await {
            Ok(Ok(Message::PartitionInfo(info))) => info.size,
            _ => None,
        }
    }

    /// Cuts or joins partitions, where the one that holds the key is served.
    async fn cut(
        self: &Arc<Self>,
        caller: &v1::TablesCaller,
        table: &str,
        at: Option<v1::RecordKey>,
        split: bool,
    ) -> Result<v1::TableInfo, Error> {
        let name = TableName::parse(&caller.app, table)?;
        let caller = &convert::relative(caller, &name.app);
        let key = convert::key(&at)?;
        let table = format!("{}/{}", name.app, name.table);
        let until = Instant::now() + CALL;
        loop {
            let attempt = async {
                let entry = self.table(&name).await?;
                entry.directory.may(&convert::caller_of(caller), Right::Administer)?;
                let key = entry.directory.properties.bound(key.clone())?;
                let (table, at) = (table.clone(), Some(key_to(key.clone())));
                let message = match split {
                    true => Message::Split(v1::TableSplit { table, at }),
                    false => Message::Merge(v1::TableMerge { table, at }),
                };
                let partition = entry.directory.partition_id(partition_at(&entry, &key)?.number);
                self.at_owner(caller, partition, message, until).await
            };
            match attempt.await {
                Ok(Message::Info(info)) => return Ok(info),
                Ok(_) => return Err(malformed()),
                Err(error) => self.again(error, until).await?,
            }
        }
    }

    /// A table that only its own application and operators make and drop.
    fn owned(&self, caller: &v1::TablesCaller, table: &str) -> Result<TableName, Error> {
        if !caller.privileged {
            let message = format!("{} is a user, not an application", caller.principal);
            return Err(Error::new("tables.applications_only", Class::Refused, message)
                .hint("Let the application's backend do this, with an application key."));
        }
        let name = TableName::parse(&caller.app, table)?;
        match name.app == caller.app {
            true => Ok(name),
            false => Err(Refusal::NotYours.into()),
        }
    }

    /// What a table is. R7: where it is cut are keys, and those of records that are hidden among them: only whoever administers
    /// it is told, and who is in its list.
    fn info(&self, entry: &Entry, whole: bool) -> v1::TableInfo {
        let bound = |key: &Option<Key>| key.clone().filter(|_| whole).map(key_to);
        let part = |part: &Partition| v1::PartitionInfo {
            number: part.number,
            term: part.term.get(),
            start: bound(&part.start),
            end: bound(&part.end),
            owner: self.owner_of(entry.directory.partition_id(part.number)).unwrap_or_default(),
            size: None,
        };
        v1::TableInfo {
            table: entry.name.table.clone(),
            properties: Some(convert::properties_to(&entry.directory.properties)),
            app: entry.name.app.clone(),
            generation: entry.version.1,
            partitions: entry.directory.partitions.iter().map(part).collect(),
            acl: entry.directory.acl.as_ref().filter(|_| whole).map(convert::acl_to),
            id: entry.table().0,
        }
    }

    // ---- writes -----------------------------------------------------------------------------------------------------

    /// Writes, once: it has a name (R6), under which it is tried until its partition's owner has decided.
    async fn write(
        self: &Arc<Self>,
        caller: &v1::TablesCaller,
        mut write: v1::RecordWrite,
    ) -> Result<v1::RecordWritten, Error> {
        let name = TableName::parse(&caller.app, &write.table)?;
        let key = convert::key(&write.key)?;
        let caller = convert::relative(caller, &name.app);
        let who = convert::caller_of(&caller);
        let patches = matches!(write.change, Some(v1::record_write::Change::Patch(_)));
        let mut reads = false;
        let named = match write.operation {
            Some(_) => None,
            None => Some(self.operations.begin(name.table.as_str().into(), key.clone()).await?),
        };
        if let Some(named) = &named {
            write.operation = Some(named.operation());
        }
        let as_json = write.as_json;
        let until = Instant::now() + CALL;
        let patience = (write.wait_ms > 0).then(|| Instant::now() + Duration::from_millis(write.wait_ms.into()));
        let mut written = loop {
            let attempt = async {
                let entry = self.table(&name).await?;
                entry.directory.may(&who, Right::Write)?;
                let may_read = entry.directory.may(&who, Right::Read);
                reads = may_read.is_ok();
                // Only what the writer sees can be patched.
                may_read.or_else(|refusal| if patches { Err(refusal) } else { Ok(()) })?;
                let mut write = write.clone();
                let key = convert::stored_key(&entry.directory.properties, key.clone(), &mut write)?;
                let partition = entry.directory.partition_id(partition_at(&entry, &key)?.number);
                write.wait_ms = patience.map_or(0, left_ms);
                self.at_owner(&caller, partition, Message::Write(write), until).await
            };
            match attempt.await {
                Ok(Message::Written(written)) => break written,
                Ok(_) => return Err(malformed()),
                // Its caller wants to wait no longer for what it follows.
                Err(error) if patience.is_some() && error.code == "tables.waited" => return Err(error),
                Err(error) => self.again(error, until).await?,
            }
        };
        // R7: what stands in the way is not shown to whoever may write and not read.
        if let (false, Some(Written::Conflict(conflict))) = (reads, &mut written.outcome)
            && let Some(v1::record_conflict::Conflict::Theirs(_)) = &conflict.conflict
        {
            conflict.conflict = Some(v1::record_conflict::Conflict::Hidden(v1::RecordHidden {}));
        }
        if let (true, Some(Written::Conflict(conflict))) = (as_json, &mut written.outcome)
            && let Some(v1::record_conflict::Conflict::Theirs(theirs)) = &mut conflict.conflict
            && let Some(data) = &mut theirs.data
        {
            into_json(data)?;
        }
        Ok(written)
    }

    /// Waits before something is tried again that whoever serves a partition now may answer; gives up in time.
    pub(super) async fn again(&self, error: Error, until: Instant) -> Result<(), Error> {
        let lost = error.code.starts_with("control.") || error.code.starts_with("client.");
        let passes = match error.class {
            Class::Unreachable => !error.lacks_majority(),
            Class::OutcomeUnknown => lost,
            _ => false,
        };
        if !passes || Instant::now() + PAUSE >= until {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    // ---- partitions -------------------------------------------------------------------------------------------------

    /// Lets whoever serves a partition answer once.
    pub(super) async fn at_owner(
        self: &Arc<Self>,
        caller: &v1::TablesCaller,
        partition: PartitionId,
        message: Message,
        until: Instant,
    ) -> Result<Message, Error> {
        let address = self.owner_of(partition).ok_or(Refusal::Moved)?;
        if address == self.told.address {
            return self.at_partition(caller, partition, message).await;
        }
        let body = for_partition(caller, partition, message);
        match self.peers()?.ask(&address, body, until.saturating_duration_since(Instant::now())).await? {
            Body::Tables(v1::TablesMessage { message: Some(message), .. }) => Ok(message),
            _ => Err(malformed()),
        }
    }

    /// Answers at a partition that is served here.
    fn at_partition<'a>(
        self: &'a Arc<Self>,
        caller: &'a v1::TablesCaller,
        partition: PartitionId,
        message: Message,
    ) -> BoxFuture<'a, Result<Message, Error>> {
        Box::pin(async move {
            let who = convert::caller_of(caller);
            match message {
                Message::Write(write) => {
                    let write = convert::write_of(&write, self.deadline_within(write.wait_ms))?;
                    self.write_here(partition, who, Call::Write(Box::new(write))).await.map(Message::Written)
                }
                Message::PartitionStat(_) => match self.ask(partition, who, Call::Stat).await.next().await {
                    Some(Ok(Answer::Stat(stat))) => {
                        let size = Some(convert::stat_to(stat));
                        Ok(Message::PartitionInfo(v1::PartitionInfo { size, ..Default::default() }))
                    }
                    Some(Err(refusal)) => Err(refusal.into()),
                    _ => Err(Refusal::Moved.into()),
                },
                Message::Split(split) => {
                    let (name, at) = (TableName::parse(&caller.app, &split.table)?, convert::key(&split.at)?);
                    let entry = self.split(&name, partition, &at, Why::Asked).await?;
                    Ok(Message::Info(self.info(&entry, true)))
                }
                Message::Merge(merge) => {
                    let name = TableName::parse(&caller.app, &merge.table)?;
                    let next = self.neighbour(&name, partition).await?;
                    let entry = self.merge(&name, [partition, next]).await?;
                    Ok(Message::Info(self.info(&entry, true)))
                }
                Message::Cede(_) => self.cede(partition).await.map(ceded_to),
                _ => Err(error::unsupported()),
            }
        })
    }

    async fn write_here(
        self: &Arc<Self>,
        partition: PartitionId,
        caller: Caller,
        call: Call,
    ) -> Result<v1::RecordWritten, Error> {
        // R7: whoever has altered a table and was told so finds the next write judged by it.
        self.tell_rules_of(partition).await?;
        let outcome = match self.ask(partition, caller, call).await.next().await {
            Some(Ok(Answer::Written(outcome))) => outcome,
            Some(Ok(_)) => return Err(malformed()),
            Some(Err(refusal)) => return Err(refusal.into()),
            None => return Err(Refusal::Moved.into()),
        };
        let outcome = match outcome {
            Outcome::Done { version } => Written::Version(version.get()),
            Outcome::Conflict(conflict) => Written::Conflict(convert::conflict_to(conflict)),
            Outcome::Refused(refusal) => return Err(refusal.into()),
        };
        // R5: what the writer reads from now on is at that position or later.
        Ok(v1::RecordWritten { outcome: Some(outcome), partition: Some(convert::partition_to(partition)) })
    }

    /// When what waits in a machine for others gives up.
    pub(super) fn deadline(&self) -> Mono {
        self.clock.now().mono + CALL
    }

    /// The same for whoever waits no longer than this for others, in milliseconds; 0 = as long as a call may take.
    fn deadline_within(&self, wait_ms: u32) -> Mono {
        let latest = self.deadline();
        match wait_ms {
            0 => latest,
            wait_ms => latest.min(self.clock.now().mono + Duration::from_millis(wait_ms.into())),
        }
    }

    /// Answers a read of a partition that is served here, piece by piece, to another node.
    pub(super) async fn serve_read(
        self: Arc<Self>,
        caller: v1::TablesCaller,
        partition: PartitionId,
        read: v1::RecordRead,
        mut responder: Responder,
    ) {
        let prepared = convert::span_of(&read)
            .and_then(|span| convert::read_of(&read, partition.number, span, read.whole, self.deadline()));
        let audiences = read.audiences;
        let read = match prepared {
            Ok(read) => read,
            Err(error) => return responder.fail(error),
        };
        let mut asked = self.ask(partition, convert::caller_of(&caller), Call::Read(Box::new(read))).await;
        loop {
            match asked.next().await {
                Some(Ok(Answer::Page(page))) => {
                    let last = page.last;
                    let rows = Message::Rows(convert::page_to(partition.number, page, audiences));
                    let body = Body::Tables(v1::TablesMessage { message: Some(rows), ..Default::default() });
                    if last {
                        return responder.reply(body);
                    }
                    if responder.send(body).await.is_err() {
                        return;
                    }
                }
                Some(Err(refusal)) => return responder.fail(refusal.into()),
                Some(Ok(_)) | None => return responder.fail(Refusal::Moved.into()),
            }
        }
    }
}

/// What whoever shows nothing is told of a table: what its records are called by, and nothing of who serves them, how much there
/// may be, or what guards them.
fn outline(info: v1::TableInfo) -> v1::TableInfo {
    let v1::TableProperties { level, columns, partition_by, .. } = info.properties.unwrap_or_default();
    let properties = Some(v1::TableProperties { level, columns, partition_by, ..Default::default() });
    v1::TableInfo { table: info.table, app: info.app, properties, ..Default::default() }
}

/// What is left until then, in milliseconds, and never nothing: that would be no bound.
fn left_ms(until: Instant) -> u32 {
    let left = until.saturating_duration_since(Instant::now()).as_millis();
    u32::try_from(left).unwrap_or(u32::MAX).max(1)
}

/// Whether somebody may know all of a table but its hidden records.
pub(super) fn administers(entry: &Entry, caller: &Caller) -> bool {
    entry.directory.may(caller, Right::Administer).is_ok()
}

/// A message for whoever serves a partition.
pub(super) fn for_partition(caller: &v1::TablesCaller, partition: PartitionId, message: Message) -> Body {
    let partition = Some(convert::partition_to(partition));
    Body::Tables(v1::TablesMessage { caller: Some(caller.clone()), partition, message: Some(message) })
}

/// The partition that holds a key: every key has one.
pub(super) fn partition_at<'a>(entry: &'a Entry, key: &Key) -> Result<&'a Partition, Error> {
    entry.directory.find(key).ok_or_else(|| Refusal::Moved.into())
}

pub(super) fn malformed() -> Error {
    Error::new("tables.malformed", Class::Failed, "the answer is of another kind than the question")
}
