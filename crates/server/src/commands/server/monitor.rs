//! MONITOR: the client receives every command of other clients, until RESET.

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::keyspace::effects::Hooks;
use crate::net::client::ClientFlags;

/// MONITOR.
pub const BINDINGS: &[(&str, Binding)] = &[("monitor", leased(monitor))];

fn monitor(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.client.flags.contains(ClientFlags::MONITOR) {
        // As in Valkey, a second MONITOR has no reply.
        return Ok(());
    }
    if !ctx.may_block {
        return Err(crate::commands::error::CommandError::constant(
            "ERR MONITOR isn't allowed for DENY BLOCKING client",
        ));
    }
    let hooks = &ctx.server.keyspace.hooks;
    let first = || hooks.set(Hooks::MONITOR, true);
    ctx.server
        .clients
        .monitors
        .add_monitor(ctx.client.id, ctx.client.worker, first);
    ctx.client.flags.set(ClientFlags::MONITOR, true);
    ctx.reply.ok();
    Ok(())
}
