//! SAVE and LASTSAVE.

use std::sync::atomic::Ordering;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::saving;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("lastsave", leased(last_save)), ("save", leased(save))];

/// All other commands wait while the dump is written.
fn save(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.server.dumps.saves.fetch_add(1, Ordering::Relaxed);
    ctx.in_background(|server, seat| {
        let reply: &[u8] = match saving::save(server, seat) {
            Ok(()) => b"+OK\r\n",
            Err(saving::Failed) => b"-ERR\r\n",
        };
        reply.to_vec()
    });
    Ok(())
}

/// Before the first dump, the time of the start.
fn last_save(ctx: &mut Context<'_, '_>) -> CommandResult {
    let at_s = ctx.server.dumps.last_save_s.load(Ordering::Relaxed);
    ctx.reply.integer(at_s as i64);
    Ok(())
}
