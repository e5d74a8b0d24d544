//! Requests of the cell: who asks is filled in here, and never taken from whoever asks.

use super::unsupported;
use crate::authorize::{Action, Resource, authorize};
use crate::principal::{AppName, Principal};
use tidings_base::{Class, Error};
use tidings_wire::v1::cell_message::Message;
use tidings_wire::{Part, v1};

/// The longest text of a principal: sessions are kept by it, and lines of ACL files are such.
const MAX_PRINCIPAL: usize = 1 << 10;

/// Checks a request and says in it who asks. A node keeps what the message says: it forwards for somebody it has
/// checked.
pub(super) fn admit(principal: &Principal, request: &mut v1::CellMessage) -> Result<(), Error> {
    let caller = match (principal, request.caller.take()) {
        (Principal::Node(_), Some(forwarded)) => forwarded,
        _ => caller(principal),
    };
    if let (false, Some(Message::CreateSession(create))) =
        (matches!(principal, Principal::Node(_)), &mut request.message)
    {
        create.keeper = 0;
    }
    let resource = match principal.app() {
        Some(app) => Resource::App(app),
        None => Resource::Raw,
    };
    if caller.principal.len() > MAX_PRINCIPAL {
        return Err(Error::new(
            "cell.principal_too_long",
            Class::Refused,
            "the caller's subject is too long for the cell",
        )
        .hint(format!("With its application it may have {MAX_PRINCIPAL} bytes.")));
    }
    let need = request.message.as_ref().map_or(Need::Nothing, need);
    // Without any right to the cell not even its kinds of messages are told apart.
    let action = if need == Need::Write { Action::Write } else { Action::Read };
    authorize(principal, Part::Cell, action, &resource)?;
    match need {
        Need::Nothing => return Err(unsupported("this message of the cell")),
        Need::Operator if !caller.privileged => return Err(operators_only(principal)),
        Need::Operator | Need::Read | Need::Write => {}
    }
    request.caller = Some(caller);
    Ok(())
}

/// Who shows nothing.
pub(crate) const NOBODY: &str = tidings_tables::acl::NOBODY;

/// A principal as the cell knows it, in ACL files and as the owner of sessions. Never shortened: two subjects that begin
/// alike are not the same.
pub(crate) fn caller(principal: &Principal) -> v1::CellCaller {
    let text = match principal {
        Principal::App { app, key } => format!("app:{app}/{key}"),
        Principal::User { app, subject, .. } => format!("user:{app}/{}", escaped(subject)),
        Principal::Nobody { .. } => NOBODY.to_owned(),
        Principal::Node(node) => format!("node:{node}"),
        // However it was recognised: an operator is one.
        Principal::Operator { .. } => "operator".to_owned(),
    };
    v1::CellCaller {
        app: principal.app().unwrap_or_else(AppName::default_app).as_str().to_owned(),
        principal: text,
        privileged: matches!(principal, Principal::Node(_) | Principal::Operator { .. }),
    }
}

/// A subject as it stands in ACL files: what could end a line or look like the start of a longer name is
/// percent-encoded, so that nobody is taken for another by a clever choice of subject.
fn escaped(subject: &str) -> String {
    let mut text = String::with_capacity(subject.len());
    for c in subject.chars() {
        if c.is_control() || c.is_whitespace() || matches!(c, '/' | '%' | '#' | '*') {
            let mut utf8 = [0; 4];
            text.extend(c.encode_utf8(&mut utf8).bytes().map(|byte| format!("%{byte:02X}")));
        } else {
            text.push(c);
        }
    }
    text
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// To be an operator.
    Operator,
    /// The right to read.
    Read,
    /// The right to write.
    Write,
    /// Nothing would help: it is an answer.
    Nothing,
}

fn need(message: &Message) -> Need {
    match message {
        // A session is needed to read, too.
        Message::CreateSession(_)
        | Message::KeepAlive(_)
        | Message::ResumeSession(_)
        | Message::CloseSession(_)
        | Message::RenewCache(_)
        | Message::Close(_)
        | Message::Read(_)
        | Message::ReadMany(_)
        | Message::GetSequencer(_)
        | Message::CheckSequencer(_)
        | Message::GetQuota(_)
        | Message::Keys(_) => Need::Read,
        Message::Open(open) if open.create.is_none() && !open.write && !open.lock => Need::Read,
        Message::Open(_)
        | Message::SetContents(_)
        | Message::SetAcl(_)
        | Message::Delete(_)
        | Message::Acquire(_)
        | Message::CancelAcquire(_)
        | Message::Release(_) => Need::Write,
        Message::SetQuota(_)
        | Message::ListSessions(_)
        | Message::ListLocks(_)
        | Message::EndSession(_)
        | Message::Backup(_)
        | Message::Restore(_) => Need::Operator,
        Message::SessionCreated(_)
        | Message::KeptAlive(_)
        | Message::SessionResumed(_)
        | Message::ResumeNeeded(_)
        | Message::CacheRenewed(_)
        | Message::Opened(_)
        | Message::NodeRead(_)
        | Message::ManyRead(_)
        | Message::PlacedRead(_)
        | Message::Done(_)
        | Message::Acquired(_)
        | Message::Waiting(_)
        | Message::Sequencer(_)
        | Message::SequencerChecked(_)
        | Message::Quota(_)
        | Message::SessionList(_)
        | Message::LockList(_)
        | Message::KeysReply(_)
        | Message::BackupChunk(_) => Need::Nothing,
    }
}

fn operators_only(principal: &Principal) -> Error {
    Error::new("cell.operators_only", Class::Refused, format!("{principal} is not an operator"))
        .hint("Use the operator key.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Grant;
    use crate::principal::OperatorBy;
    use std::sync::Arc;
    use tidings_base::NodeId;

    fn request(message: Message) -> v1::CellMessage {
        let forged = v1::CellCaller { app: "other".into(), principal: "operator".into(), privileged: true };
        v1::CellMessage { caller: Some(forged), message: Some(message), ..Default::default() }
    }

    fn read() -> Message {
        Message::Read(v1::ReadNode::default())
    }

    fn user(subject: &str, grants: &[Grant]) -> Principal {
        Principal::User {
            app: AppName::parse("a").unwrap(),
            issuer: Arc::from("i"),
            subject: Arc::from(subject),
            grants: Arc::from(grants),
            objects: Arc::from([]),
            claims: Default::default(),
        }
    }

    fn code(principal: &Principal, message: Message) -> String {
        admit(principal, &mut request(message)).err().map_or("".into(), |e| e.code.into_owned())
    }

    #[test]
    fn who_asks_is_filled_in_and_not_believed() {
        let app = Principal::App { app: AppName::parse("a").unwrap(), key: Arc::from("k") };
        let (long, odd) = ("x".repeat(300), "ann/\n%ä");
        let reads = [Grant { part: Part::Cell, action: Action::Read }];
        for (principal, expected) in [
            (app, ("a", "app:a/k".to_owned(), false)),
            (user(&long, &reads), ("a", format!("user:a/{long}"), false)),
            (user(odd, &reads), ("a", "user:a/ann%2F%0A%25ä".to_owned(), false)),
            (Principal::operator(OperatorBy::Unconfigured), ("default", "operator".to_owned(), true)),
            (Principal::operator(OperatorBy::Key), ("default", "operator".to_owned(), true)),
            (Principal::operator(OperatorBy::Key).acting_in("shop").unwrap(), ("shop", "operator".to_owned(), true)),
        ] {
            let mut request = request(read());
            admit(&principal, &mut request).unwrap();
            let caller = request.caller.unwrap();
            assert_eq!((caller.app.as_str(), caller.principal, caller.privileged), expected);
        }
    }

    #[test]
    fn a_node_speaks_for_others_and_else_for_itself() {
        let node = Principal::Node(NodeId(2));
        let mut forwarded = request(read());
        admit(&node, &mut forwarded).unwrap();
        assert_eq!(forwarded.caller.unwrap().app, "other");
        let mut own = v1::CellMessage { caller: None, ..request(read()) };
        admit(&node, &mut own).unwrap();
        assert_eq!(own.caller.unwrap().principal, "node:2");
        let unprivileged = v1::CellCaller { app: "a".into(), principal: "app:a/k".into(), privileged: false };
        let list = Message::ListLocks(v1::ListLocks::default());
        let mut forwarded = v1::CellMessage { caller: Some(unprivileged), ..request(list) };
        assert_eq!(admit(&node, &mut forwarded).unwrap_err().code, "cell.operators_only");
    }

    #[test]
    fn only_a_node_says_who_keeps_a_session() {
        let keeper = |principal: &Principal| {
            let mut asked = request(Message::CreateSession(v1::CreateSession { keeper: 7, ..Default::default() }));
            admit(principal, &mut asked).unwrap();
            match asked.message {
                Some(Message::CreateSession(create)) => create.keeper,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(keeper(&Principal::operator(OperatorBy::Key)), 0);
        assert_eq!(keeper(&Principal::Node(NodeId(7))), 7);
    }

    #[test]
    fn grants_decide_what_users_may_and_answers_are_no_requests() {
        let reads = user("s", &[Grant { part: Part::Cell, action: Action::Read }]);
        assert_eq!(code(&reads, read()), "");
        assert_eq!(code(&reads, Message::Open(v1::OpenNode { read: true, ..Default::default() })), "");
        assert_eq!(code(&reads, Message::CreateSession(v1::CreateSession::default())), "");
        for write in [
            Message::Open(v1::OpenNode { lock: true, ..Default::default() }),
            Message::Open(v1::OpenNode { create: Some(v1::CreateNode::default()), ..Default::default() }),
            Message::SetContents(v1::SetContents::default()),
            Message::Acquire(v1::AcquireLock::default()),
        ] {
            assert_eq!(code(&reads, write), "control.forbidden");
        }
        assert_eq!(code(&user("s", &[]), read()), "control.forbidden");
        assert_eq!(code(&user("s", &[]), Message::Done(v1::CellDone::default())), "control.forbidden");
        assert_eq!(code(&reads, Message::Backup(v1::BackupCell {})), "cell.operators_only");
        let operator = Principal::operator(OperatorBy::Key);
        assert_eq!(code(&operator, Message::Backup(v1::BackupCell {})), "");
        assert_eq!(code(&operator, Message::Done(v1::CellDone::default())), "control.unsupported");
        assert!(admit(&operator, &mut v1::CellMessage::default()).is_err());
    }
}
