//! Tests of the backlog's contents.

use weft_base::ClientId;

use super::{BLOCK_BYTES, BacklogRange, LogSequence, ReplicationBacklog, ReplicationOffset};

/// Shortens the tests.
fn at(offset: i64) -> ReplicationOffset {
    ReplicationOffset::new(offset)
}

fn bytes(from: i64, count: usize) -> Vec<u8> {
    (from..).take(count).map(|offset| (offset % 251) as u8).collect()
}

#[test]
fn reads_return_the_appended_bytes_from_any_offset() {
    let mut backlog = ReplicationBacklog::default();
    assert!(!backlog.contains(at(0)));
    backlog.open(at(1000));
    let mut end = 1000;
    for size in [1, 70_000, 3, BLOCK_BYTES, 200_000] {
        assert_eq!(backlog.append(&bytes(end, size), 1 << 30), Some(at(end + size as i64)));
        end += size as i64;
    }
    for offset in [1000, 1001, 1000 + BLOCK_BYTES as i64, end - 1, end] {
        let mut read = Vec::new();
        while offset + (read.len() as i64) < end {
            backlog.read(at(offset + read.len() as i64), 10, &mut read);
        }
        assert_eq!(read, bytes(offset, (end - offset) as usize), "from {offset}");
    }
    assert!(!backlog.contains(at(999)) && !backlog.contains(at(end + 1)));
}

#[test]
fn other_threads_see_the_memory_before_and_after_something_was_freed() {
    const BLOCK: u64 = BLOCK_BYTES as u64;
    let reader = ClientId::new(1);
    let mut backlog = ReplicationBacklog::default();
    let memory = backlog.shared_memory();
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (0, 0));
    backlog.open(at(0));
    backlog.pin(reader, at(0));
    backlog.append(&bytes(0, 10 * BLOCK_BYTES), 0);
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (10 * BLOCK, 10 * BLOCK));
    backlog.pin(reader, at(4 * BLOCK_BYTES as i64));
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (6 * BLOCK, 10 * BLOCK));
    // What is appended meanwhile counts as well.
    backlog.append(&bytes(0, 3 * BLOCK_BYTES), 0);
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (9 * BLOCK, 13 * BLOCK));
    memory.settle();
    backlog.pin(reader, at(7 * BLOCK_BYTES as i64));
    memory.settle();
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (6 * BLOCK, 6 * BLOCK));
    backlog.unpin(reader);
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (BLOCK, 6 * BLOCK));
    backlog.close();
    assert_eq!((memory.bytes(), memory.unsettled_bytes()), (0, 6 * BLOCK));
    memory.settle();
    assert_eq!(memory.unsettled_bytes(), 0);
}

/// Otherwise the freed memory would add up as long as no replica is served.
#[test]
fn blocks_that_are_replaced_are_not_memory_to_settle() {
    const BLOCK: u64 = BLOCK_BYTES as u64;
    let mut backlog = ReplicationBacklog::default();
    let memory = backlog.shared_memory();
    backlog.open(at(0));
    for _ in 0..40 {
        backlog.append(&bytes(0, BLOCK_BYTES), BLOCK_BYTES as i64);
    }
    assert_eq!(memory.unsettled_bytes(), memory.bytes());
    assert!(memory.bytes() <= 2 * BLOCK);
}

#[test]
fn the_backlog_keeps_its_size_and_what_readers_need() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(at(0));
    backlog.append(&bytes(0, 10), BLOCK_BYTES as i64);
    backlog.pin(ClientId::new(7), at(10));
    for round in 0..40 {
        backlog.append(&bytes(round, BLOCK_BYTES), BLOCK_BYTES as i64);
    }
    assert!(backlog.contains(at(10)), "a replica is there");
    // What a replica was sent is dropped at once, not with the next write.
    let middle = 10 + 20 * BLOCK_BYTES as i64;
    backlog.pin(ClientId::new(7), at(middle));
    assert!(backlog.contains(at(middle)));
    assert!(!backlog.contains(at(middle - BLOCK_BYTES as i64)));
    backlog.unpin(ClientId::new(7));
    let end = 10 + 41 * BLOCK_BYTES as i64;
    backlog.append(&bytes(0, BLOCK_BYTES), BLOCK_BYTES as i64);
    let extent = backlog.range().expect("there is a backlog");
    assert_eq!(extent.end, at(end));
    assert!((BLOCK_BYTES..=2 * BLOCK_BYTES).contains(&(extent.bytes() as usize)));
    backlog.open(at(5));
    assert_eq!(
        backlog.range(),
        Some(BacklogRange {
            start: at(5),
            end: at(5)
        })
    );
}

#[test]
fn a_log_sequence_maps_to_the_offset_of_its_milestone() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(at(0));
    backlog.append(b"12345", 1 << 20);
    backlog.record_sequence(LogSequence::new(3));
    backlog.append(b"678", 1 << 20);
    assert_eq!(backlog.offset_of_sequence(LogSequence::new(4)), None);
    backlog.record_sequence(LogSequence::new(9));
    let offsets = [0, 1, 3, 4, 9, 10].map(|number| backlog.offset_of_sequence(LogSequence::new(number)));
    let expected = [Some(0), Some(5), Some(5), Some(8), Some(8), None];
    assert_eq!(offsets, expected.map(|offset| offset.map(at)));
}

#[test]
#[should_panic(expected = "goes back from")]
fn a_reader_does_not_go_back() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(at(0));
    backlog.append(b"12345", 1 << 20);
    backlog.pin(ClientId::new(7), at(4));
    backlog.pin(ClientId::new(7), at(3));
}

#[test]
#[should_panic(expected = "is ahead of it")]
fn a_reader_is_not_ahead_of_the_backlog() {
    let mut backlog = ReplicationBacklog::default();
    backlog.open(at(0));
    backlog.pin(ClientId::new(7), at(1));
}
