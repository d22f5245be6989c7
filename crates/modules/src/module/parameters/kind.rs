//! The forms of values of parameters: reading and printing them, and the functions of the module for each form.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::ptr::null_mut;

use weft_resp::number::{parse_i64, parse_memory, parse_u64};

use super::{ParameterFlags, Refusal, take_reason};
use crate::api::OK;
use crate::objects::context::Context;
use crate::objects::string::ModuleString;

/// The function that is called once after several parameters were set (`ValkeyModuleConfigApplyFunc`).
pub type ApplyFunction = unsafe extern "C" fn(*mut Context, *mut c_void, *mut *mut ModuleString) -> c_int;

/// The functions of a boolean.
pub type BoolFunctions = (
    unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int,
    unsafe extern "C" fn(*const c_char, c_int, *mut c_void, *mut *mut ModuleString) -> c_int,
);
/// The functions of a number.
pub type NumberFunctions = (
    unsafe extern "C" fn(*const c_char, *mut c_void) -> c_longlong,
    unsafe extern "C" fn(*const c_char, c_longlong, *mut c_void, *mut *mut ModuleString) -> c_int,
);
/// The functions of an unsigned number.
pub type UnsignedFunctions = (
    unsafe extern "C" fn(*const c_char, *mut c_void) -> c_ulonglong,
    unsafe extern "C" fn(*const c_char, c_ulonglong, *mut c_void, *mut *mut ModuleString) -> c_int,
);
/// The functions of a string.
pub type TextFunctions = (
    unsafe extern "C" fn(*const c_char, *mut c_void) -> *mut ModuleString,
    unsafe extern "C" fn(*const c_char, *mut ModuleString, *mut c_void, *mut *mut ModuleString) -> c_int,
);
/// The functions of a choice among words.
pub type ChoiceFunctions = BoolFunctions;

/// The form of a parameter's values, its default, and the functions of the module.
pub enum ParameterKind {
    /// `yes` or `no`.
    Bool(c_int, BoolFunctions),
    /// A number between two others.
    Number(Range<i64>, NumberFunctions),
    /// An unsigned number between two others.
    Unsigned(Range<u64>, UnsignedFunctions),
    /// A string; `None` is an empty default.
    Text(Option<Vec<u8>>, TextFunctions),
    /// One of several words, or a set of them.
    Choice(c_int, Vec<(Vec<u8>, c_int)>, ChoiceFunctions),
}

/// The default of a number, and its bounds.
pub struct Range<N> {
    /// The default.
    pub default: N,
    /// The smallest value.
    pub min: N,
    /// The largest value.
    pub max: N,
}

/// The way in which a number is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notation {
    /// As an integer.
    Plain,
    /// As an integer without a sign.
    Unsigned,
    /// With a unit of memory.
    Memory,
}

impl Notation {
    fn of(flags: ParameterFlags) -> Notation {
        if flags.contains(ParameterFlags::MEMORY) {
            Notation::Memory
        } else if flags.contains(ParameterFlags::UNSIGNED) {
            Notation::Unsigned
        } else {
            Notation::Plain
        }
    }

    /// Reads the bits of a number.
    pub(super) fn read(self, flags: ParameterFlags, text: &[u8]) -> Result<i64, Vec<u8>> {
        let unsigned = || parse_u64(text).map(|number| number as i64);
        let (number, refusal) = match self {
            Notation::Plain => (parse_i64(text), "argument couldn't be parsed into an integer"),
            Notation::Unsigned => (unsigned(), "argument couldn't be parsed as an unsigned number"),
            Notation::Memory => {
                let amount = parse_memory(text).map(|amount| amount as i64);
                let is_unsigned = flags.contains(ParameterFlags::UNSIGNED);
                (
                    amount.or_else(|| unsigned().filter(|_| is_unsigned)),
                    "argument must be a memory value",
                )
            }
        };
        number.ok_or_else(|| refusal.into())
    }

    /// Prints the bits of a number.
    pub(super) fn print(self, number: i64) -> Vec<u8> {
        match self {
            Notation::Plain => number.to_string().into_bytes(),
            Notation::Unsigned | Notation::Memory => (number as u64).to_string().into_bytes(),
        }
    }

    /// Prints the bits of a number with the largest unit that divides it.
    fn print_for_file(self, number: i64) -> Vec<u8> {
        let amount = number as u64;
        let units = [(30, "gb"), (20, "mb"), (10, "kb")];
        let unit = units.iter().find(|(shift, _)| amount.trailing_zeros() >= *shift);
        match unit {
            Some((shift, unit)) if self == Notation::Memory && amount != 0 => {
                format!("{}{unit}", amount >> shift).into_bytes()
            }
            _ => self.print(number),
        }
    }
}

fn out_of_range(min: impl std::fmt::Display, max: impl std::fmt::Display) -> Refusal {
    Some(format!("argument must be between {min} and {max} inclusive").into_bytes())
}

/// Returns the part of a text that a C program sees.
fn c_part(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn read_bool(text: &[u8]) -> Result<c_int, Vec<u8>> {
    let text = c_part(text);
    if text.eq_ignore_ascii_case(b"yes") {
        Ok(1)
    } else if text.eq_ignore_ascii_case(b"no") {
        Ok(0)
    } else {
        Err(b"argument must be 'yes' or 'no'".to_vec())
    }
}

/// The longest list of words in an error text, in bytes.
const MAX_CHOICES_BYTES: usize = 255;

/// Reads words. With several words, their numbers are combined.
pub(super) fn read_choices(choices: &[(Vec<u8>, c_int)], is_set: bool, text: &[u8]) -> Result<c_int, Vec<u8>> {
    let words: Vec<&[u8]> = match is_set {
        true if text.is_empty() => Vec::new(),
        true => text.split(|byte| *byte == b' ').collect(),
        false => vec![text],
    };
    let number_of = |word: &&[u8]| {
        let matching = choices
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(c_part(word)));
        matching.map(|(_, number)| *number).reduce(|one, other| one | other)
    };
    let numbers: Option<Vec<c_int>> = words.iter().map(number_of).collect();
    let combined = numbers.and_then(|numbers| numbers.into_iter().reduce(|one, other| one | other));
    combined.ok_or_else(|| {
        let names: Vec<&[u8]> = choices.iter().map(|(name, _)| name.as_slice()).collect();
        let mut refusal = b"argument(s) must be one of the following: ".to_vec();
        refusal.extend_from_slice(&names.join(&b", "[..]));
        refusal.truncate(MAX_CHOICES_BYTES);
        refusal
    })
}

/// Returns the word of a number, or the words whose bits it consists of.
pub(super) fn print_choices(choices: &[(Vec<u8>, c_int)], is_set: bool, number: c_int) -> Vec<u8> {
    if let Some((name, _)) = choices.iter().find(|(_, choice)| *choice == number) {
        return name.clone();
    }
    let (mut names, mut rest) = (Vec::new(), number);
    for (name, bits) in choices {
        if is_set && *bits != 0 && rest & bits == *bits {
            names.push(name.as_slice());
            rest &= !bits;
        }
    }
    match names.is_empty() || rest != 0 {
        true => b"unknown".to_vec(),
        false => names.join(&b' '),
    }
}

/// Calls a set function.
fn call_set(set: impl FnOnce(*mut *mut ModuleString) -> c_int) -> Result<(), Refusal> {
    let mut reason = null_mut();
    let result = set(&raw mut reason);
    let reason = take_reason(reason);
    if result == OK { Ok(()) } else { Err(reason) }
}

/// Calls the set function of a string, which is freed afterwards.
fn set_text(functions: &TextFunctions, name: &CStr, data: *mut c_void, text: &[u8]) -> Result<(), Refusal> {
    let string = ModuleString::create(text);
    // SAFETY: the string lives until the call has ended; the data are the module's.
    let result = call_set(|reason| unsafe { (functions.1)(name.as_ptr(), string, data, reason) });
    // SAFETY: this function is a holder of the string.
    unsafe { ModuleString::release(string) };
    result
}

impl ParameterKind {
    /// Returns the value as CONFIG GET shows it.
    pub(super) fn print(&self, name: &CStr, data: *mut c_void, flags: ParameterFlags) -> Vec<u8> {
        let name = name.as_ptr();
        // SAFETY: the functions are the module's, for the form that they are stored with, and so are the data.
        unsafe {
            match self {
                ParameterKind::Bool(_, (get, _)) => match get(name, data) {
                    0 => b"no".to_vec(),
                    _ => b"yes".to_vec(),
                },
                ParameterKind::Number(_, (get, _)) => Notation::of(flags).print(get(name, data)),
                ParameterKind::Unsigned(_, (get, _)) => Notation::of(flags).print(get(name, data) as i64),
                // The string stays the module's.
                ParameterKind::Text(_, (get, _)) => ModuleString::bytes_of(get(name, data)).to_vec(),
                ParameterKind::Choice(_, choices, (get, _)) => {
                    print_choices(choices, flags.contains(ParameterFlags::BITFLAGS), get(name, data))
                }
            }
        }
    }

    /// Returns the value as the file contains it, and `true` if it differs from the default. Returns `None` if the
    /// module has no string.
    pub(super) fn print_for_file(
        &self,
        name: &CStr,
        data: *mut c_void,
        flags: ParameterFlags,
    ) -> Option<(Vec<u8>, bool)> {
        let text = self.print(name, data, flags);
        let c_name = name.as_ptr();
        // SAFETY: as for `print`.
        let printed = unsafe {
            match self {
                ParameterKind::Bool(default, _) => {
                    let is_default = (*default != 0) == (text == b"yes");
                    (text, !is_default)
                }
                ParameterKind::Number(range, (get, _)) => {
                    let number = get(c_name, data);
                    (Notation::of(flags).print_for_file(number), number != range.default)
                }
                ParameterKind::Unsigned(range, (get, _)) => {
                    let number = get(c_name, data);
                    (
                        Notation::of(flags).print_for_file(number as i64),
                        number != range.default,
                    )
                }
                ParameterKind::Text(_, (get, _)) if get(c_name, data).is_null() => return None,
                ParameterKind::Text(default, _) => {
                    let is_default = default.as_deref().is_some_and(|default| default == text);
                    (text, !is_default)
                }
                ParameterKind::Choice(default, _, (get, _)) => (text, get(c_name, data) != *default),
            }
        };
        Some(printed)
    }

    /// Returns `true` if the file contains the value in quotes.
    pub(super) fn is_text(&self) -> bool {
        matches!(self, ParameterKind::Text(..))
    }

    /// Reads a value, and sets it unless it is the current one. Returns `true` if it was set.
    pub(super) fn set(
        &self,
        name: &CStr,
        data: *mut c_void,
        flags: ParameterFlags,
        text: &[u8],
    ) -> Result<bool, Refusal> {
        let c_name = name.as_ptr();
        // SAFETY: as for `print`.
        unsafe {
            match self {
                ParameterKind::Bool(_, (get, set)) => {
                    let value = read_bool(text).map_err(Some)?;
                    if get(c_name, data) == value {
                        return Ok(false);
                    }
                    call_set(|reason| set(c_name, value, data, reason))?;
                }
                ParameterKind::Number(range, (get, set)) => {
                    let value = Notation::of(flags).read(flags, text).map_err(Some)?;
                    if !(range.min..=range.max).contains(&value) {
                        return Err(out_of_range(range.min, range.max));
                    }
                    if get(c_name, data) == value {
                        return Ok(false);
                    }
                    call_set(|reason| set(c_name, value, data, reason))?;
                }
                ParameterKind::Unsigned(range, (get, set)) => {
                    let value = Notation::of(flags).read(flags, text).map_err(Some)? as u64;
                    if !(range.min..=range.max).contains(&value) {
                        return Err(out_of_range(range.min, range.max));
                    }
                    if get(c_name, data) == value {
                        return Ok(false);
                    }
                    call_set(|reason| set(c_name, value, data, reason))?;
                }
                ParameterKind::Text(_, functions) => {
                    let current = (functions.0)(c_name, data);
                    if !current.is_null() && ModuleString::bytes_of(current) == text {
                        return Ok(false);
                    }
                    set_text(functions, name, data, text)?;
                }
                ParameterKind::Choice(_, choices, (get, set)) => {
                    let is_set = flags.contains(ParameterFlags::BITFLAGS);
                    let value = read_choices(choices, is_set, text).map_err(Some)?;
                    if get(c_name, data) == value {
                        return Ok(false);
                    }
                    call_set(|reason| set(c_name, value, data, reason))?;
                }
            }
        }
        Ok(true)
    }

    /// Sets the default.
    pub(super) fn set_default(&self, name: &CStr, data: *mut c_void) -> Result<(), Refusal> {
        let c_name = name.as_ptr();
        // SAFETY: as for `print`.
        unsafe {
            match self {
                ParameterKind::Bool(default, (_, set)) | ParameterKind::Choice(default, _, (_, set)) => {
                    call_set(|reason| set(c_name, *default, data, reason))
                }
                ParameterKind::Number(range, (_, set)) => call_set(|reason| set(c_name, range.default, data, reason)),
                ParameterKind::Unsigned(range, (_, set)) => call_set(|reason| set(c_name, range.default, data, reason)),
                ParameterKind::Text(default, functions) => {
                    set_text(functions, name, data, default.as_deref().unwrap_or_default())
                }
            }
        }
    }
}
