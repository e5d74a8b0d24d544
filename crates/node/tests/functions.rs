//! Functions that a program registers with the node it embeds: predicates, queries and live queries call them.

use crate::support::loopback;
use std::time::Duration;
use tidings_client::ClientConfig;
use tidings_client::tables::{
    Aggregate, Ask, Columns, Event, Key, ReadOptions, Record, Table, TableLevel, TableProperties, Tables, Value, Watch,
    WatchOptions, Write,
};
use tidings_node::config::Time;
use tidings_node::tables::{Fault, Functions, Kinds, Udf};
use tidings_node::{Config, Node};

/// Far above anything that happens here, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// `initials("Ada Lovelace")` is `AL`; `coin(n)` gives something else each time, as far as anybody knows; `brittle` panics.
fn functions() -> Functions {
    fn initials(values: &[Value]) -> Result<Value, Fault> {
        match values {
            [Value::String(name)] => {
                Ok(Value::String(name.split_whitespace().filter_map(|word| word.chars().next()).collect()))
            }
            _ => Err(Fault::WrongKind),
        }
    }
    fn coin(values: &[Value]) -> Result<Value, Fault> {
        values.first().cloned().ok_or(Fault::Function)
    }
    fn brittle(_: &[Value]) -> Result<Value, Fault> {
        // As a panic, without a picture of the stack, which can take seconds to draw.
        std::panic::resume_unwind(Box::new("a function of a test"))
    }
    type Does = fn(&[Value]) -> Result<Value, Fault>;
    let mut functions = Functions::default();
    let bodies: [(&str, Kinds, bool, Does); 3] = [
        ("initials", Kinds::STRING, true, initials),
        ("coin", Kinds::INT, false, coin),
        ("brittle", Kinds::STRING, true, brittle),
    ];
    for (name, kinds, pure, body) in bodies {
        let (name, takes) = (name.to_owned(), vec![kinds]);
        functions.register(Udf { name, takes, gives: kinds, pure, steps: 10, body: Box::new(body) }).unwrap();
    }
    functions
}

async fn people(node: &Node) -> Table {
    let tables =
        Tables::connect(ClientConfig { deadline: PATIENCE, ..ClientConfig::in_process(node.door()) }).await.unwrap();
    let made = async {
        while let Err(error) = tables.create_cut("people", rule_free(), [Key::from("m")]).await {
            if error.code == "tables.exists" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, made).await.expect("a table is made");
    tables.table("people")
}

fn rule_free() -> TableProperties {
    TableProperties { level: TableLevel::App.into(), ..Default::default() }
}

fn named(name: &str) -> [(&'static str, Value); 1] {
    [("name", name.into())]
}

fn reader(name: &str) -> ReadOptions {
    ReadOptions { reader: Columns::from([("name".to_owned(), name.into())]), ..ReadOptions::default() }
}

async fn keys(table: &Table, predicate: &str, options: &ReadOptions) -> Vec<Key> {
    let ask = Ask { predicate: predicate.into(), ..Ask::default() };
    table.read(&ask, options).await.unwrap().into_iter().filter_map(|row| row.key).collect()
}

async fn hears(watch: &mut Watch, mut wanted: impl FnMut(&Event) -> bool) {
    let heard = async { while !wanted(&watch.next().await.expect("it goes on")) {} };
    tokio::time::timeout(PATIENCE, heard).await.expect("it is heard");
}

fn config(data: &std::path::Path) -> Config {
    let mut config = Config { data: data.to_owned(), ..loopback() };
    (config.placement.session, config.placement.fail_over) = (Time::seconds(1), Time::millis(500));
    (config.placement.round_trip, config.notify.lease) = (Time::millis(100), Time::millis(2_500));
    config.notify.renew = Time::millis(400);
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_functions_are_called_wherever_texts_are_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with_functions(config(dir.path()), functions()).await.unwrap();
    let table = people(&node).await;
    for (key, name) in [("a", "Ada Lovelace"), ("b", "Alan Turing"), ("z", "Anna Lee")] {
        table.put(key, named(name)).await.unwrap();
    }
    // Next to the data, in both partitions; and where the answers of both come together.
    let all = ReadOptions::default();
    assert_eq!(keys(&table, "initials(name) == 'AL'", &all).await, ["a", "z"].map(Key::from));
    let count = vec![("n".to_owned(), Aggregate::Count, String::new())];
    let group_by = vec![("who".to_owned(), "initials(name)".to_owned())];
    let counted = table.read(&Ask { group_by, aggregates: count, ..Ask::default() }, &all).await.unwrap();
    let of = |row: &Record, name: &str| row.columns.get(name).cloned();
    let mut counted: Vec<_> = counted.iter().map(|row| (of(row, "n"), of(row, "who"))).collect();
    counted.sort_by_key(|counted| format!("{counted:?}"));
    assert_eq!(
        counted,
        [(Some(Value::from(1)), Some(Value::from("AT"))), (Some(Value::from(2)), Some(Value::from("AL")))]
    );

    // A live query: a record enters and leaves by what a function says.
    let live = |predicate: &str| Ask { predicate: predicate.into(), ..Ask::default() };
    let mut watch = table.watch(&live("initials(name) == 'AT'"), WatchOptions::default());
    let mut begun = 0;
    hears(&mut watch, |event| {
        begun += u32::from(matches!(event, Event::Reset { last: true, .. }));
        begun == 2
    })
    .await;
    table.put("y", named("Ann Taylor")).await.unwrap();
    hears(&mut watch, |event| matches!(event, Event::Put(row) if row.key == Some(Key::from("y")))).await;
    table.put("y", named("Ann Miller")).await.unwrap();
    hears(&mut watch, |event| matches!(event, Event::Leave(key) if *key == Key::from("y"))).await;

    // An audience, which is late bound; and a function that panics, which holds for nobody and harms nobody.
    for (key, audience) in [("s", "initials(reader.name) == 'AL'"), ("t", "brittle(reader.name) == ''")] {
        table.write(Write::put(key, named("Grace Hopper")).audience(audience)).await.unwrap().committed().unwrap();
    }
    let hopper = "initials(name) == 'GH'";
    assert_eq!(keys(&table, hopper, &reader("Ada Lovelace")).await, [Key::from("s")]);
    assert_eq!(keys(&table, hopper, &reader("Alan Turing")).await, Vec::<Key>::new());

    // What guards the writes of a table.
    let guarded = |rule: &str| TableProperties { may_write: rule.into(), ..rule_free() };
    let tables = Tables::connect(ClientConfig { deadline: PATIENCE, ..ClientConfig::in_process(node.door()) }).await;
    let tables = tables.unwrap();
    tables.create("guarded", guarded("initials(new.name) == 'AL'")).await.unwrap();
    let names = tables.table("guarded");
    names.put("a", named("Ada Lovelace")).await.unwrap();
    assert_eq!(names.put("b", named("Alan Turing")).await.unwrap_err().code, "tables.may_not_write");
    tables.alter("guarded", guarded("initials(old.name) == 'AL'"), 0).await.unwrap();
    names.put("a", named("Alan Turing")).await.unwrap();
    assert_eq!(names.put("a", named("Ada Lovelace")).await.unwrap_err().code, "tables.may_not_write");
    // One that panics denies. One that says something else each time is refused by its name, and so is one that nobody knows.
    tables.alter("guarded", guarded("brittle(new.name) == ''"), 0).await.unwrap();
    assert_eq!(names.put("c", named("Ada Lovelace")).await.unwrap_err().code, "tables.may_not_write");
    let changing = tables.create("luck", guarded("coin(1) == 1")).await.unwrap_err();
    assert_eq!(changing.code, "tables.predicate_not_pure");
    assert!(changing.message.contains("`coin`"), "{changing}");
    assert_eq!(
        tables.alter("guarded", guarded("coin(1) == 1"), 0).await.unwrap_err().code,
        "tables.predicate_not_pure"
    );
    assert_eq!(tables.create("luck", guarded("nope(1) == 1")).await.unwrap_err().code, "tables.predicate_name");
    tables.alter("guarded", guarded("initials(new.name) == 'AL'"), 0).await.unwrap();

    // R9: what changes without a write can be read, and not watched.
    assert_eq!(keys(&table, "coin(1) == 1 && key == 'a'", &all).await, [Key::from("a")]);
    let ended = table.watch(&live("coin(1) == 1"), WatchOptions::default()).next().await;
    assert!(matches!(&ended, Some(Event::Ended(error)) if error.code == "tables.predicate_not_live"), "{ended:?}");

    // What nobody has registered is shown where it stands, with what there is.
    let unknown = table.read(&live("key == 'a' && nope(name)"), &all).await.unwrap_err();
    assert_eq!(unknown.code, "tables.predicate_name");
    assert!(unknown.message.contains("initials") && unknown.message.ends_with(&format!("\n{:16}^", "")), "{unknown}");
    let ended = table.watch(&live("nope(name)"), WatchOptions::default()).next().await;
    assert!(matches!(&ended, Some(Event::Ended(error)) if error.code == "tables.predicate_name"), "{ended:?}");
    drop((watch, table));
    node.shutdown().await.unwrap();

    // A node without them shows to nobody what it cannot decide, and serves everything else.
    let node = Node::start(config(dir.path())).await.unwrap();
    let table = people(&node).await;
    assert_eq!(keys(&table, "", &reader("Ada Lovelace")).await, ["a", "b", "y", "z"].map(Key::from));
    assert_eq!(table.read(&live(hopper), &all).await.unwrap_err().code, "tables.predicate_name");
    let tables = Tables::connect(ClientConfig { deadline: PATIENCE, ..ClientConfig::in_process(node.door()) }).await;
    let names = tables.unwrap().table("guarded");
    assert_eq!(names.put("d", named("Ada Lovelace")).await.unwrap_err().code, "tables.may_not_write");
    assert_eq!(keys(&names, "", &all).await, [Key::from("a")]);
    node.shutdown().await.unwrap();
}
