//! Tests of the command reader.

use super::*;

/// A reader that returns one byte at a time.
struct ByteByByteReader<'a>(&'a [u8]);

impl Read for ByteByByteReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.len().min(1).min(into.len());
        into[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

const TEXT: &[u8] = b"#TS:1\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n#TS:2\r\n";

/// The arguments of a command, and the offset of its end.
type FoundCommand = (Vec<Vec<u8>>, u64);

fn read_all(input: impl Read) -> Result<Vec<FoundCommand>, AofReadError> {
    let mut commands = AofReader::new(input, 0);
    let mut all = Vec::new();
    while commands.read()? {
        all.push((commands.args().iter().map(<[u8]>::to_vec).collect(), commands.offset()));
    }
    Ok(all)
}

#[test]
fn commands_are_read_with_their_ends_in_pieces_of_any_size() {
    let expected = vec![
        (vec![b"SELECT".to_vec(), b"0".to_vec()], 30),
        (vec![b"SET".to_vec(), b"k".to_vec(), b"".to_vec()], 56),
    ];
    assert_eq!(read_all(TEXT).expect("it is whole"), expected);
    assert_eq!(read_all(ByteByByteReader(TEXT)).expect("it is whole"), expected);
}

#[test]
fn a_file_truncated_anywhere_is_short_or_ends_between_commands() {
    for end in 0..TEXT.len() {
        match read_all(&TEXT[..end]) {
            Ok(_) => assert!([0, 7, 30, 56].contains(&end), "cut at {end}"),
            Err(fault) => assert!(matches!(fault, AofReadError::Truncated), "cut at {end}: {fault:?}"),
        }
    }
}

/// A size that is ahead of the data: the file ends with zeros from any byte on.
#[test]
fn a_file_that_ends_with_zeros_is_truncated_before_the_command_that_they_cut() {
    let ends = [0, 7, 30, 56, 63];
    for end in 0..=TEXT.len() {
        for zeros in [1, 2, 3, 1023, 1024, 5000, CHUNK_BYTES + 1] {
            let mut text = TEXT[..end].to_vec();
            text.resize(end + zeros, 0);
            let mut commands = AofReader::new(&text[..], 0);
            let mut valid = 0;
            let fault = loop {
                match commands.read() {
                    Ok(true) => valid = commands.offset(),
                    Ok(false) => panic!("cut at {end}, {zeros} zeros: taken for the end"),
                    Err(fault) => break fault,
                }
            };
            assert!(
                matches!(fault, AofReadError::Truncated),
                "cut at {end}, {zeros} zeros: {fault:?}"
            );
            let before = ends
                .iter()
                .rfind(|other| **other <= end && [0, 30, 56].contains(*other));
            assert_eq!(Some(&(valid as usize)), before, "cut at {end}, {zeros} zeros");
        }
    }
}

#[test]
fn zeros_before_other_bytes_are_no_end() {
    let mut text = TEXT.to_vec();
    text.extend([0; 5000]);
    text.extend(TEXT);
    assert!(matches!(read_all(&text[..]), Err(AofReadError::Format)));
    // As Valkey does, the reader ignores what stands in place of the end of an argument.
    assert_eq!(
        read_all(&b"*1\r\n$4\r\nPING\0\0*1\r\n$4\r\nPING\r\n"[..])
            .expect("it is whole")
            .len(),
        2
    );
}

#[test]
fn invalid_commands_are_distinguished_from_truncated_ones() {
    let is_format = |text: &[u8]| matches!(read_all(text), Err(AofReadError::Format));
    assert!(is_format(b"SET k v\r\n"));
    assert!(is_format(b"*0\r\n"));
    assert!(is_format(b"*-1\r\n"));
    assert!(is_format(b"*1\r\nPING\r\n"));
    assert!(is_format(b"*1\r\n$-4\r\nPING\r\n"));
    assert!(is_format(b"*1\r\n$99999999999\r\nPING\r\n"));
    assert!(matches!(
        read_all(&b"*1\r\n$4000000000\r\nPING\r\n"[..]),
        Err(AofReadError::Truncated)
    ));
}
