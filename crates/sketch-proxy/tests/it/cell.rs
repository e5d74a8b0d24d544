//! Before a cell: how a proxy meets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tidings_sketch_proxy::CellGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A node that says of which cell it is from the so-manieth ask on; and how often it was asked.
async fn node(knows_from: u64) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, asked) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut piece = [0; 4_096];
            let _ = stream.read(&mut piece).await;
            let cluster = if counted.fetch_add(1, SeqCst) + 1 < knows_from { 0 } else { 0xff };
            let head = format!("HTTP/1.1 404 Not Found\r\nTidings-Place: {cluster:016x}.1.7.0\r\n");
            let _ = stream.write_all(format!("{head}Connection: close\r\nContent-Length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    (url, asked)
}

/// Takes connections and says nothing.
async fn mute() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.push(stream);
        }
    });
    url
}

#[tokio::test]
async fn a_member_that_says_nothing_does_not_end_the_others_chance() {
    let (starting, asked) = node(3).await;
    let met = CellGroup::meet(&[mute().await, starting], None, None).await;
    assert_eq!(met.map(|cell| cell.members().len()).map_err(|error| error.to_string()), Ok(2));
    assert!(asked.load(SeqCst) >= 3);
}

#[tokio::test]
async fn who_starts_is_waited_for_longer_than_who_is_not_there() {
    let (starting, asked) = node(120).await;
    let (silent, absent) = (mute().await, "http://127.0.0.1:1".to_owned());
    let knows = async { CellGroup::meet(&[starting], None, None).await.expect("it knows at last") };
    let others = async {
        let nobody = CellGroup::meet(&[absent], None, None).await.unwrap_err();
        assert!(nobody.message.contains("http://127.0.0.1:1: "), "{nobody}");
        let mute = CellGroup::meet(&[silent], None, None).await.unwrap_err();
        assert!(mute.message.contains("does not answer in time"), "{mute}");
    };
    let first = async {
        let absent = CellGroup::meet(&["http://127.0.0.1:1".to_owned()], None, None).await;
        assert!(absent.is_err() && asked.load(SeqCst) < 120, "who is not there is given up first");
    };
    tokio::join!(knows, others, first);
}
