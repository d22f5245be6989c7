//! TIME and ROLE.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::commands::context::{Binding, CommandResult, Context, leased};

/// The commands.
pub const BINDINGS: &[(&str, Binding)] = &[("role", leased(role)), ("time", leased(time))];

fn time(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ctx.reply.array(2);
    ctx.reply.bulk_integer(now.as_secs() as i64);
    ctx.reply.bulk_integer(i64::from(now.subsec_micros()));
    Ok(())
}

/// A primary without replicas, whose log of changes is empty.
fn role(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(3);
    ctx.reply.bulk(b"master");
    ctx.reply.integer(0);
    ctx.reply.array(0);
    Ok(())
}
