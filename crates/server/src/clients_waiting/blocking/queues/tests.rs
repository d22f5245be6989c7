//! Tests that queues keep the order of park ids, report their contents, and free their memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_base::{ClientId, DbIndex, ParkId, SlotIndex, ThreadIndex};
use weft_resp::Protocol;
use weft_values::list::ListEnd;

use super::super::{
    BlockingOperation, ScoreEnd, WaitKey, WaitQueueKind, WaitedKind, Waiter, WaiterParameters, WaiterPermission,
};
use super::{SlotWaiters, WaitCounts};
use weft_acl::Login;

fn waiter(park_id: u64, db: DbIndex, operation: BlockingOperation) -> Arc<Waiter> {
    Arc::new(Waiter::new(WaiterParameters {
        client: ClientId::new(park_id),
        worker: ThreadIndex::FIRST,
        park_id: ParkId::new(park_id),
        db,
        protocol: Protocol::Resp2,
        keys: Box::new([]),
        operation,
        deadline_ms: None,
        demotions: Some(0),
        tracks_reads: false,
        is_module_call: false,
        permission: WaiterPermission {
            account: Login::unauthenticated().account().clone(),
            acl_version: 1,
            command: 0,
            first_argument: Box::default(),
        },
    }))
}

fn key(name: &[u8]) -> WaitKey {
    WaitKey {
        hash: name.len() as u64,
        slot: SlotIndex::from_index(0),
        name: name.into(),
    }
}

fn operations() -> [BlockingOperation; 3] {
    let destination = WaitKey {
        hash: 1,
        slot: SlotIndex::from_index(2),
        name: b"to"[..].into(),
    };
    let (from, to) = (ListEnd::Head, ListEnd::Tail);
    [
        BlockingOperation::ListPop(ListEnd::Head),
        BlockingOperation::ListMove {
            source_end: from,
            destination_end: to,
            destination,
            end_words: None,
        },
        BlockingOperation::SortedSetPop(ScoreEnd::Min),
    ]
}

/// Returns the park ids of a queue in the order in which they are served.
fn park_ids(waiting: &SlotWaiters, db: DbIndex, name: &[u8], line: &WaitQueueKind) -> Vec<u64> {
    let mut found: Vec<ParkId> = Vec::new();
    while let Some(waiter) = waiting.next_waiter(db, name, line, found.last().copied().unwrap_or(ParkId::NONE)) {
        found.push(waiter.park_id);
    }
    found.into_iter().map(ParkId::get).collect()
}

#[test]
fn a_queue_is_served_in_the_order_of_park_ids() {
    let (mut waiting, counts) = (SlotWaiters::default(), WaitCounts::default());
    let [pop, shift, score] = operations();
    for (park_id, operation) in [(7, &pop), (9, &shift), (8, &score), (12, &pop)] {
        waiting.add_waiter(&key(b"k"), &waiter(park_id, DbIndex::FIRST, operation.clone()), &counts);
    }
    assert_eq!(
        park_ids(&waiting, DbIndex::FIRST, b"k", &WaitQueueKind::List),
        [7, 9, 12]
    );
    assert_eq!(park_ids(&waiting, DbIndex::FIRST, b"k", &WaitQueueKind::SortedSet), [8]);
    assert_eq!(park_ids(&waiting, DbIndex::new(1), b"k", &WaitQueueKind::List), []);
    assert_eq!(park_ids(&waiting, DbIndex::FIRST, b"other", &WaitQueueKind::List), []);
    let claimed = |kind| waiting.affected_queues(DbIndex::FIRST, b"k", kind);
    assert_eq!(claimed(WaitedKind::List), [WaitQueueKind::List]);
    assert_eq!(claimed(WaitedKind::SortedSet), [WaitQueueKind::SortedSet]);
    assert_eq!(
        (claimed(WaitedKind::Stream), claimed(WaitedKind::NotWaited)),
        (vec![], vec![])
    );
}

#[test]
fn a_key_given_twice_counts_once() {
    let (mut waiting, counts) = (SlotWaiters::default(), WaitCounts::default());
    let [pop, ..] = operations();
    let waiter = waiter(1, DbIndex::FIRST, pop);
    waiting.add_waiter(&key(b"k"), &waiter, &counts);
    waiting.add_waiter(&key(b"k"), &waiter, &counts);
    assert_eq!(counts.keys(), 1);
    assert!(waiting.remove_waiter(b"k", &waiter, &counts));
    assert!(!waiting.remove_waiter(b"k", &waiter, &counts));
    assert!(waiting.is_empty());
    assert_eq!(counts.keys(), 0);
}

#[test]
fn only_waiters_of_groups_are_served_when_a_stream_is_deleted() {
    let group = WaitQueueKind::StreamGroup(b"g"[..].into());
    for kind in [
        WaitedKind::List,
        WaitedKind::SortedSet,
        WaitedKind::Stream,
        WaitedKind::NotWaited,
    ] {
        assert!(group.matches_kind(kind), "{kind:?}");
        assert_eq!(
            WaitQueueKind::Stream.matches_kind(kind),
            kind == WaitedKind::Stream,
            "{kind:?}"
        );
        assert_eq!(
            WaitQueueKind::List.matches_kind(kind),
            kind == WaitedKind::List,
            "{kind:?}"
        );
        assert_eq!(
            WaitQueueKind::SortedSet.matches_kind(kind),
            kind == WaitedKind::SortedSet,
            "{kind:?}"
        );
    }
}

#[test]
fn random_operations_agree_with_a_plain_list() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut waiting, counts) = (SlotWaiters::default(), WaitCounts::default());
    let operations = operations();
    // The waiters by name, database and queue.
    let mut model: BTreeMap<(u8, DbIndex, WaitQueueKind), Vec<Arc<Waiter>>> = BTreeMap::new();
    for park_id in 1..5000 {
        let name = random.u8(b'a'..b'f');
        let db = DbIndex::new(random.usize(0..3));
        let operation = operations[random.usize(0..operations.len())].clone();
        let place = (name, db, operation.queue_kind());
        if random.bool() {
            let waiter = waiter(park_id, db, operation);
            waiting.add_waiter(&key(&[name]), &waiter, &counts);
            model.entry(place).or_default().push(waiter);
        } else if let Some(waiters) = model.get_mut(&place) {
            let at = random.usize(0..waiters.len());
            let waiter = waiters.remove(at);
            if waiters.is_empty() {
                model.remove(&place);
            }
            assert!(waiting.remove_waiter(&[name], &waiter, &counts));
        }
        let mut keys: Vec<(u8, DbIndex)> = model.keys().map(|(name, db, _)| (*name, *db)).collect();
        keys.dedup();
        assert_eq!(counts.keys(), keys.len());
        assert_eq!(waiting.is_empty(), model.is_empty());
    }
    for ((name, db, line), waiters) in &model {
        let expected: Vec<u64> = waiters.iter().map(|waiter| waiter.park_id.get()).collect();
        assert_eq!(park_ids(&waiting, *db, &[*name], line), expected);
        let kind = if *line == WaitQueueKind::List {
            WaitedKind::List
        } else {
            WaitedKind::SortedSet
        };
        assert!(
            waiting.has_waiter_for(*db, &[*name], kind)
                && !waiting.has_waiter_for(*db, &[*name], WaitedKind::NotWaited)
        );
        assert!(waiting.names(*db).any(|other| other == [*name]));
    }
}
