//! Queues keep the order of tickets, know what they hold, and leave nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_resp::Protocol;
use weft_values::list::ListEnd;

use super::super::{Kind, Line, Operation, Permit, ScoreEnd, Wait, WaitKey, Waiter};
use super::{Counts, Waiting};
use weft_acl::Login;

fn waiter(ticket: u64, db: usize, operation: Operation) -> Arc<Waiter> {
    Arc::new(Waiter::new(Wait {
        client: ticket,
        worker: 0,
        ticket,
        db,
        protocol: Protocol::Resp2,
        keys: Box::new([]),
        operation,
        deadline_ms: None,
        demotions: 0,
        permit: Permit {
            account: Login::unauthenticated().account().clone(),
            version: 1,
            command: 0,
            first_argument: Box::default(),
        },
    }))
}

fn key(name: &[u8]) -> WaitKey {
    WaitKey {
        hash: name.len() as u64,
        slot: 0,
        name: name.into(),
    }
}

fn operations() -> [Operation; 3] {
    let destination = WaitKey {
        hash: 1,
        slot: 2,
        name: b"to"[..].into(),
    };
    let (from, to) = (ListEnd::Head, ListEnd::Tail);
    [
        Operation::ListPop(ListEnd::Head),
        Operation::ListMove { from, to, destination },
        Operation::SortedSetPop(ScoreEnd::Min),
    ]
}

/// The tickets of a line in the order in which they are served.
fn tickets(waiting: &Waiting, db: usize, name: &[u8], line: &Line) -> Vec<u64> {
    let mut tickets = Vec::new();
    while let Some(waiter) = waiting.next(db, name, line, tickets.last().copied().unwrap_or(0)) {
        tickets.push(waiter.ticket);
    }
    tickets
}

#[test]
fn a_line_is_served_in_the_order_of_tickets() {
    let (mut waiting, counts) = (Waiting::default(), Counts::default());
    let [pop, shift, score] = operations();
    for (ticket, operation) in [(7, &pop), (9, &shift), (8, &score), (12, &pop)] {
        waiting.add(&key(b"k"), &waiter(ticket, 0, operation.clone()), &counts);
    }
    assert_eq!(tickets(&waiting, 0, b"k", &Line::Lists), [7, 9, 12]);
    assert_eq!(tickets(&waiting, 0, b"k", &Line::SortedSets), [8]);
    assert_eq!(tickets(&waiting, 1, b"k", &Line::Lists), []);
    assert_eq!(tickets(&waiting, 0, b"other", &Line::Lists), []);
    let claimed = |kind| waiting.affected_queues(0, b"k", kind);
    assert_eq!(claimed(Kind::List), [Line::Lists]);
    assert_eq!(claimed(Kind::SortedSet), [Line::SortedSets]);
    assert_eq!((claimed(Kind::Stream), claimed(Kind::Other)), (vec![], vec![]));
}

#[test]
fn a_key_named_twice_is_one_key() {
    let (mut waiting, counts) = (Waiting::default(), Counts::default());
    let [pop, ..] = operations();
    let waiter = waiter(1, 0, pop);
    waiting.add(&key(b"k"), &waiter, &counts);
    waiting.add(&key(b"k"), &waiter, &counts);
    assert_eq!(counts.keys(), 1);
    assert!(waiting.remove(b"k", &waiter, &counts));
    assert!(!waiting.remove(b"k", &waiter, &counts));
    assert!(waiting.is_empty());
    assert_eq!(counts.keys(), 0);
}

#[test]
fn only_waiters_of_groups_hear_of_the_end_of_a_stream() {
    let group = Line::Group(b"g"[..].into());
    for kind in [Kind::List, Kind::SortedSet, Kind::Stream, Kind::Other] {
        assert!(group.is_served_by(kind), "{kind:?}");
        assert_eq!(Line::Streams.is_served_by(kind), kind == Kind::Stream, "{kind:?}");
        assert_eq!(Line::Lists.is_served_by(kind), kind == Kind::List, "{kind:?}");
        assert_eq!(Line::SortedSets.is_served_by(kind), kind == Kind::SortedSet, "{kind:?}");
    }
}

#[test]
fn any_coming_and_going_agrees_with_a_plain_list() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut waiting, counts) = (Waiting::default(), Counts::default());
    let operations = operations();
    // By name, database and line: the waiters who stand there.
    let mut model: BTreeMap<(u8, usize, Line), Vec<Arc<Waiter>>> = BTreeMap::new();
    for ticket in 1..5000 {
        let name = random.u8(b'a'..b'f');
        let db = random.usize(0..3);
        let operation = operations[random.usize(0..operations.len())].clone();
        let place = (name, db, operation.line());
        if random.bool() {
            let waiter = waiter(ticket, db, operation);
            waiting.add(&key(&[name]), &waiter, &counts);
            model.entry(place).or_default().push(waiter);
        } else if let Some(waiters) = model.get_mut(&place) {
            let at = random.usize(0..waiters.len());
            let waiter = waiters.remove(at);
            if waiters.is_empty() {
                model.remove(&place);
            }
            assert!(waiting.remove(&[name], &waiter, &counts));
        }
        let mut keys: Vec<(u8, usize)> = model.keys().map(|(name, db, _)| (*name, *db)).collect();
        keys.dedup();
        assert_eq!(counts.keys(), keys.len());
        assert_eq!(waiting.is_empty(), model.is_empty());
    }
    for ((name, db, line), waiters) in &model {
        let expected: Vec<u64> = waiters.iter().map(|waiter| waiter.ticket).collect();
        assert_eq!(tickets(&waiting, *db, &[*name], line), expected);
        let kind = if *line == Line::Lists {
            Kind::List
        } else {
            Kind::SortedSet
        };
        assert!(waiting.has_waiter_for(*db, &[*name], kind) && !waiting.has_waiter_for(*db, &[*name], Kind::Other));
        assert!(waiting.names(*db).any(|other| other == [*name]));
    }
}
