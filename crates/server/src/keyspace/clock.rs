//! The access clock of entries: the time (LRU) or frequency (LFU) of their use.

use weft_table::EntryRef;
use weft_values::Value;

/// The mask of the clock's bits.
const MASK: u32 = (1 << 24) - 1;
/// The counter of a new entry. It keeps the entry from being evicted at once.
const LFU_INITIAL: u32 = 5;

/// The parameters that advance entries' clocks. They are read once per batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessClock {
    /// The current time in seconds since the Unix epoch.
    pub now_s: u64,
    /// `true` if `maxmemory-policy` is an LFU policy.
    pub is_lfu: bool,
    /// `lfu-log-factor`.
    pub lfu_log_factor: i64,
    /// `lfu-decay-time`, in minutes.
    pub lfu_decay_minutes: i64,
}

impl AccessClock {
    /// The clock of an entry created now.
    #[inline]
    pub fn for_new_entry(&self) -> u32 {
        if self.is_lfu {
            (self.minutes() << 8) | LFU_INITIAL
        } else {
            self.now_s as u32 & MASK
        }
    }

    /// Advances the clock of an entry that is used now.
    #[inline]
    pub fn touch(&self, entry: EntryRef<'_, Value>) {
        let before = entry.clock();
        let after = if self.is_lfu {
            self.count_use(before)
        } else {
            self.now_s as u32 & MASK
        };
        // An unchanged clock is not written. Otherwise readers of a hot key would take its cache line from each other.
        if after != before {
            entry.set_clock(after);
        }
    }

    /// The number of seconds since the entry was used (OBJECT IDLETIME).
    pub fn idle_s(&self, clock: u32) -> u64 {
        u64::from((self.now_s as u32).wrapping_sub(clock) & MASK)
    }

    /// The clock that makes an entry look unused for `idle_s` seconds (RESTORE IDLETIME).
    pub fn with_idle(&self, idle_s: u64) -> u32 {
        (self.now_s.saturating_sub(idle_s)) as u32 & MASK
    }

    /// The clock with access frequency `frequency` (RESTORE FREQ).
    pub fn with_frequency(&self, frequency: u8) -> u32 {
        (self.minutes() << 8) | u32::from(frequency)
    }

    /// The decayed access frequency (OBJECT FREQ).
    pub fn frequency(&self, clock: u32) -> u32 {
        let counter = clock & 0xff;
        if self.lfu_decay_minutes <= 0 {
            return counter;
        }
        let passed = self.minutes().wrapping_sub(clock >> 8) & 0xffff;
        let periods = i64::from(passed) / self.lfu_decay_minutes;
        (i64::from(counter) - periods).max(0) as u32
    }

    /// Describes a clock as DEBUG OBJECT does.
    pub fn describe(&self, clock: u32) -> String {
        match self.is_lfu {
            true => format!(
                "lfu_freq:{} lfu_access_time_minutes:{}",
                self.frequency(clock),
                clock >> 8
            ),
            false => format!("lru:{clock} lru_seconds_idle:{}", self.idle_s(clock)),
        }
    }

    fn minutes(&self) -> u32 {
        (self.now_s / 60) as u32 & 0xffff
    }

    fn count_use(&self, clock: u32) -> u32 {
        let mut counter = self.frequency(clock);
        if counter < 255 {
            let above = f64::from(counter.saturating_sub(LFU_INITIAL));
            let chance = 1.0 / (above * self.lfu_log_factor as f64 + 1.0);
            if fastrand::f64() < chance {
                counter += 1;
            }
        }
        (self.minutes() << 8) | counter
    }
}
