//! What writers say of themselves, and for how long they wait.

use super::{Town, near, put_near};
use http::Method;
use serde_json::{Value, json};
use std::pin::pin;
use std::time::Duration;
use tidings_base::Error;
use tidings_client::tables::{Columns, Conflict, Outcome, Tables, Value as Cell, Write, form};
use tidings_client::{Client, ClientConfig, Request, Retry};
use tidings_wire::v1::record_write::Change;
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};

/// How long anything here may take.
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_what_an_audience_asks_for_patches_the_record_and_sees_what_is_in_the_way() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "cars", json!({})).await;
    let config = ClientConfig { credential: Some(shop), ..ClientConfig::in_process(town.node.door()) };
    let cars = Tables::connect(config).await.unwrap().table("cars");
    put_near(&cars, "a", 1).await;
    let patch = || Write::patch("a", [("n", Cell::Int(7))]);
    for hidden in [patch(), patch().reader(near(2))] {
        assert_eq!(cars.write(hidden).await.unwrap(), Outcome::Conflict(Conflict::Hidden));
    }
    let version = cars.write(patch().reader(near(1))).await.unwrap().committed().unwrap();
    for write in [Write::put("a", [("n", Cell::Int(8))]), Write::delete("a"), patch()] {
        let late = |place| write.clone().if_version(version - 1).reader(near(place));
        assert_eq!(cars.write(late(2)).await.unwrap(), Outcome::Conflict(Conflict::Hidden));
        match cars.write(late(1)).await.unwrap() {
            Outcome::Conflict(Conflict::Theirs(theirs)) => {
                assert_eq!((theirs.version, &theirs.columns["n"]), (version, &Cell::Int(7)));
            }
            other => panic!("{other:?}"),
        }
    }
    town.node.shutdown().await.unwrap();
}

/// Without asking, an owner knows of another rule when it looks at directories, four times a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_writers_holds_from_the_next_write_on() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    for round in 0..10 {
        for (rule, status) in [("new.n < 0", 403), ("new.n >= 0", 200)] {
            let altered = town.ask(&shop, Method::PATCH, "tables/t", json!({ "may_write": rule })).await;
            assert_eq!(altered.status, 200, "{}", altered.text());
            let put = town.ask(&shop, Method::PUT, "tables/t/records/a", json!({ "n": round })).await;
            assert_eq!(put.status, status, "{rule}: {}", put.text());
        }
    }
    town.node.shutdown().await.unwrap();
}

/// `writer` is whoever wrote the record, as the record says it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_tells_a_records_writer_from_others() {
    let town = Town::start().await;
    let (shop, ann, bob) = (town.app("shop").await, town.user("ann"), town.user("bob"));
    let rule = "old == null || writer == 'user:shop/' + user.sub";
    town.create(&shop, "t", json!({ "level": "app", "may_write": rule })).await;
    let path = "tables/t/records/a";
    let put = async |who: &str, path: &str, n: i64| town.ask(who, Method::PUT, path, json!({ "n": n })).await;
    assert_eq!(put(&ann, path, 1).await.status, 200);
    for (who, name) in [(&bob, "bob"), (&shop, "the application")] {
        assert_eq!(put(who, path, 2).await.error(), (403, "tables.may_not_write".into()), "{name}");
        let gone = town.ask(who, Method::DELETE, path, Value::Null).await;
        assert_eq!(gone.error(), (403, "tables.may_not_write".into()), "{name}");
    }
    assert_eq!(put(&ann, path, 3).await.status, 200);
    assert_eq!(town.ask(&ann, Method::DELETE, path, Value::Null).await.status, 200);
    // What an application writes has its name.
    let rule = json!({ "may_write": "old == null || writer == 'shop'" });
    assert_eq!(town.ask(&shop, Method::PATCH, "tables/t", rule).await.status, 200);
    assert_eq!(put(&shop, path, 4).await.status, 200);
    assert_eq!(put(&ann, path, 5).await.status, 200);
    assert_eq!(put(&ann, path, 6).await.error(), (403, "tables.may_not_write".into()));
    town.node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_for_the_one_before_it_for_no_longer_than_it_says() {
    let town = Town::start().await;
    let shop = town.app("shop").await;
    town.create(&shop, "t", json!({})).await;
    let config = ClientConfig { credential: Some(shop), ..ClientConfig::in_process(town.node.door()) };
    let client = Client::connect(config).await.unwrap();
    let write = async |netid: u8, seq: u64, wait_ms: u32| -> Result<Body, Error> {
        let operation = v1::RecordOperation { netid: vec![netid; 16].into(), seq, acked_through: 0, after: seq - 1 };
        let put = v1::RecordPut { data: Some(form::data_to(&Columns::new()).unwrap()), ..Default::default() };
        let write = v1::RecordWrite {
            table: "t".to_owned(),
            key: Some(form::key_to("a".into())),
            operation: Some(operation),
            change: Some(Change::Put(put)),
            wait_ms,
            ..Default::default()
        };
        let message = Some(Message::Write(write));
        let body = Body::Tables(v1::TablesMessage { message, ..Default::default() });
        client.call(Request::new(body).retry(Retry::Never).within(SOON)).await
    };
    let mut patient = pin!(write(1, 2, 0));
    // It comes later, and goes before whoever says nothing gives up.
    let hurried = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        write(2, 2, 500).await
    };
    tokio::select! {
        biased;
        answer = &mut patient => panic!("{answer:?}"),
        answer = hurried => assert_eq!(answer.unwrap_err().code, "tables.waited"),
    }
    // What it waits for comes in time for the other one.
    write(1, 1, 500).await.unwrap();
    patient.await.unwrap();
    town.node.shutdown().await.unwrap();
}
