//! What a node refuses before the master is asked: what makes sense to the cell, and cannot be meant.

use crate::placement;
use crate::principal::{AppName, clip};
use tidings_base::{Class, Error};
use tidings_cell::SessionId;
use tidings_cell::namespace::SharedNamespace;
use tidings_cell::path::NodePath;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::node_target::Target;

/// Why a message is refused here, if it is.
pub(super) fn refused(state: &SharedNamespace, message: &Message) -> Option<Box<Error>> {
    let error = match message {
        Message::EndSession(end) => {
            let app = state.read().session(SessionId(end.session)).map(|record| record.caller.app.clone());
            reserved(end.session, &app?)?
        }
        Message::Open(open) => bad_list(&open.path, &open.create.as_ref()?.contents)?,
        Message::SetContents(set) => match set.target.as_ref()?.target.as_ref()? {
            Target::Path(path) => bad_list(path, &set.contents)?,
            Target::Handle(_) => return None,
        },
        _ => return None,
    };
    Some(Box::new(error))
}

/// The placement managers stand for election by sessions of their own. Whoever ended one would depose the manager, and a
/// session that nobody keeps ends by itself within seconds.
fn reserved(session: u64, app: &str) -> Option<Error> {
    let message = format!("session {session} is a placement manager's own, and ends when its node does");
    (app == placement::APP).then(|| {
        Error::new("cell.reserved_session", Class::Refused, message)
            .hint("To let another node lead placement, restart this one; `tidings status` names the leader.")
    })
}

/// A line of an access list that names nobody would shut people out, or in, without a word.
fn bad_list(path: &str, contents: &[u8]) -> Option<Error> {
    let path = NodePath::parse(path).ok()?;
    if path.parent()? != NodePath::acl_directory() {
        return None;
    }
    let (number, line) = (1..).zip(contents.split(|byte| *byte == b'\n')).find(|(_, line)| !is_line(line))?;
    let shown = clip(&String::from_utf8_lossy(line));
    let message = format!("line {number} of the access list `{}` names nobody: `{shown}`", path.name());
    Some(Error::new("cell.bad_acl_line", Class::Invalid, message).hint(
        "A line is `app:APP` (all its keys), `app:APP/KEYID`, `user:APP` (all its users), `user:APP/SUBJECT`, `node:N`, \
         `operator`, `*` for everybody, or begins with `#`. Nothing was written.",
    ))
}

fn is_line(line: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(line).map(str::trim) else { return false };
    if line.is_empty() || line.starts_with('#') || ["*", "operator"].contains(&line) {
        return true;
    }
    let of_app = |name: &str| {
        let (app, rest) = name.split_once('/').map_or((name, None), |(app, rest)| (app, Some(rest)));
        let whole = |rest: &str| !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c.is_control());
        AppName::parse(app).is_ok() && rest.is_none_or(whole)
    };
    match line.split_once(':') {
        Some(("app" | "user", name)) => of_app(name),
        Some(("node", number)) => number.parse::<u64>().is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_names_nobody_is_refused_with_its_number() {
        let good =
            b"# those of the shop\n\napp:shop\n  app:shop/k1 \nuser:shop\nuser:shop/a%2Fb\nnode:3\noperator\n*\n";
        assert_eq!(bad_list("/acl/writers", good), None);
        assert_eq!(bad_list("/acl", b"!"), None);
        assert_eq!(bad_list("/elsewhere/writers", b"anything"), None);
        for bad in ["shop", "app:", "app:Shop", "app:shop/", "app:shop/a b", "group:x", "node:x", "user:/x"] {
            let error = bad_list("/acl/writers", format!("app:shop\n{bad}\n").as_bytes()).unwrap();
            assert!(error.message.contains("line 2") && error.message.contains(bad), "{error}");
        }
        assert!(bad_list("/acl/writers", &[0xff]).is_some());
    }

    #[test]
    fn only_the_platforms_own_sessions_are_reserved() {
        assert!(reserved(7, placement::APP).is_some());
        assert_eq!(reserved(7, "default"), None);
    }
}
