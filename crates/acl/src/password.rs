//! Passwords. Only their hashes are kept, and comparison takes constant time.

use std::hint::black_box;

use sha2::{Digest, Sha256};

/// The SHA-256 hash of a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordHash([u8; 32]);

impl PasswordHash {
    /// Returns the hash of `password`.
    pub fn of(password: &[u8]) -> PasswordHash {
        PasswordHash(Sha256::digest(password).into())
    }

    /// Parses 64 lower-case hexadecimal digits.
    pub fn parse(digits: &[u8]) -> Option<PasswordHash> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let mut hash = [0; 32];
        if !digits.iter().all(is_digit) {
            return None;
        }
        hex::decode_to_slice(digits, &mut hash).ok()?;
        Some(PasswordHash(hash))
    }

    /// Returns the 64 hexadecimal digits.
    pub fn digits(&self) -> String {
        hex::encode(self.0)
    }

    /// Returns `true` if both hashes are equal. The time does not depend on their contents.
    pub fn is_same(&self, other: &PasswordHash) -> bool {
        let difference = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |difference, (left, right)| black_box(difference | (left ^ right)));
        difference == 0
    }
}

/// Returns `count` random hexadecimal digits from the operating system's generator.
///
/// # Errors
/// When the generator fails.
pub fn random_digits(count: usize) -> Result<String, getrandom::Error> {
    let mut bytes = vec![0; count.div_ceil(2)];
    getrandom::fill(&mut bytes)?;
    let mut digits = hex::encode(bytes);
    digits.truncate(count);
    Ok(digits)
}
