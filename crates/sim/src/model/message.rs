//! What replicas of the model say to each other, and its bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// One message between two replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for a vote; `pre` only asks whether one would be given.
    Vote {
        /// The term the vote is for.
        term: u64,
        /// Only a question: nothing is promised.
        pre: bool,
        /// Term and index of the candidate's last entry.
        last: (u64, u64),
    },
    /// The answer to `Vote`.
    VoteReply {
        /// As asked if granted, else the voter's own term.
        term: u64,
        /// As asked.
        pre: bool,
        /// Whether it is given.
        granted: bool,
    },
    /// Entries, or only a sign of life.
    Append {
        /// The leader's term.
        term: u64,
        /// Comes back with the reply, so that the leader knows what the reply is evidence of.
        round: u64,
        /// Term and index of the entry before the first of `entries`.
        prev: (u64, u64),
        /// How far the leader knows entries to be committed.
        commit: u64,
        /// Term and command of each.
        entries: Vec<(u64, Bytes)>,
    },
    /// The answer to `Append` and `Snapshot`.
    AppendReply {
        /// The follower's term.
        term: u64,
        /// As in the request.
        round: u64,
        /// Which disk the follower writes to: it grows when the disk is replaced.
        life: u64,
        /// The follower may not be counted: its disk is new and it has not caught up.
        learner: bool,
        /// Whether the logs fit together at `prev`.
        success: bool,
        /// What is durable there and equal to the leader's log; without success: where to try next.
        index: u64,
    },
    /// The whole state, for a follower that needs entries which are no longer there.
    Snapshot {
        /// The leader's term.
        term: u64,
        /// As in `Append`.
        round: u64,
        /// Term and index of the last entry in the state.
        last: (u64, u64),
        /// The state.
        picture: Bytes,
    },
    /// A replica with a new disk asks for the term, so as never to vote twice in one that it has forgotten.
    TermQuery {
        /// Comes back with the reply.
        nonce: u64,
        /// The new disk: what an earlier one acknowledged no longer counts.
        life: u64,
    },
    /// The answer to `TermQuery`.
    TermReply {
        /// As asked.
        nonce: u64,
        /// The answerer's term.
        term: u64,
        /// Term and index of the answerer's last entry.
        last: (u64, u64),
    },
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        match self {
            Message::Vote { term, pre, last } => numbers(&mut out, 1, &[*term, u64::from(*pre), last.0, last.1]),
            Message::VoteReply { term, pre, granted } => {
                numbers(&mut out, 2, &[*term, u64::from(*pre), u64::from(*granted)]);
            }
            Message::Append { term, round, prev, commit, entries } => {
                numbers(&mut out, 3, &[*term, *round, prev.0, prev.1, *commit, entries.len() as u64]);
                for (term, command) in entries {
                    out.put_u64_le(*term);
                    out.put_u64_le(command.len() as u64);
                    out.put_slice(command);
                }
            }
            Message::AppendReply { term, round, life, learner, success, index } => {
                numbers(&mut out, 4, &[*term, *round, *life, u64::from(*learner), u64::from(*success), *index]);
            }
            Message::Snapshot { term, round, last, picture } => {
                numbers(&mut out, 5, &[*term, *round, last.0, last.1]);
                out.put_slice(picture);
            }
            Message::TermQuery { nonce, life } => numbers(&mut out, 6, &[*nonce, *life]),
            Message::TermReply { nonce, term, last } => numbers(&mut out, 7, &[*nonce, *term, last.0, last.1]),
        }
        out.freeze()
    }

    /// Reads it back; `None` for bytes that are no message.
    pub fn decode(mut bytes: Bytes) -> Option<Message> {
        let kind = bytes.try_get_u8().ok()?;
        let mut number = || bytes.try_get_u64_le().ok();
        Some(match kind {
            1 => Message::Vote { term: number()?, pre: number()? != 0, last: (number()?, number()?) },
            2 => Message::VoteReply { term: number()?, pre: number()? != 0, granted: number()? != 0 },
            3 => {
                let (term, round, prev, commit) = (number()?, number()?, (number()?, number()?), number()?);
                let count = number()?;
                let mut entries = Vec::new();
                for _ in 0..count {
                    let (term, len) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
                    let len = usize::try_from(len).ok().filter(|len| *len <= bytes.len())?;
                    entries.push((term, bytes.split_to(len)));
                }
                Message::Append { term, round, prev, commit, entries }
            }
            4 => Message::AppendReply {
                term: number()?,
                round: number()?,
                life: number()?,
                learner: number()? != 0,
                success: number()? != 0,
                index: number()?,
            },
            5 => {
                let (term, round, last) = (number()?, number()?, (number()?, number()?));
                Message::Snapshot { term, round, last, picture: bytes }
            }
            6 => Message::TermQuery { nonce: number()?, life: number()? },
            7 => Message::TermReply { nonce: number()?, term: number()?, last: (number()?, number()?) },
            _ => return None,
        })
    }
}

fn numbers(out: &mut BytesMut, kind: u8, numbers: &[u64]) {
    out.put_u8(kind);
    numbers.iter().for_each(|number| out.put_u64_le(*number));
}
