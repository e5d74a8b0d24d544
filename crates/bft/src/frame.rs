//! What clients and replicas say to one another: frames with their length before them.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::command::{LONGEST_REQUEST, OVERHEAD, Signed};
use crate::keys::{MacKey, Purpose};
use bytes::{BufMut, Bytes, BytesMut};
use tidings_base::Incarnation;
use tidings_sketch::direct::{Digest, Remembered};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketch;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest result of a command.
pub const LONGEST_RESULT: usize = 1 << 20;
/// The longest frame that a client sends.
pub const LONGEST_QUESTION: usize = LONGEST_REQUEST + OVERHEAD + 8;
/// The longest frame that a replica sends.
pub const LONGEST_ANSWER: usize = LONGEST_RESULT + 256;

/// Frames that wait are written together, up to about so many bytes: a system call for each costs more than the frame.
pub(crate) const TOGETHER: usize = 64 << 10;

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Order this, or, for the purpose of reading, answer it as things stand.
    Ask {
        /// [`Purpose::Order`] or [`Purpose::Read`].
        purpose: Purpose,
        /// Whether the result is wanted, or its hash is enough (rule F).
        whole: bool,
        /// The command.
        signed: Signed,
    },
    /// What do you remember of this (D-Prophecy)?
    Fast {
        /// Whether to execute it too.
        execute: bool,
        /// The read, signed for [`Purpose::Fast`].
        signed: Signed,
    },
    /// How are you?
    Status {
        /// Who asks: the answer is MACed for it.
        client: u64,
        /// Comes back in the answer.
        nonce: u64,
    },
}

/// A reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The group's number.
    pub group: u64,
    /// The client it is for.
    pub client: u64,
    /// The nonce of its command.
    pub nonce: u64,
    /// Where the command stands in the order; a read stands nowhere.
    pub sigma: Option<Sigma>,
    /// The result's hash, by [`Signed::sketch`].
    pub result: Sketch,
    /// The result, if it was wanted.
    pub whole: Option<Bytes>,
}

/// What a replica says to a fast read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The group's number.
    pub group: u64,
    /// The client it is for.
    pub client: u64,
    /// The nonce of its question.
    pub nonce: u64,
    /// What it remembers, if it does.
    pub remembered: Option<Remembered>,
    /// From the one that executes: the answer.
    pub response: Option<Bytes>,
}

/// How a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The group's number.
    pub group: u64,
    /// The nonce of the question.
    pub nonce: u64,
    /// The height up to which it has executed.
    pub height: u64,
    /// The height of its latest snapshot; zero if there is none.
    pub snapshot: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// Whether it has no part in batches of commands any more (`bft run --closing`).
    pub closed: bool,
    /// Whether it votes; one that lost its journal does not (rule G).
    pub votes: bool,
    /// How many commands wait there.
    pub waiting: u64,
}

/// What a replica says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reply, with its MAC verified.
    Reply(Reply),
    /// A word, with its MAC verified.
    Word(Word),
    /// How it is.
    Status(Status),
}

impl Question {
    /// Who asks, as it says.
    pub fn client(&self) -> u64 {
        match self {
            Question::Ask { signed, .. } | Question::Fast { signed, .. } => signed.command.client,
            Question::Status { client, .. } => *client,
        }
    }

    /// Whether the service is asked at once, and may take long.
    pub fn may_take_long(&self) -> bool {
        matches!(self, Question::Ask { purpose: Purpose::Read, .. } | Question::Fast { execute: true, .. })
    }

    /// The frame, without its length.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Question::Ask { purpose, whole, signed } => {
                out.put_u8(*purpose as u8);
                out.put_u8(u8::from(*whole));
                signed.put(&mut out);
            }
            Question::Fast { execute, signed } => {
                out.put_u8(Purpose::Fast as u8);
                out.put_u8(u8::from(*execute));
                signed.put(&mut out);
            }
            Question::Status { client, nonce } => {
                out.put_u8(STATUS);
                out.put_u64(*client);
                out.put_u64(*nonce);
            }
        }
        out.freeze()
    }

    /// Reads a frame.
    pub fn read(bytes: Bytes) -> Result<Question, Malformed> {
        let mut reader = Reader::new(bytes);
        let question = match reader.byte()? {
            STATUS => Question::Status { client: reader.number()?, nonce: reader.number()? },
            FAST => Question::Fast { execute: read_bool(&mut reader)?, signed: Signed::read(&mut reader)? },
            kind => {
                let purpose = [Purpose::Order, Purpose::Read].into_iter().find(|purpose| *purpose as u8 == kind);
                let purpose = purpose.ok_or(Malformed::Unknown)?;
                let whole = read_bool(&mut reader)?;
                Question::Ask { purpose, whole, signed: Signed::read(&mut reader)? }
            }
        };
        reader.end()?;
        Ok(question)
    }
}

const FAST: u8 = Purpose::Fast as u8;
const REPLY: u8 = 11;
const STATUS: u8 = 12;
const WORD: u8 = 13;

impl Answer {
    /// The frame, without its length, with its MAC. The result itself is not under the MAC: its hash is. Nor is the response of a
    /// word, whose sketch must be what 2f + 1 replicas remember; but whether there is one is.
    pub fn encoded(&self, key: &MacKey) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Answer::Reply(reply) => {
                out.put_u8(REPLY);
                [reply.group, reply.client, reply.nonce].into_iter().for_each(|number| out.put_u64(number));
                out.put_u8(u8::from(reply.sigma.is_some()));
                if let Some(sigma) = reply.sigma {
                    put_sigma(&mut out, sigma);
                }
                out.put_slice(&reply.result.0);
            }
            Answer::Word(word) => put_word(&mut out, word),
            Answer::Status(status) => {
                out.put_u8(STATUS);
                let numbers = [status.group, status.nonce, status.height, status.snapshot, status.waiting];
                numbers.into_iter().for_each(|number| out.put_u64(number));
                out.put_slice(&status.hash);
                [status.votes, status.closed].into_iter().for_each(|whether| out.put_u8(u8::from(whether)));
            }
        }
        let tag = key.tag(&out);
        out.put_slice(&tag);
        if let Answer::Reply(Reply { whole: Some(bytes), .. }) | Answer::Word(Word { response: Some(bytes), .. }) = self
        {
            put_bytes(&mut out, bytes);
        }
        out.freeze()
    }

    /// Reads a frame and verifies its MAC; `None` if that is wrong.
    pub fn read(bytes: Bytes, key: &MacKey) -> Result<Option<Answer>, Malformed> {
        let mut reader = Reader::new(bytes.clone());
        let mut answer = match reader.byte()? {
            REPLY => {
                let (group, client, nonce) = (reader.number()?, reader.number()?, reader.number()?);
                let sigma = if read_bool(&mut reader)? { Some(read_sigma(&mut reader)?) } else { None };
                Answer::Reply(Reply { group, client, nonce, sigma, result: Sketch(reader.array()?), whole: None })
            }
            WORD => Answer::Word(read_word(&mut reader)?),
            STATUS => {
                let (group, nonce) = (reader.number()?, reader.number()?);
                let (height, snapshot, waiting) = (reader.number()?, reader.number()?, reader.number()?);
                let hash = reader.array()?;
                let (votes, closed) = (read_bool(&mut reader)?, read_bool(&mut reader)?);
                Answer::Status(Status { group, nonce, height, snapshot, hash, closed, votes, waiting })
            }
            _ => return Err(Malformed::Unknown),
        };
        let covered = bytes.len() - reader.left();
        if !key.verify(&bytes[..covered], reader.array()?) {
            return Ok(None);
        }
        match &mut answer {
            Answer::Reply(reply) if reader.left() > 0 => reply.whole = Some(reader.bytes(LONGEST_RESULT)?),
            Answer::Word(Word { response: Some(response), .. }) => *response = reader.bytes(LONGEST_RESULT)?,
            _ => {}
        }
        reader.end()?;
        Ok(Some(answer))
    }
}

/// Writes what of a word is under its MAC.
fn put_word(out: &mut BytesMut, word: &Word) {
    out.put_u8(WORD);
    [word.group, word.client, word.nonce].into_iter().for_each(|number| out.put_u64(number));
    out.put_u8(u8::from(word.remembered.is_some()));
    if let Some(remembered) = word.remembered {
        out.put_slice(&remembered.sketch.0);
        put_sigma(out, remembered.sigma);
    }
    out.put_u8(u8::from(word.response.is_some()));
}

/// Reads that; a response is empty until it is read too.
fn read_word(reader: &mut Reader) -> Result<Word, Malformed> {
    let (group, client, nonce) = (reader.number()?, reader.number()?, reader.number()?);
    let remembered = match read_bool(reader)? {
        true => Some(Remembered { sketch: Digest(reader.array()?), sigma: read_sigma(reader)? }),
        false => None,
    };
    let response = read_bool(reader)?.then(Bytes::new);
    Ok(Word { group, client, nonce, remembered, response })
}

/// Writes a place in the order.
pub(crate) fn put_sigma(out: &mut BytesMut, sigma: Sigma) {
    out.put_u64(sigma.incarnation().0);
    out.put_u64(sigma.height());
    out.put_u32(sigma.index());
}

/// Reads a place in the order.
pub(crate) fn read_sigma(reader: &mut Reader) -> Result<Sigma, Malformed> {
    let (life, height, index) = (Incarnation(reader.number()?), reader.number()?, reader.number32()?);
    Sigma::new(life, height, index).ok_or(Malformed::Long)
}

fn read_bool(reader: &mut Reader) -> Result<bool, Malformed> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Unknown),
    }
}

/// A frame with its length before it.
pub(crate) fn framed(frame: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(4 + frame.len());
    put_bytes(&mut out, frame);
    out.freeze()
}

/// The next frame of a stream; `None` when it has ended or says something too long.
pub(crate) async fn next_frame(stream: &mut (impl AsyncRead + Unpin), longest: usize) -> Option<Bytes> {
    let length = stream.read_u32().await.ok()? as usize;
    if length > longest {
        return None;
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await.ok()?;
    Some(Bytes::from(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Signature;
    use tidings_sketch::replica::Command;

    fn reply(sigma: Option<Sigma>, whole: Option<Bytes>) -> Answer {
        Answer::Reply(Reply { group: 1, client: 2, nonce: 3, sigma, result: Sketch([4; 16]), whole })
    }

    fn word(sigma: Option<Sigma>, response: Option<&'static [u8]>) -> Answer {
        let remembered = sigma.map(|sigma| Remembered { sketch: Digest([4; 32]), sigma });
        Answer::Word(Word { group: 1, client: 2, nonce: 3, remembered, response: response.map(Bytes::from_static) })
    }

    #[test]
    fn questions_and_answers_come_back() {
        let command = Command { client: 1, nonce: 2, request: Bytes::from_static(b"get") };
        let signed = Signed { command, signature: Signature([3; 64]) };
        for question in [
            Question::Ask { purpose: Purpose::Order, whole: true, signed: signed.clone() },
            Question::Ask { purpose: Purpose::Read, whole: false, signed: signed.clone() },
            Question::Fast { execute: true, signed: signed.clone() },
            Question::Fast { execute: false, signed },
            Question::Status { client: 7, nonce: 8 },
        ] {
            assert_eq!(Question::read(question.encoded()), Ok(question));
        }
        let (key, sigma) = (MacKey([5; 32]), Sigma::new(Incarnation(1), 9, 3));
        let (hash, closed) = ([6; 32], false);
        let status = Status { group: 1, nonce: 2, height: 3, snapshot: 4, hash, closed, votes: true, waiting: 5 };
        for answer in [
            reply(sigma, None),
            reply(None, Some(Bytes::from_static(b"value"))),
            word(sigma, None),
            word(sigma, Some(b"value")),
            word(None, Some(b"")),
            word(None, None),
            Answer::Status(status),
        ] {
            assert_eq!(Answer::read(answer.encoded(&key), &key), Ok(Some(answer.clone())));
            assert_eq!(Answer::read(answer.encoded(&key), &MacKey([6; 32])), Ok(None), "under another key");
        }
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let key = MacKey([5; 32]);
        let sigma = Sigma::new(Incarnation(1), 9, 3);
        for answer in [reply(sigma, None), word(sigma, None), word(None, None), word(sigma, Some(b""))] {
            let frame = answer.encoded(&key);
            for at in 0..frame.len() {
                let mut changed = frame.to_vec();
                changed[at] ^= 1;
                assert!(!matches!(Answer::read(Bytes::from(changed), &key), Ok(Some(_))), "byte {at} of {answer:?}");
            }
        }
    }

    #[test]
    fn a_response_can_be_neither_taken_from_a_word_nor_added() {
        let (key, sigma) = (MacKey([5; 32]), Sigma::new(Incarnation(1), 9, 3));
        let (with, without) = (word(sigma, Some(b"value")).encoded(&key), word(sigma, None).encoded(&key));
        let response = with.slice(without.len()..);
        assert_eq!(Answer::read(with.slice(..without.len()), &key), Err(Malformed::Short));
        let added = Bytes::from([without.as_ref(), &response].concat());
        assert_eq!(Answer::read(added, &key), Err(Malformed::Rest));
        // Nor if the frame says that it was so from the beginning.
        let flag = without.len() - 33;
        for (frame, response) in [(&without, response.as_ref()), (&with.slice(..without.len()), b"")] {
            let mut changed = [frame.as_ref(), response].concat();
            changed[flag] ^= 1;
            assert_eq!(Answer::read(Bytes::from(changed), &key), Ok(None));
        }
    }
}
