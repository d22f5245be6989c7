//! Commands on whole databases: size, flush, swap.
//!
//! A flush has two steps. In exclusive mode every table is only detached from its slot, which takes microseconds
//! regardless of the number of keys. Then the tables are freed outside: by the lazyfree thread (ASYNC), or on a
//! background thread while only the client that requested SYNC waits for the reply. The second step, which also
//! replaces the last dump, is done whatever becomes of the client: the first one cannot be undone.

use std::sync::Arc;

use weft_base::{DbIndex, SlotIndex};
use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, exclusive, leased};
use crate::commands::error::CommandError;
use crate::keyspace::access::{AccessContext, HeldLeases, Keys, WholeKeyspace};
use crate::keyspace::flush::{DetachedTables, take_databases, touch_watchers_before_swap};
use crate::keyspace::walk::{WalkAccess, count_hidden_keys};
use crate::keyspace::{Seat, SlotTable, publish_header, ready_keys};
use crate::net::client::ClientFlags;
use crate::notify::messages::NotificationSender;
use crate::persistence::save;
use crate::propagation::LogTarget;
use crate::state::{BackgroundJob, Server};
use weft_base::slots::SLOTS;
use weft_config::id;
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_os::atomic::Ordering;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("dbsize", leased(dbsize).with_undeclared_keys()),
    ("flushall", exclusive(flushall).with_module_values()),
    ("flushdb", exclusive(flushdb).with_module_values()),
    ("swapdb", exclusive(swapdb).with_module_values()),
];

const DATABASE_OUT_OF_RANGE: CommandError = CommandError::constant("ERR DB index is out of range");

/// Parses the index of a database.
///
/// # Errors
/// If it is not a number, or not the index of a database.
pub fn parse_database_index(ctx: &Context<'_, '_>, argument: &[u8]) -> Result<DbIndex, CommandError> {
    let number = parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER)?;
    if i32::try_from(number).is_err() {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ));
    }
    check_database_index(ctx, number)
}

fn check_database_index(ctx: &Context<'_, '_>, number: i64) -> Result<DbIndex, CommandError> {
    let counts = &ctx.server.keyspace.counts;
    let db = DbIndex::parse(number, counts.databases()).ok_or(DATABASE_OUT_OF_RANGE)?;
    counts.mark_used(db);
    Ok(db)
}

fn dbsize(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mut keys = ctx.server.keyspace.counts.keys(ctx.keys.db);
    if ctx.server.slot_migrations.has_imports() {
        let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
        match count_hidden_keys(&access, ctx.keys.db) {
            Ok(hidden) => keys = keys.saturating_sub(hidden.keys as u64),
            Err(slot) => {
                ctx.defer_until_free(slot);
                return Ok(());
            }
        }
    }
    ctx.reply.integer(keys as i64);
    Ok(())
}

fn flushall(ctx: &mut Context<'_, '_>) -> CommandResult {
    let asynchronous = is_asynchronous(ctx)?;
    let databases = DbIndex::all(ctx.server.keyspace.counts.databases());
    save::cancel_for_flush(ctx.server);
    deliver_flush(ctx, None, !asynchronous, false)?;
    let DetachedTables { tables, keys } = empty_databases(ctx, databases);
    deliver_flush(ctx, None, !asynchronous, true)?;
    ctx.server.keyspace.local_expiry.clear();
    if ctx.server.config.save_points().is_empty() {
        free_and_reply(ctx, tables, keys, asynchronous);
    } else {
        let bytes = ctx.server.estimated_bytes_of_keys(keys);
        if asynchronous {
            ctx.server.background.lazyfree.free(keys, bytes, Box::new(tables));
            free_and_save(ctx, Vec::new(), 0);
        } else {
            free_and_save(ctx, tables, bytes);
        }
    }
    Ok(())
}

/// Frees tables with about `bytes` bytes, replaces the last dump, so that the deleted data is not loaded again, and
/// replies.
fn free_and_save(ctx: &mut Context<'_, '_>, tables: Vec<SlotTable>, bytes: usize) {
    ctx.server.memory.queue_for_freeing(bytes);
    let work = move |server: &Arc<Server>, seat: &mut Seat| {
        server.memory.free_without_cell(bytes, || drop(tables));
        // A failure was logged; the data is deleted in any case.
        let _ = save::save_after_flush(server, seat);
        b"+OK\r\n".to_vec()
    };
    if ctx.may_block {
        ctx.complete_in_background(work);
    } else {
        // In a transaction or script, which must not take longer.
        ctx.reply.ok();
        let job: BackgroundJob = Box::new(move |server, seat| drop(work(server, seat)));
        // The threads end only at shutdown.
        let _ = ctx.server.background.long_commands.send(job);
    }
}

fn flushdb(ctx: &mut Context<'_, '_>) -> CommandResult {
    let asynchronous = is_asynchronous(ctx)?;
    let db = ctx.keys.db;
    deliver_flush(ctx, Some(db), !asynchronous, false)?;
    let DetachedTables { tables, keys } = empty_databases(ctx, std::iter::once(db));
    deliver_flush(ctx, Some(db), !asynchronous, true)?;
    free_and_reply(ctx, tables, keys, asynchronous);
    Ok(())
}

/// Lets modules look at databases before they are emptied, or after that. It is one database, or all of them.
///
/// # Errors
/// If the command does not run where the code of modules may run: a module has subscribed since it began.
fn deliver_flush(
    ctx: &mut Context<'_, '_>,
    db: Option<DbIndex>,
    is_sync: bool,
    has_ended: bool,
) -> Result<(), CommandError> {
    if !server_events::is_subscribed(EventKind::FlushDb) {
        return Ok(());
    }
    let db = db.map(|db| db.get() as u32);
    ctx.call_modules(|| server_events::deliver_here(&ServerEvent::Flush { has_ended, is_sync, db }))
}

/// Returns `true` if memory must be freed after the reply.
fn is_asynchronous(ctx: &Context<'_, '_>) -> Result<bool, CommandError> {
    match (ctx.argc(), ctx.arg(1)) {
        (1, _) => Ok(ctx.server.config.boolean(id::LAZYFREE_LAZY_USER_FLUSH)),
        (2, mode) if mode.eq_ignore_ascii_case(b"SYNC") => Ok(false),
        (2, mode) if mode.eq_ignore_ascii_case(b"ASYNC") => Ok(true),
        _ => Err(CommandError::SYNTAX),
    }
}

/// Returns `true` if this node cleans up the imports that a command makes fail. A replica does not do that, and neither
/// does a file that is loaded: the end of each import follows in it.
pub fn should_clean_up_imports(ctx: &Context<'_, '_>) -> bool {
    !ctx.server.replication.is_replica() && !ctx.client.flags.contains(ClientFlags::REPLAY)
}

/// Empties databases, marks watches and queues waiters.
fn empty_databases(
    ctx: &mut Context<'_, '_>,
    databases: impl ExactSizeIterator<Item = DbIndex> + Clone,
) -> DetachedTables {
    let cleans_up_imports = should_clean_up_imports(ctx);
    // Also for empty databases: a replica may have keys there.
    ctx.keys.effects.log_for(LogTarget::all());
    detach_databases(&mut ctx.keys, ctx.server, databases, cleans_up_imports)
}

/// Takes the tables of databases out of the keyspace, marks watches and queues waiters. This is not logged.
fn detach_databases(
    keys: &mut Keys<'_, '_>,
    server: &Arc<Server>,
    databases: impl ExactSizeIterator<Item = DbIndex> + Clone,
    cleans_up_imports: bool,
) -> DetachedTables {
    let thread_index = keys.context.thread_index;
    let detached = take_databases(
        &mut whole_keyspace(&mut keys.held),
        databases.clone(),
        &server.keyspace,
        thread_index,
    );
    keys.effects.dirty += detached.keys;
    // The data of migrations that are under way is incomplete now.
    server
        .slot_migrations
        .fail_all(None, "Data was flushed", cleans_up_imports);
    server.background.wake_migration_thread();
    queue_ready_waiters(keys, server, databases);
    NotificationSender::new(server, keys.effects, thread_index).invalidate_all_keys();
    detached
}

/// Deletes all keys for a module. This is not logged: with `restarts_log` the append-only file is rewritten. The caller
/// holds every slot.
pub(crate) fn reset_databases(keys: &mut Keys<'_, '_>, server: &Arc<Server>, restarts_log: bool, is_lazy: bool) {
    let databases = DbIndex::all(server.keyspace.counts.databases());
    save::cancel_for_flush(server);
    let cleans_up_imports = !server.replication.is_replica();
    let detached = detach_databases(keys, server, databases, cleans_up_imports);
    server.keyspace.local_expiry.clear();
    let bytes = server.estimated_bytes_of_keys(detached.keys);
    let counted = if is_lazy { detached.keys } else { 0 };
    server
        .background
        .lazyfree
        .free(counted, bytes, Box::new(detached.tables));
    if restarts_log {
        let aof = &server.persistence.aof;
        aof.is_rewrite_scheduled.store(true, Ordering::Relaxed);
    }
    if !server.config.save_points().is_empty() {
        let job: BackgroundJob = Box::new(|server, seat| {
            // A failure was logged; the data is deleted in any case.
            let _ = save::save_after_flush(server, seat);
        });
        // The threads end only at shutdown.
        let _ = server.background.long_commands.send(job);
    }
}

/// Frees tables, and replies.
fn free_and_reply(ctx: &mut Context<'_, '_>, tables: Vec<SlotTable>, keys: u64, is_asynchronous: bool) {
    let bytes = ctx.server.estimated_bytes_of_keys(keys);
    if tables.is_empty() {
        ctx.reply.ok();
    } else if is_asynchronous {
        ctx.server.background.lazyfree.free(keys, bytes, Box::new(tables));
        ctx.reply.ok();
    } else if ctx.may_block {
        ctx.server.memory.queue_for_freeing(bytes);
        ctx.complete_in_background(move |server, _| {
            server.memory.free_without_cell(bytes, || drop(tables));
            b"+OK\r\n".to_vec()
        });
    } else {
        // In a transaction or script, which must not take longer. This does not count as freed lazily.
        ctx.server.background.lazyfree.free(0, bytes, Box::new(tables));
        ctx.reply.ok();
    }
}

fn whole_keyspace<'h, 'p>(held: &'h mut HeldLeases<'_, 'p>) -> WholeKeyspace<'h, 'p> {
    let Some(all) = held.whole_keyspace() else {
        unreachable!("this command is bound as an exclusive one");
    };
    all
}

fn swapdb(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.server.cluster.is_some() {
        return Err(CommandError::constant("ERR SWAPDB is not allowed in cluster mode"));
    }
    let number = |argument: &[u8], error: &'static str| {
        parse_i64(argument)
            .filter(|number| i32::try_from(*number).is_ok())
            .ok_or(CommandError::constant(error))
    };
    let one = number(ctx.arg(1), "ERR invalid first DB index")?;
    let other = number(ctx.arg(2), "ERR invalid second DB index")?;
    let (one, other) = (check_database_index(ctx, one)?, check_database_index(ctx, other)?);
    if one != other {
        swap_databases(&mut whole_keyspace(&mut ctx.keys.held), one, other, &ctx.keys.context);
        ctx.server.keyspace.before_images.record_swapped(one, other);
        queue_ready_waiters(&mut ctx.keys, ctx.server, [one, other].into_iter());
    }
    ctx.keys.effects.dirty += 1;
    if server_events::is_subscribed(EventKind::SwapDb) {
        let swapped = ServerEvent::Swapped(one.get() as u32, other.get() as u32);
        ctx.call_modules(|| server_events::deliver_here(&swapped))?;
    }
    ctx.reply.ok();
    Ok(())
}

/// Queues the waiters for keys of databases that changed as a whole.
fn queue_ready_waiters(keys: &mut Keys<'_, '_>, server: &Server, databases: impl Iterator<Item = DbIndex> + Clone) {
    if server.clients.blocked.keys() == 0 {
        return;
    }
    let hasher = &server.keyspace.hasher;
    let all = whole_keyspace(&mut keys.held);
    for index in 0..SLOTS {
        for db in databases.clone() {
            let hash = |name: &[u8]| hasher.hash(name);
            ready_keys::add_ready_keys_of_slot(
                all.cell(index),
                db,
                SlotIndex::from_index(index),
                hash,
                &mut keys.effects.ready,
            );
        }
    }
}

fn swap_databases(all: &mut WholeKeyspace<'_, '_>, first: DbIndex, second: DbIndex, access: &AccessContext<'_>) {
    for index in 0..SLOTS {
        let header = all.header(index);
        if header.may_hold(first) || header.may_hold(second) {
            let (header, slot) = all.parts_mut(index);
            touch_watchers_before_swap(slot, first, Some(second), access.now_ms);
            touch_watchers_before_swap(slot, second, Some(first), access.now_ms);
            slot.swap_databases(first, second);
            publish_header(header, slot);
        }
    }
    let AccessContext {
        counts,
        thread_index: seat,
        ..
    } = *access;
    let keys = counts.keys(second) as i64 - counts.keys(first) as i64;
    let expiring = counts.with_expiry(second) as i64 - counts.with_expiry(first) as i64;
    counts.add(seat, first, keys, expiring);
    counts.add(seat, second, -keys, -expiring);
    let volatile = counts.volatile_values(second) as i64 - counts.volatile_values(first) as i64;
    counts.add_volatile(seat, first, volatile);
    counts.add_volatile(seat, second, -volatile);
    counts.note_empty_table(first);
    counts.note_empty_table(second);
}
