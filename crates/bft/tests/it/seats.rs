//! Groups of four on the model of the order, and lines to their doors.

use crate::ports::free_address;
use bytes::Bytes;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use tempfile::TempDir;
use tidings_bft::greeting::Challenge;
use tidings_bft::kv::KeyValue;
use tidings_bft::membership::Founded;
use tidings_bft::seat::Durable;
use tidings_bft::sin::Sin;
use tidings_bft::testing::{self, Part};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A group, and the directory in which it lives.
pub struct Modelled<S> {
    group: testing::Modelled<S>,
    _directory: TempDir,
}

impl<S> Deref for Modelled<S> {
    type Target = testing::Modelled<S>;
    fn deref(&self) -> &testing::Modelled<S> {
        &self.group
    }
}

impl<S> DerefMut for Modelled<S> {
    fn deref_mut(&mut self) -> &mut testing::Modelled<S> {
        &mut self.group
    }
}

/// A group of key-value services.
pub async fn start(seed: u64, sins: [Option<Sin>; 4]) -> Modelled<KeyValue> {
    start_with(seed, sins, KeyValue::default()).await
}

/// A group of some service.
pub async fn start_with<S: Durable>(seed: u64, sins: [Option<Sin>; 4], empty: S) -> Modelled<S> {
    let directory = tempfile::tempdir().unwrap();
    let part = |sin| Part { addresses: (free_address(), free_address()), service: empty.clone(), sin };
    let group = testing::Modelled::start(directory.path(), seed, 3, sins.map(part).into()).await.unwrap();
    Modelled { group, _directory: directory }
}

/// A connection to a replica as it is before anybody has shown who it is, and the challenge.
pub async fn stranger(at: SocketAddr) -> (TcpStream, Challenge) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let challenge = Challenge::read(heard(&mut stream).await.unwrap()).unwrap();
    (stream, challenge)
}

/// A connection of one of the clients.
pub async fn greeted(at: SocketAddr, founded: &Founded, replica: usize, client: u64) -> TcpStream {
    let (mut stream, challenge) = stranger(at).await;
    let key = founded.replicas[replica].macs[&client];
    say(&mut stream, &challenge.answered(&founded.membership, client, &key).encoded()).await.unwrap();
    stream
}

/// Writes a frame.
pub async fn say(stream: &mut TcpStream, frame: &Bytes) -> io::Result<()> {
    stream.write_u32(frame.len() as u32).await?;
    stream.write_all(frame).await
}

/// The next frame.
pub async fn heard(stream: &mut TcpStream) -> io::Result<Bytes> {
    let mut frame = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut frame).await?;
    Ok(Bytes::from(frame))
}
