//! The commands on keys of any type: existence, deletion, names, databases, copies.

pub mod database;
pub mod dump;
pub mod expire;
pub mod expiry_argument;
pub mod migrate;
pub mod object;
pub mod randomkey;
pub mod scan;
pub mod scan_options;
pub mod sort;
pub mod wait;
use std::sync::Arc;

use weft_base::DbIndex;
use weft_modules::module::server_events::KeyRemoval;
use weft_modules::objects::value::{ModuleValue, of_object};
use weft_table::{EntryRef, NewValue, OwnedValue, Shared, ValueRef};
use weft_values::Value;
use weft_values::hash::Hash;
use weft_values::packed::PackedKind;

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::commands::generic::database::parse_database_index;
use crate::commands::generic::object::encoding_name;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite, LookupStatistics};
use crate::keyspace::effects::RemovalCause;
use crate::keyspace::expiry::log_expired_fields;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("copy", leased(copy).with_module_values()),
    ("del", leased(del)),
    ("exists", leased(exists)),
    ("move", leased(move_to_database)),
    ("rename", leased(rename)),
    ("renamenx", leased(renamenx)),
    ("touch", leased(touch)),
    ("type", leased(type_of)),
    ("unlink", leased(unlink)),
];

const SAME_OBJECT: CommandError = CommandError::constant("ERR source and destination objects are the same");

/// The number of bytes of a collection that are copied in a nanosecond.
const COPIED_BYTES_PER_NS: u64 = 2;

/// Returns the name of a value's type, as TYPE and SCAN report it.
pub fn type_name(value: ValueRef<'_, Value>) -> &'static str {
    match value {
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Blob(_) => "string",
        ValueRef::Packed(packed) => PackedKind::of(packed).type_name(),
        ValueRef::Object(object) => object.type_name(),
    }
}

/// Returns the value of an entry if it is one of a module.
pub fn module_value_of(entry: EntryRef<'_, Value>) -> Option<Arc<ModuleValue>> {
    match entry.value() {
        ValueRef::Object(object) => of_object(object),
        _ => None,
    }
}

/// Has a module copy the value of COPY's source.
fn copy_module_value(ctx: &mut Context<'_, '_>, db: DbIndex, value: &ModuleValue) -> Result<Value, CommandError> {
    let number = |db: DbIndex| db.get() as u32;
    let (from, to) = ((ctx.keys.name(0), number(ctx.keys.db)), (ctx.keys.name(1), number(db)));
    let copied = ctx.call_modules(|| value.copy(from, to))?;
    copied.map(|value| Value::Module(value)).map_err(CommandError::constant)
}

/// Returns an owned copy of a value; large strings are shared, not copied.
fn duplicate_value(value: ValueRef<'_, Value>) -> OwnedValue<Value> {
    match value {
        ValueRef::Int(number) => OwnedValue::Int(number),
        ValueRef::Bytes(bytes) => OwnedValue::Bytes(bytes.to_vec()),
        ValueRef::Blob(blob) => OwnedValue::Blob(blob.clone()),
        ValueRef::Packed(packed) => OwnedValue::Packed(packed.to_vec()),
        ValueRef::Object(object) => OwnedValue::Object(Shared::new(object.clone())),
    }
}

fn type_of(ctx: &mut Context<'_, '_>) -> CommandResult {
    let db = ctx.keys.db;
    let name = ctx
        .keys
        .read_with(0, db, LookupStatistics::No)
        .map_or("none", |entry| type_name(entry.value()));
    ctx.reply.simple(name);
    Ok(())
}

fn exists(ctx: &mut Context<'_, '_>) -> CommandResult {
    count_existing(ctx, LookupStatistics::No)
}

fn touch(ctx: &mut Context<'_, '_>) -> CommandResult {
    count_existing(ctx, LookupStatistics::Always)
}

fn count_existing(ctx: &mut Context<'_, '_>, statistics: LookupStatistics) -> CommandResult {
    let db = ctx.keys.db;
    let mut existing = 0;
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        existing += i64::from(ctx.keys.read_with(index, db, statistics).is_some());
    }
    ctx.reply.integer(existing);
    Ok(())
}

fn del(ctx: &mut Context<'_, '_>) -> CommandResult {
    delete_keys(ctx, RemovalCause::Del)
}

fn unlink(ctx: &mut Context<'_, '_>) -> CommandResult {
    delete_keys(ctx, RemovalCause::Unlink)
}

/// Deletes the keys; `cause` decides on which thread they are freed.
fn delete_keys(ctx: &mut Context<'_, '_>, cause: RemovalCause) -> CommandResult {
    // If another server deletes what has expired, such a key is deleted here like any other.
    let deletes_expired = ctx.past_expiry_ms() == 0;
    let mut deleted = 0;
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let mut key = ctx.keys.write_destination(index, deletes_expired);
        if key.delete_for(cause) {
            key.changed(KeyspaceEvent::generic("del"));
            deleted += 1;
        }
    }
    ctx.reply.integer(deleted);
    Ok(())
}

fn rename(ctx: &mut Context<'_, '_>) -> CommandResult {
    if !key_exists(ctx, 0, ctx.keys.db) {
        return Err(CommandError::NO_SUCH_KEY);
    }
    if ctx.keys.name(0) != ctx.keys.name(1) {
        rename_entry(ctx);
    }
    ctx.reply.ok();
    Ok(())
}

fn renamenx(ctx: &mut Context<'_, '_>) -> CommandResult {
    let db = ctx.keys.db;
    if !key_exists(ctx, 0, db) {
        return Err(CommandError::NO_SUCH_KEY);
    }
    let free = ctx.keys.name(0) != ctx.keys.name(1) && !key_exists(ctx, 1, db);
    if free {
        rename_entry(ctx);
    }
    ctx.reply.integer(i64::from(free));
    Ok(())
}

/// Moves the entry of the first key to the second key.
fn rename_entry(ctx: &mut Context<'_, '_>) {
    let db = ctx.keys.db;
    let (from, to) = (KeyLocation { index: 0, db }, KeyLocation { index: 1, db });
    move_entry(ctx, from, to, ["rename_from", "rename_to"]);
}

fn move_to_database(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (from, to) = (ctx.keys.db, parse_database_index(ctx, ctx.arg(2))?);
    if from == to {
        return Err(SAME_OBJECT);
    }
    let moved = key_exists(ctx, 0, from) && !key_exists(ctx, 0, to);
    if moved {
        let (from, to) = (KeyLocation { index: 0, db: from }, KeyLocation { index: 0, db: to });
        move_entry(ctx, from, to, ["move_from", "move_to"]);
    }
    ctx.reply.integer(i64::from(moved));
    Ok(())
}

/// Returns `true` if a key that the command writes exists in database `db`.
fn key_exists(ctx: &mut Context<'_, '_>, index: usize, db: DbIndex) -> bool {
    ctx.keys.write_in(index, db).exists()
}

/// A key of the plan in one of the databases.
#[derive(Clone, Copy)]
struct KeyLocation {
    /// The index of the key in the plan.
    index: usize,
    db: DbIndex,
}

/// Moves an entry, with its value and expiry, to another key, where it counts as new. This is one change, whose events
/// come in Valkey's order: `new`, then the two of the command.
fn move_entry(ctx: &mut Context<'_, '_>, from: KeyLocation, to: KeyLocation, events: [&'static str; 2]) {
    let clock = ctx.keys.context.clock;
    if from.index != to.index {
        ctx.keys.write_in(to.index, to.db).note_replaced(KeyRemoval::Deleted);
    }
    let mut source = ctx.keys.write_in(from.index, from.db);
    let was_raw = source.entry().is_some_and(has_raw_encoding);
    let removed = source.remove();
    source.changed_with_another_key();
    let Some(removed) = removed else {
        return;
    };
    let mut target = ctx.keys.write_in(to.index, to.db);
    target.insert_removed(removed);
    preserve_raw_encoding(&mut target, was_raw);
    if let Some(entry) = target.entry() {
        entry.set_clock(clock.for_new_entry());
    }
    target.changed_with_another_key();
    // Counted as one change together with the next; waiters for the source may detect that the key is gone.
    let source = ctx.keys.write_in(from.index, from.db);
    source.changed_times(KeyspaceEvent::generic(events[0]), 0);
    ctx.keys
        .write_in(to.index, to.db)
        .changed(KeyspaceEvent::generic(events[1]));
}

fn has_raw_encoding(entry: EntryRef<'_, Value>) -> bool {
    encoding_name(entry) == "raw"
}

/// Preserves the encoding `raw` of a string under a shorter key, with which it would have another encoding.
fn preserve_raw_encoding(target: &mut KeyWrite<'_>, was_raw: bool) {
    if was_raw
        && !target.entry().is_some_and(has_raw_encoding)
        && let Some(mut entry) = target.entry_mut()
    {
        entry.bytes_mut(0);
    }
}

/// Parses the options of COPY: the database of the copy, and `true` if it may replace a key.
fn parse_copy_options(ctx: &Context<'_, '_>) -> Result<(DbIndex, bool), CommandError> {
    let (mut db, mut replace) = (ctx.keys.db, false);
    let mut index = 3;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        if option.eq_ignore_ascii_case(b"REPLACE") {
            replace = true;
        } else if option.eq_ignore_ascii_case(b"DB") && index + 1 < ctx.argc() {
            db = parse_database_index(ctx, ctx.arg(index + 1))?;
            index += 1;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    Ok((db, replace))
}

fn copy(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (db, replace) = parse_copy_options(ctx)?;
    let in_place_ns = ctx.max_worker_ns();
    let now_ms = ctx.expiry_time_ms();
    if db == ctx.keys.db && ctx.keys.name(0) == ctx.keys.name(1) {
        return Err(SAME_OBJECT);
    }
    let Some(source) = ctx.keys.read(0) else {
        ctx.reply.integer(0);
        return Ok(());
    };
    if let ValueRef::Object(object) = source.value()
        && object.allocated_bytes() as u64 / COPIED_BYTES_PER_NS > in_place_ns
    {
        ctx.detach();
        return Ok(());
    }
    let module_value = module_value_of(source);
    let mut copy = duplicate_value(source.value());
    let expiry = source.expire_at_ms().map_or(ExpiryUpdate::Remove, ExpiryUpdate::SetTo);
    let was_raw = has_raw_encoding(source);
    let mut target = ctx.keys.write_in(1, db);
    if target.exists() && !replace {
        ctx.reply.integer(0);
        return Ok(());
    }
    if let Some(value) = module_value {
        drop(target);
        copy = OwnedValue::Object(Shared::new(copy_module_value(ctx, db, &value)?));
        target = ctx.keys.write_in(1, db);
    }
    target.delete();
    let value = match copy {
        OwnedValue::Int(number) => NewValue::Int(number),
        OwnedValue::Bytes(ref bytes) => NewValue::Bytes(bytes),
        OwnedValue::Blob(blob) => NewValue::Blob(blob),
        OwnedValue::Packed(ref packed) => NewValue::Packed(packed),
        OwnedValue::Object(object) => NewValue::Shared(object),
    };
    target.set(value, expiry);
    let expired = target
        .change_hash(|hash| remove_expired_fields(hash, now_ms))
        .unwrap_or_default();
    preserve_raw_encoding(&mut target, was_raw);
    target.changed(KeyspaceEvent::generic("copy_to"));
    if !expired.is_empty() && ctx.keys.effects.is_logging() {
        // Replicas copy the fields, too.
        let words: Vec<&[u8]> = ctx.args.iter().collect();
        let from = ctx.keys.db;
        ctx.keys.effects.log_also(from, &words);
        log_expired_fields(ctx.keys.effects, db, ctx.args.argument(2), &expired);
        ctx.keys.effects.log_nothing();
    }
    ctx.reply.integer(1);
    Ok(())
}

/// Removes the expired fields from a copied hash, unless there are no others, and returns their names. A hash with only
/// expired fields keeps them until they are deleted, like the hash it was copied from.
fn remove_expired_fields(hash: &mut Hash, now_ms: u64) -> Vec<Box<[u8]>> {
    let mut expired = Vec::new();
    if hash.has_expired_fields(now_ms) && hash.iter(now_ms).next().is_some() {
        hash.remove_expired(now_ms, usize::MAX, |name| expired.push(name.into()));
    }
    expired
}
