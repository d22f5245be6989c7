//! Replies of a server in RESP2, and what the requests of the simulation need of RESP3.

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SeenReply {
    /// A status, such as `OK`.
    Status(String),
    /// An error, with its code.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// The null bulk string or the null array.
    Null,
    /// An array, or the keys and values of a map.
    Array(Vec<SeenReply>),
    /// A push message.
    Push(Vec<SeenReply>),
    /// In a model: a reply that it does not know.
    Unknown,
}

impl SeenReply {
    /// The status `OK`.
    pub fn ok() -> SeenReply {
        SeenReply::Status("OK".to_owned())
    }

    /// A bulk string or null.
    pub fn bulk(value: Option<&[u8]>) -> SeenReply {
        value.map_or(SeenReply::Null, |value| SeenReply::Bulk(value.to_vec()))
    }

    /// Returns `true` if a server may reply `seen` where a model replies this.
    pub fn allows(&self, seen: &SeenReply) -> bool {
        match (self, seen) {
            (SeenReply::Unknown, _) => true,
            (SeenReply::Array(expected), SeenReply::Array(seen)) => allow_all(expected, seen),
            _ => self == seen,
        }
    }

    /// Parses the reply at the start of `bytes`. Returns it with its length, or `None` if it is not complete.
    ///
    /// # Errors
    /// With a description if the bytes are no reply.
    pub fn parse(bytes: &[u8]) -> Result<Option<(SeenReply, usize)>, String> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
        let after = end + 2;
        let number = || line.parse::<i64>().map_err(|_| format!("no number: {line}"));
        Ok(match bytes[0] {
            b'+' => Some((SeenReply::Status(line), after)),
            b'-' => Some((SeenReply::Error(line), after)),
            b':' => Some((SeenReply::Integer(number()?), after)),
            b'$' => match usize::try_from(number()?) {
                Err(_) => Some((SeenReply::Null, after)),
                Ok(length) if bytes.len() < after + length + 2 => None,
                Ok(length) => Some((
                    SeenReply::Bulk(bytes[after..after + length].to_vec()),
                    after + length + 2,
                )),
            },
            b'*' => match usize::try_from(number()?) {
                Err(_) => Some((SeenReply::Null, after)),
                Ok(count) => parse_items(bytes, after, count)?.map(|(items, end)| (SeenReply::Array(items), end)),
            },
            b'%' => {
                let count = 2 * usize::try_from(number()?).unwrap_or(0);
                parse_items(bytes, after, count)?.map(|(items, end)| (SeenReply::Array(items), end))
            }
            b'>' => {
                let count = usize::try_from(number()?).unwrap_or(0);
                parse_items(bytes, after, count)?.map(|(items, end)| (SeenReply::Push(items), end))
            }
            b'_' => Some((SeenReply::Null, after)),
            other => return Err(format!("a reply begins with byte {other}: {line}")),
        })
    }
}

/// Returns `true` if a server may reply `seen` where a model replies `expected`.
pub fn allow_all(expected: &[SeenReply], seen: &[SeenReply]) -> bool {
    expected.len() == seen.len() && expected.iter().zip(seen).all(|(expected, seen)| expected.allows(seen))
}

/// Parses `count` replies from `at` on. Returns them with the end of the last one, or `None` if they are not complete.
fn parse_items(bytes: &[u8], mut at: usize, count: usize) -> Result<Option<(Vec<SeenReply>, usize)>, String> {
    let mut items = Vec::new();
    for _ in 0..count {
        if at >= bytes.len() {
            return Ok(None);
        }
        let Some((item, length)) = SeenReply::parse(&bytes[at..])? else {
            return Ok(None);
        };
        items.push(item);
        at += length;
    }
    Ok(Some((items, at)))
}
