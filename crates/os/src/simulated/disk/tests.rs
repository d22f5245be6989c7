//! Tests of what syncs cover. `super::super::tests` has those that need a simulation.

use super::SyncRecords;

const FILE: (u64, u64) = (1, 7);
const OTHER_FILE: (u64, u64) = (1, 8);

#[test]
fn a_sync_that_ends_later_takes_nothing_from_one_that_began_later() {
    let mut syncs = SyncRecords::new();
    let first = syncs.begin(10);
    let second = syncs.begin(20);
    assert_eq!(syncs.synced_bytes(FILE), 0, "no sync has ended");
    syncs.end(FILE, second);
    assert_eq!(syncs.synced_bytes(FILE), 20);
    syncs.end(FILE, first);
    assert_eq!(syncs.synced_bytes(FILE), 20);
}

#[test]
fn a_sync_covers_what_the_file_had_when_it_began() {
    let mut syncs = SyncRecords::new();
    let first = syncs.begin(10);
    let second = syncs.begin(20);
    syncs.end(FILE, first);
    assert_eq!(syncs.synced_bytes(FILE), 10, "the other sync has not ended");
    syncs.end(FILE, second);
    assert_eq!(syncs.synced_bytes(FILE), 20);
    assert_eq!(syncs.synced_bytes(OTHER_FILE), 0);
}

#[test]
fn a_truncated_file_has_lost_its_end() {
    let mut syncs = SyncRecords::new();
    let before = syncs.begin(20);
    let late = syncs.begin(20);
    syncs.end(FILE, before);
    let truncated = syncs.begin(0);
    syncs.end(FILE, truncated);
    assert_eq!(syncs.synced_bytes(FILE), 0);
    syncs.end(FILE, late);
    assert_eq!(
        syncs.synced_bytes(FILE),
        0,
        "this sync began before the file was truncated"
    );
}
