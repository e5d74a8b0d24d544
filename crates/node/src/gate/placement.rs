//! Requests of placement: namespaces belong to applications, and have their full names behind the gate.

use super::{Scope, unsupported};
use crate::authorize::{Action, authorize};
use crate::principal::Principal;
use tidings_base::{Class, Error};
use tidings_wire::v1::placement_message::Message;
use tidings_wire::{Part, v1};

/// The longest name of a namespace within its application.
const MAX_NAME: usize = 128;

/// Checks a request and gives its namespace the application.
pub(super) fn admit(principal: &Principal, scope: &Scope, request: &mut v1::PlacementMessage) -> Result<(), Error> {
    let may = |action| authorize(principal, Part::Placement, action, &scope.resource());
    let Some(message) = &mut request.message else {
        may(Action::Read)?;
        return Err(unsupported("this message of placement"));
    };
    match need(message) {
        Some(Need::Read) => may(Action::Read)?,
        Some(Need::Write) => may(Action::Write)?,
        Some(Need::Operator) => {
            may(Action::Write)?;
            if !matches!(principal, Principal::Operator { .. } | Principal::Node(_)) {
                return Err(operators_only(principal));
            }
        }
        None => {
            may(Action::Read)?;
            return Err(unsupported("this message of placement"));
        }
    }
    if let (Message::NamespaceCreate(create), Scope::App(_)) = (&*message, scope) {
        not_the_platforms(&create.namespace)?;
    }
    match namespace(message) {
        Some(name) => scoped(scope, name),
        None => Ok(()),
    }
}

/// Refuses names that would be taken for the platform's own namespaces, such as `.notify`.
fn not_the_platforms(name: &str) -> Result<(), Error> {
    match name.starts_with('.') {
        true => Err(Error::new("placement.bad_namespace", Class::Invalid, "this cannot name a namespace")
            .hint("Begin it with something else than a dot: such names are the platform's own.")),
        false => Ok(()),
    }
}

/// The full name of a namespace, if the principal may do so much there.
pub(super) fn named(principal: &Principal, scope: &Scope, namespace: &str, action: Action) -> Result<String, Error> {
    authorize(principal, Part::Placement, action, &scope.resource())?;
    let mut name = namespace.to_owned();
    scoped(scope, &mut name)?;
    Ok(name)
}

/// Takes the application off the names of an answer, and what is not the caller's out of it.
pub(super) fn finish(scope: &Scope, answer: &mut Message) {
    let Scope::App(app) = scope else { return };
    let own = |name: &str| name.strip_prefix(app.as_str()).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned);
    match answer {
        Message::NamespaceListReply(list) => {
            list.namespaces.retain_mut(|info| match own(&info.namespace) {
                Some(name) => {
                    info.namespace = name;
                    true
                }
                None => false,
            });
        }
        Message::TableReply(v1::TableReply { info: Some(info), .. }) => {
            if let Some(name) = own(&info.namespace) {
                info.namespace = name;
            }
        }
        _ => {}
    }
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// To be an operator: namespaces are few, and all applications share them.
    Operator,
    /// The right to read.
    Read,
    /// The right to write.
    Write,
}

/// What a request needs; `None` = it is an answer.
fn need(message: &Message) -> Option<Need> {
    match message {
        Message::LookupPoll(_) | Message::NamespaceList(_) | Message::TableGet(_) | Message::OwnerList(_) => {
            Some(Need::Read)
        }
        Message::OwnerPoll(_) | Message::OwnerDrain(_) | Message::Rebalance(_) => Some(Need::Write),
        Message::NamespaceCreate(_) | Message::NamespaceDelete(_) => Some(Need::Operator),
        Message::OwnerAnswer(_)
        | Message::LookupAnswer(_)
        | Message::NamespaceListReply(_)
        | Message::TableReply(_)
        | Message::OwnerListReply(_)
        | Message::RebalanceReply(_)
        | Message::Done(_) => None,
    }
}

/// The namespace that a request names.
fn namespace(message: &mut Message) -> Option<&mut String> {
    match message {
        Message::OwnerPoll(poll) => Some(&mut poll.namespace),
        Message::LookupPoll(poll) => Some(&mut poll.namespace),
        Message::NamespaceCreate(create) => Some(&mut create.namespace),
        Message::NamespaceDelete(delete) => Some(&mut delete.namespace),
        Message::TableGet(get) => Some(&mut get.namespace),
        Message::OwnerList(list) => Some(&mut list.namespace),
        Message::OwnerDrain(drain) => Some(&mut drain.namespace),
        Message::Rebalance(rebalance) => Some(&mut rebalance.namespace),
        _ => None,
    }
}

fn scoped(scope: &Scope, name: &mut String) -> Result<(), Error> {
    let Scope::App(app) = scope else { return Ok(()) };
    if !(1..=MAX_NAME).contains(&name.len()) || name.contains(char::is_control) {
        return Err(Error::new("placement.bad_namespace", Class::Invalid, "this cannot name a namespace")
            .hint(format!("Use 1 to {MAX_NAME} bytes without control characters.")));
    }
    *name = format!("{app}/{name}");
    Ok(())
}

fn operators_only(principal: &Principal) -> Error {
    Error::new("placement.operators_only", Class::Refused, format!("{principal} is not an operator"))
        .hint("Let the operator create and delete namespaces, with the operator key.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Grant;
    use crate::principal::{AppName, OperatorBy};
    use std::sync::Arc;
    use tidings_base::NodeId;

    fn app() -> Principal {
        Principal::App { app: AppName::parse("a").unwrap(), key: Arc::from("k") }
    }

    fn user(grants: &[Grant]) -> Principal {
        let app = AppName::parse("a").unwrap();
        Principal::User {
            app,
            issuer: Arc::from("i"),
            subject: Arc::from("s"),
            grants: Arc::from(grants),
            objects: Arc::from([]),
            claims: Default::default(),
        }
    }

    /// The namespace after the gate, or the refusal's code.
    fn admitted(principal: &Principal, message: Message) -> String {
        let mut request = v1::PlacementMessage { message: Some(message) };
        match admit(principal, &Scope::of(principal), &mut request) {
            Ok(()) => request.message.as_mut().and_then(namespace).cloned().unwrap_or_default(),
            Err(error) => error.code.into_owned(),
        }
    }

    fn owner(namespace: &str) -> Message {
        Message::OwnerPoll(v1::OwnerPoll { namespace: namespace.into(), ..Default::default() })
    }

    fn lookup() -> Message {
        Message::LookupPoll(v1::LookupPoll { namespace: "n".into(), ..Default::default() })
    }

    fn create(namespace: &str) -> Message {
        Message::NamespaceCreate(v1::NamespaceCreate { namespace: namespace.into(), config: None })
    }

    #[test]
    fn an_application_meets_only_its_own_namespaces() {
        assert_eq!(admitted(&app(), owner("n")), "a/n");
        assert_eq!(admitted(&app(), owner("../b/n")), "a/../b/n");
        assert_eq!(admitted(&app(), owner("")), "placement.bad_namespace");
        assert_eq!(admitted(&app(), owner(&"x".repeat(129))), "placement.bad_namespace");
        let info = |name: &str| v1::NamespaceInfo { namespace: name.into(), ..Default::default() };
        let namespaces = vec![info("a/n"), info("ab/n"), info("b/a/n"), info("objects"), info("a/b/c")];
        let mut list = Message::NamespaceListReply(v1::NamespaceListReply { namespaces });
        finish(&Scope::of(&app()), &mut list);
        let Message::NamespaceListReply(list) = list else { panic!("another message") };
        assert_eq!(list.namespaces.iter().map(|i| i.namespace.as_str()).collect::<Vec<_>>(), ["n", "b/c"]);
    }

    #[test]
    fn only_operators_make_namespaces_and_grants_decide_about_users() {
        let operator = Principal::operator(OperatorBy::Key);
        assert_eq!(admitted(&operator, create("n")), "default/n");
        assert_eq!(admitted(&app(), create("n")), "placement.operators_only");
        assert_eq!(admitted(&operator, create(".notify")), "placement.bad_namespace");
        assert_eq!(admitted(&Principal::Node(NodeId(1)), create(".notify")), ".notify", "the platform's own");
        assert_eq!(admitted(&Principal::Node(NodeId(1)), owner("a/n")), "a/n");
        assert_eq!(admitted(&user(&[]), lookup()), "control.forbidden");
        let reads = user(&[Grant { part: Part::Placement, action: Action::Read }]);
        assert_eq!(admitted(&reads, lookup()), "a/n");
        assert_eq!(admitted(&reads, owner("n")), "control.forbidden");
        assert_eq!(admitted(&operator, Message::Done(v1::PlacementDone {})), "control.unsupported");
    }

    #[test]
    fn errors_speak_of_names_that_the_caller_knows() {
        let error = Error::new("placement.no_namespace", Class::NotFound, "there is no namespace `a/n`");
        assert_eq!(Scope::of(&app()).own_words(error).message, "there is no namespace `n`");
    }
}
