//! MODULE LIST and HELP. The dispatcher loads and unloads modules.

use crate::commands::context::{Binding, CommandResult, Context, leased, module};
use weft_modules::module::loading;
use weft_os::atomic::Ordering;
use weft_resp::Reply;

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("module|help", leased(help)),
    ("module|list", leased(list)),
    ("module|load", module(None)),
    ("module|loadex", module(None)),
    ("module|unload", module(None)),
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
    let modules = loading::loaded();
    let reply = &mut ctx.reply;
    reply.array(1 + modules.len());
    write_module(reply, SCRIPT_ENGINE_NAME, 1, SCRIPT_ENGINE_NAME, &[]);
    for module in &modules {
        let version = i64::from(module.version.load(Ordering::Relaxed));
        let args = module.args.lock();
        write_module(reply, module.name().as_bytes(), version, module.path.as_bytes(), &args);
    }
    Ok(())
}

fn write_module(reply: &mut Reply<'_>, name: &[u8], version: i64, path: &[u8], args: &[Vec<u8>]) {
    reply.map(4);
    reply.bulk(b"name");
    reply.bulk(name);
    reply.bulk(b"ver");
    reply.integer(version);
    reply.bulk(b"path");
    reply.bulk(path);
    reply.bulk(b"args");
    reply.array(args.len());
    for arg in args {
        reply.bulk(arg);
    }
}
