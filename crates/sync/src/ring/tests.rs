//! Tests of the ring.

#[cfg(not(loom))]
mod real {
    use super::super::*;

    #[test]
    fn records_of_any_size_are_read_complete_and_in_order() {
        let (mut writer, mut reader) = ring();
        assert_eq!(reader.head(), None);
        assert!(!reader.take(|_| unreachable!("there is none")));
        let sizes = [0, 1, 100, CHUNK_BYTES - HEADER_BYTES, CHUNK_BYTES, 3 * CHUNK_BYTES, 7];
        for (sequence, size) in sizes.iter().enumerate() {
            writer.push(sequence as u64, &vec![sequence as u8; *size]);
        }
        assert!(writer.unread() > 5 * CHUNK_BYTES);
        for (sequence, size) in sizes.iter().enumerate() {
            assert_eq!(reader.head(), Some(sequence as u64));
            assert!(reader.take(|bytes| assert_eq!(bytes, vec![sequence as u8; *size])));
        }
        assert_eq!((reader.head(), writer.unread()), (None, 0));
    }

    #[test]
    fn the_chunk_of_a_large_record_is_freed_once_it_is_read() {
        let (mut writer, mut reader) = ring();
        writer.push(1, &vec![1; MAX_IDLE_CHUNK_BYTES]);
        assert_eq!(writer.tail.bytes.len(), CHUNK_BYTES);
        assert!(reader.head().is_some() && reader.take(|_| {}));
        assert_eq!(reader.head(), None);
        assert_eq!(reader.head.bytes.len(), CHUNK_BYTES);
    }

    #[test]
    fn the_memory_of_unread_records_is_that_of_their_chunks() {
        const RECORDS: usize = 20;
        // What the allocator takes for a header and three times the bytes of a chunk.
        const RECORD_MEMORY: usize = if cfg!(feature = "simulated") { 896 } else { 128 * 1024 };
        let (mut writer, mut reader) = ring();
        let gauge = writer.gauge();
        assert_eq!(gauge.held(), 0);
        writer.push(0, b"small");
        assert_eq!(gauge.held(), CHUNK_BYTES);
        for sequence in 1..=RECORDS {
            writer.push(sequence as u64, &vec![1; 3 * CHUNK_BYTES]);
        }
        assert_eq!(gauge.held(), CHUNK_BYTES + RECORDS * RECORD_MEMORY);
        for left in (1..=RECORDS).rev() {
            assert!(reader.head().is_some() && reader.take(|_| {}));
            assert!(reader.head().is_some(), "what was read is freed");
            assert_eq!(gauge.held(), left * RECORD_MEMORY);
        }
        assert!(reader.take(|_| {}));
        assert_eq!(gauge.held(), 0);
    }

    #[test]
    fn a_writer_and_a_reader_thread_agree() {
        let (mut writer, mut reader) = ring();
        let count = 200_000u64;
        let thread = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(7);
            for sequence in 0..count {
                let bytes = vec![sequence as u8; random.usize(0..200)];
                writer.push(sequence, &bytes);
            }
        });
        let mut next = 0;
        while next < count {
            if reader.head().is_none() {
                std::thread::yield_now();
                continue;
            }
            assert_eq!(reader.head(), Some(next));
            reader.take(|bytes| assert!(bytes.iter().all(|byte| *byte == next as u8)));
            next += 1;
        }
        thread.join().expect("the writer does not panic");
    }

    #[test]
    fn dropping_the_reader_frees_a_long_chain_without_recursion() {
        let (mut writer, reader) = ring();
        for sequence in 0..20_000 {
            writer.push(sequence, &vec![0; CHUNK_BYTES]);
        }
        drop(reader);
        writer.push(0, b"unread");
    }
}

#[cfg(loom)]
mod loom_tests {
    use super::super::*;
    use crate::loom::explore;

    /// Two records fill a chunk, the third begins another one.
    #[test]
    fn loom_a_reader_sees_whole_records_in_order() {
        explore(3, || {
            let (mut writer, mut reader) = ring();
            let thread = loom::thread::spawn(move || {
                writer.push(1, b"a");
                writer.push(2, b"bc");
                writer.push(3, b"d");
            });
            let mut seen = Vec::new();
            for _ in 0..2 {
                if let Some(sequence) = reader.head() {
                    reader.take(|bytes| seen.push((sequence, bytes.to_vec())));
                }
            }
            thread.join().unwrap();
            while let Some(sequence) = reader.head() {
                reader.take(|bytes| seen.push((sequence, bytes.to_vec())));
            }
            assert_eq!(seen, [(1, b"a".to_vec()), (2, b"bc".to_vec()), (3, b"d".to_vec())]);
        });
    }
}
