//! Tests of how much is evicted, on a server none of whose threads runs.

use weft_base::DbIndex;
use weft_table::NewValue;

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Seat, publish_header};
use crate::start::create_idle_server;
use weft_config::{Config, SetPermissions};

const KEYS: usize = 200;
const NOW_MS: u64 = 1_800_000_000_000;

fn set(config: &Config, name: &str, value: &str) {
    let permissions = SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    config
        .set(&[(name.as_bytes(), value.as_bytes())], permissions, &mut |_| Ok(()))
        .expect("the value is valid");
}

/// Adds keys of 4000 bytes each.
fn fill(server: &Server, seat: &mut Seat, worker: ThreadIndex) {
    let pass = seat.enter();
    for number in 0..KEYS {
        let name = format!("key:{number}");
        let hash = server.keyspace.hasher.hash(name.as_bytes());
        let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
        let (header, slot) = lease.parts_mut();
        let value = NewValue::Bytes(&[b'v'; 4000]);
        drop(
            slot.table_mut(DbIndex::FIRST)
                .insert(hash, name.as_bytes(), value, None, 0),
        );
        publish_header(header, slot);
    }
    server.keyspace.counts.add(worker, DbIndex::FIRST, KEYS as i64, 0);
}

/// A worker has a cell in the used memory, other threads have none.
#[test]
fn an_excess_is_evicted_once_by_any_thread() {
    for index in [0, 1] {
        let server = create_idle_server(Config::defaults());
        set(&server.config, "maxmemory-policy", "allkeys-random");
        let mut seat = server.keyspace.slots.join().expect("a seat");
        let worker = ThreadIndex::new(index);
        fill(&server, &mut seat, worker);
        server.memory.calibrate().expect("the allocator counts");
        let limit = server.memory.used_bytes() - 40_000;
        // As from a configuration file: the thread does not exist yet.
        set(&server.config, "maxmemory", &limit.to_string());
        let mut thread = ThreadState::new(server.clone(), worker);
        assert!(thread.memory_limit.cell.is_none());
        thread.begin_batch(NOW_MS);
        assert_eq!(thread.memory_limit.cell.is_some(), index == 0);
        let pass = seat.enter();
        for _ in 0..5 {
            thread.batches += 1;
            thread.begin_passage();
            evict_to_limit(&mut thread, &pass);
        }
        let left = server.keyspace.counts.keys(DbIndex::FIRST) as usize;
        assert!((KEYS - 14..KEYS - 7).contains(&left), "thread {index}: {left} keys");
    }
}
