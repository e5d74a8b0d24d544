//! What a console draws: live queries of a table wherever their clients are connected, and how all nodes fare.

use super::NO_MEMBER;
use super::convert;
use super::directories::TableName;
use super::hub::Hub;
use super::reading::PAGE;
use super::serving::malformed;
use super::watching::Watcher;
use futures::future::join_all;
use prost::Message as _;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidings_base::Error;
use tidings_tables::acl::Right;
use tidings_tables::names::TableId;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};

/// How long another node may take: whoever draws asks again.
const ASKED: Duration = Duration::from_secs(2);
/// Live queries that are listed; beyond them it is said that there are more.
const LISTED: usize = 1_000;

impl Hub {
    /// Live queries of a table, of this node or of all that answer.
    pub(super) async fn queries(
        &self,
        caller: &v1::TablesCaller,
        asked: v1::TableQueries,
    ) -> Result<v1::TableQueriesReply, Error> {
        let name = TableName::parse(&caller.app, &asked.table)?;
        let entry = self.table(&name).await?;
        if asked.alone {
            return Ok(self.queries_here(entry.table()).await);
        }
        self.stored()?.refuse_outside(NO_MEMBER)?;
        // R7: predicates of others name what they look for.
        entry.directory.may(&convert::caller_of(&convert::relative(caller, &name.app)), Right::Administer)?;
        let table = format!("{}/{}", name.app, name.table);
        let others = self.ask_others(caller, Message::Queries(v1::TableQueries { table, alone: true }));
        let (here, others) = tokio::join!(self.queries_here(entry.table()), others);
        let others = others.into_iter().filter_map(|answer| match answer {
            Message::QueriesReply(reply) => Some(reply),
            _ => None,
        });
        let mut all = v1::TableQueriesReply::default();
        for reply in std::iter::once(here).chain(others) {
            all.queries.extend(reply.queries);
            all.more |= reply.more;
        }
        Ok(bounded(all))
    }

    async fn queries_here(&self, table: TableId) -> v1::TableQueriesReply {
        let mut watchers = self.watchers.of(table, LISTED + 1);
        let more = watchers.len() > LISTED;
        watchers.truncate(LISTED);
        let hears = self.hears(watchers.iter().map(|(number, _)| *number).collect()).await;
        let shown = watchers.iter().map(|(number, watcher)| {
            let (partitions, silent) = hears.get(number).copied().unwrap_or_default();
            query_to(self.told.node, *number, watcher, (partitions as u32, silent as u32))
        });
        bounded(v1::TableQueriesReply { queries: shown.collect(), more })
    }

    /// How this node fares, or all that answer.
    pub(super) async fn load(
        &self,
        caller: &v1::TablesCaller,
        asked: v1::TablesLoad,
    ) -> Result<v1::TablesLoadReply, Error> {
        let mut nodes = vec![self.load_here()];
        if !asked.alone {
            self.stored()?.refuse_outside(NO_MEMBER)?;
            let others = self.ask_others(caller, Message::Load(v1::TablesLoad { alone: true })).await;
            nodes.extend(others.into_iter().flat_map(|answer| match answer {
                Message::LoadReply(reply) => reply.nodes,
                _ => Vec::new(),
            }));
            nodes.sort_by_key(|load| load.node);
        }
        Ok(v1::TablesLoadReply { nodes })
    }

    fn load_here(&self) -> v1::TablesNodeLoad {
        let standing: Vec<_> = self.watchers.all().iter().map(Watcher::standing).collect();
        let counts = &self.watchers.counts;
        let answers = self.requests.counts();
        let answers = answers.into_iter().map(|(kind, count)| v1::TablesAnswers { kind: kind.to_owned(), count });
        v1::TablesNodeLoad {
            node: self.told.node,
            partitions: self.held.count() as u64,
            queries: standing.len() as u64,
            copies: self.copies.count_followed() as u64,
            answers: answers.collect(),
            events: counts.events.load(Ordering::Relaxed),
            event_bytes: counts.bytes.load(Ordering::Relaxed),
            untaken: standing.iter().map(|standing| standing.events as u64).sum(),
            untaken_bytes: standing.iter().map(|standing| standing.bytes as u64).sum(),
            overrun: counts.overrun.load(Ordering::Relaxed),
        }
    }

    /// Asks all other members something that has one answer; one that does not answer has nothing to tell.
    async fn ask_others(&self, caller: &v1::TablesCaller, message: Message) -> Vec<Message> {
        let others = self.stored().map(|stored| stored.other_addresses()).unwrap_or_default();
        let asking = others.iter().map(|address| self.ask_node(address, caller, message.clone()));
        join_all(asking).await.into_iter().flatten().collect()
    }

    async fn ask_node(&self, address: &str, caller: &v1::TablesCaller, message: Message) -> Result<Message, Error> {
        let (caller, message) = (Some(caller.clone()), Some(message));
        let body = Body::Tables(v1::TablesMessage { caller, partition: None, message });
        match self.peers()?.ask(address, body, ASKED).await? {
            Body::Tables(v1::TablesMessage { message: Some(message), .. }) => Ok(message),
            _ => Err(malformed()),
        }
    }
}

/// As many queries as are listed, and as fit a frame: each may have as much text as a frame takes.
fn bounded(mut reply: v1::TableQueriesReply) -> v1::TableQueriesReply {
    reply.queries.sort_by_key(|query| (query.node, query.number));
    let mut size = 0;
    let fits = reply.queries.iter().take(LISTED).take_while(|query| {
        size += query.encoded_len();
        size <= PAGE
    });
    let fits = fits.count().max(1);
    reply.more |= reply.queries.len() > fits;
    reply.queries.truncate(fits);
    reply
}

fn query_to(node: u64, number: u64, watcher: &Watcher, (partitions, silent): (u32, u32)) -> v1::TableQuery {
    let query = watcher.query.query.clone().unwrap_or_default();
    let v1::RecordQuery { predicate, project, order, limit, group_by, aggregates, .. } = query;
    let standing = watcher.standing();
    v1::TableQuery {
        node,
        number,
        principal: watcher.principal.to_string(),
        endpoint: watcher.query.netid.clone(),
        predicate,
        order,
        limit,
        aggregates,
        group_by,
        project,
        partitions,
        silent,
        untaken: standing.events as u64,
        untaken_bytes: standing.bytes as u64,
        settling: standing.settling,
        since_us: watcher.since.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(node: u64, number: u64, bytes: usize) -> v1::TableQuery {
        v1::TableQuery { node, number, predicate: "x".repeat(bytes), ..Default::default() }
    }

    fn listed(queries: impl IntoIterator<Item = v1::TableQuery>) -> (Vec<(u64, u64)>, bool) {
        let reply = bounded(v1::TableQueriesReply { queries: queries.into_iter().collect(), more: false });
        (reply.queries.iter().map(|query| (query.node, query.number)).collect(), reply.more)
    }

    #[test]
    fn a_list_has_an_order_and_a_bound() {
        assert_eq!(listed([query(2, 1, 1), query(1, 9, 1), query(1, 3, 1)]), (vec![(1, 3), (1, 9), (2, 1)], false));
        let (many, more) = listed((0..2_000).map(|number| query(1, number, 1)));
        assert_eq!((many.len(), more), (LISTED, true));
        let (large, more) = listed((0..20).map(|number| query(1, number, 64 << 10)));
        assert!((10..20).contains(&large.len()) && more);
        assert_eq!(listed([query(1, 1, PAGE), query(1, 2, 1)]), (vec![(1, 1)], true));
        assert_eq!(listed([]), (vec![], false));
    }
}
