//! The digest to which a module adds one of its values (`ValkeyModuleDigest`), for DEBUG DIGEST.
//!
//! Elements of a sequence are hashed in their order. The order of sequences does not matter: the hashes of their
//! digests are combined by an exclusive or. Valkey computes the same bytes, so that digests show whether two servers
//! hold the same.

use sha1::{Digest as _, Sha1};

use super::string::ModuleString;

/// The length of a digest in bytes.
pub const DIGEST_BYTES: usize = 20;

/// A digest of one value that is being computed.
pub struct ModuleDigest {
    /// The digest of the elements since the last end of a sequence.
    sequence: [u8; DIGEST_BYTES],
    /// The digest of all sequences that have ended.
    sum: [u8; DIGEST_BYTES],
    /// The name of the key.
    pub key: *mut ModuleString,
    /// The number of the database.
    pub db: i32,
}

impl ModuleDigest {
    /// Creates the digest of the value of a key, whose name outlives it.
    pub fn new(key: *mut ModuleString, db: i32) -> ModuleDigest {
        ModuleDigest {
            sequence: [0; DIGEST_BYTES],
            sum: [0; DIGEST_BYTES],
            key,
            db,
        }
    }

    /// Adds an element to the sequence.
    pub fn add(&mut self, element: &[u8]) {
        add_hash(&mut self.sequence, element);
        self.sequence = Sha1::digest(self.sequence).into();
    }

    /// Ends the sequence: its digest is hashed once more, as Valkey does.
    pub fn end_sequence(&mut self) {
        let sequence = std::mem::take(&mut self.sequence);
        add_hash(&mut self.sum, &sequence);
    }

    /// Returns the digest of the sequences that have ended.
    pub fn sum(&self) -> [u8; DIGEST_BYTES] {
        self.sum
    }
}

/// Combines a digest with the hash of a part.
fn add_hash(digest: &mut [u8; DIGEST_BYTES], part: &[u8]) {
    digest
        .iter_mut()
        .zip(Sha1::digest(part))
        .for_each(|(byte, other)| *byte ^= other);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(sequences: &[&[&str]]) -> [u8; DIGEST_BYTES] {
        let mut digest = ModuleDigest::new(std::ptr::null_mut(), 0);
        for sequence in sequences {
            sequence.iter().for_each(|element| digest.add(element.as_bytes()));
            digest.end_sequence();
        }
        digest.sum()
    }

    #[test]
    fn the_order_matters_within_a_sequence_only() {
        assert_eq!(digest_of(&[&["a", "b"], &["c"]]), digest_of(&[&["c"], &["a", "b"]]));
        assert_ne!(digest_of(&[&["a", "b"]]), digest_of(&[&["b", "a"]]));
        assert_ne!(digest_of(&[&["a", "b"]]), digest_of(&[&["a"], &["b"]]));
    }

    #[test]
    fn a_sequence_without_an_end_does_not_count() {
        let mut digest = ModuleDigest::new(std::ptr::null_mut(), 0);
        digest.add(b"a");
        assert_eq!(digest.sum(), [0; DIGEST_BYTES]);
    }
}
