//! Tests of which keys are sampled, on a server none of whose threads runs.

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_config::Config;
use weft_resp::{ArgRange, Args};

use super::*;
use crate::start::create_idle_server;

#[test]
fn keys_of_slots_that_are_being_imported_are_not_sampled() {
    const REQUEST: &[u8] = b"getkey";
    const RANGES: [ArgRange; 2] = [ArgRange { start: 0, len: 3 }, ArgRange { start: 3, len: 3 }];
    let server = create_idle_server(Config::defaults());
    let now_ms = unix_ms();
    assert!(server.stats.hot_keys.start(1, now_ms, u64::MAX, 0));
    let mut thread = ThreadState::new(server.clone(), ThreadIndex::FIRST);
    thread.begin_batch(now_ms);
    let args = Args::new(REQUEST, &RANGES);
    let command = registry().command(b"get").expect("the command exists");
    let db = DbIndex::FIRST;
    let keys = [PlannedKey::from_argument(1, server.keyspace.hasher.hash(b"key"), false)];
    let header = server.keyspace.slots.header(keys[0].slot.index());
    let mut samples_after_use = |is_importing| {
        header.set_importing(is_importing);
        sample_keys(&mut thread, CommandCall { command, args, db }, &keys, 100);
        server.stats.hot_keys.report(10, now_ms).samples
    };
    assert_eq!(samples_after_use(false), 1);
    assert_eq!(samples_after_use(true), 1, "the key is hidden");
    assert_eq!(samples_after_use(false), 2);
    assert_eq!(server.stats.metrics.sum(Counter::HotKeySamples), 2);
}
