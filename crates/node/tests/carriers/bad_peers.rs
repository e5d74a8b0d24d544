//! Peers that send garbage, send too much, say nothing, or read nothing: named errors, and everybody else lives on.

use super::*;
use crate::support::panics;
use futures::SinkExt;
use std::collections::BTreeMap;
use tidings_client::ws::{self, Form};
use tidings_node::carrier::WEBSOCKET_PATH;
use tidings_node::config::Time;
use tidings_wire::v1::control::Message as Control;
use tidings_wire::{codec, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Ws;

type Socket = WebSocketStream<TcpStream>;

async fn socket(node: &ScriptedNode, form: Form) -> Socket {
    ws::socket(&node.authority(), WEBSOCKET_PATH, form).await.unwrap()
}

fn hello(max: u32) -> v1::Frame {
    let hello = v1::Hello { min: max, max, ..Default::default() };
    v1::Frame { op: 0, more: false, body: Some(Body::Control(v1::Control { message: Some(Control::Hello(hello)) })) }
}

fn binary(frame: &v1::Frame) -> Ws {
    Ws::Binary(codec::to_bytes(frame))
}

async fn shake_hands(socket: &mut Socket) {
    socket.send(binary(&hello(1))).await.unwrap();
    let welcome = socket.next().await.unwrap().unwrap();
    let welcome = codec::decode(&welcome.into_data(), 1 << 20).unwrap();
    assert!(matches!(welcome.body, Some(Body::Control(v1::Control { message: Some(Control::Welcome(_)) }))));
}

/// Reads until the end: the code of the last error on the connection, and the reason of the close frame.
async fn ending(socket: &mut Socket) -> (Option<String>, Option<String>) {
    let (mut code, mut reason) = (None, None);
    while let Some(Ok(message)) = socket.next().await {
        let frame = match &message {
            Ws::Binary(bytes) => codec::decode(bytes, 4 << 20).unwrap(),
            Ws::Text(text) => json::frame_from_str(text, 4 << 20).unwrap(),
            Ws::Close(close) => {
                reason = close.as_ref().map(|close| close.reason.to_string());
                continue;
            }
            _ => continue,
        };
        if let (0, Some(Body::Control(v1::Control { message: Some(Control::Error(error)) }))) = (frame.op, frame.body) {
            code = Some(error.code);
        }
    }
    (code, reason)
}

async fn assert_alive(node: &ScriptedNode) {
    assert_eq!(row_of(&node.client().await.call(get("alive")).await.unwrap()), "alive");
}

#[tokio::test]
async fn garbage_closes_with_a_name_before_and_after_the_handshake() {
    let node = start().await;
    let garbage = || Ws::Binary(vec![0xff; 40].into());
    let text = |text: &str| Ws::Text(text.into());
    let cases: Vec<(Form, bool, Ws, &str)> = vec![
        (Form::Binary, false, garbage(), "control.malformed"),
        (Form::Binary, true, garbage(), "control.malformed"),
        (Form::Binary, true, text("{}"), "control.malformed"),
        (Form::Json, false, text("{\"op\":"), "control.malformed"),
        (Form::Json, false, text(&"[".repeat(10_000)), "control.malformed"),
        (Form::Json, false, garbage(), "control.malformed"),
        (Form::Binary, false, binary(&v1::Frame { op: 1, more: false, body: Some(get("x")) }), "control.protocol"),
        (Form::Binary, false, binary(&hello(77)), "control.version"),
        (Form::Binary, true, binary(&hello(1)), "control.protocol"),
        // 16 KiB are enough for a stranger.
        (Form::Binary, false, Ws::Binary(vec![0; 20_000].into()), "control.too_large"),
        (Form::Binary, true, Ws::Binary(vec![0; 2 << 20].into()), "control.too_large"),
    ];
    for (form, shaken, message, expected) in cases {
        let mut socket = socket(&node, form).await;
        if shaken {
            shake_hands(&mut socket).await;
        }
        socket.send(message).await.unwrap();
        let (code, reason) = ending(&mut socket).await;
        assert_eq!(code.as_deref(), Some(expected), "{form:?} {shaken}");
        assert_eq!(reason.as_deref(), Some(expected), "{form:?} {shaken}");
    }
    assert_alive(&node).await;
    until("all are closed", || node.node.connections() == 0).await;
}

/// Opens one operation more than it was told it may: that one is refused, the others and the connection go on.
#[tokio::test]
async fn one_operation_too_many_is_refused_and_the_others_go_on() {
    const ALLOWED: u64 = 4;
    let mut config = loopback();
    config.limits.operations = ALLOWED as u32;
    let node = ScriptedNode::start(config).await;
    let mut socket = socket(&node, Form::Binary).await;
    shake_hands(&mut socket).await;
    let asked = |op, row| binary(&v1::Frame { op, more: false, body: Some(get(row)) });
    for op in 0..=ALLOWED {
        socket.send(asked(2 * op + 1, "slow:300")).await.unwrap();
    }
    let mut answers = BTreeMap::new();
    while answers.len() <= ALLOWED as usize {
        let message = socket.next().await.unwrap().unwrap();
        let frame = codec::decode(&message.into_data(), 1 << 20).unwrap();
        if frame.op != 0 {
            answers.insert(frame.op, frame.body.unwrap());
        }
    }
    let (_, last) = answers.pop_last().unwrap();
    let Body::Control(v1::Control { message: Some(Control::Error(refused)) }) = last else { panic!("{last:?}") };
    assert_eq!(refused.code, "control.busy");
    assert!(answers.values().all(|answer| row_of(answer) == "slow"), "{answers:?}");
    // There is room again.
    socket.send(asked(99, "after")).await.unwrap();
    let message = socket.next().await.unwrap().unwrap();
    assert_eq!(codec::decode(&message.into_data(), 1 << 20).unwrap().op, 99);
    assert_alive(&node).await;
}

#[tokio::test]
async fn bytes_that_are_no_websocket_frames_end_the_connection_only() {
    use tokio::io::AsyncWriteExt;
    let node = start().await;
    let before = panics();
    for bytes in
        [&[0xff_u8; 64][..], &[0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x81, 0x02, 0, 0]]
    {
        let mut socket = socket(&node, Form::Binary).await;
        socket.get_mut().write_all(bytes).await.unwrap();
        socket.get_mut().shutdown().await.unwrap();
        ending(&mut socket).await;
    }
    assert_alive(&node).await;
    until("all are closed", || node.node.connections() == 0).await;
    assert_eq!(panics(), before);
}

#[tokio::test]
async fn garbage_in_a_grpc_stream_is_named_too() {
    let node = start().await;
    let cases = [
        (vec![0, 0, 0, 0, 3, 0xff, 0xff, 0xff], "control.malformed"),
        (vec![1, 0, 0, 0, 0], "control.malformed"),
        (vec![0, 0xff, 0xff, 0xff, 0xff], "control.too_large"),
    ];
    for (bytes, expected) in cases {
        let request = http::Request::post(tidings_wire::GRPC_PATH)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .uri(format!("{}{}", node.node.url(), tidings_wire::GRPC_PATH))
            .body(http_body_util::Full::new(Bytes::from(bytes)))
            .unwrap();
        let stream = TcpStream::connect(node.node.address()).await.unwrap();
        let answer = crate::support::send_http2(stream, request).await;
        let mut deframer = codec::Deframer::new();
        deframer.push(answer.body);
        let (frame, _) = deframer.next(1 << 20).unwrap().unwrap();
        match frame.body {
            Some(Body::Control(v1::Control { message: Some(Control::Error(error)) })) => {
                assert_eq!(error.code, expected)
            }
            other => panic!("{other:?}"),
        }
    }
    assert_alive(&node).await;
}

#[tokio::test]
async fn whoever_says_nothing_is_closed() {
    let mut config = loopback();
    config.timings.hello = Time::millis(100);
    config.timings.ping_after = Time::millis(100);
    config.timings.dead_after = Time::millis(300);
    let node = ScriptedNode::start(config).await;
    let mut silent = socket(&node, Form::Binary).await;
    assert_eq!(ending(&mut silent).await.0.as_deref(), Some("control.handshake"));
    // After the handshake it is asked for a sign of life first.
    let mut silent = socket(&node, Form::Binary).await;
    shake_hands(&mut silent).await;
    let ping = codec::decode(&silent.next().await.unwrap().unwrap().into_data(), 1 << 20).unwrap();
    assert!(matches!(ping.body, Some(Body::Control(v1::Control { message: Some(Control::Ping(_)) }))));
    assert_eq!(ending(&mut silent).await.0.as_deref(), Some("control.dead_peer"));
}

#[tokio::test]
async fn whoever_reads_nothing_is_closed_and_nobody_waits_for_it() {
    let mut config = loopback();
    config.timings.stall = Time::millis(300);
    let node = ScriptedNode::start(config).await;
    let mut slow = socket(&node, Form::Binary).await;
    shake_hands(&mut slow).await;
    for i in 0..200u64 {
        let frame = v1::Frame { op: 2 * i + 1, more: false, body: Some(get("big:1000000")) };
        // The server stops reading before all are sent; that is its right.
        let sent = tokio::time::timeout(Duration::from_millis(20), slow.send(binary(&frame))).await;
        if sent.is_err() {
            break;
        }
    }
    assert_alive(&node).await;
    until("the slow reader is closed", || node.node.connections() == 0).await;
    assert!(node.script.begun.load(Ordering::SeqCst) < 100, "requests are not read while answers are not taken");
}

#[tokio::test]
async fn unknown_messages_are_answered_and_unknown_fields_ignored() {
    let node = start().await;
    let mut socket = socket(&node, Form::Json).await;
    let say = |text: &str| Ws::Text(text.into());
    socket.send(say(r#"{"control":{"hello":{"min":1,"max":3,"later":true}}}"#)).await.unwrap();
    let welcome = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(welcome.contains(r#""welcome":{"version":1"#), "{welcome}");
    for request in [r#"{"op":"1","quantum":{}}"#, r#"{"op":"3","store":{"teleport":{}}}"#] {
        socket.send(say(request)).await.unwrap();
        let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert!(answer.contains("control.unsupported"), "{answer}");
    }
    socket.send(say(r#"{"op":"5","store":{"get":{"key":{"group":"Zw==","row":"eA=="},"later":1}}}"#)).await.unwrap();
    let answer = socket.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(answer.starts_with(r#"{"op":"5","store":{"rows":"#), "{answer}");
}

#[tokio::test]
async fn upgrades_that_are_wrong_are_refused() {
    use http::Method;
    let server = Server::start(loopback()).await;
    let answer = server.send(crate::support::request(Method::GET, WEBSOCKET_PATH, None, None)).await;
    assert_eq!(answer.status, 426);
    for (protocol, version, expected) in
        [("chat", "13", 400), ("tidings.v1.json", "8", 400), ("tidings.v1.json", "13", 101)]
    {
        let mut request = crate::support::request(Method::GET, WEBSOCKET_PATH, None, None);
        let headers = request.headers_mut();
        for (name, value) in [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", version),
            ("sec-websocket-protocol", protocol),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(server.address()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection.with_upgrades());
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{protocol} {version}");
        connection.abort();
    }
}
