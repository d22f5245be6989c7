//! Access of modules to the expiry of keys, and to what eviction knows about them.

use weft_modules::session::keys::{LifetimeSession, SessionKey};

use super::ModuleSession;
use crate::keyspace::clock::AccessClock;

impl ModuleSession<'_, '_> {
    fn clock(&self) -> AccessClock {
        self.thread.clock
    }

    fn set_clock(&mut self, key: SessionKey<'_>, clock: u32) {
        self.with_stored(key, |entry| entry.set_clock(clock));
    }
}

impl LifetimeSession for ModuleSession<'_, '_> {
    fn command_time_ms(&self) -> u64 {
        self.thread.now_ms
    }

    fn expiry_ms(&mut self, key: SessionKey<'_>) -> Option<u64> {
        self.with_stored(key, |entry| entry.expire_at_ms())?
    }

    fn set_expiry_ms(&mut self, key: SessionKey<'_>, expire_at_ms: Option<u64>) {
        self.edit_key(key, |write, _| write.set_expiry(expire_at_ms));
    }

    fn counts_uses(&self) -> bool {
        self.clock().is_lfu
    }

    fn idle_seconds(&mut self, key: SessionKey<'_>) -> u64 {
        let clock = self.clock();
        self.with_stored(key, |entry| clock.idle_s(entry.clock())).unwrap_or(0)
    }

    fn set_idle_seconds(&mut self, key: SessionKey<'_>, seconds: u64) {
        self.set_clock(key, self.clock().with_idle(seconds));
    }

    fn frequency(&mut self, key: SessionKey<'_>) -> u8 {
        let clock = self.clock();
        let frequency = self.with_stored(key, |entry| clock.frequency(entry.clock()));
        u8::try_from(frequency.unwrap_or(0)).unwrap_or(u8::MAX)
    }

    fn set_frequency(&mut self, key: SessionKey<'_>, frequency: u8) {
        self.set_clock(key, self.clock().with_frequency(frequency));
    }
}
