//! Limits that hold before anybody has said who they are.

use crate::support::{Server, loopback, request};
use http::Method;
use serde_json::json;
use std::time::Duration;
use tidings_node::config::Time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn open(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    // Once it is answered it is counted for sure.
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    socket
}

/// Everything that the server sends until it closes.
async fn rest(mut socket: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_places_come_free() {
    let mut config = loopback();
    (config.limits.connections, config.limits.connections_per_address) = (10, 3);
    let server = Server::start(config).await;
    let held = [open(&server).await, open(&server).await, open(&server).await];
    let refused = rest(TcpStream::connect(server.address()).await.unwrap()).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("control.busy"), "{refused}");
    drop(held);
    // The server notices the closed sockets in its own time.
    let mut tries = 0;
    while server.node.connections() > 0 {
        tries += 1;
        assert!(tries < 1_000, "places were not given back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(open(&server).await);
}

#[tokio::test]
async fn a_connection_that_says_nothing_or_too_slowly_is_closed() {
    let mut config = loopback();
    config.timings.header = Time::millis(200);
    let server = Server::start(config).await;
    // Nothing at all; not enough to tell which HTTP it is; a header that never ends; half of an HTTP/2 preface.
    for start in ["", "GE", "GET /healthz HTTP/1.1\r\nhost: local", "PRI * HTTP/2.0\r\n"] {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(start.as_bytes()).await.unwrap();
        let closed = tokio::time::timeout(Duration::from_secs(20), rest(socket)).await;
        let said = closed.unwrap_or_else(|_| panic!("the server still waits after {start:?}"));
        assert!(!said.contains("200 OK"), "{said}");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_header_a_byte_at_a_time_does_not_keep_a_connection() {
    let mut config = loopback();
    config.timings.header = Time::millis(300);
    let server = Server::start(config).await;
    let socket = TcpStream::connect(server.address()).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let drip = tokio::spawn(async move {
        for byte in b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ".iter().chain([b'a'; 400].iter()) {
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), reader.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "the server still listens to the drip");
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    drip.abort();
}

#[tokio::test]
async fn headers_and_bodies_that_are_too_large_are_refused() {
    let mut config = loopback();
    (config.limits.header_bytes, config.limits.body_bytes) = (8 << 10, 2 << 10);
    let server = Server::start(config).await;
    let mut large = request(Method::GET, "/healthz", None, None);
    large.headers_mut().insert("x-large", "a".repeat(20 << 10).parse().unwrap());
    assert_eq!(server.send(large).await.status, 431);
    let body = json!({"entries": ["x".repeat(3 << 10)]});
    let refused = server.json(Method::POST, "/v1/feed/t", body).await;
    assert_eq!(refused.error(), (413, "control.too_large".into()));
    let fits = json!({"entries": ["x".repeat(1 << 10)]});
    assert_eq!(server.json(Method::POST, "/v1/feed/t", fits).await.status, 200);
    // A length that lies: nothing is reserved for it, nothing is waited for.
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "POST /v1/feed/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for() {
    let mut config = loopback();
    config.timings.body = Time::millis(200);
    let server = Server::start(config).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = "POST /v1/feed/t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 400");
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_disconnected() {
    let mut config = loopback();
    config.timings.stall = Time::millis(200);
    let server = Server::start(config).await;
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    // Far more answers than the kernel's buffers hold, and none is read.
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let asking = tokio::spawn(async move {
        while socket.write_all(request).await.is_ok() {}
        socket
    });
    let closed = tokio::time::timeout(Duration::from_secs(30), asking).await;
    assert!(closed.is_ok(), "the server still waits for its reader");
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn an_address_that_asks_too_often_is_told_to_wait() {
    let mut config = loopback();
    config.limits.requests_per_second = 3;
    let server = Server::start(config).await;
    let mut refused = None;
    for _ in 0..20 {
        let answer = server.get("/healthz").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("twenty requests in a row are more than three a second");
    assert_eq!(refused.error(), (429, "control.busy".into()));
    assert_eq!(refused.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_shutdown_lets_what_is_in_flight_end_and_closes_the_idle() {
    let server = Server::start(loopback()).await;
    let address = server.address();
    let idle = open(&server).await;
    let services = server.services.clone();
    let paused = services.pause_calls().unwrap();
    let call = tokio::spawn(async move {
        let socket = TcpStream::connect(address).await.unwrap();
        crate::support::send_http1(socket, request(Method::GET, "/v1/store", None, None)).await
    });
    services.call_is_waiting().await;
    let stopping = tokio::spawn(server.node.shutdown());
    // The idle connection is closed although the other one still works.
    rest(idle).await;
    assert!(!stopping.is_finished());
    drop(paused);
    assert_eq!(call.await.unwrap().status, 200);
    stopping.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let mut config = loopback();
    config.timings.drain = Time::millis(100);
    let server = Server::start(config).await;
    let address = server.address();
    let services = server.services.clone();
    let _paused = services.pause_calls().unwrap();
    let call = tokio::spawn(async move {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET /v1/store HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        rest(socket).await
    });
    services.call_is_waiting().await;
    server.node.shutdown().await.unwrap();
    // It hears that nobody knows what came of it.
    let answer = call.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("control.unanswered"), "{answer}");
}
