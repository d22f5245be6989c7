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
use super::reply_limit::{ELEMENTS_A_LOOK, ReplyLimit};
use crate::commands::generic::scan_options::ScanOptions;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::Event;
use weft_config::id;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("sadd", leased(sadd).of_member(2)),
    ("scard", leased(scard)),
    ("sismember", leased(sismember).of_member(2)),
    ("smembers", leased(smembers).of_all_members()),
    ("smismember", leased(smismember)),
    ("smove", leased(smove)),
    ("spop", leased(spop)),
    ("srandmember", leased(srandmember)),
    ("srem", leased(srem).of_member(2)),
    ("sscan", leased(sscan)),
];

/// The time for adding or removing a member, in nanoseconds, if the set is not in the cache.
const CHANGE_NS: u64 = 120;
/// The time for writing a member to a reply, in nanoseconds.
pub const SHOW_NS: u64 = 30;
/// The time for choosing a random member, in nanoseconds.
const DRAW_NS: u64 = 100;
/// The size of a member's header and line ends in a reply, in bytes, if the member is shorter than 100 bytes.
const BULK_OVERHEAD_BYTES: usize = 7;

const NOT_POSITIVE: CommandError = CommandError::constant("ERR value is out of range, must be positive");

/// Returns a view of the set in a value.
///
/// # Errors
/// `WRONGTYPE` if the value is not a set.
#[inline]
pub fn set_view(value: ValueRef<'_, Value>) -> Result<SetView<'_>, CommandError> {
    match value {
        ValueRef::Packed(packed) if matches!(PackedKind::of(packed), PackedKind::Set | PackedKind::IntegerSet) => {
            Ok(SetView::of_packed(packed))
        }
        ValueRef::Object(Value::Set(set)) => Ok(set.view()),
        _ => Err(CommandError::WRONG_TYPE),
    }
}

/// Returns a random number below `bound`.
pub fn random(bound: usize) -> usize {
    fastrand::usize(..bound)
}

thread_local! {
    /// A buffer for packed sets that are changed. It is kept for reuse by the next change.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Stores a non-empty set under a key.
pub fn store(key: &mut KeyWrite<'_>, set: Set, expiry: ExpiryUpdate) {
    match set.packed() {
        Some(packed) => {
            key.set(NewValue::Packed(packed), expiry);
            keep_room(set);
        }
        None => key.set(NewValue::Object(Value::Set(set)), expiry),
    }
}

/// Changes the set that a key holds. `work` returns the number of members that it added or removed. If the set is empty
/// afterwards, its key is deleted. Returns the result of `work`, and `true` if the key was deleted.
///
/// # Panics
/// If the key holds no set. The caller must have checked it.
fn change(key: &mut KeyWrite<'_>, work: impl FnOnce(&mut Set) -> u64) -> (u64, bool) {
    let mut entry = key.entry_mut();
    if let Some(Value::Set(set)) = entry.as_mut().and_then(|entry| entry.object_mut()) {
        let changes = work(set);
        let emptied = set.is_empty();
        if emptied {
            key.delete();
        }
        return (changes, emptied);
    }
    let mut room = ROOM.take();
    room.clear();
    match entry.map(|entry| entry.into_ref().value()) {
        Some(ValueRef::Packed(packed)) => room.extend_from_slice(packed),
        other => unreachable!("a set was expected, not {other:?}"),
    }
    let mut set = Set::from_packed(room);
    let changes = work(&mut set);
    let emptied = set.is_empty();
    if emptied {
        key.delete();
    } else if changes > 0 {
        store(key, set, ExpiryUpdate::Keep);
    } else if set.packed().is_none() {
        // Lower limits than before convert the set even if no member changes.
        key.reencode(NewValue::Object(Value::Set(set)));
    } else {
        keep_room(set);
    }
    (changes, emptied)
}

fn keep_room(set: Set) {
    ROOM.set(set.into_buffer().unwrap_or_default());
}

/// Opens a key for writing, and returns it with the length of its set; `None` if the key is missing. This counts as a
/// use of the key.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type. The write is then closed.
fn open<'k>(ctx: &'k mut Context<'_, '_>, index: usize) -> Result<(KeyWrite<'k>, Option<usize>), CommandError> {
    let key = ctx.keys.write(index);
    let members = key
        .use_entry()
        .map(|entry| set_view(entry.value()).map(|set| set.len()));
    match members.transpose() {
        Ok(members) => Ok((key, members)),
        Err(error) => Err(error),
    }
}

/// Closes a write that removed members.
fn close_removal(mut key: KeyWrite<'_>, event: &'static str, removed: u64, emptied: bool) {
    let event = Event::set(event);
    if emptied {
        key.record_event(event);
        key.changed_times(Event::generic("del"), removed);
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
    set_view(entry.as_ref().value())?;
    Ok(match entry.object_mut() {
        Some(Value::Set(set)) => AddOutcome::Large(add(set)),
        _ => AddOutcome::Packed,
    })
}

fn sadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (args, expected) = (ctx.args, ctx.argc() - 2);
    let members = args.iter().skip(2);
    if ctx.leaves_worker(expected as u64 * CHANGE_NS) {
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
        Ok(AddOutcome::Packed) => change(&mut key, add_more).0,
        Ok(AddOutcome::Missing) => {
            let mut set = Set::for_first_member(args.argument(2), expected, limits, ROOM.take());
            let added = add_all(&mut set);
            store(&mut key, set, ExpiryUpdate::Remove);
            added
        }
        Err(error) => {
            return Err(error);
        }
    };
    if added > 0 {
        key.changed_times(Event::set("sadd"), added);
    }
    ctx.reply.integer(added as i64);
    Ok(())
}

fn srem(ctx: &mut Context<'_, '_>) -> CommandResult {
    let args = ctx.args;
    if ctx.leaves_worker(ctx.argc() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let (mut key, set) = open(ctx, 0)?;
    let (removed, emptied) = match set {
        Some(_) => change(&mut key, |set| remove_all(set, args.iter().skip(2))),
        None => (0, false),
    };
    close_removal(key, "srem", removed, emptied);
    ctx.reply.integer(removed as i64);
    Ok(())
}

/// Removes members until the set is empty. Returns the number of removed members.
fn remove_all<'m>(set: &mut Set, members: impl Iterator<Item = &'m [u8]>) -> u64 {
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
        .use_entry()
        .map(|entry| set_view(entry.value()).map(|set| set.contains(member)));
    drop(source);
    // If the source is missing, the type of the destination does not matter.
    let Some(found) = found else {
        ctx.reply.integer(0);
        return Ok(());
    };
    let found = found?;
    let (target, target_set) = open(ctx, 1)?;
    drop(target);
    ctx.reply.integer(i64::from(found));
    if !found || ctx.keys.name(0) == ctx.keys.name(1) {
        return Ok(());
    }
    let mut source = ctx.keys.write(0);
    let (removed, emptied) = change(&mut source, |set| u64::from(set.remove(member)));
    close_removal(source, "srem", removed, emptied);
    let mut target = ctx.keys.write(1);
    let added = if target_set.is_some() {
        change(&mut target, |set| u64::from(set.add(member, limits))).0
    } else {
        let mut set = Set::for_first_member(member, 1, limits, ROOM.take());
        set.add(member, limits);
        store(&mut target, set, ExpiryUpdate::Remove);
        1
    };
    match added {
        0 => {}
        _ => target.changed(Event::set("sadd")),
    }
    Ok(())
}

/// Calls `look` with the set of the first key. Returns `None` if the key is missing.
///
/// # Errors
/// `WRONGTYPE` if the key holds another type.
fn look<R>(ctx: &mut Context<'_, '_>, look: impl FnOnce(SetView<'_>) -> R) -> Result<Option<R>, CommandError> {
    let set = ctx.keys.read(0).map(|entry| set_view(entry.value()));
    set.transpose().map(|set| set.map(look))
}

fn scard(ctx: &mut Context<'_, '_>) -> CommandResult {
    let members = look(ctx, |set| set.len())?;
    ctx.reply.integer(members.unwrap_or(0) as i64);
    Ok(())
}

fn sismember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let member = ctx.arg(2);
    let found = look(ctx, |set| set.contains(member))?;
    ctx.reply.integer(i64::from(found.unwrap_or(false)));
    Ok(())
}

fn smismember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let search_ns = look(ctx, |set| set.estimate_search_ns())?.unwrap_or(0);
    let args = ctx.args;
    if ctx.leaves_worker((args.len() as u64).saturating_mul(search_ns)) {
        return Ok(());
    }
    let set = ctx.keys.peek(0).map(|entry| set_view(entry.value())).transpose()?;
    ctx.reply.array(args.len() - 2);
    for member in args.iter().skip(2) {
        let found = set.is_some_and(|set| set.contains(member));
        ctx.reply.integer(i64::from(found));
    }
    Ok(())
}

/// Writes a member to a reply.
#[inline]
pub fn show(reply: &mut Reply<'_>, member: Element<'_>) {
    match member {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Int(number) => reply.bulk_integer(number),
    }
}

/// Writes all members to a reply, without a header.
pub fn show_all(reply: &mut Reply<'_>, set: SetView<'_>) {
    reply
        .out
        .reserve(set.max_text_bytes() + set.len() * BULK_OVERHEAD_BYTES);
    set.for_each(|member| show(reply, member));
}

fn smembers(ctx: &mut Context<'_, '_>) -> CommandResult {
    let in_place_ns = ctx.in_place_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.set(0);
        return Ok(());
    };
    let set = set_view(entry.value())?;
    if set.len() as u64 * SHOW_NS > in_place_ns {
        ctx.leave();
        return Ok(());
    }
    ctx.reply.set(set.len());
    show_all(&mut ctx.reply, set);
    Ok(())
}

/// Parses the count of SPOP or SRANDMEMBER, if there is one. Returns `error` if it is not a number.
fn count_argument(ctx: &Context<'_, '_>, error: CommandError) -> Result<Option<i64>, CommandError> {
    match ctx.argc() {
        2 => Ok(None),
        3 => parse_i64(ctx.arg(2)).map(Some).ok_or(error),
        _ => Err(CommandError::SYNTAX),
    }
}

fn spop(ctx: &mut Context<'_, '_>) -> CommandResult {
    if let Some(count) = count_argument(ctx, NOT_POSITIVE)? {
        let count = usize::try_from(count).map_err(|_| NOT_POSITIVE)?;
        return spop_many(ctx, count);
    }
    let (mut key, set) = open(ctx, 0)?;
    if set.is_none() {
        drop(key);
        ctx.reply.null();
        return Ok(());
    }
    let mut popped = Vec::new();
    let (removed, emptied) = change(&mut key, |set| {
        set.pop(&mut random, |member| popped = member.to_vec());
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
    let (key, members) = open(ctx, 0)?;
    drop(key);
    let members = members.unwrap_or(0);
    let popped = count.min(members);
    ctx.reply.set(popped);
    if popped == 0 {
        return Ok(());
    }
    if ctx.leaves_worker(popped as u64 * (CHANGE_NS + DRAW_NS)) {
        return Ok(());
    }
    let mut key = ctx.keys.write(0);
    let reply = &mut ctx.reply;
    if popped == members {
        if let Some(entry) = key.entry() {
            show_all(reply, set_view(entry.value())?);
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
    change(&mut key, |set| {
        set.pop_many(popped, limits, &mut random, |member| {
            if logs {
                members.push(member.to_vec());
            }
            show(reply, member);
        });
        popped as u64
    });
    close_removal(key, "spop", popped as u64, false);
    if logs {
        log_removal(ctx, &members);
    }
    Ok(())
}

/// The largest number of members in one propagated SREM.
const LOGGED_MEMBERS: usize = 1024;

/// Propagates SREM commands with the removed members instead of the command.
#[cold]
fn log_removal(ctx: &mut Context<'_, '_>, members: &[Vec<u8>]) {
    let (name, db) = (ctx.arg(1), ctx.keys.db);
    for some in members.chunks(LOGGED_MEMBERS) {
        let mut words: Vec<&[u8]> = vec![b"SREM", name];
        words.extend(some.iter().map(Vec::as_slice));
        ctx.keys.effects.log_also(db, &words);
    }
    ctx.keys.effects.log_nothing();
}

fn srandmember(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some(count) = count_argument(ctx, CommandError::NOT_AN_INTEGER)? else {
        let Some(entry) = ctx.keys.read(0) else {
            ctx.reply.null();
            return Ok(());
        };
        if let Some(member) = set_view(entry.value())?.random_member(&mut random) {
            show(&mut ctx.reply, member);
        }
        return Ok(());
    };
    if count < -i64::MAX {
        return Err(CommandError::constant(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let in_place_ns = ctx.in_place_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.array(0);
        return Ok(());
    };
    let set = set_view(entry.value())?;
    let repeated = count < 0;
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let shown = if repeated { wanted } else { wanted.min(set.len()) };
    if (shown as u64).saturating_mul(DRAW_NS) > in_place_ns {
        ctx.leave();
        return Ok(());
    }
    let limit = ReplyLimit::of(ctx.server, ctx.client);
    let reply = &mut ctx.reply;
    reply.array(shown);
    match repeated {
        true => {
            let mut left = shown;
            while left > 0 && !limit.is_passed(reply.out.len()) {
                set.random_repeated(left.min(ELEMENTS_A_LOOK), &mut random, |member| show(reply, member));
                left -= left.min(ELEMENTS_A_LOOK);
            }
        }
        false if shown == set.len() => show_all(reply, set),
        false => set.random_distinct(shown, &mut random, |member| show(reply, member)),
    }
    Ok(())
}

fn sscan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cursor = parse_u64(ctx.arg(2)).ok_or(CommandError::constant("ERR invalid cursor"))?;
    let Some(members) = look(ctx, |set| set.len())? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let options = ScanOptions::parse(ctx, 3, None)?;
    if ctx.leaves_worker(members.min(options.count) as u64 * SHOW_NS) {
        return Ok(());
    }
    let Some(entry) = ctx.keys.peek(0) else {
        return Ok(());
    };
    let set = set_view(entry.value())?;
    let mut found = Vec::new();
    let mut shown = 0;
    let mut reply = Reply::new(&mut found, ctx.reply.protocol);
    let next = set.scan(cursor, options.count, |member| {
        if options.wants(member.text(&mut [0; DECIMAL_MAX_BYTES])) {
            show(&mut reply, member);
            shown += 1;
        }
    });
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    ctx.reply.array(shown);
    ctx.reply.raw(&found);
    Ok(())
}
