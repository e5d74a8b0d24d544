//! R8: cursors are encrypted with a key that all nodes of the cluster share, in a file of the cell.

use super::hub::Hub;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::sync::{Arc, OnceLock};
use tidings_base::{Class, Error};
use tidings_client::cell::Cell;
use tidings_tables::gateway::Sealer;

/// The file: no table can have its name.
const PATH: &str = "/.key";

/// The cluster's key.
pub(super) struct Seal {
    key: LessSafeKey,
    random: SystemRandom,
}

impl Seal {
    fn new(secret: &[u8]) -> Result<Seal, Error> {
        let key = UnboundKey::new(&AES_256_GCM, secret).map_err(|_| {
            Error::new("tables.bad_key_file", Class::Failed, "the key of cursors in the cell is not one")
                .hint("It is the platform's own; restore the cell from a backup.")
        })?;
        Ok(Seal { key: LessSafeKey::new(key), random: SystemRandom::new() })
    }

    fn seal(&self, open: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let mut sealed = open.to_vec();
        self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        self.key.open_in_place(nonce, Aad::empty(), &mut sealed).ok().map(|open| open.to_vec())
    }
}

/// The key as the gateway has it: known before the first query is watched.
pub(super) struct Sealing(pub(super) Arc<OnceLock<Seal>>);

impl Sealer for Sealing {
    fn seal(&self, open: &[u8]) -> Vec<u8> {
        // Without a key or randomness there is no cursor: an empty one is not told.
        self.0.get().and_then(|seal| seal.seal(open)).unwrap_or_default()
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        self.0.get()?.open(sealed)
    }
}

impl Hub {
    /// Whether a cursor was made by this cluster; unknown ones are as long as the key is not known.
    pub(super) fn is_sealed(&self, cursor: &[u8]) -> bool {
        self.seal.get().is_none_or(|seal| seal.open(cursor).is_some())
    }

    /// Reads the key; whoever comes first makes it.
    pub(super) async fn know_key(&self, cell: &Cell) -> Result<(), Error> {
        if self.seal.get().is_some() {
            return Ok(());
        }
        let file = match cell.read(PATH).await? {
            Some(file) => file,
            None => {
                let mut secret = [0; 32];
                getrandom::fill(&mut secret)
                    .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
                drop(cell.open(PATH).write().create_file(secret.to_vec()).await?);
                cell.read(PATH).await?.ok_or_else(|| Error::new("tables.bad_key_file", Class::Failed, "no key"))?
            }
        };
        let _: Result<(), Seal> = self.seal.set(Seal::new(file.contents())?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_opens() {
        let (seal, other) = (Seal::new(&[1; 32]).unwrap(), Seal::new(&[2; 32]).unwrap());
        let sealed = seal.seal(b"cursor").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"cursor"));
        assert_eq!(seal.open(&sealed).as_deref(), Some(&b"cursor"[..]));
        assert_eq!(other.open(&sealed), None);
        let mut forged = sealed.clone();
        forged[NONCE_LEN] ^= 1;
        assert_eq!((seal.open(&forged), seal.open(b""), seal.open(&[0; 40])), (None, None, None));
        assert!(Seal::new(b"short").is_err());
    }
}
