//! Replicas that lie on purpose, for tests; named by their sin.

use crate::frame::Word;
use crate::seat::Verdict;
use bytes::Bytes;
use tidings_base::Incarnation;
use tidings_base::bounded::BoundedMap;
use tidings_sketch::direct::{Digest, Remembered};
use tidings_sketch::sigma::Sigma;

/// What a replica does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sin {
    /// Answers every command with a result of its own.
    Forger,
    /// Executes, and answers nobody.
    Mute,
    /// Answers as it would have before the last change; and fast reads as it first did.
    Stale,
    /// Answers every client, and every question, with something else.
    Equivocator,
    /// Is honest until it has executed [`AWAKE`] commands, and then stale.
    Sleeper,
    /// Is honest for as long, and then mute.
    MuteSleeper,
    /// Is honest, but claims a greater height than it has when it is asked how it is.
    Boaster,
}

/// How many commands a sleeper executes before it sins: fewer than the tests ask.
pub const AWAKE: u64 = 6;

/// Requests of which a liar keeps what it might have said.
const MOST_KEPT: usize = 1_024;

/// By s(q): what a liar said when it first remembered something, and its last two answers that differ.
#[derive(Debug)]
pub(crate) struct Past {
    words: BoundedMap<Digest, Word>,
    answers: BoundedMap<Digest, [Verdict; 2]>,
}

impl Default for Past {
    fn default() -> Past {
        Past { words: BoundedMap::new(MOST_KEPT), answers: BoundedMap::new(MOST_KEPT) }
    }
}

impl Past {
    /// What was true of a request before this.
    pub(crate) fn before(&mut self, request: &[u8], now: Verdict) -> Verdict {
        let key = Digest::of_request(request);
        let [before, last] = self.answers.get(&key).cloned().unwrap_or([now.clone(), now.clone()]);
        let kept = if last == now { [before, last] } else { [last, now] };
        let before = kept[0].clone();
        self.answers.insert(key, kept);
        before
    }
}

impl Sin {
    /// By its name.
    pub fn parse(name: &str) -> Result<Sin, String> {
        match name {
            "forger" => Ok(Sin::Forger),
            "mute" => Ok(Sin::Mute),
            "stale" => Ok(Sin::Stale),
            "equivocator" => Ok(Sin::Equivocator),
            "sleeper" => Ok(Sin::Sleeper),
            "mute-sleeper" => Ok(Sin::MuteSleeper),
            "boaster" => Ok(Sin::Boaster),
            _ => Err(format!("`{name}` is no sin")),
        }
    }

    /// What it comes to after so many commands, if it does wrong by then.
    pub(crate) fn after(self, done: u64) -> Option<Sin> {
        match self {
            Sin::Sleeper | Sin::MuteSleeper if done < AWAKE => None,
            Sin::Sleeper => Some(Sin::Stale),
            Sin::MuteSleeper => Some(Sin::Mute),
            sin => Some(sin),
        }
    }

    /// What a liar says instead of a word to a fast read. The honest word has an answer if that is needed for lying.
    pub(crate) fn word(
        self,
        life: Incarnation,
        request: &[u8],
        execute: bool,
        honest: Word,
        past: &mut Past,
    ) -> Option<Word> {
        let key = Digest::of_request(request);
        let own = |response: Bytes| {
            // At the place where others may remember something, so that only the sketch tells the lie.
            let place = honest.remembered.map(|remembered| remembered.sigma).or(Sigma::new(life, 1, 0));
            let sketch = Digest::of_response(key, &response);
            let remembered = place.map(|sigma| Remembered { sketch, sigma });
            Word { remembered, response: execute.then_some(response), ..honest.clone() }
        };
        match self {
            Sin::Boaster | Sin::Sleeper | Sin::MuteSleeper => Some(honest),
            Sin::Mute => None,
            Sin::Forger => Some(own(Bytes::from_static(b"forged"))),
            Sin::Equivocator => Some(own(format!("for client {} and nonce {}", honest.client, honest.nonce).into())),
            Sin::Stale => {
                let nonce = honest.nonce;
                if past.words.get(&key).is_none() && honest.remembered.is_some() {
                    past.words.insert(key, honest.clone());
                }
                let first = past.words.get(&key).map_or(honest.clone(), |first| first.clone());
                let response = first.response.clone().filter(|_| execute);
                Some(Word { client: honest.client, nonce, response, ..first })
            }
        }
    }
}
