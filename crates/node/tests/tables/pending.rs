//! Reads that wait for what their own client has begun (`committed_wio`), where a key alone does not say which record a write is of.

use super::Town;
use futures::future::join_all;
use serde_json::json;
use tidings_client::ClientConfig;
use tidings_client::tables::{Ask, ReadOptions, Tables, Value as Cell};
use tidings_wire::v1::ReadLevel;

#[tokio::test(flavor = "multi_thread")]
async fn a_read_in_invocation_order_finds_what_is_put_where_its_columns_say() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    let partitioned = json!({ "partition_by": { "column": "city" }, "cuts": [{ "in": "P" }] });
    town.create(&shop, "cities", partitioned).await;
    let config = ClientConfig { credential: Some(shop.clone()), ..ClientConfig::in_process(town.node.door()) };
    let cities = Tables::connect(config).await.unwrap().table("cities");
    let wio = ReadOptions { level: ReadLevel::CommittedWio, ..ReadOptions::default() };
    for round in 0..2_i64 {
        let put = |city: &'static str, n: i64| cities.put("ann", [("city", Cell::from(city)), ("n", Cell::Int(n))]);
        let writes = join_all((0..3).flat_map(|n| ["Oslo", "Rome"].map(|city| put(city, round * 3 + n))));
        // One that is refused is never waited for.
        let refused = cities.put("ann", [("n", Cell::Int(0))]);
        let within = ReadOptions { within: Some("Rome".into()), ..wio.clone() };
        let (all, rome, ask) = (Ask::default(), ("Rome", "ann"), Ask::default());
        let reads =
            async { tokio::join!(cities.get_with(rome, &wio), cities.read(&all, &wio), cities.read(&ask, &within)) };
        let (writes, refused, (one, all, rome)) = tokio::join!(writes, refused, reads);
        assert!(writes.iter().all(Result::is_ok) && refused.is_err(), "{writes:?} {refused:?}");
        let last = Cell::Int(round * 3 + 2);
        assert_eq!(one.unwrap().unwrap().columns["n"], last);
        let n = |records: Vec<tidings_client::tables::Record>| {
            records.into_iter().map(|record| record.columns["n"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((n(all.unwrap()), n(rome.unwrap())), (vec![last.clone(), last.clone()], vec![last]));
    }
    town.node.shutdown().await.unwrap();
}
