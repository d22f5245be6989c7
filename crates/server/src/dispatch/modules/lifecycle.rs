//! MODULE LOAD, LOADEX and UNLOAD, and the modules of the configuration.

use std::sync::Arc;

use super::{ModuleHost, ModuleSession, login};
use crate::commands::context::Binding;
use crate::commands::module_commands;
use crate::observability::log;
use crate::state::Server;
use weft_command_table::registry::Command;
use weft_config::UNUSED_MODULE_SETTING;
use weft_modules::module::Module;
use weft_modules::module::command::Concurrency;
use weft_modules::module::loading::{self, LoadError, UnloadError};
use weft_modules::module::parameters::{self, Setting};
use weft_modules::module::server_events::{self, ServerEvent};
use weft_modules::objects::reply::{FinishedReply, ReplyError};
use weft_modules::session::Session;
use weft_resp::Args;

/// The error of a module that was not loaded; the log has the reason.
const LOAD_ERROR: &str = "ERR Error loading the extension. Please check the server logs.";
/// The script engine, which Valkey lists as a module.
const SCRIPT_ENGINE_NAME: &[u8] = b"lua";

/// Runs a command that loads or unloads a module.
pub(super) fn run(
    session: &mut ModuleSession<'_, '_>,
    command: &'static Command<Binding>,
    args: Args<'_>,
) -> FinishedReply {
    let path = String::from_utf8_lossy(args.argument(2)).into_owned();
    let words = |from: usize| args.iter().skip(from).map(<[u8]>::to_vec).collect::<Vec<Vec<u8>>>();
    let result = match command.full_name {
        "module|load" => load(session, &path, &words(3), false),
        "auth" | "hello" => return login::run(session, args),
        "module|loadex" => load_with_settings(session, &path, &words(3)),
        _ => unload(session, &path),
    };
    match result {
        Ok(()) => FinishedReply {
            bytes: b"+OK\r\n".to_vec(),
            errors: Vec::new(),
        },
        Err(text) => error_reply(&text),
    }
}

fn error_reply(text: &str) -> FinishedReply {
    FinishedReply {
        bytes: format!("-{text}\r\n").into_bytes(),
        errors: vec![ReplyError::new(text.as_bytes(), false, true)],
    }
}

/// Loads a module with the settings and arguments of LOADEX.
fn load_with_settings(session: &mut ModuleSession<'_, '_>, path: &str, words: &[Vec<u8>]) -> Result<(), String> {
    let (settings, args) = parse_settings(words).ok_or_else(|| LOAD_ERROR.to_owned())?;
    let before = parameters::replace_queue(settings);
    let loaded = load(session, path, args, true);
    parameters::replace_queue(before);
    loaded
}

/// Parses `[CONFIG name value ...] [ARGS arg ...]`. Returns `None` after a line in the log if that is invalid.
fn parse_settings(words: &[Vec<u8>]) -> Option<(Vec<Setting>, &[Vec<u8>])> {
    let mut settings = Vec::new();
    let mut rest = words;
    loop {
        match rest {
            [] => return Some((settings, &[])),
            [word, args @ ..] if word.eq_ignore_ascii_case(b"args") => return Some((settings, args)),
            [word, name, value, behind @ ..] if word.eq_ignore_ascii_case(b"config") => {
                parameters::queue_setting(&mut settings, name, value);
                rest = behind;
            }
            [word, ..] if word.eq_ignore_ascii_case(b"config") => {
                log::notice!("CONFIG specified without name value pair");
                return None;
            }
            [word, ..] => {
                let word = String::from_utf8_lossy(word);
                log::notice!("Syntax Error from arguments to loadex around {word}.");
                return None;
            }
        }
    }
}

/// Loads a module. With `takes_all_settings`, it must take all settings that wait for modules.
fn load(session: &mut dyn Session, path: &str, args: &[Vec<u8>], takes_all_settings: bool) -> Result<(), String> {
    let failed = || LOAD_ERROR.to_owned();
    let module = loading::load(session, path, args).map_err(|error: LoadError| {
        log::warning!("{error}");
        failed()
    })?;
    apply_concurrency(&module);
    log::notice!("Module '{}' loaded from {path}", module.name());
    let are_missing = parameters::are_missing(&module);
    if are_missing {
        log::warning!("Module Configurations were not set, likely a missing LoadConfigs call. Unloading the module.");
    }
    let are_left = takes_all_settings && parameters::are_settings_queued();
    if are_left {
        log::warning!("Loadex configurations were not applied, likely due to invalid arguments. Unloading the module.");
    }
    if are_missing || are_left {
        loading::undo_load(session, &module);
        log::notice!("Module {} unloaded", module.name());
        return Err(failed());
    }
    if let Some(host) = weft_modules::session::host() {
        host.describe_clients();
    }
    let is_loaded = true;
    server_events::deliver(session, &ServerEvent::ModuleChanged { is_loaded, module });
    Ok(())
}

/// Sets where the commands of a module run, if the configuration says so.
fn apply_concurrency(module: &Module) {
    let Some(host) = weft_modules::session::host() else {
        return;
    };
    let text = host.module_concurrency();
    let mut words = text.split_ascii_whitespace();
    while let Some(name) = words.next() {
        let concurrency = match words.next() {
            Some("slot-safe") => Concurrency::SlotSafe,
            Some("serial") => Concurrency::Serial,
            Some("home") => Concurrency::Home,
            other => {
                let other = other.unwrap_or_default();
                log::warning!("module-concurrency: '{other}' is no way to run commands: use home, serial or slot-safe");
                continue;
            }
        };
        if *name == *module.name() {
            for command in module.commands.all() {
                command.set_concurrency(concurrency);
            }
        }
    }
}

/// Unloads a module.
fn unload(session: &mut ModuleSession<'_, '_>, name: &str) -> Result<(), String> {
    let refused = |reason: &str| {
        log::warning!("Error unloading module {name}: {reason}");
        format!("ERR Error unloading module: {reason}")
    };
    if name.as_bytes() == SCRIPT_ENGINE_NAME && loading::find(name).is_none() {
        return Err(refused("operation not possible."));
    }
    let server = session.server().clone();
    match loading::unload(session, name, |module| {
        module_commands::has_rules_about(&server, module)
    }) {
        Ok(module) => {
            log::notice!("Module {name} unloaded");
            let is_loaded = false;
            server_events::deliver(session, &ServerEvent::ModuleChanged { is_loaded, module });
            Ok(())
        }
        Err(UnloadError::Refused(reason)) => Err(refused(reason)),
        Err(UnloadError::Canceled) => Err(refused("operation not possible.")),
    }
}

/// A module of the configuration was not loaded, or one of its settings is unknown. The log has the reason.
pub struct ModuleFailed;

/// Makes the server known to modules. There is one server in a process that loads modules: in a simulation the one
/// whose configuration names some.
pub fn prepare(server: &Arc<Server>) {
    if cfg!(feature = "simulated") && server.config.modules().is_empty() {
        return;
    }
    let host: &'static ModuleHost = Box::leak(Box::new(ModuleHost { server: server.clone() }));
    weft_modules::session::set_host(host);
}

/// Returns `true` if modules have taken all settings of the configuration; otherwise logs those that are left.
fn are_all_used(left: &[Setting]) -> bool {
    for (name, _) in left {
        log::warning!("Unused Module Configuration: {}", String::from_utf8_lossy(name));
    }
    if !left.is_empty() {
        log::warning!("{UNUSED_MODULE_SETTING}");
    }
    left.is_empty()
}

/// Loads the modules of the configuration, on the home worker.
///
/// # Errors
/// If one of them fails.
pub fn load_configured(server: &Arc<Server>) -> Result<(), ModuleFailed> {
    server.modules.set_starting(true);
    let modules: Vec<Vec<Vec<u8>>> = server
        .config
        .modules()
        .iter()
        .map(|line| line.arguments.clone())
        .collect();
    let mut settings = Vec::new();
    for (name, value) in server.config.module_settings() {
        parameters::queue_setting(&mut settings, name, value);
    }
    let loaded = server.run_session_at_home_and_wait(move |session| {
        parameters::replace_queue(settings);
        let are_loaded = modules.iter().all(|words| {
            let (path, args) = words
                .split_first()
                .map_or((&b""[..], words.as_slice()), |(path, args)| (path, args));
            let path = String::from_utf8_lossy(path);
            let is_loaded = load(session, &path, args, false).is_ok();
            if !is_loaded {
                log::warning!("Can't load module from {path}: server aborting");
            }
            is_loaded
        });
        let unused = parameters::replace_queue(Vec::new());
        are_loaded && are_all_used(&unused)
    });
    server.modules.set_starting(false);
    match loaded {
        Some(true) => Ok(()),
        Some(false) | None => Err(ModuleFailed),
    }
}
