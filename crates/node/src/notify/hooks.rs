//! Hooks: who is asked whether a client may register an object, and whether it may still be told of it.
//!
//! ```text
//!   registrar ─ Authorize ─▶ claims of the channel's token ─▶ list of access ─▶ call-out ─▶ Authorized: yes, no, unsure
//! ```
//! All that are configured for an application must say yes. One definite no is a no: the registration goes, and the client
//! hears that it is refused for good. Whatever is not known (a time-out, a file that cannot be read) defers: a
//! registration fails for now, a notification is kept and asked about again, ever less often. Each question is a task of
//! its own, so one that hangs holds up nobody else.

mod acl;
mod callout;
mod pattern;
mod way;

use super::hub::Hub;
use crate::config::{Time, bad};
use crate::metrics;
use acl::AclFile;
use bytes::Bytes;
use callout::CallOut;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_base::bounded::BoundedMap;
use tidings_notify::names::{Channel, ClientKey};
use tidings_notify::registrar::Verdict;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Questions that wait for answers; whatever comes beyond is deferred at once.
const MAX_WAITING: usize = 4_096;
/// Channels of other nodes whose claims are remembered.
const MAX_CLAIMS: usize = 16_384;
/// The longest deadline of a call-out: as long as it is waited for, a client's other changes wait, too.
const LONGEST_DEADLINE: Duration = Duration::from_secs(10);

/// Who is asked what the clients of an application may register and hear. All nodes must be told the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hook {
    /// Whether users may hear only of what the claim `notify` of their tokens lists, a list of patterns such as
    /// `["inbox/alice/*"]`. Applications and operators are not limited by it. Off.
    pub claims: bool,
    /// A file that says who may hear of what; read again when it changes. None by default.
    pub acl: Option<PathBuf>,
    /// Where to ask by `POST`, as `http://host:port/path` or `https://host/path`. Nowhere by default.
    pub url: Option<String>,
    /// The certificate authority to trust where `url` is `https`, as a PEM file. None by default: the machine's own are
    /// not looked at.
    pub ca: Option<PathBuf>,
    /// How long the answer may take; without one the question is deferred. 1 s.
    pub deadline: Time,
    /// How long an answer is remembered. 30 s: so long a right that was taken away may still be used.
    pub remember: Time,
}

impl Default for Hook {
    fn default() -> Hook {
        Hook { claims: false, acl: None, url: None, ca: None, deadline: Time::seconds(1), remember: Time::seconds(30) }
    }
}

impl Hook {
    pub(crate) fn check(&self, app: &str) -> Result<(), Error> {
        if !self.claims && self.acl.is_none() && self.url.is_none() {
            return Err(bad(format!("`notify.hooks.{app}` asks nobody"))
                .hint("Set `claims = true`, `acl` or `url`, or leave the table out."));
        }
        if self.deadline.0.is_zero() || self.deadline.0 > LONGEST_DEADLINE {
            return Err(bad(format!("`notify.hooks.{app}.deadline` is {}", self.deadline)).hint("Use up to 10s."));
        }
        let url = self.url.as_deref().map(|url| callout::parse(app, url)).transpose()?;
        if url.is_some_and(|url| url.scheme_str() == Some("https")) && self.ca.is_none() {
            return Err(bad(format!("`notify.hooks.{app}.url` is `https`, and nobody is trusted"))
                .hint("Name the certificate authority, as a PEM file, in `ca`."));
        }
        Ok(())
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) client: ClientKey,
    pub(super) channel: Channel,
    pub(super) object: Bytes,
    pub(super) sending: bool,
}

/// What a channel's token says: patterns, or that it is not limited.
pub(super) type Claims = Option<Arc<[String]>>;

/// The hooks of all applications.
pub(super) struct Judges {
    by_app: BTreeMap<String, Judge>,
    /// What tokens of channels elsewhere say. A channel has one for all its life.
    claims: Mutex<BoundedMap<Channel, Claims>>,
}

/// The hooks of one application.
struct Judge {
    claims: bool,
    acl: Option<Arc<AclFile>>,
    callout: Option<CallOut>,
    /// Of its own: those who wait for one application are in no other's way.
    room: Arc<Semaphore>,
}

impl Judges {
    /// Reads what hooks need; a file that cannot be read is told now.
    pub(super) fn new(hooks: &BTreeMap<String, Hook>) -> Result<Judges, Error> {
        let judge = |(app, hook): (&String, &Hook)| {
            let acl = hook.acl.clone().map(AclFile::open).transpose()?.map(Arc::new);
            let callout = hook.url.as_deref().map(|url| CallOut::new(app, url, hook)).transpose()?;
            let room = Arc::new(Semaphore::new(MAX_WAITING));
            Ok((app.clone(), Judge { claims: hook.claims, acl, callout, room }))
        };
        let by_app = hooks.iter().map(judge).collect::<Result<_, Error>>()?;
        let claims = Mutex::new(BoundedMap::new(MAX_CLAIMS));
        Ok(Judges { by_app, claims })
    }

    /// Who is asked for an application, and a place to wait for the answer if there is one; `None` if nobody is asked.
    fn enter(&self, app: &str) -> Option<(&Judge, Option<OwnedSemaphorePermit>)> {
        self.by_app.get(app).map(|judge| (judge, judge.room.clone().try_acquire_owned().ok()))
    }

    fn lists(&self) -> impl Iterator<Item = Arc<AclFile>> {
        self.by_app.values().filter_map(|judge| judge.acl.clone())
    }
}

/// Follows changes of the files that hooks read.
pub(super) async fn follow(hub: Arc<Hub>) {
    let lists: Vec<Arc<AclFile>> = hub.judges.lists().collect();
    if !lists.is_empty() {
        acl::follow(&lists).await;
    }
}

impl Hub {
    /// Asks everybody who is to be asked.
    pub(super) async fn judge(&self, question: Question) -> Verdict {
        let Some((judge, room)) = self.judges.enter(question.client.app()) else { return Verdict::Yes };
        let Some(_room) = room else {
            metrics::notify_judged("none", "deferred");
            return Verdict::Unsure;
        };
        let principal = question.client.to_message().user;
        let mut unsure = false;
        let mut settle = |hook, verdict| {
            metrics::notify_judged(hook, name(verdict));
            unsure |= verdict == Verdict::Unsure;
            verdict == Verdict::No
        };
        if judge.claims && settle("claims", self.claimed(&question).await) {
            return Verdict::No;
        }
        if let Some(acl) = &judge.acl
            && settle("acl", acl.judge(&principal, &question.object))
        {
            return Verdict::No;
        }
        if let Some(callout) = &judge.callout {
            let now = self.clock.now().mono;
            if settle("url", callout.judge(now, &principal, &question).await) {
                return Verdict::No;
            }
        }
        if unsure { Verdict::Unsure } else { Verdict::Yes }
    }

    /// Whether the token of whoever has the channel lists the object.
    async fn claimed(&self, question: &Question) -> Verdict {
        match self.claims_of(question.channel).await {
            Some(None) => Verdict::Yes,
            Some(Some(patterns)) => {
                let listed = patterns.iter().any(|pattern| pattern::matches(pattern.as_bytes(), &question.object));
                if listed { Verdict::Yes } else { Verdict::No }
            }
            // The client is gone, or its node does not answer.
            None => Verdict::Unsure,
        }
    }

    async fn claims_of(&self, channel: Channel) -> Option<Claims> {
        if channel.node == self.told.node {
            return self.channels.claims(channel);
        }
        if let Some(known) = self.judges.claims.lock().get(&channel) {
            return Some(known.clone());
        }
        let claims = self.ask_claims(channel).await?;
        self.judges.claims.lock().insert(channel, claims.clone());
        Some(claims)
    }
}

fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Yes => "yes",
        Verdict::No => "no",
        Verdict::Unsure => "deferred",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_one_application_are_in_no_others_way() {
        let hook = || Hook { claims: true, ..Hook::default() };
        let judges = Judges::new(&[("shop".into(), hook()), ("bank".into(), hook())].into()).unwrap();
        let place = |app| judges.enter(app).unwrap().1;
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| place("shop").expect("a place")).collect();
        assert!(place("shop").is_none() && place("bank").is_some());
        drop(waiting);
        assert!(place("shop").is_some());
        assert!(judges.enter("blog").is_none(), "nobody is asked");
    }
}
