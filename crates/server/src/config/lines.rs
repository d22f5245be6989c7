//! Splitting a line into arguments, and quoting an argument so that it survives that.

use super::numbers::is_blank;

/// Splits a line at blanks. `"..."` may contain blanks and the escapes `\n \r \t \b \a \xHH \\ \"`,
/// `'...'` may contain blanks and the escape `\'`. A line ends at a NUL byte.
/// Nothing comes back when a quote is not closed, or is not followed by a blank.
pub fn split_arguments(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let end = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    let mut reader = Reader { rest: &line[..end] };
    let mut arguments = Vec::new();
    while reader.skip_blanks() {
        arguments.push(reader.argument()?);
    }
    Some(arguments)
}

struct Reader<'line> {
    rest: &'line [u8],
}

impl Reader<'_> {
    /// Skips blanks; whether something is left.
    fn skip_blanks(&mut self) -> bool {
        let blanks = self.rest.iter().take_while(|&&byte| is_blank(byte)).count();
        self.rest = &self.rest[blanks..];
        !self.rest.is_empty()
    }

    fn argument(&mut self) -> Option<Vec<u8>> {
        let mut argument = Vec::new();
        loop {
            match self.take() {
                None | Some(b' ' | b'\n' | b'\r' | b'\t') => return Some(argument),
                Some(b'"') => return self.double_quoted(argument),
                Some(b'\'') => return self.single_quoted(argument),
                Some(byte) => argument.push(byte),
            }
        }
    }

    /// The rest of an argument whose opening quote was read: the closing quote ends the argument.
    fn double_quoted(&mut self, mut argument: Vec<u8>) -> Option<Vec<u8>> {
        loop {
            match self.take()? {
                b'"' => return self.at_border().then_some(argument),
                b'\\' => argument.push(self.escaped()?),
                byte => argument.push(byte),
            }
        }
    }

    fn single_quoted(&mut self, mut argument: Vec<u8>) -> Option<Vec<u8>> {
        loop {
            match self.take()? {
                b'\'' => return self.at_border().then_some(argument),
                b'\\' if self.rest.first() == Some(&b'\'') => {
                    self.take();
                    argument.push(b'\'');
                }
                byte => argument.push(byte),
            }
        }
    }

    fn escaped(&mut self) -> Option<u8> {
        if let [b'x', high, low, ..] = *self.rest
            && let (Some(high), Some(low)) = (char::from(high).to_digit(16), char::from(low).to_digit(16))
        {
            self.rest = &self.rest[3..];
            return Some((high * 16 + low) as u8);
        }
        Some(match self.take()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            byte => byte,
        })
    }

    fn at_border(&self) -> bool {
        self.rest.first().is_none_or(|&byte| is_blank(byte))
    }

    fn take(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }
}

/// Puts an argument into double quotes, with escapes for everything that is not printable.
pub fn quoted(argument: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in argument {
        match byte {
            b'\\' | b'"' => quoted.extend([b'\\', byte]),
            b'\n' => quoted.extend(b"\\n"),
            b'\r' => quoted.extend(b"\\r"),
            b'\t' => quoted.extend(b"\\t"),
            0x07 => quoted.extend(b"\\a"),
            0x08 => quoted.extend(b"\\b"),
            b' '..=b'~' => quoted.push(byte),
            _ => quoted.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}
