//! How many connections are open, in total and by address.

use crate::config::Limits;
use crate::metrics;
use crate::principal::counted_as;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Counts open connections and refuses those beyond the limits.
pub struct Admission {
    total: usize,
    per_address: usize,
    /// Never more entries than open connections.
    by_address: Mutex<HashMap<IpAddr, usize>>,
    open: watch::Sender<usize>,
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
}

impl Admission {
    /// No connections yet.
    pub fn new(limits: &Limits) -> Arc<Admission> {
        Arc::new(Admission {
            total: limits.connections,
            per_address: limits.connections_per_address,
            by_address: Mutex::new(HashMap::new()),
            open: watch::Sender::new(0),
        })
    }

    /// Takes a place for a connection from `ip`.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<Slot, Refused> {
        let address = counted_as(ip);
        let mut by_address = self.by_address.lock();
        if *self.open.borrow() >= self.total {
            return Err(Refused::Total);
        }
        let count = by_address.entry(address).or_insert(0);
        if *count >= self.per_address {
            return Err(Refused::Address);
        }
        *count += 1;
        self.open.send_modify(|open| *open += 1);
        metrics::connection_opened();
        Ok(Slot { admission: self.clone(), address })
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        *self.open.borrow()
    }

    /// Waits until none is open.
    pub async fn drained(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
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
        self.admission.open.send_modify(|open| *open -= 1);
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
        drop((_b, c, d));
        admission.drained().await;
        assert!(admission.by_address.lock().is_empty());
    }
}
