//! CLUSTER FLUSHSLOT.

use super::{parse_slot, require_cluster};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::commands::generic::database::should_clean_up_imports;
use crate::keyspace::slot_drop::{self, DeletionCause};
use weft_config::id;

pub(super) fn flush_slot(ctx: &mut Context<'_, '_>) -> CommandResult {
    require_cluster(ctx)?;
    let slot = parse_slot(ctx.arg(2))?;
    let is = |name: &str| ctx.arg(3).eq_ignore_ascii_case(name.as_bytes());
    let in_background = match ctx.argc() {
        3 => ctx.server.config.boolean(id::LAZYFREE_LAZY_USER_FLUSH),
        4 if is("async") => true,
        4 if is("sync") => false,
        _ => return Err(CommandError::SYNTAX),
    };
    let keyspace = &ctx.server.keyspace;
    let Some((header, data)) = ctx.keys.held.writable_slot(slot) else {
        unreachable!("the command has the whole keyspace");
    };
    let thread_index = ctx.keys.context.thread_index;
    let (tables, _, keys) = slot_drop::take_all_keys(
        keyspace,
        thread_index,
        slot,
        header,
        data,
        DeletionCause::Command,
        ctx.keys.effects,
    );
    if in_background {
        ctx.server.background.lazyfree.free(keys, 0, Box::new(tables));
    }
    // The data of a migration of the slot is incomplete now.
    let should_clean_up = should_clean_up_imports(ctx);
    ctx.server
        .slot_migrations
        .fail_all_with_slot(slot, "Data was flushed", should_clean_up);
    ctx.server.background.wake_migration_thread();
    ctx.reply.ok();
    Ok(())
}
