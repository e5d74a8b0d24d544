//! What a live query takes of a processor: the query, its reader's data and claims, its place in the index and in a partition's
//! feeds. No connection is behind it, and the store is empty.

use crate::commands::bench::report::{Figures, Goal};
use crate::stopwatch::Stopwatch;
use std::collections::VecDeque;
use tidings_base::{Error, LeaseNumber, Machine, Mono, Now, Outbox, Wall};
use tidings_predicate::Packed;
use tidings_predicate::mix::Mix;
use tidings_predicate::query::Ask;
use tidings_tables::calls::{Access, Caller};
use tidings_tables::directory::{Directory, Properties};
use tidings_tables::live::{Body, From, Install, Reader};
use tidings_tables::names::{GatewayId, PartitionId, QueryId, TableId};
use tidings_tables::processor::{Input, Options, Output, Processor, StoreReply, StoreRequest};
use tidings_wire::v1;

const SEED: u64 = 4;
/// Frames that may be under way to one query.
const WINDOW: u32 = 64;

/// A processor that owns one partition of an empty table.
pub struct Alone {
    machine: Processor,
    partition: PartitionId,
    now: Now,
    installed: u64,
}

impl Alone {
    fn open() -> Result<Alone, Error> {
        let nobody = Packed::empty();
        let caller = Caller {
            access: Access::App,
            app: "bench".to_owned(),
            user: String::new(),
            principal: "app:bench/key".to_owned(),
            claims: nobody,
            expires: None,
        };
        let mut directory = Directory::create(TableId(1), &caller, Properties::default(), Vec::new())?;
        let lease = LeaseNumber::new(1).ok_or_else(|| super::failed("there is no first lease"))?;
        let number = directory.partitions.first().map_or(0, |partition| partition.number);
        let acquired = directory.acquire(number, lease)?;
        let mut alone = Alone {
            machine: Processor::new(Options { seed: SEED, ..Options::default() }),
            partition: acquired.partition,
            now: Now { mono: Mono::default(), wall: Wall::default() },
            installed: 0,
        };
        alone.take(Input::Gained(Box::new(acquired)))?;
        Ok(alone)
    }

    /// Everything that comes of an input; the store has nothing, and takes everything.
    fn take(&mut self, input: Input) -> Result<(), Error> {
        let mut inputs = VecDeque::from([input]);
        let mut out = Outbox::new();
        while let Some(input) = inputs.pop_front() {
            self.machine.handle(self.now, input, &mut out);
            for output in out.drain() {
                match output {
                    Output::Store { id, request } => {
                        let reply = match request {
                            StoreRequest::Apply(_) => StoreReply::Applied,
                            StoreRequest::Get(_) => StoreReply::Row(None),
                            StoreRequest::Scan(_) => StoreReply::Rows(v1::Rows::default()),
                        };
                        inputs.push_back(Input::Stored { id, result: Ok(reply) });
                    }
                    Output::Frame { frame, .. } => match frame.body {
                        Body::Ended(refusal) => return Err(refusal.into()),
                        _ => self.installed += 1,
                    },
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Installs the fixed mix in one partition. What comes back holds the memory.
pub fn memory(subscriptions: u64, figures: &mut Figures) -> Result<Alone, Error> {
    let mut mix = Mix::new(subscriptions, SEED);
    let mut alone = Alone::open()?;
    let (before, watch) = (super::index::resident(), Stopwatch::start());
    for number in 0..subscriptions {
        let of = mix.subscription(number).map_err(super::index::bad)?;
        let install = Install {
            query: QueryId { gateway: GatewayId(1), number },
            partition: alone.partition,
            installation: 1,
            ask: Ask { predicate: of.text, ..Ask::default() },
            reader: Reader { access: Access::User, data: of.reader, claims: of.claims, epoch: 1 },
            from: From::Nothing,
            newer_than: None,
            window: WINDOW,
            endpoint: None,
        };
        alone.take(Input::Install(Box::new(install)))?;
    }
    let (took, after) = (watch.elapsed().as_secs_f64(), super::index::resident());
    if alone.installed < subscriptions {
        return Err(super::failed(format!("{} of {subscriptions} queries were installed", alone.installed)));
    }
    let each = |name: &str| format!("tables: {name}, {subscriptions} queries of one processor");
    figures.add(&each("install a live query"), "µs", None, &[took * 1e6 / subscriptions as f64]);
    let bytes = (after - before) / subscriptions as f64;
    figures.add(&each("memory of one, with reader, index and feed"), "B", Some(Goal::AtMost(400.0)), &[bytes]);
    Ok(alone)
}
