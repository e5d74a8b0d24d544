//! `tidings notify watch|trace`: a listener that prints.

use super::{named, within};
use crate::cli::Remote;
use crate::cli::notify::Watch;
use crate::commands::remote::{printed, told};
use crate::commands::signals::Signals;
use crate::commands::{remote, runtime};
use crate::output::{self, Unwritten};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{Event, Listener, ListenerOptions, Notification, NotifyRefused, NotifyTimes, State};
use tokio::time::{Sleep, sleep};

/// After so long people are told that something is not registered, and so often from then on.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(60);

/// Prints versions of objects as they come.
pub fn watch(args: Watch) -> Result<(), Error> {
    let objects = args.objects.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let state = args.state.map(State::file).transpose()?.unwrap_or_else(State::none);
    let options = ListenerOptions { state, source: args.source.into(), ..Default::default() };
    let remote = within(args.application, args.remote)?;
    listen(&remote, options, &objects, args.count, |news| print_version(&remote, news))
}

/// Prints how long notifications took.
pub fn trace(object: String, count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    listen(remote, ListenerOptions::default(), &[object], count, |news| print_times(remote, news))
}

/// Whether a line was printed, if it could be.
type Printed = Result<bool, Unwritten>;

/// What is printed: a version, or that it is unknown.
enum News<'a> {
    Version(&'a Notification),
    Unknown(&'a [u8]),
}

/// Registers objects and hands on what comes, until interrupted or `print` has printed so often.
fn listen(
    remote: &Remote,
    options: ListenerOptions,
    objects: &[String],
    count: Option<u64>,
    print: impl Fn(News<'_>) -> Printed,
) -> Result<(), Error> {
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let client = Client::connect(remote::config(remote)?).await?;
        remote::tell_connection(&client, remote.json);
        let (listener, mut events) = Listener::start(client, options)?;
        let listening = async {
            let mut left = count.unwrap_or(u64::MAX);
            let mut silence = Silence::new(remote.json, objects);
            while left > 0 {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = silence.lasts() => continue,
                };
                let Some(event) = event else { break };
                silence.hears(&event);
                match heard(event, &listener, objects, silence.refused.len() == objects.len(), &print)? {
                    Ok(printed) => left -= u64::from(printed),
                    Err(unwritten) => return Ok(Some(unwritten)),
                }
            }
            Ok(None)
        };
        let ended: Result<Option<Unwritten>, Error> = tokio::select! {
            _ = signals.next() => Ok(None),
            ended = listening => ended,
        };
        // What was printed is acknowledged, and an id that nobody keeps is given back.
        listener.leave().await;
        match ended? {
            Some(unwritten) => unwritten.end(),
            None => Ok(()),
        }
    })
}

/// Tells people that something is not registered yet, so that they do not take silence for calm.
struct Silence {
    json: bool,
    missing: BTreeSet<Vec<u8>>,
    /// What will not be heard of.
    refused: BTreeSet<Vec<u8>>,
    /// Until it is told of next.
    pause: Pin<Box<Sleep>>,
    told: bool,
}

impl Silence {
    fn new(json: bool, objects: &[String]) -> Silence {
        let missing = objects.iter().map(|object| object.clone().into_bytes()).collect();
        Silence { json, missing, refused: BTreeSet::new(), pause: Box::pin(sleep(PATIENCE)), told: false }
    }

    /// Waits until it has lasted for long, and tells of it.
    async fn lasts(&mut self) {
        if self.missing.is_empty() {
            return std::future::pending().await;
        }
        self.pause.as_mut().await;
        let text = match self.missing.len() {
            1 => {
                "an object is not registered yet, trying on: `tidings status` says whether a majority is up".to_owned()
            }
            n => {
                format!("{n} objects are not registered yet, trying on: `tidings status` says whether a majority is up")
            }
        };
        output::event(self.json, "not_registered", text);
        (self.pause, self.told) = (Box::pin(sleep(AGAIN)), true);
    }

    fn hears(&mut self, event: &Event) {
        match event {
            Event::Registered { object, registered: true } => {
                self.missing.remove(&object[..]);
                if self.missing.is_empty() && std::mem::take(&mut self.told) {
                    output::event(self.json, "registered", "everything is registered");
                }
            }
            Event::Failed { object, transient: true } => {
                let text = format!(
                    "the application could not be asked whether `{}` may be heard of (`notify.hooks`), trying again",
                    printed(object)
                );
                output::event(self.json, "not_authorized", text);
                self.missing.insert(object.to_vec());
                self.told = true;
            }
            Event::Failed { object, transient: false } => {
                let text = format!("`{}` will not be heard of: it is refused", printed(object));
                output::event(self.json, "refused", text);
                self.missing.remove(&object[..]);
                self.refused.insert(object.to_vec());
            }
            _ => {}
        }
    }
}

/// Deals with an event; whether a line was printed. It ends when nothing is left that could be heard of.
fn heard(
    event: Event,
    listener: &Listener,
    objects: &[String],
    nothing_left: bool,
    print: impl Fn(News<'_>) -> Printed,
) -> Result<Printed, Error> {
    match event {
        Event::Reissue => {
            objects.iter().for_each(|object| listener.register(object.clone(), 0));
            listener.reissued();
        }
        Event::Notify(news) => {
            let printed = print(News::Version(&news));
            if printed.is_ok() {
                news.ack();
            }
            return Ok(printed);
        }
        Event::Unknown(unknown) => {
            let printed = print(News::Unknown(&unknown.object));
            if printed.is_ok() {
                unknown.ack();
            }
            return Ok(printed);
        }
        Event::Failed { object, transient: false } if nothing_left => return Err(refused(&object)),
        Event::Refused(NotifyRefused::TooManyIds) => return Err(too_many()),
        Event::Denied(why) => return Err(why),
        // What is refused for now is tried again, and what is refused otherwise starts anew.
        Event::Failed { .. } | Event::Refused(_) | Event::Registered { .. } | Event::Admitted => {}
    }
    Ok(Ok(false))
}

fn too_many() -> Error {
    let message = "this principal has as many clients of Notify as it may (`notify.ids`)";
    Error::new("notify.too_many_ids", Class::Refused, message).hint(
        "`tidings notify clients APP` lists them. One that ends in order and has no --state is forgotten at once, one that \
         breaks off after an hour (`notify.forget_unkept_after`).",
    )
}

fn refused(object: &[u8]) -> Error {
    Error::new("notify.refused", Class::Refused, format!("the object `{}` cannot be registered", printed(object)))
        .hint(
            "Its application does not let this principal hear of it (`notify.hooks`), or the client has as many objects as it \
             may (`notify.registrations`).",
        )
}

fn print_version(remote: &Remote, news: News<'_>) -> Printed {
    let (object, version, payload) = match news {
        News::Version(news) => (&news.object[..], Some(news.version), Some(&news.payload)),
        News::Unknown(object) => (object, None, None),
    };
    let payload = payload.filter(|payload| !payload.is_empty());
    if remote.json {
        let mut line = json!({ "app": remote.app, "object": told(object), "version": version });
        if let Some(payload) = payload {
            line["payload"] = told(payload);
        }
        output::try_exact(line)?;
    } else {
        let version = version.map_or("unknown: fetch it".to_owned(), |version| version.to_string());
        let payload = payload.map(|payload| printed(payload)).unwrap_or_default();
        output::try_exact(output::plain(format!("{} {version} {payload}", printed(object)).trim_end()))?;
    }
    Ok(true)
}

fn print_times(remote: &Remote, news: News<'_>) -> Printed {
    let News::Version(Notification { object, version, times: Some(times), .. }) = news else { return Ok(false) };
    let NotifyTimes { published_us, feed_us, matcher_us, registrar_us, sent_us, .. } = *times;
    let took = |from: u64, to: u64| to.saturating_sub(from);
    let mut stages = match feed_us {
        // It was told of before the feed had it.
        0 => vec![("call_us", took(published_us, matcher_us))],
        _ => vec![("feed_us", took(published_us, feed_us)), ("bridge_us", took(feed_us, matcher_us))],
    };
    stages.extend([
        ("matcher_us", took(matcher_us, registrar_us)),
        ("registrar_us", took(registrar_us, sent_us)),
        ("total_us", took(published_us, sent_us)),
    ]);
    if remote.json {
        let mut line = json!({ "app": remote.app, "object": told(object), "version": version });
        stages.iter().for_each(|(stage, took)| line[*stage] = Value::from(*took));
        output::try_exact(line)?;
    } else {
        let stages: Vec<String> =
            stages.iter().map(|(stage, took)| format!("{} {took} µs", stage.trim_end_matches("_us"))).collect();
        output::try_exact(format_args!("{} {version}: {}", printed(object), stages.join(", ")))?;
    }
    Ok(true)
}
