//! F8: tokens, authenticated under keys that are kept in the cell and handed in.

use crate::mutant::Mutant;
use bytes::Bytes;
use prost::Message;
use ring::hmac;
use tidings_wire::v1;

/// What is authenticated begins with this, so that no other tag under the same key can be taken for it.
const CONTEXT: &[u8] = b"tidings notify token 1\0";
/// The longest token: names at their longest, and room.
const MAX_TOKEN: usize = 4 << 10;

/// A secret and its number.
#[derive(Clone)]
struct Key {
    id: u32,
    mac: hmac::Key,
}

/// The keys for tokens, oldest first: new tokens are made with the newest, all verify.
#[derive(Clone, Default)]
pub struct Keys {
    kept: Vec<Key>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kept.iter().map(|key| key.id)).finish()
    }
}

impl Keys {
    /// Keys from their numbers and secrets, oldest first.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (u32, &'a [u8])>) -> Keys {
        let key = |(id, secret): (u32, &[u8])| Key { id, mac: hmac::Key::new(hmac::HMAC_SHA256, secret) };
        Keys { kept: secrets.into_iter().map(key).collect() }
    }

    /// Makes a token; `None` as long as there is no key.
    pub(crate) fn seal(&self, body: &v1::NotifyTokenBody) -> Option<Bytes> {
        let key = self.kept.last()?;
        let body = Bytes::from(body.encode_to_vec());
        let tag = hmac::sign(&key.mac, &authenticated(key.id, &body));
        let mac = Bytes::copy_from_slice(tag.as_ref());
        Some(v1::SealedNotifyToken { body, mac, key: key.id }.encode_to_vec().into())
    }

    /// Whether a token was made with an earlier key than new ones are.
    pub(crate) fn ages(&self, token: &[u8]) -> bool {
        let made_with = v1::SealedNotifyToken::decode(token).map_or(0, |sealed| sealed.key);
        self.kept.last().is_some_and(|newest| newest.id != made_with)
    }

    /// What a token says, if one of the keys made it.
    pub(crate) fn open(&self, token: &[u8], mutant: Option<Mutant>) -> Option<v1::NotifyTokenBody> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let sealed = v1::SealedNotifyToken::decode(token).ok()?;
        if mutant != Some(Mutant::MacIgnored) {
            let key = self.kept.iter().find(|key| key.id == sealed.key)?;
            hmac::verify(&key.mac, &authenticated(key.id, &sealed.body), &sealed.mac).ok()?;
        }
        v1::NotifyTokenBody::decode(sealed.body).ok()
    }
}

fn authenticated(key: u32, body: &[u8]) -> Vec<u8> {
    [CONTEXT, &key.to_be_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_believed_only_under_its_key() {
        let body = v1::NotifyTokenBody { session: 9, ..Default::default() };
        let old = Keys::new([(1, &b"one"[..])]);
        let rotated = Keys::new([(1, &b"one"[..]), (2, b"two")]);
        let token = old.seal(&body).unwrap();
        assert_eq!(rotated.open(&token, None), Some(body.clone()));
        assert_eq!([old.ages(&token), rotated.ages(&token)], [false, true]);
        assert_eq!(old.open(&rotated.seal(&body).unwrap(), None), None);
        let mut forged = v1::SealedNotifyToken::decode(token).unwrap();
        forged.body = v1::NotifyTokenBody { session: 10, ..body }.encode_to_vec().into();
        let forged = forged.encode_to_vec();
        assert_eq!(rotated.open(&forged, None), None);
        assert!(rotated.open(&forged, Some(Mutant::MacIgnored)).is_some());
        assert_eq!(Keys::default().seal(&v1::NotifyTokenBody::default()), None);
        assert_eq!(rotated.open(&[0; 5_000], None), None);
    }
}
