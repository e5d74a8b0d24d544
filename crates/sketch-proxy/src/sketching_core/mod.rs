//! The sketching core: several proxies remember pages as one, each the part that placement leases to it (rule J).
//!
//! ```text
//!   client ─▶ A: s(q) ── held here? ── yes ─▶ A's engine
//!                │ no: whom does the lookup name?
//!                ├──────────────────────────────▶ B's door ── held there? ── yes ─▶ B's engine, the page comes back
//!                └ nobody, no answer, "moved" ──▶ past the table: asked of all origins, nothing remembered;
//!                                                 before a BFT group: the holder is waited for
//! ```
//! Every proxy is request sketcher and response sketcher (§3.4 of the paper). A request takes one hop at most: a door asks its
//! own engine and nobody else. Before origins the loss of a proxy costs agreed reads, and nothing else; before a group reads wait
//! until its leases are over.
//!
//! Several sites share a core, and its leases: whoever holds a range remembers it of all of them. What they remember, and what
//! they may take of a proxy, is apart.
//!
//! - `seal`: what proxies say to each other; `door`: where they are heard; `peers`: who of them answers; `carry`: entries that
//!   go and come with ranges.

mod carry;
pub(crate) mod door;
mod peers;
mod seal;

use crate::config::{Config, Core as CoreConfig, Secret, Site};
use crate::engine::{End, Engine, Question, Served};
use crate::held::Held;
use crate::ordered::Group;
use crate::sites::Sites;
use bytes::Bytes;
use carry::{Books, Carrier};
use http::header::{HOST, HeaderValue, TE};
use http::uri::PathAndQuery;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use peers::{Peers, Silence};
use seal::{Asks, Nonce, Says, Seal, same};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidings_base::{Class, Error, KeyHash, LeaseNumber};
use tidings_client::placement::{Changes, Lookup, LookupOptions, Owner, OwnerState};
use tidings_sketch::group;
use tidings_sketch::http::CORE;
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketching;
use tidings_sketch::sketcher::{How, Kind, Ranges, Refusal, WHOLE, Way};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How long a connection to another proxy may take to be made: they are near each other.
const CONNECT: Duration = Duration::from_millis(500);
/// How long a connection without a request is kept: less than a door keeps it, so that none ends under a request.
const IDLE: Duration = Duration::from_secs(15);
/// How long another proxy has to begin its answer, in patiences: it may ask one origin in vain, and then all. Whoever has none by
/// then asks all origins itself. (Before a group it has as long as ordering may take.)
const PATIENCES: u32 = 3;
/// How often it is looked whether placement refuses this proxy.
const LOOK: Duration = Duration::from_secs(1);
/// How long it is waited before the holder of a range is asked again, doubling: many may wait, and one that does not know their site
/// would be asked by all of them.
const AGAIN: Duration = Duration::from_millis(50);
const LONGEST_AGAIN: Duration = Duration::from_secs(1);

type Line = Client<HttpConnector, Full<Bytes>>;

/// What a proxy says of its part in a core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreStats {
    /// Its name there.
    pub name: String,
    /// Why placement refuses it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Ranges that it holds.
    pub ranges: u64,
    /// Its share of all requests' sketches, from 0 to 1.
    pub share: f64,
    /// Requests that another proxy answered for its clients.
    pub forwarded: u64,
    /// Requests of other proxies' clients that it was asked for.
    pub served: u64,
    /// Reads that were put to all origins because their range was nobody's, moved, or its owner gave no answer.
    pub aside: u64,
    /// Times that another proxy gave no proper answer.
    pub unanswered: u64,
    /// Messages that were not of this core: of another secret, other rules or other origins.
    pub foreign: u64,
    /// Entries that came along with ranges.
    pub carried: u64,
}

/// How often what happened.
#[derive(Default)]
struct Counts {
    forwarded: AtomicU64,
    served: AtomicU64,
    aside: AtomicU64,
    unanswered: AtomicU64,
    foreign: AtomicU64,
}

/// A read that the table has a part in.
#[derive(Clone, Copy)]
struct Read {
    way: Way,
    after: Option<Sigma>,
    /// Whom it is counted for.
    client: u64,
}

/// What one site may take of its proxy's dealings with others.
struct Lane {
    /// How long another proxy has to begin its answer.
    patience: Duration,
    /// Requests that are put to others at a time.
    forwards: Semaphore,
    /// Reads of a group that are under way here, or wait for the holder of their range.
    waits: Semaphore,
    /// Who answers. A proxy that is silent of one site may reach what is behind the others.
    peers: Mutex<Peers>,
}

impl Lane {
    fn of(site: &Site, core: &CoreConfig) -> Lane {
        Lane {
            patience: match site.group {
                // To order takes the holder as long as it takes.
                Some(_) => site.patience + site.give_up,
                None => site.patience.saturating_mul(PATIENCES),
            },
            forwards: Semaphore::new(core.most_forwards),
            waits: Semaphore::new(site.most_requests),
            peers: Mutex::default(),
        }
    }
}

/// A proxy's part in a sketching core.
pub(crate) struct Core {
    owner: Owner,
    lookup: Lookup,
    books: Arc<Books>,
    seal: Arc<Seal>,
    line: Line,
    /// By the names of sites.
    lanes: BTreeMap<String, Lane>,
    /// How long a range may have no holder, before a group with an order.
    holderless: Duration,
    counts: Counts,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.owner.name())
    }
}

impl Ranges for Core {
    /// The check of now, where it names a lease whose grant was dealt with.
    fn held(&self, at: KeyHash) -> Option<LeaseNumber> {
        self.books.clean.read().held(at, self.owner.check_hash(at))
    }

    /// What it has leases of. Who has none yet counts as if it were alone: nobody else counts for what it puts to all origins then.
    fn share(&self) -> u32 {
        match (self.points() >> (u64::BITS - WHOLE.ilog2())) as u32 {
            0 => WHOLE,
            share => share,
        }
    }
}

/// How pages of a site are sketched in a core: alike by all proxies that call it so, with these origins, and otherwise than any
/// other site's.
pub(crate) fn sketching(site: &Site, secret: &Secret) -> Sketching {
    let mut origins: Vec<String> = site.origins.iter().map(ToString::to_string).collect();
    origins.sort_unstable();
    let quorum = format!("{} of {}, {} wrong", site.quorum, origins.len(), site.faults);
    let group = site.group.as_ref().map(Group::identity).unwrap_or_default();
    let parts = [&site.name].into_iter().chain(&origins).chain([&quorum]).map(String::as_bytes);
    let parts = parts.chain(group.iter().map(Vec::as_slice));
    let parts: Vec<&[u8]> = parts.collect();
    Sketching::derived(secret.bytes(), "pages", &parts)
}

/// Listens for other proxies.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(at).await.map_err(|error| {
        let what = format!("cannot listen on {at}: {error}");
        Error::new("sketch.cannot_listen", Class::Refused, what).hint("Choose another address with --core-listen.")
    })
}

fn line() -> Line {
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    let mut builder = Client::builder(TokioExecutor::new());
    builder.http1_max_headers(door::MOST_HEADERS).http1_max_buf_size(door::MOST_HEAD_BYTES);
    builder.pool_idle_timeout(IDLE).build(http)
}

/// Why another proxy gave no proper answer, and whether it was silent.
struct NoAnswer(Option<Silence>, String);

impl NoAnswer {
    fn late(what: &str) -> NoAnswer {
        NoAnswer(Some(Silence::Late), what.to_owned())
    }

    fn improper(what: impl fmt::Display) -> NoAnswer {
        NoAnswer(None, what.to_string())
    }
}

impl Core {
    /// Begins to join. Until it has, everything is put to all origins.
    pub(crate) fn join(
        config: &Config,
        core: &CoreConfig,
        listening: SocketAddr,
    ) -> Result<(Arc<Core>, Changes), Error> {
        let address = core.address.clone().unwrap_or_else(|| listening.to_string());
        if core.address.is_none() && listening.ip().is_unspecified() {
            let what = format!("other proxies cannot reach this one at {listening}");
            return Err(Error::new("sketch.no_core_address", Class::Invalid, what)
                .hint("Say by --core-address where they can, or listen on one address with --core-listen."));
        }
        let (seal, books) = (Arc::new(Seal::new(core.secret.bytes())), Arc::new(Books::default()));
        let mut options = core.owner.clone();
        if options.name.is_empty() {
            options.name.clone_from(&address);
        }
        options.address = address;
        let lookup = LookupOptions { clock: options.clock.clone(), ..LookupOptions::new(&options.namespace) };
        let carrier = Carrier { books: Arc::clone(&books), seal: Arc::clone(&seal), line: line() };
        let owner = Owner::start(Arc::clone(&core.transport), options.hand_over(carrier))?;
        let changes = owner.changes();
        let core = Core {
            owner,
            lookup: Lookup::start(Arc::clone(&core.transport), lookup)?,
            books,
            seal,
            line: line(),
            holderless: core.holderless,
            lanes: config.sites.iter().map(|site| (site.name.clone(), Lane::of(site, core))).collect(),
            counts: Counts::default(),
        };
        Ok((Arc::new(core), changes))
    }

    /// Deals with what placement tells: entries of a range that was lost go, those of one that was gained begin anew unless they
    /// came along. Ends with the owner.
    pub(crate) async fn follow(self: Arc<Self>, sites: Arc<Sites>, mut changes: Changes) {
        self.books.open(&sites);
        // Whatever was told before anybody listened.
        self.books.begin_anew(&sites, self.owner.held().into_iter().map(|held| held.leased));
        while let Some(change) = changes.next().await {
            if change.missed {
                self.books.begin_anew(&sites, self.owner.held().into_iter().map(|held| held.leased));
                continue;
            }
            change.revoked.iter().for_each(|leased| self.books.lost(&sites, *leased));
            change.granted.iter().for_each(|leased| self.books.gained(&sites, *leased));
        }
        self.books.begin_anew(&sites, []);
    }

    /// Tells when placement begins to refuse this proxy, for another reason, or no more.
    pub(crate) async fn tell_refusals(self: Arc<Self>) {
        let mut told = None;
        loop {
            let refusal = self.owner.refusal();
            let code = refusal.as_ref().map(|error| error.code.clone());
            if code != told {
                match refusal {
                    Some(error) => {
                        tracing::warn!(%error, hint = %error.hint, "placement refuses this proxy: it remembers nothing");
                    }
                    None => tracing::info!("placement does not refuse this proxy any more"),
                }
                told = code;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Other rules will hold: what has arrived under the old ones is not taken over.
    pub(crate) fn rules_change(&self) {
        self.books.none_is_wanted();
    }

    /// Hands everything over, and leaves; gives up after so long.
    pub(crate) async fn leave(&self, within: Duration) {
        if self.owner.state() == OwnerState::Joining {
            return self.owner.leave();
        }
        match tokio::time::timeout(within, self.owner.drain()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the core did not hear that this proxy leaves"),
            Err(_) => tracing::warn!("not everything was handed over in time"),
        }
        self.owner.leave();
    }

    /// How much of the ring it has leases of.
    fn points(&self) -> u128 {
        self.owner.held().iter().map(|held| held.leased.range.len()).sum()
    }

    pub(crate) fn stats(&self) -> CoreStats {
        let (held, points) = (self.owner.held(), self.points());
        let Counts { forwarded, served, aside, unanswered, foreign } = &self.counts;
        CoreStats {
            name: self.owner.name().to_owned(),
            refusal: self.owner.refusal().map(|error| error.to_string()),
            ranges: held.len() as u64,
            share: points as f64 / (u64::MAX as f64 + 1.0),
            forwarded: forwarded.load(Relaxed),
            served: served.load(Relaxed),
            aside: aside.load(Relaxed),
            unanswered: unanswered.load(Relaxed),
            foreign: foreign.load(Relaxed),
            carried: self.books.carried(),
        }
    }

    /// Asks whoever holds a request's range, or else all origins.
    pub(crate) async fn ask(&self, engine: &Arc<Engine>, question: Question, kind: Kind, client: u64) -> End {
        let Kind::Read { way: way @ (Way::Usual | Way::Replicated | Way::Personal), after } = kind else {
            // The table has no part in it.
            return engine.aside(question, kind, client).await;
        };
        let read = Read { way, after, client };
        if engine.is_ordered() {
            return self.insist(engine, &question, read).await;
        }
        match self.ask_holder(engine, &question, read).await {
            // That the holder has too much to do, or does not reach the origins, says nothing of this proxy; and origins have
            // no order that it could fall behind.
            Err(Refusal::Moved | Refusal::Busy | Refusal::Group(group::Refusal::Unreachable)) => {
                self.counts.aside.fetch_add(1, Relaxed);
                engine.aside(question, kind, client).await
            }
            end => end,
        }
    }

    /// Asks whoever holds a request's range.
    async fn ask_holder(&self, engine: &Arc<Engine>, question: &Question, read: Read) -> End {
        let (at, Read { way, after, client }) = (question.key.position(), read);
        let Some(lane) = self.lanes.get(&engine.site.name) else { return Err(Refusal::Moved) };
        if self.held(at).is_some() {
            engine.ask(Arc::clone(question), Kind::Read { way, after }, client).await
        } else if let Some(address) = self.elsewhere(lane, at) {
            self.forward(engine, lane, &address, question, read).await
        } else {
            Err(Refusal::Moved)
        }
    }

    /// Rule A: before a group with an order nobody but the holder answers. What was read past it now could be newer than what it
    /// remembers, and the next read, answered by it, would go back. So it is waited for until there is one.
    async fn insist(&self, engine: &Arc<Engine>, question: &Question, read: Read) -> End {
        let lane = self.lanes.get(&engine.site.name).ok_or(Refusal::Busy)?;
        let Ok(_waits) = lane.waits.try_acquire() else { return Err(Refusal::Busy) };
        let until = Instant::now() + engine.site.give_up.max(self.holderless);
        let mut pause = AGAIN;
        loop {
            match self.ask_holder(engine, question, read).await {
                Err(Refusal::Moved) if Instant::now() < until => {
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_AGAIN);
                }
                end => return end,
            }
        }
    }

    /// Who holds a place, as far as is known, unless it is away.
    fn elsewhere(&self, lane: &Lane, at: KeyHash) -> Option<String> {
        let other = |owner: &tidings_client::placement::TableOwner, _| {
            (owner.id != self.owner.name()).then(|| owner.address.clone())
        };
        let address = self.lookup.find(at, other).flatten()?;
        lane.peers.lock().may_ask(Instant::now(), &address).then_some(address)
    }

    /// Asks another proxy. That it gives no proper answer, or that too much is asked of others, is as if the range had moved.
    async fn forward(&self, engine: &Engine, lane: &Lane, address: &str, question: &Question, read: Read) -> End {
        let Ok(_under_way) = lane.forwards.try_acquire() else { return Err(Refusal::Moved) };
        match self.forwarded(engine, lane, address, question, read).await {
            Ok(end) => {
                if !matches!(end, Err(Refusal::Moved)) {
                    self.counts.forwarded.fetch_add(1, Relaxed);
                }
                end
            }
            Err(NoAnswer(silence, why)) => {
                self.counts.unanswered.fetch_add(1, Relaxed);
                let (now, mut peers) = (Instant::now(), lane.peers.lock());
                if let Some(how) = silence {
                    peers.silent(now, address, how);
                }
                if peers.may_tell(now) {
                    tracing::warn!(proxy = address, why, "another proxy of the core gave no answer");
                }
                Err(Refusal::Moved)
            }
        }
    }

    async fn forwarded(
        &self,
        engine: &Engine,
        lane: &Lane,
        address: &str,
        question: &Question,
        read: Read,
    ) -> Result<End, NoAnswer> {
        let (nonce, Read { way, after, client }) = (nonce().map_err(NoAnswer::improper)?, read);
        let asks = Asks { nonce, site: engine.identity, scheme: question.forwarded.scheme, way, client, after };
        let request = self.request(address, question, &asks).map_err(NoAnswer::improper)?;
        let asked = tokio::time::timeout(lane.patience, self.line.request(request)).await;
        let response = asked
            .map_err(|_| NoAnswer::late("it did not answer in time"))?
            .map_err(|error| NoAnswer(error.is_connect().then_some(Silence::Unreached), error.to_string()))?;
        let status = response.status();
        let header = response.headers().get(CORE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let end = match self.seal.says(&asks.nonce, header) {
            None => Err(NoAnswer::improper(format_args!(
                "it answered {status}, and not as a proxy of this core with this site, its origins and its rules"
            ))),
            Some(Says::Refused(why)) => Ok(Err(of_own_rule(&engine.site, why))),
            // What nobody looked at is this proxy's to serve, by its own rule.
            Some(Says::Page(How::Unverified, _)) if !engine.site.unverified_rather_than_none => Ok(Err(Refusal::Moved)),
            Some(Says::Page(how, mac)) => {
                let taken = tokio::time::timeout(engine.site.give_up, engine.upstream.taken(response, question)).await;
                let taken = taken.map_err(|_| NoAnswer::late("its page did not come in time"))?;
                let answer = taken.map_err(NoAnswer::improper)?;
                if !same(&mac, &self.seal.of_page(&asks.nonce, how, &answer.sketch)) {
                    return Err(NoAnswer::improper("its page is not the one that it vouches for"));
                }
                if matches!(answer.response.body, Held::Passing(_)) {
                    return Err(NoAnswer::improper("its page is too long to be held"));
                }
                Ok(Ok(Served { page: answer.response, how, sigma: None }))
            }
        };
        lane.peers.lock().answered(address);
        end
    }

    fn request(&self, address: &str, question: &Question, asks: &Asks) -> Result<Request<Full<Bytes>>, http::Error> {
        let what = &question.forwarded;
        let target: PathAndQuery = what.target.parse()?;
        let uri = Uri::builder().scheme("http").authority(address).path_and_query(target).build()?;
        let mut request = Request::builder().method(what.method.clone()).uri(uri);
        if let Some(headers) = request.headers_mut() {
            headers.insert(HOST, HeaderValue::from_str(&what.authority)?);
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CORE, HeaderValue::from_str(&self.seal.ask(asks, &question.key, &what.non_inputs))?);
            for (name, value) in what.inputs.iter().chain(&what.non_inputs) {
                headers.append(name.clone(), value.clone());
            }
        }
        request.body(Full::new(what.body.clone()))
    }
}

/// Where another proxy has no page that origins agree on, this one may serve what one of them says.
fn of_own_rule(site: &Site, why: Refusal) -> Refusal {
    match why {
        Refusal::Group(group::Refusal::Disagreement) if site.unverified_rather_than_none => Refusal::Moved,
        why => why,
    }
}

fn nonce() -> Result<Nonce, String> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| format!("the system gives no randomness: {error}"))?;
    Ok(nonce)
}
