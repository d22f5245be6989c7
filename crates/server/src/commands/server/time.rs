//! TIME.

use std::time::Duration;

use weft_resp::Reply;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use weft_os::time::{SystemTime, UNIX_EPOCH};

/// The commands.
pub const BINDINGS: &[(&str, Binding)] = &[("time", leased(time))];

fn time(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    show(ctx, now)
}

/// Replies with a time since the Unix epoch.
///
/// # Errors
/// None.
pub fn show(ctx: &mut Context<'_, '_>, time: Duration) -> CommandResult {
    reply_time(&mut ctx.reply, time);
    Ok(())
}

/// Writes the reply of TIME for a time since the Unix epoch.
pub fn reply_time(reply: &mut Reply<'_>, now: Duration) {
    reply.array(2);
    reply.bulk_integer(now.as_secs() as i64);
    reply.bulk_integer(i64::from(now.subsec_micros()));
}
