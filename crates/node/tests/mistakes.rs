//! Known mistakes of others (specification 6) that this layer could repeat, each kept out by a test.

use crate::support::{Server, TestIssuer, loopback, now_seconds, panics, request, with_operator};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::Method;
use prost::Message as _;
use serde_json::{Value, json};
use tidings_node::Config;
use tidings_wire::{Body, Frame, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

const REFUSED: (u16, &str) = (401, "control.unauthenticated");

async fn refuses(server: &Server, token: &str, why: &str) {
    let (status, code) = server.get_as(token, "/v1/store").await.error();
    assert_eq!((status, code.as_str()), REFUSED, "{why}");
}

async fn issuer_server(dir: &tempfile::TempDir) -> (Server, TestIssuer) {
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let read =
        tidings_node::config::Grant { part: tidings_wire::Part::Store, action: tidings_node::authorize::Action::Read };
    let mut config = loopback();
    config.limits.failures_per_minute = 1_000;
    config.auth.issuers = vec![issuer.config("shop", &[read])];
    let server = Server::start(config).await;
    assert_eq!(server.get_as(&issuer.sign(&issuer.claims()), "/v1/store").await.status, 200);
    (server, issuer)
}

/// etcd GHSA-q8m4-xhhv-38mg: administrative calls without authorisation.
#[tokio::test]
async fn every_administrative_call_needs_the_operator() {
    let (config, operator) = with_operator();
    let server = Server::start(config).await;
    let key = server.app("shop").await;
    let document = server.get("/openapi.json").await.json();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if !path.starts_with("/v1/admin/") {
            continue;
        }
        let path = path.replace("{app}", "shop").replace("{group}", "1").replace("{id}", "x").replace("{node}", "2");
        for method in methods.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let body = json!({"app": "x", "node": 2, "address": "10.0.0.2:7400"});
            let nobody = server.json(method.clone(), &path, body.clone()).await;
            assert_eq!(nobody.error().0, 401, "{method} {path}");
            // An application's key passes authentication; only what the call is about may refuse it, not its form.
            let body = match (&method, path.ends_with("members")) {
                (&Method::POST, true) => json!({"node": 2, "address": "10.0.0.2:7400"}),
                (&Method::POST, false) => json!({"app": "x"}),
                _ => Value::Null,
            };
            let app = server.json_as(&key, method.clone(), &path, body).await;
            assert_eq!(app.error(), (403, "control.forbidden".into()), "{method} {path}");
            checked += 1;
        }
    }
    assert!(checked >= 7, "only {checked} administrative calls were found");
    assert_eq!(server.get_as(&operator, "/v1/admin/apps").await.json()["apps"].as_array().unwrap().len(), 1);
}

/// NATS CVE-2026-27889: a malformed WebSocket frame that panics before authentication.
#[tokio::test]
async fn malformed_websocket_frames_before_authentication_end_one_connection() {
    let (config, operator) = with_operator();
    let server = Server::start(config).await;
    let upgrade = "GET /v1/frames HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        sec-websocket-protocol: tidings.v1.proto\r\n\r\n";
    // What is sent, and the close frame that answers it; nothing where the frame never ends.
    let (malformed, too_large) = (&b"\x88\x13\x03\xeacontrol.malformed"[..], &b"\x88\x13\x03\xf1control.too_large"[..]);
    let nothing = &b"\r\n\r\n"[..];
    let evil: [(&[u8], &[u8]); 9] = [
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", too_large), // a length of 2^64-1
        (b"\x82\xff\x80\0\0\0\0\0\0\0\0\0\0\0", too_large),               // a length with the highest bit
        (b"\x82\xfe\xff\xff\0\0\0\0", nothing),                           // more than is sent
        (b"\xf2\x80\0\0\0\0", malformed),                                 // reserved bits
        (b"\x82\x05hello", malformed),                                    // not masked
        (b"\x89\xfe\x01\x00\0\0\0\0", nothing),                           // a ping too long
        (b"\x80\x80\0\0\0\0", malformed),                                 // a continuation of nothing
        (b"\x82\x84\0\0\0\0\xff\xff\xff\xff", malformed),                 // a message that is no frame
        (b"\x81\x82\0\0\0\0\xff\xff", malformed),                         // text that is not UTF-8
    ];
    let before = panics();
    for (bytes, expected) in evil {
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(upgrade.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 101");
        socket.write_all(bytes).await.unwrap();
        socket.shutdown().await.unwrap();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(answer.ends_with(expected), "{bytes:x?} {}", answer.escape_ascii());
        assert_eq!(server.get("/healthz").await.status, 200, "{bytes:x?}");
    }
    assert_eq!(panics(), before);
    assert_eq!(server.get_as(&operator, "/v1/admin/status").await.status, 200);
}

/// NATS secnote-2026-16: a fast path that skips authentication. Frames before, instead of and right behind a Hello.
#[tokio::test]
async fn nothing_is_done_for_a_connection_before_it_is_known() {
    let (config, _) = with_operator();
    let server = Server::start(config).await;
    let hello = |credential: &str| Frame {
        op: 0,
        more: false,
        body: Some(Body::Control(v1::Control {
            message: Some(v1::control::Message::Hello(v1::Hello {
                min: 1,
                max: 1,
                credential: credential.into(),
                agent: "test".into(),
            })),
        })),
    };
    let write = Frame {
        op: 1,
        more: false,
        body: Some(Body::Store(v1::StoreMessage {
            message: Some(v1::store_message::Message::Apply(v1::Apply {
                groups: vec![v1::GroupWrite {
                    group: Bytes::from("g"),
                    rows: vec![v1::RowWrite {
                        row: Bytes::from("r"),
                        cells: vec![v1::Cell { column: "c".into(), timestamp: 1, value: Some("v".into()) }],
                    }],
                    fence: None,
                }],
            })),
        })),
    };
    let wrong = tidings_node::keys::Key::random().unwrap().reveal();
    for frames in [vec![write.clone()], vec![hello(""), write.clone()], vec![hello(&wrong), write.clone()]] {
        let socket = TcpStream::connect(server.address()).await.unwrap();
        let mut request = http::Request::builder().uri(format!("ws://localhost{}", "/v1/frames"));
        for (name, value) in [
            ("host", "localhost"),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", tidings_wire::WEBSOCKET_BINARY),
        ] {
            request = request.header(name, value);
        }
        let (mut ws, _) = tokio_tungstenite::client_async(request.body(()).unwrap(), socket).await.unwrap();
        for frame in frames {
            // The server may have hung up by the second.
            let _ = ws.send(Message::Binary(frame.encode_to_vec().into())).await;
        }
        while let Some(Ok(message)) = ws.next().await {
            let Message::Binary(bytes) = message else { continue };
            let frame = Frame::decode(bytes).unwrap();
            let is_error = matches!(
                &frame.body,
                Some(Body::Control(v1::Control { message: Some(v1::control::Message::Error(_)) }))
            );
            assert!(is_error, "a stranger was answered: {frame:?}");
        }
    }
    // Nothing was written under any application's name.
    let rows = server.services.everything();
    assert!(rows.is_empty(), "{rows:?}");
}

/// Centrifugo CVE-2026-32301: unverified claims that choose the URL of the keys.
#[tokio::test]
async fn no_url_that_a_token_names_is_ever_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let (server, issuer) = issuer_server(&dir).await;
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks.json", trap.local_addr().unwrap());
    let mut claims = issuer.claims();
    claims["iss"] = json!(url);
    let mut header = jsonwebtoken::Header { kid: Some("k1".into()), ..Default::default() };
    header.jku = Some(url.clone());
    header.x5u = Some(url.clone());
    let secret = jsonwebtoken::EncodingKey::from_secret(&issuer.secret);
    refuses(&server, &jsonwebtoken::encode(&header, &claims, &secret).unwrap(), "its issuer is a URL of its own").await;
    // With the right issuer the header's URLs are as good as not there: the pinned key decides.
    let token = jsonwebtoken::encode(&header, &issuer.claims(), &secret).unwrap();
    assert_eq!(server.get_as(&token, "/v1/store").await.status, 200);
    let knocked = tokio::select! {
        biased;
        _ = trap.accept() => true,
        () = std::future::ready(()) => false,
    };
    assert!(!knocked, "the server connected to an address that a token named");
}

/// Centrifugo GHSA-g6vg-wj8f-48cj: keys found by `kid` alone, across tenants.
#[tokio::test]
async fn a_key_id_means_something_only_within_its_issuer() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (TestIssuer::new(dir.path(), "https://a", "same", 1), TestIssuer::new(dir.path(), "https://b", "same", 2));
    let mut config = loopback();
    config.auth.issuers = vec![a.config("app-a", &[]), b.config("app-b", &[])];
    let server = Server::start(config).await;
    for issuer in [&a, &b] {
        let answer = server.get_as(&issuer.sign(&issuer.claims()), "/v1/store").await;
        assert_eq!(answer.error().0, 403, "known, though it may do nothing");
    }
    refuses(&server, &b.sign(&a.claims()), "b's key signed for a").await;
    refuses(&server, &a.sign(&b.claims()), "a's key signed for b").await;
}

/// Supabase CVE-2026-31813: an issuer that is not pinned. And audience, algorithm, key id, subject.
#[tokio::test]
async fn a_token_must_fit_its_issuer_in_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (server, issuer) = issuer_server(&dir).await;
    let with = |name: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[name] = value;
        claims
    };
    for (claims, why) in [
        (with("iss", json!("https://other")), "another issuer"),
        (with("iss", json!("https://id/")), "nearly the issuer"),
        (with("iss", json!(["https://id"])), "issuers as a list"),
        (with("iss", Value::Null), "no issuer"),
        (with("aud", json!("other")), "another audience"),
        (with("aud", json!(["other"])), "other audiences"),
        (with("aud", Value::Null), "no audience"),
        (with("sub", Value::Null), "no subject"),
        (with("sub", json!("")), "an empty subject"),
    ] {
        refuses(&server, &issuer.sign(&claims), why).await;
    }
    let secret = jsonwebtoken::EncodingKey::from_secret(&issuer.secret);
    let encode = |header: &jsonwebtoken::Header| jsonwebtoken::encode(header, &issuer.claims(), &secret).unwrap();
    let stronger =
        jsonwebtoken::Header { kid: Some("k1".into()), ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS512) };
    refuses(&server, &encode(&stronger), "another algorithm than the pinned one").await;
    refuses(&server, &encode(&jsonwebtoken::Header::default()), "no key id").await;
    let unknown = jsonwebtoken::Header { kid: Some("k2".into()), ..Default::default() };
    refuses(&server, &encode(&unknown), "an unknown key id").await;
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = format!("{}.{}.", part(json!({"alg": "none", "kid": "k1"})), part(issuer.claims()));
    refuses(&server, &unsigned, "no signature").await;
    let good = issuer.sign(&issuer.claims());
    let (head, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{}.{}.{signature}", head.split_once('.').unwrap().0, part(with("sub", json!("bob"))));
    refuses(&server, &forged, "claims of another token").await;
    refuses(&server, &"a".repeat(10_000), "far too long").await;
}

/// jsonwebtoken CVE-2026-25537: `exp` and `nbf` given as strings taken for absent.
#[tokio::test]
async fn times_that_are_not_numbers_are_refused_and_an_end_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let (server, issuer) = issuer_server(&dir).await;
    let later = now_seconds() + 600;
    for (name, value, why) in [
        ("exp", json!(later.to_string()), "exp as a string"),
        ("exp", json!("never"), "exp as a word"),
        ("exp", json!([later]), "exp as a list"),
        ("exp", json!(true), "exp as a truth"),
        ("exp", json!(-1), "exp before time"),
        ("exp", json!(1e300), "exp beyond time"),
        ("exp", Value::Null, "no exp"),
        ("exp", json!(now_seconds() - 3_600), "exp in the past"),
        ("nbf", json!((now_seconds() - 10).to_string()), "nbf as a string"),
        ("nbf", json!("now"), "nbf as a word"),
        ("nbf", json!({}), "nbf as an object"),
        ("nbf", json!(now_seconds() + 3_600), "nbf in the future"),
    ] {
        let mut claims = issuer.claims();
        claims[name] = value;
        refuses(&server, &issuer.sign(&claims), why).await;
    }
    let mut claims = issuer.claims();
    claims.as_object_mut().unwrap().remove("exp");
    refuses(&server, &issuer.sign(&claims), "exp left out").await;
    let mut claims = issuer.claims();
    claims["nbf"] = json!(now_seconds() as f64 - 0.5);
    assert_eq!(server.get_as(&issuer.sign(&claims), "/v1/store").await.status, 200, "fractions are numbers");
}

/// Supabase GHSA-3529-5m8x-rpv3: a trusted forwarded-host header; and its relatives.
#[tokio::test]
async fn headers_about_where_a_request_comes_from_are_not_believed() {
    let (config, _) = with_operator();
    let server = Server::start(config).await;
    let forwarded = [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1;host=localhost"),
        ("x-forwarded-host", "localhost"),
        ("x-forwarded-client-cert", "Subject=\"CN=node-1.nodes.tidings\""),
        ("x-ssl-client-verify", "SUCCESS"),
    ];
    for (name, value) in forwarded {
        let mut request = request(Method::GET, "/v1/admin/status", None, None);
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(server.send(request).await.error().0, 401, "{name}");
    }
}

/// A web page that makes the browser call an unconfigured server on the same machine: by a foreign origin, or by a
/// foreign name that was pointed to loopback. The forwarded host must not talk us out of it.
#[tokio::test]
async fn foreign_web_pages_do_not_become_the_operator() {
    let server = Server::start(loopback()).await;
    let own = server.address().to_string();
    let cases: Vec<(Vec<(&str, &str)>, bool)> = vec![
        (vec![("host", &own)], true),
        (vec![("host", "localhost:7400")], true),
        (vec![("host", "[::1]:7400")], true),
        (vec![("host", "evil.example")], false),
        (vec![("host", "evil.example"), ("x-forwarded-host", "localhost")], false),
        (vec![("host", "127.0.0.1.evil.example")], false),
        (vec![("host", "localhost"), ("origin", "http://localhost")], true),
        (vec![("host", "localhost"), ("origin", "https://evil.example")], false),
        (vec![("host", "localhost"), ("origin", "null")], false),
        (vec![("host", "localhost:7400"), ("origin", "http://localhost:8000")], false),
        (vec![("host", "localhost"), ("sec-fetch-site", "cross-site")], false),
        (vec![("host", "localhost"), ("sec-fetch-site", "same-origin")], true),
    ];
    for (headers, allowed) in cases {
        let mut request = request(Method::GET, "/v1/admin/status", None, None);
        for (name, value) in &headers {
            request.headers_mut().insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        assert_eq!(server.send(request).await.status == 200, allowed, "{headers:?}");
    }
}

/// etcd GHSA-rfx7-8w68-q57q: nested operations that skip the check. Every group of a batch is its caller's.
#[tokio::test]
async fn every_group_of_a_batch_is_the_callers_own() {
    let server = Server::start(Config { public_metrics: true, ..loopback() }).await;
    let (a, b) = (server.app("a").await, server.app("b").await);
    let row = json!([{"row": "r", "cells": [{"column": "c", "value": "v"}]}]);
    let batch = json!({"groups": [{"group": "g", "rows": row}, {"group": "b/g", "rows": row}, {"group": "../b/g", "rows": row}]});
    let applied = server.json_as(&a, Method::POST, "/v1/store", batch).await;
    assert_eq!((applied.status.as_u16(), applied.json()), (200, json!({"failures": []})));
    assert_eq!(server.get_as(&b, "/v1/store/g/r").await.status, 404);
    assert_eq!(server.get_as(&a, "/v1/store/b%2Fg/r").await.status, 200);
}
