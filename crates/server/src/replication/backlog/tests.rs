//! Tests of the backlog's contents.

use super::{BLOCK_BYTES, BacklogRange, LogSequence, ReplicationBacklog};

fn bytes(from: i64, count: usize) -> Vec<u8> {
    (from..).take(count).map(|offset| (offset % 251) as u8).collect()
}

#[test]
fn reads_return_the_appended_bytes_from_any_offset() {
    let mut backlog = ReplicationBacklog::default();
    assert!(!backlog.contains(0));
    backlog.open(1000);
    let mut end = 1000;
    for size in [1, 70_000, 3, BLOCK_BYTES, 200_000] {
        assert_eq!(backlog.append(&bytes(end, size), 1 << 30), Some(end + size as i64));
        end += size as i64;
    }
    for offset in [1000, 1001, 1000 + BLOCK_BYTES as i64, end - 1, end] {
        let mut read = Vec::new();
        while offset + (read.len() as i64) < end {
            backlog.read(offset + read.len() as i64, 10, &mut read);
        }
        assert_eq!(read, bytes(offset, (end - offset) as usize), "from {offset}");
    }
    assert!(!backlog.contains(999) && !backlog.contains(end + 1));
}

#[test]
fn the_backlog_keeps_its_size_and_what_readers_need() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(0);
    backlog.append(&bytes(0, 10), BLOCK_BYTES as i64);
    backlog.pin(7, 10);
    for round in 0..40 {
        backlog.append(&bytes(round, BLOCK_BYTES), BLOCK_BYTES as i64);
    }
    assert!(backlog.contains(10), "a replica is there");
    backlog.unpin(7);
    let end = 10 + 41 * BLOCK_BYTES as i64;
    backlog.append(&bytes(0, BLOCK_BYTES), BLOCK_BYTES as i64);
    let extent = backlog.range().expect("there is a backlog");
    assert_eq!(extent.end, end);
    assert!(end - extent.start >= BLOCK_BYTES as i64 && end - extent.start <= 2 * BLOCK_BYTES as i64);
    backlog.open(5);
    assert_eq!(backlog.range(), Some(BacklogRange { start: 5, end: 5 }));
}

#[test]
fn a_log_sequence_maps_to_the_offset_of_its_milestone() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(0);
    backlog.append(b"12345", 1 << 20);
    backlog.record_sequence(LogSequence::new(3));
    backlog.append(b"678", 1 << 20);
    assert_eq!(backlog.offset_of_sequence(LogSequence::new(4)), None);
    backlog.record_sequence(LogSequence::new(9));
    let offsets = [0, 1, 3, 4, 9, 10].map(|number| backlog.offset_of_sequence(LogSequence::new(number)));
    assert_eq!(offsets, [Some(0), Some(5), Some(5), Some(8), Some(8), None]);
}

#[test]
#[should_panic(expected = "goes back from Some(4) to 3")]
fn a_reader_does_not_go_back() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(0);
    backlog.append(b"12345", 1 << 20);
    backlog.pin(7, 4);
    backlog.pin(7, 3);
}

#[test]
#[should_panic(expected = "is ahead of it")]
fn a_reader_is_not_ahead_of_the_backlog() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(0);
    backlog.pin(7, 1);
}
