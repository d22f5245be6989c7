//! Access to strings.

use super::SessionKey;

/// The bytes of a string, independent of its entry.
pub type StringBytes = Box<dyn AsRef<[u8]>>;

/// Access to strings.
pub trait StringSession {
    /// Sets a string in place of whatever the key holds. The key does not expire afterwards.
    fn set_string(&mut self, key: SessionKey<'_>, value: &[u8]);

    /// Returns the bytes of a string, with a zero byte behind them if they are copied; their number comes first. `None`
    /// if the key holds no string.
    fn read_string(&mut self, key: SessionKey<'_>) -> Option<(usize, StringBytes)>;

    /// Overwrites a string in place. Does nothing if the key holds no string.
    fn overwrite_string(&mut self, key: SessionKey<'_>, value: &[u8]);

    /// Cuts a string, or extends it with zero bytes; creates it if the key is missing. Returns `false` if the key holds
    /// another type.
    fn truncate_string(&mut self, key: SessionKey<'_>, length: usize) -> bool;
}
