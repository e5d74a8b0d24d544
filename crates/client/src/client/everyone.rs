//! Asking all servers at once: for when whoever answered last is silent.

use super::{Client, LONGEST_DIAL, MAX_REDIRECTED};
use crate::config::Address;
use crate::dial::dial;
use crate::link::Link;
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_wire::{Body, Part, error};
use tokio::time::{Instant, timeout_at};

impl Client {
    /// Asks every configured server in parallel, and wherever they redirect to. The first answer that is `enough` ends
    /// it; if none is, the first answer at all; if there is none, the error that says most.
    ///
    /// The request arrives several times, so it must be one that its receivers recognise.
    pub async fn call_everyone(
        &self,
        body: Body,
        within: Duration,
        enough: impl Fn(&Body) -> bool,
    ) -> Result<Body, Error> {
        let deadline = Instant::now() + within;
        let part = Part::of(&body);
        let mut asked: BTreeSet<Address> = self.inner.servers.iter().take(MAX_REDIRECTED).cloned().collect();
        let ask = |to: Address| {
            let body = body.clone();
            async move {
                let result = match self.link_to(&to, deadline).await {
                    Ok(link) => link.call(body, Some(deadline)).await,
                    Err(error) => Err(error),
                };
                (to, result)
            }
        };
        let mut answers: FuturesUnordered<_> = asked.iter().cloned().map(&ask).collect();
        let (mut second, mut worst): (Option<Body>, Option<Error>) = (None, None);
        while let Some((from, result)) = answers.next().await {
            match result {
                Ok(answer) if enough(&answer) => {
                    self.inner.redirected.lock().by_part.insert(part, from);
                    return Ok(answer);
                }
                Ok(answer) => second = second.or(Some(answer)),
                Err(error) => {
                    if let Some(to) = error.redirect.as_deref().and_then(|to| self.redirect(to))
                        && asked.len() < MAX_REDIRECTED
                        && asked.insert(to.clone())
                    {
                        answers.push(ask(to));
                    }
                    worst = Some(match worst {
                        Some(earlier) if says_more(&earlier) >= says_more(&error) => earlier,
                        _ => error,
                    });
                }
            }
        }
        second.ok_or_else(|| worst.unwrap_or_else(error::closed))
    }

    /// A connection to one server. Nobody's dialling waits for another's: one that hangs must not keep the others back.
    async fn link_to(&self, address: &Address, deadline: Instant) -> Result<Arc<Link>, Error> {
        if let Some(link) = self.live(address) {
            return Ok(link);
        }
        let deadline = deadline.min(Instant::now() + LONGEST_DIAL);
        let dialled = timeout_at(deadline, dial(address, &self.inner.config)).await;
        let link = dialled.map_err(|_| error::deadline_unsent())??;
        self.keep(address, &link);
        Ok(link)
    }
}

/// A refusal says more than that an answer was lost, that more than what whoever can answer waits for, and that more than
/// that another one can answer, or that nobody is there.
fn says_more(error: &Error) -> u8 {
    match error.class {
        Class::Unreachable if error.code.starts_with("client.") || error.code.starts_with("control.") => 0,
        Class::Unreachable if error.redirect.is_some() || error.code.ends_with(".not_leader") => 1,
        Class::Unreachable => 2,
        Class::OutcomeUnknown => 3,
        Class::Invalid | Class::NotFound | Class::Refused | Class::Failed => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_leader_waits_for_says_more_than_that_others_do_not_lead() {
        let error = |code, class| Error::new(code, class, "");
        let by_rank = [
            error("client.unreachable", Class::Unreachable),
            error("placement.not_leader", Class::Unreachable).redirect(Some("there:1".into())),
            error("placement.restored", Class::Unreachable),
            error("control.deadline", Class::OutcomeUnknown),
            error("placement.no_namespace", Class::NotFound),
        ];
        assert!(by_rank.iter().map(says_more).is_sorted_by(|a, b| a < b));
    }
}
