//! Tests of every type: a value that is moved in small steps stays equal to one that is not.

use std::ops::ControlFlow;

use super::*;
use crate::Value;
use crate::hash::{FieldExpiry, Hash, HashEncoding};
use crate::list::{Direction, List, ListEnd};
use crate::set::{Set, SetLimits};
use crate::sorted_set::{SortedSet, SortedSetEncoding};
use crate::stream::{BlockLimits, PendingEntry, Stream, StreamId};

/// Moves everything but boxed values, for some calls.
struct TestMover {
    left: usize,
    calls: usize,
}

impl TestMover {
    fn new(left: usize) -> Self {
        TestMover { left, calls: 0 }
    }

    fn count(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.calls += 1;
    }
}

impl PartMover for TestMover {
    fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    fn vec<T>(&mut self, vec: &mut Vec<T>) {
        self.count();
        let mut moved = Vec::with_capacity(vec.capacity());
        moved.append(vec);
        *vec = moved;
    }

    fn deque<T>(&mut self, deque: &mut VecDeque<T>) {
        self.count();
        let mut moved = VecDeque::with_capacity(deque.capacity());
        moved.append(deque);
        *deque = moved;
    }

    fn boxed_slice<T>(&mut self, slice: &mut Box<[T]>) {
        self.count();
        let mut elements = std::mem::take(slice).into_vec();
        let mut moved = Vec::with_capacity(elements.len());
        moved.append(&mut elements);
        *slice = moved.into_boxed_slice();
    }

    fn boxed<T>(&mut self, _: &mut Box<T>) {
        self.count();
    }
}

/// Returns a number that depends on `number` and looks random.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

/// Returns a name, one of `names`, and a value.
fn name_and_value(step: u64, names: u64) -> (Vec<u8>, Vec<u8>) {
    let name = format!("name:{}", mix(step) % names).into_bytes();
    let value = vec![step as u8; (mix(step + 1) % 120) as usize];
    (name, value)
}

/// Changes two equal values in the same way, and moves one of them in small steps meanwhile. Both must stay equal, and
/// take the same memory. Then the first is moved in one step. Returns the number of parts.
fn check<C: PartialEq>(
    new: impl Fn() -> Value,
    steps: u64,
    mut change: impl FnMut(&mut Value, u64),
    contents: impl Fn(&Value) -> C,
) -> usize {
    let [mut moved, mut still] = [new(), new()];
    let (mut cursor, mut rounds) = (PartCursor::default(), 0);
    for step in 0..steps {
        change(&mut moved, step);
        change(&mut still, step);
        let mut mover = TestMover::new(1 + step as usize % 5);
        cursor = moved.move_parts(cursor, &mut mover).unwrap_or_default();
        rounds += usize::from(cursor == PartCursor::default());
        if step % (steps / 20) == 0 || step + 1 == steps {
            assert!(contents(&moved) == contents(&still), "after step {step}");
            assert_eq!(moved.allocated_bytes(), still.allocated_bytes());
        }
    }
    assert!(rounds > 0, "a walk over the parts comes to its end");
    // Each step makes progress, however small it is.
    let (mut cursor, mut calls) = (Some(PartCursor::default()), 0);
    while let Some(from) = cursor {
        let mut mover = TestMover::new(1);
        cursor = moved.move_parts(from, &mut mover);
        assert!(cursor.is_none_or(|next| next > from));
        calls += mover.calls;
    }
    let mut mover = TestMover::new(usize::MAX);
    assert_eq!(moved.move_parts(PartCursor::default(), &mut mover), None);
    assert_eq!(mover.calls, calls, "both walks see all parts once");
    assert!(contents(&moved) == contents(&still));
    mover.calls
}

fn elements(value: &Value) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    if let Some(list) = value.list() {
        list.visit(0, Direction::Forward, |element| {
            elements.push(element.text(&mut [0; 20]).to_vec());
            ControlFlow::Continue(())
        });
    }
    elements
}

#[test]
fn lists_stay_equal() {
    let change = |value: &mut Value, step: u64| {
        let Value::List(list) = value else { return };
        let (_, element) = name_and_value(step, 1);
        match mix(step) % 8 {
            0..=2 => list.push(ListEnd::Head, &element),
            3..=5 => list.push(ListEnd::Tail, &element),
            6 => {
                let _ = list.replace(mix(step) as usize % list.len().max(1), &element);
            }
            _ => list.remove_range(mix(step) as usize % list.len().max(1), 2),
        }
    };
    for depth in [0, 1] {
        let parts = check(|| Value::List(List::quicklist(4, depth)), 3000, change, elements);
        assert!(parts > 300, "{parts}");
    }
}

#[test]
fn hashes_stay_equal() {
    let change = |value: &mut Value, step: u64| {
        let Value::Hash(hash) = value else { return };
        let (name, content) = name_and_value(step, if step < 2000 { 60 } else { 20_000 });
        match mix(step) % 5 {
            0 => {
                let _ = hash.remove(&name, 0);
            }
            1 => {
                let _ = hash.set(&name, &content, FieldExpiry::At(1000 + step), 0);
            }
            _ => {
                let _ = hash.set(&name, &content, FieldExpiry::Never, 0);
            }
        }
    };
    let contents = |value: &Value| match value {
        Value::Hash(hash) => {
            let fields = hash.iter(0);
            let owned = fields.map(|field| (field.key.to_vec(), field.value.to_vec(), field.expire_at_ms));
            owned.collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    let new = || Value::Hash(Hash::new(HashEncoding::Hashtable));
    let parts = check(new, 20_000, change, contents);
    assert!(parts > 50, "{parts}");
}

#[test]
fn sets_stay_equal() {
    const LIMITS: SetLimits = SetLimits {
        integers: 2000,
        run_members: 128,
        run_member_bytes: 64,
    };
    let change = |value: &mut Value, step: u64| {
        let Value::Set(set) = value else { return };
        let name = match step {
            0..2000 => (mix(step) % 1000).to_string().into_bytes(),
            _ => name_and_value(step, 20_000).0,
        };
        match mix(step) % 4 {
            0 => {
                let _ = set.remove(&name);
            }
            _ => {
                let _ = set.add(&name, LIMITS);
            }
        }
    };
    let contents = |value: &Value| {
        let mut members = Vec::new();
        if let Value::Set(set) = value {
            set.view()
                .for_each(|member| members.push(member.text(&mut [0; 20]).to_vec()));
        }
        members
    };
    let parts = check(|| Value::Set(Set::new_integers()), 20_000, change, contents);
    assert!(parts > 30, "{parts}");
}

#[test]
fn sorted_sets_stay_equal() {
    let change = |value: &mut Value, step: u64| {
        let Value::SortedSet(set) = value else { return };
        let (name, _) = name_and_value(step, if step < 2000 { 100 } else { 20_000 });
        match set.remove(&name) {
            Some(_) if !mix(step).is_multiple_of(3) => {}
            _ => set.insert(&name, (mix(step) % 1000) as f64),
        }
    };
    let contents = |value: &Value| {
        let mut members = Vec::new();
        if let Value::SortedSet(set) = value {
            for (member, score) in set.iter_ranks(0..set.len(), false) {
                members.push((member.to_vec(), score));
                assert_eq!(set.score(member), Some(score));
            }
        }
        members
    };
    let new = || Value::SortedSet(SortedSet::new(SortedSetEncoding::Skiplist));
    let parts = check(new, 20_000, change, contents);
    assert!(parts > 300, "{parts}");
}

#[test]
fn streams_stay_equal() {
    const LIMITS: BlockLimits = BlockLimits { bytes: 200, entries: 0 };
    let change = |value: &mut Value, step: u64| {
        let Value::Stream(stream) = value else { return };
        let (name, content) = name_and_value(step, 50);
        let id = StreamId::new(1000 + step / 3, step);
        let pairs: [(&[u8], &[u8]); 1] = [(&name, &content)];
        match mix(step) % 10 {
            0 => {
                stream.delete(StreamId::new(1000 + (step - step.min(20)) / 3, step - step.min(20)));
                stream.update_first_id();
            }
            1 => {
                stream.create_group(&name, StreamId::MIN, None);
                if let Some(group) = stream.group_mut(&name) {
                    let (consumer, _) = group.find_or_create_consumer(&content, 5);
                    let pending = PendingEntry {
                        delivered_ms: 1,
                        deliveries: 1,
                        consumer,
                    };
                    group.set_pending(id, pending);
                }
            }
            _ => {
                let _ = stream.append(id, pairs.into_iter(), LIMITS);
            }
        }
    };
    let contents = |value: &Value| {
        let Value::Stream(stream) = value else {
            panic!("a stream")
        };
        let entries = stream.entries(StreamId::MIN, StreamId::MAX);
        let entries: Vec<String> = entries
            .map(|entry| format!("{:?} {:?}", entry.id, entry.pairs().collect::<Vec<_>>()))
            .collect();
        let groups: Vec<String> = stream
            .groups()
            .map(|group| {
                let consumers = group.consumers().map(|(_, consumer)| consumer.name().to_vec());
                format!(
                    "{:?} {:?} {:?}",
                    group.name(),
                    group.pending(),
                    consumers.collect::<Vec<_>>()
                )
            })
            .collect();
        (entries, groups)
    };
    let parts = check(|| Value::Stream(Stream::new()), 3000, change, contents);
    assert!(parts > 300, "{parts}");
}
