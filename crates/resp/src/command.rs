//! Writes commands in RESP: the form of requests, append-only files and replication streams.

/// Appends a command in RESP, the form used in files and replication streams.
pub fn write_command<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>, out: &mut Vec<u8>) {
    begin_command(words.len(), out);
    words.for_each(|word| write_word(word, out));
}

/// Appends the header of a command of `words` words. The caller appends the words with [`write_word`].
pub fn begin_command(words: usize, out: &mut Vec<u8>) {
    write_number(b'*', words, out);
}

/// Appends one word of a command.
pub fn write_word(word: &[u8], out: &mut Vec<u8>) {
    write_number(b'$', word.len(), out);
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn write_number(mark: u8, number: usize, out: &mut Vec<u8>) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}
