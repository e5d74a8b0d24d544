//! F3: whoever leads the store deletes what is left of earlier incarnations and generations; and whether that is all of it.

use super::Run;
use super::town::Actor;
use crate::invariants::Violation;
use crate::scenarios::stage::Play as _;
use std::time::Duration;
use tidings_notify::leftovers::Leftovers;
use tidings_notify::names::{ClientKey, ObjectKey};
use tidings_notify::rows::{MATCHER, REGISTRAR, Realm, SCRATCH, StoreReply, StoreRequest};
use tidings_wire::v1::{self, store_command::Command};

/// The claim.
pub const NAME: &str = "nothing_is_left_of_earlier_realms";
/// How often the store is looked through: a day, in the pace of this world.
pub const EVERY: Duration = Duration::from_secs(20);
/// When everybody is at rest two looks are enough: one may find the store just started.
const WITHIN: Duration = Duration::from_secs(60);

impl Run {
    /// Whoever leads the store looks for leftovers, and deletes them.
    pub(super) fn tidy(&mut self) {
        let town = &self.stage.town;
        let (server, mut look) = (town.neighbours.servers[0], Leftovers::new(town.shared.realm(), town.nodes.mutant));
        let mut gone = 0;
        self.stage.world.poke(server, |actor, now, out| {
            let Actor::Store(server) = actor else { return };
            while let Some(step) = look.step() {
                gone += look.done(match step {
                    StoreRequest::Scan(scan) => match server.member().state().reader().scan(&scan) {
                        Ok(rows) => StoreReply::Rows(rows),
                        Err(_) => return,
                    },
                    StoreRequest::Write(apply) => {
                        server.operate(now, Command::Apply(apply), out);
                        StoreReply::Written
                    }
                    StoreRequest::Get(_) => return,
                });
            }
        });
        self.left_over += gone;
    }

    /// The heal is over: what is left goes with the next look.
    pub(super) fn nothing_is_left(&mut self) -> Result<(), Violation> {
        let begin = self.stage.world.now();
        while let Some(what) = self.first_leftover() {
            if self.stage.world.now().since(begin) > WITHIN {
                return Err(Violation::new(NAME, what));
            }
            self.until(EVERY / 4)?;
        }
        Ok(())
    }

    fn first_leftover(&self) -> Option<String> {
        let town = &self.stage.town;
        let Some(Actor::Store(server)) = self.stage.world.process(town.neighbours.servers[0]) else {
            return Some("the store does not run".to_string());
        };
        let (reader, realm) = (server.member().state().reader(), town.shared.realm());
        [REGISTRAR, MATCHER, SCRATCH].into_iter().find_map(|group| {
            let mut scan = v1::Scan { group: group.into(), ..Default::default() };
            loop {
                let Ok(page) = reader.scan(&scan) else { return Some("the store cannot be read".to_string()) };
                if let Some(row) = page.rows.iter().find(|row| is_earlier(group, &row.row, &realm)) {
                    return Some(format!("a row of {} is of an earlier realm: {:?}", group.escape_ascii(), row.row));
                }
                scan.start = page.next?;
            }
        })
    }
}

fn is_earlier(group: &[u8], row: &[u8], realm: &Realm) -> bool {
    let Some((incarnation, key)) = row.split_first_chunk() else { return false };
    let object = |key: &[u8]| ObjectKey::parse(key).map(|object| (object.app().to_owned(), object.generation()));
    let of = match group {
        REGISTRAR => ClientKey::parse(key).map(|client| (client.app().to_owned(), client.generation())),
        SCRATCH => key.get(8..).and_then(object),
        // Its own row, or one of its buckets.
        _ => object(key).or_else(|| key.split_last().and_then(|(_, key)| object(key))),
    };
    let earlier = of.is_some_and(|(app, generation)| generation < realm.generation(&app));
    u64::from_be_bytes(*incarnation) < realm.incarnation || earlier
}
