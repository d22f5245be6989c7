//! Interleaved prefetch: while one command runs, the memory of those behind it is on its way.
//!
//! A key's memory is reached in four steps: slot word → bucket → entry → value. The slot word is asked
//! for when the plan is made. The other steps follow at fixed distances ahead of execution:
//!
//! ```text
//!   keys of the batch   k0 k1 k2 … │ executing │ … value … │ … entry … │ … bucket …
//!                                        ▲        +depth      +2·depth    +3·depth
//! ```
//!
//! Another worker may be writing any of these slots. A prefetch instruction may take any address, but a
//! load may not race, so: the bucket's address comes from the slot header's atomics; tags and entry are
//! read under a short reader's lease, and a slot that is leased by a writer is simply left out.

use crate::keyspace::Pass;

/// A key whose memory is to be fetched.
#[derive(Clone, Copy)]
pub struct Probe {
    /// The key's hash.
    pub hash: u64,
    /// Its slot.
    pub slot: u16,
    /// The client's database when the request was planned.
    pub db: u32,
}

/// How far each step has come.
#[derive(Default)]
pub struct Prefetcher {
    bucket: usize,
    entry: usize,
    value: usize,
}

impl Prefetcher {
    /// Advances every step for a command whose probes end at `end`; `depth` is the distance of the steps.
    #[inline]
    pub fn advance(&mut self, pass: &Pass<'_>, probes: &[Probe], end: usize, depth: usize) {
        let slots = pass.domain();
        let limit = |steps: usize| (end + steps * depth).min(probes.len());
        while self.bucket < limit(3) {
            let probe = &probes[self.bucket];
            slots.header(probe.slot as usize).hint.prefetch_bucket(probe.hash);
            self.bucket += 1;
        }
        while self.entry < limit(2) {
            let probe = &probes[self.entry];
            if let Some(lease) = pass.try_read(probe.slot as usize)
                && let Some(table) = lease.table(probe.db as usize)
            {
                table.prefetch_entry(probe.hash);
            }
            self.entry += 1;
        }
        while self.value < limit(1) {
            let probe = &probes[self.value];
            if let Some(lease) = pass.try_read(probe.slot as usize)
                && let Some(table) = lease.table(probe.db as usize)
            {
                table.prefetch_value(probe.hash);
            }
            self.value += 1;
        }
    }
}
