//! The expiry of keys, and what eviction knows about them.

use super::SessionKey;

/// The expiry of keys, and what eviction knows about them.
pub trait LifetimeSession {
    /// The time of the command, in milliseconds since the Unix epoch. It does not change while the command runs.
    fn command_time_ms(&self) -> u64;

    /// Returns the time at which a key expires, in milliseconds since the Unix epoch.
    fn expiry_ms(&mut self, key: SessionKey<'_>) -> Option<u64>;

    /// Sets or removes the expiry of a key, in milliseconds since the Unix epoch.
    fn set_expiry_ms(&mut self, key: SessionKey<'_>, expire_at_ms: Option<u64>);

    /// Returns `true` if eviction counts how often keys are used, and not when.
    fn counts_uses(&self) -> bool;

    /// Returns the time since the last use of a key, in seconds.
    fn idle_seconds(&mut self, key: SessionKey<'_>) -> u64;

    /// Sets the time since the last use of a key, in seconds.
    fn set_idle_seconds(&mut self, key: SessionKey<'_>, seconds: u64);

    /// Returns the frequency of a key's use, on a logarithmic scale.
    fn frequency(&mut self, key: SessionKey<'_>) -> u8;

    /// Sets the frequency of a key's use.
    fn set_frequency(&mut self, key: SessionKey<'_>, frequency: u8);
}
