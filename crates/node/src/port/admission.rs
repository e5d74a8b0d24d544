//! How many connections are open, in total and by address.

use crate::config::Limits;
use crate::metrics;
use crate::principal::counted_as;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Counts open connections and refuses those beyond the limits.
pub struct Admission {
    total: usize,
    per_address: usize,
    /// Never more entries than open connections.
    by_address: Mutex<HashMap<IpAddr, usize>>,
    open: watch::Sender<Open>,
}

/// How many connections are open.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    all: usize,
    /// Those of other nodes of the cluster.
    nodes: usize,
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The server has all it can take.
    Total,
    /// Its address has all it may have.
    Address,
}

impl Refused {
    /// The reason as metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Refused::Total => "total",
            Refused::Address => "address",
        }
    }
}

/// The place of one open connection, held by its stream so that it is given back when the socket closes, however the
/// connection was used.
pub struct Slot {
    admission: Arc<Admission>,
    address: IpAddr,
    is_node: Arc<AtomicBool>,
}

/// Says of an open connection that it is another node's, once that is known. Every request carries it as an extension.
#[derive(Clone)]
pub struct Marker {
    admission: Arc<Admission>,
    is_node: Arc<AtomicBool>,
}

impl Slot {
    /// What marks this connection.
    pub fn marker(&self) -> Marker {
        Marker { admission: self.admission.clone(), is_node: self.is_node.clone() }
    }
}

impl Marker {
    /// The connection is another node's: a shutdown lets it be until the end.
    pub fn is_node(&self) {
        // Whoever counts holds this; a slot that was given back counts as marked.
        let _counting = self.admission.by_address.lock();
        if !self.is_node.swap(true, Ordering::Relaxed) {
            self.admission.open.send_modify(|open| open.nodes += 1);
        }
    }
}

impl std::fmt::Debug for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Marker").finish_non_exhaustive()
    }
}

impl Admission {
    /// No connections yet.
    pub fn new(limits: &Limits) -> Arc<Admission> {
        Arc::new(Admission {
            total: limits.connections,
            per_address: limits.connections_per_address,
            by_address: Mutex::new(HashMap::new()),
            open: watch::Sender::default(),
        })
    }

    /// Takes a place for a connection from `ip`.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<Slot, Refused> {
        let address = counted_as(ip);
        let mut by_address = self.by_address.lock();
        if self.open() >= self.total {
            return Err(Refused::Total);
        }
        let count = by_address.entry(address).or_insert(0);
        if *count >= self.per_address {
            return Err(Refused::Address);
        }
        *count += 1;
        self.open.send_modify(|open| open.all += 1);
        metrics::connection_opened();
        Ok(Slot { admission: self.clone(), address, is_node: Arc::default() })
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.borrow().all
    }

    /// Waits until none is open but those of other nodes.
    pub async fn drained(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.open.subscribe().wait_for(|open| open.all == open.nodes).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut by_address = self.admission.by_address.lock();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
        let was_node = self.is_node.swap(true, Ordering::Relaxed);
        self.admission.open.send_modify(|open| {
            open.all -= 1;
            open.nodes -= usize::from(was_node);
        });
        metrics::connection_closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_by_address_and_in_total_and_given_back() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let admission = Admission::new(&limits);
        let ip = |n| IpAddr::from([10, 0, 0, n]);
        let (a, _b) = (admission.admit(ip(1)).unwrap(), admission.admit(ip(1)).unwrap());
        assert_eq!(admission.admit(ip(1)).err(), Some(Refused::Address));
        let c = admission.admit(ip(2)).unwrap();
        assert_eq!(admission.admit(ip(3)).err(), Some(Refused::Total));
        drop(a);
        let d = admission.admit(ip(1)).unwrap();
        assert_eq!(admission.open(), 3);
        drop((_b, c));
        assert!(futures::poll!(std::pin::pin!(admission.drained())).is_pending());
        // A node's is not waited for; one that has closed is no node's.
        let marker = d.marker();
        marker.is_node();
        admission.drained().await;
        drop(d);
        marker.is_node();
        let e = admission.admit(ip(1)).unwrap();
        assert!(futures::poll!(std::pin::pin!(admission.drained())).is_pending());
        drop(e);
        admission.drained().await;
        assert!(admission.by_address.lock().is_empty());
    }
}
