//! What the application hears: a mailbox in which versions of one object collapse into the last.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use tidings_base::Error;
use tidings_notify::client::{Event as Said, Input};
use tidings_wire::v1::{NotifyRefused, NotifyTimes};
use tokio::sync::mpsc::WeakUnboundedSender;

/// What an application hears.
#[derive(Debug)]
pub enum Event {
    /// An object has this version, or a later one.
    Notify(Notification),
    /// An object may have any version: fetch it.
    Unknown(Unknown),
    /// A registration is complete (`true`), or its end.
    Registered {
        /// The object.
        object: Bytes,
        /// Whether it is registered.
        registered: bool,
    },
    /// A registration was refused. If that is transient it is tried again; otherwise the object is intended no more.
    Failed {
        /// The object.
        object: Bytes,
        /// Whether that may change.
        transient: bool,
    },
    /// Register everything again, then say [`Listener::reissued`](super::Listener::reissued). At every start.
    Reissue,
    /// The servers refuse this client as it is; it starts anew where that helps.
    Refused(NotifyRefused),
    /// Nobody lets this client listen: its principal has no right to it, or none at all. It goes on trying.
    Denied(Error),
    /// After [`Event::Denied`]: a server speaks to this client again.
    Admitted,
}

/// An object has a version.
#[derive(Debug)]
pub struct Notification {
    /// The object.
    pub object: Bytes,
    /// Its version.
    pub version: u64,
    /// What rode along; usually nothing, and never to be relied on.
    pub payload: Bytes,
    /// Where it was when, if it came the fast way.
    pub times: Option<NotifyTimes>,
    ack: Ack,
}

impl Notification {
    /// The application has dealt with it.
    pub fn ack(&self) {
        self.ack.done();
    }
}

/// An object's version is not known.
#[derive(Debug)]
pub struct Unknown {
    /// The object.
    pub object: Bytes,
    ack: Ack,
}

impl Unknown {
    /// The application has fetched the object, and began to do so after it heard of this.
    pub fn ack(&self) {
        self.ack.done();
    }
}

/// Acknowledges one notification.
#[derive(Clone, Debug)]
pub struct Ack(Arc<Unacked>);

#[derive(Debug)]
struct Unacked {
    inputs: WeakUnboundedSender<Input>,
    object: Bytes,
    version: u64,
    unknown: u64,
    done: AtomicBool,
}

impl Ack {
    /// The application has dealt with it. Twice is as good as once.
    pub fn done(&self) {
        let Unacked { object, version, unknown, done, .. } = &*self.0;
        if done.swap(true, Ordering::Relaxed) {
            return;
        }
        let object = object.clone();
        self.0.say(match *unknown {
            0 => Input::Acked { object, version: *version },
            number => Input::AckedUnknown { object, number },
        });
    }
}

impl Unacked {
    fn say(&self, input: Input) {
        if let Some(inputs) = self.inputs.upgrade() {
            // Without a task nobody is told anything any more.
            let _ = inputs.send(input);
        }
    }
}

/// What was not dealt with is told again when it comes again.
impl Drop for Unacked {
    fn drop(&mut self) {
        if !*self.done.get_mut() {
            self.say(Input::Dropped { object: self.object.clone(), version: self.version, number: self.unknown });
        }
    }
}

/// What waits under one name is told once, in its last form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Notify(Bytes),
    Unknown(Bytes),
    Registration(Bytes),
    Reissue,
    Refused,
    Door,
}

impl Slot {
    /// Whether what comes later takes the place of what waits. What is told of states is told in the order in which they
    /// came; news keeps its place, so that an object which changes all the time is heard of, too.
    fn keeps_place(&self) -> bool {
        matches!(self, Slot::Notify(_) | Slot::Unknown(_))
    }
}

/// What waits: what the machine said, and whether anybody lets it speak.
#[derive(Debug)]
enum News {
    Said(Said),
    Denied(Error),
    Admitted,
}

/// What waits for the application: at most three things for each object.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    inner: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By their places, the last of which this is.
    order: BTreeMap<u64, Slot>,
    last: u64,
    events: BTreeMap<Slot, (u64, News)>,
    ended: bool,
    reader: Option<Waker>,
}

impl Mailbox {
    pub(super) fn tell(&self, said: Said) {
        let slot = match &said {
            Said::Notify { object, .. } => Slot::Notify(object.clone()),
            Said::NotifyUnknown { object, .. } => Slot::Unknown(object.clone()),
            Said::RegistrationStatus { object, .. } | Said::RegistrationFailure { object, .. } => {
                Slot::Registration(object.clone())
            }
            Said::Reissue => Slot::Reissue,
            Said::Refused { .. } => Slot::Refused,
        };
        self.put(slot, News::Said(said));
    }

    pub(super) fn deny(&self, why: Error) {
        self.put(Slot::Door, News::Denied(why));
    }

    pub(super) fn admit(&self) {
        self.put(Slot::Door, News::Admitted);
    }

    fn put(&self, slot: Slot, news: News) {
        self.change(|waiting| {
            let before = waiting.events.get(&slot).map(|(place, _)| *place);
            let place = match before.filter(|_| slot.keeps_place()) {
                Some(place) => place,
                None => {
                    before.map(|before| waiting.order.remove(&before));
                    waiting.last += 1;
                    waiting.last
                }
            };
            waiting.order.insert(place, slot.clone());
            waiting.events.insert(slot, (place, news));
        });
    }

    pub(super) fn end(&self) {
        self.change(|waiting| waiting.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.inner.lock();
        change(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<News>> {
        let mut waiting = self.inner.lock();
        if let Some((_, slot)) = waiting.order.pop_first()
            && let Some((_, news)) = waiting.events.remove(&slot)
        {
            return Poll::Ready(Some(news));
        }
        if waiting.ended {
            return Poll::Ready(None);
        }
        waiting.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// What the application hears, one after the other.
#[derive(Debug)]
pub struct Events {
    mailbox: Arc<Mailbox>,
    inputs: WeakUnboundedSender<Input>,
}

impl Events {
    pub(super) fn new(mailbox: Arc<Mailbox>, inputs: WeakUnboundedSender<Input>) -> Events {
        Events { mailbox, inputs }
    }

    /// The next event; `None` once all [`Listener`](super::Listener)s are gone. A notification that is dropped without an ack
    /// comes again, ever less often.
    pub async fn next(&mut self) -> Option<Event> {
        match poll_fn(|cx| self.mailbox.poll(cx)).await? {
            News::Said(said) => Some(self.event(said)),
            News::Denied(why) => Some(Event::Denied(why)),
            News::Admitted => Some(Event::Admitted),
        }
    }

    /// Hands every event to `handle`, and acknowledges each notification when `handle` is done with it.
    pub async fn run(mut self, mut handle: impl AsyncFnMut(Event)) {
        while let Some(event) = self.next().await {
            let ack = match &event {
                Event::Notify(news) => Some(news.ack.clone()),
                Event::Unknown(unknown) => Some(unknown.ack.clone()),
                _ => None,
            };
            handle(event).await;
            if let Some(ack) = ack {
                ack.done();
            }
        }
    }

    fn event(&self, said: Said) -> Event {
        let ack = |object: &Bytes, version, unknown| {
            let (inputs, object, done) = (self.inputs.clone(), object.clone(), AtomicBool::new(false));
            Ack(Arc::new(Unacked { inputs, object, version, unknown, done }))
        };
        match said {
            Said::Notify { object, version, payload, times } => {
                let ack = ack(&object, version, 0);
                Event::Notify(Notification { object, version, payload, times, ack })
            }
            Said::NotifyUnknown { object, number } => {
                let ack = ack(&object, 0, number);
                Event::Unknown(Unknown { object, ack })
            }
            Said::RegistrationStatus { object, registered } => Event::Registered { object, registered },
            Said::RegistrationFailure { object, transient } => Event::Failed { object, transient },
            Said::Reissue => Event::Reissue,
            Said::Refused { reason } => Event::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn notify(object: &'static str, version: u64) -> Said {
        Said::Notify { object: object.into(), version, payload: Bytes::new(), times: None }
    }

    #[tokio::test]
    async fn versions_of_one_object_collapse_and_unknowns_stay_apart() {
        let mailbox = Arc::new(Mailbox::default());
        let (inputs, mut queue) = mpsc::unbounded_channel();
        for version in 1..=1_000 {
            mailbox.tell(notify("a", version));
        }
        mailbox.tell(notify("b", 1));
        mailbox.tell(Said::NotifyUnknown { object: "a".into(), number: 7 });
        mailbox.end();
        let mut heard = Vec::new();
        Events::new(mailbox, inputs.downgrade())
            .run(async |event| match event {
                Event::Notify(news) => heard.push((news.object, news.version)),
                Event::Unknown(unknown) => heard.push((unknown.object, 0)),
                other => panic!("{other:?}"),
            })
            .await;
        assert_eq!(heard, [("a".into(), 1_000), ("b".into(), 1), ("a".into(), 0)]);
        assert!(matches!(queue.try_recv(), Ok(Input::Acked { version: 1_000, .. })));
        assert!(matches!(queue.try_recv(), Ok(Input::Acked { version: 1, .. })));
        assert!(matches!(queue.try_recv(), Ok(Input::AckedUnknown { number: 7, .. })));
    }

    #[tokio::test]
    async fn states_are_told_in_the_order_in_which_they_came_and_news_keep_their_places() {
        let mailbox = Arc::new(Mailbox::default());
        let (inputs, _queue) = mpsc::unbounded_channel();
        let registered = |registered| Said::RegistrationStatus { object: "a".into(), registered };
        let refused = || Error::new("auth.denied", tidings_base::Class::Refused, "no");
        mailbox.tell(registered(true));
        mailbox.tell(notify("hot", 1));
        mailbox.deny(refused());
        mailbox.tell(registered(false));
        mailbox.tell(notify("hot", 2));
        mailbox.admit();
        mailbox.tell(Said::RegistrationFailure { object: "a".into(), transient: true });
        mailbox.deny(refused());
        mailbox.end();
        let mut events = Events::new(mailbox, inputs.downgrade());
        let mut heard = Vec::new();
        while let Some(event) = events.next().await {
            heard.push(match event {
                Event::Notify(news) => format!("{}", news.version),
                Event::Failed { .. } => "failed".to_owned(),
                Event::Denied(_) => "denied".to_owned(),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(heard, ["2", "failed", "denied"]);
    }
}
