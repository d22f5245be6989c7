//! The set commands.

pub mod algebra;
use std::cell::Cell;

use weft_resp::Reply;
use weft_resp::number::{parse_i64, parse_u64};
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::packed::PackedKind;
use weft_values::set::{Set, SetView};

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use super::reply_limit::{ELEMENTS_PER_CHECK, ReplyLimit};
use crate::commands::generic::scan_options::CollectionScanOptions;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;
use weft_config::id;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("sadd", leased(sadd).with_member_argument(2)),
    ("scard", leased(scard)),
    ("sismember", leased(sismember).with_member_argument(2)),
    ("smembers", leased(smembers).with_all_members()),
    ("smismember", leased(smismember)),
    ("smove", leased(smove)),
    ("spop", leased(spop)),
    ("srandmember", leased(srandmember)),
    ("srem", leased(srem).with_member_argument(2)),
    ("sscan", leased(sscan)),
];

/// The time for adding or removing a member, in nanoseconds, if the set is not in the cache.
const CHANGE_MEMBER_NS: u64 = 120;
/// The time for writing a member to a reply, in nanoseconds.
pub const REPLY_MEMBER_NS: u64 = 30;
/// The time for choosing a random member, in nanoseconds.
const DRAW_MEMBER_NS: u64 = 100;
/// The size of a member's header and line ends in a reply, in bytes, if the member is shorter than 100 bytes.
const BULK_OVERHEAD_BYTES: usize = 7;

const NOT_POSITIVE_ERROR: CommandError = CommandError::constant("ERR value is out of range, must be positive");

/// Returns a view of the set in a value.
///
/// # Errors
/// `WRONGTYPE` if the value is not a set.
#[inline]
pub fn value_as_set(value: ValueRef<'_, Value>) -> Result<SetView<'_>, CommandError> {
    match value {
        ValueRef::Packed(packed) if matches!(PackedKind::of(packed), PackedKind::Set | PackedKind::IntegerSet) => {
            Ok(SetView::of_packed(packed))
        }
        ValueRef::Object(Value::Set(set)) => Ok(set.view()),
        _ => Err(CommandError::WRONG_TYPE),
    }
}

/// Returns a random number below `bound`.
pub fn random_below(bound: usize) -> usize {
    fastrand::usize(..bound)
}

thread_local! {
    /// A buffer for packed sets that are changed. It is kept for reuse by the next change.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Stores a non-empty set under a key.
pub fn store_set(key: &mut KeyWrite<'_>, set: Set, expiry: ExpiryUpdate) {
    match set.packed() {
        Some(packed) => {
            key.set(NewValue::Packed(packed), expiry);
            reuse_scratch(set);
        }
        None => key.set(NewValue::Object(Value::Set(set)), expiry),
    }
}

/// Changes the set that a key holds. `edit` returns the number of members that it added or removed. If the set is empty
/// afterwards, its key is deleted. Returns the result of `edit`, and `true` if the key was deleted.
///
/// # Panics
/// If the key holds no set. The caller must have checked it.
fn change_set(key: &mut KeyWrite<'_>, edit: impl FnOnce(&mut Set) -> u64) -> (u64, bool) {
    let mut entry = key.entry_mut();
    if let Some(Value::Set(set)) = entry.as_mut().and_then(|entry| entry.object_mut()) {
        let changes = edit(set);
        let emptied = set.is_empty();
        if emptied {
            key.delete_emptied();
        }
        return (changes, emptied);
    }
    let mut scratch = SCRATCH.take();
    scratch.clear();
    match entry.map(|entry| entry.into_ref().value()) {
        Some(ValueRef::Packed(packed)) => scratch.extend_from_slice(packed),
        other => unreachable!("a set was expected, not {other:?}"),
    }
    let mut set = Set::from_packed(scratch);
    let changes = edit(&mut set);
    let emptied = set.is_empty();
    if emptied {
        key.delete_emptied();
    } else if changes > 0 {
        store_set(key, set, ExpiryUpdate::Keep);
    } else if set.packed().is_none() {
        // Lower limits than before convert the set even if no member changes.
        key.reencode(NewValue::Object(Value::Set(set)));
    } else {
        reuse_scratch(set);
    }
    (changes, emptied)
}

fn reuse_scratch(set: Set) {
    SCRATCH.set(set.into_buffer().unwrap_or_default());
}

/// Opens a key for writing, and returns it with the length of its set; `None` if the key is missing.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type. The write is then closed.
fn open_set_for_write<'k>(
    ctx: &'k mut Context<'_, '_>,
    index: usize,
) -> Result<(KeyWrite<'k>, Option<usize>), CommandError> {
    let key = ctx.keys.write(index);
    let members = key
        .entry()
        .map(|entry| value_as_set(entry.value()).map(|set| set.len()));
    match members.transpose() {
        Ok(members) => Ok((key, members)),
        Err(error) => Err(error),
    }
}

/// Closes a write that removed members.
fn close_removal(mut key: KeyWrite<'_>, event: &'static str, removed: u64, is_emptied: bool) {
    let event = KeyspaceEvent::set(event);
    if is_emptied {
        key.record_event(event);
        key.changed_times(KeyspaceEvent::generic("del"), removed);
    } else if removed > 0 {
        key.changed_times(event, removed);
    }
}

/// The result of an attempt to add members to a large set.
enum AddOutcome {
    /// The key is missing.
    Missing,
    /// The set is packed in its entry. Nothing was added.
    Packed,
    /// The set is outside its entry. Holds the number of members that were added.
    Large(u64),
}

/// Adds members to a key's set if the set is stored outside its entry.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type.
fn add_to_large(key: &mut KeyWrite<'_>, add: impl FnOnce(&mut Set) -> u64) -> Result<AddOutcome, CommandError> {
    let Some(mut entry) = key.entry_mut() else {
        return Ok(AddOutcome::Missing);
    };
    value_as_set(entry.as_ref().value())?;
    Ok(match entry.object_mut() {
        Some(Value::Set(set)) => AddOutcome::Large(add(set)),
        _ => AddOutcome::Packed,
    })
}

fn sadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (args, expected) = (ctx.args, ctx.argc() - 2);
    let members = args.iter().skip(2);
    if ctx.detach_if_long(expected as u64 * CHANGE_MEMBER_NS) {
        return Ok(());
    }
    let limits = ctx.server.config.set_limits();
    let mut key = ctx.keys.write(0);
    let add_all = |set: &mut Set| members.clone().filter(|member| set.add(member, limits)).count() as u64;
    let add_more = |set: &mut Set| {
        set.prepare_for_members(expected, limits);
        add_all(set)
    };
    let added = match add_to_large(&mut key, add_more) {
        Ok(AddOutcome::Large(added)) => added,
        Ok(AddOutcome::Packed) => change_set(&mut key, add_more).0,
        Ok(AddOutcome::Missing) => {
            let mut set = Set::for_first_member(args.argument(2), expected, limits, SCRATCH.take());
            let added = add_all(&mut set);
            store_set(&mut key, set, ExpiryUpdate::Remove);
            added
        }
        Err(error) => {
            return Err(error);
        }
    };
    if added > 0 {
        key.changed_times(KeyspaceEvent::set("sadd"), added);
    }
    ctx.reply.integer(added as i64);
    Ok(())
}

fn srem(ctx: &mut Context<'_, '_>) -> CommandResult {
    let args = ctx.args;
    if ctx.detach_if_long(ctx.argc() as u64 * CHANGE_MEMBER_NS) {
        return Ok(());
    }
    let (mut key, set) = open_set_for_write(ctx, 0)?;
    let (removed, emptied) = match set {
        Some(_) => change_set(&mut key, |set| remove_members(set, args.iter().skip(2))),
        None => (0, false),
    };
    close_removal(key, "srem", removed, emptied);
    ctx.reply.integer(removed as i64);
    Ok(())
}

/// Removes members until the set is empty. Returns the number of removed members.
fn remove_members<'m>(set: &mut Set, members: impl Iterator<Item = &'m [u8]>) -> u64 {
    let mut removed = 0;
    for member in members {
        if set.is_empty() {
            break;
        }
        removed += u64::from(set.remove(member));
    }
    removed
}

fn smove(ctx: &mut Context<'_, '_>) -> CommandResult {
    let member = ctx.arg(3);
    let limits = ctx.server.config.set_limits();
    let source = ctx.keys.write(0);
    let found = source
        .entry()
        .map(|entry| value_as_set(entry.value()).map(|set| set.contains(member)));
    drop(source);
    // Both keys are looked up. If the source is missing, the type of the destination does not matter.
    let target_set = open_set_for_write(ctx, 1).map(|(_, members)| members);
    let Some(found) = found else {
        ctx.reply.integer(0);
        return Ok(());
    };
    let (found, target_set) = (found?, target_set?);
    ctx.reply.integer(i64::from(found));
    if !found || ctx.keys.name(0) == ctx.keys.name(1) {
        return Ok(());
    }
    let mut source = ctx.keys.write(0).opened_again();
    let (removed, emptied) = change_set(&mut source, |set| u64::from(set.remove(member)));
    close_removal(source, "srem", removed, emptied);
    let mut target = ctx.keys.write(1).opened_again();
    let added = if target_set.is_some() {
        change_set(&mut target, |set| u64::from(set.add(member, limits))).0
    } else {
        let mut set = Set::for_first_member(member, 1, limits, SCRATCH.take());
        set.add(member, limits);
        store_set(&mut target, set, ExpiryUpdate::Remove);
        1
    };
    match added {
        0 => {}
        _ => target.changed(KeyspaceEvent::set("sadd")),
    }
    Ok(())
}

/// Calls `look` with the set of the first key. Returns `None` if the key is missing.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type.
fn with_set<R>(ctx: &mut Context<'_, '_>, look: impl FnOnce(SetView<'_>) -> R) -> Result<Option<R>, CommandError> {
    let set = ctx.keys.read(0).map(|entry| value_as_set(entry.value()));
    set.transpose().map(|set| set.map(look))
}

fn scard(ctx: &mut Context<'_, '_>) -> CommandResult {
    let members = with_set(ctx, |set| set.len())?;
    ctx.reply.integer(members.unwrap_or(0) as i64);
    Ok(())
}

fn sismember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let member = ctx.arg(2);
    let found = with_set(ctx, |set| set.contains(member))?;
    ctx.reply.integer(i64::from(found.unwrap_or(false)));
    Ok(())
}

fn smismember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let search_ns = with_set(ctx, |set| set.estimate_search_ns())?.unwrap_or(0);
    let args = ctx.args;
    if ctx.detach_if_long((args.len() as u64).saturating_mul(search_ns)) {
        return Ok(());
    }
    let set = ctx.keys.peek(0).map(|entry| value_as_set(entry.value())).transpose()?;
    ctx.reply.array(args.len() - 2);
    for member in args.iter().skip(2) {
        let found = set.is_some_and(|set| set.contains(member));
        ctx.reply.integer(i64::from(found));
    }
    Ok(())
}

/// Writes a member to a reply.
#[inline]
pub fn reply_member(reply: &mut Reply<'_>, member: Element<'_>) {
    match member {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Int(number) => reply.bulk_integer(number),
    }
}

/// Writes all members to a reply, without a header.
pub fn reply_members(reply: &mut Reply<'_>, set: SetView<'_>) {
    reply
        .out
        .reserve(set.max_text_bytes() + set.len() * BULK_OVERHEAD_BYTES);
    set.for_each(|member| reply_member(reply, member));
}

fn smembers(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.set(0);
        return Ok(());
    };
    let set = value_as_set(entry.value())?;
    if set.len() as u64 * REPLY_MEMBER_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    ctx.reply.set(set.len());
    reply_members(&mut ctx.reply, set);
    Ok(())
}

/// Parses the count of SPOP or SRANDMEMBER, if there is one. Returns `error` if it is not a number.
fn parse_count(ctx: &Context<'_, '_>, error: CommandError) -> Result<Option<i64>, CommandError> {
    match ctx.argc() {
        2 => Ok(None),
        3 => parse_i64(ctx.arg(2)).map(Some).ok_or(error),
        _ => Err(CommandError::SYNTAX),
    }
}

fn spop(ctx: &mut Context<'_, '_>) -> CommandResult {
    if let Some(count) = parse_count(ctx, NOT_POSITIVE_ERROR)? {
        let count = usize::try_from(count).map_err(|_| NOT_POSITIVE_ERROR)?;
        return spop_many(ctx, count);
    }
    let (mut key, set) = open_set_for_write(ctx, 0)?;
    if set.is_none() {
        drop(key);
        ctx.reply.null();
        return Ok(());
    }
    let mut popped = Vec::new();
    let (removed, emptied) = change_set(&mut key, |set| {
        set.pop(&mut random_below, |member| popped = member.to_vec());
        1
    });
    let name = key.name_for_plan();
    key.log_instead(&[b"SREM", name, &popped]);
    close_removal(key, "spop", removed, emptied);
    ctx.reply.bulk(&popped);
    Ok(())
}

fn spop_many(ctx: &mut Context<'_, '_>, count: usize) -> CommandResult {
    let limits = ctx.server.config.set_limits();
    let (key, members) = open_set_for_write(ctx, 0)?;
    drop(key);
    let members = members.unwrap_or(0);
    let popped = count.min(members);
    ctx.reply.set(popped);
    if popped == 0 {
        return Ok(());
    }
    if ctx.detach_if_long(popped as u64 * (CHANGE_MEMBER_NS + DRAW_MEMBER_NS)) {
        return Ok(());
    }
    let mut key = ctx.keys.write(0).opened_again();
    let reply = &mut ctx.reply;
    if popped == members {
        // Valkey computes the reply as the union of this one set, whose lookup counts.
        key.count_lookup();
        if let Some(entry) = key.entry() {
            reply_members(reply, value_as_set(entry.value())?);
        }
        key.delete();
        let lazy = ctx.server.config.boolean(id::LAZYFREE_LAZY_SERVER_DEL);
        let word: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
        key.log_instead(&[word, ctx.args.argument(1)]);
        close_removal(key, "spop", popped as u64, true);
        return Ok(());
    }
    let logs = key.effects().is_logging();
    let mut members = Vec::new();
    change_set(&mut key, |set| {
        set.pop_many(popped, limits, &mut random_below, |member| {
            if logs {
                members.push(member.to_vec());
            }
            reply_member(reply, member);
        });
        popped as u64
    });
    close_removal(key, "spop", popped as u64, false);
    if logs {
        propagate_removal(ctx, &members);
    }
    Ok(())
}

/// The largest number of members in one propagated SREM.
const MAX_LOGGED_MEMBERS: usize = 1024;
/// The size of members in bytes after which such a command ends: one of more than 4 GiB could not be loaded.
const MAX_LOGGED_BYTES: usize = 1 << 20;

/// Propagates SREM commands with the removed members instead of the command.
#[cold]
fn propagate_removal(ctx: &mut Context<'_, '_>, members: &[Vec<u8>]) {
    let (name, db) = (ctx.arg(1), ctx.keys.db);
    let mut words: Vec<&[u8]> = vec![b"SREM", name];
    let mut bytes = 0;
    for member in members {
        words.push(member);
        bytes += member.len();
        if words.len() == 2 + MAX_LOGGED_MEMBERS || bytes >= MAX_LOGGED_BYTES {
            ctx.keys.effects.log_also(db, &words);
            words.truncate(2);
            bytes = 0;
        }
    }
    if words.len() > 2 {
        ctx.keys.effects.log_also(db, &words);
    }
    ctx.keys.effects.log_nothing();
}

fn srandmember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(count) = parse_count(ctx, CommandError::NOT_AN_INTEGER)? else {
        let Some(entry) = ctx.keys.read(0) else {
            ctx.reply.null();
            return Ok(());
        };
        if let Some(member) = value_as_set(entry.value())?.random_member(&mut random_below) {
            reply_member(&mut ctx.reply, member);
        }
        return Ok(());
    };
    if count < -i64::MAX {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.array(0);
        return Ok(());
    };
    let set = value_as_set(entry.value())?;
    let repeated = count < 0;
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let shown = if repeated { wanted } else { wanted.min(set.len()) };
    if (shown as u64).saturating_mul(DRAW_MEMBER_NS) > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let limit = ReplyLimit::for_client(ctx.server, ctx.client);
    let reply = &mut ctx.reply;
    reply.array(shown);
    match repeated {
        true => {
            let mut left = shown;
            while left > 0 && !limit.is_exceeded(reply.out.len()) {
                set.random_repeated(left.min(ELEMENTS_PER_CHECK), &mut random_below, |member| {
                    reply_member(reply, member)
                });
                left -= left.min(ELEMENTS_PER_CHECK);
            }
        }
        false if shown == set.len() => reply_members(reply, set),
        false => set.random_distinct(shown, &mut random_below, |member| reply_member(reply, member)),
    }
    Ok(())
}

fn sscan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cursor = parse_u64(ctx.arg(2)).ok_or(CommandError::constant("ERR invalid cursor"))?;
    let Some(members) = with_set(ctx, |set| set.len())? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let options = CollectionScanOptions::parse(ctx, 3, None)?;
    if ctx.detach_if_long(members.min(options.count) as u64 * REPLY_MEMBER_NS) {
        return Ok(());
    }
    let Some(entry) = ctx.keys.peek(0) else {
        return Ok(());
    };
    let set = value_as_set(entry.value())?;
    let mut found = Vec::new();
    let mut shown = 0;
    let mut reply = Reply::new(&mut found, ctx.reply.protocol);
    let next = set.scan(cursor, options.count, |member| {
        if options.matches(member.text(&mut [0; DECIMAL_MAX_BYTES])) {
            reply_member(&mut reply, member);
            shown += 1;
        }
    });
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    ctx.reply.array(shown);
    ctx.reply.raw(&found);
    Ok(())
}
