//! Tests of streams against those that Valkey writes, and of damaged ones.

use weft_resp::number::format_i64;

use super::*;

/// The output of DUMP of Valkey 9.1.2 for a stream of three blocks with a deleted entry, and three groups: `7` without
/// consumers, `idle`, and `readers` with three consumers and three pending entries.
const DUMP: &[u8] = b"\
      \x15\x03\x10\x00\x00\x00\x00\x00\x00\x03\xe9\x00\x00\x00\x00\x00\x00\x00\x01\xc3@L@Y\x1fY\x00\x00\x00\x18\
      \x00\x02\x01\x01\x01\x02\x01\x8btemperature\x0c\x85place\x06\x00\x00\x20\x17\x00\x00\x20\x01\x0c\x15\x01\x86\
      inside\x07\x05\x01\x03\x20-\x02\x01\x01\x16\xe0\x02\x11\x00\x02`\x01\x00\x17\xe0\x01\x11\x01\x01\xff\x10\x00\
      \x00\x00\x00\x00\x00\x03\xec\x00\x00\x00\x00\x00\x00\x00\x04\xc3@X@a\x1fa\x00\x00\x00\x19\x00\x03\x01\x00\
      \x01\x02\x01\x8btemperature\x0c\x85place\x06@\x17\x00\x00\x20\x01\x0a\x18\x01\x86inside\x07\x05\x20)@\x00\
      \x00\x19\xe0\x02\x11\x06\x00\x01\xc3\xe4\x02\xdf\xfc\x20\x18\x10\x85other\x06\x85field\x06\x06\x01\xff\x10\
      \x00\x00\x00\x00\x00\x00\x07\xd0\xff\xff\xff\xff\xff\xff\xff\xff\xc3&@\x84\x07\x84\x00\x00\x00\x0a\x00\x01\
      \x01\x20\x02\x09\x01\x84long\x05\x00\x01\x02\x20\x0d\x04\x00\x01\xe0dx\xe0Z\x00\x03f\x04\x01\xff\x06G\xd0\
      \x81\xff\xff\xff\xff\xff\xff\xff\xffC\xe9\x01C\xea\x02\x07\x03\xc0\x07\x00\x00\x81\xff\xff\xff\xff\xff\xff\
      \xff\xff\x00\x00\x04idleG\xd0\x81\xff\xff\xff\xff\xff\xff\xff\xff\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00\
      \x00\x07readersC\xed\x05\x81\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00\x00\x00\x00\x03\xeb\x00\x00\x00\
      \x00\x00\x00\x00\x03\xcf\x22\xc9\xfb\xa1\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\xec\x00\x00\x00\x00\x00\
      \x00\x00\x04\xcf\x22\xc9\xfb\xa1\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\xed\x00\x00\x00\x00\x00\x00\x00\
      \x05\xcf\x22\xc9\xfb\xa1\x01\x00\x00\x02\x03\x05never\xcf\x22\xc9\xfb\xa1\x01\x00\x00\xff\xff\xff\xff\xff\
      \xff\xff\xff\x00\x03one\xcf\x22\xc9\xfb\xa1\x01\x00\x00\xcf\x22\xc9\xfb\xa1\x01\x00\x00\x02\x00\x00\x00\x00\
      \x00\x00\x03\xeb\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x03\xec\x00\x00\x00\x00\x00\x00\x00\
      \x04\x03two\xcf\x22\xc9\xfb\xa1\x01\x00\x00\xcf\x22\xc9\xfb\xa1\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\
      \xed\x00\x00\x00\x00\x00\x00\x00\x05P\x00\xe9\xd0\x15CW\x05\xf1\x1a";
const FOOTER_BYTES: usize = 10;

fn body() -> &'static [u8] {
    &DUMP[1..DUMP.len() - FOOTER_BYTES]
}

fn read_whole(body: &[u8], version: u8) -> Option<Stream> {
    let mut reader = RdbReader::new(body);
    read(&mut reader, version).filter(|_| reader.byte().is_none())
}

fn known() -> Stream {
    read_whole(body(), TYPE_THIRD).expect("Valkey wrote it")
}

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId::new(ms, seq)
}

#[test]
fn a_stream_of_valkey_is_read_and_written_again() {
    assert_eq!(DUMP[0], TYPE_THIRD);
    let stream = known();
    let counters = StreamMetadata {
        length: 6,
        last_id: id(2000, u64::MAX),
        first_id: id(1001, 1),
        max_deleted_id: id(1002, 2),
        entries_added: 7,
    };
    assert_eq!(*stream.metadata(), counters);
    let names: Vec<_> = stream.groups().map(|group| group.name().to_vec()).collect();
    assert_eq!(names, [&b"7"[..], b"idle", b"readers"]);
    let readers = stream.group(b"readers").expect("it is there");
    let pending: Vec<_> = readers
        .pending()
        .iter()
        .map(|(id, pending)| (id.ms, readers.consumer(pending.consumer).name(), pending.deliveries))
        .collect();
    assert_eq!(pending, [(1003, &b"one"[..], 1), (1004, b"one", 1), (1005, b"two", 2)]);
    let mut written = Vec::new();
    write(&mut written, &stream, true);
    assert_eq!(written, body());
}

#[test]
fn uncompressed_streams_are_read() {
    let mut plain = Vec::new();
    write(&mut plain, &known(), false);
    assert!(plain.len() > body().len());
    let mut again = Vec::new();
    write(
        &mut again,
        &read_whole(&plain, TYPE_THIRD).expect("it was written"),
        true,
    );
    assert_eq!(again, body());
}

/// Writes a stream as an older version would.
fn write_older(stream: &Stream, version: u8) -> Vec<u8> {
    let mut out = Vec::new();
    write_length(&mut out, stream.blocks().len());
    for (base, block) in stream.blocks() {
        write_string(&mut out, &base.to_bytes(), false);
        let mut whole = Vec::new();
        block.write_listpack(&mut whole);
        write_string(&mut out, &whole, false);
    }
    let counters = stream.metadata();
    write_length(&mut out, counters.length as usize);
    write_id(&mut out, counters.last_id);
    if version == TYPE_SECOND {
        write_id(&mut out, counters.first_id);
        write_id(&mut out, counters.max_deleted_id);
        write_length(&mut out, counters.entries_added as usize);
    }
    write_length(&mut out, 1);
    write_string(&mut out, b"12", false);
    write_id(&mut out, id(500, 0));
    if version == TYPE_SECOND {
        write_length(&mut out, 3);
    }
    write_length(&mut out, 1);
    out.extend(id(1003, 3).to_bytes());
    out.extend(77i64.to_le_bytes());
    write_length(&mut out, 5);
    write_length(&mut out, 1);
    write_string(&mut out, b"34", false);
    out.extend(88i64.to_le_bytes());
    write_length(&mut out, 1);
    out.extend(id(1003, 3).to_bytes());
    out
}

#[test]
fn older_versions_are_read_and_missing_counters_are_derived() {
    for (version, added, max_deleted_id, read) in [(TYPE_FIRST, 6, StreamId::MIN, 0), (TYPE_SECOND, 7, id(1002, 2), 3)]
    {
        let stream = read_whole(&write_older(&known(), version), version).expect("it is well-formed");
        assert_eq!(stream.metadata().entries_added, added);
        assert_eq!(stream.metadata().max_deleted_id, max_deleted_id);
        assert_eq!(stream.metadata().first_id, id(1001, 1));
        let group = stream.group(b"12").expect("names may be stored as numbers");
        assert_eq!(group.entries_read, Some(read));
        let number = group.find_consumer(b"34").expect("it is there");
        let consumer = group.consumer(number);
        assert_eq!((consumer.seen_ms, consumer.active_ms), (88, 88));
        let pending = PendingEntry {
            delivered_ms: 77,
            deliveries: 5,
            consumer: number,
        };
        assert_eq!(group.pending()[&id(1003, 3)], pending);
    }
}

#[test]
fn inconsistent_streams_are_refused() {
    let older = write_older(&known(), TYPE_SECOND);
    assert!(read_whole(&older, TYPE_SECOND).is_some());
    // A consumer has a pending entry that the group lacks, or lacks one that the group has.
    let at = older.len() - 1;
    let mut other = older.clone();
    other[at] ^= 1;
    assert!(read_whole(&other, TYPE_SECOND).is_none());
    let mut none = older[..at - 16].to_vec();
    none.push(0);
    assert!(read_whole(&none, TYPE_SECOND).is_none());
    // The same consumer, or the same group, occurs twice.
    let mut twice = older.clone();
    let consumer_at = older.len() - (2 + 8 + 1 + 16);
    assert_eq!(older[consumer_at - 1], 1);
    twice[consumer_at - 1] = 2;
    let mut again = older[consumer_at..older.len() - 17].to_vec();
    again.push(0);
    twice.extend(again);
    assert!(read_whole(&twice, TYPE_SECOND).is_none());
}

#[test]
fn streams_whose_length_is_not_that_of_their_entries_are_refused() {
    let mut empty = Vec::new();
    write(&mut empty, &Stream::default(), true);
    let mut whole = Vec::new();
    write(&mut whole, &known(), true);
    for (body, at) in [(empty, 1), (whole.clone(), length_at(&known()))] {
        assert!(read_whole(&body, TYPE_THIRD).is_some());
        for length in [0, 5, 7, 63] {
            let mut other = body.clone();
            if other[at] != length {
                other[at] = length;
                assert!(read_whole(&other, TYPE_THIRD).is_none(), "{length}");
            }
        }
    }
}

/// Returns the offset of the length of a written stream, which is one byte: it follows the entries.
fn length_at(stream: &Stream) -> usize {
    let mut blocks = Vec::new();
    write_length(&mut blocks, stream.blocks().len());
    for (base, block) in stream.blocks() {
        let mut whole = Vec::new();
        block.write_listpack(&mut whole);
        write_string(&mut blocks, &base.to_bytes(), true);
        write_string(&mut blocks, &whole, true);
    }
    blocks.len()
}

#[test]
fn damaged_streams_are_refused_or_read_without_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut plain = Vec::new();
    write(&mut plain, &known(), false);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut damaged = if round % 2 == 0 { plain.clone() } else { body().to_vec() };
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..damaged.len());
            match random.u8(..8) {
                0 => damaged.truncate(at.max(1)),
                1 => damaged.insert(at, random.u8(..)),
                _ => damaged[at] = random.u8(..),
            }
        }
        let version = [TYPE_FIRST, TYPE_SECOND, TYPE_THIRD][random.usize(..3)];
        let Some(mut stream) = read(&mut RdbReader::new(&damaged), version) else {
            continue;
        };
        accepted += 1;
        let mut written = Vec::new();
        write(&mut written, &stream, true);
        let last = stream.last_id();
        let mut scratch = [0; 20];
        let value = format_i64(round, &mut scratch).as_bytes();
        if let Some(next) = last.next() {
            let limits = weft_values::stream::BlockLimits {
                bytes: 4096,
                entries: 100,
            };
            let pairs = [(&b"name"[..], value)];
            assert_eq!(stream.append(next, pairs.into_iter(), limits), Ok(()));
            assert_eq!(stream.last_entry_id(), next);
        }
    }
    assert!(accepted > 500, "hardly anything was accepted");
}
