//! The connection commands.

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;

/// The connection commands and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("ping", leased(ping)), ("echo", leased(echo))];

fn ping(ctx: &mut Context<'_, '_>) -> CommandResult {
    match ctx.argc() {
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(ctx.args.at(1)),
        _ => return Err(CommandError::constant("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

fn echo(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.bulk(ctx.args.at(1));
    Ok(())
}
