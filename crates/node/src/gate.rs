//! The one way from a carrier to the services: authorise every piece of a request, put it into its application, call.
//!
//! ```text
//!   REST ─┐
//!   WebSocket ─┼─▶ Gate::call(principal, body) ─▶ authorize ─▶ add tenant prefix ─▶ Services::call
//!   gRPC ─┘                                    strip tenant prefix ◀────────────────────┘
//! ```
//! Carriers hold a [`Gate`], never the [`Services`] themselves, so none of them can forget a check.

mod cell;
mod notify;
mod placement;
mod tables;

pub(crate) use cell::caller as cell_caller;
pub(crate) use tables::veiled;

use crate::authorize::{Action, Resource, authorize};
use crate::connection::{Requests, Responder};
use crate::load::Load;
use crate::notify::Seat;
use crate::principal::{AppName, Principal};
use crate::tables::Watching;
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::sync::Arc;
use tidings_base::{Class, Error};
use tidings_wire::v1::{admin_message, cell_message, feed_message, store_message};
use tidings_wire::{Body, Part, v1};

/// The longest name of a group, topic, row, column, consumer group or fence: names are keys, not values.
pub const MAX_NAME: usize = 4 << 10;

/// A long answer: several bodies, each a frame.
pub type Answers = BoxStream<'static, Result<Body, Error>>;

/// What a node can do, by the same messages as frames. Requests arrive authorised and with full names.
#[async_trait]
pub trait Services: Send + Sync + 'static {
    /// Answers a request with one message (a scan with its first page). Dropping the future cancels what can still be cancelled.
    async fn call(&self, caller: &Principal, request: Body) -> Result<Body, Error>;

    /// Answers a request with one message, asking whichever node can answer it: for callers that cannot follow a
    /// redirect. By default this node is the only one.
    async fn call_anywhere(&self, caller: &Principal, request: Body) -> Result<Body, Error> {
        self.call(caller, request).await
    }

    /// Answers a request that may take several frames; by default it takes one.
    async fn stream(&self, caller: &Principal, request: Body) -> Result<Answers, Error> {
        let answer = self.call(caller, request).await?;
        Ok(futures::stream::once(std::future::ready(Ok(answer))).boxed())
    }

    /// Begins to answer a request of the cell, which may be held for a minute: what is left to do goes on in the future,
    /// as small as it can be, and is cancelled when that is dropped.
    fn cell(&self, request: v1::CellMessage, responder: Responder) -> Option<BoxFuture<'static, ()>> {
        drop(request);
        responder.fail(tidings_wire::error::unsupported());
        None
    }

    /// Begins to answer a request of Notify, some of which go on: a client's channel, batches between nodes.
    fn notify(
        &self,
        request: v1::NotifyMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        drop((request, rest));
        responder.fail(tidings_wire::error::unsupported());
        None
    }

    /// A place for a channel of Notify of somebody who has no connection of frames.
    fn notify_channel(&self, caller: v1::NotifyCaller) -> Result<Seat, Error> {
        drop(caller);
        Err(tidings_wire::error::unsupported())
    }

    /// Begins to answer a request of Tables, some of which go on: live queries, reads of other nodes.
    fn tables(
        &self,
        request: v1::TablesMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        drop((request, rest));
        responder.fail(tidings_wire::error::unsupported());
        None
    }

    /// Begins a live query for somebody who has no connection of frames.
    async fn tables_watch(&self, caller: v1::TablesCaller, query: v1::LiveQuery) -> Result<Watching, Error> {
        drop((caller, query));
        Err(tidings_wire::error::unsupported())
    }

    /// Refuses an application that nobody has made.
    async fn app_exists(&self, app: &AppName) -> Result<(), Error> {
        let _ = app;
        Ok(())
    }

    /// How much was done since the node started, by name, for the rates of the status; names are few and stay.
    fn done(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether requests can be served now; if not, why (`/readyz`).
    fn ready(&self) -> Result<(), Error>;

    /// Waits until the services have failed for good, so that only a new start helps; by default they never do.
    async fn failed(&self) -> Error {
        std::future::pending().await
    }

    /// Gives others what they can take over. Called when a shutdown begins, while everybody still reaches this node: it
    /// goes on answering.
    async fn hand_over(&self) {}

    /// Lets go of requests that are held: somebody else can hold them. Called when everybody was told to go: it must not
    /// wait for those who wait for it.
    async fn retire(&self) {}

    /// Stops. Called once, after the last request; the other nodes still reach this one.
    async fn shutdown(&self);

    /// Stops at once, as a crash would.
    async fn stop(&self) {
        self.shutdown().await;
    }
}

/// What the shell knows about itself, for the status.
pub trait Shell: Send + Sync + 'static {
    /// Fills in the fields that only the shell knows.
    fn describe(&self, status: &mut v1::StatusReply);
}

/// Authorises requests and hands them to the services.
#[derive(Clone)]
pub struct Gate {
    services: Arc<dyn Services>,
    shell: Arc<dyn Shell>,
    load: Arc<Load>,
}

impl Gate {
    /// A gate before these services.
    pub(crate) fn new(services: Arc<dyn Services>, shell: Arc<dyn Shell>, load: Arc<Load>) -> Gate {
        Gate { services, shell, load }
    }

    /// Checks a request, gives its names their application, and counts it.
    fn admit(&self, caller: &Principal, request: &mut Body) -> Result<Scope, Error> {
        let scope = admit(caller, request)?;
        self.load.asked(caller, Part::of(request));
        Ok(scope)
    }

    /// Answers one request with one message.
    pub async fn call(&self, caller: &Principal, mut request: Body) -> Result<Body, Error> {
        let scope = self.admit(caller, &mut request)?;
        self.named_app(caller, &request).await?;
        let answer = self.services.call(caller, request).await;
        let mut answer = answer.map_err(|error| scope.own_words(error))?;
        self.finish(&scope, &mut answer);
        Ok(answer)
    }

    /// Answers one request with one message, from whichever node can: for callers that cannot follow a redirect.
    pub async fn call_anywhere(&self, caller: &Principal, mut request: Body) -> Result<Body, Error> {
        let scope = self.admit(caller, &mut request)?;
        self.named_app(caller, &request).await?;
        let answer = self.services.call_anywhere(caller, request).await;
        let mut answer = answer.map_err(|error| scope.own_words(error))?;
        self.finish(&scope, &mut answer);
        Ok(answer)
    }

    /// Answers one request with as many messages as it takes.
    pub async fn stream(&self, caller: &Principal, mut request: Body) -> Result<Answers, Error> {
        let scope = self.admit(caller, &mut request)?;
        self.named_app(caller, &request).await?;
        let answers = self.services.stream(caller, request).await?;
        let gate = self.clone();
        Ok(answers
            .map(move |answer| {
                answer.map(|mut answer| {
                    gate.finish(&scope, &mut answer);
                    answer
                })
            })
            .boxed())
    }

    /// Begins to answer a request of the cell.
    pub fn cell(
        &self,
        caller: &Principal,
        mut request: v1::CellMessage,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        if let Err(error) = cell::admit(caller, &mut request) {
            responder.fail(error);
            return None;
        }
        self.load.asked(caller, Part::Cell);
        self.begin_in_app(caller, responder, |services, responder| services.cell(request, responder))
    }

    /// Begins to answer a request of Notify.
    pub fn notify(
        &self,
        caller: &Principal,
        mut request: v1::NotifyMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        if let Err(error) = notify::admit(caller, &mut request) {
            responder.fail(error);
            return None;
        }
        self.load.asked(caller, Part::Notify);
        self.begin_in_app(caller, responder, |services, responder| services.notify(request, rest, responder))
    }

    /// Begins to answer a request of Tables.
    pub fn tables(
        &self,
        caller: &Principal,
        mut request: v1::TablesMessage,
        rest: Option<Requests>,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>> {
        if let Err(error) = tables::admit(caller, &mut request) {
            responder.fail(error);
            return None;
        }
        self.load.asked(caller, Part::Tables);
        self.begin_in_app(caller, responder, |services, responder| services.tables(request, rest, responder))
    }

    /// Begins to answer what is asked in an application, which may be one that an operator has named and nobody has made.
    fn begin_in_app(
        &self,
        caller: &Principal,
        responder: Responder,
        begin: impl FnOnce(&dyn Services, Responder) -> Option<BoxFuture<'static, ()>> + Send + 'static,
    ) -> Option<BoxFuture<'static, ()>> {
        let Some(app) = named_by_operator(caller) else { return begin(&*self.services, responder) };
        let services = self.services.clone();
        Some(Box::pin(async move {
            match services.app_exists(&app).await {
                Err(error) => responder.fail(error),
                Ok(()) => {
                    if let Some(answering) = begin(&*services, responder) {
                        answering.await;
                    }
                }
            }
        }))
    }

    /// Begins a live query for somebody who has no connection of frames.
    pub async fn tables_watch(&self, caller: &Principal, query: v1::LiveQuery) -> Result<Watching, Error> {
        let watch = Some(v1::tables_message::Message::Watch(query.clone()));
        let mut request = v1::TablesMessage { message: watch, ..Default::default() };
        tables::admit(caller, &mut request)?;
        self.load.asked(caller, Part::Tables);
        self.in_app(caller).await?;
        self.services.tables_watch(request.caller.unwrap_or_default(), query).await
    }

    /// Refuses an application that an operator has named and nobody has made: it would look like an empty one, and be made
    /// by being written to. What is about the cluster is in none.
    async fn named_app(&self, caller: &Principal, request: &Body) -> Result<(), Error> {
        match request {
            Body::Admin(_) | Body::Raft(_) => Ok(()),
            _ => self.in_app(caller).await,
        }
    }

    /// Who a caller is to Notify, if it may listen.
    pub fn listener(&self, caller: &Principal) -> Result<v1::NotifyCaller, Error> {
        let up = Some(v1::notify_message::Message::Up(v1::NotifyUp::default()));
        let mut request = v1::NotifyMessage { caller: None, message: up };
        notify::admit(caller, &mut request)?;
        Ok(request.caller.unwrap_or_default())
    }

    /// A place for a channel of Notify of somebody who may listen.
    pub async fn notify_channel(&self, caller: &Principal, listener: v1::NotifyCaller) -> Result<Seat, Error> {
        self.in_app(caller).await?;
        self.services.notify_channel(listener)
    }

    /// Refuses a caller that acts in an application which nobody has made.
    pub async fn in_app(&self, caller: &Principal) -> Result<(), Error> {
        match named_by_operator(caller) {
            Some(app) => self.services.app_exists(&app).await,
            None => Ok(()),
        }
    }

    /// The full name of a namespace of placement, if the caller may do so much there: for what is asked of the node
    /// rather than of the leader.
    pub fn namespace(&self, caller: &Principal, namespace: &str, action: Action) -> Result<String, Error> {
        placement::named(caller, &Scope::of(caller), namespace, action)
    }

    /// Whether a request may need several frames, so that [`Gate::stream`] is the way to ask it.
    pub fn is_long(request: &Body) -> bool {
        match request {
            Body::Store(v1::StoreMessage { message }) => matches!(message, Some(store_message::Message::Scan(_))),
            Body::Cell(v1::CellMessage { message, .. }) => matches!(message, Some(cell_message::Message::Backup(_))),
            _ => false,
        }
    }

    /// Whether requests can be served now; if not, why.
    pub fn ready(&self) -> Result<(), Error> {
        self.services.ready()
    }

    fn finish(&self, scope: &Scope, answer: &mut Body) {
        match answer {
            Body::Store(v1::StoreMessage { message: Some(store_message::Message::Applied(applied)) }) => {
                for failure in &mut applied.failures {
                    scope.strip(&mut failure.group);
                }
            }
            Body::Admin(v1::AdminMessage { message: Some(admin_message::Message::StatusReply(status)) }) => {
                self.shell.describe(status);
                status.rates = self.load.rates();
            }
            Body::Placement(v1::PlacementMessage { message: Some(message) }) => placement::finish(scope, message),
            _ => {}
        }
    }
}

/// The application that an operator has named, if he may have mistyped it: all but the one that is always there. Everybody
/// else is of one that somebody has made.
fn named_by_operator(caller: &Principal) -> Option<AppName> {
    match caller {
        Principal::Operator { app, .. } if *app != AppName::default_app() => Some(app.clone()),
        _ => None,
    }
}

/// Where a request's names live.
enum Scope {
    /// In an application: `app/name`.
    App(AppName),
    /// Nowhere: the names are full already.
    Raw,
}

impl Scope {
    fn of(caller: &Principal) -> Scope {
        caller.app().map_or(Scope::Raw, Scope::App)
    }

    fn resource(&self) -> Resource {
        match self {
            Scope::App(app) => Resource::App(app.clone()),
            Scope::Raw => Resource::Raw,
        }
    }

    fn prefix(&self, name: &mut Bytes) {
        if let Scope::App(app) = self {
            let mut full = BytesMut::with_capacity(app.as_str().len() + 1 + name.len());
            full.put_slice(app.as_str().as_bytes());
            full.put_u8(b'/');
            full.put_slice(name);
            *name = full.freeze();
        }
    }

    /// An error in the names that the caller knows.
    fn own_words(&self, mut error: Error) -> Error {
        if let Scope::App(app) = self
            && error.code.starts_with("placement.")
        {
            error.message = error.message.replace(&format!("`{app}/"), "`");
        }
        error
    }

    fn strip(&self, name: &mut Bytes) {
        if let Scope::App(app) = self {
            let length = app.as_str().len() + 1;
            if name.starts_with(app.as_str().as_bytes()) && name.get(length - 1) == Some(&b'/') {
                *name = name.slice(length..);
            }
        }
    }
}

/// An error in the names that the caller knows.
pub(crate) fn own_words(caller: &Principal, error: Error) -> Error {
    Scope::of(caller).own_words(error)
}

/// Checks every piece of a request and gives its names their application.
fn admit(caller: &Principal, request: &mut Body) -> Result<Scope, Error> {
    let scope = Scope::of(caller);
    match request {
        Body::Control(_) => Err(unsupported("this control message")),
        Body::Cell(message) => cell::admit(caller, message),
        Body::Placement(message) => placement::admit(caller, &scope, message),
        Body::Notify(message) => notify::admit(caller, message),
        Body::Tables(message) => tables::admit(caller, message),
        Body::Store(message) => admit_store(caller, &scope, message),
        Body::Feed(message) => admit_feed(caller, &scope, message),
        Body::Raft(message) => admit_raft(caller, message),
        Body::Admin(message) => admit_admin(caller, message),
    }?;
    Ok(scope)
}

/// Nobody votes in another's name.
fn admit_raft(caller: &Principal, message: &v1::RaftMessage) -> Result<(), Error> {
    authorize(caller, Part::Raft, Action::Write, &Resource::Cluster)?;
    match caller {
        Principal::Node(node) if node.0 != message.from => {
            let said = format!("{caller} may not speak as node {}", message.from);
            Err(Error::new("control.forbidden", Class::Refused, said).hint("Start each node with its own folder."))
        }
        _ => Ok(()),
    }
}

fn admit_store(caller: &Principal, scope: &Scope, message: &mut v1::StoreMessage) -> Result<(), Error> {
    use store_message::Message;
    let may = |action| authorize(caller, Part::Store, action, &scope.resource());
    match &mut message.message {
        Some(Message::Apply(apply)) => {
            // The batch itself needs the right too, or an empty one would tell strangers whether the store is there.
            may(Action::Write)?;
            for group in &mut apply.groups {
                may(Action::Write)?;
                named("group", &group.group)?;
                scope.prefix(&mut group.group);
            }
            Ok(())
        }
        Some(Message::Get(get)) => {
            may(Action::Read)?;
            let key = get.key.as_mut().ok_or_else(|| missing("key"))?;
            named("group", &key.group)?;
            scope.prefix(&mut key.group);
            Ok(())
        }
        Some(Message::Scan(scan)) => {
            may(Action::Read)?;
            named("group", &scan.group)?;
            scope.prefix(&mut scan.group);
            Ok(())
        }
        Some(Message::CompareAndSet(set)) => {
            // It tells what stands in the way, so it is a read as well.
            may(Action::Read)?;
            may(Action::Write)?;
            let key = set.key.as_mut().ok_or_else(|| missing("key"))?;
            named("group", &key.group)?;
            scope.prefix(&mut key.group);
            Ok(())
        }
        Some(Message::Status(_)) => may(Action::Read),
        Some(_) | None => Err(unsupported("this store message")),
    }
}

fn admit_feed(caller: &Principal, scope: &Scope, message: &mut v1::FeedMessage) -> Result<(), Error> {
    use feed_message::Message;
    let may = |action| authorize(caller, Part::Feed, action, &scope.resource());
    let topic = match &mut message.message {
        Some(Message::Append(append)) => {
            may(Action::Write)?;
            &mut append.topic
        }
        // Who consumes reads, and takes entries away from the rest of the group.
        Some(Message::Consume(consume)) => {
            may(Action::Read)?;
            may(Action::Write)?;
            named("consumer group", &consume.group)?;
            &mut consume.topic
        }
        Some(Message::Ack(ack)) => {
            may(Action::Write)?;
            named("consumer group", &ack.group)?;
            &mut ack.topic
        }
        Some(_) | None => return Err(unsupported("this feed message")),
    };
    named("topic", topic)?;
    scope.prefix(topic);
    Ok(())
}

fn admit_admin(caller: &Principal, message: &v1::AdminMessage) -> Result<(), Error> {
    use admin_message::Message;
    let action = match &message.message {
        Some(Message::Status(_)) => Action::Read,
        Some(Message::AppList(_)) => Action::Read,
        Some(
            Message::AppCreate(_)
            | Message::KeyCreate(_)
            | Message::KeyRevoke(_)
            | Message::MemberChange(_)
            | Message::IncarnationRaise(_),
        ) => Action::Write,
        Some(_) | None => {
            authorize(caller, Part::Admin, Action::Read, &Resource::Cluster)?;
            return Err(unsupported("this admin message"));
        }
    };
    authorize(caller, Part::Admin, action, &Resource::Cluster)
}

fn named(what: &str, name: &Bytes) -> Result<(), Error> {
    match name.len() {
        0 => Err(Error::new("control.no_name", Class::Invalid, format!("the {what} has no name"))
            .hint(format!("Names have 1 to {MAX_NAME} bytes."))),
        n if n > MAX_NAME => {
            Err(Error::new("control.name_too_long", Class::Invalid, format!("the {what}'s name has {n} bytes"))
                .hint(format!("Names have at most {MAX_NAME} bytes.")))
        }
        _ => Ok(()),
    }
}

fn missing(field: &str) -> Error {
    Error::new("control.missing_field", Class::Invalid, format!("the request lacks its field `{field}`"))
}

fn unsupported(what: &str) -> Error {
    Error::new("control.unsupported", Class::Invalid, format!("this node does not take {what} as a request"))
        .hint("It may speak an older version of the protocol: upgrade it, or use an older client.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::OperatorBy;

    fn store(message: store_message::Message) -> Body {
        Body::Store(v1::StoreMessage { message: Some(message) })
    }

    fn app(name: &str) -> Principal {
        Principal::App { app: AppName::parse(name).unwrap(), key: Arc::from("k") }
    }

    fn apply(groups: &[&'static str]) -> Body {
        let groups = groups.iter().map(|group| v1::GroupWrite { group: (*group).into(), ..Default::default() });
        store(store_message::Message::Apply(v1::Apply { groups: groups.collect() }))
    }

    fn groups(body: &Body) -> Vec<Bytes> {
        match body {
            Body::Store(v1::StoreMessage { message: Some(store_message::Message::Apply(apply)) }) => {
                apply.groups.iter().map(|group| group.group.clone()).collect()
            }
            other => panic!("not an apply: {other:?}"),
        }
    }

    #[test]
    fn a_node_votes_in_nobody_elses_name() {
        let vote = |from| Body::Raft(v1::RaftMessage { from, ..Default::default() });
        let node = Principal::Node(tidings_base::NodeId(2));
        assert!(admit(&node, &mut vote(2)).is_ok());
        let refused = admit(&node, &mut vote(3)).err().map(|error| error.code);
        assert_eq!(refused.as_deref(), Some("control.forbidden"));
    }

    #[test]
    fn every_nested_write_stays_inside_the_callers_application() {
        let mut body = apply(&["g", "other/g", "../other", "/"]);
        admit(&app("a"), &mut body).unwrap();
        assert_eq!(groups(&body), ["a/g", "a/other/g", "a/../other", "a//"]);
    }

    #[test]
    fn nodes_speak_full_names_and_operators_the_default_application() {
        let mut body = apply(&["a/g"]);
        admit(&Principal::Node(tidings_base::NodeId(2)), &mut body).unwrap();
        assert_eq!(groups(&body), ["a/g"]);
        admit(&Principal::operator(OperatorBy::Key), &mut body).unwrap();
        assert_eq!(groups(&body), ["default/a/g"]);
    }

    #[test]
    fn answers_lose_the_prefix_that_requests_were_given() {
        let scope = Scope::of(&app("a"));
        for name in ["g", "a/g", ""] {
            let (plain, mut full) = (Bytes::from(name), Bytes::from(name));
            scope.prefix(&mut full);
            assert_ne!(full, plain);
            scope.strip(&mut full);
            assert_eq!(full, plain);
        }
        let mut foreign = Bytes::from("ab/g");
        scope.strip(&mut foreign);
        assert_eq!(foreign, "ab/g");
    }

    #[test]
    fn answers_are_no_requests() {
        let operator = Principal::operator(OperatorBy::Unconfigured);
        for mut body in [
            store(store_message::Message::Applied(v1::Applied::default())),
            Body::Store(v1::StoreMessage { message: None }),
            Body::Feed(v1::FeedMessage { message: None }),
            Body::Admin(v1::AdminMessage { message: None }),
            Body::Control(v1::Control { message: None }),
        ] {
            assert_eq!(
                admit(&operator, &mut body).err().map(|e| e.code.into_owned()),
                Some("control.unsupported".into())
            );
        }
    }

    #[test]
    fn an_empty_batch_and_an_unknown_admin_message_need_rights_too() {
        let user = Principal::User {
            app: AppName::parse("a").unwrap(),
            issuer: Arc::from("i"),
            subject: Arc::from("s"),
            grants: Arc::from([]),
            objects: Arc::from([]),
            claims: Default::default(),
        };
        for mut body in [apply(&[]), Body::Admin(v1::AdminMessage { message: None })] {
            assert_eq!(admit(&user, &mut body).err().map(|e| e.code.into_owned()), Some("control.forbidden".into()));
        }
    }

    #[test]
    fn names_are_there_and_bounded() {
        let mut empty = apply(&["g", ""]);
        assert_eq!(admit(&app("a"), &mut empty).err().unwrap().code, "control.no_name");
        let group = Bytes::from(vec![b'x'; MAX_NAME + 1]);
        let mut long = store(store_message::Message::Scan(v1::Scan { group, ..Default::default() }));
        assert_eq!(admit(&app("a"), &mut long).err().unwrap().code, "control.name_too_long");
        let mut keyless = store(store_message::Message::Get(v1::Get::default()));
        assert_eq!(admit(&app("a"), &mut keyless).err().unwrap().code, "control.missing_field");
    }
}
