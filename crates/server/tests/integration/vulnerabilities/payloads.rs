//! Vulnerabilities of what RESTORE and the loader of RDB files read, and of HyperLogLogs.

use super::{Client, Target};
use crate::harness::valkey::Valkey;

const BAD: &str = "ERR Bad data format";
const CORRUPTED: &str = "INVALIDOBJ Corrupted HLL object detected";
const NO_HYPERLOGLOG: &str = "WRONGTYPE Key is not a valid HyperLogLog string value.";

/// Appends the version and the checksum of a DUMP payload.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut payload = body.to_vec();
    payload.extend_from_slice(&11_u16.to_le_bytes());
    let checksum = crc::Crc::<u64>::new(&crc::CRC_64_REDIS).checksum(&payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

fn length(number: u64) -> Vec<u8> {
    match u8::try_from(number) {
        Ok(short) if short < 64 => vec![short],
        _ => [&[0x81][..], &number.to_be_bytes()].concat(),
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&length(bytes.len() as u64)[..], bytes].concat()
}

/// Restores each body and checks the reply, on this server and on a Valkey. A value that is accepted is then read and
/// changed in many ways.
fn restores(bodies: &[(&str, Vec<u8>, &str)]) -> Target {
    let mut target = Target::start(&[]);
    let valkey = Valkey::start(&[]);
    for (name, body, reply) in bodies {
        let payload = sealed(body);
        let words: [&[u8]; 4] = [b"RESTORE", b"key", b"0", &payload];
        target.attacker.send(&words);
        assert_eq!(target.attacker.answer(), *reply, "{name}");
        if *reply == "OK" {
            exercise(&mut target.attacker);
        }
        target.serves();
        let mut client = Client::connect(valkey.port);
        client.send(&words);
        assert_eq!(client.answer(), *reply, "Valkey: {name}");
        client.call(&["DEL", "key"]);
    }
    target.serves_within(200 << 20);
    target
}

/// Reads and changes the restored key as all types, and deletes it.
fn exercise(client: &mut Client) {
    for command in [
        "OBJECT ENCODING key",
        "DEBUG DIGEST-VALUE key",
        "DUMP key",
        "HGETALL key",
        "HSET key new 1",
        "LRANGE key 0 -1",
        "LPOP key",
        "SMEMBERS key",
        "SADD key 99",
        "ZRANGE key 0 -1",
        "ZPOPMIN key",
        "XRANGE key - +",
        "XREVRANGE key + -",
        "XPENDING key g",
        "XINFO STREAM key FULL",
        "XACK key g 1-0",
        "XREADGROUP GROUP g a COUNT 10 STREAMS key 0",
        "XGROUP DELCONSUMER key g a",
        "XGROUP DELCONSUMER key g b",
        "XSETID key 9-9",
        "XADD key * f v",
        "XTRIM key MAXLEN 0",
        "GET key",
        "APPEND key x",
        "DEL key",
    ] {
        client.send(&command.split(' ').collect::<Vec<_>>());
        client.answer();
    }
}

/// A length of a zipmap that takes more bytes than it needs is refused: what checks a zipmap and what reads it would
/// not agree on where the next field begins.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2026_25243_zipmaps_with_overlong_lengths_are_refused() {
    let zipmap = |bytes: &[u8]| [&[9][..], &string(bytes)].concat();
    restores(&[
        ("sound", zipmap(b"\x02\x03foo\x03\x00bar\x03baz\x03\x00qux\xff"), "OK"),
        (
            "long field",
            zipmap(b"\x02\xfe\x03\0\0\0foo\x03\x00bar\x03baz\x03\x00qux\xff"),
            BAD,
        ),
        (
            "long value",
            zipmap(b"\x02\x03foo\xfe\x03\0\0\0\x00bar\x03baz\x03\x00qux\xff"),
            BAD,
        ),
        ("huge field", zipmap(b"\x02\xfe\xff\xff\xff\xfffoo\x03\x00bar\xff"), BAD),
        ("unused bytes", zipmap(b"\x02\x03foo\x03\xffbar\xff"), BAD),
        ("twice", zipmap(b"\x02\x03foo\x03\x00bar\x03foo\x03\x00qux\xff"), BAD),
        ("one byte", zipmap(b"\x01"), BAD),
        ("none", zipmap(b""), BAD),
    ]);
}

/// Counts and lengths in a payload are checked against it before memory is taken for them.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_41056_lengths_in_payloads_are_checked_before_memory_is_taken() {
    let huge = b"\x81\xff\xff\xff\xff\xff\xff\xff\xff";
    let mut bodies = Vec::new();
    // Strings, lists, sets, sorted sets, hashes, quicklists, streams and modules.
    for kind in [0, 1, 2, 3, 4, 5, 7, 14, 15, 18, 19, 21, 22] {
        bodies.push(("huge", [&[kind][..], huge].concat(), BAD));
        bodies.push(("4 GiB", [&[kind][..], b"\x80\xff\xff\xff\xff"].concat(), BAD));
    }
    for kind in [9, 10, 11, 12, 13, 16, 17, 20] {
        bodies.push(("empty", vec![kind, 0], BAD));
        bodies.push(("short", vec![kind, 2, 0xff, 0xff], BAD));
    }
    bodies.extend([
        (
            "compressed",
            b"\x00\xc3\x02\x81\x7f\xff\xff\xff\xff\xff\xff\xff\x00a".to_vec(),
            BAD,
        ),
        ("reference", b"\x00\xc3\x05\x10\x20\x00\xff\xff\xff".to_vec(), BAD),
        (
            "no end",
            [&b"\x12\x01\x02"[..], &string(b"\x0b\0\0\0\x01\0\x83abc\x04")].concat(),
            BAD,
        ),
        (
            "size",
            [&b"\x12\x01\x02"[..], &string(b"\xff\xff\xff\xff\x01\0\x83abc\x04\xff")].concat(),
            BAD,
        ),
        (
            "integers",
            [&b"\x0b"[..], &string(b"\x08\0\0\0\xff\xff\xff\x7f\x01\0\0\0\0\0\0\0")].concat(),
            BAD,
        ),
        (
            "order",
            [&b"\x0b"[..], &string(b"\x02\0\0\0\x02\0\0\0\x05\0\x01\0")].concat(),
            BAD,
        ),
        (
            "entry",
            [
                &b"\x0e\x01"[..],
                &string(b"\x1d\0\0\0\x16\0\0\0\x03\0\0\x04CCCC\x06\x04BBBB\x06\x3fAAAA\xff"),
            ]
            .concat(),
            BAD,
        ),
        ("type", b"\x63".to_vec(), BAD),
    ]);
    let mut target = restores(&bodies);
    // Buffers that shrink and grow again keep their bounds.
    for size in [100, 200_000, 1000, 300_000, 40_000] {
        let value = "x".repeat(size);
        target.answers(&[
            (&["SET", "key", &value], "OK"),
            (&["APPEND", "key", "tail"], &(size + 4).to_string()),
            (
                &["SETRANGE", "key", &(size + 10).to_string(), "x"],
                &(size + 11).to_string(),
            ),
        ]);
    }
    target.serves();
}

/// One entry of a listpack.
enum Item {
    Number(u8),
    Negative(i8),
    Text(&'static [u8]),
}

fn listpack(items: &[Item]) -> Vec<u8> {
    let mut entries = Vec::new();
    for item in items {
        let encoded = match item {
            Item::Number(number) => vec![*number],
            // A number of 13 bits.
            Item::Negative(number) => (0xc000_u16 | (i16::from(*number) as u16 & 0x1fff))
                .to_be_bytes()
                .to_vec(),
            Item::Text(text) => [&[0x80 | text.len() as u8][..], text].concat(),
        };
        entries.extend_from_slice(&encoded);
        entries.push(encoded.len() as u8);
    }
    let mut bytes = (entries.len() as u32 + 7).to_le_bytes().to_vec();
    bytes.extend_from_slice(&(items.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&entries);
    bytes.push(0xff);
    bytes
}

/// A node of a stream with one entry `1-0`, which is deleted or not.
fn node(is_deleted: bool, fields: Item) -> Vec<u8> {
    let (live, deleted) = (u8::from(!is_deleted), u8::from(is_deleted));
    let flags = 2 | deleted;
    let number = Item::Number;
    listpack(&[
        number(live),
        number(deleted),
        fields,
        Item::Text(b"f"),
        number(0),
        number(flags),
        number(0),
        number(0),
        Item::Text(b"v"),
        number(4),
    ])
}

/// A stream of this type and length with one node and a group `g`, whose entries are pending for the consumers.
fn stream(kind: u8, node: &[u8], entries: u64, pending: &[u64], consumers: &[(&[u8], &[u64])]) -> Vec<u8> {
    let id = |ms: u64| [ms.to_be_bytes(), 0_u64.to_be_bytes()].concat();
    let numbers = |all: &[u64]| all.iter().flat_map(|number| length(*number)).collect::<Vec<u8>>();
    let time = 1_u64.to_le_bytes();
    let mut body = [
        &[kind, 1][..],
        &string(&id(1)),
        &string(node),
        &numbers(&[entries, 1, 0]),
    ]
    .concat();
    if kind >= 19 {
        body.extend(numbers(&[1, 0, 0, 0, 1]));
    }
    body.extend([&[1][..], &string(b"g"), &numbers(&[1, 0])].concat());
    if kind >= 19 {
        body.push(1);
    }
    body.push(pending.len() as u8);
    for ms in pending {
        body.extend([&id(*ms)[..], &time, &[1]].concat());
    }
    body.push(consumers.len() as u8);
    for (name, own) in consumers {
        body.extend([&string(name)[..], &time].concat());
        if kind >= 21 {
            body.extend_from_slice(&time);
        }
        body.push(own.len() as u8);
        own.iter().for_each(|ms| body.extend(id(*ms)));
    }
    body
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2026_63639_a_pending_entry_belongs_to_one_consumer() {
    let entry = node(false, Item::Number(1));
    for kind in [15, 19, 21] {
        let of = |pending: &[u64], consumers: &[(&[u8], &[u64])]| stream(kind, &entry, 1, pending, consumers);
        restores(&[
            ("sound", of(&[1], &[(b"a", &[1]), (b"b", &[])]), "OK"),
            ("shared by two consumers", of(&[1], &[(b"a", &[1]), (b"b", &[1])]), BAD),
            ("twice in one consumer", of(&[1], &[(b"a", &[1, 1])]), BAD),
            ("not pending in the group", of(&[1], &[(b"a", &[2])]), BAD),
            ("without a consumer", of(&[1], &[(b"a", &[])]), BAD),
            ("a consumer twice", of(&[1], &[(b"a", &[1]), (b"a", &[])]), BAD),
            ("pending twice", of(&[1, 1], &[]), BAD),
        ]);
    }
}

/// The same in an RDB file at the start of a server: the server refuses the file, and keeps it.
#[test]
fn cve_2026_63639_an_rdb_file_with_a_shared_entry_is_refused() {
    let body = stream(
        21,
        &node(false, Item::Number(1)),
        1,
        &[1],
        &[(b"a", &[1]), (b"b", &[1])],
    );
    let (kind, value) = body.split_first().expect("a type");
    let mut file = [&b"REDIS0011\xfe\x00"[..], &[*kind], &string(b"key"), value, b"\xff"].concat();
    let checksum = crc::Crc::<u64>::new(&crc::CRC_64_REDIS).checksum(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    let directory = std::env::temp_dir().join(format!("weft-shared-nack-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    std::fs::write(directory.join("dump.rdb"), &file).expect("writes");
    let port = crate::harness::port::free_port().to_string();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_weft-server"))
        .args(["--bind", "127.0.0.1", "--port", &port, "--dir"])
        .arg(&directory)
        .output()
        .expect("starts");
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!(std::fs::read(directory.join("dump.rdb")).expect("reads"), file);
    std::fs::remove_dir_all(&directory).expect("removes");
}

/// Counts in a stream agree with its entries, and no entry has fewer than no fields.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn streams_whose_counts_disagree_with_their_entries_are_refused() {
    for kind in [15, 19, 21] {
        let with = |node: &[u8], entries| stream(kind, node, entries, &[], &[]);
        restores(&[
            ("sound", with(&node(false, Item::Number(1)), 1), "OK"),
            ("all are deleted", with(&node(true, Item::Number(1)), 1), BAD),
            ("fewer than declared", with(&node(false, Item::Number(1)), 5), BAD),
            ("more than declared", with(&node(false, Item::Number(1)), 0), BAD),
            ("negative fields", with(&node(false, Item::Negative(-5)), 1), BAD),
        ]);
    }
}

fn hyperloglog(encoding: u8, registers: &[u8]) -> Vec<u8> {
    [
        b"HYLL",
        &[encoding, 0, 0, 0][..],
        &[0, 0, 0, 0, 0, 0, 0, 0x80],
        registers,
    ]
    .concat()
}

/// Runs of registers in a sparse HyperLogLog are checked against the number of registers.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2025_32023_and_cve_2019_10192_runs_of_sparse_hyperloglogs_are_checked() {
    let cases: [(Vec<u8>, &str); 10] = [
        (hyperloglog(1, &b"\x7f\xff".repeat(20)), CORRUPTED),
        (
            hyperloglog(1, &[&b"\x7f\xff".repeat(131_072)[..], b"\xbf"].concat()),
            CORRUPTED,
        ),
        (hyperloglog(1, b"\x7f\xff\xff"), CORRUPTED),
        (hyperloglog(1, b""), CORRUPTED),
        (hyperloglog(1, b"\x7f"), CORRUPTED),
        (hyperloglog(1, b"\x40"), CORRUPTED),
        (hyperloglog(1, &[0; 200]), CORRUPTED),
        (hyperloglog(0, &[0xff; 100]), NO_HYPERLOGLOG),
        (hyperloglog(2, b""), NO_HYPERLOGLOG),
        (b"HYLL".to_vec(), NO_HYPERLOGLOG),
    ];
    let mut target = Target::start(&["--enable-debug-command", "yes"]);
    let valkey = Valkey::start(&[]);
    let mut other = Client::connect(valkey.port);
    for (value, reply) in &cases {
        let set: [&[u8]; 3] = [b"SET", b"h", value];
        for client in [&mut target.attacker, &mut other] {
            client.send(&set);
            assert_eq!(client.answer(), "OK");
            for words in [&["PFCOUNT", "h"][..], &["PFCOUNT", "h", "none"], &["PFMERGE", "d", "h"]] {
                assert_eq!(
                    client.call(words),
                    *reply,
                    "{words:?} of {:?}",
                    &value[..value.len().min(30)]
                );
            }
        }
        // The reply of PFADD depends on where the element's register lies.
        for number in 0..50 {
            target.attacker.call(&["PFADD", "h", &number.to_string()]);
        }
        for words in [
            ["PFDEBUG", "GETREG", "h"],
            ["PFDEBUG", "DECODE", "h"],
            ["PFDEBUG", "TODENSE", "h"],
        ] {
            target.attacker.call(&words);
        }
        target.serves();
    }
    target.serves_within(200 << 20);
}

/// A HyperLogLog that SETRANGE and APPEND have damaged is an error, or an estimate.
#[test]
fn cve_2019_10193_damaged_hyperloglogs_do_not_overflow_a_buffer() {
    let mut random = fastrand::Rng::with_seed(10193);
    let mut target = Target::start(&["--enable-debug-command", "yes"]);
    for round in 0..300 {
        let key = if round % 2 == 0 { "sparse" } else { "dense" };
        target.attacker.call(&["DEL", key]);
        let elements: Vec<String> = (0..200).map(|number| format!("{round}-{number}")).collect();
        let mut add = vec!["PFADD", key];
        add.extend(elements.iter().map(String::as_str));
        target.attacker.call(&add);
        if key == "dense" {
            target.attacker.call(&["PFDEBUG", "TODENSE", key]);
        }
        let offset = random.usize(4..400).to_string();
        let damage: Vec<u8> = (0..random.usize(1..60)).map(|_| random.u8(..)).collect();
        target
            .attacker
            .send(&[&b"SETRANGE"[..], key.as_bytes(), offset.as_bytes(), &damage]);
        target.attacker.answer();
        for words in [
            &["PFCOUNT", key][..],
            &["PFADD", key, "more"],
            &["PFMERGE", "union", key],
            &["PFCOUNT", key, "union"],
        ] {
            target.attacker.call(words);
        }
    }
    target.serves_within(200 << 20);
}
