//! The front end. A lookup is a hint: the server checks, and whoever it refuses looks up again after a short pause.

use crate::http::{self, Client, Refused, broken};
use crate::{NAMESPACE, Place};
use ::http::{Method, StatusCode};
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_client::placement::{Lookup, Losses};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

/// Between two attempts: the table changes within a round trip.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a request may wait for its key to have an owner: longer than a lease.
const PATIENCE: Duration = Duration::from_secs(20);

struct Front {
    lookup: Lookup,
    client: Client,
    /// Counts that were seen: what this front end would publish again.
    seen: Mutex<BTreeMap<String, u64>>,
    losses: AtomicU64,
    republished: AtomicU64,
}

/// Serves until it is killed; it holds nothing that could be lost.
pub async fn run(place: &Place) -> Result<(), Error> {
    let lookup = Lookup::connect(place.connect().await?, NAMESPACE).await?;
    let losses = lookup.losses();
    let front = Arc::new(Front {
        lookup,
        client: http::client(),
        seen: Mutex::default(),
        losses: AtomicU64::new(0),
        republished: AtomicU64::new(0),
    });
    tokio::spawn(republish(front.clone(), losses));

    let listener = TcpListener::bind(place.listen).await.map_err(|why| broken("cannot listen", why))?;
    let address = listener.local_addr().map_err(|why| broken("cannot listen", why))?;
    println!("listening on {address}");
    let routes =
        Router::new().route("/count/{key}", get(read).post(count)).route("/status", get(status)).with_state(front);
    axum::serve(listener, routes).await.map_err(|why| broken("cannot serve", why))
}

/// State was lost: whatever of it was seen here is published again.
async fn republish(front: Arc<Front>, mut losses: Losses) {
    while let Some(loss) = losses.next().await {
        let seen = front.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (key, count) in seen.into_iter().filter(|(key, _)| loss.contains(key)) {
            if front.ask(Method::PUT, &key, &json!(count)).await.is_ok() {
                front.republished.fetch_add(1, Ordering::Relaxed);
            }
        }
        front.losses.fetch_add(1, Ordering::Relaxed);
    }
}

async fn count(State(front): State<Arc<Front>>, Path(key): Path<String>) -> Result<Json<Value>, Refused> {
    Ok(Json(front.ask(Method::POST, &key, &Value::Null).await?))
}

async fn read(State(front): State<Arc<Front>>, Path(key): Path<String>) -> Result<Json<Value>, Refused> {
    Ok(Json(front.ask(Method::GET, &key, &Value::Null).await?))
}

async fn status(State(front): State<Arc<Front>>) -> Json<Value> {
    let told = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Json(json!({ "losses": told(&front.losses), "republished": told(&front.republished) }))
}

impl Front {
    /// Asks whoever owns a key, until somebody does.
    async fn ask(&self, method: Method, key: &str, body: &Value) -> Result<Value, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let refused = match self.ask_once(method.clone(), key, body).await {
                Err(refused) if refused.class == Class::Unreachable => refused,
                answer => return answer,
            };
            if Instant::now() + PAUSE > deadline {
                return Err(refused);
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks once. Class `unreachable` means that nothing happened, and that another attempt may help.
    async fn ask_once(&self, method: Method, key: &str, body: &Value) -> Result<Value, Error> {
        let Some(hint) = self.lookup.lookup(key)?.hint() else {
            return Err(Error::new("example.unowned", Class::Unreachable, "nobody owns the key at the moment"));
        };
        let url = format!("http://{}/count/{key}", hint.address());
        let asked = http::ask(&self.client, method.clone(), &url, body).await;
        let (status, answer) = match asked {
            // Whether it was done or not, reading or publishing again is as good as once.
            Err(error) if method != Method::POST && error.class == Class::OutcomeUnknown => {
                return Err(Error { class: Class::Unreachable, ..error });
            }
            asked => asked?,
        };
        match status {
            StatusCode::OK => {
                if let Some(count) = answer["count"].as_u64() {
                    // After a loss a count is read that begins anew: what was seen before it is what is to come back.
                    let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                    let most = seen.entry(key.to_owned()).or_default();
                    *most = count.max(*most);
                }
                Ok(answer)
            }
            StatusCode::CONFLICT => Err(Error::new("example.not_owner", Class::Unreachable, "it is another's by now")),
            _ => Err(Error::new("example.unknown", Class::OutcomeUnknown, answer.to_string())),
        }
    }
}
