//! A value that is always fresh: fetched when its object has a new version, or an unknown one.

use super::{Event, Listener, ListenerOptions};
use crate::Client;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Seeded};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The pause after a fetch that failed, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause before an object that was refused for good is registered once more: rights change.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// How a cached value behaves.
#[derive(Debug)]
pub struct CachedOptions {
    /// How its listener behaves.
    pub listener: ListenerOptions,
    /// After an unknown the fetch is spread over this long, so that a loss of the servers' state does not bring everybody
    /// to the backend at once. 2 s.
    pub jitter: Duration,
}

impl Default for CachedOptions {
    fn default() -> CachedOptions {
        CachedOptions { listener: ListenerOptions::default(), jitter: Duration::from_secs(2) }
    }
}

/// A value that is fetched anew whenever its object changes. Cheap to clone; it stops with the last clone.
#[derive(Clone, Debug)]
pub struct Cached<T> {
    value: watch::Receiver<Option<Arc<T>>>,
    trouble: watch::Receiver<Option<Arc<Error>>>,
    _task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: Send + Sync + 'static> Cached<T> {
    /// Fetches the value, and again whenever the object has a new or an unknown version. A fetch that fails is tried
    /// again; until one succeeds the value is what it was.
    pub fn start<F>(
        client: Client,
        object: impl Into<Bytes>,
        options: CachedOptions,
        fetch: impl Fn() -> F + Send + Sync + 'static,
    ) -> Result<Cached<T>, Error>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let object = object.into();
        let (listener, mut events) = Listener::start(client, options.listener)?;
        let (sender, value) = watch::channel(None);
        let (troubled, trouble) = watch::channel(None);
        let mut rng = Seeded::new(getrandom::u64().unwrap_or_default()).fork("cached");
        let jitter = u64::try_from(options.jitter.as_millis()).unwrap_or(u64::MAX).max(1);
        let task = tokio::spawn(async move {
            store(&sender, &fetch).await;
            let mut refused = false;
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = tokio::time::sleep(REFUSED_PAUSE), if refused => {
                        refused = false;
                        listener.register(object.clone(), 0);
                        continue;
                    }
                };
                let Some(event) = event else { return };
                let trouble = why_stale(&event);
                let well =
                    matches!(event, Event::Registered { registered: true, .. } | Event::Notify(_) | Event::Admitted);
                if well || trouble.is_some() {
                    troubled.send_if_modified(|now| std::mem::replace(now, trouble.map(Arc::new)).is_some() || !well);
                }
                match event {
                    Event::Failed { transient: false, .. } => refused = true,
                    Event::Reissue => {
                        listener.register(object.clone(), 0);
                        listener.reissued();
                    }
                    Event::Notify(news) => {
                        store(&sender, &fetch).await;
                        news.ack();
                    }
                    Event::Unknown(unknown) => {
                        tokio::time::sleep(Duration::from_millis(rng.below(jitter))).await;
                        store(&sender, &fetch).await;
                        unknown.ack();
                    }
                    _ => {}
                }
            }
        });
        Ok(Cached { value, trouble, _task: Arc::new(AbortOnDrop(task.abort_handle())) })
    }

    /// The value, if it has been fetched yet.
    pub fn get(&self) -> Option<Arc<T>> {
        self.value.borrow().clone()
    }

    /// Why the value may be stale: its object may not be registered, or nobody lets this client listen. `None` while nothing
    /// is known to be wrong. It goes on trying.
    pub fn trouble(&self) -> Option<Arc<Error>> {
        self.trouble.borrow().clone()
    }

    /// Waits for the first value.
    pub async fn ready(&mut self) -> Option<Arc<T>> {
        self.value.wait_for(Option::is_some).await.ok()?.clone()
    }

    /// Waits until the value was fetched again.
    pub async fn changed(&mut self) -> Option<Arc<T>> {
        self.value.changed().await.ok()?;
        self.get()
    }
}

/// What an event says against the value's freshness.
fn why_stale(event: &Event) -> Option<Error> {
    match event {
        Event::Failed { transient, .. } => {
            let again = if *transient { "for now" } else { "for good" };
            let message = format!("the application does not let this client register the object, {again}");
            Some(Error::new("notify.not_registered", Class::Refused, message))
        }
        Event::Refused(reason) => {
            let message = format!("the servers refuse this client: {}", reason.as_str_name());
            Some(Error::new("notify.refused", Class::Refused, message))
        }
        Event::Denied(error) => Some(error.clone()),
        _ => None,
    }
}

async fn store<T, F>(sender: &watch::Sender<Option<Arc<T>>>, fetch: &impl Fn() -> F)
where
    F: Future<Output = Result<T, Error>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        match fetch().await {
            Ok(value) => {
                sender.send_replace(Some(Arc::new(value)));
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "notify: a fetch failed");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
