//! The model of an engine does what every engine must.

use tidings_base::Seeded;
use tidings_sketch::ReplicaId;
use tidings_sketch::replica::model::Model;
use tidings_sketch::replica::{Block, Command, Ordering, suite};

#[test]
fn the_model_conforms() {
    for seed in 0..20 {
        suite::check(&mut Model::new(Seeded::new(seed), 4), 4).unwrap_or_else(|broken| panic!("{seed}: {broken}"));
    }
}

/// An ordering with a fault, so that the suite is known to notice.
struct Faulty {
    model: Model,
    fault: Fault,
    delivered: u64,
    forgotten: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    LosesAll,
    Forks,
    Forgets,
}

impl Ordering for Faulty {
    fn submit(&mut self, at: ReplicaId, command: Command) {
        if self.fault != Fault::LosesAll {
            self.model.submit(at, command);
        }
    }

    fn next(&mut self, at: ReplicaId) -> Option<Block> {
        let mut block = self.model.next(at)?;
        match self.fault {
            Fault::Forks if at == ReplicaId(2) => block.commands.reverse(),
            _ => {}
        }
        self.delivered = self.delivered.max(block.height);
        Some(block).filter(|block| block.height > self.forgotten)
    }

    fn executed(&mut self, at: ReplicaId, height: u64) {
        self.model.executed(at, height);
    }

    fn restarted(&mut self, at: ReplicaId) {
        self.model.restarted(at);
        if self.fault == Fault::Forgets {
            self.forgotten = self.delivered;
        }
    }

    fn work(&mut self) {
        self.model.work();
    }
}

#[test]
fn the_suite_notices_orders_that_lose_fork_or_forget() {
    for (fault, sentence) in
        [(Fault::LosesAll, "never ordered"), (Fault::Forks, "replica 2"), (Fault::Forgets, "does not come again")]
    {
        let broken = (0..10).find_map(|seed| {
            let mut faulty = Faulty { model: Model::new(Seeded::new(seed), 4), fault, delivered: 0, forgotten: 0 };
            suite::check(&mut faulty, 4).err()
        });
        assert!(broken.as_ref().is_some_and(|broken| broken.contains(sentence)), "{sentence}: {broken:?}");
    }
}
