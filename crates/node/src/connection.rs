//! Connections that carry frames: who is behind each, what it may do, and how all of them end.
//!
//! ```text
//!   carrier (gRPC, WebSocket) ─▶ Connections::serve ─▶ Driver (session machine) ─▶ Dispatcher ─▶ Gate ─▶ services
//!                                 │ Hello: Gatekeeper says who it is
//!                                 └ registry: farewell to all, recheck of identities
//! ```
//! A connection is one task. A request is answered inside that task where it can be, so that a fast service costs
//! neither a spawn nor a switch; a slow one waits there without holding up the others.

use crate::auth::{Authenticator, named_app};
use crate::gate::Gate;
use crate::port::Marker;
use crate::principal::{Identity, Peer, Principal};
use async_trait::async_trait;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidings_base::{Class, Error, NodeId};
use tidings_client::link::{Admission, Carrier, Driver, Handler};
use tidings_wire::session::{Config as SessionConfig, Side};
use tidings_wire::{Body, Limits, Patience, error, v1};
use tokio::sync::Notify;

pub use tidings_client::link::{Gone, Link, Operation, Requests, Responder, TrySendError};

/// Tells who is behind a connection that says so only in its `Hello`, and whether identities still stand. (Who says so
/// in a header was identified before any carrier saw the request.)
#[async_trait]
pub trait Gatekeeper: Send + Sync + 'static {
    /// Who shows this credential in a `Hello`.
    async fn verify(&self, peer: &Peer, credential: &str) -> Result<Identity, Error>;

    /// Whether an identity still stands.
    async fn recheck(&self, identity: &Identity) -> Result<(), Error>;
}

/// Works on what the other sides of connections begin.
pub trait Dispatcher: Send + Sync + 'static {
    /// Begins to work on an operation. What cannot be answered at once goes on in the future, which runs as part of
    /// the connection and is dropped when nobody waits for the answer any more.
    fn open(&self, context: &Arc<ConnectionContext>, operation: Operation) -> Option<BoxFuture<'static, ()>>;
}

/// What is known of a connection whose handshake is done.
#[derive(Debug)]
pub struct ConnectionContext {
    /// Names the connection in logs, uniquely in this process.
    pub id: u64,
    /// Who is behind it.
    pub identity: Identity,
    /// Where it comes from.
    pub peer: Arc<Peer>,
    /// What it says it is.
    pub agent: String,
    link: Arc<Link>,
}

impl ConnectionContext {
    /// Who is behind it.
    pub fn principal(&self) -> &Principal {
        &self.identity.principal
    }

    /// The connection itself, for operations that the server begins.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

/// How a node treats connections.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// This node.
    pub node: NodeId,
    /// What clients are allowed.
    pub limits: Limits,
    /// What nodes of the cluster are allowed.
    pub node_limits: Limits,
    /// When a quiet connection is asked, and when it is given up.
    pub patience: Patience,
}

impl ConnectionConfig {
    /// The defaults for this node.
    pub fn new(node: NodeId) -> ConnectionConfig {
        ConnectionConfig { node, limits: Limits::CLIENT, node_limits: Limits::NODE, patience: Patience::ACCEPTOR }
    }
}

/// All connections of a node.
pub struct Connections {
    config: ConnectionConfig,
    session: Arc<SessionConfig>,
    gatekeeper: Arc<dyn Gatekeeper>,
    dispatcher: Arc<dyn Dispatcher>,
    next: AtomicU64,
    registry: Mutex<Registry>,
    emptied: Notify,
}

#[derive(Default)]
struct Registry {
    links: BTreeMap<u64, Entry>,
    /// The farewell, once it was said: connections that come after it hear it too.
    farewell: Option<(String, Option<String>)>,
}

struct Entry {
    link: Arc<Link>,
    context: Weak<ConnectionContext>,
}

impl Entry {
    fn is_node(&self) -> bool {
        self.context.upgrade().is_some_and(|context| matches!(context.principal(), Principal::Node(_)))
    }
}

/// Where a connection comes from, and whom its request was taken for.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Where it comes from.
    pub peer: Arc<Peer>,
    /// Who its headers or the socket itself say it is, if they do.
    pub identity: Option<Identity>,
    /// Whether that was said by an explicit credential, which a `Hello` cannot override.
    pub explicit: bool,
    /// The application that its headers name.
    pub app: Option<String>,
    /// Marks the socket as another node's, if that is what it turns out to be.
    pub marker: Option<Marker>,
}

impl Arrival {
    /// What the port and the layer that identifies requests left with this one; `None` if it came another way.
    pub fn of(extensions: &http::Extensions, headers: &HeaderMap) -> Option<Arrival> {
        let peer = extensions.get::<Arc<Peer>>()?.clone();
        let identity = extensions.get::<Identity>().cloned();
        let explicit = headers.contains_key(http::header::AUTHORIZATION);
        // The layer before this one refused what cannot be read.
        let app = named_app(headers).ok().flatten().map(str::to_owned);
        let marker = extensions.get::<Marker>().cloned();
        Some(Arrival { peer, identity, explicit, app, marker })
    }
}

impl Connections {
    /// The connections of a node that are answered by this dispatcher.
    pub fn new(
        config: ConnectionConfig,
        gatekeeper: Arc<dyn Gatekeeper>,
        dispatcher: Arc<dyn Dispatcher>,
    ) -> Arc<Connections> {
        let session = SessionConfig { patience: config.patience, ..SessionConfig::acceptor(config.limits) };
        Arc::new(Connections {
            session: Arc::new(session),
            config,
            gatekeeper,
            dispatcher,
            next: AtomicU64::new(1),
            registry: Mutex::default(),
            emptied: Notify::new(),
        })
    }

    /// How nodes treat connections.
    pub fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    /// Runs one connection to its end.
    pub fn serve<C: Carrier>(
        self: &Arc<Self>,
        carrier: C,
        arrival: Arrival,
    ) -> impl Future<Output = ()> + Send + use<C> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let link = Link::new(Side::Acceptor);
        let guard = self.register(id, &link);
        let handler = NodeHandler {
            connections: self.clone(),
            id,
            arrival: Some(Box::new(arrival)),
            admitted: Arc::default(),
            context: None,
        };
        let driver = Driver::accept(link, carrier, self.session.clone(), handler);
        async move {
            let why = driver.await;
            tracing::debug!(connection = id, code = %why.code, "connection ended");
            drop(guard);
        }
    }

    fn register(self: &Arc<Self>, id: u64, link: &Arc<Link>) -> Registered {
        let mut registry = self.registry.lock();
        registry.links.insert(id, Entry { link: link.clone(), context: Weak::new() });
        if let Some((reason, redirect)) = &registry.farewell {
            link.go_away(reason.clone(), redirect.clone());
        }
        Registered { connections: self.clone(), id }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.registry.lock().links.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says goodbye to all but nodes: nothing new begins, what is open may end, then each connection closes. Nodes replicate
    /// and take over until the end.
    pub fn go_away(&self, reason: &str, redirect: Option<String>) {
        let mut registry = self.registry.lock();
        registry.farewell = Some((reason.to_owned(), redirect.clone()));
        for entry in registry.links.values().filter(|entry| !entry.is_node()) {
            entry.link.go_away(reason, redirect.clone());
        }
    }

    /// Closes all but those of nodes at once.
    pub fn close_clients(&self, why: &Error) {
        for entry in self.registry.lock().links.values().filter(|entry| !entry.is_node()) {
            entry.link.close(why.clone());
        }
    }

    /// Closes all at once.
    pub fn close_all(&self, why: &Error) {
        for entry in self.registry.lock().links.values() {
            entry.link.close(why.clone());
        }
    }

    /// Waits until there are none.
    pub async fn emptied(&self) {
        loop {
            let mut told = std::pin::pin!(self.emptied.notified());
            told.as_mut().enable();
            if self.is_empty() {
                return;
            }
            told.await;
        }
    }

    /// Asks about every identity again and closes the connections of those that no longer stand: keys are revoked,
    /// tokens end. Called now and then. An answer that cannot be had now (`unreachable`) closes nothing.
    pub async fn recheck(&self) {
        let contexts: Vec<Arc<ConnectionContext>> =
            self.registry.lock().links.values().filter_map(|entry| entry.context.upgrade()).collect();
        for context in contexts {
            if let Err(error) = self.gatekeeper.recheck(&context.identity).await
                && matches!(error.class, Class::Refused | Class::Invalid | Class::NotFound)
            {
                context.link.close(error);
            }
        }
    }

    fn admission(&self, identity: &Identity) -> Admission {
        let limits = match identity.principal {
            Principal::Node(_) => self.config.node_limits,
            _ => self.config.limits,
        };
        Admission { node: self.config.node, principal: identity.principal.to_string(), limits }
    }
}

/// Takes a connection off the registry when its task ends, however it ends.
struct Registered {
    connections: Arc<Connections>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut registry = self.connections.registry.lock();
        registry.links.remove(&self.id);
        if registry.links.is_empty() {
            self.connections.emptied.notify_waiters();
        }
    }
}

/// Whom the gatekeeper admitted, on its way from the decision to the context.
type Admitted = Arc<Mutex<Option<(Identity, String, Arc<Peer>)>>>;

struct NodeHandler {
    connections: Arc<Connections>,
    id: u64,
    arrival: Option<Box<Arrival>>,
    admitted: Admitted,
    context: Option<Arc<ConnectionContext>>,
}

impl Handler for NodeHandler {
    fn hello(&mut self, hello: v1::Hello) -> BoxFuture<'static, Result<Admission, Error>> {
        let (connections, admitted) = (self.connections.clone(), self.admitted.clone());
        let arrival = self.arrival.take();
        Box::pin(async move {
            let Arrival { peer, identity, explicit, app, marker } = *arrival.ok_or_else(error::closed)?;
            let identity = match identity {
                Some(identity) if explicit || hello.credential.is_empty() => identity,
                None if hello.credential.is_empty() => return Err(nobody()),
                _ => connections.gatekeeper.verify(&peer, &hello.credential).await?,
            };
            let identity = identity.acting_in(app.as_deref())?;
            let admission = connections.admission(&identity);
            if let (Principal::Node(_), Some(marker)) = (&identity.principal, marker) {
                marker.is_node();
            }
            *admitted.lock() = Some((identity, hello.agent, peer));
            Ok(admission)
        })
    }

    fn ready(&mut self, link: &Arc<Link>, _: &v1::Welcome) {
        let Some((identity, agent, peer)) = self.admitted.lock().take() else { return };
        tracing::debug!(connection = self.id, principal = %identity.principal, address = %peer.address, "connected");
        let context = ConnectionContext { id: self.id, identity, peer, agent, link: link.clone() };
        let context = Arc::new(context);
        if let Some(entry) = self.connections.registry.lock().links.get_mut(&self.id) {
            entry.context = Arc::downgrade(&context);
        }
        self.context = Some(context);
    }

    fn open(&mut self, operation: Operation) -> Option<BoxFuture<'static, ()>> {
        match &self.context {
            Some(context) => self.connections.dispatcher.open(context, operation),
            None => {
                operation.responder.fail(nobody());
                None
            }
        }
    }
}

fn nobody() -> Error {
    Error::new("control.unauthenticated", Class::Refused, "the connection shows no credential").hint(
        "Send a key or token in the `Authorization` header (--key or TIDINGS_KEY on the command line) or in Hello.",
    )
}

/// Hands every operation to the gate, as the principal of its connection.
pub struct GateDispatcher {
    gate: Gate,
}

impl GateDispatcher {
    /// A dispatcher before this gate.
    pub fn new(gate: Gate) -> GateDispatcher {
        GateDispatcher { gate }
    }
}

impl Dispatcher for GateDispatcher {
    fn open(&self, context: &Arc<ConnectionContext>, operation: Operation) -> Option<BoxFuture<'static, ()>> {
        let Operation { body, rest, responder } = operation;
        let body = match body {
            Body::Notify(message) => return self.gate.notify(context.principal(), message, rest, responder),
            Body::Tables(message) => return self.gate.tables(context.principal(), message, rest, responder),
            body => body,
        };
        if rest.is_some() {
            responder.fail(error::unsupported());
            return None;
        }
        let (gate, context) = (self.gate.clone(), context.clone());
        if Gate::is_long(&body) {
            return Some(Box::pin(answer_long(gate, context, body, responder)));
        }
        if let Body::Cell(message) = body {
            return gate.cell(context.principal(), message, responder);
        }
        Some(Box::pin(async move {
            let answer = gate.call(context.principal(), body).await;
            responder.finish(answer);
        }))
    }
}

/// Sends a long answer as its reader grants it. The last frame completes it, so each waits for the next.
async fn answer_long(gate: Gate, context: Arc<ConnectionContext>, body: Body, mut responder: Responder) {
    let mut answers = match gate.stream(context.principal(), body).await {
        Ok(answers) => answers,
        Err(error) => return responder.fail(error),
    };
    let mut held: Option<Body> = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(body) => {
                if let Some(before) = held.replace(body)
                    && responder.send(before).await.is_err()
                {
                    return;
                }
            }
            Err(error) => return responder.fail(error),
        }
    }
    responder.finish(held.ok_or_else(error::unanswered));
}

#[async_trait]
impl Gatekeeper for Authenticator {
    async fn verify(&self, peer: &Peer, credential: &str) -> Result<Identity, Error> {
        Authenticator::verify(self, peer, credential).await
    }

    async fn recheck(&self, identity: &Identity) -> Result<(), Error> {
        Authenticator::recheck(self, identity).await
    }
}
