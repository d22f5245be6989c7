//! Errors among replies that no client receives.

/// Returns the first error among some replies, without its type byte.
pub(super) fn first_error(replies: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    while let Some(reply) = replies.get(at..).filter(|reply| !reply.is_empty()) {
        if let Some(error) = reply.strip_prefix(b"-") {
            return error.split(|byte| *byte == b'\r').next();
        }
        at += first_reply_len(reply)?;
    }
    None
}

/// Returns the length of the first of some replies.
fn first_reply_len(replies: &[u8]) -> Option<usize> {
    let line = 2 + replies.windows(2).position(|window| window == b"\r\n")?;
    let number = || weft_resp::number::parse_i64(replies.get(1..line - 2)?);
    match replies.first()? {
        b'$' | b'=' => {
            let body = usize::try_from(number()?).map_or(0, |length| length + 2);
            Some(line + body)
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let elements = number()?.max(0) * if *kind == b'%' { 2 } else { 1 };
            (0..elements).try_fold(line, |at, _| Some(at + first_reply_len(replies.get(at..)?)?))
        }
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests;
