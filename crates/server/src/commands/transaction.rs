//! Transactions: MULTI, DISCARD, WATCH, UNWATCH. The dispatcher executes EXEC: see `dispatch/transaction.rs`.

use super::context::{Binding, CommandResult, Context, leased, leased_for_writing};
use super::error::CommandError;
use crate::keyspace::access::is_expired;
use crate::net::client::ClientFlags;
use crate::net::transaction::Transaction;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("discard", leased(discard)),
    ("exec", leased(exec_without_multi)),
    ("multi", leased(multi)),
    ("unwatch", leased(unwatch)),
    ("watch", leased_for_writing(watch)),
];

fn multi(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.client.transaction = Some(Box::new(Transaction::new(ctx.client.db)));
    ctx.client
        .flags
        .set(ClientFlags::MULTI.union(ClientFlags::TRANSACTED), true);
    ctx.reply.ok();
    Ok(())
}

/// Replies to an EXEC outside a transaction. The dispatcher executes every other EXEC.
fn exec_without_multi(_: &mut Context<'_, '_>) -> CommandResult {
    Err(CommandError::constant("ERR EXEC without MULTI"))
}

fn discard(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.client.transaction.is_none() {
        return Err(CommandError::constant("ERR DISCARD without MULTI"));
    }
    discard_transaction(ctx);
    ctx.reply.ok();
    Ok(())
}

/// Ends the client's transaction, if it has one, and removes its watches.
pub fn discard_transaction(ctx: &mut Context<'_, '_>) {
    ctx.client.transaction = None;
    ctx.client.flags.set(ClientFlags::MULTI, false);
    remove_watches(ctx);
}

fn remove_watches(ctx: &mut Context<'_, '_>) {
    if let Some(watches) = ctx.client.watches.take() {
        ctx.keys.effects.removed_watches.extend(watches.keys);
    }
}

fn unwatch(ctx: &mut Context<'_, '_>) -> CommandResult {
    remove_watches(ctx);
    ctx.reply.ok();
    Ok(())
}

fn watch(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.client.flags.set(ClientFlags::TRANSACTED, true);
    ctx.reply.ok();
    // EXEC will fail in any case, so further keys need no watch.
    if ctx.client.is_dirty() {
        return Ok(());
    }
    for index in 0..ctx.keys.len() {
        watch_key(ctx, index);
    }
    Ok(())
}

fn watch_key(ctx: &mut Context<'_, '_>, index: usize) {
    let (db, name, key) = (ctx.keys.db, ctx.keys.name(index), ctx.keys.planned[index]);
    let watches = ctx.client.watches.get_or_insert_default();
    if watches.contains(db, key.hash, name) {
        return;
    }
    let Some((_, slot)) = ctx.keys.held.writable_slot(key.slot) else {
        unreachable!("WATCH is bound as a writer of its keys");
    };
    let entry = slot.table(db).and_then(|table| table.find(key.hash, name));
    let expired = entry.is_some_and(|entry| is_expired(entry.expire_at_ms(), ctx.now_ms));
    let watch = watches.add(
        db,
        name,
        key.hash,
        key.slot,
        ctx.server.clients.next_watch_id(),
        expired,
    );
    slot.change_watching(key.hash, |watching| watching.add(watch, &ctx.server.clients.watched));
}
