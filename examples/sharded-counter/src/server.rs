//! A server of the pool. It never asks for a lease: it is told what it owns, and checks before it answers.

use crate::http::{self, Client, Refused, broken};
use crate::{NAMESPACE, Place};
use ::http::Method;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tidings_base::{Class, Error};
use tidings_client::placement::{HandOver, Items, Move, Owner, OwnerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Clone)]
struct Server {
    owner: Owner,
    counters: Items<u64>,
}

/// Joins the pool and serves until told to stop; then hands everything over.
pub async fn run(name: &str, place: &Place) -> Result<(), Error> {
    let listener = TcpListener::bind(place.listen).await.map_err(|why| broken("cannot listen", why))?;
    let address = listener.local_addr().map_err(|why| broken("cannot listen", why))?;
    let mut stop = signal(SignalKind::terminate()).map_err(|why| broken("cannot hear signals", why))?;
    println!("listening on {address}");

    let counters = Items::new();
    let options = OwnerOptions::new(NAMESPACE, name, address.to_string())
        .items(&counters)
        .hand_over(Copies { counters: counters.clone(), client: http::client() });
    let owner = Owner::join(place.connect().await?, options).await?;
    println!("{name} has joined");

    let server = Server { owner: owner.clone(), counters };
    let routes = Router::new()
        .route("/count/{key}", get(read).post(count).put(republish))
        .route("/import/{token}/{incarnation}", post(import))
        .with_state(server);
    tokio::spawn(async move { axum::serve(listener, routes).await });

    stop.recv().await;
    owner.drain().await?;
    println!("{name} has handed everything over");
    Ok(())
}

/// The four steps of the paper in one call: check, discard what is stale, operate, check again.
async fn count(State(server): State<Server>, Path(key): Path<String>) -> Result<Json<Value>, Refused> {
    let count = server.owner.with(&server.counters, &key, |count| {
        let count = count.get_or_insert(0);
        *count += 1;
        *count
    })?;
    Ok(Json(json!({ "count": count })))
}

async fn read(State(server): State<Server>, Path(key): Path<String>) -> Result<Json<Value>, Refused> {
    let count = server.owner.with(&server.counters, &key, |count| count.unwrap_or(0))?;
    Ok(Json(json!({ "count": count })))
}

/// A client that saw a count brings it back after a loss. What was counted since is not forgotten: the larger one stays.
async fn republish(
    State(server): State<Server>,
    Path(key): Path<String>,
    Json(seen): Json<u64>,
) -> Result<Json<Value>, Refused> {
    let count = server.owner.with(&server.counters, &key, |count| {
        let count = count.get_or_insert(0);
        *count = seen.max(*count);
        *count
    })?;
    Ok(Json(json!({ "count": count })))
}

/// Another server hands counters over: they are served once their lease is granted here.
async fn import(
    State(server): State<Server>,
    Path((token, incarnation)): Path<(u64, u64)>,
    Json(entries): Json<Vec<(String, u64)>>,
) -> Result<(), Refused> {
    let entries = entries.into_iter().map(|(key, count)| (key.into_bytes(), count)).collect();
    Ok(server.owner.receive(&server.counters, token, incarnation, entries)?)
}

/// Copies counters to whoever owns them next.
struct Copies {
    counters: Items<u64>,
    client: Client,
}

impl HandOver for Copies {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let entries = self.counters.export(to.leased);
            let entries: Vec<(String, u64)> =
                entries.into_iter().map(|(key, count)| (String::from_utf8_lossy(&key).into_owned(), count)).collect();
            let url = format!("http://{}/import/{}/{}", to.address, to.token, to.incarnation);
            let (status, answer) = http::ask(&self.client, Method::POST, &url, &json!(entries)).await?;
            match status.is_success() {
                true => Ok(()),
                false => Err(Error::new("example.refused", Class::Refused, format!("{url}: {answer}"))),
            }
        })
    }
}
