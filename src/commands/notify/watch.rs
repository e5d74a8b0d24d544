//! `tidings notify watch|trace`: a listener that prints.

use super::within;
use crate::cli::Remote;
use crate::cli::notify::Watch;
use crate::commands::remote::shown;
use crate::commands::signals::Signals;
use crate::commands::{remote, runtime};
use crate::output;
use serde_json::{Value, json};
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{Event, Listener, ListenerOptions, Notification, NotifyTimes, State};

/// Prints versions of objects as they come.
pub fn watch(args: Watch) -> Result<(), Error> {
    let state = args.state.map(State::file).transpose()?.unwrap_or_else(State::none);
    let options = ListenerOptions { state, source: args.source.into(), ..Default::default() };
    let remote = within(args.application, args.remote);
    listen(&remote, options, &args.objects, args.count, |news| print_version(&remote, news))
}

/// Prints how long notifications took.
pub fn trace(object: String, count: Option<u64>, remote: &Remote) -> Result<(), Error> {
    listen(remote, ListenerOptions::default(), &[object], count, |news| print_times(remote, news))
}

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
    print: impl Fn(News<'_>) -> bool,
) -> Result<(), Error> {
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let client = Client::connect(remote::config(remote)?).await?;
        let (listener, mut events) = Listener::start(client, options)?;
        let mut left = count.unwrap_or(u64::MAX);
        while left > 0 {
            let event = tokio::select! {
                _ = signals.next() => return Ok(()),
                event = events.next() => event,
            };
            match event {
                Some(Event::Reissue) => {
                    objects.iter().for_each(|object| listener.register(object.clone(), 0));
                    listener.reissued();
                }
                Some(Event::Notify(news)) => {
                    left -= u64::from(print(News::Version(&news)));
                    news.ack();
                }
                Some(Event::Unknown(unknown)) => {
                    left -= u64::from(print(News::Unknown(&unknown.object)));
                    unknown.ack();
                }
                Some(Event::Failed { object, transient: false }) => return Err(refused(&object)),
                Some(_) => {}
                None => return Ok(()),
            }
        }
        // What was printed is acknowledged before the connection goes.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        Ok(())
    })
}

fn refused(object: &[u8]) -> Error {
    Error::new("notify.refused", Class::Refused, format!("the object `{}` cannot be registered", shown(object)))
        .hint("Names have 1 to 256 bytes, and a client may have 50,000 objects.")
}

fn print_version(remote: &Remote, news: News<'_>) -> bool {
    let (object, version, payload) = match &news {
        News::Version(news) => (shown(&news.object), Some(news.version), Some(&news.payload)),
        News::Unknown(object) => (shown(object), None, None),
    };
    let payload = payload.filter(|payload| !payload.is_empty()).map(|payload| shown(payload));
    if remote.json {
        let mut line = json!({ "app": remote.app, "object": object, "version": version });
        if let Some(payload) = payload {
            line["payload"] = payload.into();
        }
        output::line(line);
    } else {
        let version = version.map_or("unknown: fetch it".to_owned(), |version| version.to_string());
        output::line(format_args!("{object} {version} {}", payload.unwrap_or_default()).to_string().trim_end());
    }
    true
}

fn print_times(remote: &Remote, news: News<'_>) -> bool {
    let News::Version(Notification { object, version, times: Some(times), .. }) = news else { return false };
    let NotifyTimes { published_us, bridge_us, matcher_us, registrar_us, sent_us } = *times;
    let took = |from: u64, to: u64| to.saturating_sub(from);
    let stages = [
        ("feed_us", took(published_us, bridge_us)),
        ("bridge_us", took(bridge_us, matcher_us)),
        ("matcher_us", took(matcher_us, registrar_us)),
        ("registrar_us", took(registrar_us, sent_us)),
        ("total_us", took(published_us, sent_us)),
    ];
    if remote.json {
        let mut line = json!({ "app": remote.app, "object": shown(object), "version": version });
        stages.iter().for_each(|(stage, took)| line[*stage] = Value::from(*took));
        output::line(line);
    } else {
        let stages: Vec<String> =
            stages.iter().map(|(stage, took)| format!("{} {took} µs", stage.trim_end_matches("_us"))).collect();
        output::line(format_args!("{} {version}: {}", shown(object), stages.join(", ")));
    }
    true
}
