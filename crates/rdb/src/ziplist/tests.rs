//! Tests of ziplists with every kind of entry, and of damaged ones.

use super::*;

/// Builds ziplists from entries in the given encodings.
#[derive(Default)]
struct ZiplistBuilder {
    entries: Vec<u8>,
    before: usize,
    last: usize,
    count: usize,
}

impl ZiplistBuilder {
    fn add(&mut self, encoded: &[u8]) {
        self.last = self.entries.len();
        match self.before {
            short @ ..254 => self.entries.push(short as u8),
            long => {
                self.entries.push(LONG_PREVIOUS_LENGTH);
                self.entries.extend((long as u32).to_le_bytes());
            }
        }
        self.entries.extend_from_slice(encoded);
        self.before = self.entries.len() - self.last;
        self.count += 1;
    }

    fn string(&mut self, string: &[u8]) {
        let mut encoded = match string.len() {
            short @ ..64 => vec![short as u8],
            middle @ ..16384 => vec![0x40 | (middle >> 8) as u8, middle as u8],
            long => [&[0x80][..], &(long as u32).to_be_bytes()].concat(),
        };
        encoded.extend_from_slice(string);
        self.add(&encoded);
    }

    fn finish(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((HEADER_BYTES + self.entries.len() + 1) as u32).to_le_bytes());
        bytes.extend(((HEADER_BYTES + self.last) as u32).to_le_bytes());
        bytes.extend((self.count.min(UNCOUNTED) as u16).to_le_bytes());
        bytes.extend_from_slice(&self.entries);
        bytes.push(END);
        bytes
    }
}

fn elements(bytes: &[u8]) -> Option<Vec<ZiplistElement<'_>>> {
    let list = Ziplist::validate(bytes)?;
    let elements: Vec<_> = list.iter().collect();
    assert_eq!(elements.len(), list.len());
    Some(elements)
}

#[test]
fn integers_of_every_width() {
    let cases: &[(&[u8], i64)] = &[
        (b"\xf1", 0),
        (b"\xfd", 12),
        (b"\xfe\x7f", 127),
        (b"\xfe\x80", -128),
        (b"\xc0\x00\x80", -32768),
        (b"\xc0\x2c\x01", 300),
        (b"\xf0\xff\xff\x7f", 8_388_607),
        (b"\xf0\x00\x00\x80", -8_388_608),
        (b"\xd0\xff\xff\xff\x7f", i64::from(i32::MAX)),
        (b"\xd0\xff\xff\xff\xff", -1),
        (b"\xe0\x00\x00\x00\x00\x00\x00\x00\x80", i64::MIN),
        (b"\xe0\xff\xff\xff\xff\xff\xff\xff\x7f", i64::MAX),
    ];
    let mut all = ZiplistBuilder::default();
    for (encoded, number) in cases {
        let mut one = ZiplistBuilder::default();
        one.add(encoded);
        all.add(encoded);
        assert_eq!(
            elements(&one.finish()),
            Some(vec![ZiplistElement::Int(*number)]),
            "{encoded:?}"
        );
    }
    let numbers = cases.iter().map(|(_, number)| ZiplistElement::Int(*number)).collect();
    assert_eq!(elements(&all.finish()), Some(numbers));
}

#[test]
fn strings_of_every_length() {
    let strings: Vec<Vec<u8>> = [
        0usize, 1, 63, 64, 249, 250, 251, 252, 253, 254, 255, 16383, 16384, 70_000,
    ]
    .iter()
    .map(|length| (0..*length).map(|index| (index % 256) as u8).collect())
    .collect();
    let mut list = ZiplistBuilder::default();
    for string in &strings {
        list.string(string);
    }
    let bytes = list.finish();
    let read = elements(&bytes).unwrap();
    assert_eq!(
        read,
        strings
            .iter()
            .map(|string| ZiplistElement::Bytes(string))
            .collect::<Vec<_>>()
    );
}

#[test]
fn an_empty_ziplist_and_one_with_too_many_entries_to_be_counted() {
    assert_eq!(elements(b"\x0b\0\0\0\x0a\0\0\0\0\0\xff"), Some(Vec::new()));
    let mut list = ZiplistBuilder::default();
    for _ in 0..70_000 {
        list.add(b"\xf5");
    }
    let mut bytes = list.finish();
    assert_eq!(elements(&bytes).map(|elements| elements.len()), Some(70_000));
    bytes[8] = 0;
    assert_eq!(elements(&bytes), None);
}

#[test]
fn damaged_ziplists_are_refused() {
    let mut list = ZiplistBuilder::default();
    list.string(b"abc");
    list.add(b"\xc0\x01\x02");
    let sound = list.finish();
    assert!(elements(&sound).is_some());
    let cases: &[(&str, usize, u8)] = &[
        ("length in bytes", 0, 1),
        ("offset of the last entry", 4, 10),
        ("offset of the last entry is no entry's", 4, 12),
        ("number of entries", 8, 3),
        ("length of the entry before the first", 10, 1),
        ("string longer than the ziplist", 11, 60),
        ("length of the entry before", 15, 4),
        ("encoding that there is not", 16, 0xc1),
        ("integer longer than the ziplist", 16, 0xe0),
        ("no end", sound.len() - 1, 0),
    ];
    for (what, at, byte) in cases {
        let mut damaged = sound.clone();
        damaged[*at] = *byte;
        assert_eq!(elements(&damaged), None, "{what}");
    }
    for length in 0..sound.len() {
        assert_eq!(elements(&sound[..length]), None, "cut after {length} bytes");
    }
}

#[test]
fn mutated_ziplists_do_not_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut list = ZiplistBuilder::default();
    for index in 0..20 {
        list.string(&vec![b'x'; index * 20]);
        list.add(b"\xd0\x01\x02\x03\x04");
    }
    let sound = list.finish();
    for _ in 0..20_000 {
        let mut bytes = sound.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        // A ziplist that passes the check is read to its end.
        let _ = elements(&bytes);
    }
}
