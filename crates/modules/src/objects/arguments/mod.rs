//! The words of a command that a module gives, and the format in which it gives them.
//!
//! `Call`, `Replicate` and `EmitAOF` take a format of which each letter names an argument or a flag. The part in C
//! (`native/calls.c`) reads the arguments that the letters name.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_longlong, c_void};

use bitflags::bitflags;
use weft_resp::{ArgRange, Args};

use crate::objects::string::ModuleString;

bitflags! {
    /// The flags of a call (`VALKEYMODULE_CALL_ARGV_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CallFlags: u32 {
        /// `!`: the command is propagated.
        const REPLICATE = 1 << 0;
        /// `A`: it is not propagated to the append-only file.
        const NO_AOF = 1 << 1;
        /// `R`: it is not propagated to replicas.
        const NO_REPLICAS = 1 << 2;
        /// `3`: the reply is in RESP3.
        const RESP_3 = 1 << 3;
        /// `0`: the reply is in the protocol of the context's client.
        const RESP_AUTO = 1 << 4;
        /// `C`: the command needs the permissions of the context's user.
        const RUN_AS_USER = 1 << 5;
        /// `S`: the command must be one that scripts may call.
        const SCRIPT_MODE = 1 << 6;
        /// `W`: the command must not write.
        const NO_WRITES = 1 << 7;
        /// `E`: a refusal becomes an error reply, too.
        const ERRORS_AS_REPLIES = 1 << 8;
        /// `M`: the command is refused if it may need memory and there is none.
        const RESPECT_DENY_OOM = 1 << 9;
        /// `D`: the command is only checked. Implies `E`.
        const DRY_RUN = 1 << 10;
        /// `K`: the command may block.
        const ALLOW_BLOCK = 1 << 11;
        /// `X`: the reply keeps its exact type.
        const REPLY_EXACT = 1 << 12;
    }
}

/// One argument that the part in C has read.
#[repr(C)]
pub struct RawArgument {
    /// A C string, a string of the module, a buffer, or an array of strings of the module.
    pointer: *const c_void,
    /// An integer, or the length of the buffer or array.
    number: c_longlong,
}

/// The words of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandWords {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
}

impl CommandWords {
    /// Appends a word. Returns `false` if the command is longer than 4 GiB.
    pub fn push(&mut self, word: &[u8]) -> bool {
        let (start, end) = (self.bytes.len(), self.bytes.len() + word.len());
        if u32::try_from(end).is_err() {
            return false;
        }
        self.ranges.push(ArgRange {
            start: start as u32,
            len: word.len() as u32,
        });
        self.bytes.extend_from_slice(word);
        true
    }

    /// Returns the words as the arguments of a command.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    /// Reads a command whose arguments follow `format`.
    ///
    /// # Errors
    /// With the flags before it if the format has an unknown letter, and with all flags if the command is longer than
    /// 4 GiB.
    ///
    /// # Safety
    /// `name` and `format` are C strings. `arguments` are what the part in C has read for this format, and each of them
    /// is what its letter says.
    pub unsafe fn from_format(
        name: *const c_char,
        format: *const c_char,
        mut arguments: *const RawArgument,
    ) -> Result<(CommandWords, CallFlags), CallFlags> {
        // SAFETY: the caller promises C strings.
        let (name, format) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(format)) };
        let mut flags = CallFlags::empty();
        for letter in format.to_bytes() {
            if !b"csblv".contains(letter) {
                flags |= flag_of_letter(*letter).ok_or(flags)?;
            }
        }
        let mut words = CommandWords {
            bytes: Vec::with_capacity(64),
            ranges: Vec::with_capacity(1 + format.to_bytes().len()),
        };
        let mut are_all_pushed = words.push(name.to_bytes());
        for letter in format.to_bytes().iter().filter(|letter| b"csblv".contains(letter)) {
            // SAFETY: there is an argument for each of these letters.
            are_all_pushed &= unsafe { words.push_raw(*letter, &*arguments) };
            // SAFETY: as above; the pointer may be one past the last argument.
            arguments = unsafe { arguments.add(1) };
        }
        if are_all_pushed { Ok((words, flags)) } else { Err(flags) }
    }

    /// Appends the words of one argument.
    ///
    /// # Safety
    /// The argument is what `letter` says.
    unsafe fn push_raw(&mut self, letter: u8, argument: &RawArgument) -> bool {
        let pointer = argument.pointer;
        let length = argument.number as usize;
        // SAFETY: the caller promises it.
        unsafe {
            match letter {
                b'c' => self.push(CStr::from_ptr(pointer.cast()).to_bytes()),
                b's' => self.push(ModuleString::bytes_of(pointer.cast())),
                b'l' => self.push(itoa::Buffer::new().format(argument.number).as_bytes()),
                b'b' if length == 0 => self.push(b""),
                b'b' => self.push(std::slice::from_raw_parts(pointer.cast(), length)),
                _ if length == 0 => true,
                _ => std::slice::from_raw_parts(pointer.cast::<*const ModuleString>(), length)
                    .iter()
                    .all(|string| self.push(ModuleString::bytes_of(*string))),
            }
        }
    }
}

/// The strings in which a context's command is passed to the module, for as long as it runs.
pub struct CommandStrings(Cell<*const [*mut ModuleString]>);

impl Default for CommandStrings {
    fn default() -> CommandStrings {
        CommandStrings(Cell::new(&[]))
    }
}

impl CommandStrings {
    /// Sets the strings.
    ///
    /// # Safety
    /// The strings, and the slice of them, live until this function is called again, or until the context ends.
    pub unsafe fn set(&self, strings: &[*mut ModuleString]) {
        self.0.set(strings);
    }

    /// Returns the number of words of the command; 0 if the context has none.
    pub fn count(&self) -> usize {
        self.0.get().len()
    }

    /// Returns the words of the command; `None` if the context has none.
    pub fn words(&self) -> Option<CommandWords> {
        // SAFETY: whoever has set the strings promises that they live.
        let strings = unsafe { &*self.0.get() };
        // SAFETY: as above.
        let bytes = |string: &*mut ModuleString| unsafe { ModuleString::bytes_of(*string) };
        let mut words = CommandWords {
            bytes: Vec::with_capacity(strings.iter().map(|string| bytes(string).len()).sum()),
            ranges: Vec::with_capacity(strings.len()),
        };
        for string in strings {
            words.push(bytes(string));
        }
        (!strings.is_empty()).then_some(words)
    }
}

/// Returns the flag that a letter stands for.
fn flag_of_letter(letter: u8) -> Option<CallFlags> {
    Some(match letter {
        b'!' => CallFlags::REPLICATE,
        b'A' => CallFlags::NO_AOF,
        b'R' => CallFlags::NO_REPLICAS,
        b'3' => CallFlags::RESP_3,
        b'0' => CallFlags::RESP_AUTO,
        b'C' => CallFlags::RUN_AS_USER,
        b'S' => CallFlags::SCRIPT_MODE,
        b'W' => CallFlags::NO_WRITES,
        b'M' => CallFlags::RESPECT_DENY_OOM,
        b'E' => CallFlags::ERRORS_AS_REPLIES,
        b'D' => CallFlags::DRY_RUN.union(CallFlags::ERRORS_AS_REPLIES),
        b'K' => CallFlags::ALLOW_BLOCK,
        b'X' => CallFlags::REPLY_EXACT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
