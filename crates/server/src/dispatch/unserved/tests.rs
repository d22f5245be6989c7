//! Tests of keys whose clients are served later, on a server none of whose threads runs.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ThreadIndex};
use weft_cluster::slot_set::SlotSet;
use weft_config::{Config, SetPermissions};
use weft_os::atomic::Ordering;
use weft_resp::Protocol;
use weft_table::NewValue;
use weft_values::Value;
use weft_values::stream::{BlockLimits, Stream, StreamId};

use super::*;
use crate::clients_waiting::blocking::{
    BlockingOperation, GroupRead, WaitKey, Waiter, WaiterParameters, WaiterPermission,
};
use crate::dispatch::admit::refusal_of_waiter;
use crate::keyspace::ready_keys::ReadyKey;
use crate::net::client::Client;
use crate::replication::ReplicationState;
use crate::start::create_idle_server;
use crate::state::{PauseReason, Server};

/// Returns the state of a thread, and its seat.
fn thread() -> (ThreadState, Seat) {
    let server = create_idle_server(Config::defaults());
    let seat = server.keyspace.slots.join().expect("a seat");
    (ThreadState::new(server, ThreadIndex::FIRST), seat)
}

/// Returns a key of a slot, with a hash that belongs to the slot.
fn wait_key(slot: usize) -> WaitKey {
    WaitKey {
        hash: (slot as u64) << 50,
        slot: SlotIndex::from_index(slot),
        name: format!("key:{slot}").into_bytes().into(),
    }
}

fn ready_key(slot: usize) -> ReadyKey {
    let key = wait_key(slot);
    ReadyKey::new(DbIndex::FIRST, key.slot, key.hash, &key.name)
}

fn slots_of(keys: &VecDeque<UnservedKey>) -> Vec<usize> {
    keys.iter().map(|unserved| unserved.key.slot.index()).collect()
}

/// Stores a stream with the entry 1-1 and without groups.
fn add_stream(seat: &mut Seat, slot: usize) {
    let mut stream = Stream::new();
    let pairs = [(&b"field"[..], &b"value"[..])];
    let limits = BlockLimits { bytes: 0, entries: 0 };
    stream
        .append(StreamId::new(1, 1), pairs.into_iter(), limits)
        .expect("the first entry");
    let key = wait_key(slot);
    let pass = seat.enter();
    let mut lease = pass.try_write(slot).expect("the slot is free");
    let (_, data) = lease.parts_mut();
    let value = NewValue::Object(Value::Stream(stream));
    drop(
        data.table_mut(DbIndex::FIRST)
            .insert(key.hash, &key.name, value, None, 0),
    );
}

/// Adds a client that waits for the key of a slot.
fn add_waiter(server: &Server, seat: &mut Seat, slot: usize, operation: BlockingOperation) -> Arc<Waiter> {
    add_waiter_for(server, seat, &[slot], operation)
}

/// Adds a client that waits for the keys of these slots.
fn add_waiter_for(server: &Server, seat: &mut Seat, slots: &[usize], operation: BlockingOperation) -> Arc<Waiter> {
    let client = Client::new(server.clients.next_client_id(), 0, ThreadIndex::FIRST);
    let waiter = Arc::new(Waiter::new(WaiterParameters {
        client: client.id,
        worker: ThreadIndex::FIRST,
        park_id: server.clients.next_park_id(),
        db: DbIndex::FIRST,
        protocol: Protocol::Resp2,
        keys: slots.iter().map(|slot| wait_key(*slot)).collect(),
        operation,
        deadline_ms: None,
        demotions: None,
        tracks_reads: false,
        is_module_call: false,
        permission: WaiterPermission {
            account: client.login.account().clone(),
            acl_version: server.acl.version(),
            command: 0,
            first_argument: Box::default(),
        },
    }));
    let pass = seat.enter();
    for (slot, key) in slots.iter().zip(&waiter.keys) {
        let mut lease = pass.try_write(*slot).expect("the slot is free");
        let (_, data) = lease.parts_mut();
        data.change_blocked(key.hash, |waiting| {
            waiting.add_waiter(key, &waiter, &server.clients.blocked)
        });
    }
    drop(pass);
    waiter
}

/// XREAD of every entry.
fn read() -> BlockingOperation {
    BlockingOperation::StreamRead([StreamId::MIN].into(), 10)
}

/// XREADGROUP of a group that no stream has. It is served with an error.
fn read_group() -> BlockingOperation {
    BlockingOperation::StreamReadGroup(Box::new(GroupRead {
        group: (*b"group").into(),
        consumer: (*b"consumer").into(),
        count: 10,
        no_ack: false,
    }))
}

fn retry(thread: &mut ThreadState, seat: &mut Seat, unserved: UnservedKeys) -> Option<UnservedKeys> {
    retry_unserved(thread, seat, &mut HashSet::new(), unserved).map(|left| left.unserved)
}

#[test]
fn a_pause_of_writes_holds_back_only_the_clients_that_write() {
    let (mut thread, mut seat) = thread();
    let server = thread.server.clone();
    add_stream(&mut seat, 3);
    let reader = add_waiter(&server, &mut seat, 3, read());
    let group_reader = add_waiter(&server, &mut seat, 3, read_group());
    server.pause_clients(PauseReason::Client, unix_ms(), u64::MAX, true);
    let unserved = UnservedKeys::new([3].map(ready_key).into());
    let left = retry(&mut thread, &mut seat, unserved).expect("all commands are paused");
    assert!(!reader.is_claimed() && !group_reader.is_claimed());

    server.unpause_clients(PauseReason::Client);
    server.pause_clients(PauseReason::Client, unix_ms(), u64::MAX, false);
    let left = retry(&mut thread, &mut seat, left).expect("writes are paused");
    let reply = &reader.serve_result().expect("is served").reply;
    assert!(reply.starts_with(b"*1\r\n*2\r\n$5\r\nkey:3\r\n"), "{reply:?}");
    assert!(!group_reader.is_claimed() && group_reader.is_held_up());
    // The rest of the key is not attempted again before the pause ends.
    let other_pass = seat.enter();
    let lease = other_pass.try_write(3).expect("the slot is free");
    let mut other_seat = server.keyspace.slots.join().expect("a seat");
    let mut refused_slots = HashSet::new();
    let left = retry_unserved(&mut thread, &mut other_seat, &mut refused_slots, left).expect("writes are paused");
    assert!(refused_slots.is_empty());
    drop(lease);
    drop(other_pass);

    server.unpause_clients(PauseReason::Client);
    assert!(retry(&mut thread, &mut seat, left.unserved).is_none());
    assert!(group_reader.serve_result().is_some_and(|served| served.is_error));
    assert!(!group_reader.is_held_up());
}

#[test]
fn one_thread_at_a_time_serves_clients_that_wait_in_several_slots() {
    let (mut thread, mut seat) = thread();
    let server = thread.server.clone();
    add_stream(&mut seat, 3);
    let read_two = BlockingOperation::StreamRead([StreamId::MIN, StreamId::MIN].into(), 10);
    let first = add_waiter(&server, &mut seat, 3, read());
    let waiter = add_waiter_for(&server, &mut seat, &[3, 5], read_two);
    let last = add_waiter(&server, &mut seat, 3, read());
    let other = ThreadIndex::new(1);
    let permit = server.clients.multi_slot_service.try_take(other, 0, unix_ms());
    let unserved = UnservedKeys::new([3].map(ready_key).into());
    let left = retry(&mut thread, &mut seat, unserved).expect("another thread serves such clients");
    assert!(first.is_claimed() && !waiter.is_claimed() && !last.is_claimed());
    assert_eq!(slots_of(&left.keys), [3]);
    drop(permit);
    assert!(retry(&mut thread, &mut seat, left).is_none());
    assert!(waiter.is_claimed() && last.is_claimed());
    let permit = server.clients.multi_slot_service.try_take(other, 0, unix_ms());
    assert!(permit.is_some(), "the permit ends with the service");
}

/// The client whose command made the key ready has its reply before the pause ends.
#[test]
fn a_reply_waits_for_another_thread_but_not_for_the_end_of_a_pause() {
    for includes_reads in [false, true] {
        let (mut thread, mut seat) = thread();
        let server = thread.server.clone();
        add_stream(&mut seat, 3);
        let waiter = add_waiter(&server, &mut seat, 3, read_group());
        let mut other_seat = server.keyspace.slots.join().expect("a seat");
        let other_pass = other_seat.enter();
        let lease = other_pass.try_write(3).expect("the slot is free");
        let mut attempt = |unserved| {
            let left = retry_unserved(&mut thread, &mut seat, &mut HashSet::new(), unserved);
            left.expect("the waiter is not served")
        };
        let left = attempt(UnservedKeys::new([3].map(ready_key).into()));
        assert!(!left.is_paused, "the slot is leased");
        server.pause_clients(PauseReason::Client, unix_ms(), u64::MAX, includes_reads);
        let left = attempt(left.unserved);
        assert_eq!(left.is_paused, includes_reads, "it may have a waiter that reads");
        drop(lease);
        drop(other_pass);
        for _ in 0..2 {
            let left = attempt(UnservedKeys::new([3].map(ready_key).into()));
            assert!(left.is_paused && !waiter.is_claimed());
        }
        let left = attempt(left.unserved);
        assert!(left.is_paused && !waiter.is_claimed());
        server.unpause_clients(PauseReason::Client);
        assert!(retry(&mut thread, &mut seat, left.unserved).is_none());
        assert!(waiter.is_claimed());
    }
}

#[test]
fn a_key_whose_slot_changes_its_owner_delays_no_other_key() {
    let (mut thread, mut seat) = thread();
    let server = thread.server.clone();
    let [held, free] = [3, 5].map(|slot| add_waiter(&server, &mut seat, slot, read_group()));
    add_stream(&mut seat, 3);
    let reader = add_waiter(&server, &mut seat, 3, read());
    let mut slots = SlotSet::default();
    slots.set(SlotIndex::from_index(3), true);
    server.clients.pause.held_slots.hold(&slots, u64::MAX);
    let unserved = UnservedKeys::new([3, 5].map(ready_key).into());
    let left = retry(&mut thread, &mut seat, unserved).expect("a key is left");
    assert_eq!(slots_of(&left.keys), [3]);
    assert!(!held.is_claimed() && free.is_claimed() && reader.is_claimed());
    server.release_held_slots(&slots);
    assert!(retry(&mut thread, &mut seat, left).is_none());
    assert!(held.is_claimed());
}

#[test]
fn clients_are_served_at_a_time_at_which_all_keys_that_were_seen_expired_have_expired() {
    let (mut thread, mut seat) = thread();
    thread.begin_batch(1000);
    thread.server.keyspace.counts.seen_expiry.note(2000);
    let unserved = UnservedKeys::new([3].map(ready_key).into());
    assert!(retry(&mut thread, &mut seat, unserved).is_none());
    assert!(thread.now_ms >= 2000);
}

/// Valkey runs the command of a waiting client again, with the checks before a command.
#[test]
fn the_state_of_the_server_refuses_commands_of_waiting_clients() {
    let (thread, _seat) = thread();
    let server = &thread.server;
    let code = |writes: bool| -> Option<String> {
        let error = refusal_of_waiter(server, writes)?;
        Some(String::from_utf8_lossy(error.code()).into_owned())
    };
    let set = |parameter: &[u8], value: &[u8]| {
        let permissions = SetPermissions {
            may_set_protected: true,
            is_loading: false,
        };
        let changed = server.config.set(&[(parameter, value)], permissions, &mut |_| Ok(()));
        changed.expect("a valid value");
    };
    assert_eq!((code(true), code(false)), (None, None));
    server
        .replication
        .set_state_bits(ReplicationState::TOO_FEW_REPLICAS, true);
    assert_eq!((code(true).as_deref(), code(false)), (Some("NOREPLICAS"), None));
    server.replication.set_state_bits(ReplicationState::IS_REPLICA, true);
    assert_eq!((code(true).as_deref(), code(false)), (Some("READONLY"), None));
    set(b"replica-read-only", b"no");
    assert_eq!((code(true), code(false)), (None, None));
    server.replication.set_state_bits(ReplicationState::LINK_DOWN, true);
    set(b"replica-serve-stale-data", b"no");
    assert_eq!(code(false).as_deref(), Some("MASTERDOWN"));
    set(b"save", b"100 1");
    server
        .persistence
        .dumps
        .has_last_save_failed
        .store(true, Ordering::Relaxed);
    assert_eq!(code(true).as_deref(), Some("MISCONF"));
}
