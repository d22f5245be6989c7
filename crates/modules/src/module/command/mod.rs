//! Commands that modules have registered, as the dispatcher runs them.

use std::ffi::{CString, c_int};
use std::sync::Arc;

use weft_command_table::spec::{
    BeginSearch, Categories, CommandFlags, CommandSpec, FindKeys, Group, KeyFinder, KeyFlags, KeyShape, KeySpec,
    ModuleKeys, SpecialKeys, command,
};
use weft_os::atomic::{AtomicU8, Ordering};
use weft_os::sync::Mutex;
use weft_resp::Args;

use super::Module;
use crate::invoke;
use crate::objects::context::{Caller, Context, RunningCommand};
use crate::objects::positions::{Position, PositionKind};
use crate::objects::reply::{FinishedReply, ReplyError, take_spare_reply};
use crate::objects::string::{ModuleString, release_spare_list, take_spare_list};
use crate::session::Session;
use crate::session::registry::is_home_thread;

/// The function of a module that executes a command (`ValkeyModuleCmdFunc`).
pub type CommandFunction = unsafe extern "C" fn(*mut Context, *mut *mut ModuleString, c_int) -> c_int;

/// The use of keys that a module has declared by their positions only.
pub const FULL_ACCESS: KeyFlags = KeyFlags::of(&[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE]);

/// The positions of keys as a module declares them when it creates a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeclaredRange {
    /// The first key; 0 if there is none.
    pub first: c_int,
    /// The last key; negative if counted from the end.
    pub last: c_int,
    /// The distance between neighbouring keys.
    pub step: c_int,
}

/// Where a command of a module runs, and with what. The numbers are those of `weftmodule.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Concurrency {
    /// On the home worker, in exclusive mode.
    Home = 0,
    /// On the worker of its client, under the leases of its keys, and not at the same time as another such command.
    Serial = 1,
    /// On the worker of its client, under the leases of its keys.
    SlotSafe = 2,
}

/// A command of a module, or a subcommand. The registry that names it is never freed, and so is this.
pub struct ModuleCommand {
    /// The module.
    pub module: Arc<Module>,
    /// The full name of the command, as the module has spelled it.
    pub full_name: &'static str,
    /// The same for the module.
    pub full_name_in_c: CString,
    /// The function; `None` for a command that only has subcommands.
    pub function: Option<CommandFunction>,
    /// The container, if it is a subcommand.
    pub parent: Option<&'static ModuleCommand>,
    /// The metadata. The module may add to it.
    pub spec: Mutex<CommandSpec>,
    /// Where it runs, one of [`Concurrency`].
    concurrency: AtomicU8,
}

impl ModuleCommand {
    /// Creates a command of `module`, or a subcommand of `parent`.
    pub fn create(
        module: Arc<Module>,
        parent: Option<&'static ModuleCommand>,
        name: &str,
        function: Option<CommandFunction>,
        flags: CommandFlags,
        keys: DeclaredRange,
    ) -> &'static ModuleCommand {
        let name = leak_text(name);
        let full_name = match parent {
            Some(parent) => leak_text(&format!("{}|{name}", parent.full_name)),
            None => name,
        };
        let module_name = leak_text(&module.name());
        let arity = if parent.is_none() && function.is_some() { -1 } else { -2 };
        Box::leak(Box::new(ModuleCommand {
            module,
            full_name,
            full_name_in_c: CString::new(full_name).unwrap_or_default(),
            function,
            parent,
            spec: Mutex::new(new_spec(name, module_name, arity, flags, keys)),
            concurrency: AtomicU8::new(Concurrency::Home as u8),
        }))
    }

    /// Returns what the context of a call shows of it.
    fn as_running(&'static self) -> RunningCommand {
        RunningCommand {
            full_name: self.full_name,
            full_name_in_c: &self.full_name_in_c,
        }
    }

    /// Returns where it runs.
    #[inline]
    pub fn concurrency(&self) -> Concurrency {
        match self.concurrency.load(Ordering::Relaxed) {
            1 => Concurrency::Serial,
            2 => Concurrency::SlotSafe,
            _ => Concurrency::Home,
        }
    }

    /// Sets where it runs.
    pub fn set_concurrency(&self, concurrency: Concurrency) {
        self.concurrency.store(concurrency as u8, Ordering::Relaxed);
    }

    /// Returns the metadata for the registry.
    pub fn leak_spec(&'static self) -> &'static CommandSpec {
        let mut spec = *self.spec.lock();
        if spec.flags.contains(CommandFlags::MODULE_GETKEYS) {
            spec.special_keys = SpecialKeys::Module(ModuleKeys(self));
            spec.key_shape = KeyShape::Complex;
            spec.flags = spec.flags.union(CommandFlags::MOVABLEKEYS);
        }
        Box::leak(Box::new(spec))
    }

    /// Asks the function for the positions of the keys or channels among `words`. The thread must be one on which the
    /// module may be called.
    fn ask_for_positions(&self, kind: PositionKind, words: &[&[u8]]) -> Vec<Position> {
        let Some(function) = self.function.filter(|_| !self.module.is_unloaded()) else {
            return Vec::new();
        };
        let context = Context::new(self.module.clone(), Caller::none());
        context.positions.request(kind);
        let mut strings: Vec<*mut ModuleString> = words.iter().map(|word| ModuleString::create(word)).collect();
        invoke::name_module(&self.module, || {
            // SAFETY: the module has registered the function as one of this type, and is not unloaded while a thread
            // that may call it looks at its commands. The strings live until the call has ended.
            unsafe { function(context.as_pointer(), strings.as_mut_ptr(), strings.len() as c_int) };
        });
        for string in strings {
            // SAFETY: this function is a holder of the string.
            unsafe { ModuleString::release(string) };
        }
        context.positions.take()
    }

    /// Returns the positions of the channels among `words`, with the use of each (`VALKEYMODULE_CMD_CHANNEL_*`). There
    /// are none if the command does not name its channels, or if the calling thread may not run code of the module.
    pub fn find_channels(&self, words: &[&[u8]]) -> Vec<Position> {
        if !is_home_thread() || !self.spec.lock().flags.contains(CommandFlags::MODULE_GETCHANNELS) {
            return Vec::new();
        }
        self.ask_for_positions(PositionKind::Channels, words)
    }
}

impl KeyFinder for ModuleCommand {
    fn find_keys(&self, words: &[&[u8]]) -> Option<Vec<(usize, KeyFlags)>> {
        if !is_home_thread() {
            return None;
        }
        let found = self.ask_for_positions(PositionKind::Keys, words);
        let with_flags = |position: Position| (position.index, KeyFlags::from_bits_truncate(position.flags as u16));
        Some(found.into_iter().map(with_flags).collect())
    }
}

/// Returns the metadata of a new command.
fn new_spec(
    name: &'static str,
    module: &'static str,
    arity: i32,
    flags: CommandFlags,
    keys: DeclaredRange,
) -> CommandSpec {
    let mut spec = command(name, arity, Group::Module, "");
    spec.module = module;
    spec.flags = flags.union(CommandFlags::MODULE);
    // Flags imply no categories: a module names those of its commands.
    spec.acl_categories = Categories::empty();
    if keys.first == 0 {
        return spec;
    }
    let last = match keys.last {
        ..0 => keys.last,
        0.. => keys.last.saturating_sub(keys.first),
    };
    let variable = match flags.contains(CommandFlags::MODULE_GETKEYS) {
        true => KeyFlags::VARIABLE_FLAGS,
        false => KeyFlags::empty(),
    };
    spec.keys(Box::leak(Box::new([KeySpec {
        flags: FULL_ACCESS.union(variable),
        begin: BeginSearch::Index(keys.first),
        find: FindKeys::Range {
            last,
            step: keys.step,
            limit: 0,
        },
        notes: "",
    }])))
}

/// Parses the flags of a command, separated by single spaces. Returns `None` if one is unknown.
pub fn parse_flags(text: &[u8]) -> Option<CommandFlags> {
    if text.is_empty() {
        return Some(CommandFlags::empty());
    }
    let mut flags = CommandFlags::empty();
    for word in text.split(|byte| *byte == b' ') {
        flags = flags.union(parse_flag(&word.to_ascii_lowercase())?);
    }
    Some(flags)
}

fn parse_flag(word: &[u8]) -> Option<CommandFlags> {
    Some(match word {
        b"write" => CommandFlags::WRITE,
        b"readonly" => CommandFlags::READONLY,
        b"admin" => CommandFlags::ADMIN,
        b"deny-oom" => CommandFlags::DENYOOM,
        b"deny-script" => CommandFlags::NOSCRIPT,
        b"allow-loading" => CommandFlags::LOADING,
        b"pubsub" => CommandFlags::PUBSUB,
        // It has no meaning any more.
        b"random" => CommandFlags::empty(),
        b"blocking" => CommandFlags::BLOCKING,
        b"allow-stale" => CommandFlags::STALE,
        b"no-monitor" => CommandFlags::SKIP_MONITOR,
        b"no-slowlog" | b"no-commandlog" => CommandFlags::SKIP_COMMANDLOG,
        b"fast" => CommandFlags::FAST,
        b"no-auth" => CommandFlags::NO_AUTH,
        b"may-replicate" => CommandFlags::MAY_REPLICATE,
        b"getkeys-api" => CommandFlags::MODULE_GETKEYS,
        b"getchannels-api" => CommandFlags::MODULE_GETCHANNELS,
        b"no-cluster" => CommandFlags::MODULE_NO_CLUSTER,
        b"no-mandatory-keys" => CommandFlags::NO_MANDATORY_KEYS,
        b"allow-busy" => CommandFlags::ALLOW_BUSY,
        b"all-dbs" => CommandFlags::ALL_DBS,
        _ => return None,
    })
}

/// Returns `true` if a command or subcommand may have this name.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && !name.contains([' ', '\r', '\n', '|', '@', '=', ','])
}

/// Makes a text that lives as long as the process, as those of the table of commands do.
pub fn leak_text(text: &str) -> &'static str {
    match text {
        "" => "",
        text => Box::leak(Box::from(text)),
    }
}

/// Runs a command of a module. Its reply so far gets into `reply`; it is complete unless the client is blocked. Returns
/// the database that the module has selected. The session keeps the module from being unloaded, but that may have
/// happened since the command was looked up.
pub fn run_command(
    command: &'static ModuleCommand,
    session: &mut dyn Session,
    caller: Caller,
    args: &Args<'_>,
    reply: &mut FinishedReply,
) -> u32 {
    let Some(function) = command.function else {
        return caller.db;
    };
    if command.module.is_unloaded() {
        let text = format!("ERR unknown command '{}'", command.full_name);
        *reply = FinishedReply {
            bytes: format!("-{text}\r\n").into_bytes(),
            errors: vec![ReplyError::new(text.as_bytes(), false, true)],
        };
        return caller.db;
    }
    // Not on the stack: a module that blocks the client may keep the pointer to them.
    let mut strings = take_spare_list();
    strings.extend(args.iter().map(ModuleString::create_again));
    invoke::call_into(&command.module, session, || {
        // It is large, so it stays where it was made, and ends there while the module has a session.
        let context = Context::of_command(&command.module, caller);
        context.command.set(Some(command.as_running()));
        context.reply.replace(take_spare_reply());
        // SAFETY: the context and the strings live until the function has returned. The module may retain strings.
        unsafe {
            context.strings.set(&strings);
            function(context.as_pointer(), strings.as_mut_ptr(), strings.len() as c_int);
            context.strings.set(&[]);
        }
        match context.blocked.begun.borrow().as_ref() {
            // SAFETY: this function is a holder of each string.
            Some(blocked) => unsafe { blocked.keep_strings(strings) },
            // SAFETY: as above.
            None => unsafe { release_spare_list(strings) },
        }
        context.move_reply(reply);
        context.caller.borrow().db
    })
}

#[cfg(test)]
mod tests;
