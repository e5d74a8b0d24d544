//! Redirects, restarts, deadlines, farewells, dead lines.

use super::*;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use tidings_client::{Request, Retry};
use tidings_wire::Patience;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn a_redirect_is_followed_and_remembered() {
    let (first, second) = (start().await, start().await);
    *first.script.redirect.lock() = Some(second.authority());
    let client = first.client().await;
    for _ in 0..10 {
        assert_eq!(row_of(&client.call(get("redirect")).await.unwrap()), "here");
    }
    assert_eq!(first.script.begun.load(Ordering::SeqCst), 1, "later calls go there at once");
    assert_eq!(second.script.begun.load(Ordering::SeqCst), 10);
    // The node that answered goes away: any other will do again.
    *first.script.redirect.lock() = None;
    second.node.shutdown().await.unwrap();
    assert_eq!(row_of(&client.call(get("redirect")).await.unwrap()), "here");
}

#[tokio::test]
async fn redirects_in_a_circle_end_with_the_deadline() {
    let (first, second) = (start().await, start().await);
    *first.script.redirect.lock() = Some(second.authority());
    *second.script.redirect.lock() = Some(first.authority());
    let client = first.client().await;
    let error = client.call(Request::new(get("redirect")).within(Duration::from_millis(300))).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    let rounds = first.script.begun.load(Ordering::SeqCst) + second.script.begun.load(Ordering::SeqCst);
    assert!((2..=60).contains(&rounds), "{rounds} attempts: pauses between rounds");
    // And whoever wants no retry gets the redirect itself.
    let never = client.call(Request::new(get("redirect")).retry(Retry::Never)).await.unwrap_err();
    assert!(never.redirect.is_some());
}

#[tokio::test]
async fn what_was_answered_unreachable_is_tried_again() {
    let node = start().await;
    let client = node.client().await;
    assert_eq!(row_of(&client.call(get("busy:4")).await.unwrap()), "busy:4");
    assert_eq!(node.script.begun.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_deadline_is_kept_and_the_server_stops() {
    let node = start().await;
    let client = node.client().await;
    let error = client.call(Request::new(get("hang")).within(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!((error.code.as_ref(), error.class), ("control.deadline", Class::OutcomeUnknown));
    until("the work stops", || node.script.working.load(Ordering::SeqCst) == 0).await;
    assert_eq!(row_of(&client.call(get("after")).await.unwrap()), "after");
}

#[tokio::test]
async fn a_client_finds_its_server_again_after_a_restart() {
    let mut config = loopback();
    config.timings.drain = tidings_node::config::Time::millis(100);
    let node = ScriptedNode::start(config).await;
    let address = node.node.address();
    let client = node.client().await;
    client.call(get("before")).await.unwrap();
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { client.call(get("hang")).await }
    });
    until("the call arrives", || node.script.working.load(Ordering::SeqCst) == 1).await;
    // It does not end in time, so it is cut off.
    drop(node);
    let lost = hanging.await.unwrap().unwrap_err();
    assert_eq!(lost.class, Class::OutcomeUnknown, "{lost}");
    let waiting = client.call(get("waiting"));
    let (answer, _node) = tokio::join!(waiting, restart(address));
    assert_eq!(row_of(&answer.unwrap()), "waiting");
}

async fn restart(address: SocketAddr) -> ScriptedNode {
    let mut config = loopback();
    config.listen = address;
    for _ in 0..500 {
        let script = Arc::new(Script::default());
        let keys: Arc<dyn KeyStore> = Arc::new(MemoryKeyStore::default());
        match Node::start_with(config.clone(), Arc::new(Scripted(script.clone())), keys, Arc::new(SystemClock)).await {
            Ok(node) => return ScriptedNode { node, script },
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("the port stayed taken");
}

#[tokio::test]
async fn a_cut_line_makes_calls_unknown_and_idempotent_ones_are_done_again() {
    let node = start().await;
    let line = Line::to(node.node.address()).await;
    let client = Client::connect(client_config([format!("http://{}", line.address)])).await.unwrap();
    let call = |request: Request| {
        let client = client.clone();
        tokio::spawn(async move { client.call(request).await })
    };
    let once = call(Request::new(get("slow:300")));
    let twice = call(Request::new(get("slow:300")).idempotent());
    until("the calls arrive", || node.script.working.load(Ordering::SeqCst) == 2).await;
    line.cut();
    let lost = once.await.unwrap().unwrap_err();
    assert_eq!((lost.code.as_ref(), lost.class), ("control.lost", Class::OutcomeUnknown));
    assert_eq!(row_of(&twice.await.unwrap().unwrap()), "slow");
    assert_eq!(node.script.begun.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn another_server_is_taken_when_one_goes_away() {
    let (first, second) = (start().await, start().await);
    let client = Client::connect(client_config([first.node.url(), second.node.url()])).await.unwrap();
    client.call(get("one")).await.unwrap();
    let (used, other) = match first.script.begun.load(Ordering::SeqCst) {
        1 => (first, second),
        _ => (second, first),
    };
    // A call that is open when the farewell comes still ends well.
    let open = tokio::spawn({
        let client = client.clone();
        async move { client.call(get("slow:200")).await }
    });
    until("the call arrives", || used.script.working.load(Ordering::SeqCst) == 1).await;
    used.node.shutdown().await.unwrap();
    assert_eq!(row_of(&open.await.unwrap().unwrap()), "slow");
    assert_eq!(row_of(&client.call(get("two")).await.unwrap()), "two");
    assert_eq!(other.script.begun.load(Ordering::SeqCst), 1);
}

/// A server that was stopped (SIGSTOP) still takes connections, by its kernel: nobody waits it out while another is there.
#[tokio::test]
async fn a_silent_server_does_not_hold_up_the_way_to_another() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = start().await;
    let (silent_url, url) = (format!("http://{}", silent.local_addr().unwrap()), node.node.url());
    let mut config = client_config([silent_url.clone()]);
    // Longer than anything else here: nothing is found by giving up.
    config.connect_timeout = Duration::from_secs(600);
    let call =
        Client::new(config.clone()).unwrap().call(Request::new(get("x")).within(Duration::from_millis(100))).await;
    assert_eq!(call.unwrap_err().class, Class::Unreachable, "it is as silent as a server can be");
    // The seed decides which place is tried first: once it is the silent one's.
    for servers in [[silent_url.clone(), url.clone()], [url, silent_url]] {
        config.servers = servers.into();
        config.seed = Some(1);
        let client = Client::new(config.clone()).unwrap();
        let call = client.call(Request::new(get("x")).within(Duration::from_secs(60)));
        assert_eq!(row_of(&call.await.unwrap()), "x");
    }
}

#[tokio::test]
async fn nobody_there_is_told_at_once_to_whoever_connects() {
    let nobody = format!("http://{}", crate::ports::free_address());
    let error = Client::connect(client_config([nobody.clone()])).await.unwrap_err();
    assert_eq!((error.code.as_ref(), error.class), ("client.unreachable", Class::Unreachable));
    assert!(error.message.contains("refused"), "{error}");
    // A client that waits does so until its call's deadline, and says what is wrong.
    let client = Client::new(client_config([nobody])).unwrap();
    let error = client.call(Request::new(get("x")).within(Duration::from_millis(100))).await.unwrap_err();
    assert_eq!(error.code, "client.unreachable");
}

/// Passes bytes on until it is frozen; then it swallows them, as a path does whose far end is gone.
struct Line {
    address: SocketAddr,
    frozen: Arc<AtomicBool>,
    passing: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Line {
    async fn to(target: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Line { address: listener.local_addr().unwrap(), frozen: Arc::default(), passing: Arc::default() };
        let (frozen, passing) = (line.frozen.clone(), line.passing.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(target).await.unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                let there = tokio::spawn(pass(near_read, far_write, frozen.clone()));
                let back = tokio::spawn(pass(far_read, near_write, frozen.clone()));
                passing.lock().extend([there.abort_handle(), back.abort_handle()]);
            }
        });
        line
    }

    /// Breaks the connections of the moment; new ones may be made.
    fn cut(&self) {
        self.passing.lock().drain(..).for_each(|task| task.abort());
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    frozen: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if !frozen.load(Ordering::SeqCst) && to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    // The end of a frozen line is not passed on either.
    if frozen.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn both_ends_notice_a_dead_line_and_the_client_finds_another() {
    let mut config = loopback();
    config.timings.ping_after = tidings_node::config::Time::millis(100);
    config.timings.dead_after = tidings_node::config::Time::millis(400);
    let node = ScriptedNode::start(config).await;
    let (dying, good) = (Line::to(node.node.address()).await, Line::to(node.node.address()).await);
    let mut config = client_config([format!("http://{}", dying.address)]);
    config.patience =
        Patience { ping_after: Duration::from_millis(100), dead_after: Duration::from_millis(400), ..config.patience };
    config.connect_timeout = Duration::from_millis(500);
    let client = Client::connect(config.clone()).await.unwrap();
    client.call(get("x")).await.unwrap();
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { client.call(get("hang")).await }
    });
    until("the call arrives", || node.script.working.load(Ordering::SeqCst) == 1).await;
    dying.frozen.store(true, Ordering::SeqCst);
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!((error.code.as_ref(), error.class), ("control.lost", Class::OutcomeUnknown));
    assert!(error.message.contains("nothing was heard"), "{error}");
    until("the server gives the work up", || node.script.working.load(Ordering::SeqCst) == 0).await;
    config.servers.push(format!("http://{}", good.address));
    let client = Client::new(config).unwrap();
    assert_eq!(row_of(&client.call(get("found")).await.unwrap()), "found");
}

#[tokio::test]
async fn a_frame_too_large_is_refused_before_it_is_sent() {
    let node = start().await;
    let client = node.client().await;
    let error = client.call(scan(1, 2 << 20)).await.unwrap_err();
    assert_eq!((error.code.as_ref(), error.class), ("control.too_large", Class::Invalid));
    // An answer too large ends its own call and no other.
    let error = client.call(get("big:2000000")).await.unwrap_err();
    assert_eq!(error.code, "control.too_large");
    assert_eq!(row_of(&client.call(get("next")).await.unwrap()), "next");
}
