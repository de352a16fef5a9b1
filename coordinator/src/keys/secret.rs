//! A key: drawn once, shown once, and compared without saying how much of it was right.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use aqueduct_core::limits;

const PREFIX: &str = "aq_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// `aq_ID_SECRET`. Neither `Debug` nor any error shows it.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// A system without random numbers.
    pub fn draw() -> io::Result<Self> {
        let mut drawn = [0; ID_BYTES + SECRET_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut drawn)?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (id, secret) = drawn.split_at(ID_BYTES);
        Ok(Self(format!("{PREFIX}{}_{}", hex(id), hex(secret))))
    }

    /// What a caller has sent, whatever it is.
    pub(super) fn shown(text: &str) -> Self {
        let end = text.floor_char_boundary(limits::API_KEY_BYTES_MAX + 1);
        Self(text[..end].to_owned())
    }

    /// Its public part.
    pub fn id(&self) -> Option<&str> {
        self.0.strip_prefix(PREFIX)?.split_once('_').map(|(id, _)| id)
    }

    /// What is kept of it.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(self.0.as_bytes())
    }

    /// Whether it is the one with this hash; nobody has `None`, which takes as long to see.
    pub(super) fn is(&self, hash: Option<blake3::Hash>) -> bool {
        // Equality of these is in constant time.
        self.hash() == hash.unwrap_or(blake3::Hash::from_bytes([0; 32]))
    }

    /// For the one to whom it is given.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_drawn_and_known_again_and_never_shown() {
        let (one, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one.reveal(), other.reveal());
        assert_eq!(one.reveal().len(), 3 + 12 + 1 + 64);
        assert!(one.reveal().len() <= limits::API_KEY_BYTES_MAX);
        let shown = Secret::shown(one.reveal());
        assert!(shown.is(Some(one.hash())) && !shown.is(Some(other.hash())) && !shown.is(None));
        assert_eq!(shown.id(), one.id());
        assert!(!format!("{one:?}").contains(one.id().unwrap()));
        assert_eq!(Secret::shown("é".repeat(100).as_str()).0.len(), limits::API_KEY_BYTES_MAX);
    }
}
