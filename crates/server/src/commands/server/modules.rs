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
    write_list(&mut ctx.reply, true);
    Ok(())
}

/// Writes the list of modules, as MODULE LIST and HELLO show it.
pub fn write_list(reply: &mut Reply<'_>, has_scripts: bool) {
    let modules = loading::loaded();
    reply.array(usize::from(has_scripts) + modules.len());
    if has_scripts {
        write_module(reply, SCRIPT_ENGINE_NAME, 1, SCRIPT_ENGINE_NAME, &[]);
    }
    for module in &modules {
        let version = i64::from(module.version.load(Ordering::Relaxed));
        let args = module.args.lock();
        write_module(reply, module.name().as_bytes(), version, module.path.as_bytes(), &args);
    }
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
