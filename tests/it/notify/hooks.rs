//! Hooks: a list of access that changes, and an application that is asked and sometimes says nothing.

use super::{hears, publish, registered, start_with};
use crate::process::{Running, Server, http_get, turn, until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use tidings_client::notify::{Cached, CachedOptions};
use tidings_client::{Client, ClientConfig};
use tokio::runtime::Runtime;

/// Waits for the end of a watcher that is refused.
fn is_refused(watcher: Running) {
    let said = watcher.ended();
    assert!(said.code == 4 && said.err.contains("cannot be registered"), "{said:?}");
}

/// A value whose object may not be registered says that it may be stale.
fn stays_stale(server: &Server, object: &'static str) {
    let runtime = Runtime::new().unwrap();
    let _in = runtime.enter();
    let config = ClientConfig { app: Some("shop".into()), ..ClientConfig::new([server.url()]) };
    let fetch = || async { Ok(7) };
    let cached = Cached::start(Client::new(config).unwrap(), object, CachedOptions::default(), fetch).unwrap();
    let why = until("it says why", || cached.trouble());
    assert_eq!((why.code.as_ref(), cached.get().as_deref()), ("notify.not_registered", Some(&7)));
}

#[test]
fn a_list_of_access_decides_and_is_read_again_when_it_changes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("shop.acl");
    std::fs::write(&list, "@all = operator user:shop\nprices/* = @all\n").unwrap();
    let server = start_with(dir.path(), "[notify.hooks.shop]\nacl = \"shop.acl\"\n");
    let watch = |object: &str| server.start_command(&["notify", "watch", "shop", object, "--json"]);
    let mut watcher = watch("prices/1");
    registered(&server, "prices/1", 1);
    publish(&server, "prices/1", 7);
    hears(&watcher, "prices/1", 7);
    is_refused(watch("secret"));
    // What is refused beside others is told of, and the others are heard.
    let both = server.start_command(&["notify", "watch", "shop", "secret", "prices/1", "--json"]);
    hears(&both, "prices/1", 7);
    until("it is told", || both.err().contains("\"event\":\"refused\"").then_some(()));
    both.signal(rustix::process::Signal::TERM);
    assert_eq!(both.ended().code, 0);
    stays_stale(&server, "secret");
    // Another application has no hook, and is not asked.
    let other = server.start_command(&["notify", "watch", "blog", "secret", "--json"]);
    until("others are served", || (!other.out().is_empty()).then_some(()));

    // A file that cannot be read defers: nothing is sent, and nothing is taken away.
    std::fs::write(&list, "prices/*\n").unwrap();
    until("the node says so", || server.said().contains("a list of access cannot be read").then_some(()));
    publish(&server, "prices/1", 8);
    std::fs::write(&list, "@all = operator\nprices/* = @all\n# mended\n").unwrap();
    hears(&watcher, "prices/1", 8);
    // What is not allowed any more is taken away before anything is sent.
    std::fs::write(&list, "prices/* = user:shop/nobody-else\n").unwrap();
    let mut version = 8;
    until("the right is gone", || {
        version += 1;
        publish(&server, "prices/1", version);
        (!watcher.is_running()).then_some(())
    });
    is_refused(watcher);
    registered(&server, "prices/1", 0);
    let metrics = http_get(server.address, "/metrics").unwrap().1;
    for answer in ["yes", "no", "deferred"] {
        let counted = format!("tidings_notify_hook_answers_total{{hook=\"acl\",answer=\"{answer}\"}}");
        assert!(metrics.contains(&counted), "{counted}: {metrics}");
    }
}

/// An application that is asked: what it says to each object, or nothing.
#[derive(Clone, Default)]
struct Application {
    hangs: Arc<Mutex<bool>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Application {
    fn start() -> (Application, String) {
        let application = Application::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/may", listener.local_addr().unwrap());
        let answering = application.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let application = answering.clone();
                std::thread::spawn(move || application.answer(stream));
            }
        });
        (application, url)
    }

    /// Answers what comes by a connection, until one is not to be answered.
    fn answer(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                let line = line.to_ascii_lowercase();
                if let Some(text) = line.strip_prefix("content-length:") {
                    length = text.trim().parse().ok()?;
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let asked: Value = serde_json::from_slice(&body).ok()?;
            let object = asked["object"].as_str()?.to_owned();
            self.asked.lock().ok()?.push(asked);
            if object == "slow" && *self.hangs.lock().ok()? {
                // The connection stays open, and silent.
                std::mem::forget(stream.try_clone().ok()?);
                return None;
            }
            let said = format!("{{\"allow\": {}}}", object != "bad");
            write!(&stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{said}", said.len()).ok()?;
        }
    }
}

#[test]
fn an_application_is_asked_and_one_that_hangs_holds_up_nobody_else() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (application, url) = Application::start();
    *application.hangs.lock().unwrap() = true;
    let more = format!("[notify.hooks.shop]\nurl = \"{url}\"\ndeadline = \"2s\"\nremember = \"1m\"\n");
    let server = start_with(dir.path(), &more);
    let watch = |object: &str| server.start_command(&["notify", "watch", "shop", object, "--json"]);
    let slow = watch("slow");
    until("it is asked about", || {
        application.asked.lock().unwrap().iter().any(|asked| asked["object"] == "slow").then_some(())
    });
    let good = watch("good");
    registered(&server, "good", 1);
    publish(&server, "good", 3);
    hears(&good, "good", 3);
    is_refused(watch("bad"));
    let asked = application.asked.lock().unwrap().iter().find(|asked| asked["object"] == "good").cloned().unwrap();
    assert_eq!(
        (&asked["app"], &asked["principal"], &asked["action"]),
        (&"shop".into(), &"operator".into(), &"register".into())
    );
    // What was asked is remembered.
    let count = |object: &str| {
        let asked = application.asked.lock().unwrap();
        asked.iter().filter(|asked| asked["object"] == object).count()
    };
    let before = count("good");
    assert!(before >= 2, "for the registration, and for what is sent: {before}");
    publish(&server, "good", 4);
    hears(&good, "good", 4);
    assert_eq!(count("good"), before);
    until("time-outs are counted", || {
        let metrics = http_get(server.address, "/metrics")?.1;
        metrics.contains("tidings_notify_hook_failures_total{app=\"shop\",reason=\"time_out\"}").then_some(())
    });
    until("whoever waits hears why", || slow.err().contains("not_authorized").then_some(()));
    // It was deferred, not refused: once there is an answer, it is registered.
    *application.hangs.lock().unwrap() = false;
    registered(&server, "slow", 1);
    publish(&server, "slow", 5);
    hears(&slow, "slow", 5);
}
