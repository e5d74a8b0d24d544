//! Live queries between gateway and processor, as nodes tell each other of them.

use super::{access_of, access_to, partition_of, partition_to, record_of, record_with};
use tidings_base::{Error, Wall};
use tidings_client::tables::form::{key_of, key_to, query_of, query_to};
use tidings_predicate::Packed;
use tidings_tables::live::{Body, Change, Frame, From as Beginning, Install, Progress, Reader};
use tidings_tables::names::{Endpoint, GatewayId, NetId, PartitionId, Position, QueryId, Term};
use tidings_tables::processor;
use tidings_tables::refusal::Refusal;
use tidings_wire::v1;
use tidings_wire::v1::live_ask::Ask;
use tidings_wire::v1::live_change::Change as Changed;
use tidings_wire::v1::live_frame::Body as Said;
use tidings_wire::v1::live_from::From as Begins;
use tidings_wire::v1::live_news_item::Item;

/// What a gateway asks of another node's processor; none if it is nothing for one.
pub(in super::super) fn ask_to(partition: PartitionId, input: processor::Input) -> Option<v1::LiveAsk> {
    let (query, ask) = match input {
        processor::Input::Install(install) => (install.query, Ask::Install(install_to(*install))),
        processor::Input::Update { query, reader, .. } => (query, Ask::Reader(reader_to(&reader))),
        processor::Input::Taken { query, frames, .. } => (query, Ask::Taken(frames)),
        processor::Input::Remove { query, over, netid, .. } => {
            let netid = netid.map(|netid| netid.0.to_vec().into()).unwrap_or_default();
            (query, Ask::Remove(v1::LiveRemove { over, netid }))
        }
        _ => return None,
    };
    Some(v1::LiveAsk { partition: Some(partition_to(partition)), query: query.number, ask: Some(ask) })
}

/// What another node's gateway asks; none if it cannot be read.
pub(in super::super) fn ask_of(gateway: GatewayId, ask: v1::LiveAsk) -> Option<processor::Input> {
    let (partition, query) = (partition_of(ask.partition?), QueryId { gateway, number: ask.query });
    Some(match ask.ask? {
        Ask::Install(install) => processor::Input::Install(Box::new(install_of(partition, query, install)?)),
        Ask::Reader(reader) => processor::Input::Update { query, partition, reader: Box::new(reader_of(&reader)?) },
        Ask::Taken(frames) => processor::Input::Taken { query, partition, frames },
        Ask::Remove(v1::LiveRemove { over, netid }) => {
            let netid = netid.as_ref().try_into().ok().map(NetId);
            processor::Input::Remove { query, partition, over, netid }
        }
    })
}

fn install_to(install: Install) -> v1::LiveInstall {
    let from = match install.from {
        Beginning::Everything => Begins::Everything(true),
        Beginning::Nothing => Begins::Nothing(true),
        Beginning::After(positions) => {
            let positions = positions.into_iter().map(|(partition, position)| v1::LivePosition {
                partition: Some(partition_to(partition)),
                position: position.get(),
            });
            Begins::After(v1::LivePositions { positions: positions.collect() })
        }
    };
    v1::LiveInstall {
        query: Some(query_to(&install.ask)),
        reader: Some(reader_to(&install.reader)),
        from: Some(v1::LiveFrom { from: Some(from) }),
        newer_than_us: install.newer_than.map_or(0, |wall| wall.0),
        window: install.window,
        installation: install.installation,
        endpoint: install
            .endpoint
            .map(|Endpoint { netid, app }| v1::LiveEndpoint { netid: netid.0.to_vec().into(), app }),
    }
}

fn install_of(partition: PartitionId, query: QueryId, install: v1::LiveInstall) -> Option<Install> {
    let from = match install.from?.from? {
        Begins::Everything(_) => Beginning::Everything,
        Begins::Nothing(_) => Beginning::Nothing,
        Begins::After(after) => {
            let at = |at: v1::LivePosition| Some((partition_of(at.partition?), Position::from_u64(at.position)?));
            Beginning::After(after.positions.into_iter().map(at).collect::<Option<_>>()?)
        }
    };
    let endpoint = match install.endpoint {
        None => None,
        Some(endpoint) => Some(Endpoint { netid: NetId(endpoint.netid.as_ref().try_into().ok()?), app: endpoint.app }),
    };
    Some(Install {
        query,
        partition,
        ask: query_of(&install.query?).ok()?,
        reader: reader_of(&install.reader?)?,
        from,
        newer_than: (install.newer_than_us > 0).then_some(Wall(install.newer_than_us)),
        window: install.window,
        installation: install.installation,
        endpoint,
    })
}

fn reader_to(reader: &Reader) -> v1::LiveReader {
    v1::LiveReader {
        level: access_to(reader.access).into(),
        data: reader.data.as_bytes().to_vec().into(),
        claims: reader.claims.as_bytes().to_vec().into(),
        epoch: reader.epoch,
    }
}

fn reader_of(reader: &v1::LiveReader) -> Option<Reader> {
    Some(Reader {
        access: access_of(reader.level()),
        data: Packed::parse(&reader.data).ok()?,
        claims: Packed::parse(&reader.claims).ok()?,
        epoch: reader.epoch,
    })
}

/// What a processor tells another node's gateway of a query, or its copy: that is told whom records are shown to.
pub(in super::super) fn frame_to(query: QueryId, frame: Frame) -> v1::LiveNewsItem {
    let record_to = |record| record_with(record, query.is_copy());
    let body = match frame.body {
        Body::Changes(changes) => {
            let change = |change| match change {
                Change::Put(record) => Changed::Put(record_to(record)),
                Change::Leave { key } => Changed::Leave(key_to(key)),
            };
            let changes = changes.into_iter().map(|c| v1::LiveChange { change: Some(change(c)) });
            Said::Changes(v1::LiveChanges { changes: changes.collect() })
        }
        Body::Snapshot(rows) => Said::Snapshot(v1::LiveSnapshot { rows: rows.into_iter().map(record_to).collect() }),
        Body::Dirty => Said::Dirty(v1::LiveDirty {}),
        Body::Ended(refusal) => Said::Ended(Error::from(refusal).into()),
    };
    let frame = v1::LiveFrame {
        query: query.number,
        partition: Some(partition_to(frame.partition)),
        epoch: frame.epoch,
        installation: frame.installation,
        previous_epoch: frame.previous_epoch,
        piece: frame.piece,
        more: frame.more,
        previous: frame.previous.get(),
        position: frame.position.get(),
        term: frame.term.get(),
        body: Some(body),
    };
    v1::LiveNewsItem { item: Some(Item::Frame(frame)) }
}

fn frame_of(frame: v1::LiveFrame) -> Option<(u64, Frame)> {
    let body = match frame.body? {
        Said::Changes(changes) => {
            let change = |change: v1::LiveChange| {
                Some(match change.change? {
                    Changed::Put(record) => Change::Put(record_of(record)?),
                    Changed::Leave(key) => Change::Leave { key: key_of(key)? },
                })
            };
            Body::Changes(changes.changes.into_iter().map(change).collect::<Option<_>>()?)
        }
        Said::Snapshot(snapshot) => Body::Snapshot(snapshot.rows.into_iter().map(record_of).collect::<Option<_>>()?),
        Said::Dirty(_) => Body::Dirty,
        Said::Ended(error) => Body::Ended(refusal_of(error.into())),
    };
    let frame_here = Frame {
        partition: partition_of(frame.partition?),
        term: Term::new(frame.term)?,
        epoch: frame.epoch,
        installation: frame.installation,
        previous_epoch: frame.previous_epoch,
        piece: frame.piece,
        more: frame.more,
        previous: Position::from_u64(frame.previous)?,
        position: Position::from_u64(frame.position)?,
        body,
    };
    Some((frame.query, frame_here))
}

/// What a processor tells another node's gateway of all its queries.
pub(in super::super) fn progress_to(progress: &Progress) -> v1::LiveNewsItem {
    let sent =
        progress.sent.iter().map(|(query, position)| v1::LiveSent { query: query.number, position: position.get() });
    let progress = v1::LiveProgress {
        partition: Some(partition_to(progress.partition)),
        term: progress.term.get(),
        previous: progress.previous.get(),
        position: progress.position.get(),
        sent: sent.collect(),
        behind: progress.behind.iter().map(|query| query.number).collect(),
    };
    v1::LiveNewsItem { item: Some(Item::Progress(progress)) }
}

fn progress_of(gateway: GatewayId, progress: v1::LiveProgress) -> Option<Progress> {
    let query = |number| QueryId { gateway, number };
    let sent = |sent: v1::LiveSent| Some((query(sent.query), Position::from_u64(sent.position)?));
    Some(Progress {
        partition: partition_of(progress.partition?),
        term: Term::new(progress.term)?,
        previous: Position::from_u64(progress.previous)?,
        position: Position::from_u64(progress.position)?,
        sent: progress.sent.into_iter().map(sent).collect::<Option<_>>()?,
        behind: progress.behind.into_iter().map(query).collect(),
    })
}

/// What another node's processor tells the gateway here, or a copy.
#[derive(Debug)]
pub(in super::super) enum News {
    Frame(QueryId, Box<Frame>),
    Progress(Box<Progress>),
}

/// The same as it came; none if it cannot be read.
pub(in super::super) fn news_of(gateway: GatewayId, item: v1::LiveNewsItem) -> Option<News> {
    Some(match item.item? {
        Item::Frame(frame) => {
            let (number, frame) = frame_of(frame)?;
            News::Frame(QueryId { gateway, number }, Box::new(frame))
        }
        Item::Progress(progress) => News::Progress(Box::new(progress_of(gateway, progress)?)),
    })
}

/// A refusal that another node told as an error: those that machines act on are known by their codes.
fn refusal_of(error: Error) -> Refusal {
    for refusal in [
        Refusal::UnknownTable,
        Refusal::Access,
        Refusal::NotAllowed,
        Refusal::Moved,
        Refusal::Busy,
        Refusal::Behind,
        Refusal::BadCursor,
        Refusal::Ended,
    ] {
        if Error::from(refusal.clone()).code == error.code {
            return refusal;
        }
    }
    Refusal::Query(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_predicate::Key;
    use tidings_predicate::query::Ask as Query;
    use tidings_tables::calls::{Access, Visible};
    use tidings_tables::names::TableId;

    fn position(counter: u64) -> Position {
        Position::new(Term::new(3).unwrap(), counter).unwrap()
    }

    fn visible() -> Visible {
        let columns = Packed::columns([("a", tidings_predicate::Value::Int(1))]).unwrap();
        let (writer, audience) = ("w".into(), "reader.x".into());
        Visible { key: Key::from("k"), version: position(4), time: Wall(5), writer, audience, columns }
    }

    /// A frame without audiences.
    fn untold(mut frame: Frame) -> Frame {
        let untold = |record: &mut Visible| record.audience = "".into();
        match &mut frame.body {
            Body::Changes(changes) => changes.iter_mut().for_each(|change| match change {
                Change::Put(record) => untold(record),
                Change::Leave { .. } => {}
            }),
            Body::Snapshot(rows) => rows.iter_mut().for_each(untold),
            Body::Dirty | Body::Ended(_) => {}
        }
        frame
    }

    #[test]
    fn what_gateways_ask_arrives_as_it_was_asked() {
        let gateway = GatewayId(7);
        let (partition, query) = (PartitionId { table: TableId(1), number: 2 }, QueryId { gateway, number: 9 });
        let reader = Reader { access: Access::App, data: Packed::empty(), claims: Packed::empty(), epoch: 3 };
        let install = Install {
            query,
            partition,
            ask: Query { predicate: "a > 1".into(), ..Query::default() },
            reader: reader.clone(),
            from: Beginning::After(vec![(partition, position(8))]),
            newer_than: Some(Wall(6)),
            window: 64,
            installation: 5,
            endpoint: Some(Endpoint { netid: NetId([1; 16]), app: "shop".into() }),
        };
        for input in [
            processor::Input::Install(Box::new(install)),
            processor::Input::Update { query, partition, reader: Box::new(reader) },
            processor::Input::Taken { query, partition, frames: 5 },
            processor::Input::Remove { query, partition, over: false, netid: Some(NetId([1; 16])) },
            processor::Input::Remove { query, partition, over: true, netid: None },
        ] {
            let before = format!("{input:?}");
            let after = ask_of(gateway, ask_to(partition, input).unwrap()).unwrap();
            assert_eq!(format!("{after:?}"), before);
        }
    }

    #[test]
    fn what_processors_tell_arrives_as_it_was_told() {
        let (gateway, partition) = (GatewayId(7), PartitionId { table: TableId(1), number: 2 });
        for body in [
            Body::Changes(vec![Change::Put(visible()), Change::Leave { key: Key::Bytes(vec![0]) }]),
            Body::Snapshot(vec![visible()]),
            Body::Dirty,
            Body::Ended(Refusal::Moved),
        ] {
            let frame = Frame {
                partition,
                term: Term::new(6).unwrap(),
                installation: 4,
                epoch: 2,
                previous_epoch: 1,
                previous: position(1),
                position: position(2),
                piece: 3,
                more: true,
                body,
            };
            for query in [QueryId::of_copy(gateway, 9), QueryId { gateway, number: 9 }] {
                match news_of(gateway, frame_to(query, frame.clone())) {
                    // Whom records are shown to nobody is told but copies.
                    Some(News::Frame(of, arrived)) if query.is_copy() => {
                        assert_eq!((of, *arrived), (query, frame.clone()))
                    }
                    Some(News::Frame(of, arrived)) => assert_eq!((of, *arrived), (query, untold(frame.clone()))),
                    other => panic!("{other:?}"),
                }
            }
        }
        let query = QueryId { gateway, number: 9 };
        let (previous, sent) = (position(1), vec![(query, position(2))]);
        let (term, behind) = (Term::new(6).unwrap(), vec![query]);
        let progress = Progress { partition, term, previous, position: position(3), sent, behind };
        match news_of(gateway, progress_to(&progress)) {
            Some(News::Progress(arrived)) => assert_eq!(*arrived, progress),
            other => panic!("{other:?}"),
        }
    }
}
