//! The client: calls that survive reconnects, redirects and restarts as far as that is safe.

mod connection;
mod everyone;

pub use connection::{Connection, ConnectionEvent};

use crate::backoff::Backoff;
use crate::config::{Address, ClientConfig};
use crate::dial::dial;
use crate::keeper::{Home, Keeper};
use crate::link::{Answers, Link};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::{Class, Error, Seeded};
use tidings_wire::{Body, Part, error};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// How often one call follows a redirect: two nodes that each take the other for the leader do so for a moment only.
const MAX_REDIRECTS: u32 = 4;

/// How many connections are kept to nodes that others redirected to.
const MAX_REDIRECTED: usize = 16;

/// Pauses between attempts of one call: a leader is elected within a second or so.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(500);

/// A server that is there answers sooner; one that was stopped must not hold up the way to another.
const LONGEST_DIAL: Duration = Duration::from_secs(2);

/// What may be done with a call again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: the caller has its own mind. Without a connection it fails at once.
    Never,
    /// Where somebody else can answer: redirects are followed, and a call waits for a connection. Everything else is
    /// for the caller to decide, who comes again by itself; where it failed is forgotten, so that the next attempt
    /// asks around.
    Redirected,
    /// What certainly did not happen: never sent, redirected, or answered `unreachable`. Until the deadline, or until every
    /// server has said that there is no majority.
    #[default]
    IfNotDone,
    /// Also what may have happened: doing it twice is as good as once.
    Idempotent,
}

/// One request with its wishes.
#[derive(Clone, Debug)]
pub struct Request {
    body: Body,
    deadline: Option<Duration>,
    retry: Retry,
}

impl Request {
    /// A request with the client's own deadline, retried if it certainly was not done.
    pub fn new(body: Body) -> Request {
        Request { body, deadline: None, retry: Retry::default() }
    }

    /// The same request with this much time, retries included.
    pub fn within(mut self, time: Duration) -> Request {
        self.deadline = Some(time);
        self
    }

    /// The same request, retried so.
    pub fn retry(mut self, retry: Retry) -> Request {
        self.retry = retry;
        self
    }

    /// The same request, which may be done twice.
    pub fn idempotent(self) -> Request {
        self.retry(Retry::Idempotent)
    }
}

impl From<Body> for Request {
    fn from(body: Body) -> Request {
        Request::new(body)
    }
}

/// A client of a cluster: one connection that is kept up, and more to where calls are redirected. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<ClientConfig>,
    home: watch::Receiver<Home>,
    redirected: Mutex<Redirected>,
    /// One dials at a time, so that many redirected calls make one connection.
    dialing: tokio::sync::Mutex<()>,
    seed: u64,
    forks: AtomicU64,
    servers: Vec<Address>,
    /// How often home did not answer.
    detours: AtomicU64,
    keeper: AbortHandle,
}

#[derive(Default)]
struct Redirected {
    links: BTreeMap<Address, Arc<Link>>,
    /// Where each part was last answered after a redirect.
    by_part: BTreeMap<Part, Address>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Home::Up(link) = &*self.home.borrow() {
            link.close(error::closed());
        }
        for link in self.redirected.get_mut().links.values() {
            link.close(error::closed());
        }
    }
}

impl Client {
    /// A client that connects in the background; calls wait for it.
    pub fn new(config: ClientConfig) -> Result<Client, Error> {
        let tls = config.tls.is_some();
        let servers: Vec<Address> = config.servers.iter().map(|s| Address::parse(s, tls)).collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err(Error::new("client.no_servers", Class::Invalid, "a client needs at least one server"));
        }
        let seed = match config.seed {
            Some(seed) => seed,
            None => getrandom::u64()
                .map_err(|e| Error::new("client.no_randomness", Class::Failed, format!("no random bytes: {e}")))?,
        };
        let config = Arc::new(config);
        let mut rng = Seeded::new(seed).fork("keeper");
        let (sender, home) = watch::channel(Home::Connecting(None));
        let all = servers.clone();
        let keeper = Keeper {
            config: config.clone(),
            first: rng.below(servers.len() as u64) as usize,
            servers,
            home: sender,
            backoff: Backoff::new(config.first_pause, config.longest_pause, rng),
        };
        let keeper = tokio::spawn(keeper.run()).abort_handle();
        let inner = Inner {
            config,
            home,
            redirected: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            seed,
            forks: AtomicU64::new(0),
            servers: all,
            detours: AtomicU64::new(seed >> 32),
            keeper,
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// A client that is connected. Fails if no server can be reached at the first attempt, or none wants it.
    pub async fn connect(config: ClientConfig) -> Result<Client, Error> {
        let client = Client::new(config)?;
        let mut home = client.inner.home.clone();
        let connected = home.wait_for(|home| !matches!(home, Home::Connecting(None))).await;
        let result = match connected.as_deref() {
            Ok(Home::Connecting(Some(error)) | Home::Refused(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(error::closed()),
        };
        drop(connected);
        result.map(|()| client)
    }

    /// How many servers it knows.
    pub(crate) fn servers(&self) -> usize {
        self.inner.servers.len()
    }

    /// Whether a connection is up at this moment.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.inner.home.borrow(), Home::Up(_))
    }

    /// Asks, and waits for the one answer.
    pub async fn call(&self, request: impl Into<Request>) -> Result<Body, Error> {
        let Request { body, deadline, retry } = request.into();
        let deadline = Instant::now() + deadline.unwrap_or(self.inner.config.deadline);
        let mut attempt = Attempt::new(Part::of(&body), deadline, retry);
        loop {
            let result = match self.link(&mut attempt).await {
                Ok(link) => link.call(body.clone(), Some(deadline)).await,
                Err(error) => return Err(error),
            };
            match result {
                Ok(answer) => {
                    self.remember(&attempt);
                    return Ok(answer);
                }
                Err(error) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// Asks, and reads an answer of many frames. The deadline holds for the first of them.
    pub async fn stream(&self, request: impl Into<Request>) -> Result<Answers, Error> {
        let Request { body, deadline, retry } = request.into();
        let deadline = Instant::now() + deadline.unwrap_or(self.inner.config.deadline);
        let mut attempt = Attempt::new(Part::of(&body), deadline, retry);
        loop {
            let link = self.link(&mut attempt).await?;
            match first_answer(&link, body.clone(), deadline).await {
                Ok(answers) => {
                    self.remember(&attempt);
                    return Ok(answers);
                }
                Err(error) => self.again(&mut attempt, error).await?,
            }
        }
    }

    /// A connection to any node, for an operation of this part that goes on for as long as it lasts.
    pub(crate) async fn any(&self, part: Part, within: Duration) -> Result<Arc<Link>, Error> {
        self.link(&mut Attempt::new(part, Instant::now() + within, Retry::Redirected)).await
    }

    /// Goes where such an operation was sent to, when it is begun again.
    pub(crate) fn follow(&self, part: Part, error: &Error) {
        if let Some(address) = error.redirect.as_deref().and_then(|to| self.redirect(to)) {
            self.inner.redirected.lock().by_part.insert(part, address);
        }
    }

    /// A connection for this attempt: where it was redirected to, where its part was found last, or any.
    async fn link(&self, attempt: &mut Attempt) -> Result<Arc<Link>, Error> {
        if attempt.target.is_none() {
            attempt.target = self.inner.redirected.lock().by_part.get(&attempt.part).cloned();
        }
        if let Some(address) = attempt.target.clone() {
            match self.redirected_link(&address, attempt.deadline).await {
                Ok(link) => return Ok(link),
                // It may be gone; any other node knows more.
                Err(error) => {
                    self.forget(&address);
                    attempt.last = Some(error);
                    attempt.target = None;
                }
            }
        }
        self.home_link(attempt).await
    }

    async fn home_link(&self, attempt: &Attempt) -> Result<Arc<Link>, Error> {
        if let Home::Up(link) = &*self.inner.home.borrow() {
            return Ok(link.clone());
        }
        let mut home = self.inner.home.clone();
        let up = home.wait_for(|home| match home {
            Home::Connecting(_) => attempt.retry == Retry::Never,
            _ => true,
        });
        let state = timeout_at(attempt.deadline, up).await.map(|state| state.map(|home| home.clone()));
        match state {
            Ok(Ok(Home::Up(link))) => Ok(link),
            Ok(Ok(Home::Refused(error) | Home::Connecting(Some(error)))) => Err(error),
            Ok(Ok(Home::Connecting(None))) => Err(error::unsent(&error::closed())),
            Ok(Err(_)) => Err(error::unsent(&error::closed())),
            Err(_) => Err(match &*self.inner.home.borrow() {
                Home::Connecting(Some(why)) => why.clone(),
                _ => attempt.last.clone().unwrap_or_else(error::deadline_unsent),
            }),
        }
    }

    async fn redirected_link(&self, address: &Address, deadline: Instant) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.live(address) {
            return Ok(link);
        }
        let deadline = deadline.min(Instant::now() + LONGEST_DIAL);
        let dialled = timeout_at(deadline, async {
            let _one = self.inner.dialing.lock().await;
            match self.live(address) {
                Some(link) => Ok(link),
                None => dial(address, &self.inner.config).await,
            }
        });
        let link = dialled.await.map_err(|_| error::deadline_unsent())??;
        self.keep(address, &link);
        Ok(link)
    }

    fn keep(&self, address: &Address, link: &Arc<Link>) {
        let mut redirected = self.inner.redirected.lock();
        redirected.links.retain(|_, link| link.closed().is_none());
        if redirected.links.len() >= MAX_REDIRECTED
            && let Some((_, oldest)) = redirected.links.pop_first()
        {
            oldest.close(error::closed());
        }
        redirected.links.insert(address.clone(), link.clone());
    }

    fn live(&self, address: &Address) -> Option<Arc<Link>> {
        let redirected = self.inner.redirected.lock();
        let link = redirected.links.get(address)?;
        (link.closed().is_none() && link.left().is_none()).then(|| link.clone())
    }

    fn remember(&self, attempt: &Attempt) {
        if attempt.redirects > 0
            && let Some(address) = &attempt.target
        {
            self.inner.redirected.lock().by_part.insert(attempt.part, address.clone());
        }
    }

    /// Nobody answered at home, which may have stopped without a word: the next attempt asks another server.
    fn detour(&self, part: Part) {
        if let Some(address) = self.another() {
            self.inner.redirected.lock().by_part.insert(part, address);
        }
    }

    /// The next of the servers in turn.
    fn another(&self) -> Option<Address> {
        let turn = self.inner.detours.fetch_add(1, Ordering::Relaxed) as usize;
        self.inner.servers.get(turn % self.inner.servers.len().max(1)).cloned()
    }

    fn forget(&self, address: &Address) {
        self.inner.redirected.lock().by_part.retain(|_, at| at != address);
    }

    /// Prepares the next attempt after a failed one, or says that there is none.
    async fn again(&self, attempt: &mut Attempt, error: Error) -> Result<(), Error> {
        if attempt.retry == Retry::Never {
            return Err(error);
        }
        if let Some(redirect) = &error.redirect {
            attempt.redirects += 1;
            if let Some(target) = self.redirect(redirect)
                && attempt.redirects <= MAX_REDIRECTS
            {
                attempt.target = Some(target);
                attempt.last = Some(error);
                return Ok(());
            }
        }
        if attempt.retry == Retry::Redirected {
            if let Class::Unreachable | Class::OutcomeUnknown = error.class {
                match &attempt.target {
                    Some(address) => self.forget(address),
                    None => self.detour(attempt.part),
                }
            }
            return Err(error);
        }
        let done = is_final(&error, attempt.retry);
        // One that sees no majority may be cut off from it; if all say so, nothing is gained by asking on.
        attempt.hopeless += usize::from(error.lacks_majority());
        if done || attempt.hopeless >= self.inner.servers.len() {
            return Err(error);
        }
        match attempt.target.take() {
            Some(address) => self.forget(&address),
            // A node that cannot say who can answer, such as one that is no member, may never: others are asked in turn.
            None if self.inner.servers.len() > 1 => attempt.target = self.another(),
            None => {}
        }
        // The series of redirects is over; the next one is counted anew.
        attempt.redirects = 0;
        let pause = attempt.backoff.get_or_insert_with(|| self.retries()).next();
        attempt.last = Some(error);
        match Instant::now() + pause < attempt.deadline {
            true => tokio::time::sleep(pause).await,
            false => return Err(attempt.last.take().unwrap_or_else(error::deadline_unsent)),
        }
        Ok(())
    }

    /// Where a redirect leads. The credential goes along, so it must not lead out of the encryption.
    fn redirect(&self, to: &str) -> Option<Address> {
        let home_tls = self.inner.config.tls.is_some();
        Address::parse(to, home_tls).ok().filter(|to| to.tls || !home_tls)
    }

    fn retries(&self) -> Backoff {
        let fork = self.inner.forks.fetch_add(1, Ordering::Relaxed);
        let rng = Seeded::new(self.inner.seed.wrapping_add(fork)).fork("retry");
        Backoff::new(FIRST_RETRY, LONGEST_RETRY, rng)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// How far a call has come.
struct Attempt {
    part: Part,
    deadline: Instant,
    retry: Retry,
    target: Option<Address>,
    redirects: u32,
    /// How often the answer was that there is no majority.
    hopeless: usize,
    backoff: Option<Backoff>,
    /// Why the last attempt failed.
    last: Option<Error>,
}

impl Attempt {
    fn new(part: Part, deadline: Instant, retry: Retry) -> Attempt {
        Attempt { part, deadline, retry, target: None, redirects: 0, hopeless: 0, backoff: None, last: None }
    }
}

/// Whether asking again would bring the same answer, or is not for this library to do.
fn is_final(error: &Error, retry: Retry) -> bool {
    match error.class {
        Class::Unreachable => false,
        // Nobody knows any more what became of it, or there is no time left.
        Class::OutcomeUnknown if error.code == "tables.outcome_unknown" || error.code == "control.deadline" => true,
        Class::OutcomeUnknown => retry != Retry::Idempotent,
        _ => true,
    }
}

/// Begins an operation and waits for its first frame, so that a redirect can still be followed.
async fn first_answer(link: &Arc<Link>, body: Body, deadline: Instant) -> Result<Answers, Error> {
    let first = async {
        let mut answers = link.stream(body, None).await?;
        answers.peek().await?;
        Ok(answers)
    };
    timeout_at(deadline, first).await.unwrap_or_else(|_| Err(error::deadline()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_will_ever_know_is_not_asked_again() {
        let forgotten = Error::new("tables.outcome_unknown", Class::OutcomeUnknown, "acknowledged and forgotten");
        let unanswered = Error::new("control.unanswered", Class::OutcomeUnknown, "nobody knows yet");
        assert!(is_final(&forgotten, Retry::Idempotent));
        assert!(!is_final(&unanswered, Retry::Idempotent) && is_final(&unanswered, Retry::IfNotDone));
        assert!(!is_final(&Error::new("x", Class::Unreachable, "nobody is there"), Retry::IfNotDone));
    }
}
