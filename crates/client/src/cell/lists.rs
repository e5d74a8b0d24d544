//! Lists that come in pages: sessions and locks, for operators.

use super::transport::unexpected;
use tidings_base::Error;
use tidings_wire::v1::cell_message::Message;
use tidings_wire::v1::{self, ListLocks, ListSessions, LockInfo, SessionInfo};

/// A list, as far as it was followed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed<T> {
    /// What was found, in order.
    pub all: Vec<T>,
    /// There are more after these.
    pub more: bool,
}

impl<T> Listed<T> {
    /// Takes a page; whether another one is wanted. A page of nothing is the last, whatever it says.
    fn take(&mut self, page: Vec<T>, more: bool, at_most: usize) -> bool {
        self.more = more && !page.is_empty();
        self.all.extend(page);
        self.more && self.all.len() < at_most
    }
}

/// The sessions of the cell above a number, page by page until there are `at_most` or a page more.
pub async fn list_sessions<F>(
    after: u64,
    at_most: usize,
    ask: impl Fn(Message) -> F,
) -> Result<Listed<SessionInfo>, Error>
where
    F: Future<Output = Result<Message, Error>>,
{
    let mut listed = Listed::default();
    let mut next = ListSessions { after };
    loop {
        let Message::SessionList(page) = ask(Message::ListSessions(next)).await? else { return Err(unexpected()) };
        if !listed.take(page.sessions, page.more, at_most) {
            return Ok(listed);
        }
        next = ListSessions { after: listed.all.last().map_or(after, |last: &SessionInfo| last.session) };
    }
}

/// The locks of the cell after an application and path, page by page until there are `at_most` or a page more.
pub async fn list_locks<F>(
    after: ListLocks,
    at_most: usize,
    ask: impl Fn(Message) -> F,
) -> Result<Listed<LockInfo>, Error>
where
    F: Future<Output = Result<Message, Error>>,
{
    let mut listed = Listed::default();
    let mut next = after;
    loop {
        let Message::LockList(page) = ask(Message::ListLocks(next)).await? else { return Err(unexpected()) };
        let last = page.locks.last().cloned().unwrap_or_default();
        if !listed.take(page.locks, page.more, at_most) {
            return Ok(listed);
        }
        next = v1::ListLocks { after_app: last.app, after_path: last.path };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions 1 to 10, three a page.
    async fn sessions(message: Message) -> Result<Message, Error> {
        let Message::ListSessions(ListSessions { after }) = message else { return Err(unexpected()) };
        let sessions = (after + 1..=10).take(3).map(|session| SessionInfo { session, ..Default::default() });
        Ok(Message::SessionList(v1::SessionList { sessions: sessions.collect(), more: after + 3 < 10 }))
    }

    #[tokio::test]
    async fn pages_are_followed_to_the_end_or_the_bound() {
        let numbers = |listed: &Listed<SessionInfo>| listed.all.iter().map(|s| s.session).collect::<Vec<_>>();
        let all = list_sessions(0, usize::MAX, sessions).await.unwrap();
        assert_eq!((numbers(&all), all.more), ((1..=10).collect(), false));
        let some = list_sessions(2, 4, sessions).await.unwrap();
        assert_eq!((numbers(&some), some.more), ((3..=8).collect(), true));
        let locks = |_| async { Ok(Message::LockList(v1::LockList { locks: vec![], more: true })) };
        assert_eq!(list_locks(ListLocks::default(), usize::MAX, locks).await.unwrap(), Listed::default());
    }
}
