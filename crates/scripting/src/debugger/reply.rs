//! Formats replies of commands for a debugger's user.

use weft_resp::number::parse_i64;
use weft_resp::quote::append_quoted;

/// Appends a reply. Types without a readable form append nothing.
pub(super) fn append_readable(reply: &[u8], out: &mut Vec<u8>) {
    append_next(reply, out);
}

/// Appends the first reply of the bytes. Returns the bytes behind it.
fn append_next<'r>(reply: &'r [u8], out: &mut Vec<u8>) -> &'r [u8] {
    let Some(end) = reply.windows(2).position(|window| window == b"\r\n") else {
        return &[];
    };
    let (line, rest) = (&reply[..end], &reply[end + 2..]);
    let Some((kind, line_rest)) = line.split_first() else {
        return rest;
    };
    let count = || parse_i64(line_rest).unwrap_or(0);
    match kind {
        b':' => out.extend_from_slice(line_rest),
        b'+' | b'-' => append_quoted(out, line),
        b'_' => out.extend_from_slice(b"(null)"),
        b'#' => out.extend_from_slice(if line_rest == b"t" { b"#true" } else { b"#false" }),
        b',' => {
            out.extend_from_slice(b"(double) ");
            out.extend_from_slice(line_rest);
        }
        b'$' => {
            let Ok(bytes) = usize::try_from(count()) else {
                out.extend_from_slice(b"NULL");
                return rest;
            };
            append_quoted(out, rest.get(..bytes).unwrap_or_default());
            return rest.get(bytes + 2..).unwrap_or_default();
        }
        b'*' if count() < 0 => out.extend_from_slice(b"NULL"),
        b'*' => return append_sequence(rest, b"[", b"]", count(), out),
        b'~' => return append_sequence(rest, b"~(", b")", count(), out),
        b'%' => return append_pairs(rest, count(), out),
        // Valkey's debugger does not get past these types.
        _ => return reply,
    }
    rest
}

fn append_sequence<'r>(mut rest: &'r [u8], opening: &[u8], closing: &[u8], count: i64, out: &mut Vec<u8>) -> &'r [u8] {
    out.extend_from_slice(opening);
    for index in 0..count {
        if index > 0 {
            out.push(b',');
        }
        rest = append_next(rest, out);
    }
    out.extend_from_slice(closing);
    rest
}

fn append_pairs<'r>(mut rest: &'r [u8], count: i64, out: &mut Vec<u8>) -> &'r [u8] {
    out.push(b'{');
    for index in 0..count {
        if index > 0 {
            out.push(b',');
        }
        rest = append_next(rest, out);
        out.extend_from_slice(b" => ");
        rest = append_next(rest, out);
    }
    out.push(b'}');
    rest
}
