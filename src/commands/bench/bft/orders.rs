//! Commands of 64 bytes to a group of four: one after the other, and many at once.

use super::town::Town;
use crate::commands::bench::Effort;
use crate::commands::bench::rate::{Counter, rate};
use crate::commands::bench::report::Figures;
use crate::stopwatch::Stopwatch;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use tidings_base::Error;
use tidings_bft::client::Client;
use tidings_bft::kv::{KeyValue, Request};

const VALUE: [u8; 64] = [b'x'; 64];
/// Who asks: the group knows 1,024 commands of each.
const CLIENTS: usize = 4;

fn command(key: usize) -> Bytes {
    Request::Put(Bytes::from(key.to_string()), Bytes::from_static(&VALUE)).encoded()
}

pub async fn measure(place: &Path, effort: Effort, figures: &mut Figures) -> Result<(), Error> {
    let town = Town::start(place, 4, CLIENTS, KeyValue::default).await?;
    let mut clients = Vec::new();
    for which in 0..CLIENTS {
        clients.push(Arc::new(town.client(which).await?));
    }
    let client = Arc::clone(&clients[0]);
    client.call(command(0)).await?;
    let mut took = Vec::new();
    for key in 0..effort.bft.serial {
        let watch = Stopwatch::start();
        client.call(command(key)).await?;
        took.push(watch.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let at = ((took.len() as f64 * part) as usize).min(took.len().saturating_sub(1));
        figures.add(&format!("bft: one command at a time, 4 replicas, {name}"), "ms", None, &took[at..=at]);
    }
    for in_flight in effort.bft.in_flight {
        let mut rates = Vec::new();
        for _ in 0..effort.repetitions {
            let counter = Arc::new(Counter::default());
            let asker = |key: usize| order(Arc::clone(&clients[key % CLIENTS]), key, Arc::clone(&counter));
            let askers = (0..*in_flight).map(asker);
            rates.push(rate(effort.seconds, askers, Arc::clone(&counter)).await?);
        }
        figures.add(&format!("bft: commands, 4 replicas, {in_flight} in flight"), "1/s", None, &rates);
    }
    town.stop().await;
    Ok(())
}

async fn order(client: Arc<Client>, key: usize, counter: Arc<Counter>) -> Result<(), Error> {
    while counter.goes_on() {
        client.call(command(key)).await?;
        counter.add(1);
    }
    Ok(())
}
