//! Tests of streams against a naive model, and against known bytes and counts of Valkey.

use std::collections::BTreeMap;

use super::*;
use crate::listpack::Element;

const LIMITS: BlockLimits = BlockLimits {
    bytes: 4096,
    entries: 100,
};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn fields_of(entry: &StreamEntry<'_>) -> Fields {
    entry
        .pairs()
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

fn append(stream: &mut Stream, id: StreamId, fields: &Fields, limits: BlockLimits) -> Result<(), AppendError> {
    let pairs = fields.iter().map(|(name, value)| (&name[..], &value[..]));
    stream.append(id, pairs, limits)
}

fn stream_of(ids: impl IntoIterator<Item = u64>, limits: BlockLimits) -> Stream {
    let mut stream = Stream::new();
    for ms in ids {
        let fields = vec![(b"field".to_vec(), b"value".to_vec())];
        append(&mut stream, StreamId::new(ms, 0), &fields, limits).expect("the IDs ascend");
    }
    stream
}

/// A naive model of the contents of a stream.
#[derive(Default)]
struct Model {
    entries: BTreeMap<StreamId, Fields>,
    counters: StreamMetadata,
}

impl Model {
    fn append(&mut self, id: StreamId, fields: Fields) {
        self.entries.insert(id, fields);
        self.counters.last_id = id;
        self.counters.entries_added += 1;
    }

    fn delete(&mut self, id: StreamId) -> bool {
        let deleted = self.entries.remove(&id).is_some();
        if deleted {
            self.counters.max_deleted_id = self.counters.max_deleted_id.max(id);
        }
        deleted
    }

    /// Trims exactly.
    fn trim(&mut self, keep: TrimTarget) -> u64 {
        let before = self.entries.len();
        match keep {
            TrimTarget::MaxLength(count) => {
                while self.entries.len() as u64 > count {
                    self.entries.pop_first();
                }
            }
            TrimTarget::MinId(id) => self.entries = self.entries.split_off(&id),
        }
        (before - self.entries.len()) as u64
    }

    fn check(&self, stream: &Stream, start: StreamId, end: StreamId) {
        let first_id = self.entries.first_key_value().map_or(StreamId::MIN, |(id, _)| *id);
        let counters = StreamMetadata {
            length: self.entries.len() as u64,
            first_id,
            ..self.counters
        };
        assert_eq!(*stream.metadata(), counters);
        let top_id = self.entries.last_key_value().map_or(StreamId::MIN, |(id, _)| *id);
        assert_eq!(stream.last_entry_id(), top_id);
        if start > end {
            assert!(stream.entries(start, end).next().is_none());
            return;
        }
        let expected: Vec<_> = self
            .entries
            .range(start..=end)
            .map(|(id, fields)| (*id, fields.clone()))
            .collect();
        let show = |entry: StreamEntry<'_>| (entry.id, fields_of(&entry));
        let forwards: Vec<_> = stream.entries(start, end).map(show).collect();
        assert_eq!(forwards, expected);
        let mut backwards: Vec<_> = stream.entries_backwards(start, end).map(show).collect();
        backwards.reverse();
        assert_eq!(backwards, expected);
    }
}

fn random_fields(random: &mut fastrand::Rng) -> Fields {
    let word = |random: &mut fastrand::Rng| match random.u8(..4) {
        0 => random.i64(-5000..5000).to_string().into_bytes(),
        1 => random.i64(..).to_string().into_bytes(),
        _ => vec![b'x'; random.usize(..90)],
    };
    let names: &[&[u8]] = if random.bool() {
        &[b"one", b"2", b"three"]
    } else {
        &[b"other", b"one", b"2"]
    };
    let count = random.usize(1..=3);
    names[..count]
        .iter()
        .map(|name| (name.to_vec(), word(random)))
        .collect()
}

#[test]
fn random_operations_agree_with_a_naive_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (bytes, entries) in [(512, 1), (512, 3), (512, 10), (512, 0), (0, 0)] {
        let limits = BlockLimits { bytes, entries };
        let (mut stream, mut model) = (Stream::new(), Model::default());
        for _ in 0..4000 {
            let near =
                |random: &mut fastrand::Rng| StreamId::new(random.u64(..=model_top(&model) + 1), random.u64(..3));
            match random.u8(..20) {
                0..12 => {
                    let last = stream.last_id();
                    let id = StreamId::new(last.ms + random.u64(..2), last.seq * random.u64(..2) + random.u64(..3));
                    let fields = random_fields(&mut random);
                    let added = append(&mut stream, id, &fields, limits);
                    assert_eq!(added.is_ok(), id > last);
                    if added.is_ok() {
                        model.append(id, fields);
                    }
                }
                12..17 => {
                    let id = near(&mut random);
                    let deleted = model.delete(id);
                    assert_eq!(stream.delete(id), deleted);
                    if deleted {
                        stream.update_first_id();
                    }
                }
                17 => {
                    let keep = match random.bool() {
                        true => TrimTarget::MaxLength(stream.length().saturating_sub(random.u64(..8))),
                        false => TrimTarget::MinId(near(&mut random)),
                    };
                    let keep = if random.u8(..4) == 0 {
                        keep
                    } else {
                        TrimTarget::MaxLength(200)
                    };
                    let trim = TrimOptions {
                        strategy: keep,
                        is_approximate: false,
                        limit: 0,
                    };
                    assert_eq!(stream.trim(trim), model.trim(keep));
                }
                18 => {
                    stream = copy_through_file(&stream);
                }
                _ => {
                    let (start, end) = (near(&mut random), near(&mut random));
                    model.check(&stream, start, end);
                    for id in [start, end] {
                        let found = stream.entry(id).map(|entry| fields_of(&entry));
                        assert_eq!(found.as_ref(), model.entries.get(&id));
                    }
                }
            }
        }
        model.check(&stream, StreamId::MIN, StreamId::MAX);
        let run_bytes: usize = stream
            .blocks()
            .iter()
            .map(|(_, block)| block)
            .map(StreamBlock::allocated_bytes)
            .sum();
        assert_eq!(stream.inner.run_bytes, run_bytes);
    }
}

fn model_top(model: &Model) -> u64 {
    model.counters.last_id.ms
}

fn copy_through_file(stream: &Stream) -> Stream {
    let mut builder = StreamBuilder::default();
    for (base, block) in stream.blocks() {
        let mut whole = Vec::new();
        block.write_listpack(&mut whole);
        assert_eq!(whole.len(), block.listpack_bytes());
        builder.add_block(*base, &whole).expect("what was written can be read");
    }
    builder.finish(*stream.metadata())
}

#[test]
fn a_block_has_the_bytes_of_valkey() {
    let mut stream = Stream::new();
    let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    for (id, fields) in [
        (StreamId::new(5, 1), vec![field("a", "1")]),
        (StreamId::new(5, 2), vec![field("a", "x")]),
        (StreamId::new(6, 0), vec![field("b", "y"), field("c", "z")]),
    ] {
        append(&mut stream, id, &fields, LIMITS).expect("the IDs ascend");
    }
    assert!(stream.delete(StreamId::new(5, 2)));
    let mut whole = Vec::new();
    stream
        .blocks()
        .iter()
        .next()
        .expect("a block")
        .1
        .write_listpack(&mut whole);
    let run = whole[6..whole.len() - 1].to_vec();
    let int = |number| Element::Int(number);
    let text = Element::Bytes;
    let elements: Vec<_> = crate::listpack::ElementRun::new(&run)
        .iter()
        .map(|(_, element)| element)
        .collect();
    let expected: [&[Element<'_>]; 4] = [
        &[int(2), int(1), int(1), text(b"a"), int(0)],
        &[int(2), int(0), int(0), int(1), int(4)],
        &[int(3), int(0), int(1), text(b"x"), int(4)],
        &[
            int(0),
            int(1),
            int(-1),
            int(2),
            text(b"b"),
            text(b"y"),
            text(b"c"),
            text(b"z"),
            int(8),
        ],
    ];
    assert_eq!(elements, expected.concat());
}

#[test]
fn blocks_end_at_their_limits() {
    let by_entries = stream_of(1..=250, LIMITS);
    assert_eq!(
        by_entries
            .blocks()
            .iter()
            .map(|(_, block)| block.entries())
            .collect::<Vec<_>>(),
        [100, 100, 50]
    );
    let by_bytes = stream_of(1..=250, BlockLimits { bytes: 200, entries: 0 });
    assert!(by_bytes.blocks().iter().all(|(_, block)| block.listpack_bytes() <= 220));
    let unlimited = stream_of(1..=2500, BlockLimits { bytes: 0, entries: 0 });
    assert_eq!(unlimited.blocks().len(), 1);
}

#[test]
fn approximate_trimming_takes_whole_blocks_within_its_limit() {
    let trim = |keep, limit| TrimOptions {
        strategy: keep,
        is_approximate: true,
        limit,
    };
    let mut stream = stream_of(1..=1000, LIMITS);
    assert_eq!(stream.trim(trim(TrimTarget::MaxLength(950), 0)), 0);
    assert_eq!(stream.trim(trim(TrimTarget::MaxLength(899), 0)), 100);
    assert_eq!(stream.trim(trim(TrimTarget::MaxLength(0), 99)), 0);
    assert_eq!(stream.trim(trim(TrimTarget::MaxLength(0), 250)), 200);
    assert_eq!(stream.trim(trim(TrimTarget::MinId(StreamId::new(401, 0)), 0)), 100);
    assert_eq!(stream.metadata().first_id, StreamId::new(401, 0));
    assert_eq!(stream.trim(trim(TrimTarget::MaxLength(0), 0)), 600);
    assert_eq!((stream.length(), stream.blocks().len()), (0, 0));
    assert_eq!(stream.last_id(), StreamId::new(1000, 0));
}

/// Limits by which a stream has one block.
const NO_LIMITS: BlockLimits = BlockLimits { bytes: 0, entries: 0 };
/// The number of elements of an entry of [`stream_of`].
const ENTRY_ELEMENTS: u64 = 5;

/// Calls `read`, and returns its result and the number of entries that were read in the meantime.
fn count_reads<R>(read: impl FnOnce() -> R) -> (R, usize) {
    let before = block::ENTRIES_READ.get();
    let result = read();
    (result, block::ENTRIES_READ.get() - before)
}

fn ids_of<'a>(entries: impl Iterator<Item = StreamEntry<'a>>) -> Vec<u64> {
    entries.map(|entry| entry.id.ms).collect()
}

/// Returns a stream of one block, of whose many entries four are left: every 5000th.
fn stream_of_many_deleted_entries() -> Stream {
    let mut stream = stream_of(1..=20_000, NO_LIMITS);
    let (deleted, reads) = count_reads(|| {
        let ids = (1..=20_000).filter(|ms| ms % 5000 != 0);
        ids.filter(|ms| stream.delete(StreamId::new(*ms, 0))).count()
    });
    stream.update_first_id();
    assert_eq!((deleted, stream.length(), stream.blocks().len()), (19_996, 4, 1));
    assert!(reads < 20 * deleted, "{reads} entries were read to delete {deleted}");
    stream
}

#[test]
fn deleted_entries_of_a_large_block_are_not_read() {
    let mut stream = stream_of_many_deleted_entries();
    let id = |ms| StreamId::new(ms, 0);
    let most = 100;
    let (all, reads) = count_reads(|| ids_of(stream.entries(StreamId::MIN, StreamId::MAX)));
    assert!(all == [5000, 10_000, 15_000, 20_000] && reads < most, "{all:?} {reads}");
    let (some, reads) = count_reads(|| ids_of(stream.entries(id(7000), id(15_000))));
    assert!(some == [10_000, 15_000] && reads < most, "{some:?} {reads}");
    let (some, reads) = count_reads(|| ids_of(stream.entries_backwards(id(7000), id(18_000))));
    assert!(some == [15_000, 10_000] && reads < most, "{some:?} {reads}");
    let (found, reads) = count_reads(|| (stream.entry(id(15_000)).is_some(), stream.entry(id(14_000)).is_some()));
    assert!(found == (true, false) && reads < most, "{found:?} {reads}");
    let (last, reads) = count_reads(|| stream.last_entry_id());
    assert!(last == id(20_000) && reads < most, "{last:?} {reads}");
    let (_, reads) = count_reads(|| stream.update_first_id());
    assert!(reads < most, "{reads}");
    let trim = TrimOptions {
        strategy: TrimTarget::MaxLength(2),
        is_approximate: false,
        limit: 0,
    };
    let (trimmed, reads) = count_reads(|| stream.trim(trim));
    assert!(trimmed == 2 && reads < most, "{trimmed} {reads}");
    let elements = stream.elements_to_read(StreamId::MIN, StreamId::MAX, 10, false, u64::MAX);
    assert!(elements < most as u64 * ENTRY_ELEMENTS, "{elements}");
}

#[test]
fn a_group_does_not_read_deleted_entries_of_a_large_block() {
    let mut stream = stream_of(1..=10_000, NO_LIMITS);
    let group = stream.create_group(b"g", StreamId::MIN, None).expect("the first group");
    let (consumer, _) = group.find_or_create_consumer(b"c", 1);
    assert_eq!(stream.deliver(b"g", consumer, delivery(10, 1), |_| {}), 10);
    for ms in 11..10_000 {
        assert!(stream.delete(StreamId::new(ms, 0)));
    }
    let mut got = Vec::new();
    let (delivered, reads) =
        count_reads(|| stream.deliver(b"g", consumer, delivery(10, 2), |entry| got.push(entry.id.ms)));
    assert_eq!((delivered, got), (1, vec![10_000]));
    assert!(reads < 50, "{reads}");
    let fields = vec![(b"field".to_vec(), b"value".to_vec())];
    append(&mut stream, StreamId::new(10_001, 0), &fields, NO_LIMITS).expect("the IDs ascend");
    assert_eq!(stream.deliver(b"g", consumer, delivery(10, 3), |_| {}), 1);
}

#[test]
fn the_bytes_of_a_large_block_do_not_depend_on_its_segments() {
    let stream = stream_of_many_deleted_entries();
    let copy = copy_through_file(&stream);
    let block_of = |stream: &Stream| {
        let mut whole = Vec::new();
        let (_, block) = stream.blocks().iter().next().expect("there is a block");
        block.write_listpack(&mut whole);
        (whole, block.entries(), block.live())
    };
    assert_eq!(block_of(&copy), block_of(&stream));
    assert_eq!((block_of(&stream).1, block_of(&stream).2), (20_000, 4));
    assert_eq!(copy.metadata().first_id, StreamId::new(5000, 0));
    let (_, reads) = count_reads(|| copy.entries(StreamId::MIN, StreamId::MAX).count());
    assert!(reads < 100, "{reads}");
}

#[test]
fn estimates_are_close_to_the_work() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for limits in [NO_LIMITS, LIMITS, BlockLimits { bytes: 0, entries: 10 }] {
        for kept in [1, 10, 90] {
            let mut stream = stream_of(1..=5000, limits);
            for ms in (1..=5000).filter(|_| random.u32(..100) >= kept) {
                stream.delete(StreamId::new(ms, 0));
            }
            for count in [1, 10, 1000] {
                let start = StreamId::new(random.u64(1..4000), 0);
                let end = StreamId::new(start.ms + 1000, 0);
                let close = |reads: usize, estimate: u64| {
                    let elements = reads as u64 * ENTRY_ELEMENTS;
                    // Parts at the ends are not counted exactly: in two blocks of 100 entries.
                    let tolerance = 2 * 100 * ENTRY_ELEMENTS;
                    let is_close = elements <= 2 * estimate + tolerance && estimate <= 2 * elements + tolerance;
                    assert!(is_close, "{limits:?} {kept} {count} {start:?}: {elements} {estimate}");
                };
                let (_, reads) = count_reads(|| stream.entries(start, end).take(count).count());
                close(
                    reads,
                    stream.elements_to_read(start, end, count as u64, false, u64::MAX),
                );
                let (_, reads) = count_reads(|| stream.entries_backwards(start, end).take(count).count());
                close(reads, stream.elements_to_read(start, end, count as u64, true, u64::MAX));
            }
        }
    }
}

#[test]
fn the_work_of_trimming_counts_blocks_and_marked_entries() {
    let trim = |strategy, is_approximate, limit| TrimOptions {
        strategy,
        is_approximate,
        limit,
    };
    let usual = stream_of(1..=1000, LIMITS);
    let large = stream_of(1..=1000, NO_LIMITS);
    let (length, min_id) = (TrimTarget::MaxLength(450), TrimTarget::MinId(StreamId::new(551, 0)));
    for strategy in [length, min_id] {
        let TrimWork { elements, .. } = large.trim_work(trim(strategy, false, 0), 100);
        let expected = 550 * ENTRY_ELEMENTS;
        assert!(elements.abs_diff(expected) < 20 * ENTRY_ELEMENTS, "{elements}");
        assert_eq!(large.trim_work(trim(strategy, true, 0), 100).elements, 0);
    }
    assert_eq!(usual.trim_work(trim(length, false, 0), 100).blocks, 5);
    assert_eq!(usual.trim_work(trim(length, true, 0), 3).blocks, 3);
    assert_eq!(usual.trim_work(trim(length, true, 250), 100).blocks, 2);
    assert_eq!(usual.trim_work(trim(min_id, true, 0), 100).blocks, 6);
    let nothing = TrimTarget::MaxLength(1000);
    assert_eq!(usual.trim_work(trim(nothing, false, 0), 100), TrimWork::default());
}

fn delivery(count: usize, now_ms: i64) -> DeliveryOptions {
    DeliveryOptions {
        count,
        no_ack: false,
        now_ms,
    }
}

#[test]
fn a_group_receives_every_entry_once_regardless_of_changes_between_reads() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = BlockLimits { bytes: 0, entries: 7 };
    let mut stream = Stream::new();
    stream
        .create_group(b"g", StreamId::MIN, Some(0))
        .expect("the first group");
    let mut behind = StreamId::MIN;
    for step in 0..20_000 {
        match random.u8(..10) {
            0..5 => {
                let id = stream.last_id().next().expect("far from the end");
                append(&mut stream, id, &random_fields(&mut random), limits).expect("the IDs ascend");
            }
            5 => {
                let id = StreamId::new(0, random.u64(..=stream.last_id().seq));
                if stream.delete(id) {
                    stream.update_first_id();
                }
            }
            6 => {
                let keep = TrimTarget::MaxLength(random.u64(20..40));
                stream.trim(TrimOptions {
                    strategy: keep,
                    is_approximate: random.bool(),
                    limit: 0,
                });
            }
            7 if random.u8(..20) == 0 => {
                behind = StreamId::new(0, random.u64(..=stream.last_id().seq));
                stream.group_mut(b"g").expect("it exists").last_id = behind;
            }
            _ => {
                let group = stream.group_mut(b"g").expect("it exists");
                let name = [b'a' + random.u8(..3)];
                let (consumer, _) = group.find_or_create_consumer(&name, step);
                let start = behind.next().expect("far from the end");
                let count = random.usize(1..6);
                let expected: Vec<_> = stream
                    .entries(start, StreamId::MAX)
                    .take(count)
                    .map(|entry| (entry.id, fields_of(&entry)))
                    .collect();
                let mut got = Vec::new();
                let delivered = stream.deliver(b"g", consumer, delivery(count, step), |entry| {
                    got.push((entry.id, fields_of(&entry)));
                });
                assert_eq!(got, expected);
                assert_eq!(delivered, got.len());
                behind = got.last().map_or(behind, |(id, _)| *id);
                let group = stream.group_mut(b"g").expect("it exists");
                assert_eq!(group.last_id, behind);
                for (id, _) in &got {
                    assert_eq!(group.pending()[id].consumer, consumer);
                    if random.bool() {
                        assert!(group.acknowledge(*id));
                    }
                }
            }
        }
        if step % 100 == 0 {
            let group = stream.group_mut(b"g").expect("it exists");
            group.check();
            let name = [b'a' + random.u8(..3)];
            let pending = group
                .find_consumer(&name)
                .map(|number| group.consumer(number).pending().len());
            assert_eq!(group.remove_consumer(&name), pending);
            group.check();
        }
    }
}

#[test]
fn a_claimed_entry_is_pending_once() {
    let mut stream = stream_of(1..=3, LIMITS);
    let group = stream.create_group(b"g", StreamId::MIN, None).expect("the first group");
    let (one, created) = group.find_or_create_consumer(b"one", 5);
    assert!(created && group.consumer(one).active_ms == NEVER_ACTIVE);
    let (two, _) = group.find_or_create_consumer(b"another", 6);
    assert_eq!(group.find_or_create_consumer(b"one", 7), (one, false));
    let id = StreamId::new(2, 0);
    for consumer in [one, two, two] {
        group.set_pending(
            id,
            PendingEntry {
                delivered_ms: 1,
                deliveries: 1,
                consumer,
            },
        );
        group.check();
    }
    group.record_redelivery(id, 9);
    assert_eq!(
        group.pending()[&id],
        PendingEntry {
            delivered_ms: 9,
            deliveries: 2,
            consumer: two
        }
    );
    assert_eq!(group.remove_consumer(b"one"), Some(0));
    assert_eq!(group.remove_consumer(b"one"), None);
    let (three, _) = group.find_or_create_consumer(b"three", 8);
    assert!(group.consumer(three).pending().is_empty());
    assert_eq!(group.remove_consumer(b"another"), Some(1));
    assert!(group.pending().is_empty());
    assert!(stream.create_group(b"g", id, None).is_none());
    assert!(stream.destroy_group(b"g") && !stream.destroy_group(b"g"));
}

#[test]
fn next_and_previous_ids_are_inverse() {
    for (one, other) in [
        (StreamId::new(0, 0), StreamId::new(0, 1)),
        (StreamId::new(4, u64::MAX), StreamId::new(5, 0)),
    ] {
        assert_eq!((one.next(), other.previous()), (Some(other), Some(one)));
    }
    assert_eq!((StreamId::MIN.previous(), StreamId::MAX.next()), (None, None));
    let id = StreamId::new(1, u64::MAX);
    assert_eq!(StreamId::from_bytes(id.to_bytes()), id);
}

#[test]
fn deltas_wrap_around_where_the_second_part_is_large() {
    let mut stream = Stream::new();
    let fields: Fields = vec![(b"a".to_vec(), b"b".to_vec())];
    let ids = [
        StreamId::new(1, u64::MAX),
        StreamId::new(2, 0),
        StreamId::new(u64::MAX, 0),
        StreamId::MAX,
    ];
    for id in ids {
        append(&mut stream, id, &fields, LIMITS).expect("the IDs ascend");
    }
    let found: Vec<_> = stream
        .entries(StreamId::MIN, StreamId::MAX)
        .map(|entry| entry.id)
        .collect();
    assert_eq!(found, ids);
    assert_eq!(
        append(&mut stream, StreamId::MAX, &fields, LIMITS),
        Err(AppendError::IdTooSmall)
    );
}

/// Returns the number of nodes, counted on a tree of keys.
fn naive_nodes(keys: &[[u8; 16]], depth: usize, is_root: bool) -> u64 {
    let [first, .., last] = keys else {
        // One key has a node for its bytes and one for its end; without keys there is only the root.
        return if keys.is_empty() { 1 } else { 1 + u64::from(depth < 16) };
    };
    let common = (depth..16).take_while(|at| first[*at] == last[*at]).count();
    let parting = depth + common;
    let mut nodes = 1 + u64::from(common > 0);
    assert!(is_root || depth > 0);
    for group in keys.chunk_by(|one, other| one[parting] == other[parting]) {
        nodes += naive_nodes(group, parting + 1, false);
    }
    nodes
}

#[test]
fn the_radix_node_count_equals_that_of_a_built_tree() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for count in [0, 1, 2, 3, 10, 100, 1000] {
        for width in [1, 2, 20, 63] {
            let mask = (1u64 << width) - 1;
            let mut ids: Vec<_> = (0..count)
                .map(|_| StreamId::new(random.u64(..) & mask, random.u64(..) & mask))
                .collect();
            ids.sort();
            ids.dedup();
            let keys: Vec<_> = ids.iter().map(|id| id.to_bytes()).collect();
            assert_eq!(
                radix::node_count(ids.into_iter()),
                naive_nodes(&keys, 0, true),
                "{keys:?}"
            );
        }
    }
}

#[test]
fn damaged_blocks_are_refused_or_can_be_traversed() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let stream = stream_of(1..=20, LIMITS);
    let (base, block) = stream.blocks().iter().next().expect("there is a block");
    let mut whole = Vec::new();
    block.write_listpack(&mut whole);
    assert!(StreamBlock::read_listpack(*base, &whole).is_some());
    assert!(
        StreamBlock::read_listpack(StreamId::new(2, 0), &whole).is_some(),
        "deltas are relative"
    );
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(6..damaged.len());
            damaged[at] = if random.bool() { random.u8(..) } else { random.u8(..8) };
        }
        let mut builder = StreamBuilder::default();
        if builder.add_block(*base, &damaged).is_none() {
            continue;
        }
        accepted += 1;
        let mut stream = builder.finish(StreamMetadata::default());
        let forwards: Vec<_> = stream
            .entries(StreamId::MIN, StreamId::MAX)
            .map(|entry| entry.id)
            .collect();
        let mut backwards: Vec<_> = stream
            .entries_backwards(StreamId::MIN, StreamId::MAX)
            .map(|entry| entry.id)
            .collect();
        backwards.reverse();
        assert_eq!(forwards, backwards, "{damaged:?}");
        assert_eq!(forwards.len() as u64, stream.length());
        stream.trim(TrimOptions {
            strategy: TrimTarget::MaxLength(1),
            is_approximate: false,
            limit: 0,
        });
    }
    assert!(accepted > 100, "hardly anything was accepted");
}

/// A block without entries has an ID, but nothing that bounds the IDs of later entries.
#[test]
fn a_block_without_entries_or_fields_is_refused() {
    let mut stream = Stream::new();
    let fields = vec![(b"a".to_vec(), b"1".to_vec())];
    append(&mut stream, StreamId::new(5, 1), &fields, LIMITS).expect("it is the first");
    let (base, block) = stream.blocks().into_iter().next().expect("there is a block");
    let mut whole = Vec::new();
    block.write_listpack(&mut whole);
    assert!(StreamBlock::read_listpack(*base, &whole).is_some());
    // The header: no live and no deleted entries, no names, and the end of the names.
    let empty = [15, 0, 0, 0, 4, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0xff];
    assert!(crate::listpack::validate(&empty).is_some());
    assert!(StreamBlock::read_listpack(*base, &empty).is_none());
    // One entry with the names of the block, which has none.
    let mut bare = vec![0, 0, 0, 0, 8, 0];
    for number in [1u8, 0, 0, 0, 2, 0, 0, 3] {
        bare.extend([number, 1]);
    }
    bare.push(0xff);
    bare[0] = bare.len() as u8;
    assert!(crate::listpack::validate(&bare).is_some());
    assert!(StreamBlock::read_listpack(*base, &bare).is_none());
}

#[test]
fn groups_and_consumers_are_sorted_by_name() {
    let names = |count: u32| (0..count).map(|number| (number * 7919 % 1000).to_string().into_bytes());
    let mut sorted: Vec<Vec<u8>> = names(1000).collect();
    sorted.sort();
    let mut stream = Stream::new();
    for name in names(1000) {
        assert!(stream.create_group(&name, StreamId::MIN, None).is_some());
        assert!(stream.create_group(&name, StreamId::MIN, None).is_none());
    }
    assert!(
        stream
            .groups()
            .map(ConsumerGroup::name)
            .eq(sorted.iter().map(|name| &name[..]))
    );
    let group = stream.group_mut(b"500").unwrap();
    for name in names(1000) {
        assert!(group.find_or_create_consumer(&name, 1).1);
    }
    group.check();
    let numbers: Vec<ConsumerNumber> = names(500)
        .map(|name| {
            let number = group.find_consumer(&name).unwrap();
            assert_eq!(group.remove_consumer(&name), Some(0));
            assert_eq!(group.find_consumer(&name), None);
            number
        })
        .collect();
    group.check();
    for (name, number) in names(500).zip(numbers.into_iter().rev()) {
        assert_eq!(
            group.find_or_create_consumer(&name, 1),
            (number, true),
            "numbers are used again"
        );
    }
    group.check();
    assert_eq!(group.consumers().len(), 1000);
    for name in names(999) {
        assert!(stream.destroy_group(&name));
        assert!(!stream.destroy_group(&name));
    }
    assert_eq!(stream.groups().len(), 1);
}
