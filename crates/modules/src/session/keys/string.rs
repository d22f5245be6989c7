//! Access to strings.

use super::SessionKey;

/// The bytes of a string, independent of its entry.
pub enum StringBytes {
    /// A copy, with a zero byte behind it.
    Copied(Vec<u8>),
    /// The bytes that the entry has, too.
    Shared(Box<dyn AsRef<[u8]>>),
}

impl StringBytes {
    /// Copies a string into `memory`, which is empty.
    pub fn copy(bytes: &[u8], mut memory: Vec<u8>) -> StringBytes {
        memory.reserve_exact(bytes.len() + 1);
        memory.extend_from_slice(bytes);
        memory.push(0);
        StringBytes::Copied(memory)
    }
}

impl AsRef<[u8]> for StringBytes {
    /// The bytes, with the zero byte of a copy.
    fn as_ref(&self) -> &[u8] {
        match self {
            StringBytes::Copied(bytes) => bytes,
            StringBytes::Shared(bytes) => (**bytes).as_ref(),
        }
    }
}

/// Access to strings.
pub trait StringSession {
    /// Sets a string in place of whatever the key holds. The key does not expire afterwards.
    fn set_string(&mut self, key: SessionKey<'_>, value: &[u8]);

    /// Returns the bytes of a string, and their number before them; a copy is made in `memory`, which is empty. `None`
    /// if the key holds no string.
    fn read_string(&mut self, key: SessionKey<'_>, memory: Vec<u8>) -> Option<(usize, StringBytes)>;

    /// Overwrites a string in place. Does nothing if the key holds no string.
    fn overwrite_string(&mut self, key: SessionKey<'_>, value: &[u8]);

    /// Cuts a string, or extends it with zero bytes; creates it if the key is missing. Returns `false` if the key holds
    /// another type.
    fn truncate_string(&mut self, key: SessionKey<'_>, length: usize) -> bool;
}
