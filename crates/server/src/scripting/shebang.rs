//! The first line of a script or library: `#!lua flags=no-writes,allow-oom name=lib`.

use weft_resp::quote;

/// What a script promises, or asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// It writes nothing.
    pub const NO_WRITES: Flags = Flags(1);
    /// It may run when memory is short.
    pub const ALLOW_OOM: Flags = Flags(1 << 1);
    /// It may run on a replica whose data is stale.
    pub const ALLOW_STALE: Flags = Flags(1 << 2);
    /// It must not run on a node of a cluster.
    pub const NO_CLUSTER: Flags = Flags(1 << 3);
    /// Its keys may be in several slots of a cluster.
    pub const ALLOW_CROSS_SLOT_KEYS: Flags = Flags(1 << 4);

    /// All flags with their names, in the order in which they are shown.
    pub const NAMED: [(Flags, &'static str); 5] = [
        (Flags::NO_WRITES, "no-writes"),
        (Flags::ALLOW_OOM, "allow-oom"),
        (Flags::ALLOW_STALE, "allow-stale"),
        (Flags::NO_CLUSTER, "no-cluster"),
        (Flags::ALLOW_CROSS_SLOT_KEYS, "allow-cross-slot-keys"),
    ];

    /// Whether all of `other` are among them.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The flag with that name, as a script's first line has it.
    fn named(name: &[u8]) -> Option<Flags> {
        let is_it = |(_, known): &&(Flags, &str)| known.as_bytes() == name;
        Self::NAMED.iter().find(is_it).map(|(flag, _)| *flag)
    }

    /// The flag with that name in any case, as functions are registered with it.
    pub fn named_in_any_case(name: &[u8]) -> Option<Flags> {
        Self::named(&name.to_ascii_lowercase())
    }
}

/// What a script's first line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its flags; `None` without such a line, as scripts were before there was one.
    pub flags: Option<Flags>,
    /// Where the code begins: at the end of the line, so that lines are counted as the client counts them.
    pub code_at: usize,
}

/// Reads the first line of a script.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_script(body: &[u8]) -> Result<Header, Vec<u8>> {
    if !body.starts_with(b"#!") {
        return Ok(Header {
            flags: None,
            code_at: 0,
        });
    }
    let code_at = line_end(body).ok_or(b"Invalid script shebang".to_vec())?;
    let words = quote::split_arguments(&body[..code_at]).ok_or(b"Invalid engine in script shebang".to_vec())?;
    let mut flags = Flags::default();
    for word in words.iter().skip(1) {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err([b"Unknown lua shebang option: ", &word[..]].concat());
        };
        for name in list.split(|byte| *byte == b',').filter(|_| !list.is_empty()) {
            let flag = Flags::named(name).ok_or_else(|| [b"Unexpected flag in script shebang: ", name].concat())?;
            flags = flags.with(flag);
        }
    }
    let engine = engine_of(&words);
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"Could not find scripting engine '", engine, b"'"].concat());
    }
    Ok(Header {
        flags: Some(flags),
        code_at,
    })
}

/// Reads the first line of a library: its name, and where the code begins.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_library(code: &[u8]) -> Result<(Vec<u8>, usize), Vec<u8>> {
    if !code.starts_with(b"#!") {
        return Err(b"Missing library metadata".to_vec());
    }
    let code_at = line_end(code).ok_or(b"Invalid library metadata".to_vec())?;
    let words = quote::split_arguments(&code[..code_at]).ok_or(b"Invalid library metadata".to_vec())?;
    let mut name: Option<&[u8]> = None;
    for word in words.iter().skip(1) {
        match word.split_at_checked(5) {
            Some((option, value)) if option.eq_ignore_ascii_case(b"name=") => {
                if name.is_some() {
                    return Err(b"Invalid metadata value, name argument was given multiple times".to_vec());
                }
                name = Some(value);
            }
            _ => return Err([b"Invalid metadata value given: ", &word[..]].concat()),
        }
    }
    let name = name.ok_or(b"Library name was not given".to_vec())?;
    if !is_name(name) {
        return Err(
            b"Library names can only contain letters, numbers, or underscores(_) and must be at least one character \
              long"
                .to_vec(),
        );
    }
    let engine = engine_of(&words);
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"Engine '", engine, b"' not found"].concat());
    }
    Ok((name.to_vec(), code_at))
}

/// What the first word names behind its mark.
fn engine_of(words: &[Vec<u8>]) -> &[u8] {
    words
        .first()
        .and_then(|word| word.strip_prefix(b"#!"))
        .unwrap_or_default()
}

/// Whether a library or function may be called so.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn line_end(text: &[u8]) -> Option<usize> {
    // Valkey looks for it as in a C string.
    text.iter()
        .take_while(|byte| **byte != 0)
        .position(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests;
