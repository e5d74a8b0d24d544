//! Each kind of principal over real sockets, and what each may not do.

use crate::support::{Server, TestIssuer, loopback, now_seconds, request, with_operator};
use http::Method;
use serde_json::json;
use tidings_node::config::Time;
use tidings_wire::Part;

const STATUS: &str = "/v1/admin/status";
const ROW: &str = "/v1/store/g/r";

#[tokio::test]
async fn an_unconfigured_loopback_server_takes_everyone_for_the_operator() {
    let server = Server::start(loopback()).await;
    assert_eq!(server.get(STATUS).await.status, 200);
    assert_eq!(server.json(Method::PUT, ROW, json!({"cells": [{"column": "c", "value": "v"}]})).await.status, 204);
    // The operator acts in the application `default`: an application of that name sees the same data.
    let key = server.app("default").await;
    assert_eq!(server.get_as(&key, ROW).await.json()["cells"][0]["value"], "v");
    let other = server.app("other").await;
    assert_eq!(server.get_as(&other, ROW).await.error(), (404, "store.no_row".into()));
}

#[tokio::test]
async fn a_wrong_credential_is_refused_even_where_none_is_needed() {
    let server = Server::start(loopback()).await;
    let unknown = tidings_node::keys::Key::random().unwrap().reveal();
    let operator = tidings_node::keys::Key::operator().unwrap().reveal();
    for bad in [unknown.as_str(), operator.as_str(), "tid_x.y", "a.b.c", "nonsense", ""] {
        assert_eq!(server.get_as(bad, STATUS).await.error(), (401, "control.unauthenticated".into()), "{bad}");
    }
    let mut basic = request(Method::GET, STATUS, None, None);
    basic.headers_mut().insert("authorization", "Basic dXNlcjpwYXNz".parse().unwrap());
    assert_eq!(server.send(basic).await.error().0, 401);
    let mut twice = request(Method::GET, STATUS, Some("a.b.c"), None);
    twice.headers_mut().append("authorization", "Bearer x".parse().unwrap());
    assert_eq!(server.send(twice).await.error().0, 401);
}

#[tokio::test]
async fn a_configured_server_takes_nobody_without_a_credential() {
    let (config, operator) = with_operator();
    let server = Server::start(config).await;
    for path in [STATUS, ROW, "/v1/store", "/v1/admin/apps", "/metrics"] {
        let answer = server.get(path).await;
        assert_eq!(answer.error(), (401, "control.unauthenticated".into()), "{path}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert!(answer.json()["hint"].as_str().unwrap().contains("Bearer tid_"));
    }
    for path in ["/", "/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    assert_eq!(server.get_as(&operator, STATUS).await.status, 200);
    assert!(server.get_as(&operator, "/metrics").await.text().contains("tidings_connections"));
}

#[tokio::test]
async fn an_application_key_opens_its_own_data_and_no_administration() {
    let (config, operator) = with_operator();
    let server = Server::start(config).await;
    let created = server.json_as(&operator, Method::POST, "/v1/admin/apps", json!({"app": "shop"})).await;
    assert_eq!(created.status, 201);
    let key = created.json()["key"].as_str().unwrap().to_owned();
    let write = json!({"cells": [{"column": "c", "value": "v", "timestamp": 7}]});
    assert_eq!(server.json_as(&key, Method::PUT, ROW, write).await.status, 204);
    assert_eq!(server.get_as(&key, ROW).await.json()["cells"][0]["timestamp"], 7);
    for path in [STATUS, "/v1/admin/apps", "/metrics"] {
        assert_eq!(server.get_as(&key, path).await.error(), (403, "control.forbidden".into()), "{path}");
    }
    let listed = server.get_as(&operator, "/v1/admin/apps").await;
    assert!(!listed.text().contains(&key[21..]), "secrets are shown once");
    assert_eq!(listed.json()["apps"][0]["app"], "shop");
}

#[tokio::test]
async fn a_revoked_key_stops_working_at_the_next_check() {
    let (mut config, operator) = with_operator();
    config.timings.key_check = Time::millis(0);
    let server = Server::start(config).await;
    let created = server.json_as(&operator, Method::POST, "/v1/admin/apps", json!({"app": "shop"})).await.json();
    let (key, id) = (created["key"].as_str().unwrap(), created["id"].as_str().unwrap());
    assert_eq!(server.get_as(key, "/v1/store").await.status, 200);
    let revoke = format!("/v1/admin/apps/shop/keys/{id}");
    let revoked = server.send(request(Method::DELETE, &revoke, Some(&operator), None)).await;
    assert_eq!(revoked.status, 204);
    assert_eq!(server.get_as(key, "/v1/store").await.error(), (401, "control.unauthenticated".into()));
    let second = server.json_as(&operator, Method::POST, "/v1/admin/apps/shop/keys", json!(null)).await;
    assert_eq!(second.status, 201);
    assert_eq!(server.get_as(second.json()["key"].as_str().unwrap(), "/v1/store").await.status, 200);
}

#[tokio::test]
async fn guessing_keys_is_slowed_down_but_not_for_who_is_known() {
    let (mut config, operator) = with_operator();
    config.limits.failures_per_minute = 5;
    let server = Server::start(config).await;
    let key = server.app("shop").await;
    assert_eq!(server.get_as(&key, "/v1/store").await.status, 200);
    let wrong = format!("{}{}", &key[..21], &tidings_node::keys::Key::random().unwrap().reveal()[21..]);
    for _ in 0..5 {
        assert_eq!(server.get_as(&wrong, "/v1/store").await.error(), (401, "control.unauthenticated".into()));
    }
    assert_eq!(server.get_as(&wrong, "/v1/store").await.error(), (429, "control.busy".into()));
    assert_eq!(server.get_as(&operator, STATUS).await.status, 200, "guesses at one key keep no other out");
    assert_eq!(server.get_as(&key, "/v1/store").await.status, 200, "a key that was verified before needs no attempt");
}

#[tokio::test]
async fn a_user_may_do_what_the_issuer_grants() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let grant = tidings_node::config::Grant { part: Part::Store, action: tidings_node::authorize::Action::Read };
    let mut config = loopback();
    config.auth.issuers = vec![issuer.config("shop", &[grant])];
    let server = Server::start(config).await;
    let token = issuer.sign(&issuer.claims());
    assert_eq!(server.get_as(&token, "/v1/store").await.status, 200);
    let write = server.json_as(&token, Method::PUT, ROW, json!({"cells": []})).await;
    assert_eq!(write.error(), (403, "control.forbidden".into()));
    assert!(write.json()["message"].as_str().unwrap().contains("user:shop/ann"));
    assert_eq!(server.get_as(&token, STATUS).await.error(), (403, "control.forbidden".into()));
}

/// Many are behind one address: a proxy, an office. A page that was open over night must not lock all of them out.
#[tokio::test]
async fn expired_and_forged_tokens_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1);
    let elsewhere = tempfile::tempdir().unwrap();
    let forger = TestIssuer::new(elsewhere.path(), "https://id", "k1", 2);
    let (mut config, operator) = with_operator();
    let grant = tidings_node::config::Grant { part: Part::Store, action: tidings_node::authorize::Action::Read };
    config.auth.issuers = vec![issuer.config("shop", &[grant])];
    config.limits.failures_per_minute = 3;
    let server = Server::start(config).await;
    let expired = {
        let mut claims = issuer.claims();
        claims["exp"] = json!(now_seconds() - 3_600);
        issuer.sign(&claims)
    };
    let forged = forger.sign(&forger.claims());
    // However often an honest client comes with what it has: it hears what is wrong.
    for _ in 0..10 {
        let said = server.get_as(&expired, "/v1/store").await;
        assert!(said.json()["message"].as_str().unwrap().contains("expired"));
        assert_eq!(said.error(), (401, "control.unauthenticated".into()));
    }
    for attempt in 0..10 {
        let expected = if attempt < 3 { (401, "control.unauthenticated".into()) } else { (429, "control.busy".into()) };
        assert_eq!(server.get_as(&forged, "/v1/store").await.error(), expected, "{attempt}");
    }
    assert_eq!(server.get_as(&issuer.sign(&issuer.claims()), "/v1/store").await.status, 200);
    assert_eq!(server.get_as(&operator, STATUS).await.status, 200);
}

#[tokio::test]
async fn an_asymmetric_key_in_pem_verifies_its_issuers_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let pair = rcgen::KeyPair::generate().unwrap();
    let public = dir.path().join("id.pem");
    std::fs::write(&public, pair.public_key_pem()).unwrap();
    let mut config = loopback();
    let mut issuer = TestIssuer::new(dir.path(), "https://id", "k1", 1).config("shop", &[]);
    (issuer.algorithm, issuer.jwks, issuer.public_key) = (jsonwebtoken::Algorithm::ES256, None, Some(public.clone()));
    config.auth.issuers = vec![issuer];
    let server = Server::start(config).await;
    let claims = json!({"iss": "https://id", "aud": ["x", "tidings"], "sub": "ann", "exp": now_seconds() + 60});
    let sign = |algorithm, key: &jsonwebtoken::EncodingKey| {
        jsonwebtoken::encode(&jsonwebtoken::Header::new(algorithm), &claims, key).unwrap()
    };
    let key = jsonwebtoken::EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let good = sign(jsonwebtoken::Algorithm::ES256, &key);
    assert_eq!(server.get_as(&good, "/v1/store").await.error(), (403, "control.forbidden".into()));
    // The old trick: the public key taken for a shared secret.
    let trick = jsonwebtoken::EncodingKey::from_secret(&std::fs::read(&public).unwrap());
    let forged = sign(jsonwebtoken::Algorithm::HS256, &trick);
    assert_eq!(server.get_as(&forged, "/v1/store").await.error(), (401, "control.unauthenticated".into()));
}
