//! Opening a node: what is wanted of it, in any order.

use super::calls::Inner;
use super::events::Events;
use super::handle::Handle;
use super::opened::Asked;
use super::session::{Answer, Meaning};
use super::stat::Acl;
use super::transport::unexpected;
use bytes::Bytes;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_wire::v1::{self, cell_message::Message};

/// What is wanted of a node. Await it to open the node.
///
/// An open for reading or writing that was made before and is in use is answered from the cache, where that is allowed:
/// both share what the cell knows as one handle, which is closed with the last of them.
///
/// ```no_run
/// # use tidings_client::cell::{Cell, Events};
/// # async fn example(cell: Cell) -> Result<(), tidings_base::Error> {
/// let file = cell.open("/app/config").read().events(Events::CONTENTS).await?;
/// let lock = cell.open("/app/leader").lock().create_file("").await?;
/// let mine = cell.open("/app/members/me").write().create_file("10.0.0.7:80").ephemeral().exclusive().await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened until it is awaited"]
pub struct Open {
    cell: Arc<Inner>,
    request: v1::OpenNode,
}

impl Open {
    pub(crate) fn new(cell: Arc<Inner>, path: &str) -> Open {
        Open { cell, request: v1::OpenNode { path: path.to_owned(), ..Default::default() } }
    }

    /// To read contents, stat and children.
    pub fn read(mut self) -> Open {
        self.request.read = true;
        self
    }

    /// To change contents and ACL names, and to delete.
    pub fn write(mut self) -> Open {
        self.request.write = true;
        self
    }

    /// To take its lock.
    pub fn lock(mut self) -> Open {
        self.request.lock = true;
        self
    }

    /// To hear of these, through [`Handle::watch`].
    pub fn events(mut self, events: Events) -> Open {
        self.request.events |= events.0;
        self
    }

    /// How long the lock is held back if this handle loses it: long enough for whatever it has under way to end. The
    /// session's default otherwise; at most 60 s.
    pub fn lock_delay(mut self, delay: Duration) -> Open {
        self.request.lock_delay_ms = Some(u32::try_from(delay.as_millis()).unwrap_or(u32::MAX));
        self
    }

    /// Creates a file with these contents if there is no such node.
    pub fn create_file(mut self, contents: impl Into<Bytes>) -> Open {
        let create = self.create();
        create.directory = false;
        create.contents = contents.into();
        self
    }

    /// Creates a directory if there is no such node.
    pub fn create_directory(mut self) -> Open {
        self.create().directory = true;
        self
    }

    /// What is created goes when nobody has it open any more.
    pub fn ephemeral(mut self) -> Open {
        self.create().ephemeral = true;
        self
    }

    /// The node must not exist.
    pub fn exclusive(mut self) -> Open {
        self.create().exclusive = true;
        self
    }

    /// What is created has these ACL names rather than its parent's.
    pub fn acl(mut self, acl: Acl) -> Open {
        self.create().acl = Some(acl.into());
        self
    }

    /// Reads through this handle always ask the master and are never cached.
    pub fn uncached(mut self) -> Open {
        self.request.uncached = true;
        self
    }

    fn create(&mut self) -> &mut v1::CreateNode {
        self.request.create.get_or_insert_default()
    }

    async fn open(self) -> Result<Handle, Error> {
        let Open { cell, mut request } = self;
        if request.lock && request.lock_delay_ms.is_none() {
            request.lock_delay_ms = cell.lock_delay.map(|d| u32::try_from(d.as_millis()).unwrap_or(u32::MAX));
        }
        let asked = Asked::new(&request, cell.core.mutant)?;
        if let Some(opened) = cell.core.open_again(&asked) {
            return Ok(Handle::new(cell, opened));
        }
        match cell.core.call(Message::Open(request), Meaning::Open(asked)).await? {
            Answer::Opened(opened) => Ok(Handle::new(cell, opened)),
            _ => Err(unexpected()),
        }
    }
}

impl IntoFuture for Open {
    type Output = Result<Handle, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
