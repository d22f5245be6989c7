//! Functions that register parameters of modules, and give them their first values.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::parameters::{
    self, ApplyFunction, BoolFunctions, ChoiceFunctions, NumberFunctions, ParameterFlags, ParameterKind, Range,
    TextFunctions, UnsignedFunctions,
};
use crate::objects::context::Context;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterBoolConfig", register_bool),
    ("RegisterNumericConfig", register_number),
    ("RegisterUnsignedNumericConfig", register_unsigned),
    ("RegisterStringConfig", register_text),
    ("RegisterEnumConfig", register_choice),
    ("LoadConfigs", load),
];

/// What all forms of parameters have in common.
struct Declaration {
    context: *mut Context,
    name: *const c_char,
    flags: c_uint,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
}

/// Returns `true` if a name consists of letters, digits, `_` and `-`; otherwise logs why not.
fn is_valid_name(name: &CStr) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match name.to_bytes().iter().find(|byte| !is_allowed(byte)) {
        None => !name.is_empty(),
        Some(byte) => {
            let (character, name) = (char::from(*byte), name.to_string_lossy());
            log::warn!("Invalid character {character} in Module resource name {name}.");
            false
        }
    }
}

/// Returns the flags of a parameter; `None`, after a line in the log, if it cannot have them.
fn checked_flags(bits: c_uint, kind: &ParameterKind) -> Option<ParameterFlags> {
    let Some(flags) = ParameterFlags::from_bits(bits) else {
        log::warn!("Invalid flag(s) for configuration");
        return None;
    };
    // As in Valkey, strings may have the flags of numbers, which change nothing.
    let may_be_number = matches!(
        kind,
        ParameterKind::Number(..) | ParameterKind::Unsigned(..) | ParameterKind::Text(..)
    );
    if !may_be_number && flags.intersects(ParameterFlags::MEMORY.union(ParameterFlags::UNSIGNED)) {
        log::warn!("Numeric flag provided for non-numeric configuration.");
        return None;
    }
    if !matches!(kind, ParameterKind::Choice(..)) && flags.contains(ParameterFlags::BITFLAGS) {
        log::warn!("Enum flag provided for non-enum configuration.");
        return None;
    }
    Some(flags)
}

/// Registers a parameter, or sets the error number.
///
/// # Safety
/// Rule 1.
unsafe fn register(declared: &Declaration, kind: ParameterKind) -> c_int {
    let fail = |number| {
        errno::set(number);
        ERR
    };
    // SAFETY: the caller promises it.
    let Some(context) = (unsafe { Context::from_pointer(declared.context) }) else {
        return fail(libc::EINVAL);
    };
    if !context.module.is_loading() {
        return fail(libc::EBUSY);
    }
    if declared.name.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller promises it.
    let name = unsafe { CStr::from_ptr(declared.name) };
    let Some(flags) = checked_flags(declared.flags, &kind).filter(|_| is_valid_name(name)) else {
        return fail(libc::EINVAL);
    };
    let full_name = parameters::full_name(&context.module, name);
    if parameters::find(full_name.as_bytes()).is_some() {
        let name = name.to_string_lossy();
        log::warn!("Configuration by the name: {name} already registered");
        return fail(libc::EALREADY);
    }
    parameters::register(&context.module, name, flags, kind, declared.apply, declared.data);
    OK
}

/// Returns the functions of a form, or fails if one of them is missing.
macro_rules! functions_or_fail {
    ($get:ident, $set:ident) => {
        match ($get, $set) {
            (Some(get), Some(set)) => (get, set),
            _ => {
                errno::set(libc::EINVAL);
                return ERR;
            }
        }
    };
}

/// The first and the second of two functions.
type Get<F> = Option<<F as FunctionPair>::Get>;
type Set<F> = Option<<F as FunctionPair>::Set>;

/// The types of the functions of a form.
trait FunctionPair {
    /// The type of the function that returns the value.
    type Get;
    /// The type of the function that sets the value.
    type Set;
}

impl<G, S> FunctionPair for (G, S) {
    type Get = G;
    type Set = S;
}

#[allow(clippy::too_many_arguments, reason = "the module passes them")]
unsafe extern "C" fn register_bool(
    context: *mut Context,
    name: *const c_char,
    default: c_int,
    flags: c_uint,
    get: Get<BoolFunctions>,
    set: Set<BoolFunctions>,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) -> c_int {
    let kind = ParameterKind::Bool(default, functions_or_fail!(get, set));
    let declared = Declaration {
        context,
        name,
        flags,
        apply,
        data,
    };
    // SAFETY: rule 1.
    unsafe { register(&declared, kind) }
}

#[allow(clippy::too_many_arguments, reason = "the module passes them")]
unsafe extern "C" fn register_number(
    context: *mut Context,
    name: *const c_char,
    default: c_longlong,
    flags: c_uint,
    min: c_longlong,
    max: c_longlong,
    get: Get<NumberFunctions>,
    set: Set<NumberFunctions>,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) -> c_int {
    let kind = ParameterKind::Number(Range { default, min, max }, functions_or_fail!(get, set));
    let declared = Declaration {
        context,
        name,
        flags,
        apply,
        data,
    };
    // SAFETY: rule 1.
    unsafe { register(&declared, kind) }
}

#[allow(clippy::too_many_arguments, reason = "the module passes them")]
unsafe extern "C" fn register_unsigned(
    context: *mut Context,
    name: *const c_char,
    default: c_ulonglong,
    flags: c_uint,
    min: c_ulonglong,
    max: c_ulonglong,
    get: Get<UnsignedFunctions>,
    set: Set<UnsignedFunctions>,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) -> c_int {
    let kind = ParameterKind::Unsigned(Range { default, min, max }, functions_or_fail!(get, set));
    let declared = Declaration {
        context,
        name,
        flags,
        apply,
        data,
    };
    // SAFETY: rule 1.
    unsafe { register(&declared, kind) }
}

#[allow(clippy::too_many_arguments, reason = "the module passes them")]
unsafe extern "C" fn register_text(
    context: *mut Context,
    name: *const c_char,
    default: *const c_char,
    flags: c_uint,
    get: Get<TextFunctions>,
    set: Set<TextFunctions>,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) -> c_int {
    // SAFETY: rule 1.
    let default = (!default.is_null()).then(|| unsafe { CStr::from_ptr(default) }.to_bytes().to_vec());
    let kind = ParameterKind::Text(default, functions_or_fail!(get, set));
    let declared = Declaration {
        context,
        name,
        flags,
        apply,
        data,
    };
    // SAFETY: rule 1.
    unsafe { register(&declared, kind) }
}

#[allow(clippy::too_many_arguments, reason = "the module passes them")]
unsafe extern "C" fn register_choice(
    context: *mut Context,
    name: *const c_char,
    default: c_int,
    flags: c_uint,
    words: *const *const c_char,
    numbers: *const c_int,
    count: c_int,
    get: Get<ChoiceFunctions>,
    set: Set<ChoiceFunctions>,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let mut choices = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the module passes as many words and numbers as it says (rule 1).
        let (word, number) = unsafe { (*words.add(index), *numbers.add(index)) };
        // SAFETY: as above; a word is a C string.
        choices.push((unsafe { CStr::from_ptr(word) }.to_bytes().to_vec(), number));
    }
    let kind = ParameterKind::Choice(default, choices, functions_or_fail!(get, set));
    let declared = Declaration {
        context,
        name,
        flags,
        apply,
        data,
    };
    // SAFETY: rule 1.
    unsafe { register(&declared, kind) }
}

/// Gives all parameters of a module that is being loaded their first values.
unsafe extern "C" fn load(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    match context.filter(|context| context.module.is_loading()) {
        Some(context) if parameters::load(&context.module) => OK,
        _ => ERR,
    }
}
