//! Moments after the faults: links between nodes fail for a blink while live queries begin, switch and go on. Then nobody
//! writes any more, so that nothing follows which would show what was lost, and what was lost is missed all the same (R3, R4).

use super::client::Client;
use super::node::Node;
use super::{CONVERGENCE, Out, Run};
use crate::invariants::Violation;
use crate::kernel::HostId;
use crate::network::CutId;
use crate::scenarios::stage::{Play, Rest};
use std::time::Duration;
use tidings_base::{Now, Seeded};

/// How many there are: half of them cut links, half of them hold them up.
const MOMENTS: u64 = 6;
/// How much longer what is held up takes, in milliseconds: not so long that a query which was not answered is asked again.
const LATE: (u64, u64) = (200, 450);

/// Links that fail.
struct Broken {
    cut: Option<CutId>,
    late: Vec<(HostId, HostId)>,
}

impl Run {
    /// All moments, each with a look at what live queries have told.
    pub(super) fn moments(&mut self, rest: &Rest) -> Result<(), Violation> {
        for moment in 0..MOMENTS {
            let late = moment % 2 == 1;
            let turned = self.stir();
            self.a_while(0, if late { 8 } else { 20 })?;
            let broken = self.break_links(late);
            self.a_while(4, 60)?;
            self.mend_links(broken);
            self.some_devices_leave()?;
            if late {
                // What is told of these overtakes what was held up.
                self.a_while(0, 30)?;
                self.everybody_does(Client::begin)?;
            }
            self.a_while(50, 700)?;
            for host in turned {
                self.with_client(host, Client::turn_back);
            }
            self.until(CONVERGENCE)?;
            self.come_to_rest(rest)?;
            self.everybody_does(Client::compare)?;
            self.come_to_rest(rest)?;
        }
        Ok(())
    }

    /// Devices come and are gone while little arrives between nodes: not all who own a partition have heard of them, and the node
    /// that they came to may die. Then every record is written, and each of those owners has told them (R3).
    pub(super) fn visits(&mut self, rest: &Rest) -> Result<(), Violation> {
        if !self.stage.town.habits.devices {
            return Ok(());
        }
        let nodes = self.stage.town.neighbours.nodes.clone();
        let mut some = || self.moments.pick(&nodes).copied().unwrap_or_default();
        let (moving, dying) = (some(), some());
        // Whoever owns partitions anew knows nobody; and a device that comes has something to be told.
        self.everybody_does(Client::stay_away)?;
        self.with_node(moving, Node::drain);
        self.everybody_does(Client::begin)?;
        self.until(CONVERGENCE)?;
        self.come_to_rest(rest)?;
        let broken = self.break_links(false);
        self.everybody_does(Client::visit)?;
        self.a_while(1, 2_500)?;
        self.everybody_does(Client::stay_away)?;
        let dies = self.moments.one_in(2);
        if dies {
            self.stage.world.kill(dying);
        }
        self.a_while(100, 3_000)?;
        self.mend_links(broken);
        if dies {
            self.start(vec![dying])?;
        }
        self.until(CONVERGENCE)?;
        let writer = self.stage.town.clients.keys().nth(1).copied().unwrap_or_default();
        self.with_client(writer, Client::write_all);
        self.come_to_rest(rest)?;
        self.until(CONVERGENCE)?;
        self.everybody_does(Client::come_back)?;
        self.until(CONVERGENCE)?;
        self.everybody_does(Client::compare)?;
        self.come_to_rest(rest)
    }

    /// Some of those who are devices go away.
    pub(super) fn some_devices_leave(&mut self) -> Result<(), Violation> {
        for host in self.stage.town.clients.keys().copied().collect::<Vec<_>>() {
            if self.stage.town.habits.devices && self.moments.one_in(2) {
                self.with_client(host, Client::leave);
            }
        }
        self.watch()
    }

    fn a_while(&mut self, least: u64, most: u64) -> Result<(), Violation> {
        let time = Duration::from_millis(self.moments.between(least, most));
        self.until(time)
    }

    /// Clients open their queries again, or say something else of themselves; who will take it back.
    fn stir(&mut self) -> Vec<HostId> {
        let mut turned = Vec::new();
        for host in self.stage.town.clients.keys().copied().collect::<Vec<_>>() {
            let act: fn(&mut Client, Now, &mut Out) = match self.moments.below(4) {
                0 | 1 => Client::begin_anew,
                2 => Client::reconnect,
                _ => {
                    turned.push(host);
                    Client::change_team
                }
            };
            self.with_client(host, act);
        }
        turned
    }

    /// Cuts most links between nodes, or holds them up.
    fn break_links(&mut self, late: bool) -> Broken {
        let nodes = self.stage.town.neighbours.nodes.clone();
        let links = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
        let links: Vec<(HostId, HostId)> = links.filter(|(from, to)| from != to).collect();
        let links: Vec<(HostId, HostId)> = links.into_iter().filter(|_| most(&mut self.moments)).collect();
        let network = &mut self.stage.world.network;
        if !late {
            return Broken { cut: Some(network.cut(links)), late: Vec::new() };
        }
        for (from, to) in &links {
            network.hold_up(*from, *to, Duration::from_millis(self.moments.between(LATE.0, LATE.1)));
        }
        Broken { cut: None, late: links }
    }

    fn mend_links(&mut self, broken: Broken) {
        let network = &mut self.stage.world.network;
        if let Some(cut) = broken.cut {
            network.heal(cut);
        }
        broken.late.into_iter().for_each(|(from, to)| network.hold_up(from, to, Duration::ZERO));
    }
}

fn most(rng: &mut Seeded) -> bool {
    !rng.one_in(4)
}
