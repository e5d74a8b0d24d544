//! Numbers that replicas cannot foresee: who is asked must not be theirs to choose.

use std::fmt;

/// Numbers that nobody who does not know the secret can foresee.
pub(crate) struct Unforeseen {
    stream: blake3::OutputReader,
}

impl Unforeseen {
    pub(crate) fn new(secret: &[u8; 32]) -> Unforeseen {
        let stream = blake3::Hasher::new_keyed(secret).update(b"choice of replicas").finalize_xof();
        Unforeseen { stream }
    }

    /// A number below `bound`, each as likely as the others: draws that would favour the small ones are passed over.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let fair = u64::MAX - u64::MAX % bound;
        loop {
            let mut bytes = [0; 8];
            self.stream.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number < fair {
                return number % bound;
            }
        }
    }
}

impl fmt::Debug for Unforeseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unforeseen(secret)")
    }
}
