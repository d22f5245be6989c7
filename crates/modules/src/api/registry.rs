//! Functions that register commands and ACL categories.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use weft_command_table::registry::ModuleCategory;
use weft_command_table::spec::{Categories, CommandFlags, KeyFlags};
use weft_os::atomic::Ordering;

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::command::{
    CommandFunction, DeclaredRange, FULL_ACCESS, ModuleCommand, is_valid_name, leak_text, parse_flags,
};
use crate::module::loading;
use crate::objects::context::Context;
use crate::objects::positions::{PositionKind, channel_flag};
use crate::objects::string::ModuleString;
use crate::session::registry::KeysUnknown;
use crate::session::{Host, host};

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("SetModuleAttribs", set_module_attributes),
    ("IsModuleNameBusy", is_module_name_busy),
    ("CreateCommand", create_command),
    ("GetCommand", command),
    ("CreateSubcommand", create_subcommand),
    ("SetCommandACLCategories", set_command_acl_categories),
    ("AddACLCategory", add_acl_category),
    ("IsKeysPositionRequest", is_keys_position_request),
    ("KeyAtPos", key_at_position),
    ("KeyAtPosWithFlags", key_at_position_with_flags),
    ("IsChannelsPositionRequest", is_channels_position_request),
    ("ChannelAtPosWithFlags", channel_at_position),
    ("GetCommandKeys", command_keys),
    ("GetCommandKeysWithFlags", command_keys_with_flags),
    ("GetCurrentCommandName", current_command_name),
];

/// Returns the bytes of a C string; `None` for null.
///
/// # Safety
/// The pointer is null or that of a C string, which lives for `'a`.
pub(super) unsafe fn c_bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller promises it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns a C string as text; empty for null.
///
/// # Safety
/// As for [`c_bytes`].
pub(super) unsafe fn c_text(text: *const c_char) -> String {
    // SAFETY: the caller promises it.
    let bytes = unsafe { c_bytes(text) }.unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// Names the module of a load function (`ValkeyModule_Init` calls this). A module has one name.
unsafe extern "C" fn set_module_attributes(ctx: *mut Context, name: *const c_char, version: c_int, api: c_int) {
    // SAFETY: rule 1.
    let (context, name) = unsafe { (Context::from_pointer(ctx), c_text(name)) };
    if let Some(context) = context
        && !context.module.has_name()
    {
        context.module.set_name(&name);
        context.module.version.store(version, Ordering::Relaxed);
        context.module.api_version.store(api, Ordering::Relaxed);
    }
}

unsafe extern "C" fn is_module_name_busy(name: *const c_char) -> c_int {
    // SAFETY: rule 1.
    let name = unsafe { c_text(name) };
    c_int::from(loading::find(&name).is_some())
}

/// Returns the flags of a new command. `None` if they are invalid, or forbid it here.
///
/// # Safety
/// As for [`c_bytes`].
unsafe fn flags_of_new_command(host: &dyn Host, flags: *const c_char) -> Option<CommandFlags> {
    // SAFETY: the caller promises it.
    let flags = parse_flags(unsafe { c_bytes(flags) }.unwrap_or_default())?;
    let is_forbidden = flags.contains(CommandFlags::MODULE_NO_CLUSTER) && host.is_clustered();
    (!is_forbidden).then_some(flags)
}

unsafe extern "C" fn create_command(
    ctx: *mut Context,
    name: *const c_char,
    function: Option<CommandFunction>,
    flags: *const c_char,
    first: c_int,
    last: c_int,
    step: c_int,
) -> c_int {
    // SAFETY: rule 1.
    let (context, name) = unsafe { (Context::from_pointer(ctx), c_text(name)) };
    let (Some(context), Some(host)) = (context, host()) else {
        return ERR;
    };
    let commands = &context.module.commands;
    if !context.module.is_loading() {
        return ERR;
    }
    // SAFETY: rule 1.
    let Some(flags) = (unsafe { flags_of_new_command(host, flags) }) else {
        return ERR;
    };
    let is_taken = || host.is_command_name_taken(&name) || commands.find(name.as_bytes()).is_some();
    if !is_valid_name(&name) || is_taken() {
        return ERR;
    }
    let keys = DeclaredRange { first, last, step };
    commands.add(ModuleCommand::create(
        context.module.clone(),
        None,
        &name,
        function,
        flags,
        keys,
    ));
    OK
}

unsafe extern "C" fn command(ctx: *mut Context, name: *const c_char) -> *const ModuleCommand {
    // SAFETY: rule 1.
    let (context, name) = unsafe { (Context::from_pointer(ctx), c_bytes(name)) };
    let found = context.and_then(|context| context.module.commands.find(name?));
    found.map_or(null(), std::ptr::from_ref)
}

unsafe extern "C" fn create_subcommand(
    parent: *const ModuleCommand,
    name: *const c_char,
    function: Option<CommandFunction>,
    flags: *const c_char,
    first: c_int,
    last: c_int,
    step: c_int,
) -> c_int {
    // SAFETY: rule 1; commands are never freed.
    let (parent, name) = unsafe { (parent.as_ref(), c_text(name)) };
    let (Some(parent), Some(host)) = (parent, host()) else {
        return ERR;
    };
    let parent: &'static ModuleCommand = parent;
    let commands = &parent.module.commands;
    if !parent.module.is_loading() {
        return ERR;
    }
    // SAFETY: rule 1.
    let Some(flags) = (unsafe { flags_of_new_command(host, flags) }) else {
        return ERR;
    };
    // A container has no function, and is in no other one.
    if parent.parent.is_some() || parent.function.is_some() || !is_valid_name(&name) {
        return ERR;
    }
    let full_name = format!("{}|{name}", parent.full_name);
    if commands.find(full_name.as_bytes()).is_some() {
        return ERR;
    }
    let keys = DeclaredRange { first, last, step };
    commands.add(ModuleCommand::create(
        parent.module.clone(),
        Some(parent),
        &name,
        function,
        flags,
        keys,
    ));
    OK
}

/// Returns the ACL category of this name: one of the server, or one that the module has just added.
fn category_named(host: &dyn Host, command: &ModuleCommand, name: &str) -> Option<Categories> {
    let own = command.module.commands.categories().into_iter();
    let mut own = own.filter(|known| known.name.eq_ignore_ascii_case(name));
    host.acl_category(name)
        .or_else(|| own.next().map(|known| known.category))
}

unsafe extern "C" fn set_command_acl_categories(command: *const ModuleCommand, names: *const c_char) -> c_int {
    // SAFETY: rule 1; commands are never freed.
    let (command, names) = unsafe { (command.as_ref(), c_text(names)) };
    let (Some(command), Some(host)) = (command, host()) else {
        return ERR;
    };
    if !command.module.is_loading() {
        return ERR;
    }
    let mut categories = Categories::empty();
    for name in names.split(' ').filter(|_| !names.is_empty()) {
        let Some(category) = category_named(host, command, name) else {
            log::warn!("Unrecognized categories flag {name} on module load");
            return ERR;
        };
        categories = categories.union(category);
    }
    command.spec.lock().acl_categories = categories;
    OK
}

/// Returns `true` if a category or a parameter may have this name. Logs a reason otherwise.
fn is_resource_name(name: &str) -> bool {
    let is_valid = |letter: &char| letter.is_ascii_alphanumeric() || ['_', '-'].contains(letter);
    match name.chars().find(|letter| !is_valid(letter)) {
        Some(letter) => {
            log::warn!("Invalid character {letter} in Module resource name {name}.");
            false
        }
        None => !name.is_empty(),
    }
}

unsafe extern "C" fn add_acl_category(ctx: *mut Context, name: *const c_char) -> c_int {
    // SAFETY: rule 1.
    let (context, name) = unsafe { (Context::from_pointer(ctx), c_text(name)) };
    let (Some(context), Some(host)) = (context, host()) else {
        return ERR;
    };
    match new_category(context, host, &name) {
        Ok(category) => {
            context.module.commands.add_category(category);
            OK
        }
        Err(error) => {
            errno::set(error);
            ERR
        }
    }
}

/// Returns a new category of a module. One that a module of the same name has left behind becomes its own again.
fn new_category(context: &Context, host: &dyn Host, name: &str) -> Result<ModuleCategory, c_int> {
    let commands = &context.module.commands;
    if !context.module.is_loading() || !is_resource_name(name) {
        return Err(libc::EINVAL);
    }
    let module = context.module.name();
    let known = host.module_categories();
    let is_named = |known: &&ModuleCategory| known.name.eq_ignore_ascii_case(name);
    let own = commands.categories();
    if let Some(left) = known.iter().find(is_named)
        && left.module == &*module
        && !own.iter().any(|known| known.category == left.category)
    {
        return Ok(*left);
    }
    if host.acl_category(name).is_some() || own.iter().any(|known| is_named(&known)) {
        return Err(libc::EBUSY);
    }
    let added = own
        .iter()
        .filter(|own| known.iter().all(|known| known.category != own.category));
    let category = Categories::of_module(known.len() + added.count()).ok_or(libc::ENOMEM)?;
    Ok(ModuleCategory {
        category,
        name: leak_text(name),
        module: leak_text(&module),
    })
}

// ---- positions of keys and channels --------------------------------------------------------------------------------

unsafe extern "C" fn is_keys_position_request(ctx: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    c_int::from(context.is_some_and(|context| context.positions.is_for(PositionKind::Keys)))
}

unsafe extern "C" fn is_channels_position_request(ctx: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    c_int::from(context.is_some_and(|context| context.positions.is_for(PositionKind::Channels)))
}

unsafe extern "C" fn key_at_position(ctx: *mut Context, position: c_int) {
    // SAFETY: rule 1.
    unsafe { key_at_position_with_flags(ctx, position, c_int::from(FULL_ACCESS.bits())) };
}

unsafe extern "C" fn key_at_position_with_flags(ctx: *mut Context, position: c_int, flags: c_int) {
    // SAFETY: rule 1.
    if let Some(context) = unsafe { Context::from_pointer(ctx) } {
        context.positions.add(PositionKind::Keys, position, flags as u32);
    }
}

unsafe extern "C" fn channel_at_position(ctx: *mut Context, position: c_int, flags: c_int) {
    // SAFETY: rule 1.
    if let Some(context) = unsafe { Context::from_pointer(ctx) } {
        let flags = flags as u32 & channel_flag::ALL;
        context.positions.add(PositionKind::Channels, position, flags);
    }
}

/// Returns an array that the module frees, with one number for each key; null if there is no memory.
fn array_of_numbers(keys: &[(usize, KeyFlags)], number: impl Fn(&(usize, KeyFlags)) -> c_int) -> *mut c_int {
    // SAFETY: `calloc` has no preconditions.
    let array = unsafe { libc::calloc(keys.len(), size_of::<c_int>()) }.cast::<c_int>();
    for (index, key) in keys.iter().enumerate().filter(|_| !array.is_null()) {
        // SAFETY: the array has as many elements.
        unsafe { array.add(index).write(number(key)) };
    }
    array
}

unsafe extern "C" fn command_keys_with_flags(
    _: *mut Context,
    words: *const *const ModuleString,
    count: c_int,
    key_count: *mut c_int,
    flags: *mut *mut c_int,
) -> *mut c_int {
    // SAFETY: rule 1.
    let words = unsafe { words_of(words, count) };
    let found = host().map_or(Err(KeysUnknown::NoSuchCommand), |host| host.keys_of_command(&words));
    let keys = match found {
        Ok(keys) => keys,
        Err(reason) => {
            errno::set(match reason {
                KeysUnknown::NoSuchCommand => libc::ENOENT,
                KeysUnknown::WrongArity => libc::EINVAL,
            });
            return null_mut();
        }
    };
    if !key_count.is_null() {
        // SAFETY: rule 1: it is a place for a number.
        unsafe { key_count.write(keys.len() as c_int) };
    }
    if keys.is_empty() {
        errno::set(0);
        return null_mut();
    }
    if !flags.is_null() {
        // SAFETY: rule 1: it is a place for a pointer.
        unsafe { flags.write(array_of_numbers(&keys, |(_, flags)| c_int::from(flags.bits()))) };
    }
    array_of_numbers(&keys, |(index, _)| *index as c_int)
}

unsafe extern "C" fn command_keys(
    ctx: *mut Context,
    words: *const *const ModuleString,
    count: c_int,
    key_count: *mut c_int,
) -> *mut c_int {
    // SAFETY: rule 1.
    unsafe { command_keys_with_flags(ctx, words, count, key_count, null_mut()) }
}

/// Returns the words of a command.
///
/// # Safety
/// `words` are as many strings as `count` says, which live for `'a` (rule 1).
pub(super) unsafe fn words_of<'a>(words: *const *const ModuleString, count: c_int) -> Vec<&'a [u8]> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller promises it.
    (0..count)
        .map(|index| unsafe { ModuleString::bytes_of(*words.add(index)) })
        .collect()
}

unsafe extern "C" fn current_command_name(ctx: *mut Context) -> *const c_char {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(ctx) };
    let command = context.and_then(|context| context.command.get());
    command.map_or(null(), |command| command.full_name_in_c.as_ptr())
}
