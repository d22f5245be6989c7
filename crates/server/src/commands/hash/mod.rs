//! The commands on hashes.

use std::collections::HashSet;

use weft_resp::number::{parse_i64, parse_u64};
use weft_resp::{LongDouble, Protocol, Reply};
use weft_values::hash::{FieldExpiry, Hash, HashField, HashRef};
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::records::Record;

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use super::reply_limit::{ELEMENTS_PER_CHECK, ReplyLimit};
use crate::commands::generic::scan_options::CollectionScanOptions;
use crate::keyspace::access::KeyWrite;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;
use fields::{
    CHANGE_FIELD_NS, FieldNames, FieldValueArguments, REPLY_FIELD_NS, check_hash_key, close_changed_key, entry_as_hash,
    key_as_hash, live_names_if_any_expired, remove_fields, reply_element, reply_value_or_null, set_fields,
};

pub mod expiry;
pub mod fields;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("hdel", leased(hdel).with_member_argument(2)),
    ("hexists", leased(hexists).with_member_argument(2)),
    ("hget", leased(hget).with_member_argument(2)),
    ("hgetall", leased(hgetall).with_all_members()),
    ("hincrby", leased(hincrby).with_member_argument(2)),
    ("hincrbyfloat", leased(hincrbyfloat).with_member_argument(2)),
    ("hkeys", leased(hkeys).with_all_members()),
    ("hlen", leased(hlen)),
    ("hmget", leased(hmget)),
    ("hmset", leased(hmset)),
    ("hrandfield", leased(hrandfield)),
    ("hscan", leased(hscan)),
    ("hset", leased(hset).with_member_argument(2)),
    ("hsetnx", leased(hsetnx).with_member_argument(2)),
    ("hstrlen", leased(hstrlen).with_member_argument(2)),
    ("hvals", leased(hvals).with_all_members()),
];

/// The time to choose a random field, in nanoseconds.
const DRAW_FIELD_NS: u64 = 150;
/// The bytes of a name or value in a reply in addition to its content.
const BULK_OVERHEAD_BYTES: usize = 12;

fn hset(ctx: &mut Context<'_, '_>) -> CommandResult {
    if let Some(added) = set_argument_fields(ctx)? {
        ctx.reply.integer(added as i64);
    }
    Ok(())
}

fn hmset(ctx: &mut Context<'_, '_>) -> CommandResult {
    if set_argument_fields(ctx)?.is_some() {
        ctx.reply.ok();
    }
    Ok(())
}

/// Sets the fields in the arguments. Returns the number of new fields, or `None` if the handler left its worker.
fn set_argument_fields(ctx: &mut Context<'_, '_>) -> Result<Option<usize>, CommandError> {
    if !ctx.argc().is_multiple_of(2) {
        let name = ctx.command.full_name;
        return Err(CommandError::from_text(format!(
            "ERR wrong number of arguments for '{name}' command"
        )));
    }
    let pairs = FieldValueArguments::new(ctx.args, 2, ctx.argc() / 2 - 1);
    if ctx.detach_if_long(pairs.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(None);
    }
    let (limits, past_ms) = (ctx.server.config.hash_limits(), ctx.past_expiry_ms());
    let mut key = check_hash_key(ctx.keys.write(0))?;
    let done = set_fields(&mut key, pairs.iter(), FieldExpiry::Never, limits, past_ms);
    key.record_expired_fields(done.expired);
    key.changed_times(KeyspaceEvent::hash("hset"), pairs.len() as u64);
    Ok(Some(done.added))
}

fn hsetnx(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (limits, now_ms) = (ctx.server.config.hash_limits(), ctx.expiry_time_ms());
    let past_ms = ctx.past_expiry_ms();
    let pair = FieldValueArguments::new(ctx.args, 2, 1);
    let name = ctx.arg(2);
    let mut key = check_hash_key(ctx.keys.write(0))?;
    if key_as_hash(&key).is_some_and(|hash| hash.value(name, now_ms).is_some()) {
        ctx.reply.integer(0);
        return Ok(());
    }
    if key_as_hash(&key).is_some_and(HashRef::has_expiring_fields) {
        // On replicas the field may still exist, although it has expired.
        key.log_instead(&[b"HSET", ctx.args.argument(1), name, ctx.args.argument(3)]);
    }
    let done = set_fields(&mut key, pair.iter(), FieldExpiry::Never, limits, past_ms);
    key.record_expired_fields(done.expired);
    key.changed(KeyspaceEvent::hash("hset"));
    ctx.reply.integer(1);
    Ok(())
}

fn hget(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (name, now_ms) = (ctx.arg(2), ctx.expiry_time_ms());
    let hash = entry_as_hash(ctx.keys.read(0))?;
    let value = hash.and_then(|hash| hash.value(name, now_ms));
    reply_value_or_null(&mut ctx.reply, value);
    Ok(())
}

fn hmget(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = FieldNames::new(ctx.args, 2, ctx.argc() - 2);
    let now_ms = ctx.expiry_time_ms();
    let hash = entry_as_hash(ctx.keys.read(0))?;
    ctx.reply.array(names.len());
    for name in names.iter() {
        let value = hash.and_then(|hash| hash.value(name, now_ms));
        reply_value_or_null(&mut ctx.reply, value);
    }
    Ok(())
}

fn hexists(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (name, now_ms) = (ctx.arg(2), ctx.expiry_time_ms());
    let hash = entry_as_hash(ctx.keys.read(0))?;
    let exists = hash.is_some_and(|hash| hash.value(name, now_ms).is_some());
    ctx.reply.integer(i64::from(exists));
    Ok(())
}

fn hstrlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (name, now_ms) = (ctx.arg(2), ctx.expiry_time_ms());
    let hash = entry_as_hash(ctx.keys.read(0))?;
    let value = hash.and_then(|hash| hash.value(name, now_ms));
    ctx.reply.integer(value.map_or(0, Element::text_bytes) as i64);
    Ok(())
}

fn hlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let hash = entry_as_hash(ctx.keys.read(0))?;
    ctx.reply.integer(hash.map_or(0, HashRef::len) as i64);
    Ok(())
}

/// The parts of fields that are returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldParts {
    Names,
    Values,
    Both,
}

fn hgetall(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_fields(ctx, FieldParts::Both)
}

fn hkeys(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_fields(ctx, FieldParts::Names)
}

fn hvals(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_fields(ctx, FieldParts::Values)
}

fn reply_fields(ctx: &mut Context<'_, '_>, parts: FieldParts) -> CommandResult {
    let (in_place_ns, now_ms) = (ctx.max_worker_ns(), ctx.expiry_time_ms());
    let hash = entry_as_hash(ctx.keys.read(0))?;
    let reply = &mut ctx.reply;
    // With expired fields: counting the others takes a look at each.
    if hash.map_or(0, HashRef::len) as u64 * REPLY_FIELD_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let len = hash.map_or(0, |hash| hash.live_len(now_ms));
    match parts {
        FieldParts::Both => reply.map(len),
        FieldParts::Names | FieldParts::Values => reply.array(len),
    }
    let Some(hash) = hash else {
        return Ok(());
    };
    reply.out.reserve(hash.stored_bytes() + 2 * len * BULK_OVERHEAD_BYTES);
    match parts {
        FieldParts::Both => hash.for_each(now_ms, |field| reply_field_and_value(reply, field)),
        FieldParts::Names => hash.for_each(now_ms, |field| reply_element(reply, field.name)),
        FieldParts::Values => hash.for_each(now_ms, |field| reply_element(reply, field.value)),
    }
    Ok(())
}

#[inline]
fn reply_field_and_value(reply: &mut Reply<'_>, field: HashField<'_>) {
    reply_element(reply, field.name);
    reply_element(reply, field.value);
}

fn hdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = FieldNames::new(ctx.args, 2, ctx.argc() - 2);
    if ctx.detach_if_long(names.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    let now_ms = ctx.expiry_time_ms();
    let mut key = check_hash_key(ctx.keys.write(0))?;
    if let Some(live) = live_names_if_any_expired(&mut key, names.iter(), now_ms) {
        key.log_instead(&[&[b"HDEL", ctx.args.argument(1)], live.as_slice()].concat());
    }
    let removed = remove_fields(&mut key, names.iter(), now_ms);
    if removed > 0 {
        close_changed_key(key, KeyspaceEvent::hash("hdel"), removed as u64);
    }
    ctx.reply.integer(removed as i64);
    Ok(())
}

fn hincrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let sum = replace_number(ctx, "hincrby", |before, digits| {
        let before = match before {
            None => 0,
            Some(Element::Int(number)) => number,
            Some(Element::Bytes(bytes)) => {
                parse_i64(bytes).ok_or(CommandError::constant("ERR hash value is not an integer"))?
            }
        };
        let overflow = CommandError::constant("ERR increment or decrement would overflow");
        let sum = before.checked_add(by).ok_or(overflow)?;
        weft_resp::number::append_i64(sum, digits);
        Ok(sum)
    })?;
    ctx.reply.integer(sum);
    Ok(())
}

fn hincrbyfloat(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = LongDouble::parse(ctx.arg(3)).ok_or(CommandError::NOT_A_FLOAT)?;
    if by.is_nan() || by.is_infinite() {
        return Err(CommandError::constant("ERR value is NaN or Infinity"));
    }
    let text = replace_number(ctx, "hincrbyfloat", |before, digits| {
        let before = match before {
            None => LongDouble::from_i64(0),
            Some(Element::Int(number)) => LongDouble::from_i64(number),
            Some(Element::Bytes(bytes)) => {
                LongDouble::parse(bytes).ok_or(CommandError::constant("ERR hash value is not a float"))?
            }
        };
        let sum = before.add(by);
        if sum.is_nan() || sum.is_infinite() {
            return Err(CommandError::constant("ERR increment would produce NaN or Infinity"));
        }
        sum.append_human_readable(digits);
        Ok(digits.clone())
    })?;
    ctx.reply.bulk(&text);
    Ok(())
}

/// Replaces the value of a field by the result of `change`, which gets the previous value. The field's expiry stays.
fn replace_number<R>(
    ctx: &mut Context<'_, '_>,
    event: &'static str,
    change: impl FnOnce(Option<Element<'_>>, &mut Vec<u8>) -> Result<R, CommandError>,
) -> Result<R, CommandError> {
    let (limits, now_ms) = (ctx.server.config.hash_limits(), ctx.expiry_time_ms());
    let past_ms = ctx.past_expiry_ms();
    let name = ctx.arg(2);
    let mut key = check_hash_key(ctx.keys.write(0))?;
    let mut digits = Vec::new();
    let before = key_as_hash(&key).and_then(|hash| hash.value(name, now_ms));
    match change(before, &mut digits) {
        Ok(result) => {
            let expire_at_ms = match key_as_hash(&key) {
                Some(HashRef::Large(hash)) => hash.find(name, now_ms).and_then(|record| record.expire_at_ms),
                Some(HashRef::Packed(_)) | None => None,
            };
            if key.effects().is_logging() {
                propagate_number(&mut key, event, name, &digits, expire_at_ms);
            }
            let pair = std::iter::once((name, &digits[..]));
            let expiry = expire_at_ms.map_or(FieldExpiry::Never, FieldExpiry::At);
            let done = set_fields(&mut key, pair, expiry, limits, past_ms);
            key.record_expired_fields(done.expired);
            key.changed(KeyspaceEvent::hash(event));
            Ok(result)
        }
        Err(error) => Err(error),
    }
}

/// Propagates the new value of a number, with its expiry. Only integers in hashes without field expiry are the same on
/// every server.
#[cold]
fn propagate_number(key: &mut KeyWrite<'_>, event: &str, name: &[u8], value: &[u8], expire_at_ms: Option<u64>) {
    let hash = key_as_hash(key);
    if event == "hincrby" && !hash.is_some_and(HashRef::has_expiring_fields) {
        return;
    }
    let mut digits = itoa::Buffer::new();
    let key_name = key.name_for_plan();
    match expire_at_ms {
        None => key.log_instead(&[b"HSET", key_name, name, value]),
        Some(at_ms) => {
            let at = digits.format(at_ms).as_bytes();
            key.log_instead(&[b"HSETEX", key_name, b"PXAT", at, b"FIELDS", b"1", name, value]);
        }
    }
}

/// The arguments of HRANDFIELD: the number of fields, and `true` if values are returned.
struct RandomFieldOptions {
    count: i64,
    with_values: bool,
}

impl RandomFieldOptions {
    fn parse(ctx: &Context<'_, '_>) -> Result<Self, CommandError> {
        let count = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
        if count == i64::MIN {
            return Err(CommandError::constant(
                "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
            ));
        }
        let with_values = ctx.argc() == 4 && ctx.arg(3).eq_ignore_ascii_case(b"WITHVALUES");
        if ctx.argc() > 3 && !with_values {
            return Err(CommandError::SYNTAX);
        }
        // The reply has twice as many elements.
        if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
            return Err(CommandError::constant("ERR value is out of range"));
        }
        Ok(RandomFieldOptions { count, with_values })
    }

    fn begin_reply(&self, reply: &mut Reply<'_>, fields: usize) {
        let flat = self.with_values && reply.protocol == Protocol::Resp2;
        reply.array(if flat { fields * 2 } else { fields });
    }

    fn reply_field(&self, reply: &mut Reply<'_>, field: HashField<'_>) {
        if !self.with_values {
            reply_element(reply, field.name);
            return;
        }
        if reply.protocol == Protocol::Resp3 {
            reply.array(2);
        }
        reply_field_and_value(reply, field);
    }
}

fn hrandfield(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.expiry_time_ms();
    if ctx.argc() == 2 {
        return hrandfield_single(ctx, now_ms);
    }
    let draw = RandomFieldOptions::parse(ctx)?;
    let in_place_ns = ctx.max_worker_ns();
    let hash = entry_as_hash(ctx.keys.read(0))?;
    if hash.is_some_and(|hash| has_expired_fields(hash, now_ms) && hash.len() as u64 * DRAW_FIELD_NS > in_place_ns) {
        // The others have to be counted.
        ctx.detach();
        return Ok(());
    }
    let live = hash.map_or(0, |hash| hash.live_len(now_ms));
    let Some(hash) = hash.filter(|_| live > 0 && draw.count != 0) else {
        ctx.reply.array(0);
        return Ok(());
    };
    let wanted = usize::try_from(draw.count.unsigned_abs()).unwrap_or(usize::MAX);
    let shown = if draw.count < 0 { wanted } else { wanted.min(live) };
    if (shown as u64).saturating_mul(DRAW_FIELD_NS) > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let limit = ReplyLimit::for_client(ctx.server, ctx.client);
    let reply = &mut ctx.reply;
    draw.begin_reply(reply, shown);
    if draw.count < 0 {
        // Expired fields are filtered out at each examination.
        let (mut left, a_look) = (shown, live.max(ELEMENTS_PER_CHECK));
        while left > 0 && !limit.is_exceeded(reply.out.len()) {
            draw_repeated(hash, left.min(a_look), now_ms, |field| draw.reply_field(reply, field));
            left -= left.min(a_look);
        }
    } else {
        draw_distinct(hash, shown, live, now_ms, |field| draw.reply_field(reply, field));
    }
    Ok(())
}

/// Replies with the name of one field.
fn hrandfield_single(ctx: &mut Context<'_, '_>, now_ms: u64) -> CommandResult {
    let in_place_ns = ctx.max_worker_ns();
    let hash = entry_as_hash(ctx.keys.read(0))?;
    let mut name = None;
    if let Some(hash) = hash {
        if let HashRef::Large(large) = hash
            && let Some(record) = draw_unexpired(large, now_ms)
        {
            name = Some(Element::Bytes(record.key));
        } else if hash.len() as u64 * DRAW_FIELD_NS > in_place_ns {
            ctx.detach();
            return Ok(());
        } else {
            draw_repeated(hash, 1, now_ms, |field| name = Some(field.name));
        }
    }
    reply_value_or_null(&mut ctx.reply, name);
    Ok(())
}

/// The attempts to draw a field that has not expired before all of them are looked at.
const DRAW_ATTEMPTS: usize = 64;

/// Draws a field that has not expired. Returns `None` if most have.
fn draw_unexpired(hash: &Hash, now_ms: u64) -> Option<Record<'_>> {
    let mut drawn = (0..DRAW_ATTEMPTS).map_while(|_| hash.random_field(random_below));
    drawn.find(|record| record.expire_at_ms.is_none_or(|at_ms| at_ms >= now_ms))
}

fn has_expired_fields(hash: HashRef<'_>, now_ms: u64) -> bool {
    matches!(hash, HashRef::Large(hash) if hash.has_expired_fields(now_ms))
}

fn random_below(end: usize) -> usize {
    fastrand::usize(..end)
}

/// Returns a large hash in which no field has expired.
fn hash_without_expired(hash: HashRef<'_>, now_ms: u64) -> Option<&Hash> {
    match hash {
        HashRef::Large(hash) if !hash.has_expired_fields(now_ms) => Some(hash),
        _ => None,
    }
}

/// Chooses unexpired fields independently of each other; none if there are none.
fn draw_repeated<'a>(hash: HashRef<'a>, count: usize, now_ms: u64, mut visit: impl FnMut(HashField<'a>)) {
    if let Some(hash) = hash_without_expired(hash, now_ms) {
        for _ in 0..count {
            if let Some(record) = hash.random_field(random_below) {
                visit(HashField {
                    name: Element::Bytes(record.key),
                    value: Element::Bytes(record.value),
                });
            }
        }
        return;
    }
    let mut fields = Vec::new();
    hash.for_each(now_ms, |field| fields.push(field));
    if !fields.is_empty() {
        (0..count).for_each(|_| visit(fields[random_below(fields.len())]));
    }
}

/// Chooses `count` different fields of the `live` unexpired ones.
fn draw_distinct<'a>(hash: HashRef<'a>, count: usize, live: usize, now_ms: u64, mut visit: impl FnMut(HashField<'a>)) {
    if count < live / 4
        && let Some(hash) = hash_without_expired(hash, now_ms)
    {
        let records = hash.records();
        let mut drawn = HashSet::with_capacity(count);
        while drawn.len() < count
            && let Some(id) = records.random_record(random_below)
        {
            if drawn.insert(id) {
                let record = records.record(id);
                visit(HashField {
                    name: Element::Bytes(record.key),
                    value: Element::Bytes(record.value),
                });
            }
        }
        return;
    }
    // Each field is chosen with a probability such that exactly the right number is chosen in the end.
    let (mut wanted, mut left) = (count, live);
    hash.for_each(now_ms, |field| {
        if wanted > 0 && random_below(left.max(1)) < wanted {
            wanted -= 1;
            visit(field);
        }
        left = left.saturating_sub(1);
    });
}

fn hscan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cursor = parse_u64(ctx.arg(2)).ok_or(CommandError::constant("ERR invalid cursor"))?;
    let now_ms = ctx.expiry_time_ms();
    let Some(hash) = entry_as_hash(ctx.keys.read(0))? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let (fields, is_table) = (
        hash.len(),
        matches!(hash, HashRef::Large(hash) if hash.encoding_name() == "hashtable"),
    );
    let options = CollectionScanOptions::parse(ctx, 3, Some("NOVALUES"))?;
    let visited = if is_table { fields.min(options.count) } else { fields };
    if ctx.detach_if_long(visited as u64 * REPLY_FIELD_NS) {
        return Ok(());
    }
    let Some(hash) = entry_as_hash(ctx.keys.peek(0))? else {
        return Ok(());
    };
    let mut bytes = Vec::new();
    let mut found = HashScanReply {
        reply: Reply::new(&mut bytes, ctx.reply.protocol),
        options,
        elements: 0,
    };
    let next = match hash {
        HashRef::Large(hash) if is_table => hash.scan(cursor, options.count, now_ms, &mut |record| {
            found.add(HashField {
                name: Element::Bytes(record.key),
                value: Element::Bytes(record.value),
            });
        }),
        compact => {
            compact.for_each(now_ms, |field| found.add(field));
            0
        }
    };
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    ctx.reply.array(found.elements);
    ctx.reply.raw(found.reply.out);
    Ok(())
}

/// The result of HSCAN.
struct HashScanReply<'a> {
    reply: Reply<'a>,
    options: CollectionScanOptions<'a>,
    elements: usize,
}

impl HashScanReply<'_> {
    fn add(&mut self, field: HashField<'_>) {
        if !self.options.matches(field.name.text(&mut [0; DECIMAL_MAX_BYTES])) {
            return;
        }
        reply_element(&mut self.reply, field.name);
        self.elements += 1;
        if !self.options.names_only {
            reply_element(&mut self.reply, field.value);
            self.elements += 1;
        }
    }
}
