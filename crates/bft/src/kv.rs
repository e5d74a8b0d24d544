//! The key-value service: the smallest one that is worth replicating.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::frame::LONGEST_RESULT;
use crate::seat::Durable;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use tidings_sketch::direct::Reads;
use tidings_sketch::replica::Service;
use tidings_sketch::sigma::Sigma;

/// The longest key.
pub const LONGEST_KEY: usize = 1_024;
/// The most bytes of keys and values altogether: the state is held in memory and copied into snapshots.
pub const MOST_BYTES: usize = 64 << 20;

/// What is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The value of a key.
    Get(Bytes),
    /// Gives a key a value.
    Put(Bytes, Bytes),
    /// Takes a key away.
    Delete(Bytes),
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The value, if there is one.
    Value(Option<Bytes>),
    /// Done; whether there was a value before.
    Done(bool),
    /// The request cannot be understood, or there is no room.
    Refused(Refusal),
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request cannot be understood.
    #[error("the request is none of a key-value service")]
    Malformed = 1,
    /// There is no room.
    #[error("the service is full; delete something first")]
    Full = 2,
}

impl Request {
    /// As bytes.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        let (kind, key) = match self {
            Request::Get(key) => (1, key),
            Request::Put(key, _) => (2, key),
            Request::Delete(key) => (3, key),
        };
        out.put_u8(kind);
        put_bytes(&mut out, key);
        if let Request::Put(_, value) = self {
            put_bytes(&mut out, value);
        }
        out.freeze()
    }

    fn read(bytes: &Bytes) -> Result<Request, Malformed> {
        let mut reader = Reader::new(bytes.clone());
        let (kind, key) = (reader.byte()?, reader.bytes(LONGEST_KEY)?);
        let request = match kind {
            1 => Request::Get(key),
            2 => Request::Put(key, reader.bytes(bytes.len())?),
            3 => Request::Delete(key),
            _ => return Err(Malformed::Unknown),
        };
        reader.end()?;
        Ok(request)
    }
}

impl Response {
    fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Response::Value(None) => out.put_u8(0),
            Response::Value(Some(value)) => {
                out.put_u8(1);
                put_bytes(&mut out, value);
            }
            Response::Done(before) => out.put_slice(&[2, u8::from(*before)]),
            Response::Refused(refusal) => out.put_slice(&[3, *refusal as u8]),
        }
        out.freeze()
    }

    /// Reads what the group answered.
    pub fn read(bytes: Bytes) -> Result<Response, Malformed> {
        let mut reader = Reader::new(bytes);
        let response = match reader.byte()? {
            0 => Response::Value(None),
            1 => Response::Value(Some(reader.bytes(LONGEST_RESULT)?)),
            2 => Response::Done(reader.byte()? == 1),
            3 if reader.byte()? == Refusal::Full as u8 => Response::Refused(Refusal::Full),
            3 => Response::Refused(Refusal::Malformed),
            _ => return Err(Malformed::Unknown),
        };
        reader.end()?;
        Ok(response)
    }
}

/// Keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    rows: BTreeMap<Bytes, Bytes>,
    bytes: usize,
}

impl KeyValue {
    fn put(&mut self, key: Bytes, value: Bytes) -> Response {
        let before = self.rows.get(&key).map_or(0, |old| key.len() + old.len());
        let after = self.bytes - before + key.len() + value.len();
        if after > MOST_BYTES {
            return Response::Refused(Refusal::Full);
        }
        self.bytes = after;
        // Copied: a slice would keep the whole block that it came in.
        let old = self.rows.insert(Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value));
        Response::Done(old.is_some())
    }

    fn delete(&mut self, key: &Bytes) -> Response {
        let old = self.rows.remove(key);
        self.bytes -= old.as_ref().map_or(0, |old| key.len() + old.len());
        Response::Done(old.is_some())
    }
}

impl Service for KeyValue {
    fn execute(&mut self, _: Sigma, request: &Bytes) -> Bytes {
        let response = match Request::read(request) {
            Ok(Request::Get(key)) => Response::Value(self.rows.get(&key).cloned()),
            Ok(Request::Put(key, value)) => self.put(key, value),
            Ok(Request::Delete(key)) => self.delete(&key),
            Err(_) => Response::Refused(Refusal::Malformed),
        };
        response.encoded()
    }
}

impl Reads for KeyValue {
    fn is_read(&self, request: &Bytes) -> bool {
        matches!(Request::read(request), Ok(Request::Get(_)))
    }

    fn read(&self, request: &Bytes) -> Bytes {
        let response = match Request::read(request) {
            Ok(Request::Get(key)) => Response::Value(self.rows.get(&key).cloned()),
            _ => Response::Refused(Refusal::Malformed),
        };
        response.encoded()
    }

    fn keeps(&self, _: &Bytes, response: &Bytes) -> bool {
        matches!(Response::read(response.clone()), Ok(Response::Value(_) | Response::Done(_)))
    }
}

impl Durable for KeyValue {
    fn save(&self, out: &mut BytesMut) {
        out.put_u64(self.rows.len() as u64);
        for (key, value) in &self.rows {
            put_bytes(out, key);
            put_bytes(out, value);
        }
    }

    fn load(&self, reader: &mut Reader) -> Result<KeyValue, Malformed> {
        let mut service = KeyValue::default();
        for _ in 0..reader.number()? {
            let (key, value) = (reader.bytes(LONGEST_KEY)?, reader.bytes(LONGEST_RESULT)?);
            service.put(key, value);
        }
        Ok(service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_base::Incarnation;

    fn ask(service: &mut KeyValue, request: Request) -> Response {
        let sigma = Sigma::new(Incarnation(1), 1, 0).unwrap();
        Response::read(service.execute(sigma, &request.encoded())).unwrap()
    }

    #[test]
    fn it_gets_puts_and_deletes() {
        let (mut service, key) = (KeyValue::default(), Bytes::from_static(b"key"));
        let value = Bytes::from_static(b"value");
        assert_eq!(ask(&mut service, Request::Get(key.clone())), Response::Value(None));
        assert_eq!(ask(&mut service, Request::Put(key.clone(), value.clone())), Response::Done(false));
        assert_eq!(ask(&mut service, Request::Get(key.clone())), Response::Value(Some(value.clone())));
        let get = Request::Get(key.clone()).encoded();
        assert!(service.is_read(&get) && service.keeps(&get, &service.read(&get)));
        assert_eq!(Response::read(service.read(&get)), Ok(Response::Value(Some(value))));
        assert!(!service.is_read(&Request::Delete(key.clone()).encoded()), "a write is no read");
        assert_eq!(ask(&mut service, Request::Delete(key.clone())), Response::Done(true));
        assert_eq!((service.bytes, ask(&mut service, Request::Get(key))), (0, Response::Value(None)));
    }

    #[test]
    fn it_comes_back_from_what_was_saved() {
        let mut service = KeyValue::default();
        for number in 0..100u8 {
            ask(&mut service, Request::Put(Bytes::from(vec![number]), Bytes::from(vec![number; 10])));
        }
        let mut saved = BytesMut::new();
        service.save(&mut saved);
        let mut reader = Reader::new(saved.freeze());
        assert_eq!(KeyValue::default().load(&mut reader), Ok(service));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn nonsense_is_refused_and_changes_nothing() {
        let mut service = KeyValue::default();
        for nonsense in [b"".as_slice(), b"\x09\0\0\0\x01k", b"\x01\0\0\0\x09k", b"\x01\0\0\0\x01kk"] {
            let sigma = Sigma::new(Incarnation(1), 1, 0).unwrap();
            let answer = service.execute(sigma, &Bytes::copy_from_slice(nonsense));
            let nonsense = Bytes::copy_from_slice(nonsense);
            assert!(!service.is_read(&nonsense) && !service.keeps(&nonsense, &answer));
            assert_eq!(Response::read(answer), Ok(Response::Refused(Refusal::Malformed)));
        }
        assert_eq!(service, KeyValue::default());
    }
}
