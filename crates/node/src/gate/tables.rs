//! Requests of Tables: who asks is filled in here, and never taken from whoever asks.

use super::{Scope, cell_caller, unsupported};
use crate::auth::no_credential;
use crate::authorize::{Action, authorize};
use crate::principal::Principal;
use tidings_base::{Class, Error};
use tidings_wire::v1::TableLevel;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Part, v1};

/// Checks a request and says in it who asks. A node keeps what the message says: it forwards for somebody it has
/// checked, to the partition that it names.
pub(super) fn admit(principal: &Principal, request: &mut v1::TablesMessage) -> Result<(), Error> {
    let need = request.message.as_ref().map_or(Need::Nothing, need);
    let action = if need == Need::Write { Action::Write } else { Action::Read };
    authorize(principal, Part::Tables, action, &Scope::of(principal).resource())?;
    match (need, principal) {
        (Need::Node, Principal::Node(_)) => Ok(()),
        (Need::Read | Need::Write, Principal::Node(_)) if request.partition.is_some() => Ok(()),
        (Need::Node | Need::Nothing, _) | (_, Principal::Node(_)) => Err(unsupported("this message of Tables")),
        (Need::Operator, Principal::User { .. } | Principal::App { .. }) => Err(operators_only(principal)),
        // Default deny: records, and nothing that is made, listed, kept for later or told elsewhere.
        (_, Principal::Nobody { .. }) if !request.message.as_ref().is_some_and(is_open) => Err(no_credential()),
        (Need::Read | Need::Write | Need::Operator, _) => {
            request.partition = None;
            request.caller = Some(caller(principal));
            Ok(())
        }
    }
}

/// Who a principal is to Tables.
pub(super) fn caller(principal: &Principal) -> v1::TablesCaller {
    let named = cell_caller(principal);
    let (level, privileged) = match principal {
        Principal::User { .. } => (TableLevel::User, false),
        Principal::Nobody { .. } => (TableLevel::Public, false),
        Principal::App { .. } => (TableLevel::App, true),
        // Whoever runs the cluster could become any user of it.
        Principal::Operator { .. } | Principal::Node(_) => (TableLevel::User, true),
    };
    let (claims, until_us) = match principal {
        Principal::User { claims, .. } => (claims.columns.as_bytes().to_vec(), claims.until.0),
        _ => (Vec::new(), 0),
    };
    v1::TablesCaller {
        app: named.app,
        principal: named.principal,
        level: level.into(),
        claims: claims.into(),
        until_us,
        privileged,
    }
}

/// Whether somebody who shows nothing may ask it, if the table allows it.
fn is_open(message: &Message) -> bool {
    match message {
        Message::Read(_) | Message::Write(_) | Message::Stat(_) => true,
        Message::Watch(watch) => watch.netid.is_empty(),
        _ => false,
    }
}

/// What somebody is told who may not: who shows nothing does not even learn which tables there are.
pub(crate) fn veiled(principal: &Principal, error: Error) -> Error {
    let closed = matches!(error.class, Class::Refused | Class::NotFound)
        && ["tables.access", "tables.denied", "tables.not_yours", "tables.unknown_table", "tables.applications_only"]
            .contains(&error.code.as_ref());
    match principal {
        Principal::Nobody { .. } if closed || error.code == "control.forbidden" => no_credential(),
        _ => error,
    }
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Read,
    Write,
    /// To be an operator.
    Operator,
    /// To be another node.
    Node,
    /// It is no request.
    Nothing,
}

fn need(message: &Message) -> Need {
    match message {
        Message::Read(_) | Message::Watch(_) | Message::List(_) | Message::Stat(_) => Need::Read,
        Message::Write(_)
        | Message::Create(_)
        | Message::Alter(_)
        | Message::Drop(_)
        | Message::Split(_)
        | Message::Merge(_)
        | Message::Access(_) => Need::Write,
        Message::PartitionStat(_) | Message::Cede(_) | Message::LiveAsks(_) | Message::LiveNews(_) => Need::Node,
        Message::Queries(queries) if queries.alone => Need::Node,
        Message::Load(load) if load.alone => Need::Node,
        // Whoever administers the table is told; of all tables, operators.
        Message::Queries(_) => Need::Read,
        Message::Load(_) => Need::Operator,
        // New reader data comes in the course of its query.
        Message::Update(_)
        | Message::Info(_)
        | Message::ListReply(_)
        | Message::Dropped(_)
        | Message::Written(_)
        | Message::Rows(_)
        | Message::Events(_)
        | Message::PartitionInfo(_)
        | Message::Ceded(_)
        | Message::LiveTaken(_)
        | Message::QueriesReply(_)
        | Message::LoadReply(_) => Need::Nothing,
    }
}

fn operators_only(principal: &Principal) -> Error {
    Error::new("tables.operators_only", Class::Refused, format!("{principal} is not an operator"))
        .hint("Let the operator do this, with the operator key.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Grant;
    use crate::principal::{AppName, Claims, OperatorBy};
    use std::sync::Arc;
    use tidings_base::{NodeId, Wall};
    use tidings_predicate::{Packed, Value};

    fn app() -> Principal {
        Principal::App { app: AppName::parse("a").unwrap(), key: Arc::from("k") }
    }

    fn user(grants: &[Action]) -> Principal {
        let grants: Vec<Grant> = grants.iter().map(|action| Grant { part: Part::Tables, action: *action }).collect();
        let columns = Arc::new(Packed::columns([("sub", Value::from("s"))]).unwrap());
        Principal::User {
            app: AppName::parse("a").unwrap(),
            issuer: Arc::from("i"),
            subject: Arc::from("s"),
            grants: Arc::from(grants),
            objects: Arc::from([]),
            claims: Claims { columns, until: Wall(7) },
        }
    }

    fn admitted(principal: &Principal, message: Message) -> Result<v1::TablesMessage, String> {
        let forged = v1::TablesCaller { app: "forged".into(), privileged: true, ..Default::default() };
        let partition = Some(v1::PartitionRef { table: 1, number: 1 });
        let mut request = v1::TablesMessage { caller: Some(forged), partition, message: Some(message) };
        admit(principal, &mut request).map_err(|error| error.code.into_owned())?;
        Ok(request)
    }

    fn read() -> Message {
        Message::Read(v1::RecordRead::default())
    }

    #[test]
    fn nobody_says_who_he_is_or_which_partition_he_means_but_nodes() {
        let asked = admitted(&app(), read()).unwrap();
        let caller = asked.caller.unwrap();
        assert_eq!((caller.app.as_str(), caller.level(), caller.privileged), ("a", TableLevel::App, true));
        assert_eq!(asked.partition, None);
        let node = Principal::Node(NodeId(2));
        assert_eq!(admitted(&node, read()).unwrap().caller.unwrap().app, "forged");
        let mut whole = v1::TablesMessage { message: Some(read()), ..Default::default() };
        assert_eq!(admit(&node, &mut whole).unwrap_err().code, "control.unsupported");
        let asks = || Message::LiveAsks(v1::LiveAsks::default());
        let cede = || Message::Cede(v1::PartitionCede {});
        assert!(admitted(&node, asks()).is_ok() && admitted(&node, cede()).is_ok());
        for other in [app(), Principal::operator(OperatorBy::Key)] {
            for message in [asks(), cede()] {
                assert_eq!(admitted(&other, message).unwrap_err(), "control.unsupported");
            }
        }
    }

    #[test]
    fn nobody_asks_for_records_alone() {
        let nobody = Principal::Nobody { app: AppName::parse("a").unwrap() };
        let write = Message::Write(v1::RecordWrite::default());
        for open in [read(), write, Message::Watch(v1::LiveQuery::default()), Message::Stat(v1::TableStat::default())] {
            let caller = admitted(&nobody, open).unwrap().caller.unwrap();
            assert_eq!((caller.level(), caller.privileged), (TableLevel::Public, false));
            assert_eq!((caller.app.as_str(), caller.principal.as_str()), ("a", "nobody"));
        }
        let kept = v1::LiveQuery { netid: vec![1; 16].into(), ..Default::default() };
        for closed in [
            Message::List(v1::TableList {}),
            Message::Create(v1::TableCreate::default()),
            Message::Alter(v1::TableAlter::default()),
            Message::Drop(v1::TableDrop::default()),
            Message::Split(v1::TableSplit::default()),
            Message::Merge(v1::TableMerge::default()),
            Message::Access(v1::TableAccess::default()),
            Message::Queries(v1::TableQueries::default()),
            Message::Load(v1::TablesLoad::default()),
            Message::Watch(kept),
        ] {
            assert_eq!(admitted(&nobody, closed).unwrap_err(), "control.unauthenticated");
        }
        assert_eq!(admitted(&nobody, Message::Cede(v1::PartitionCede {})).unwrap_err(), "control.unsupported");
    }

    #[test]
    fn how_all_nodes_fare_is_for_operators_and_between_nodes() {
        let operator = Principal::operator(OperatorBy::Key);
        let load = |alone| Message::Load(v1::TablesLoad { alone });
        let queries = |alone| Message::Queries(v1::TableQueries { alone, ..Default::default() });
        assert_eq!(admitted(&app(), load(false)).unwrap_err(), "tables.operators_only");
        assert_eq!(admitted(&user(&[Action::Read]), load(false)).unwrap_err(), "tables.operators_only");
        assert!(admitted(&operator, load(false)).is_ok() && admitted(&operator, queries(false)).is_ok());
        assert!(admitted(&app(), queries(false)).is_ok());
        // A list of one node is not judged there.
        for alone in [load(true), queries(true)] {
            assert_eq!(admitted(&app(), alone.clone()).unwrap_err(), "control.unsupported");
            assert_eq!(admitted(&operator, alone.clone()).unwrap_err(), "control.unsupported");
            assert!(admitted(&Principal::Node(NodeId(2)), alone).is_ok());
        }
        assert_eq!(admitted(&Principal::Node(NodeId(2)), load(false)).unwrap_err(), "control.unsupported");
    }

    #[test]
    fn users_do_what_they_are_granted_and_bring_their_claims() {
        let write = || Message::Write(v1::RecordWrite::default());
        assert_eq!(admitted(&user(&[]), read()).unwrap_err(), "control.forbidden");
        assert_eq!(admitted(&user(&[Action::Read]), write()).unwrap_err(), "control.forbidden");
        let caller = admitted(&user(&[Action::Write]), write()).unwrap().caller.unwrap();
        assert_eq!((caller.level(), caller.privileged, caller.until_us), (TableLevel::User, false, 7));
        assert_eq!(Packed::parse(&caller.claims).unwrap(), Packed::columns([("sub", Value::from("s"))]).unwrap());
        assert_eq!(admitted(&app(), Message::Rows(v1::RecordRows::default())).unwrap_err(), "control.unsupported");
    }
}
