//! Sketches: keyed hashes of 16 bytes, known to the sketcher alone.

use std::fmt;
use tidings_base::KeyHash;

/// s(q) or s(r). Without the key nobody can search for two answers with the same sketch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sketch(pub [u8; 16]);

impl Sketch {
    /// Where s(q) stands on the ring: what ranges of a sketching core are leased by.
    pub fn position(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }

    /// The four bytes from `at` on as a number.
    pub(crate) fn word(&self, at: usize) -> u32 {
        (0..4).fold(0, |word, i| word << 8 | u32::from(self.0[(at + i) % 16]))
    }
}

impl fmt::Debug for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.word(0))
    }
}

/// What a sketch is of; sketches of different kinds are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A request.
    Request,
    /// A response.
    Response,
    /// A session of one client (rule K).
    Session,
    /// The group that is behind, among sketchers of one core (rule J).
    Group,
}

/// Makes sketches under one secret, which arrives as input. Sketchers of one core share it.
#[derive(Clone)]
pub struct Sketching {
    key: [u8; 32],
}

impl Sketching {
    /// Sketches under this secret.
    pub fn new(secret: [u8; 32]) -> Sketching {
        Sketching { key: secret }
    }

    /// Sketches of one purpose under a secret that several share: another purpose and other parts are another secret.
    pub fn derived(secret: &[u8], purpose: &str, parts: &[&[u8]]) -> Sketching {
        let mut hasher = blake3::Hasher::new_derive_key("tidings sketch: secrets of a sketching core, 1");
        for part in [secret, purpose.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Sketching { key: *hasher.finalize().as_bytes() }
    }

    /// Begins a sketch.
    pub fn begin(&self, of: Of) -> Pen {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[of as u8]);
        Pen { hasher }
    }
}

impl fmt::Debug for Sketching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sketching(secret)")
    }
}

/// A sketch being made, of fields in order.
#[derive(Clone, Debug)]
pub struct Pen {
    hasher: blake3::Hasher,
}

impl Pen {
    /// Adds a field. Its length comes first, so that two fields never pass for one or for two others.
    pub fn field(&mut self, bytes: &[u8]) -> &mut Pen {
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
        self
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) -> &mut Pen {
        self.field(&number.to_le_bytes())
    }

    /// The sketch of all fields.
    pub fn finish(&self) -> Sketch {
        let mut sketch = [0; 16];
        sketch.copy_from_slice(&self.hasher.finalize().as_bytes()[..16]);
        Sketch(sketch)
    }
}

/// The hash of a body, fed as it comes. Unkeyed, so that every sketcher gives a body the same ETag.
#[derive(Clone, Debug, Default)]
pub struct BodyPen {
    hasher: blake3::Hasher,
}

impl BodyPen {
    /// Adds a piece of the body.
    pub fn part(&mut self, bytes: &[u8]) -> &mut BodyPen {
        self.hasher.update(bytes);
        self
    }

    /// The hash of all pieces.
    pub fn finish(&self) -> BodyHash {
        BodyHash(*self.hasher.finalize().as_bytes())
    }
}

/// The hash of a whole body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyHash(pub [u8; 32]);

impl BodyHash {
    /// The hash of a body that is in memory.
    pub fn of(body: &[u8]) -> BodyHash {
        BodyPen::default().part(body).finish()
    }
}

impl fmt::Debug for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_kinds_and_keys_are_told_apart() {
        let sketching = Sketching::new([1; 32]);
        let of = |fields: &[&[u8]]| {
            let mut pen = sketching.begin(Of::Request);
            fields.iter().for_each(|field| {
                pen.field(field);
            });
            pen.finish()
        };
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"abc"]));
        assert_ne!(of(&[]), sketching.begin(Of::Response).finish());
        assert_ne!(of(&[]), Sketching::new([2; 32]).begin(Of::Request).finish());
    }

    #[test]
    fn secrets_of_other_purposes_and_parts_are_others() {
        let of = |secret: &[u8], purpose: &str, parts: &[&[u8]]| {
            Sketching::derived(secret, purpose, parts).begin(Of::Request).finish()
        };
        let this = of(b"secret", "pages", &[b"a", b"b"]);
        assert_eq!(this, of(b"secret", "pages", &[b"a", b"b"]));
        assert_ne!(this, of(b"secreT", "pages", &[b"a", b"b"]));
        assert_ne!(this, of(b"secret", "door", &[b"a", b"b"]));
        assert_ne!(this, of(b"secret", "pages", &[b"ab"]));
    }

    #[test]
    fn a_body_in_pieces_is_the_body() {
        assert_eq!(BodyPen::default().part(b"ab").part(b"").part(b"c").finish(), BodyHash::of(b"abc"));
        assert_ne!(BodyHash::of(b"abc"), BodyHash::of(b"abd"));
    }
}
