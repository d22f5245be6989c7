//! Interleaved prefetch: while one command runs, the memory of the following commands is being fetched.
//!
//! A key's memory is accessed in four steps: slot word → bucket → entry → value. The slot word is prefetched when the
//! plan is made. The other steps run for whole blocks of keys, ahead of execution, each in the turn after the previous
//! step:
//!
//! ```text
//!   keys of the batch   │ block about to be executed │  block + 1  │  block + 2  │
//!                                   value                 entry        bucket
//! ```
//!
//! Where a lookup ends in the entry's head, the step for the value is omitted: see `keyspace/prefetch_policy.rs`.
//!
//! A command that looks for a member of a large collection, or reads the collection from end to end, reads more memory
//! behind the value. If a batch has such commands, two more steps follow for them. They fetch the collection's index
//! and the record to which it leads, or the starts of the pieces to be read. For a command that changes an end of a
//! list they fetch the node there, and the elements in it. Of a HyperLogLog, a long string, they fetch the header and
//! the register that the command may raise, not its beginning.
//!
//! Another worker may be writing any of these slots. A prefetch instruction may take any address, but a load must not
//! race. The bucket's address therefore comes from the atomics of the slot header. Tags and entry are read under a
//! short read lease, and a slot that a writer has leased is left out.
//!
//! The steps work on blocks instead of one key at a time because of an indirect cost of a lease. A locked instruction
//! waits until everything before it has retired, and a prefetch retires only when its address is translated. One lease
//! per prefetch would make the page walks of all keys wait for each other. A turn therefore first determines all
//! addresses, of every step, under leases. Then it prefetches all of them with nothing in between, so that as many page
//! walks as possible overlap.

use std::ops::Deref;

use weft_base::{DbIndex, SlotIndex};
use weft_table::{PrefetchTarget, ValueRef};
use weft_values::hyperloglog::{self, RegisterUpdate};
use weft_values::list::ListEnd;
use weft_values::{Value, records};

use crate::keyspace::prefetch_policy::PrefetchPolicy;
use crate::keyspace::{Exclusive, GatePassage, ReadLease, Slot, SlotHeader, SlotTable};

/// The maximum number of keys in a block. More would be evicted from the L1 cache before they are used.
const BLOCK_KEYS: usize = 32;

/// A key whose memory is to be prefetched.
#[derive(Clone, Copy)]
pub struct PrefetchProbe {
    /// The key's hash.
    pub hash: u64,
    /// The key's slot.
    pub slot: SlotIndex,
    /// The client's database when the request was planned.
    pub db: u32,
    /// The member that the command looks for in the value.
    pub member: PrefetchMember,
}

/// A member that a command looks for in its key's value: the hash of a member or field, 0 for none, one of the
/// constants below, or [`FIRST_REGISTER`] minus the index of a register. A member whose hash equals one of these is
/// looked up without a useful prefetch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrefetchMember(u64);

/// Stands for the first register of a HyperLogLog.
const FIRST_REGISTER: u64 = u64::MAX - 3;

impl PrefetchMember {
    /// No member, or none that is known in advance.
    pub const NONE: PrefetchMember = PrefetchMember(0);

    /// All members: the command reads the value from end to end.
    pub const ALL: PrefetchMember = PrefetchMember(u64::MAX);

    /// The first elements of a list.
    pub const HEAD: PrefetchMember = PrefetchMember(u64::MAX - 1);

    /// The last elements of a list, or entries of a stream.
    pub const TAIL: PrefetchMember = PrefetchMember(u64::MAX - 2);

    /// Returns the register of a HyperLogLog to which an element belongs.
    pub fn register_of(element: &[u8]) -> Self {
        PrefetchMember(FIRST_REGISTER - RegisterUpdate::of(element).index as u64)
    }

    /// Returns the index of the register, if it is one.
    #[inline]
    fn register(self) -> Option<usize> {
        let index = FIRST_REGISTER.wrapping_sub(self.0);
        (index < hyperloglog::REGISTERS as u64).then_some(index as usize)
    }

    /// Returns the memory that leads to the member in a large value, behind the value itself, as address and length.
    fn index_memory(self, value: ValueRef<'_, Value>) -> Option<(*const u8, usize)> {
        let value = match (value, self.register()) {
            (ValueRef::Object(value), None) => value,
            (ValueRef::Bytes(bytes), Some(index)) => return register_memory(bytes, index),
            (ValueRef::Blob(blob), Some(index)) => return register_memory(blob, index),
            _ => return None,
        };
        match self {
            PrefetchMember::HEAD => value.list()?.node_memory(ListEnd::Head),
            PrefetchMember::TAIL => match value {
                Value::Stream(stream) => Some(stream.metadata_memory()),
                value => value.list()?.node_memory(ListEnd::Tail),
            },
            PrefetchMember::ALL => value.records()?.iteration_memory(0).map(address_and_length),
            PrefetchMember(hash) => match value {
                Value::SortedSet(set) => Some(set.index_memory(hash)),
                value => value.records()?.index_memory(hash).map(address_and_length),
            },
        }
    }

    /// Returns the memory that a lookup reads after the first, once the first has been fetched.
    fn record_memory(self, value: ValueRef<'_, Value>) -> Option<(*const u8, usize)> {
        let ValueRef::Object(value) = value else {
            return None;
        };
        match self {
            PrefetchMember::HEAD => value.list()?.end_memory(ListEnd::Head).map(address_and_length),
            PrefetchMember::TAIL => match value {
                Value::Stream(stream) => stream.end_memory(),
                value => value.list()?.end_memory(ListEnd::Tail).map(address_and_length),
            },
            PrefetchMember::ALL => value.records()?.iteration_memory(1).map(address_and_length),
            PrefetchMember(hash) => match value {
                Value::SortedSet(set) => set.leaf_memory(hash).map(address_and_length),
                value => value.records()?.record_memory(hash).map(address_and_length),
            },
        }
    }

    /// Returns the member of this name.
    pub fn from_name(name: &[u8]) -> Self {
        PrefetchMember(records::hash_of(name))
    }
}

fn register_memory(bytes: &[u8], index: usize) -> Option<(*const u8, usize)> {
    hyperloglog::register_memory(bytes, index).map(address_and_length)
}

fn address_and_length(bytes: &[u8]) -> (*const u8, usize) {
    (bytes.as_ptr(), bytes.len())
}

/// A thread's way to read slots while it determines addresses.
pub trait ReadSlots {
    /// A slot that may be read.
    type Lease<'l>: Deref<Target = Slot>
    where
        Self: 'l;

    /// Returns the header of a slot.
    fn header_of(&self, slot: SlotIndex) -> &SlotHeader;

    /// Returns a slot, unless another thread changes it.
    fn try_lease(&self, slot: SlotIndex) -> Option<Self::Lease<'_>>;
}

impl ReadSlots for GatePassage<'_> {
    type Lease<'l>
        = ReadLease<'l>
    where
        Self: 'l;

    #[inline]
    fn header_of(&self, slot: SlotIndex) -> &SlotHeader {
        self.domain().header(slot.index())
    }

    #[inline]
    fn try_lease(&self, slot: SlotIndex) -> Option<ReadLease<'_>> {
        self.try_read(slot.index())
    }
}

impl ReadSlots for Exclusive<'_> {
    type Lease<'l>
        = &'l Slot
    where
        Self: 'l;

    #[inline]
    fn header_of(&self, slot: SlotIndex) -> &SlotHeader {
        self.header(slot.index())
    }

    #[inline]
    fn try_lease(&self, slot: SlotIndex) -> Option<&Slot> {
        Some(self.cell(slot.index()))
    }
}

/// The steps of the pipeline, in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefetchStep {
    Bucket,
    Entry,
    Value,
    /// Memory behind the value: a collection's index, the start of its first piece, the descriptor of a list's node.
    Index,
    /// The record that the index leads to, the start of the next piece, or the end of the list.
    Record,
}

const STEPS: [PrefetchStep; 5] = [
    PrefetchStep::Bucket,
    PrefetchStep::Entry,
    PrefetchStep::Value,
    PrefetchStep::Index,
    PrefetchStep::Record,
];

/// The progress of the pipeline. In turn n, step k takes block n − k.
pub struct Prefetcher {
    /// The index of the first probe of the first block.
    first_probe: usize,
    /// The number of keys in a block.
    block_keys: usize,
    /// The number of turns made.
    turns: usize,
    /// The steps that the batch needs.
    steps: &'static [PrefetchStep],
    /// The prefetch policy.
    pub policy: PrefetchPolicy,
    /// The addresses that the turn prefetches.
    targets: [PrefetchTarget; MAX_TARGETS],
}

/// The maximum number of addresses in one turn.
const MAX_TARGETS: usize = BLOCK_KEYS * (STEPS.len() - 1);

impl Prefetcher {
    /// Creates a prefetcher for the probes from `first_probe` on, in blocks of `block_keys` keys. It makes the steps
    /// that the policy requires.
    pub fn new(probes: &[PrefetchProbe], first_probe: usize, block_keys: usize, policy: PrefetchPolicy) -> Self {
        let reaches_behind = probes
            .get(first_probe..)
            .unwrap_or_default()
            .iter()
            .any(|probe| probe.member != PrefetchMember::NONE);
        Prefetcher {
            first_probe,
            block_keys: block_keys.clamp(1, BLOCK_KEYS),
            turns: 0,
            steps: match (reaches_behind && policy.needs_indirect_data(), policy.needs_values()) {
                (true, _) => &STEPS,
                (false, true) => &STEPS[..3],
                (false, false) => &STEPS[..2],
            },
            policy,
            targets: [PrefetchTarget::NOWHERE; MAX_TARGETS],
        }
    }

    /// Runs turns until the memory of all probes before `end` has been prefetched.
    #[inline]
    pub fn advance(&mut self, slots: &impl ReadSlots, probes: &[PrefetchProbe], end: usize) {
        while self.finished_probes() < end {
            self.run_turn(slots, probes);
        }
    }

    /// Returns the index before which all probes have taken every step.
    #[inline]
    fn finished_probes(&self) -> usize {
        self.first_probe + (self.turns + 1).saturating_sub(self.steps.len()) * self.block_keys
    }

    /// Returns the block that takes a step in this turn.
    #[inline]
    fn block<'p>(&self, probes: &'p [PrefetchProbe], step: usize) -> &'p [PrefetchProbe] {
        let Some(block) = self.turns.checked_sub(step) else {
            return &[];
        };
        let first = (self.first_probe + block * self.block_keys).min(probes.len());
        let last = (first + self.block_keys).min(probes.len());
        probes.get(first..last).unwrap_or_default()
    }

    fn run_turn(&mut self, slots: &impl ReadSlots, probes: &[PrefetchProbe]) {
        for probe in self.block(probes, 0) {
            slots.header_of(probe.slot).hint.prefetch_bucket(probe.hash);
        }
        let mut found = 0;
        for (number, step) in self.steps.iter().enumerate().skip(1) {
            let block = self.block(probes, number);
            let targets = &mut self.targets[found..];
            found += match step {
                PrefetchStep::Bucket | PrefetchStep::Entry => {
                    let head = self.policy.head();
                    find_targets(slots, block, targets, |table, probe| {
                        table.entry_place(probe.hash, head)
                    })
                }
                PrefetchStep::Value => {
                    let policy = &mut self.policy;
                    find_targets(slots, block, targets, |table, probe| {
                        let value = policy.value_location(table, probe.hash);
                        match probe.member.register() {
                            Some(_) => value.first_line(),
                            None => value,
                        }
                    })
                }
                PrefetchStep::Index => {
                    let policy = &mut self.policy;
                    find_member_targets(slots, block, targets, |value, member| {
                        let target = PrefetchTarget::behind(value.and_then(|value| member.index_memory(value)));
                        policy.record_indirect_data(!target.is_nowhere());
                        target
                    })
                }
                PrefetchStep::Record => find_member_targets(slots, block, targets, |value, member| {
                    PrefetchTarget::behind(value.and_then(|value| member.record_memory(value)))
                }),
            };
        }
        debug_assert!(
            found <= self.steps.len().saturating_sub(1) * self.block_keys,
            "a step finds at most one address for each key of its block"
        );
        for place in &self.targets[..found] {
            place.prefetch();
        }
        self.turns += 1;
    }
}

/// Determines the addresses for the probes of a block, under leases of all their slots at once. Returns the number of
/// addresses found. A key that directly follows itself, as in a pipeline on one large collection, is looked up once.
#[inline]
fn find_targets<S: ReadSlots>(
    slots: &S,
    block: &[PrefetchProbe],
    targets: &mut [PrefetchTarget],
    mut find: impl FnMut(&SlotTable, &PrefetchProbe) -> PrefetchTarget,
) -> usize {
    debug_assert!(block.len() <= BLOCK_KEYS, "a block has a lease for each key");
    let mut leases: [Option<S::Lease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let mut last_hash = None;
    for (lease, probe) in leases.iter_mut().zip(block) {
        if last_hash != Some(probe.hash) {
            *lease = slots.try_lease(probe.slot);
            last_hash = Some(probe.hash);
        }
    }
    let mut found = 0;
    for (lease, probe) in leases.iter().zip(block) {
        if let Some(table) = lease
            .as_ref()
            .and_then(|lease| lease.table(DbIndex::new(probe.db as usize)))
        {
            targets[found] = find(table, probe);
            found += 1;
        }
    }
    found
}

/// Does the same as [`find_targets`] for the probes of a block that look for members.
///
/// In a pipeline on one large collection they are often neighbours on the same key. Such probes share a lease and the
/// path to the value.
fn find_member_targets<S: ReadSlots>(
    slots: &S,
    block: &[PrefetchProbe],
    targets: &mut [PrefetchTarget],
    mut find: impl FnMut(Option<ValueRef<'_, Value>>, PrefetchMember) -> PrefetchTarget,
) -> usize {
    let mut leases: [Option<S::Lease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let mut numbers = [(0, 0); BLOCK_KEYS];
    let (mut lease_count, mut number_count) = (0, 0);
    let mut last_key = None;
    let mut last_slot = None;
    for (number, probe) in block.iter().enumerate() {
        if probe.member == PrefetchMember::NONE {
            continue;
        }
        if last_slot != Some(probe.slot) {
            leases[lease_count] = slots.try_lease(probe.slot);
            lease_count += 1;
            last_slot = Some(probe.slot);
        }
        numbers[number_count] = (lease_count - 1, number);
        number_count += 1;
    }
    let mut found = 0;
    let mut last_value = None;
    for (lease, number) in &numbers[..number_count] {
        let probe = &block[*number];
        let Some(lease_held) = &leases[*lease] else {
            continue;
        };
        let key = Some((*lease, probe.db, probe.hash));
        if last_key != key {
            let Some(table) = lease_held.table(DbIndex::new(probe.db as usize)) else {
                continue;
            };
            (last_key, last_value) = (key, table.value_near(probe.hash));
        }
        targets[found] = find(last_value, probe.member);
        found += 1;
    }
    found
}

#[cfg(test)]
mod tests;
