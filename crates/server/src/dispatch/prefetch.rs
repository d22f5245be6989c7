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
//! A command that looks for a member of a large collection, or reads it from end to end, reads more behind the value. If a
//! batch has such commands, two more steps follow for them: the collection's index, and the record it leads to; or the
//! starts of the pieces to be read.
//!
//! Another worker may be writing any of these slots. A prefetch instruction may take any address, but a
//! load may not race, so: the bucket's address comes from the slot header's atomics; tags and entry are
//! read under a short reader's lease, and a slot that is leased by a writer is simply left out.
//!
//! Blocks, and not one key at a time, because of what a lease costs besides its own instructions: a
//! locked instruction waits until everything before it has retired, and a prefetch retires only when its
//! address is translated. One lease per prefetch would make the page walks of all keys wait for each
//! other; all leases of a block first, then its prefetches, lets them overlap.

use weft_values::records;

use crate::keyspace::{Pass, ReadLease, SlotTable};

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
    /// What the command looks for in the value.
    pub member: Member,
}

/// The member or field that a command looks for in its key's value: its hash, or 0 for none. (One whose hash is 0 is
/// looked up without a prefetch.)
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Member(u64);

impl Member {
    /// None, or none that can be told in advance.
    pub const NONE: Member = Member(0);

    /// All of them: the command reads the value from end to end. (One whose hash is this is fetched wrongly.)
    pub const ALL: Member = Member(u64::MAX);

    /// The member of this name.
    pub fn named(name: &[u8]) -> Self {
        Member(records::hash_of(name))
    }
}

/// How far each step has come.
#[derive(Default)]
pub struct Prefetcher {
    bucket: usize,
    entry: usize,
    value: usize,
    index: usize,
    record: usize,
    /// Whether some command of the batch looks for a member.
    deep: bool,
}

impl Prefetcher {
    /// A prefetcher for these probes.
    pub fn new(probes: &[Probe]) -> Self {
        Prefetcher {
            deep: probes.iter().any(|probe| probe.member != Member::NONE),
            ..Prefetcher::default()
        }
    }

    /// Makes sure that the memory of all probes before `end` was asked for; `block` is the number of
    /// keys that take a step together.
    #[inline]
    pub fn advance(&mut self, pass: &Pass<'_>, probes: &[Probe], end: usize, block: usize) {
        if self.done() < end {
            self.advance_blocks(pass, probes, end, block.min(BLOCK_KEYS));
        }
    }

    #[inline]
    fn done(&self) -> usize {
        if self.deep { self.record } else { self.value }
    }

    fn advance_blocks(&mut self, pass: &Pass<'_>, probes: &[Probe], end: usize, block: usize) {
        // Values are to be that much earlier if something behind them is fetched.
        let lead = if self.deep { 2 * block } else { 0 };
        while self.done() < end {
            let target = self.done() + block;
            self.buckets(pass, probes, (target + 2 * block + lead).min(probes.len()));
            while self.entry < (target + block + lead).min(probes.len()) {
                self.entry = step(pass, probes, self.entry, block, |table, probe| {
                    table.prefetch_entry(probe.hash);
                });
            }
            while self.value < (target + lead).min(probes.len()) {
                self.value = step(pass, probes, self.value, block, |table, probe| {
                    table.prefetch_value(probe.hash);
                });
            }
            if self.deep {
                while self.index < (target + block).min(probes.len()) {
                    self.index = deep_step(pass, probes, self.index, block, |table, probe| {
                        table.prefetch_behind(probe.hash, |value| match probe.member {
                            Member::ALL => value.records()?.stream_place(0),
                            Member(hash) => value.records()?.index_place(hash),
                        });
                    });
                }
                self.record = deep_step(pass, probes, self.record, block, |table, probe| {
                    table.prefetch_behind(probe.hash, |value| match probe.member {
                        Member::ALL => value.records()?.stream_place(1),
                        Member(hash) => value.records()?.record_place(hash),
                    });
                });
            }
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

/// One step for the block that begins at `from`; returns where the next begins.
#[inline]
fn step(pass: &Pass<'_>, probes: &[Probe], from: usize, block: usize, fetch: impl Fn(&SlotTable, &Probe)) -> usize {
    let to = (from + block).min(probes.len());
    let block = probes.get(from..to).unwrap_or_default();
    let mut leases: [Option<ReadLease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    for (lease, probe) in leases.iter_mut().zip(block) {
        *lease = pass.try_read(probe.slot as usize);
    }
    for (lease, probe) in leases.iter().zip(block) {
        if let Some(table) = lease.as_ref().and_then(|lease| lease.table(probe.db as usize)) {
            fetch(table, probe);
        }
    }
    to
}

/// One step for those of a block that look for members; returns where the next block begins.
///
/// They are often neighbours on the same key, in a pipeline on one large collection: those share a lease.
fn deep_step(
    pass: &Pass<'_>,
    probes: &[Probe],
    from: usize,
    block: usize,
    fetch: impl Fn(&SlotTable, &Probe),
) -> usize {
    let to = (from + block).min(probes.len());
    let mut leases: [Option<ReadLease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let mut fetches = [(0, from); BLOCK_KEYS];
    let (mut lease_count, mut fetch_count, mut last_slot) = (0, 0, None);
    for (number, probe) in probes.iter().enumerate().take(to).skip(from) {
        if probe.member == Member::NONE {
            continue;
        }
        if last_slot != Some(probe.slot) {
            leases[lease_count] = pass.try_read(probe.slot as usize);
            lease_count += 1;
            last_slot = Some(probe.slot);
        }
        fetches[fetch_count] = (lease_count - 1, number);
        fetch_count += 1;
    }
    for (lease, number) in &fetches[..fetch_count] {
        let probe = &probes[*number];
        if let Some(table) = leases[*lease].as_ref().and_then(|lease| lease.table(probe.db as usize)) {
            fetch(table, probe);
        }
    }
    to
}
