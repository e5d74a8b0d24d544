//! Notify's client: it registers objects, and hears of their latest versions whatever crashed, was lost or was offline.
//!
//! ```text
//!   application ── Listener: register, unregister, reissued ──▶ task: client machine ──▶ one operation of the connection
//!        ▲                                                        │   │                  (opened again when it closes)
//!        └── Events: next, or run with a callback ── mailbox ◀────┘   └▶ State: the token, kept across restarts
//! ```
//! Errors are no separate path: whatever went wrong surfaces as a notification, known or unknown. A notification is
//! acknowledged when the application has dealt with it ([`Events::run`] does so by itself); until then it comes again.
//! Several versions of an object that wait for a slow application are told as the last one.
//!
//! [`publish`] is the other side: only applications publish. [`Cached`] is what most people want: a value that is always
//! fresh.

mod cached;
mod channel;
mod events;
mod publish;
mod state;
mod task;

pub use cached::{Cached, CachedOptions};
pub use events::{Ack, Event, Events, Notification, Unknown};
pub use publish::{Publication, publish};
pub use state::State;
pub use tidings_notify::names::{MAX_NAME, MAX_PAYLOAD, MAX_VERSION};
pub use tidings_wire::v1::{NotifyRefused, NotifyTimes};

use crate::Client;
use bytes::Bytes;
use events::Mailbox;
use std::sync::Arc;
use std::time::Duration;
use task::Task;
use tidings_base::{Class, Error};
use tidings_notify::client::{Client as Machine, Input, Options};
use tokio::sync::mpsc;

/// What the application said and the task has not taken yet; whoever says more waits in the mailbox's stead.
type Inputs = mpsc::UnboundedSender<Input>;

/// How a listener behaves. The default keeps nothing across restarts.
#[derive(Debug)]
pub struct ListenerOptions {
    /// Where its token is kept. With it a restart goes on as the same client: only what it has not acknowledged comes.
    pub state: State,
    /// Names this installation, as publications' `source` does: it is not told of what it made itself. None by default.
    pub source: Bytes,
    /// How often it says that it is there. 20 min: a closed connection is noticed at once anyway.
    pub heartbeat: Duration,
}

impl Default for ListenerOptions {
    fn default() -> ListenerOptions {
        ListenerOptions { state: State::none(), source: Bytes::new(), heartbeat: Duration::from_secs(20 * 60) }
    }
}

/// Says what an application wants to hear of. Cheap to clone; when the last clone is dropped the client goes offline.
///
/// ```no_run
/// # use tidings_client::{Client, ClientConfig, notify::{Event, Listener, ListenerOptions, State}};
/// # async fn example() -> Result<(), tidings_base::Error> {
/// let client = Client::connect(ClientConfig::new(["http://127.0.0.1:7400"])).await?;
/// let options = ListenerOptions { state: State::file("/var/lib/shop/notify")?, ..Default::default() };
/// let (listener, events) = Listener::start(client, options)?;
/// events.run(async |event| match event {
///     Event::Reissue => {
///         listener.register("prices", 0);
///         listener.reissued();
///     }
///     Event::Notify(news) => println!("prices have version {} or later", news.version),
///     Event::Unknown(_) => println!("fetch the prices"),
///     _ => {}
/// }).await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Listener {
    inputs: Inputs,
}

impl Listener {
    /// Begins. The first event is [`Event::Reissue`]: register everything, then say [`Listener::reissued`].
    pub fn start(client: Client, options: ListenerOptions) -> Result<(Listener, Events), Error> {
        let seed = getrandom::u64()
            .map_err(|e| Error::new("client.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
        let ListenerOptions { state, source, heartbeat } = options;
        let (inputs, queue) = mpsc::unbounded_channel();
        let mailbox = Arc::new(Mailbox::default());
        let persistent = state.is_kept();
        let machine =
            Machine::new(Options { seed, source, persistent, heartbeat: Some(heartbeat), ..Options::default() });
        let task = Task::new(client, machine, state, mailbox.clone());
        tokio::spawn(task.run(queue));
        let events = Events::new(mailbox, inputs.downgrade());
        Ok((Listener { inputs }, events))
    }

    /// Intends to hear of an object; `known` is the version that the application has, 0 if none. It spares a notification
    /// where the servers are known to count versions as they did then: where the client's state was kept, or a session is
    /// open. Elsewhere the present version is told again.
    pub fn register(&self, object: impl Into<Bytes>, known: u64) {
        self.say(Input::Register { object: object.into(), known });
    }

    /// Intends to hear of it no more.
    pub fn unregister(&self, object: impl Into<Bytes>) {
        self.say(Input::Unregister { object: object.into() });
    }

    /// Everything was registered again, after [`Event::Reissue`].
    pub fn reissued(&self) {
        self.say(Input::Reissued);
    }

    /// Ends it in order: what was acknowledged is said, and an id that nobody keeps ([`State::none`]) is given back. Takes a
    /// round trip, and two seconds at most. Dropping the last clone does the same in the background.
    pub async fn leave(self) {
        self.say(Input::Leave);
        self.inputs.closed().await;
    }

    fn say(&self, input: Input) {
        // Without a task nobody listens any more.
        let _ = self.inputs.send(input);
    }
}
