//! Parses the first line of a script or library: `#!lua flags=no-writes,allow-oom name=lib`.

use weft_resp::quote;

bitflags::bitflags! {
    /// The flags that a script declares.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ScriptFlags: u8 {
        /// The script writes nothing.
        const NO_WRITES = 1;
        /// The script may run when memory is short.
        const ALLOW_OOM = 1 << 1;
        /// The script may run on a replica whose data is stale.
        const ALLOW_STALE = 1 << 2;
        /// The script must not run on a cluster node.
        const NO_CLUSTER = 1 << 3;
        /// The script's keys may be in several cluster slots.
        const ALLOW_CROSS_SLOT_KEYS = 1 << 4;
    }
}

impl ScriptFlags {
    /// All flags with their names, in the order in which replies list them.
    pub const NAMED: [(ScriptFlags, &'static str); 5] = [
        (ScriptFlags::NO_WRITES, "no-writes"),
        (ScriptFlags::ALLOW_OOM, "allow-oom"),
        (ScriptFlags::ALLOW_STALE, "allow-stale"),
        (ScriptFlags::NO_CLUSTER, "no-cluster"),
        (ScriptFlags::ALLOW_CROSS_SLOT_KEYS, "allow-cross-slot-keys"),
    ];

    /// Returns the flag with this exact name, as the first line of a script spells it.
    fn named(name: &[u8]) -> Option<ScriptFlags> {
        let is_it = |(_, known): &&(ScriptFlags, &str)| known.as_bytes() == name;
        Self::NAMED.iter().find(is_it).map(|(flag, _)| *flag)
    }

    /// Returns the flag with this name in any case, as FUNCTION LOAD accepts it.
    pub fn named_ignoring_case(name: &[u8]) -> Option<ScriptFlags> {
        Self::named(&name.to_ascii_lowercase())
    }
}

/// The parsed first line of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptHeader {
    /// The declared flags; `None` without a shebang line, which selects the behaviour of scripts from before flags
    /// existed.
    pub flags: Option<ScriptFlags>,
    /// The offset of the code: the end of the first line, so that line numbers agree with those of the client's text.
    pub code_at: usize,
}

/// Parses the first line of a script in Lua.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_script(body: &[u8]) -> Result<ScriptHeader, Vec<u8>> {
    let (engine, header) = of_any_script(body)?;
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"Could not find scripting engine '", &engine[..], b"'"].concat());
    }
    Ok(header)
}

/// Parses the first line of a script of any engine. Also returns the name of the engine.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_any_script(body: &[u8]) -> Result<(Vec<u8>, ScriptHeader), Vec<u8>> {
    if !body.starts_with(b"#!") {
        let header = ScriptHeader {
            flags: None,
            code_at: 0,
        };
        return Ok((b"lua".to_vec(), header));
    }
    let code_at = line_end(body).ok_or(b"Invalid script shebang".to_vec())?;
    let words = quote::split_arguments(&body[..code_at]).ok_or(b"Invalid engine in script shebang".to_vec())?;
    let mut flags = ScriptFlags::default();
    for word in words.iter().skip(1) {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err([b"Unknown lua shebang option: ", &word[..]].concat());
        };
        for name in list.split(|byte| *byte == b',').filter(|_| !list.is_empty()) {
            let flag =
                ScriptFlags::named(name).ok_or_else(|| [b"Unexpected flag in script shebang: ", name].concat())?;
            flags = flags.union(flag);
        }
    }
    let header = ScriptHeader {
        flags: Some(flags),
        code_at,
    };
    Ok((engine_of(&words).to_vec(), header))
}

/// The parsed first line of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryHeader {
    /// The name of the engine.
    pub engine: Vec<u8>,
    /// The name of the library.
    pub name: Vec<u8>,
    /// The offset of the code.
    pub code_at: usize,
}

/// Parses the first line of a library in Lua. Returns the library's name and the offset of its code.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_library(code: &[u8]) -> Result<(Vec<u8>, usize), Vec<u8>> {
    let LibraryHeader { engine, name, code_at } = of_any_library(code)?;
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(no_such_engine(&engine));
    }
    Ok((name, code_at))
}

/// Returns the error of a library whose engine does not exist.
pub fn no_such_engine(engine: &[u8]) -> Vec<u8> {
    [b"Engine '", engine, b"' not found"].concat()
}

/// Parses the first line of a library of any engine.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn of_any_library(code: &[u8]) -> Result<LibraryHeader, Vec<u8>> {
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
    Ok(LibraryHeader {
        engine: engine_of(&words).to_vec(),
        name: name.to_vec(),
        code_at,
    })
}

/// Checks the name of a function.
///
/// # Errors
/// The text of the error reply, without its code.
pub fn check_function_name(name: &[u8]) -> Result<(), Vec<u8>> {
    match is_name(name) {
        true => Ok(()),
        false => Err(
            b"Function names can only contain letters, numbers, or underscores(_) and must be at least one character \
              long"
                .to_vec(),
        ),
    }
}

/// Returns the engine that the first word names after `#!`.
fn engine_of(words: &[Vec<u8>]) -> &[u8] {
    words
        .first()
        .and_then(|word| word.strip_prefix(b"#!"))
        .unwrap_or_default()
}

/// Returns `true` if `name` is a valid name of a library or function.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn line_end(text: &[u8]) -> Option<usize> {
    // Valkey searches for the line end as in a C string.
    text.iter()
        .take_while(|byte| **byte != 0)
        .position(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests;
