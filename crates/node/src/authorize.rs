//! Who may do what: one function, default deny.
//!
//! ```text
//!                 control  raft   admin        store, feed, and the parts above
//!   operator      yes      no     yes          yes, in the application named by the request
//!   node          yes      yes    read         yes, in any application (it forwards what it has checked)
//!   app           yes      no     no           read and write, in its own application
//!   user          yes      no     no           what its issuer's grants say, in the issuer's application
//!   nobody        no       no     no           tables of the application that it names: what these open to everybody
//! ```
//! Whatever a request contains is checked piece by piece by [`Gate`](crate::gate::Gate), which alone holds the
//! services; there is no way around it.

use crate::config::Grant;
use crate::principal::{AppName, Principal};
use tidings_base::{Class, Error};
use tidings_wire::Part;

/// What is done to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is looked at.
    Read,
    /// It is changed, or taken away from others, as a feed's consumer does.
    Write,
}

impl Action {
    /// The action as it stands in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Action::Read => "read",
            Action::Write => "write",
        }
    }
}

/// What it is done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The cluster as a whole: its members, applications, keys, logs.
    Cluster,
    /// Data of an application.
    App(AppName),
    /// Data under its full name, application and all: only nodes speak like that.
    Raw,
}

/// Allows an action or says who may do it.
pub fn authorize(principal: &Principal, part: Part, action: Action, resource: &Resource) -> Result<(), Error> {
    let allowed = match principal {
        Principal::Operator { .. } => part != Part::Raft,
        Principal::Node(_) => match part {
            Part::Control | Part::Raft => true,
            Part::Admin => action == Action::Read,
            _ => true,
        },
        // Which tables, and what of them, their levels and lists say.
        Principal::Nobody { app } => part == Part::Tables && *resource == Resource::App(app.clone()),
        Principal::App { app, .. } => match part {
            Part::Control => true,
            Part::Raft | Part::Admin => false,
            _ => *resource == Resource::App(app.clone()),
        },
        Principal::User { app, grants, .. } => match part {
            Part::Control => true,
            Part::Raft | Part::Admin => false,
            _ => *resource == Resource::App(app.clone()) && grants.contains(&Grant { part, action }),
        },
    };
    if allowed { Ok(()) } else { Err(forbidden(principal, part, action)) }
}

fn forbidden(principal: &Principal, part: Part, action: Action) -> Error {
    let message = format!("{principal} may not {} {}", action.name(), part.name());
    let hint = match (principal, part) {
        (_, Part::Raft) => "Only nodes of the cluster may, each by its certificate.",
        (_, Part::Admin) => "Only the operator may: use the operator key.",
        (Principal::Nobody { .. }, _) => "Pass a key, or a token of an issuer.",
        (Principal::User { .. }, _) => "Let the operator add a grant to the token's issuer, or use an application key.",
        _ => "A key opens only its own application.",
    };
    Error::new("control.forbidden", Class::Refused, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::OperatorBy;
    use std::sync::Arc;
    use tidings_base::NodeId;

    fn app(name: &str) -> AppName {
        AppName::parse(name).unwrap()
    }

    fn user(grants: &[Grant]) -> Principal {
        Principal::User {
            app: app("a"),
            issuer: Arc::from("i"),
            subject: Arc::from("s"),
            grants: Arc::from(grants),
            objects: Arc::from([]),
            claims: Default::default(),
        }
    }

    /// Everything that a principal may do, as `part.action@resource`.
    fn allowed(principal: &Principal) -> Vec<String> {
        let resources =
            [("cluster", Resource::Cluster), ("a", Resource::App(app("a"))), ("b", Resource::App(app("b")))];
        let mut all = Vec::new();
        for part in Part::ALL.iter().skip(1) {
            for action in [Action::Read, Action::Write] {
                for (name, resource) in &resources {
                    if authorize(principal, *part, action, resource).is_ok() {
                        all.push(format!("{}.{}@{name}", part.name(), action.name()));
                    }
                }
            }
        }
        all
    }

    #[test]
    fn an_app_may_use_its_own_application_and_nothing_else() {
        let all = allowed(&Principal::App { app: app("a"), key: Arc::from("k") });
        assert_eq!(all.len(), 14, "{all:?}");
        assert!(all.iter().all(|what| what.ends_with("@a") && !what.starts_with("admin") && !what.starts_with("raft")));
    }

    #[test]
    fn a_user_may_do_what_its_issuer_grants_and_nothing_by_default() {
        assert_eq!(allowed(&user(&[])), Vec::<String>::new());
        let grant = Grant { part: Part::Store, action: Action::Read };
        assert_eq!(allowed(&user(&[grant])), ["store.read@a"]);
    }

    #[test]
    fn nobody_may_use_tables_of_the_application_that_is_named_and_nothing_else() {
        assert_eq!(allowed(&Principal::Nobody { app: app("a") }), ["tables.read@a", "tables.write@a"]);
    }

    #[test]
    fn administration_is_the_operators_and_replication_the_nodes() {
        let (read, write) = (Action::Read, Action::Write);
        let keyed = Principal::operator(OperatorBy::Key);
        let unconfigured = Principal::operator(OperatorBy::Unconfigured);
        let node = Principal::Node(NodeId(2));
        for (principal, part, action, expected) in [
            (&keyed, Part::Admin, write, true),
            (&keyed, Part::Raft, write, false),
            (&unconfigured, Part::Raft, write, false),
            (&node, Part::Raft, write, true),
            (&node, Part::Admin, read, true),
            (&node, Part::Admin, write, false),
        ] {
            let result = authorize(principal, part, action, &Resource::Cluster);
            assert_eq!(result.is_ok(), expected, "{principal} {part:?} {action:?}");
            if let Err(e) = result {
                assert_eq!((e.code.as_ref(), e.http_status(), e.grpc_status()), ("control.forbidden", 403, 7));
            }
        }
    }
}
