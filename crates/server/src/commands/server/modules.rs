//! MODULE: the only module is the built-in script engine, and no other can be loaded.

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::observability::log;

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("module|help", leased(help)),
    ("module|list", leased(list)),
    ("module|load", leased(load)),
    ("module|loadex", leased(load)),
    ("module|unload", leased(unload)),
];

/// The script engine, which Valkey lists as a module.
const SCRIPT_ENGINE_NAME: &[u8] = b"lua";

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "MODULE",
        &[
            ("LIST", "Return a list of loaded modules."),
            (
                "LOAD <path> [<arg> ...]",
                "Load a module library from <path>, passing to it any optional arguments.",
            ),
            (
                "LOADEX <path> [[CONFIG NAME VALUE] [CONFIG NAME VALUE]] [ARGS ...]",
                "Load a module library from <path>, while passing it module configurations and optional arguments.",
            ),
            ("UNLOAD <name>", "Unload a module."),
        ],
    )
}

fn list(ctx: &mut Context<'_, '_>) -> CommandResult {
    let reply = &mut ctx.reply;
    reply.array(1);
    reply.map(4);
    reply.bulk(b"name");
    reply.bulk(SCRIPT_ENGINE_NAME);
    reply.bulk(b"ver");
    reply.integer(1);
    reply.bulk(b"path");
    reply.bulk(SCRIPT_ENGINE_NAME);
    reply.bulk(b"args");
    reply.array(0);
    Ok(())
}

/// Fails as Valkey does if it cannot load a library.
fn load(ctx: &mut Context<'_, '_>) -> CommandResult {
    let path = String::from_utf8_lossy(ctx.arg(2));
    log::warning!("Module {path} failed to load: this server has no modules");
    Err(CommandError::constant(
        "ERR Error loading the extension. Please check the server logs.",
    ))
}

fn unload(ctx: &mut Context<'_, '_>) -> CommandResult {
    let reason = match ctx.arg(2) {
        SCRIPT_ENGINE_NAME => "operation not possible.",
        _ => "no such module with that name",
    };
    log::warning!(
        "Error unloading module {}: {reason}",
        String::from_utf8_lossy(ctx.arg(2))
    );
    Err(CommandError::from_text(format!("ERR Error unloading module: {reason}")))
}
