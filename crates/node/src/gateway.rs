//! Sessions of the cell for callers that cannot keep one themselves: one for each principal that uses REST.
//!
//! ```text
//!   REST handler ─▶ Gateway::session(identity) ─▶ cell::Cell (the client library) ─ Through ─▶ Gate ─▶ the master, here
//!                   bounded, closed when idle                                                         or elsewhere
//! ```
//! Every message of such a session passes the gate as its principal, like a message of a connection.

use crate::clock::Clock;
use crate::gate::Gate;
use crate::metrics;
use crate::principal::{Identity, Principal};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidings_base::{Class, Error, Mono};
use tidings_client::cell::{Cell, CellTransport, Link, SessionOptions};
use tidings_wire::{Body, error, v1};

/// How long the sessions may take to end in order when the node stops; what is left ends by its lease.
const FAREWELL: Duration = Duration::from_secs(1);

/// What bounds the sessions.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many there may be.
    pub sessions: usize,
    /// How long one stays after its last call.
    pub idle: Duration,
    /// How long a caller waits for one to begin.
    pub begin: Duration,
}

/// The sessions of callers of REST.
pub struct Gateway {
    gate: Gate,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
    slots: Mutex<BTreeMap<Key, Arc<Slot>>>,
}

/// Whose session it is: the application, the principal, and who vouched for it, since issuers differ in what they grant.
type Key = (String, String, String);

/// The place of one session.
struct Slot {
    /// Held while the session begins, so that many callers make one.
    cell: tokio::sync::Mutex<Option<Cell>>,
    use_: Mutex<Use>,
}

/// Who uses a session.
#[derive(Debug, Default)]
struct Use {
    callers: usize,
    last: Mono,
}

/// A session in use by one caller.
pub struct Session {
    cell: Cell,
    slot: Arc<Slot>,
    clock: Arc<dyn Clock>,
}

impl Deref for Session {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        &self.cell
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut use_ = self.slot.use_.lock();
        use_.callers -= 1;
        use_.last = self.clock.now().mono;
    }
}

impl Gateway {
    /// A gateway to what is behind this gate.
    pub fn new(gate: Gate, bounds: Bounds, clock: Arc<dyn Clock>) -> Arc<Gateway> {
        let gateway = Arc::new(Gateway { gate, bounds, clock, slots: Mutex::default() });
        tokio::spawn(sweep(Arc::downgrade(&gateway), bounds.idle / 4));
        gateway
    }

    /// The session of a principal, begun if there is none.
    pub async fn session(self: &Arc<Self>, identity: &Identity) -> Result<Session, Error> {
        let slot = self.slot(&identity.principal)?;
        // From here on the slot is in use, whatever becomes of this call.
        let using = Using { slot: &slot, clock: &self.clock, kept: false };
        let cell = tokio::time::timeout(self.bounds.begin, self.begun(&slot, &identity.principal)).await;
        let cell = cell.unwrap_or_else(|_| Err(error::deadline_unsent()))?;
        using.keep();
        Ok(Session { cell, slot, clock: self.clock.clone() })
    }

    /// The session of a slot; another one if it is over.
    async fn begun(self: &Arc<Self>, slot: &Slot, principal: &Principal) -> Result<Cell, Error> {
        let mut held = slot.cell.lock().await;
        if let Some(cell) = held.as_ref().filter(|cell| !cell.state().is_over()) {
            return Ok(cell.clone());
        }
        *held = None;
        let through = Through { gateway: Arc::downgrade(self), principal: principal.clone() };
        let cell = Link::new(through)?.session(SessionOptions::default()).await?;
        Ok(held.insert(cell).clone())
    }

    /// The slot of a principal, counted as in use once more.
    fn slot(&self, principal: &Principal) -> Result<Arc<Slot>, Error> {
        let caller = crate::gate::cell_caller(principal);
        let issuer = match principal {
            Principal::User { issuer, .. } => issuer.to_string(),
            _ => String::new(),
        };
        let key = (caller.app, caller.principal, issuer);
        let mut slots = self.slots.lock();
        if !slots.contains_key(&key) && slots.len() >= self.bounds.sessions {
            // Whoever was idle longest makes room.
            let idle = slots.iter().filter(|(_, slot)| slot.use_.lock().callers == 0);
            let oldest = idle.min_by_key(|(_, slot)| slot.use_.lock().last).map(|(key, _)| key.clone());
            match oldest {
                Some(oldest) => drop(slots.remove(&oldest)),
                None => return Err(busy(self.bounds.sessions)),
            }
        }
        let slot = slots.entry(key).or_insert_with(|| {
            let use_ = Mutex::new(Use { callers: 0, last: self.clock.now().mono });
            Arc::new(Slot { cell: tokio::sync::Mutex::default(), use_ })
        });
        slot.use_.lock().callers += 1;
        let slot = slot.clone();
        metrics::cell_rest_sessions(slots.len());
        Ok(slot)
    }

    /// Forgets sessions that nobody has used for long; dropping one closes it.
    fn close_idle(&self) {
        let now = self.clock.now().mono;
        let mut slots = self.slots.lock();
        slots.retain(|_, slot| {
            let use_ = slot.use_.lock();
            use_.callers > 0 || now.since(use_.last) < self.bounds.idle
        });
        metrics::cell_rest_sessions(slots.len());
    }

    /// Closes all sessions in order, in bounded time.
    pub async fn close(&self) {
        let slots: Vec<Arc<Slot>> = std::mem::take(&mut *self.slots.lock()).into_values().collect();
        let closing = slots.iter().map(|slot| async {
            if let Some(cell) = slot.cell.lock().await.take() {
                let _ = cell.close().await;
            }
        });
        let _ = tokio::time::timeout(FAREWELL, futures::future::join_all(closing)).await;
    }
}

/// Counts a caller off again unless its session takes that over.
struct Using<'a> {
    slot: &'a Arc<Slot>,
    clock: &'a Arc<dyn Clock>,
    kept: bool,
}

impl Using<'_> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let mut use_ = self.slot.use_.lock();
            use_.callers -= 1;
            use_.last = self.clock.now().mono;
        }
    }
}

fn busy(limit: usize) -> Error {
    Error::new("control.busy", Class::Unreachable, format!("{limit} principals use the cell by REST at this node now"))
        .hint("Try again, ask another node, or let the operator raise cell.rest_sessions.")
}

async fn sweep(gateway: Weak<Gateway>, every: Duration) {
    loop {
        tokio::time::sleep(every.max(Duration::from_millis(10))).await;
        match gateway.upgrade() {
            Some(gateway) => gateway.close_idle(),
            None => return,
        }
    }
}

/// The way of one principal's messages: through the gate, to whichever node is master. It does not keep the node alive.
struct Through {
    gateway: Weak<Gateway>,
    principal: Principal,
}

impl CellTransport for Through {
    fn call(&self, message: v1::CellMessage, within: Duration) -> BoxFuture<'_, Result<v1::CellMessage, Error>> {
        Box::pin(async move {
            // Only the gate is kept while a call is held, so that a gateway that is dropped ends its sessions.
            let gate = self.gateway.upgrade().ok_or_else(|| error::unsent(&error::going_away(None)))?.gate.clone();
            let call = gate.call_anywhere(&self.principal, Body::Cell(message));
            match tokio::time::timeout(within, call).await {
                Ok(Ok(Body::Cell(answer))) => Ok(answer),
                Ok(Ok(_)) => Err(Error::new("cell.malformed", Class::Failed, "the answer is none of the cell")),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(error::deadline()),
            }
        })
    }
}
