//! Tests of what a backlog keeps.

use super::{BLOCK_BYTES, Extent, ReplicationBacklog};

fn bytes(from: i64, count: usize) -> Vec<u8> {
    (from..).take(count).map(|offset| (offset % 251) as u8).collect()
}

#[test]
fn what_is_read_is_what_was_appended_from_any_place() {
    let mut shelf = ReplicationBacklog::default();
    assert!(!shelf.has(0));
    shelf.open(1000);
    let mut end = 1000;
    for size in [1, 70_000, 3, BLOCK_BYTES, 200_000] {
        assert_eq!(shelf.append(&bytes(end, size), 1 << 30), Some(end + size as i64));
        end += size as i64;
    }
    for offset in [1000, 1001, 1000 + BLOCK_BYTES as i64, end - 1, end] {
        let mut read = Vec::new();
        while offset + (read.len() as i64) < end {
            shelf.read(offset + read.len() as i64, 10, &mut read);
        }
        assert_eq!(read, bytes(offset, (end - offset) as usize), "from {offset}");
    }
    assert!(!shelf.has(999) && !shelf.has(end + 1));
}

#[test]
fn it_keeps_its_size_and_what_readers_need() {
    let mut shelf = ReplicationBacklog::default();
    shelf.open(0);
    shelf.pin(7, 10);
    for round in 0..40 {
        shelf.append(&bytes(round, BLOCK_BYTES), BLOCK_BYTES as i64);
    }
    assert!(shelf.has(10), "a replica is there");
    shelf.unpin(7);
    let end = 41 * BLOCK_BYTES as i64;
    shelf.append(&bytes(0, BLOCK_BYTES), BLOCK_BYTES as i64);
    let extent = shelf.extent().expect("there is a backlog");
    assert_eq!(extent.end, end);
    assert!(end - extent.start >= BLOCK_BYTES as i64 && end - extent.start <= 2 * BLOCK_BYTES as i64);
    shelf.open(5);
    assert_eq!(shelf.extent(), Some(Extent { start: 5, end: 5 }));
}

#[test]
fn a_ticket_stands_for_the_bytes_up_to_its_milestone() {
    let mut shelf = ReplicationBacklog::default();
    shelf.open(0);
    shelf.append(b"12345", 1 << 20);
    shelf.note_ticket(3);
    shelf.append(b"678", 1 << 20);
    assert_eq!(shelf.offset_of(4), None);
    shelf.note_ticket(9);
    let offsets = [0, 1, 3, 4, 9, 10].map(|ticket| shelf.offset_of(ticket));
    assert_eq!(offsets, [Some(0), Some(5), Some(5), Some(8), Some(8), None]);
}
