//! What tests over TCP share: addresses, clients, requests.

use crate::ports::free_address;
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidings_bft::client::{Client, Options};
use tidings_bft::keys::random;
use tidings_bft::kv::{Request, Response};
use tidings_bft::membership::{Founded, found};

/// A group of four with three clients.
pub fn group() -> Founded {
    let pairs: Vec<(SocketAddr, SocketAddr)> = (0..4).map(|_| (free_address(), free_address())).collect();
    found("town", &pairs, 3, random).unwrap()
}

/// A client that has reached so many replicas.
pub async fn client(founded: &Founded, which: usize, reached: usize) -> Client {
    let options = Options { resend: Duration::from_millis(300), ..Options::after(0) };
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.clients[which].clone());
    let mut client = Client::start(membership, secrets, &options).unwrap();
    client.connected(reached).await;
    client
}

pub fn put(key: &'static str, value: &str) -> Bytes {
    Request::Put(Bytes::from_static(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes())).encoded()
}

/// Writes a value, through the order.
pub async fn written(client: &Client, key: &'static str, value: &str) {
    let answered = client.call(put(key, value)).await.unwrap();
    assert!(answered.sigma.is_some() && matches!(Response::read(answered.result), Ok(Response::Done(_))));
}

/// Reads a value, past the order if that is possible; says whether it was.
pub async fn read(client: &Client, key: &'static str) -> (Option<Bytes>, bool) {
    let answered = client.read(Request::Get(Bytes::from_static(key.as_bytes())).encoded()).await.unwrap();
    match Response::read(answered.result) {
        Ok(Response::Value(value)) => (value, answered.sigma.is_none()),
        other => panic!("{other:?}"),
    }
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
