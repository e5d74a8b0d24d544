//! Handle tokens (MAC) and sequencers (signature), under keys that the cell has agreed on (R12).
//!
//! Every key of the cell is one secret that a command carried into the agreed state; a MAC key and an Ed25519 pair are
//! derived from it. New tokens are made with the newest key; older ones are kept for verifying.

use crate::error;
use crate::mutant::Mutant;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use prost::Message;
use ring::hmac;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use tidings_base::Error;
use tidings_wire::v1;

/// How many keys are kept: a master rotates them once a day, and sessions and locks may live for years. Each costs a few
/// hundred bytes; 4,096 are eleven years.
pub const KEPT_KEYS: usize = 4_096;

/// What a sequencer's text begins with.
const TEXT_PREFIX: &str = "seq1.";
/// A sequencer's longest token: its path, its application's name, a signature, and room.
const MAX_TOKEN: usize = 4 << 10;
/// What is signed begins with this, so that no other signature under the same key can be taken for it.
const SEQUENCER_CONTEXT: &[u8] = b"tidings cell sequencer 1\0";
const HANDLE_CONTEXT: &[u8] = b"tidings cell handle 1\0";

/// The keys of a cell, oldest first. Cheap to clone.
#[derive(Clone, Default)]
pub struct Keys {
    kept: Arc<Vec<Arc<Key>>>,
    mutant: Option<Mutant>,
}

struct Key {
    id: u32,
    secret: [u8; 32],
    mac: hmac::Key,
    pair: Ed25519KeyPair,
}

impl Key {
    fn derive(id: u32, secret: [u8; 32]) -> Key {
        let root = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let part = |label: &str| hmac::sign(&root, label.as_bytes());
        let mac = hmac::Key::new(hmac::HMAC_SHA256, part("tidings cell handles").as_ref());
        let pair = Ed25519KeyPair::from_seed_unchecked(part("tidings cell sequencers").as_ref())
            .expect("a SHA-256 tag has the length of an Ed25519 seed");
        Key { id, secret, mac, pair }
    }
}

impl Keys {
    /// Adds a key; the oldest one goes if there are too many. It gets the next id.
    pub(crate) fn add(&mut self, secret: [u8; 32]) {
        let id = self.kept.last().map_or(1, |newest| newest.id.wrapping_add(1));
        self.push(id, secret);
    }

    /// Adds a key that has its id already.
    pub(crate) fn push(&mut self, id: u32, secret: [u8; 32]) {
        let kept = Arc::make_mut(&mut self.kept);
        kept.push(Arc::new(Key::derive(id, secret)));
        if kept.len() > KEPT_KEYS {
            kept.remove(0);
        }
    }

    pub(crate) fn set_mutant(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant;
    }

    /// Ids and secrets, oldest first, for the snapshot.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (u32, &[u8; 32])> {
        self.kept.iter().map(|key| (key.id, &key.secret))
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The id of the key that new tokens are made with; 0 = there is none yet.
    pub fn newest(&self) -> u32 {
        self.kept.last().map_or(0, |key| key.id)
    }

    fn find(&self, id: u32) -> Option<&Key> {
        self.kept.iter().rev().find(|key| key.id == id).map(|key| &**key)
    }

    /// What verifies sequencers offline.
    pub fn public(&self) -> PublicKeys {
        let keys = self.kept.iter().map(|key| (key.id, Bytes::copy_from_slice(key.pair.public_key().as_ref())));
        PublicKeys { keys: keys.collect() }
    }

    /// Makes a handle's token.
    pub fn seal_handle(&self, body: &v1::HandleBody) -> Result<Bytes, Error> {
        let key = self.kept.last().ok_or_else(|| error::busy("it has no keys yet"))?;
        let body = Bytes::from(body.encode_to_vec());
        let mac = Bytes::copy_from_slice(hmac::sign(&key.mac, &handle_message(key.id, &body)).as_ref());
        Ok(Bytes::from(v1::SealedHandle { body, mac, key: key.id }.encode_to_vec()))
    }

    /// What a handle's token says, if this cell made it. The caller compares session, principal and incarnation.
    pub fn open_handle(&self, token: &[u8]) -> Result<v1::HandleBody, Error> {
        if token.len() > MAX_TOKEN {
            return Err(error::bad_handle("its token is too long"));
        }
        let sealed = v1::SealedHandle::decode(token).map_err(|_| error::bad_handle("its token cannot be read"))?;
        if self.mutant != Some(Mutant::MacIgnored) {
            let key = self.find(sealed.key).ok_or_else(|| error::bad_handle("its key is unknown or too old"))?;
            hmac::verify(&key.mac, &handle_message(key.id, &sealed.body), &sealed.mac)
                .map_err(|_| error::bad_handle("its token was not made by this cell"))?;
        }
        v1::HandleBody::decode(sealed.body).map_err(|_| error::bad_handle("its token cannot be read"))
    }

    /// Makes a sequencer's token.
    pub fn sign_sequencer(&self, body: &v1::SequencerBody) -> Result<Bytes, Error> {
        let key = self.kept.last().ok_or_else(|| error::busy("it has no keys yet"))?;
        let body = Bytes::from(body.encode_to_vec());
        let signature = key.pair.sign(&sequencer_message(key.id, &body));
        let signature = Bytes::copy_from_slice(signature.as_ref());
        Ok(Bytes::from(v1::SignedSequencer { body, signature, key: key.id }.encode_to_vec()))
    }

    /// What a sequencer says, if this cell made it; whether the lock is still held is another question. Takes a token
    /// or its text.
    pub fn verify_sequencer(&self, token: &[u8]) -> Result<v1::SequencerBody, Error> {
        verify(token, |id| self.find(id).map(|key| Bytes::copy_from_slice(key.pair.public_key().as_ref())))
    }
}

fn handle_message(key: u32, body: &[u8]) -> Vec<u8> {
    [HANDLE_CONTEXT, &key.to_be_bytes(), body].concat()
}

fn sequencer_message(key: u32, body: &[u8]) -> Vec<u8> {
    [SEQUENCER_CONTEXT, &key.to_be_bytes(), body].concat()
}

fn verify(token: &[u8], public: impl Fn(u32) -> Option<Bytes>) -> Result<v1::SequencerBody, Error> {
    let signed = decode_sequencer(token)?;
    let public = public(signed.key).ok_or_else(|| error::bad_sequencer("its key is unknown or too old"))?;
    UnparsedPublicKey::new(&ED25519, &public)
        .verify(&sequencer_message(signed.key, &signed.body), &signed.signature)
        .map_err(|_| error::bad_sequencer("its signature is wrong"))?;
    v1::SequencerBody::decode(signed.body).map_err(|_| error::bad_sequencer("it cannot be read"))
}

fn decode_sequencer(token: &[u8]) -> Result<v1::SignedSequencer, Error> {
    if token.len() > MAX_TOKEN * 2 {
        return Err(error::bad_sequencer("it is too long"));
    }
    let cannot = || error::bad_sequencer("it cannot be read");
    match token.strip_prefix(TEXT_PREFIX.as_bytes()) {
        None => v1::SignedSequencer::decode(token).map_err(|_| cannot()),
        Some(_) => {
            let text = std::str::from_utf8(token).map_err(|_| cannot())?;
            v1::SignedSequencer::decode(sequencer_from_text(text)?).map_err(|_| cannot())
        }
    }
}

/// What a handle's token says, whoever made it: for telling whose it is, not for deciding by.
pub(crate) fn unverified_handle(token: &[u8]) -> Option<v1::HandleBody> {
    let sealed = v1::SealedHandle::decode(token).ok().filter(|_| token.len() <= MAX_TOKEN)?;
    v1::HandleBody::decode(sealed.body).ok()
}

/// What a sequencer (token or text) says, whoever made it: for looking at, not for deciding by.
pub fn unverified_sequencer(token: &[u8]) -> Result<v1::SequencerBody, Error> {
    let signed = decode_sequencer(token)?;
    v1::SequencerBody::decode(signed.body).map_err(|_| error::bad_sequencer("it cannot be read"))
}

/// A sequencer's token as text that can be printed, pasted and put into an environment.
pub fn sequencer_text(token: &[u8]) -> String {
    format!("{TEXT_PREFIX}{}", URL_SAFE_NO_PAD.encode(token))
}

/// The token behind a sequencer's text.
pub fn sequencer_from_text(text: &str) -> Result<Bytes, Error> {
    let text = text.trim();
    let rest = text.strip_prefix(TEXT_PREFIX).ok_or_else(|| error::bad_sequencer("it does not begin with `seq1.`"))?;
    let token = URL_SAFE_NO_PAD.decode(rest).map_err(|_| error::bad_sequencer("its text is damaged"))?;
    Ok(Bytes::from(token))
}

/// Compares two sequencers of one lock offline (R11): the greater one is the later holder's.
///
/// A resource that keeps the greatest sequencer it has seen, and refuses smaller ones, fences an old holder only after
/// the new one has touched it; asking the cell fences at once.
pub fn compare_sequencers(a: &v1::SequencerBody, b: &v1::SequencerBody) -> Result<Ordering, Error> {
    if (&a.app, &a.path) != (&b.app, &b.path) {
        let why = format!("it is of the lock {}:{}, not of {}:{}", a.app, a.path, b.app, b.path);
        return Err(error::bad_sequencer(&why));
    }
    Ok((a.incarnation, a.instance, a.generation).cmp(&(b.incarnation, b.instance, b.generation)))
}

/// Public keys of a cell: they verify sequencers where the cell cannot be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicKeys {
    keys: Vec<(u32, Bytes)>,
}

impl PublicKeys {
    /// The keys as the cell gave them.
    pub fn from_wire(keys: &[v1::CellKey]) -> PublicKeys {
        PublicKeys { keys: keys.iter().map(|key| (key.id, key.public.clone())).collect() }
    }

    /// The keys as the cell gives them.
    pub fn to_wire(&self) -> Vec<v1::CellKey> {
        self.keys.iter().map(|(id, public)| v1::CellKey { id: *id, public: public.clone() }).collect()
    }

    /// What a sequencer (token or text) says, if the cell of these keys made it.
    pub fn verify_sequencer(&self, token: &[u8]) -> Result<v1::SequencerBody, Error> {
        verify(token, |id| self.keys.iter().find(|key| key.0 == id).map(|key| key.1.clone()))
    }

    /// Verifies two sequencers and compares them: the greater one is the later holder's.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Result<Ordering, Error> {
        compare_sequencers(&self.verify_sequencer(a)?, &self.verify_sequencer(b)?)
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        self.secrets().eq(other.secrets())
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets stay out of logs.
        f.debug_list().entries(self.kept.iter().map(|key| key.id)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secrets: &[u8]) -> Keys {
        let mut keys = Keys::default();
        secrets.iter().for_each(|byte| keys.add([*byte; 32]));
        keys
    }

    fn handle() -> v1::HandleBody {
        v1::HandleBody { incarnation: 1, session: 7, path: "/a".into(), instance: 3, number: 9, ..Default::default() }
    }

    fn sequencer(instance: u64, generation: u64) -> v1::SequencerBody {
        v1::SequencerBody {
            incarnation: 1,
            app: "app".into(),
            path: "/leader".into(),
            instance,
            mode: v1::LockMode::Exclusive as i32,
            generation,
        }
    }

    #[test]
    fn a_handle_opens_under_its_own_key_until_that_is_dropped() {
        let mut keys = keys(&[1]);
        let token = keys.seal_handle(&handle()).unwrap();
        for rotation in 1..KEPT_KEYS {
            keys.add([rotation as u8; 32]);
            assert_eq!(keys.open_handle(&token).unwrap(), handle());
        }
        keys.add([99; 32]);
        assert_eq!(keys.open_handle(&token).unwrap_err().code, "cell.bad_handle");
        assert_eq!(keys.newest() as usize, KEPT_KEYS + 1);
    }

    #[test]
    fn no_changed_byte_of_a_token_passes() {
        let keys = keys(&[1, 2]);
        let (sealed, signed) = (keys.seal_handle(&handle()).unwrap(), keys.sign_sequencer(&sequencer(1, 1)).unwrap());
        for at in 0..sealed.len() {
            let mut forged = sealed.to_vec();
            forged[at] ^= 1;
            assert_eq!(keys.open_handle(&forged).unwrap_err().code, "cell.bad_handle", "byte {at}");
        }
        for at in 0..signed.len() {
            let mut forged = signed.to_vec();
            forged[at] ^= 1;
            assert_eq!(keys.verify_sequencer(&forged).unwrap_err().code, "cell.bad_sequencer", "byte {at}");
        }
        let foreign = self::keys(&[3, 4]);
        assert!(foreign.open_handle(&sealed).is_err() && foreign.verify_sequencer(&signed).is_err());
    }

    #[test]
    fn without_its_mac_a_forged_handle_passes() {
        let mut keys = keys(&[1]);
        let forged = v1::SealedHandle { body: handle().encode_to_vec().into(), ..Default::default() }.encode_to_vec();
        assert!(keys.open_handle(&forged).is_err());
        keys.set_mutant(Some(Mutant::MacIgnored));
        assert_eq!(keys.open_handle(&forged).unwrap(), handle());
    }

    #[test]
    fn sequencers_are_text_and_ordered_offline() {
        let mut keys = keys(&[1]);
        let older = keys.sign_sequencer(&sequencer(4, 9)).unwrap();
        keys.add([2; 32]);
        let newer = keys.sign_sequencer(&sequencer(5, 1)).unwrap();
        let public = PublicKeys::from_wire(&keys.public().to_wire());
        let text = sequencer_text(&older);
        assert!(text.starts_with("seq1.") && text.bytes().all(|b| b.is_ascii_graphic()));
        assert_eq!(sequencer_from_text(&text).unwrap(), older);
        assert_eq!(public.compare(text.as_bytes(), &newer).unwrap(), Ordering::Less);
        assert_eq!(public.compare(&newer, &newer).unwrap(), Ordering::Equal);
        let elsewhere = v1::SequencerBody { path: "/other".into(), ..sequencer(9, 9) };
        let elsewhere = keys.sign_sequencer(&elsewhere).unwrap();
        assert_eq!(public.compare(&elsewhere, &newer).unwrap_err().code, "cell.bad_sequencer");
        assert!(sequencer_from_text("seq2.abc").is_err() && sequencer_from_text("seq1.***").is_err());
    }

    #[test]
    fn the_incarnation_counts_first() {
        let later = v1::SequencerBody { incarnation: 2, ..sequencer(1, 1) };
        assert_eq!(compare_sequencers(&later, &sequencer(9, 9)).unwrap(), Ordering::Greater);
    }
}
