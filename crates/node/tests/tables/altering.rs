//! Tables that several alter at the same time.

use super::{READ, Town};
use http::Method;
use serde_json::{Value, json};
use tidings_client::ClientConfig;
use tidings_client::tables::{TableProperties, Tables};

/// Each says something else: whoever is later leaves what the others said.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_the_same_time_all_hold() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    for round in 1..=8 {
        let said = [
            ("max_records", json!(1_000 + round)),
            ("max_bytes", json!(1_000_000 + round)),
            ("tombstones_s", json!(3_600 + round)),
            ("may_write", json!(format!("old == null || new.n > {round}"))),
            ("level", json!(["public", "user"][round % 2])),
            ("closed", json!(round % 2 == 0)),
        ];
        let alter = |(name, value): &(&str, Value)| {
            let change = json!({ *name: value });
            let (town, shop) = (&town, &shop);
            async move { town.ask(shop, Method::PATCH, "tables/t", change).await }
        };
        for altered in futures::future::join_all(said.iter().map(alter)).await {
            assert_eq!(altered.status, 200, "{}", altered.text());
        }
        let told = town.ask(&shop, READ, "tables/t", Value::Null).await.json()["properties"].clone();
        for (name, value) in said {
            assert_eq!(told[name], value, "{name} in round {round}: {told}");
        }
    }

    // By the library: what somebody read of the rest is not written again.
    let config = ClientConfig { credential: Some(shop.clone()), ..ClientConfig::in_process(town.node.door()) };
    let tables = Tables::connect(config).await.unwrap();
    let new = TableProperties { max_records: 7, max_bytes: 7, ..TableProperties::default() };
    let altered = tables.alter_only("t", &["max_records"], new, 0).await.unwrap().properties.unwrap();
    assert_eq!((altered.max_records, altered.max_bytes, altered.tombstones_s), (7, 1_000_008, 3_608));
    let unsaid = tables.alter_only("t", &[], TableProperties::default(), 0).await.unwrap().properties;
    assert_eq!(unsaid, Some(altered), "whoever says nothing changes nothing");
    town.node.shutdown().await.unwrap();
}

/// What a change cannot do is said, and nothing else of it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_there_is_not_cut_by_altering_it() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let cut = town.ask(&shop, Method::PATCH, "tables/t", json!({ "cuts": ["m"], "max_records": 7 })).await;
    assert_eq!(cut.error(), (400, "tables.invalid".to_owned()), "{}", cut.text());
    let told = town.ask(&shop, READ, "tables/t", Value::Null).await.json();
    assert_eq!(
        (&told["properties"]["max_records"], told["partitions"].as_array().map(Vec::len)),
        (&Value::Null, Some(1))
    );
    town.node.shutdown().await.unwrap();
}
