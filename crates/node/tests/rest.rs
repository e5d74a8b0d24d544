//! REST round trips against simple services, and the document that describes them.

use crate::support::{Server, loopback, request, send_http2};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::net::TcpStream;

#[tokio::test]
async fn cells_are_written_read_scanned_and_deleted() {
    let server = Server::start(loopback()).await;
    for (row, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        let write = json!({"cells": [{"column": "n", "value": value, "timestamp": 5}, {"column": "x", "value": "y"}]});
        assert_eq!(server.json(Method::PUT, &format!("/v1/store/g/{row}"), write).await.status, 204);
    }
    let row = server.get("/v1/store/g/b?column=n").await.json();
    assert_eq!(row, json!({"row": "b", "cells": [{"column": "n", "timestamp": 5, "value": "2"}]}));
    let page = server.get("/v1/store/g?limit=2&column=n").await.json();
    assert_eq!((page["rows"].as_array().unwrap().len(), &page["next"]), (2, &json!("c")));
    let last = server.get("/v1/store/g?start=c&end=d").await.json();
    assert_eq!((last["rows"][0]["row"].as_str(), last.get("next")), (Some("c"), None));
    // Without a timestamp the server's clock gives one, which is newer than 5.
    let delete = json!({"cells": [{"column": "n"}, {"column": "x"}]});
    assert_eq!(server.json(Method::PUT, "/v1/store/g/b", delete).await.status, 204);
    assert_eq!(server.get("/v1/store/g/b").await.error(), (404, "store.no_row".into()));
}

#[tokio::test]
async fn names_and_values_may_be_any_bytes() {
    let server = Server::start(loopback()).await;
    let write = json!({"cells": [{"column": {"base64": "/w=="}, "value": {"base64": "gIE="}, "timestamp": 1}]});
    assert_eq!(server.json(Method::PUT, "/v1/store/g%2F1/%00%ff", write).await.status, 204);
    let rows = server.get("/v1/store/g%2F1?start=%00").await.json();
    assert_eq!(rows["rows"][0]["row"], json!({"base64": "AP8="}));
    assert_eq!(rows["rows"][0]["cells"][0]["value"], json!({"base64": "gIE="}));
    assert_eq!(server.get("/v1/store/g%2F1/%00%ff?column=%ff").await.status, 200);
    assert_eq!(server.get("/v1/store/g/%zz").await.error(), (400, "control.bad_path".into()));
}

#[tokio::test]
async fn compare_and_set_says_what_stood_in_the_way() {
    let server = Server::start(loopback()).await;
    let path = "/v1/store/g/r/compare-and-set";
    let set = |expected, timestamp| json!({"column": "c", "expected": expected, "timestamp": timestamp, "value": "v"});
    assert_eq!(server.json(Method::POST, path, set(0, 10)).await.json(), json!({"written": true}));
    let refused = server.json(Method::POST, path, set(0, 11)).await.json();
    assert_eq!(refused, json!({"written": false, "actual": {"column": "c", "timestamp": 10, "value": "v"}}));
    assert_eq!(server.json(Method::POST, path, set(10, 11)).await.json(), json!({"written": true}));
}

#[tokio::test]
async fn entries_are_appended_consumed_and_acknowledged() {
    let server = Server::start(loopback()).await;
    let appended = server.json(Method::POST, "/v1/feed/news", json!({"entries": ["a", {"base64": "/w=="}]})).await;
    assert_eq!(appended.json(), json!({"first": 1, "last": 2}));
    let consume = "/v1/feed/news/groups/mail/consume";
    let found = server.json(Method::POST, consume, json!({"limit": 10})).await.json();
    let expected = json!([
        {"number": 1, "entry": "a", "redelivered": 0},
        {"number": 2, "entry": {"base64": "/w=="}, "redelivered": 0}
    ]);
    assert_eq!(found["deliveries"], expected);
    assert_eq!(
        server.json(Method::POST, "/v1/feed/news/groups/mail/ack", json!({"numbers": [1, 2]})).await.status,
        204
    );
    let too_long = server.json(Method::POST, consume, json!({"wait_ms": 3_600_000})).await;
    assert_eq!(too_long.error(), (400, "feed.wait_too_long".into()));
}

#[tokio::test]
async fn mistakes_in_requests_are_named() {
    let server = Server::start(loopback()).await;
    let put = |body: &'static str| {
        let mut request = request(Method::PUT, "/v1/store/g/r", None, None);
        *request.body_mut() = Full::new(Bytes::from_static(body.as_bytes()));
        server.send(request)
    };
    for body in ["", "{", "[]", "{\"cells\": 7}", "{\"cels\": []}", "{\"cells\": [{\"column\": 1}]}"] {
        let answer = put(body).await;
        assert_eq!(answer.error(), (400, "control.bad_body".into()), "{body}");
        assert!(answer.json()["hint"].as_str().unwrap().contains("/openapi.json"));
    }
    assert_eq!(server.get("/v1/store/g?limt=5").await.error(), (400, "control.bad_path".into()));
    assert_eq!(server.get("/v1/store/g?limit=x").await.error(), (400, "control.bad_path".into()));
    assert_eq!(server.get("/v1/nowhere").await.error(), (404, "control.no_route".into()));
    let deleted = server.send(request(Method::DELETE, "/v1/store/g/r", None, None)).await;
    assert_eq!(deleted.error(), (405, "control.no_route".into()));
    let app = server.json(Method::POST, "/v1/admin/apps", json!({"app": "Not This"})).await;
    assert_eq!(app.error(), (400, "admin.bad_app_name".into()));
    let missing = server.json(Method::POST, "/v1/admin/apps/none/keys", Value::Null).await;
    assert_eq!(missing.error(), (404, "admin.no_app".into()));
    let member = server.send(request(Method::DELETE, "/v1/admin/groups/1/members/x", None, None)).await;
    assert_eq!(member.error(), (400, "control.bad_path".into()));
}

#[tokio::test]
async fn an_application_is_created_once_and_its_key_shown_once() {
    let server = Server::start(loopback()).await;
    let created = server.json(Method::POST, "/v1/admin/apps", json!({"app": "shop"})).await;
    assert_eq!(created.status, 201);
    assert!(created.json()["key"].as_str().unwrap().starts_with("tid_"));
    let again = server.json(Method::POST, "/v1/admin/apps", json!({"app": "shop"})).await;
    assert_eq!(again.error(), (409, "admin.app_exists".into()));
    let listed = server.get("/v1/admin/apps").await.json();
    assert_eq!(listed["apps"][0]["keys"][0]["id"], created.json()["id"]);
    assert_eq!(listed["apps"][0]["keys"][0]["revoked"], false);
}

#[tokio::test]
async fn liveness_is_not_readiness() {
    let server = Server::start(loopback()).await;
    assert_eq!(server.get("/readyz").await.text(), "ready\n");
    server.services.set_ready(false);
    assert_eq!(server.get("/readyz").await.error(), (503, "node.not_ready".into()));
    assert_eq!(server.get("/healthz").await.text(), "ok\n");
    let page = server.get("/").await;
    assert!(page.text().contains("/openapi.json"));
    assert!(page.headers["server"].to_str().unwrap().starts_with("tidings/"));
}

#[tokio::test]
async fn metrics_count_requests_by_route_not_by_path() {
    let server = Server::start(loopback()).await;
    server.get("/v1/store/secret-group/secret-row").await;
    server.get("/secret-place").await;
    let text = server.get("/metrics").await.text();
    assert!(text.contains("route=\"/v1/store/{group}/{row}\",method=\"GET\",status=\"404\""), "{text}");
    assert!(text.contains("tidings_connections "), "{text}");
    assert!(!text.contains("secret"), "paths must not become labels");
}

/// All `$ref`s of a document.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => drop(found.insert(target.clone())),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_whole_and_lists_every_route() {
    let server = Server::start(loopback()).await;
    let document = server.get("/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let mut targets = BTreeSet::new();
    references(&document, &mut targets);
    assert!(targets.len() > 10);
    for target in &targets {
        let pointer = target.strip_prefix('#').expect("references stay inside the document");
        assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
    }
    let mut ids = BTreeSet::new();
    let mut listed = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "two operations are called {id}");
            assert!(operation["responses"].as_object().is_some_and(|all| !all.is_empty()));
            let in_path = path.matches('{').count();
            let described =
                operation["parameters"].as_array().map_or(0, |all| all.iter().filter(|p| p["in"] == "path").count());
            assert_eq!(in_path, described, "{method} {path}");
            listed.insert(format!("{} {path}", method.to_uppercase()));
            // What it lists is there: whatever it answers, it is not that there is no such route.
            let filled = path.replace("{app}", "a").replace("{group}", "1").replace("{node}", "1");
            let filled = filled.replace("{id}", "i").replace("{row}", "r").replace("{topic}", "t");
            let filled = filled.replace("{path}", "p").replace("{session}", "1");
            let answer = server.send(request(method.to_uppercase().parse().unwrap(), &filled, None, None)).await;
            assert!(!answer.text().contains("control.no_route"), "{method} {path}");
        }
    }
    let expected: BTreeSet<String> = [
        "GET /",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /v1/admin/status",
        "GET /v1/admin/apps",
        "POST /v1/admin/apps",
        "POST /v1/admin/apps/{app}/keys",
        "DELETE /v1/admin/apps/{app}/keys/{id}",
        "POST /v1/admin/groups/{group}/members",
        "DELETE /v1/admin/groups/{group}/members/{node}",
        "POST /v1/admin/incarnation",
        "GET /v1/cell/files",
        "GET /v1/cell/files/{path}",
        "PUT /v1/cell/files/{path}",
        "DELETE /v1/cell/files/{path}",
        "GET /v1/cell/sessions",
        "DELETE /v1/cell/sessions/{session}",
        "GET /v1/cell/locks",
        "GET /v1/cell/quotas",
        "PUT /v1/cell/quotas",
        "GET /v1/cell/quotas/{path}",
        "PUT /v1/cell/quotas/{path}",
        "GET /v1/placement",
        "PUT /v1/placement/{namespace}",
        "DELETE /v1/placement/{namespace}",
        "GET /v1/placement/{namespace}/table",
        "GET /v1/placement/{namespace}/ring",
        "GET /v1/placement/{namespace}/lookup",
        "POST /v1/placement/{namespace}/rebalance",
        "GET /v1/placement/{namespace}/owners",
        "POST /v1/placement/{namespace}/owners/{owner}/drain",
        "DELETE /v1/placement/{namespace}/owners/{owner}/drain",
        "PUT /v1/placement/{namespace}/owners/{owner}",
        "DELETE /v1/placement/{namespace}/owners/{owner}",
        "GET /v1/placement/{namespace}/owners/{owner}/assignments",
        "GET /v1/placement/{namespace}/owners/{owner}/check",
        "POST /v1/placement/{namespace}/owners/{owner}/moves/{token}",
        "POST /v1/placement/{namespace}/owners/{owner}/imports/{token}",
        "POST /v1/placement/{namespace}/owners/{owner}/load",
        "GET /v1/notify/{app}",
        "POST /v1/notify/{app}",
        "GET /v1/notify/{app}/{object}",
        "POST /v1/notify/{app}/{object}",
        "GET /v1/notify-clients/{app}",
        "POST /v1/notify-events/{app}",
        "GET /v1/notify-counts/{app}",
        "GET /v1/notify-load",
        "GET /v1/notify-traces/{app}",
        "GET /v1/notify-traces/{app}/{object}",
        "POST /v1/notify-channels/{app}",
        "GET /v1/notify-channels/{app}/{channel}",
        "POST /v1/notify-channels/{app}/{channel}",
        "DELETE /v1/notify-channels/{app}/{channel}",
        "GET /v1/notify-channels/{app}/{channel}/events",
        "GET /v1/tables",
        "GET /v1/tables/{table}",
        "PUT /v1/tables/{table}",
        "PATCH /v1/tables/{table}",
        "DELETE /v1/tables/{table}",
        "GET /v1/tables/{table}/records",
        "GET /v1/tables/{table}/records/{key}",
        "PUT /v1/tables/{table}/records/{key}",
        "PATCH /v1/tables/{table}/records/{key}",
        "DELETE /v1/tables/{table}/records/{key}",
        "POST /v1/tables/{table}/query",
        "GET /v1/tables/{table}/watch",
        "POST /v1/tables/{table}/watch",
        "GET /v1/tables/{table}/queries",
        "GET /v1/tables-load",
        "GET /v1/tables/{table}/access",
        "PATCH /v1/tables/{table}/access",
        "DELETE /v1/tables/{table}/access",
        "GET /v1/tables/{table}/export",
        "POST /v1/tables/{table}/import",
        "GET /v1/store",
        "POST /v1/store",
        "GET /v1/store/{group}",
        "GET /v1/store/{group}/{row}",
        "PUT /v1/store/{group}/{row}",
        "POST /v1/store/{group}/{row}/compare-and-set",
        "POST /v1/feed/{topic}",
        "POST /v1/feed/{topic}/groups/{group}/consume",
        "POST /v1/feed/{topic}/groups/{group}/ack",
    ]
    .map(String::from)
    .into();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn an_unknown_grpc_service_is_unimplemented_and_reflection_answers() {
    let server = Server::start(loopback()).await;
    let grpc = |path: &str, body: &'static [u8]| {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from_static(body)))
            .unwrap();
        let address = server.address();
        async move { send_http2(TcpStream::connect(address).await.unwrap(), request).await }
    };
    let unknown = grpc("/nobody.Knows/This", b"\0\0\0\0\0").await;
    assert_eq!((unknown.status.as_u16(), unknown.headers["grpc-status"].to_str().unwrap()), (200, "12"));
    // ServerReflectionRequest { list_services: "" }
    let listed = grpc("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b"\0\0\0\0\x02\x3a\0").await;
    let names = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(names.contains("tidings.v1.Tidings"), "{names:?}");
}
