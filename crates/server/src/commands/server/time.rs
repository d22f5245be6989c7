//! TIME and ROLE.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weft_resp::Reply;

use crate::commands::context::{Binding, CommandResult, Context, leased};

/// The commands.
pub const BINDINGS: &[(&str, Binding)] = &[("role", leased(role)), ("time", leased(time))];

fn time(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    write(&mut ctx.reply, now);
    Ok(())
}

/// What TIME answers at this time since the epoch.
pub fn write(reply: &mut Reply<'_>, now: Duration) {
    reply.array(2);
    reply.bulk_integer(now.as_secs() as i64);
    reply.bulk_integer(i64::from(now.subsec_micros()));
}

/// A primary without replicas, whose log of changes is empty.
fn role(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(3);
    ctx.reply.bulk(b"master");
    ctx.reply.integer(0);
    ctx.reply.array(0);
    Ok(())
}
