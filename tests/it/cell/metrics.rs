//! What a node measures of its cell: every metric that operators are told of, made to move.

use crate::process::{Server, http, http_get, turn, until};
use rustix::process::Signal;
use tidings_client::ClientConfig;
use tidings_client::cell::{Cell, Mode};

/// The value of a metric without labels, if it is there.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Looks until a metric is as expected.
fn shows(server: &Server, name: &str, expected: impl Fn(f64) -> bool) {
    until(name, || {
        let (status, text) = http_get(server.address, "/metrics")?;
        assert_eq!(status, 200, "{text}");
        value(&text, name).filter(|value| expected(*value)).map(drop)
    });
}

/// The names that the documents give in code, `_suffixes` after the name before them included.
fn documented() -> Vec<String> {
    let mut names = Vec::new();
    for text in [include_str!("../../../docs/operating.md"), include_str!("../../../docs/notify.md")] {
        let mut last = String::new();
        for code in text.split('`').skip(1).step_by(2) {
            let name: String = code.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let full = match name.strip_prefix('_') {
                Some(rest) => match last.rsplit_once('_') {
                    Some((stem, _)) => format!("{stem}_{rest}"),
                    None => continue,
                },
                None => name,
            };
            // Names of crates, and of whole families.
            let metric = full.starts_with("tidings_") && !full.ends_with('_') && full.matches('_').count() > 1;
            last = if metric { full.clone() } else { String::new() };
            names.extend(metric.then_some(full));
        }
    }
    names
}

#[test]
fn every_metric_of_the_documents_is_there_before_anything_has_happened() {
    let _turn = turn();
    let names = documented();
    assert!(names.len() > 25 && names.iter().any(|name| name == "tidings_cell_handles"), "{names:?}");
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let mut missing = names;
    until("every metric is there", || {
        let text = http_get(server.address, "/metrics")?.1;
        let there = |name: &String| {
            let value = |line: &str| {
                line.strip_prefix(name.as_str())?
                    .strip_prefix("_count")
                    .or(line.strip_prefix(name.as_str()))?
                    .chars()
                    .next()
            };
            text.lines().any(|line| matches!(value(line), Some(' ' | '{')))
        };
        let before = missing.len();
        missing.retain(|name| !there(name));
        if missing.len() < before {
            eprintln!("not there yet: {missing:?}");
        }
        missing.is_empty().then_some(())
    });
}

#[test]
fn every_metric_of_the_cell_moves() {
    let _turn = turn();
    let data = tempfile::tempdir().unwrap();
    let server = Server::embedded(data.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let some = |value: f64| value > 0.0;
    // It became master when it began.
    shows(&server, "tidings_cell_fail_overs_total", some);
    shows(&server, "tidings_cell_fail_over_seconds", some);

    let (reader, writer) = runtime.block_on(async {
        let connect = || Cell::connect(ClientConfig::new([server.url()]));
        let (reader, writer) = (connect().await.unwrap(), connect().await.unwrap());
        writer.write("/file", "one").await.unwrap();
        reader.read("/file").await.unwrap();
        writer.write("/file", "two").await.unwrap();
        reader.read("/file").await.unwrap();
        (reader, writer)
    });
    // The write waited until the reader had forgotten its copy, which a KeepAlive told it.
    shows(&server, "tidings_cell_invalidation_wait_seconds_count", some);
    for name in ["keep_alives_total", "keep_alive_held_seconds_count", "lease_seconds_count", "lease_seconds_sum"] {
        shows(&server, &format!("tidings_cell_{name}"), some);
    }

    runtime.block_on(async {
        let lock = writer.open("/lock").lock().create_file("").await.unwrap();
        let held = lock.acquire(Mode::Exclusive).await.unwrap();
        let other = reader.open("/lock").lock().await.unwrap();
        let waits = async {
            let _granted = other.acquire(Mode::Exclusive).await.unwrap();
        };
        let looks = async {
            tokio::task::block_in_place(|| {
                // Gauges are taken every five seconds, all of them together.
                shows(&server, "tidings_cell_lock_waiters", |value| value == 1.0);
                shows(&server, "tidings_cell_interest", some);
                shows(&server, "tidings_cell_sessions", |value| value >= 2.0);
                shows(&server, "tidings_cell_handles", |value| value >= 2.0);
            });
            held.release().await.unwrap();
        };
        tokio::join!(waits, looks);
    });

    // Somebody who watches and does not listen.
    let watch = server.start_command(&["cell", "watch", "/file"]);
    watch.line(1);
    watch.signal(Signal::STOP);
    let write = runtime.spawn(async move { writer.write("/file", "three").await });
    shows(&server, "tidings_cell_undelivered", some);
    watch.signal(Signal::CONT);
    runtime.block_on(write).unwrap().unwrap();
    shows(&server, "tidings_cell_undelivered", |value| value == 0.0);
    shows(&server, "tidings_cell_lock_waiters", |value| value == 0.0);

    assert_eq!(http("GET", server.address, "/v1/cell/files/file", "").unwrap(), (200, "three".to_owned()));
    shows(&server, "tidings_cell_rest_sessions", |value| value == 1.0);
}
