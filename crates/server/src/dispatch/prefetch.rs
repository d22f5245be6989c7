//! Interleaved prefetch: while one command runs, the memory of the following commands is being fetched.
//!
//! A key's memory is reached in four steps: slot word → bucket → entry → value. The slot word is prefetched when the
//! plan is made. The other steps run for whole blocks of keys, ahead of execution, each in the turn after the previous
//! step:
//!
//! ```text
//!   keys of the batch   │ block about to be executed │  block + 1  │  block + 2  │
//!                                   value                 entry        bucket
//! ```
//!
//! Where a lookup ends in the entry's head, the step for the value is left out: see `keyspace/reach.rs`.
//!
//! A command that looks for a member of a large collection, or reads the collection from end to end, reads more memory
//! behind the value. If a batch has such commands, two more steps follow for them. They fetch the collection's index
//! and the record that it leads to, or the starts of the pieces to be read. For a command that changes an end of a list
//! they fetch the node there, and the elements in it.
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

use weft_table::PrefetchTarget;
use weft_values::list::ListEnd;
use weft_values::{Value, records};

use crate::keyspace::prefetch_policy::PrefetchPolicy;
use crate::keyspace::{GatePassage, ReadLease, SlotTable};

/// The maximum number of keys in a block. More would be evicted from the L1 cache before they are used.
const BLOCK_KEYS: usize = 32;

/// A key whose memory is to be prefetched.
#[derive(Clone, Copy)]
pub struct Probe {
    /// The key's hash.
    pub hash: u64,
    /// The key's slot.
    pub slot: u16,
    /// The client's database when the request was planned.
    pub db: u32,
    /// The member that the command looks for in the value.
    pub member: Member,
}

/// A member that a command looks for in its key's value: the hash of a member or field, 0 for none, or one of the
/// constants below. A member whose hash equals one of these is looked up without a useful prefetch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Member(u64);

impl Member {
    /// No member, or none that is known in advance.
    pub const NONE: Member = Member(0);

    /// All members: the command reads the value from end to end.
    pub const ALL: Member = Member(u64::MAX);

    /// The first elements of a list.
    pub const HEAD: Member = Member(u64::MAX - 1);

    /// The last elements of a list, or entries of a stream.
    pub const TAIL: Member = Member(u64::MAX - 2);

    /// Returns the memory that leads to the member in a large value, behind the value itself, as address and length.
    fn first_place(self, value: &Value) -> Option<(*const u8, usize)> {
        match self {
            Member::HEAD => value.list()?.node_memory(ListEnd::Head),
            Member::TAIL => match value {
                Value::Stream(stream) => Some(stream.metadata_memory()),
                value => value.list()?.node_memory(ListEnd::Tail),
            },
            Member::ALL => value.records()?.iteration_memory(0).map(extent),
            Member(hash) => match value {
                Value::SortedSet(set) => Some(set.index_memory(hash)),
                value => value.records()?.index_memory(hash).map(extent),
            },
        }
    }

    /// Returns the memory that a lookup reads after the first, once the first has been fetched.
    fn second_place(self, value: &Value) -> Option<(*const u8, usize)> {
        match self {
            Member::HEAD => value.list()?.end_memory(ListEnd::Head).map(extent),
            Member::TAIL => match value {
                Value::Stream(stream) => stream.end_memory(),
                value => value.list()?.end_memory(ListEnd::Tail).map(extent),
            },
            Member::ALL => value.records()?.iteration_memory(1).map(extent),
            Member(hash) => match value {
                Value::SortedSet(set) => set.leaf_memory(hash).map(extent),
                value => value.records()?.record_memory(hash).map(extent),
            },
        }
    }

    /// Returns the member of this name.
    pub fn named(name: &[u8]) -> Self {
        Member(records::hash_of(name))
    }
}

fn extent(bytes: &[u8]) -> (*const u8, usize) {
    (bytes.as_ptr(), bytes.len())
}

/// The steps of the pipeline, in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Bucket,
    Entry,
    Value,
    /// Memory behind the value: a collection's index, the start of its first piece, the descriptor of a list's node.
    Index,
    /// The record that the index leads to, the start of the next piece, or the end of the list.
    Record,
}

const STEPS: [Step; 5] = [Step::Bucket, Step::Entry, Step::Value, Step::Index, Step::Record];

/// The progress of the pipeline. In turn n, step k takes block n − k.
pub struct Prefetcher {
    /// The index of the first probe of the first block.
    from: usize,
    /// The number of keys in a block.
    block: usize,
    /// The number of turns made.
    turns: usize,
    /// The steps that the batch needs.
    steps: &'static [Step],
    /// The prefetch policy.
    pub reach: PrefetchPolicy,
    /// The addresses that the turn prefetches.
    places: [PrefetchTarget; PLACES],
}

/// The maximum number of addresses in one turn.
const PLACES: usize = BLOCK_KEYS * (STEPS.len() - 1);

impl Prefetcher {
    /// Creates a prefetcher for the probes from `from` on, in blocks of `block` keys. It makes the steps that `reach`
    /// needs.
    pub fn new(probes: &[Probe], from: usize, block: usize, reach: PrefetchPolicy) -> Self {
        let reaches_behind = probes
            .get(from..)
            .unwrap_or_default()
            .iter()
            .any(|probe| probe.member != Member::NONE);
        Prefetcher {
            from,
            block: block.clamp(1, BLOCK_KEYS),
            turns: 0,
            steps: match (reaches_behind && reach.needs_indirect_data(), reach.needs_values()) {
                (true, _) => &STEPS,
                (false, true) => &STEPS[..3],
                (false, false) => &STEPS[..2],
            },
            reach,
            places: [PrefetchTarget::NOWHERE; PLACES],
        }
    }

    /// Runs turns until the memory of all probes before `end` has been prefetched.
    #[inline]
    pub fn advance(&mut self, pass: &GatePassage<'_>, probes: &[Probe], end: usize) {
        while self.done() < end {
            self.turn(pass, probes);
        }
    }

    /// Returns the index before which all probes have taken every step.
    #[inline]
    fn done(&self) -> usize {
        self.from + (self.turns + 1).saturating_sub(self.steps.len()) * self.block
    }

    /// Returns the block that takes a step in this turn.
    #[inline]
    fn block<'p>(&self, probes: &'p [Probe], step: usize) -> &'p [Probe] {
        let Some(block) = self.turns.checked_sub(step) else {
            return &[];
        };
        let first = (self.from + block * self.block).min(probes.len());
        let last = (first + self.block).min(probes.len());
        probes.get(first..last).unwrap_or_default()
    }

    fn turn(&mut self, pass: &GatePassage<'_>, probes: &[Probe]) {
        let slots = pass.domain();
        for probe in self.block(probes, 0) {
            slots.header(probe.slot as usize).hint.prefetch_bucket(probe.hash);
        }
        let mut found = 0;
        for (number, step) in self.steps.iter().enumerate().skip(1) {
            let block = self.block(probes, number);
            let places = &mut self.places[found..];
            found += match step {
                Step::Bucket | Step::Entry => {
                    let head = self.reach.head();
                    find_places(pass, block, places, |table, probe| table.entry_place(probe.hash, head))
                }
                Step::Value => {
                    let reach = &mut self.reach;
                    find_places(pass, block, places, |table, probe| {
                        reach.value_location(table, probe.hash)
                    })
                }
                Step::Index => {
                    let reach = &mut self.reach;
                    find_places_behind(pass, block, places, |value, member| {
                        let place = PrefetchTarget::behind(value.and_then(|value| member.first_place(value)));
                        reach.record_indirect_data(!place.is_nowhere());
                        place
                    })
                }
                Step::Record => find_places_behind(pass, block, places, |value, member| {
                    PrefetchTarget::behind(value.and_then(|value| member.second_place(value)))
                }),
            };
        }
        for place in &self.places[..found] {
            place.prefetch();
        }
        self.turns += 1;
    }
}

/// Determines the addresses for the probes of a block, under leases of all their slots at once. Returns the number of
/// addresses found. A key that directly follows itself, as in a pipeline on one large collection, is looked up once.
#[inline]
fn find_places(
    pass: &GatePassage<'_>,
    block: &[Probe],
    places: &mut [PrefetchTarget],
    mut find: impl FnMut(&SlotTable, &Probe) -> PrefetchTarget,
) -> usize {
    let mut leases: [Option<ReadLease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let mut last_hash = None;
    for (lease, probe) in leases.iter_mut().zip(block) {
        if last_hash != Some(probe.hash) {
            *lease = pass.try_read(probe.slot as usize);
            last_hash = Some(probe.hash);
        }
    }
    let mut found = 0;
    for (lease, probe) in leases.iter().zip(block) {
        if let Some(table) = lease.as_ref().and_then(|lease| lease.table(probe.db as usize)) {
            places[found] = find(table, probe);
            found += 1;
        }
    }
    found
}

/// Does the same as [`find_places`] for the probes of a block that look for members.
///
/// They are often neighbours on the same key, in a pipeline on one large collection. Such probes share a lease and the
/// way to the value.
fn find_places_behind(
    pass: &GatePassage<'_>,
    block: &[Probe],
    places: &mut [PrefetchTarget],
    mut find: impl FnMut(Option<&Value>, Member) -> PrefetchTarget,
) -> usize {
    let mut leases: [Option<ReadLease<'_>>; BLOCK_KEYS] = [const { None }; BLOCK_KEYS];
    let mut numbers = [(0, 0); BLOCK_KEYS];
    let (mut lease_count, mut number_count) = (0, 0);
    let mut last_key = None;
    let mut last_slot = None;
    for (number, probe) in block.iter().enumerate() {
        if probe.member == Member::NONE {
            continue;
        }
        if last_slot != Some(probe.slot) {
            leases[lease_count] = pass.try_read(probe.slot as usize);
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
            let Some(table) = lease_held.table(probe.db as usize) else {
                continue;
            };
            (last_key, last_value) = (key, table.object_near(probe.hash));
        }
        places[found] = find(last_value, probe.member);
        found += 1;
    }
    found
}
