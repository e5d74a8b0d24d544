//! Which other proxies answer. Not everybody waits for one that does not.

use std::time::{Duration, Instant};
use tidings_base::bounded::BoundedMap;

/// How long a proxy that is away is left alone between two tries.
const AWAY: Duration = Duration::from_secs(1);
/// So many times in a row without an answer in time, and a proxy is away. One may be a slow page.
const TRIES: u32 = 3;
/// The most proxies of which it is known that they were silent; whoever is forgotten is asked like others.
const MOST_KNOWN: usize = 1_024;

/// How a proxy gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// No connection to it could be made.
    Unreached,
    /// It did not answer in time.
    Late,
}

#[derive(Debug)]
struct Peer {
    /// Times without an answer, in a row.
    silences: u32,
    /// Until when it is not asked, if it is away.
    until: Instant,
}

/// Proxies that were silent when they were last asked.
#[derive(Debug)]
pub(super) struct Peers {
    silent: BoundedMap<String, Peer>,
    told: Option<Instant>,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers { silent: BoundedMap::new(MOST_KNOWN), told: None }
    }
}

impl Peers {
    /// Whether a proxy may be asked. One that is away is asked by one request a second, which finds out whether it is back.
    pub(super) fn may_ask(&mut self, now: Instant, address: &str) -> bool {
        let Some(peer) = self.silent.get(address).filter(|peer| peer.silences >= TRIES) else { return true };
        let may = now >= peer.until;
        if may {
            peer.until = now + AWAY;
        }
        may
    }

    /// It said something, whatever it was.
    pub(super) fn answered(&mut self, address: &str) {
        self.silent.remove(address);
    }

    pub(super) fn silent(&mut self, now: Instant, address: &str, how: Silence) {
        let before = self.silent.get(address).map_or(0, |peer| peer.silences);
        let silences = match how {
            Silence::Unreached => TRIES,
            Silence::Late => before.saturating_add(1),
        };
        self.silent.insert(address.to_owned(), Peer { silences, until: now + AWAY });
    }

    /// Whether a failure is worth a line in the log: one a second is.
    pub(super) fn may_tell(&mut self, now: Instant) -> bool {
        let may = self.told.is_none_or(|told| now >= told + AWAY);
        if may {
            self.told = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_in_a_row_or_none_at_all_make_a_proxy_away() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        let after = |tenths: u32| start + AWAY * tenths / 10;
        for _ in 0..TRIES - 1 {
            peers.silent(start, "slow", Silence::Late);
            assert!(peers.may_ask(start, "slow"));
        }
        peers.answered("slow");
        peers.silent(start, "slow", Silence::Late);
        assert!(peers.may_ask(start, "slow"), "it has answered meanwhile");
        (1..TRIES).for_each(|_| peers.silent(start, "slow", Silence::Late));
        peers.silent(start, "gone", Silence::Unreached);
        for away in ["slow", "gone"] {
            assert!(!peers.may_ask(after(9), away), "{away}");
            assert!(peers.may_ask(after(10), away) && !peers.may_ask(after(11), away), "one finds out about {away}");
            peers.answered(away);
            assert!(peers.may_ask(after(11), away), "{away}");
        }
        assert!(peers.may_ask(start, "another"));
    }

    #[test]
    fn what_is_known_is_bounded_and_told_once_a_second() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        for number in 0..3 * MOST_KNOWN {
            peers.silent(now, &format!("{number}:1"), Silence::Unreached);
        }
        assert_eq!(peers.silent.len(), MOST_KNOWN);
        let times = [now, now, now + AWAY / 2, now + AWAY, now + AWAY];
        assert_eq!(times.map(|at| peers.may_tell(at)), [true, false, false, true, false]);
    }
}
