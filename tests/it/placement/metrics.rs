//! Every metric of placement is there, and tells what happened.

use super::Pool;
use crate::process::{http_get, turn, until};
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidings_base::Error;
use tidings_client::placement::{HandOver, Move, Owner};

/// All names, and whether each must have counted something after what the test does.
const METRICS: [(&str, bool); 16] = [
    ("leader", true),
    ("epoch", true),
    ("namespaces", true),
    ("owners", true),
    ("ranges", true),
    ("held_polls", true),
    ("tight_namespaces", false),
    ("damaged_namespaces", false),
    ("commits_total", true),
    ("grants_total", true),
    ("renewals_total", true),
    ("recalls_total", true),
    ("losses_total", true),
    ("moves_total", true),
    // Messages that crossed: nobody can say when they do.
    ("races_total", false),
    ("lookup_pushes_total", true),
];

fn values(pool: &Pool) -> BTreeMap<String, f64> {
    let (_, text) = http_get(pool.server.address, "/metrics").expect("the node answers");
    let lines = text.lines().filter_map(|line| line.strip_prefix("tidings_placement_")?.split_once(' '));
    lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// Owners that hand nothing over but the word that they did.
#[derive(Clone, Default)]
struct Others(Arc<Mutex<BTreeMap<String, Owner>>>);

impl HandOver for Others {
    fn export(&self, to: Move) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // One that has just joined is here a moment later.
            loop {
                let other = self.0.lock().unwrap().get(&to.owner).cloned();
                match other {
                    Some(other) => return other.imported(to.token, to.incarnation),
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
    }
}

#[test]
fn every_metric_tells_what_happened() {
    let _turn = turn();
    let pool = Pool::start();
    pool.create();
    let others = Others::default();
    let join = |name: &str| {
        let owner = pool.join_with(name, |options| options.hand_over(others.clone()));
        others.0.lock().unwrap().insert(name.to_owned(), owner.clone());
        owner
    };
    let watching = pool.server.start_command(&["place", "watch", "n", "--json"]);
    // What one hands over moves; what is not handed over is recalled from it, and lost.
    let _one = join("one");
    pool.settled(&["one"]);
    let _two = join("two");
    pool.settled(&["one", "two"]);
    let three = pool.join("three");
    pool.settled(&["one", "three", "two"]);
    pool.run(&["drain", "n", "three", "--wait", "--allow-loss"]);
    drop(three);
    watching.line(1);
    let missing = || -> Vec<&str> {
        let values = values(&pool);
        let silent = |name: &str, counts: bool| values.get(name).is_none_or(|value| counts && *value == 0.0);
        METRICS.iter().filter(|(name, counts)| silent(name, *counts)).map(|(name, _)| *name).collect()
    };
    let mut last = Vec::new();
    until("every metric tells of it", || {
        let now = missing();
        if now != last {
            println!("silent still: {now:?}");
            last.clone_from(&now);
        }
        now.is_empty().then_some(())
    });
    let told = values(&pool);
    let known: Vec<&str> = METRICS.iter().map(|(name, _)| *name).collect();
    let unnamed: Vec<&String> = told.keys().filter(|name| !known.contains(&name.as_str())).collect();
    assert_eq!(unnamed, [""; 0], "a metric of which no test knows");
    assert_eq!((told["leader"], told["tight_namespaces"], told["damaged_namespaces"]), (1.0, 0.0, 0.0));
}
