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
            let (mut refused, mut known) = (false, Troubles::default());
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
                if known.learn(&event) {
                    troubled.send_replace(known.trouble());
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

/// What stands against the value's freshness.
#[derive(Debug, Default)]
struct Troubles {
    /// Nobody lets this client speak.
    door: Option<Arc<Error>>,
    /// Its object is not registered.
    object: Option<Arc<Error>>,
}

impl Troubles {
    /// Whether an event says something for it or against it.
    fn learn(&mut self, event: &Event) -> bool {
        match event {
            Event::Failed { transient, .. } => {
                let again = if *transient { "for now" } else { "for good" };
                let message = format!("the application does not let this client register the object, {again}");
                self.object = Some(Arc::new(Error::new("notify.not_registered", Class::Refused, message)));
            }
            Event::Refused(reason) => {
                let message = format!("the servers refuse this client: {}", reason.as_str_name());
                self.door = Some(Arc::new(Error::new("notify.refused", Class::Refused, message)));
            }
            Event::Denied(error) => self.door = Some(Arc::new(error.clone())),
            Event::Admitted => self.door = None,
            // Whoever hears so is let in, too.
            Event::Registered { registered: true, .. } | Event::Notify(_) => *self = Troubles::default(),
            _ => return false,
        }
        true
    }

    fn trouble(&self) -> Option<Arc<Error>> {
        self.door.clone().or_else(|| self.object.clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn being_let_in_again_does_not_register_an_object() {
        let mut known = Troubles::default();
        let code = |known: &Troubles| known.trouble().map(|error| error.code.clone().into_owned());
        let denied = || Event::Denied(Error::new("auth.denied", Class::Refused, "no"));
        let registered = |registered| Event::Registered { object: "x".into(), registered };
        assert!(known.learn(&Event::Failed { object: "x".into(), transient: false }) && known.learn(&denied()));
        assert_eq!(code(&known).as_deref(), Some("auth.denied"));
        assert!(known.learn(&Event::Admitted));
        assert_eq!(code(&known).as_deref(), Some("notify.not_registered"));
        assert!(!known.learn(&registered(false)) && known.learn(&registered(true)));
        assert_eq!(code(&known), None);
    }
}
