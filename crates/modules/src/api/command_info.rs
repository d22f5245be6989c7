//! `SetCommandInfo`: the metadata of a command, in structures whose sizes are those of the module.

use std::ffi::{CStr, c_char, c_int};

use weft_command_table::spec::{ArgSpec, ArgType, BeginSearch, CommandSpec, FindKeys, KeyFlags, KeySpec, string};

use super::registry::{c_bytes, c_text};
use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::command::{ModuleCommand, leak_text};
use crate::module::registered_commands::publish;

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![("SetCommandInfo", set_command_info)];

/// The sizes of the structures in the module's header, which may be longer than those here.
#[repr(C)]
struct Sizes {
    version: c_int,
    history_entry: usize,
    key_spec: usize,
    argument: usize,
}

/// `ValkeyModuleCommandInfo`
#[repr(C)]
struct CommandInfo {
    sizes: *const Sizes,
    summary: *const c_char,
    complexity: *const c_char,
    since: *const c_char,
    history: *const HistoryEntry,
    tips: *const c_char,
    arity: c_int,
    key_specs: *const RawKeySpec,
    args: *const RawArgument,
}

/// `ValkeyModuleCommandHistoryEntry`
#[repr(C)]
struct HistoryEntry {
    since: *const c_char,
    changes: *const c_char,
}

/// The beginning of a search as the module's header has it: an index, or a keyword and where to begin.
#[repr(C)]
#[derive(Clone, Copy)]
union RawBegin {
    index: c_int,
    keyword: RawKeyword,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawKeyword {
    keyword: *const c_char,
    start_from: c_int,
}

/// `ValkeyModuleCommandKeySpec`
#[repr(C)]
struct RawKeySpec {
    notes: *const c_char,
    flags: u64,
    begin_kind: c_int,
    begin: RawBegin,
    find_kind: c_int,
    /// Last key, step and limit; or index of the number, first key and step.
    find: [c_int; 3],
}

/// `ValkeyModuleCommandArg`
#[repr(C)]
struct RawArgument {
    name: *const c_char,
    kind: c_int,
    key_spec_index: c_int,
    token: *const c_char,
    summary: *const c_char,
    since: *const c_char,
    flags: c_int,
    deprecated_since: *const c_char,
    nested: *const RawArgument,
    display_text: *const c_char,
}

const _: () = assert!(size_of::<CommandInfo>() == 72);
const _: () = assert!(size_of::<RawKeySpec>() == 56);
const _: () = assert!(size_of::<RawArgument>() == 72);

/// The kinds of a search's beginning (`VALKEYMODULE_KSPEC_BS_*`). 0 ends the list of key specs.
mod begin_kind {
    pub const UNKNOWN: i32 = 1;
    pub const INDEX: i32 = 2;
    pub const KEYWORD: i32 = 3;
}

/// The ways to find keys from there on (`VALKEYMODULE_KSPEC_FK_*`).
mod find_kind {
    pub const OMITTED: i32 = 0;
    pub const UNKNOWN: i32 = 1;
    pub const RANGE: i32 = 2;
    pub const KEY_NUM: i32 = 3;
}

/// The types of arguments in the order of `ValkeyModuleCommandArgType`.
const ARG_TYPES: [ArgType; 9] = [
    ArgType::String,
    ArgType::Integer,
    ArgType::Double,
    ArgType::Key,
    ArgType::Pattern,
    ArgType::UnixTime,
    ArgType::PureToken,
    ArgType::OneOf,
    ArgType::Block,
];

/// The flags of arguments (`VALKEYMODULE_CMD_ARG_*`).
mod arg_flag {
    pub const OPTIONAL: i32 = 1;
    pub const MULTIPLE: i32 = 1 << 1;
    pub const MULTIPLE_TOKEN: i32 = 1 << 2;
    pub const ALL: i32 = (1 << 3) - 1;
}

/// The reason for the log why the metadata is invalid.
type Invalid = String;

/// Returns the elements of an array that ends with an element for which `is_end` holds. Elements have the size that the
/// module says.
///
/// # Safety
/// `array` is null or such an array, which lives for `'a`.
unsafe fn elements<'a, T>(array: *const T, size: usize, is_end: impl Fn(&T) -> bool) -> Vec<&'a T> {
    let mut found = Vec::new();
    let mut place = array;
    // SAFETY: the caller promises it.
    while let Some(element) = unsafe { place.as_ref() } {
        if is_end(element) {
            break;
        }
        found.push(element);
        // SAFETY: as above; behind an element that is not the last one there is another one.
        place = unsafe { place.byte_add(size) };
    }
    found
}

/// Returns a C string that lives as long as the process; empty for null.
///
/// # Safety
/// The pointer is null or that of a C string.
unsafe fn leak(text: *const c_char) -> &'static str {
    // SAFETY: the caller promises it.
    leak_text(&unsafe { c_text(text) })
}

unsafe extern "C" fn set_command_info(command: *const ModuleCommand, info: *const CommandInfo) -> c_int {
    // SAFETY: rule 1; commands are never freed.
    let (command, info) = unsafe { (command.as_ref(), info.as_ref()) };
    let (Some(command), Some(info)) = (command, info) else {
        errno::set(libc::EINVAL);
        return ERR;
    };
    // SAFETY: rule 1.
    let spec = match unsafe { read_info(info) } {
        Ok(spec) => spec,
        Err(reason) => {
            log::warn!("Invalid command info: {reason}");
            errno::set(libc::EINVAL);
            return ERR;
        }
    };
    let mut known = command.spec.lock();
    if has_info(&known) {
        errno::set(libc::EEXIST);
        return ERR;
    }
    *known = merge(&known, spec);
    drop(known);
    if command.module.commands.are_published()
        && let Err(reason) = publish(&command.module)
    {
        log::warn!("{reason}");
    }
    OK
}

/// What a module has told about a command.
struct ReadInfo {
    summary: &'static str,
    complexity: &'static str,
    since: &'static str,
    history: Vec<(&'static str, &'static str)>,
    tips: Vec<&'static str>,
    arity: i32,
    key_specs: Option<Vec<KeySpec>>,
    args: Vec<ArgSpec>,
}

/// Returns `true` if the module has told about this command before. The key specs from its creation do not count.
fn has_info(spec: &CommandSpec) -> bool {
    let texts = [spec.summary, spec.complexity, spec.since];
    let has_own_keys = match spec.key_specs {
        [] => false,
        [one] => !matches!((one.begin, one.find), (BeginSearch::Index(_), FindKeys::Range { .. })),
        _ => true,
    };
    let has_lists = !spec.history.is_empty() || !spec.tips.is_empty() || !spec.args.is_empty();
    texts.iter().any(|text| !text.is_empty()) || has_lists || has_own_keys
}

fn merge(known: &CommandSpec, info: ReadInfo) -> CommandSpec {
    let mut spec = *known;
    spec.summary = info.summary;
    spec.complexity = info.complexity;
    spec.since = info.since;
    spec.history = info.history.leak();
    spec.tips = info.tips.leak();
    spec.args = info.args.leak();
    if info.arity != 0 {
        spec.arity = info.arity;
    }
    match info.key_specs {
        Some(key_specs) => spec.keys(key_specs.leak()),
        None => spec,
    }
}

/// Reads and checks the metadata of a command.
///
/// # Safety
/// It is as the module's header describes it (rule 1).
unsafe fn read_info(info: &CommandInfo) -> Result<ReadInfo, Invalid> {
    // SAFETY: the caller promises it.
    unsafe {
        let sizes = info.sizes.as_ref().ok_or("version missing")?;
        let history = elements(info.history, sizes.history_entry, |entry| entry.since.is_null());
        if let Some(index) = history.iter().position(|entry| entry.changes.is_null()) {
            return Err(format!("history[{index}].changes missing"));
        }
        let raw_specs = elements(info.key_specs, sizes.key_spec, |spec| spec.begin_kind == 0);
        let mut key_specs = Vec::with_capacity(raw_specs.len());
        for (index, raw) in raw_specs.into_iter().enumerate() {
            key_specs.push(read_key_spec(raw).map_err(|reason| format!("key_specs[{index}]{reason}"))?);
        }
        let args = read_args(info.args, sizes)?;
        let tips = c_bytes(info.tips).unwrap_or_default();
        let tips = tips.split(|byte| *byte == b' ').filter(|_| !tips.is_empty());
        Ok(ReadInfo {
            summary: leak(info.summary),
            complexity: leak(info.complexity),
            since: leak(info.since),
            history: history
                .iter()
                .map(|entry| (leak(entry.since), leak(entry.changes)))
                .collect(),
            tips: tips.map(|tip| leak_text(&String::from_utf8_lossy(tip))).collect(),
            arity: info.arity,
            key_specs: (!info.key_specs.is_null()).then_some(key_specs),
            args,
        })
    }
}

/// Reads and checks one key spec. The reason begins with the field.
///
/// # Safety
/// As for [`read_info`].
unsafe fn read_key_spec(raw: &RawKeySpec) -> Result<KeySpec, Invalid> {
    let flags = KeyFlags::from_bits_truncate(raw.flags as u16);
    let count_of = |set: KeyFlags| flags.intersection(set).bits().count_ones();
    if count_of(KeyFlags::of(&[KeyFlags::RO, KeyFlags::RW, KeyFlags::OW, KeyFlags::RM])) != 1 {
        return Err(".flags: Exactly one of the flags RO, RW, OW, RM required".to_owned());
    }
    if count_of(KeyFlags::of(&[KeyFlags::INSERT, KeyFlags::DELETE, KeyFlags::UPDATE])) > 1 {
        return Err(".flags: INSERT, DELETE and UPDATE are mutually exclusive".to_owned());
    }
    let begin = match raw.begin_kind {
        begin_kind::UNKNOWN => BeginSearch::Unknown,
        // SAFETY: the kind says which member there is, and the caller promises that it is right.
        begin_kind::INDEX => BeginSearch::Index(unsafe { raw.begin.index }),
        begin_kind::KEYWORD => {
            // SAFETY: as above.
            let keyword = unsafe { raw.begin.keyword };
            if keyword.keyword.is_null() {
                return Err(".bs.keyword.keyword required when begin_search_type is KEYWORD".to_owned());
            }
            BeginSearch::Keyword {
                // SAFETY: as above.
                keyword: unsafe { leak(keyword.keyword) },
                start_from: keyword.start_from,
            }
        }
        kind => return Err(format!(".begin_search_type: Invalid value {kind}")),
    };
    let [first, second, third] = raw.find;
    let find = match raw.find_kind {
        find_kind::OMITTED => FindKeys::Range {
            last: 0,
            step: 1,
            limit: 0,
        },
        find_kind::UNKNOWN => FindKeys::Unknown,
        find_kind::RANGE => FindKeys::Range {
            last: first,
            step: second,
            limit: third,
        },
        find_kind::KEY_NUM => FindKeys::KeyNum {
            index: first,
            first: second,
            step: third,
        },
        kind => return Err(format!(".find_keys_type: Invalid value {kind}")),
    };
    Ok(KeySpec {
        flags,
        begin,
        find,
        // SAFETY: the caller promises it.
        notes: unsafe { leak(raw.notes) },
    })
}

/// Reads and checks a list of arguments.
///
/// # Safety
/// As for [`read_info`].
unsafe fn read_args(args: *const RawArgument, sizes: &Sizes) -> Result<Vec<ArgSpec>, Invalid> {
    // SAFETY: the caller promises it.
    let raw = unsafe { elements(args, sizes.argument, |arg| arg.name.is_null()) };
    // SAFETY: as above.
    raw.into_iter().map(|arg| unsafe { read_arg(arg, sizes) }).collect()
}

/// Reads and checks one argument, with those in it.
///
/// # Safety
/// As for [`read_info`]. The argument has a name.
unsafe fn read_arg(raw: &RawArgument, sizes: &Sizes) -> Result<ArgSpec, Invalid> {
    // SAFETY: the caller promises it.
    let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
    let invalid = |reason: &str| Err(format!("Argument \"{name}\": {reason}"));
    let kind = usize::try_from(raw.kind).ok().and_then(|kind| ARG_TYPES.get(kind));
    let Some(kind) = kind.copied() else {
        return invalid(&format!("Undefined type {}", raw.kind));
    };
    if kind == ArgType::PureToken && raw.token.is_null() {
        return invalid("token required when type is PURE_TOKEN");
    }
    if kind == ArgType::Key && raw.key_spec_index < 0 {
        return invalid("key_spec_index required when type is KEY");
    }
    // A module that leaves the index out has 0 there.
    if kind != ArgType::Key && !matches!(raw.key_spec_index, -1 | 0) {
        return invalid("key_spec_index specified but type isn't KEY");
    }
    if raw.flags & !arg_flag::ALL != 0 {
        return invalid("Invalid flags");
    }
    if kind.is_nested() && raw.nested.is_null() {
        return invalid("subargs required when type is ONEOF or BLOCK");
    }
    if !kind.is_nested() && !raw.nested.is_null() {
        return invalid("subargs specified but type isn't ONEOF nor BLOCK");
    }
    // SAFETY: the caller promises it.
    unsafe {
        let mut arg = string(leak_text(&name));
        arg.kind = kind;
        arg.key_spec_index = if kind == ArgType::Key { raw.key_spec_index } else { -1 };
        arg.token = leak(raw.token);
        arg.summary = leak(raw.summary);
        arg.since = leak(raw.since);
        arg.deprecated_since = leak(raw.deprecated_since);
        if !raw.display_text.is_null() {
            arg.display_text = leak(raw.display_text);
        }
        arg.is_optional = raw.flags & arg_flag::OPTIONAL != 0;
        arg.is_multiple = raw.flags & arg_flag::MULTIPLE != 0;
        arg.repeats_token = raw.flags & arg_flag::MULTIPLE_TOKEN != 0;
        arg.args = read_args(raw.nested, sizes)?.leak();
        Ok(arg)
    }
}

/// The structures of the header that are repeated here, with their sizes and an offset close to their ends.
#[cfg(test)]
pub(super) const LAYOUTS: &[(&str, usize, &str, usize)] = &[
    (
        "ValkeyModuleCommandInfoVersion",
        size_of::<Sizes>(),
        "sizeof_arg",
        std::mem::offset_of!(Sizes, argument),
    ),
    (
        "ValkeyModuleCommandInfo",
        size_of::<CommandInfo>(),
        "args",
        std::mem::offset_of!(CommandInfo, args),
    ),
    (
        "ValkeyModuleCommandHistoryEntry",
        size_of::<HistoryEntry>(),
        "changes",
        std::mem::offset_of!(HistoryEntry, changes),
    ),
    (
        "ValkeyModuleCommandKeySpec",
        size_of::<RawKeySpec>(),
        "fk",
        std::mem::offset_of!(RawKeySpec, find),
    ),
    (
        "ValkeyModuleCommandArg",
        size_of::<RawArgument>(),
        "display_text",
        std::mem::offset_of!(RawArgument, display_text),
    ),
];
