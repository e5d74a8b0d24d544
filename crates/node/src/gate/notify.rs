//! Requests of Notify: who asks is filled in here, and never taken from whoever asks.

use super::{Scope, cell_caller, unsupported};
use crate::authorize::{Action, authorize};
use crate::principal::Principal;
use tidings_base::{Class, Error};
use tidings_notify::names::MAX_USER;
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Part, v1};

/// Checks a request and says in it who asks. A node keeps what the message says: it forwards for somebody it has
/// checked.
pub(super) fn admit(principal: &Principal, request: &mut v1::NotifyMessage) -> Result<(), Error> {
    let need = request.message.as_ref().map_or(Need::Nothing, need);
    let action = if matches!(need, Need::Read | Need::Nothing) { Action::Read } else { Action::Write };
    authorize(principal, Part::Notify, action, &Scope::of(principal).resource())?;
    match (need, principal) {
        (Need::Node, Principal::Node(_)) => return Ok(()),
        (Need::Node | Need::Nothing, _) | (_, Principal::Node(_)) => {
            return Err(unsupported("this message of Notify"));
        }
        (Need::Application, Principal::User { .. }) => return Err(applications_only(principal)),
        (Need::Operator, Principal::User { .. } | Principal::App { .. }) => return Err(operators_only(principal)),
        _ => {}
    }
    let caller = cell_caller(principal);
    if caller.principal.len() > MAX_USER {
        return Err(Error::new("notify.principal_too_long", Class::Refused, "the caller's subject is too long")
            .hint(format!("With its application it may have {MAX_USER} bytes.")));
    }
    // Users are limited by what their tokens list where their application wants that; others are not.
    let claims = match principal {
        Principal::User { objects, .. } => Some(v1::NotifyClaims { objects: objects.to_vec() }),
        _ => None,
    };
    request.caller = Some(v1::NotifyCaller { app: caller.app, principal: caller.principal, claims });
    Ok(())
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The right to read: to hear.
    Read,
    /// To be an application with the right to write: users publish nothing, and see nobody else.
    Application,
    /// To be an operator.
    Operator,
    /// To be another node.
    Node,
    /// It is no request.
    Nothing,
}

fn need(message: &Message) -> Need {
    match message {
        Message::Up(_) => Need::Read,
        Message::TraceList(list) if list.alone => Need::Node,
        Message::Load(load) if load.alone => Need::Node,
        Message::Publish(_)
        | Message::ObjectList(_)
        | Message::ClientList(_)
        | Message::TraceList(_)
        | Message::Count(_) => Need::Application,
        Message::Reset(reset) if !reset.everything => Need::Application,
        Message::Reset(_) | Message::Rotate(_) | Message::Load(_) => Need::Operator,
        Message::ForwardUp(_)
        | Message::ForwardDown(_)
        | Message::ChannelClosed(_)
        | Message::ChannelClaims(_)
        | Message::Match(_)
        | Message::Notify(_) => Need::Node,
        Message::Down(_)
        | Message::Published(_)
        | Message::ObjectListReply(_)
        | Message::ClientListReply(_)
        | Message::ResetDone(_)
        | Message::Rotated(_)
        | Message::TraceListReply(_)
        | Message::ChannelClaimsReply(_)
        | Message::LoadReply(_)
        | Message::CountReply(_)
        | Message::Matched(_)
        | Message::Notified(_)
        | Message::Forwarded(_) => Need::Nothing,
    }
}

fn applications_only(principal: &Principal) -> Error {
    Error::new("notify.applications_only", Class::Refused, format!("{principal} is a user, not an application"))
        .hint("Let the application's backend do this, with an application key.")
}

fn operators_only(principal: &Principal) -> Error {
    Error::new("notify.operators_only", Class::Refused, format!("{principal} is not an operator"))
        .hint("Let the operator do this, with the operator key.")
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

    /// Who asks, as it is said behind the gate, or the refusal's code.
    fn admitted(principal: &Principal, message: Message) -> String {
        let claims = Some(v1::NotifyClaims { objects: vec!["*".into()] });
        let forged = v1::NotifyCaller { app: "forged".into(), principal: "forged".into(), claims };
        let mut request = v1::NotifyMessage { caller: Some(forged), message: Some(message) };
        match admit(principal, &mut request) {
            Ok(()) => request.caller.map(|caller| format!("{} {}", caller.app, caller.principal)).unwrap_or_default(),
            Err(error) => error.code.into_owned(),
        }
    }

    #[test]
    fn nobody_says_who_he_is_but_nodes_and_only_they_speak_as_nodes() {
        let up = || Message::Up(v1::NotifyUp::default());
        let forward = || Message::ForwardUp(v1::ForwardUp::default());
        assert_eq!(admitted(&app(), up()), "a app:a/k");
        assert_eq!(admitted(&Principal::operator(OperatorBy::Key), up()), "default operator");
        assert_eq!(admitted(&Principal::Node(NodeId(2)), forward()), "forged forged");
        for other in [app(), Principal::operator(OperatorBy::Key)] {
            assert_eq!(admitted(&other, forward()), "control.unsupported");
            assert_eq!(admitted(&other, Message::Match(v1::MatchBatch::default())), "control.unsupported");
        }
        assert_eq!(admitted(&Principal::Node(NodeId(2)), up()), "control.unsupported");
        assert_eq!(admitted(&app(), Message::Down(v1::NotifyDown::default())), "control.unsupported");
    }

    #[test]
    fn users_hear_what_they_are_granted_and_never_publish() {
        let publish = || Message::Publish(v1::Publish::default());
        let up = || Message::Up(v1::NotifyUp::default());
        let grant = |action| Grant { part: Part::Notify, action };
        assert_eq!(admitted(&user(&[]), up()), "control.forbidden");
        assert_eq!(admitted(&user(&[grant(Action::Read)]), up()), "a user:a/s");
        let all = user(&[grant(Action::Read), grant(Action::Write)]);
        assert_eq!(admitted(&all, publish()), "notify.applications_only");
        assert_eq!(admitted(&app(), publish()), "a app:a/k");
        let wipe = || Message::Reset(v1::NotifyReset { everything: true });
        assert_eq!(admitted(&app(), wipe()), "notify.operators_only");
        assert_eq!(admitted(&Principal::operator(OperatorBy::Key), wipe()), "default operator");
        // What all nodes do is the operator's to see; what an application has, its own.
        let load = |alone| Message::Load(v1::NotifyLoad { alone });
        assert_eq!(admitted(&app(), load(false)), "notify.operators_only");
        assert_eq!(admitted(&Principal::operator(OperatorBy::Key), load(false)), "default operator");
        assert_eq!(admitted(&Principal::operator(OperatorBy::Key), load(true)), "control.unsupported");
        assert_eq!(admitted(&all, Message::Count(v1::NotifyCount {})), "notify.applications_only");
        assert_eq!(admitted(&app(), Message::Count(v1::NotifyCount {})), "a app:a/k");
    }
}
