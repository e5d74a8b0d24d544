//! Whoever operates a pool: asks the manager that leads, and sees to it that the namespace is there.

use super::fact::Fact;
use super::manager::Host;
use crate::kernel::{HostId, Process, World};
use tidings_base::OpId;
use tidings_placement::config::Times;
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// A process that may be a manager.
pub trait Managing: Process<Fact: From<Fact>> {
    /// The manager, if it is one.
    fn manager(&self) -> Option<&Host>;
    /// The manager, if it is one.
    fn manager_mut(&mut self) -> Option<&mut Host>;
}

/// Whoever says that it leads, unless it is asleep, or this one.
pub fn leader<P: Managing>(world: &World<P>, managers: &[HostId], not: Option<HostId>) -> Option<HostId> {
    let leads = |host: &&HostId| {
        let manager = world.process(**host).and_then(P::manager);
        manager.is_some_and(|manager| manager.leads() && !world.is_paused(**host))
    };
    managers.iter().filter(|host| Some(**host) != not).find(leads).copied()
}

/// Asks whoever says that it leads, unless it is asleep.
pub fn ask_leader<P: Managing>(world: &mut World<P>, managers: &[HostId], request: Message) -> Option<(HostId, OpId)> {
    let leader = leader(world, managers, None)?;
    let mut asked = None;
    world.poke(leader, |process, now, out| {
        asked = process.manager_mut().map(|manager| manager.operate(now, request, out));
    });
    asked.map(|op| (leader, op))
}

/// A namespace with these leases, and so many virtual nodes an owner.
pub fn config(times: Times, virtual_nodes: u32) -> v1::NamespaceConfig {
    v1::NamespaceConfig {
        lease_ms: times.lease.as_millis() as u32,
        renew_ms: times.renew.as_millis() as u32,
        virtual_nodes,
        drain_ms: 30_000,
        ..Default::default()
    }
}

/// What the operator knows.
#[derive(Debug, Default)]
pub struct Operator {
    /// The namespace is there.
    pub made: bool,
    asked: Option<(HostId, OpId)>,
}

impl Operator {
    /// Hears the answer to what was asked, if there is one.
    pub fn hear<P: Managing>(&mut self, world: &mut World<P>) {
        let Some((host, op)) = self.asked.take() else { return };
        let mut told = None;
        world.poke(host, |process, _, _| told = process.manager_mut().and_then(|manager| manager.told(op)));
        self.made = match told {
            Some(Ok(_)) => true,
            Some(Err(code)) => code == "placement.namespace_exists",
            None => false,
        };
    }

    /// Makes the namespace if it is not there.
    pub fn look<P: Managing>(
        &mut self,
        world: &mut World<P>,
        managers: &[HostId],
        namespace: &str,
        config: &v1::NamespaceConfig,
    ) {
        self.hear(world);
        if !self.made {
            let create = v1::NamespaceCreate { namespace: namespace.to_owned(), config: Some(config.clone()) };
            self.asked = ask_leader(world, managers, Message::NamespaceCreate(create));
        }
    }
}
