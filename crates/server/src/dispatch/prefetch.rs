//! Interleaved prefetch: while one command runs, the memory of those behind it is on its way.
//!
//! A key's memory is reached in four steps: slot word → bucket → entry → value. The slot word is asked
//! for when the plan is made. The other steps run for whole blocks of keys, ahead of execution:
//!
//! ```text
//!   keys of the batch   │ block being executed │  block + 1  │  block + 2  │  block + 3  │
//!                                                   value         entry        bucket
//! ```
//!
//! Another worker may be writing any of these slots. A prefetch instruction may take any address, but a
//! load may not race, so: the bucket's address comes from the slot header's atomics; tags and entry are
//! read under a short reader's lease, and a slot that is leased by a writer is simply left out.
//!
//! Blocks, and not one key at a time, because of what a lease costs besides its own instructions: a
//! locked instruction waits until everything before it has retired, and a prefetch retires only when its
//! address is translated. One lease per prefetch would make the page walks of all keys wait for each
//! other; all leases of a block first, then its prefetches, lets them overlap.

use crate::keyspace::{Pass, ReadLease};

/// Keys of one block at most: more would be pushed out of the nearest cache before they are used.
const BLOCK_KEYS: usize = 32;

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
    /// Makes sure that the memory of all probes before `end` was asked for; `block` is the number of
    /// keys that take a step together.
    #[inline]
    pub fn advance(&mut self, pass: &Pass<'_>, probes: &[Probe], end: usize, block: usize) {
        if self.value < end {
            self.advance_blocks(pass, probes, end, block.min(BLOCK_KEYS));
        }
    }

    fn advance_blocks(&mut self, pass: &Pass<'_>, probes: &[Probe], end: usize, block: usize) {
        while self.value < end {
            let target = self.value + block;
            self.buckets(pass, probes, (target + 2 * block).min(probes.len()));
            while self.entry < (target + block).min(probes.len()) {
                self.entry = step(pass, probes, self.entry, block, |lease, probe| {
                    if let Some(table) = lease.table(probe.db as usize) {
                        table.prefetch_entry(probe.hash);
                    }
                });
            }
            self.value = step(pass, probes, self.value, block, |lease, probe| {
                if let Some(table) = lease.table(probe.db as usize) {
                    table.prefetch_value(probe.hash);
                }
            });
        }
    }

    fn buckets(&mut self, pass: &Pass<'_>, probes: &[Probe], to: usize) {
        let slots = pass.domain();
        for probe in probes.get(self.bucket..to).unwrap_or_default() {
            slots.header(probe.slot as usize).hint.prefetch_bucket(probe.hash);
        }
        self.bucket = self.bucket.max(to);
    }
}

/// One step for one block that begins at `from`; returns where the next begins.
#[inline]
fn step(pass: &Pass<'_>, probes: &[Probe], from: usize, block: usize, fetch: impl Fn(&ReadLease<'_>, &Probe)) -> usize {
    let to = (from + block).min(probes.len());
    let mut leases: [Option<ReadLease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let block = probes.get(from..to).unwrap_or_default();
    for (lease, probe) in leases.iter_mut().zip(block) {
        *lease = pass.try_read(probe.slot as usize);
    }
    for (lease, probe) in leases.iter().zip(block) {
        if let Some(lease) = lease {
            fetch(lease, probe);
        }
    }
    to
}
