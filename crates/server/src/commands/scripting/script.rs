//! SCRIPT, and the bindings of EVAL and FCALL, which the dispatcher runs.

use std::sync::Arc;

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased, script};
use crate::commands::error::CommandError;
use crate::net::client::ClientFlags;
use crate::state::Server;
use weft_config::{Config, id};
use weft_modules::module::engines::{self, DebuggerEnabled, Engine, Subsystem};
use weft_modules::session::with_session;
use weft_resp::Protocol;
use weft_scripting::{ScriptKind, ScriptRun, drop_interpreter, prepare_script};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("eval", script()),
    ("eval_ro", script()),
    ("evalsha", script()),
    ("evalsha_ro", script()),
    ("fcall", script()),
    ("fcall_ro", script()),
    ("script|debug", leased(debug).with_scripting_engines()),
    ("script|exists", leased(exists)),
    ("script|flush", leased(flush)),
    ("script|help", leased(help)),
    ("script|kill", leased(kill)),
    ("script|load", leased(load).with_scripting_engines()),
    ("script|show", leased(show)),
];

/// No script is cached under a digest.
pub const NO_SCRIPT: CommandError = CommandError::constant("NOSCRIPT No matching script.");
/// Returns the error while a script of EVAL, or a function, is busy.
pub fn busy_error(config: &Config, is_function: bool) -> CommandError {
    let (name, kind) = (config.product_name(), if is_function { "FUNCTION" } else { "SCRIPT" });
    CommandError::from_text(format!(
        "BUSY {name} is busy running a script. You can only call {kind} KILL or SHUTDOWN NOSAVE."
    ))
}

/// Returns the error for a client that needs a slot of this run, or its end.
pub fn busy_error_of_run(config: &Config, run: &ScriptRun) -> CommandError {
    busy_error(config, run.is_function)
}

/// Returns the BUSY reply to a command that would have to wait for this run on another thread.
pub fn busy_reply_of_run(config: &Config, run: &ScriptRun) -> Vec<u8> {
    build_reply(Protocol::Resp2, |reply| {
        reply.error_bytes(&busy_error_of_run(config, run).0)
    })
}

/// Returns `true` if the memory of SCRIPT FLUSH or FUNCTION FLUSH must be freed later; `name` is the command's name in
/// the error.
///
/// # Errors
/// If the mode is invalid.
pub fn is_asynchronous(ctx: &Context<'_, '_>, error: &'static str) -> Result<bool, CommandError> {
    match (ctx.argc(), ctx.arg(2)) {
        (2, _) => Ok(ctx.server.config.boolean(id::LAZYFREE_LAZY_USER_FLUSH)),
        (3, mode) if mode.eq_ignore_ascii_case(b"SYNC") => Ok(false),
        (3, mode) if mode.eq_ignore_ascii_case(b"ASYNC") => Ok(true),
        _ => Err(CommandError::constant(error)),
    }
}

fn debug(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() > 4 {
        return Err(CommandError::constant(
            "ERR unknown subcommand or wrong number of arguments for 'DEBUG'. Try SCRIPT HELP.",
        ));
    }
    let engine = match ctx.argc() {
        4 => engines::find(&String::from_utf8_lossy(ctx.arg(3))),
        _ => None,
    };
    if ctx.argc() == 4 && engine.is_none() && !ctx.arg(3).eq_ignore_ascii_case(b"lua") {
        return Err(CommandError::with_word(
            "ERR No scripting engine found with name '",
            ctx.arg(3),
            "' to enable debug",
        ));
    }
    if !ctx.reply.out.is_empty() {
        return Err(CommandError::constant(
            "ERR SCRIPT DEBUG must be called outside a pipeline",
        ));
    }
    let mode = ctx.arg(2);
    let is_sync = mode.eq_ignore_ascii_case(b"sync");
    let debugs = is_sync || mode.eq_ignore_ascii_case(b"yes");
    if !debugs && !mode.eq_ignore_ascii_case(b"no") {
        return Err(CommandError::constant("ERR Use SCRIPT DEBUG YES/SYNC/NO"));
    }
    if debugs && ctx.client.flags.contains(ClientFlags::TLS) {
        // The thread of a session reads and writes the socket itself.
        return Err(CommandError::constant("ERR Scripts cannot be debugged over TLS"));
    }
    if let Some(engine) = engine {
        enable_engine_debugger(ctx, &engine, debugs)?;
    }
    ctx.client.flags.set(ClientFlags::DEBUG_SCRIPTS, debugs);
    ctx.client.flags.set(ClientFlags::DEBUG_SCRIPTS_SYNC, is_sync);
    ctx.reply.ok();
    Ok(())
}

/// Enables or disables the debugger of a module's engine.
fn enable_engine_debugger(ctx: &mut Context<'_, '_>, engine: &Arc<Engine>, enables: bool) -> CommandResult {
    let enabled = ctx.call_modules(|| match enables {
        true => engine.enable_debugger(),
        false => {
            engine.disable_debugger();
            DebuggerEnabled::Yes
        }
    })?;
    let name = &engine.name;
    match enabled {
        DebuggerEnabled::Yes => Ok(()),
        DebuggerEnabled::NotSupported => Err(CommandError::from_text(format!(
            "ERR The scripting engine '{name}' does not support interactive script debugging"
        ))),
        DebuggerEnabled::Failed => Err(CommandError::from_text(format!(
            "ERR The scripting engine '{name}' failed to initialize interactive script debugging"
        ))),
    }
}

fn exists(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(ctx.argc() - 2);
    for digest in ctx.args.iter().skip(2) {
        let found = ctx.server.scripting.cache.find(digest).is_some();
        ctx.reply.integer(i64::from(found));
    }
    Ok(())
}

fn flush(ctx: &mut Context<'_, '_>) -> CommandResult {
    let asynchronous = is_asynchronous(ctx, "ERR SCRIPT FLUSH only support SYNC|ASYNC option")?;
    ctx.server.scripting.cache.flush();
    reset_engines(ctx.server, Subsystem::Eval, asynchronous);
    if !asynchronous {
        // Other threads drop theirs before their next script.
        drop_interpreter(&ctx.server.scripting, ScriptKind::Eval);
    }
    ctx.reply.ok();
    Ok(())
}

/// Lets the engines of modules replace their environments, soon and at home.
pub fn reset_engines(server: &Server, subsystem: Subsystem, is_async: bool) {
    for engine in engines::all() {
        server.run_session_at_home(move |session| with_session(session, || engine.reset(subsystem, is_async)));
    }
}

fn kill(ctx: &mut Context<'_, '_>) -> CommandResult {
    kill_running(ctx.server, false)?;
    ctx.reply.ok();
    Ok(())
}

/// Kills a script or a function.
///
/// # Errors
/// When no script runs that can be killed in this way.
pub fn kill_running(server: &Server, is_function: bool) -> CommandResult {
    use weft_scripting::KillError;
    server.scripting.running.kill(is_function).map_err(|reason| match reason {
        KillError::NotRunning => CommandError::constant("NOTBUSY No scripts in execution right now."),
        KillError::HasWritten => CommandError::constant(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
             script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        ),
        KillError::OtherKind => busy_error(&server.config, !is_function),
    })
}

fn load(ctx: &mut Context<'_, '_>) -> CommandResult {
    let source = ctx.arg(2);
    if let Some(engine) = ctx.server.scripting.engine_of_source(source) {
        let server = ctx.server.clone();
        let prepared = ctx.call_modules(|| server.scripting.prepare_engine_script(&*engine, source, true))?;
        let script = prepared.map_err(|text| CommandError::from_bytes([b"ERR ", &text[..]].concat()))?;
        ctx.reply.bulk(&script.digest);
        return Ok(());
    }
    let program = prepare_script(&ctx.server.scripting, Some(ctx.arg(2)), b"", true)
        .map_err(|text| CommandError::from_bytes([b"ERR ", &text[..]].concat()))?;
    ctx.reply.bulk(program.name());
    Ok(())
}

fn show(ctx: &mut Context<'_, '_>) -> CommandResult {
    let script = ctx.server.scripting.cache.find(ctx.arg(2)).ok_or(NO_SCRIPT)?;
    ctx.reply.bulk(&script.source);
    Ok(())
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_lines(HELP)
}

/// Lines that clients and their authors compare and parse.
const HELP: &[&str] = &[
    "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DEBUG (YES|SYNC|NO) [<engine_name>]",
    "    Set the debug mode for subsequent scripts executed of the specified engine.",
    "    Default engine name: 'lua'",
    "EXISTS <sha1> [<sha1> ...]",
    "    Return information about the existence of the scripts in the script cache.",
    "FLUSH [ASYNC|SYNC]",
    "    Flush the Lua scripts cache. Very dangerous on replicas.",
    "    When called without the optional mode argument, the behavior is determined",
    "     by the lazyfree-lazy-user-flush configuration directive. Valid modes are:",
    "    * ASYNC: Asynchronously flush the scripts cache.",
    "    * SYNC: Synchronously flush the scripts cache.",
    "KILL",
    "    Kill the currently executing Lua script.",
    "LOAD <script>",
    "    Load a script into the scripts cache without executing it.",
    "SHOW <sha1>",
    "    Show a script from the scripts cache.",
    "HELP",
    "    Print this help.",
];
