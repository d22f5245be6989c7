//! The string commands.

use std::ops::{Deref, Range};

use weft_resp::LongDouble;
use weft_resp::number::parse_i64;
use weft_table::{Blob, EntryRef, NewValue, ValueRef};
use weft_values::Value;

use super::context::{Binding, CommandResult, Context, SPLICE_BYTES, bulk_of, leased};
use super::error::CommandError;
use super::expire::passed_ms;
use super::expiry_argument::{ExpiryUnit, absolute_ms};
use crate::config::id;
use crate::keyspace::access::{Expiry, KeyWrite, is_expired};
use crate::keyspace::event::Event;
use crate::keyspace::stored::stored;

/// The string commands and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("append", leased(append)),
    ("decr", leased(decr)),
    ("decrby", leased(decrby)),
    ("delifeq", leased(delifeq)),
    ("get", leased(get)),
    ("getdel", leased(getdel)),
    ("getex", leased(getex)),
    ("getrange", leased(getrange)),
    ("getset", leased(getset)),
    ("incr", leased(incr)),
    ("incrby", leased(incrby)),
    ("incrbyfloat", leased(incrbyfloat)),
    ("mget", leased(mget)),
    ("mset", leased(mset)),
    ("msetex", leased(msetex)),
    ("msetnx", leased(msetnx)),
    ("psetex", leased(psetex)),
    ("set", leased(set)),
    ("setex", leased(setex)),
    ("setnx", leased(setnx)),
    ("setrange", leased(setrange)),
    ("strlen", leased(strlen)),
    ("substr", leased(getrange)),
];

/// Runs `view` on the string's bytes; integers are written out first.
///
/// # Errors
/// `WRONGTYPE` when the value is not a string.
pub fn with_bytes<R>(value: ValueRef<'_, Value>, view: impl FnOnce(&[u8]) -> R) -> Result<R, CommandError> {
    match value {
        ValueRef::Bytes(bytes) => Ok(view(bytes)),
        ValueRef::Blob(blob) => Ok(view(blob)),
        ValueRef::Int(number) => {
            let mut digits = [0u8; 20];
            Ok(view(weft_resp::number::format_i64(number, &mut digits).as_bytes()))
        }
        ValueRef::Packed(_) | ValueRef::Object(_) => Err(CommandError::WRONG_TYPE),
    }
}

/// A string's bytes apart from its entry: short ones copied, long ones shared.
pub enum HeldString {
    /// A copy.
    Copied(Vec<u8>),
    /// Shared with the entry.
    Shared(Blob),
}

impl HeldString {
    /// Holds on to a string.
    ///
    /// # Errors
    /// `WRONGTYPE` when the value is not a string.
    pub fn of(value: ValueRef<'_, Value>) -> Result<Self, CommandError> {
        match value {
            ValueRef::Blob(blob) => Ok(HeldString::Shared(blob.clone())),
            other => with_bytes(other, |bytes| HeldString::Copied(bytes.to_vec())),
        }
    }
}

impl Default for HeldString {
    fn default() -> Self {
        HeldString::Copied(Vec::new())
    }
}

impl Deref for HeldString {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HeldString::Copied(bytes) => bytes,
            HeldString::Shared(blob) => blob,
        }
    }
}

/// Bytes that are copied or cleared in a nanosecond, fresh memory included.
const GROWTH_BYTES_PER_NS: u64 = 2;

/// A string that is about to be changed in place.
pub struct Before {
    /// Its length in bytes; 0 when the key is missing.
    pub length: usize,
    /// An estimate of what the change takes, ns.
    pub cost_ns: u64,
}

/// Looks at a string before it is changed up to byte `end`, which may depend on its length.
///
/// # Errors
/// `WRONGTYPE` when the value is not a string.
#[inline]
pub fn before_change(
    entry: Option<EntryRef<'_, Value>>,
    end: impl FnOnce(usize) -> usize,
) -> Result<Before, CommandError> {
    let Some(value) = entry.map(|entry| entry.value()) else {
        return Ok(Before {
            length: 0,
            cost_ns: end(0) as u64 / GROWTH_BYTES_PER_NS,
        });
    };
    let length = string_len(value)?;
    let end = end(length);
    let moved = match value {
        ValueRef::Blob(blob) if blob.is_unique() && end <= blob.capacity() => end.saturating_sub(length),
        ValueRef::Blob(_) => end.max(length),
        _ => end,
    };
    Ok(Before {
        length,
        cost_ns: moved as u64 / GROWTH_BYTES_PER_NS,
    })
}

/// Length of a string value in bytes.
fn string_len(value: ValueRef<'_, Value>) -> Result<usize, CommandError> {
    with_bytes(value, <[u8]>::len)
}

fn get(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply_with_string(0)
}

fn getset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let value = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    key.count_lookup();
    let before = match key.entry() {
        Some(entry) => bulk_of(&mut ctx.reply, &mut ctx.shared, entry),
        None => {
            ctx.reply.null();
            Ok(())
        }
    };
    if before.is_err() {
        key.unchanged();
        return before;
    }
    key.set(stored(value), Expiry::Never);
    key.log_instead(&[b"SET", ctx.args.at(1), value]);
    key.changed(Event::string("set"));
    Ok(())
}

fn getdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mut key = ctx.keys.write(0);
    key.count_lookup();
    let Some(entry) = key.entry() else {
        key.unchanged();
        ctx.reply.null();
        return Ok(());
    };
    if let Err(error) = bulk_of(&mut ctx.reply, &mut ctx.shared, entry) {
        key.unchanged();
        return Err(error);
    }
    key.delete();
    key.log_instead(&[b"DEL", ctx.args.at(1)]);
    key.changed(Event::generic("del"));
    Ok(())
}

/// Which condition SET and MSETEX put on the key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition<'a> {
    None,
    Missing,
    Present,
    Equal(&'a [u8]),
}

/// Options that SET, GETEX and MSETEX share.
struct SetOptions<'a> {
    condition: Condition<'a>,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    expiry: Option<(ExpiryUnit, &'a [u8])>,
}

/// Which command's options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Set,
    GetEx,
    MsetEx,
}

fn parse_options<'a>(ctx: &Context<'a, '_>, first: usize, grammar: Grammar) -> Result<SetOptions<'a>, CommandError> {
    let mut options = SetOptions {
        condition: Condition::None,
        get: false,
        keep_ttl: false,
        persist: false,
        expiry: None,
    };
    let writes = grammar != Grammar::GetEx;
    let mut index = first;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let free = options.condition == Condition::None;
        let timeless = !options.keep_ttl && !options.persist && options.expiry.is_none();
        // A time may be given again, in the same unit; the last one counts.
        let same_unit = |unit| options.expiry.is_some_and(|(before, _)| before == unit);
        if is("NX") && writes && (free || options.condition == Condition::Missing) {
            options.condition = Condition::Missing;
        } else if is("XX") && writes && (free || options.condition == Condition::Present) {
            options.condition = Condition::Present;
        } else if is("IFEQ") && grammar == Grammar::Set && free && next.is_some() {
            options.condition = Condition::Equal(next.unwrap_or_default());
            index += 1;
        } else if is("GET") && grammar == Grammar::Set {
            options.get = true;
        } else if is("KEEPTTL") && writes && (timeless || options.keep_ttl) {
            options.keep_ttl = true;
        } else if is("PERSIST") && !writes && (timeless || options.persist) {
            options.persist = true;
        } else if let (Some(unit), Some(amount)) = (ExpiryUnit::of_option(option), next)
            && (timeless || same_unit(unit))
        {
            options.expiry = Some((unit, amount));
            index += 1;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    Ok(options)
}

fn expiry_of(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<Expiry, CommandError> {
    match options.expiry {
        Some((unit, amount)) => Ok(Expiry::At(absolute_ms(
            amount,
            unit,
            ctx.now_ms,
            ctx.command.full_name,
        )?)),
        None if options.keep_ttl => Ok(Expiry::Keep),
        None => Ok(Expiry::Never),
    }
}

fn set(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc() == 3 {
        let value = ctx.arg(2);
        let mut key = ctx.keys.write(0);
        key.set(stored(value), Expiry::Never);
        key.changed(Event::string("set"));
        ctx.reply.ok();
        return Ok(());
    }
    let options = parse_options(ctx, 3, Grammar::Set)?;
    let expiry = expiry_of(ctx, &options)?;
    set_with(ctx, &options, expiry)
}

fn set_with(ctx: &mut Context<'_, '_>, options: &SetOptions<'_>, expiry: Expiry) -> CommandResult {
    let value = ctx.arg(2);
    let passed_ms = passed_ms(ctx, expiry);
    let mut key = ctx.keys.write(0);
    let mut answered = false;
    if options.get {
        key.count_lookup();
        let before = match key.entry() {
            Some(entry) => bulk_of(&mut ctx.reply, &mut ctx.shared, entry),
            None => {
                ctx.reply.null();
                Ok(())
            }
        };
        if let Err(error) = before {
            key.unchanged();
            return Err(error);
        }
        answered = true;
    }
    let met = match options.condition {
        Condition::None => Ok(true),
        Condition::Missing => Ok(!key.exists()),
        Condition::Present => Ok(key.exists()),
        Condition::Equal(wanted) => match key.entry() {
            Some(entry) => with_bytes(entry.value(), |bytes| bytes == wanted),
            None => Ok(false),
        },
    };
    match met {
        Err(error) => {
            key.unchanged();
            return Err(error);
        }
        Ok(false) => {
            key.unchanged();
            if !answered {
                ctx.reply.null();
            }
            return Ok(());
        }
        Ok(true) => {}
    }
    store(key, value, expiry, passed_ms);
    if options.get && options.expiry.is_none() && ctx.keys.effects.logs() {
        log_without_get(ctx);
    }
    if !answered {
        ctx.reply.ok();
    }
    Ok(())
}

/// Has the log repeat SET without GET, whose answer nobody wants.
#[cold]
fn log_without_get(ctx: &mut Context<'_, '_>) {
    let mut words: Vec<&[u8]> = Vec::with_capacity(ctx.argc());
    for (index, word) in ctx.args.iter().enumerate() {
        let is_compared = index > 3 && ctx.arg(index - 1).eq_ignore_ascii_case(b"IFEQ");
        if index < 3 || is_compared || !word.eq_ignore_ascii_case(b"GET") {
            words.push(word);
        }
    }
    ctx.keys.effects.log_instead(&words);
}

/// Has the log repeat that a key was set with an expiry.
#[cold]
fn log_set_until(key: &mut KeyWrite<'_>, name: &[u8], value: &[u8], at_ms: u64) {
    let mut digits = itoa::Buffer::new();
    key.log_instead(&[b"SET", name, value, b"PXAT", digits.format(at_ms).as_bytes()]);
}

/// Sets a key to what a client sent; an expiry that has passed already, which is one before `passed_ms`, deletes it instead.
fn store(mut key: KeyWrite<'_>, value: &[u8], expiry: Expiry, passed_ms: u64) {
    if let Expiry::At(at) = expiry
        && is_expired(Some(at), passed_ms)
    {
        if key.delete_passed() {
            let name = key.named();
            key.effects().log_passed(name);
            key.changed(Event::EXPIRED);
        } else {
            key.unchanged();
        }
        return;
    }
    if let Expiry::At(at) = expiry
        && key.effects().logs()
    {
        let name = key.named();
        log_set_until(&mut key, name, value, at);
    }
    put(key, value, expiry);
}

/// Sets a key to what a client sent.
fn put(mut key: KeyWrite<'_>, value: &[u8], expiry: Expiry) {
    key.set(stored(value), expiry);
    if let Expiry::At(_) = expiry {
        key.note(Event::string("set"));
        key.changed(Event::generic("expire"));
    } else {
        key.changed(Event::string("set"));
    }
}

fn setnx(ctx: &mut Context<'_, '_>) -> CommandResult {
    let value = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    if key.exists() {
        key.unchanged();
        ctx.reply.integer(0);
    } else {
        key.set(stored(value), Expiry::Never);
        key.changed(Event::string("set"));
        ctx.reply.integer(1);
    }
    Ok(())
}

fn setex(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiring(ctx, ExpiryUnit::Seconds)
}

fn psetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiring(ctx, ExpiryUnit::Milliseconds)
}

fn set_expiring(ctx: &mut Context<'_, '_>, unit: ExpiryUnit) -> CommandResult {
    let at = absolute_ms(ctx.arg(2), unit, ctx.now_ms, ctx.command.full_name)?;
    let value = ctx.arg(3);
    let passed_ms = passed_ms(ctx, Expiry::At(at));
    store(ctx.keys.write(0), value, Expiry::At(at), passed_ms);
    ctx.reply.ok();
    Ok(())
}

fn getex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = parse_options(ctx, 2, Grammar::GetEx)?;
    let expiry = expiry_of(ctx, &options)?;
    let passed_ms = passed_ms(ctx, expiry);
    let mut key = ctx.keys.write(0);
    key.count_lookup();
    let Some(entry) = key.entry() else {
        key.unchanged();
        ctx.reply.null();
        return Ok(());
    };
    let has_expiry = entry.expire_at_ms().is_some();
    if let Err(error) = bulk_of(&mut ctx.reply, &mut ctx.shared, entry) {
        key.unchanged();
        return Err(error);
    }
    match expiry {
        Expiry::At(at) if is_expired(Some(at), passed_ms) => {
            key.delete_passed();
            key.effects().log_passed(ctx.args.at(1));
            key.changed(Event::EXPIRED);
        }
        Expiry::At(at) => {
            key.set_expiry(Some(at));
            if key.effects().logs() {
                let mut digits = itoa::Buffer::new();
                key.log_instead(&[b"PEXPIREAT", ctx.args.at(1), digits.format(at).as_bytes()]);
            }
            key.changed(Event::generic("expire"));
        }
        Expiry::Never if options.persist && has_expiry => {
            key.set_expiry(None);
            key.log_instead(&[b"PERSIST", ctx.args.at(1)]);
            key.changed(Event::generic("persist"));
        }
        Expiry::Never | Expiry::Keep => key.unchanged(),
    }
    Ok(())
}

fn delifeq(ctx: &mut Context<'_, '_>) -> CommandResult {
    let wanted = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    let equal = match key.entry() {
        Some(entry) => with_bytes(entry.value(), |bytes| bytes == wanted),
        None => Ok(false),
    };
    match equal {
        Ok(true) => {
            key.delete();
            key.log_instead(&[b"DEL", ctx.args.at(1)]);
            key.changed(Event::generic("del"));
            ctx.reply.integer(1);
        }
        Ok(false) => {
            key.unchanged();
            ctx.reply.integer(0);
        }
        Err(error) => {
            key.unchanged();
            return Err(error);
        }
    }
    Ok(())
}

fn strlen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let length = match ctx.keys.read(0) {
        Some(entry) => string_len(entry.value())?,
        None => 0,
    };
    ctx.reply.integer(length as i64);
    Ok(())
}

fn getrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let start = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let end = parse_i64(ctx.arg(3)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let reply = &mut ctx.reply;
    let Some(entry) = ctx.keys.read(0) else {
        reply.bulk(b"");
        return Ok(());
    };
    with_bytes(entry.value(), |bytes| {
        match (clamp_range(start, end, bytes.len()), entry.value()) {
            (None, _) => reply.bulk(b""),
            (Some((from, to)), ValueRef::Blob(blob)) if to - from >= SPLICE_BYTES => {
                let part = BlobPart(blob.clone(), from..to + 1);
                reply.bulk_header(part.1.len());
                ctx.shared.push(reply.out.len(), Box::new(part));
                reply.crlf();
            }
            (Some((from, to)), _) => reply.bulk(&bytes[from..=to]),
        }
    })
}

/// A part of a string that is sent from where it lies.
struct BlobPart(Blob, Range<usize>);

impl AsRef<[u8]> for BlobPart {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

/// Resolves a range whose ends may be negative (counted from the end); `None` when it is empty.
pub fn clamp_range(start: i64, end: i64, length: usize) -> Option<(usize, usize)> {
    let length = length as i64;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let resolve = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    let (start, end) = (resolve(start), resolve(end).min(length - 1));
    (length > 0 && start <= end).then_some((start as usize, end as usize))
}

fn append(ctx: &mut Context<'_, '_>) -> CommandResult {
    let added = ctx.arg(2);
    let limit = ctx.server.config.integer(id::PROTO_MAX_BULK_LEN).max(0) as usize;
    let in_place_ns = ctx.in_place_ns();
    let mut key = ctx.keys.write(0);
    let before = match before_change(key.entry(), |length| length.saturating_add(added.len())) {
        Ok(before) if before.length == 0 || before.length.saturating_add(added.len()) <= limit => before,
        other => {
            key.unchanged();
            return Err(other.err().unwrap_or(CommandError::STRING_TOO_LONG));
        }
    };
    if before.cost_ns > in_place_ns {
        key.unchanged();
        ctx.leave();
        return Ok(());
    }
    match key.entry_mut() {
        Some(mut entry) => {
            entry.append(added);
        }
        None => key.set(stored(added), Expiry::Never),
    }
    key.changed(Event::string("append"));
    ctx.reply.integer((before.length + added.len()) as i64);
    Ok(())
}

/// New strings of more bytes are made without room to grow.
const EXACT_BYTES: u64 = 1024;

fn setrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let offset = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let Ok(offset) = usize::try_from(offset) else {
        return Err(CommandError::constant("ERR offset is out of range"));
    };
    let value = ctx.arg(3);
    let limit = ctx.server.config.integer(id::PROTO_MAX_BULK_LEN).max(0) as u64;
    let in_place_ns = ctx.in_place_ns();
    let mut key = ctx.keys.write(0);
    let end = offset as u64 + value.len() as u64;
    let before = match before_change(key.entry(), |_| end as usize) {
        Ok(before) => before,
        Err(error) => {
            key.unchanged();
            return Err(error);
        }
    };
    if value.is_empty() {
        key.unchanged();
        ctx.reply.integer(before.length as i64);
        return Ok(());
    }
    if end > limit {
        key.unchanged();
        return Err(CommandError::STRING_TOO_LONG);
    }
    if before.cost_ns > in_place_ns {
        key.unchanged();
        ctx.leave();
        return Ok(());
    }
    if !key.exists() {
        // A large one is made as long as it is to be: growing would leave room for more.
        let length = if end > EXACT_BYTES { end as usize } else { 0 };
        key.set(NewValue::Bytes(&vec![0; length]), Expiry::Never);
    }
    let mut total = before.length;
    if let Some(mut entry) = key.entry_mut() {
        let bytes = entry.bytes_mut(end as usize);
        bytes[offset..end as usize].copy_from_slice(value);
        total = bytes.len();
    }
    key.changed(Event::string("setrange"));
    ctx.reply.integer(total as i64);
    Ok(())
}

fn incr(ctx: &mut Context<'_, '_>) -> CommandResult {
    add_integer(ctx, 1)
}

fn decr(ctx: &mut Context<'_, '_>) -> CommandResult {
    add_integer(ctx, -1)
}

fn incrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    add_integer(ctx, by)
}

fn decrby(ctx: &mut Context<'_, '_>) -> CommandResult {
    let by = parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let by = by
        .checked_neg()
        .ok_or(CommandError::constant("ERR decrement would overflow"))?;
    add_integer(ctx, by)
}

fn add_integer(ctx: &mut Context<'_, '_>, by: i64) -> CommandResult {
    let mut key = ctx.keys.write(0);
    let before = match key.entry().map(|entry| entry.value()) {
        None => Ok(0),
        Some(ValueRef::Int(number)) => Ok(number),
        Some(value) => with_bytes(value, parse_i64).and_then(|number| number.ok_or(CommandError::NOT_AN_INTEGER)),
    };
    let after = before.and_then(|before| {
        before
            .checked_add(by)
            .ok_or(CommandError::constant("ERR increment or decrement would overflow"))
    });
    match after {
        Ok(after) => {
            key.set(NewValue::Int(after), Expiry::Keep);
            key.changed(Event::string("incrby"));
            ctx.reply.integer(after);
            Ok(())
        }
        Err(error) => {
            key.unchanged();
            Err(error)
        }
    }
}

fn incrbyfloat(ctx: &mut Context<'_, '_>) -> CommandResult {
    let argument = ctx.arg(2);
    let mut key = ctx.keys.write(0);
    let before = match key.entry() {
        None => Ok(LongDouble::from_i64(0)),
        Some(entry) => {
            with_bytes(entry.value(), LongDouble::parse).and_then(|number| number.ok_or(CommandError::NOT_A_FLOAT))
        }
    };
    let sum = before.and_then(|before| {
        let by = LongDouble::parse(argument).ok_or(CommandError::NOT_A_FLOAT)?;
        let sum = before.add(by);
        if sum.is_nan() || sum.is_infinite() {
            return Err(CommandError::constant("ERR increment would produce NaN or Infinity"));
        }
        Ok(sum)
    });
    match sum {
        Ok(sum) => {
            let mut digits = Vec::new();
            sum.format_human(&mut digits);
            key.set(NewValue::Bytes(&digits), Expiry::Keep);
            key.log_instead(&[b"SET", ctx.args.at(1), &digits, b"KEEPTTL"]);
            key.changed(Event::string("incrbyfloat"));
            ctx.reply.bulk(&digits);
            Ok(())
        }
        Err(error) => {
            key.unchanged();
            Err(error)
        }
    }
}

fn mget(ctx: &mut Context<'_, '_>) -> CommandResult {
    ctx.reply.array(ctx.keys.len());
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        match ctx.keys.read(index) {
            None => ctx.reply.null(),
            Some(entry) => {
                if bulk_of(&mut ctx.reply, &mut ctx.shared, entry).is_err() {
                    ctx.reply.null();
                }
            }
        }
    }
    Ok(())
}

fn mset(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc().is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'mset' command",
        ));
    }
    set_all(ctx);
    ctx.reply.ok();
    Ok(())
}

fn set_all(ctx: &mut Context<'_, '_>) {
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let value = ctx.arg(index * 2 + 2);
        let mut key = ctx.keys.write(index);
        key.set(stored(value), Expiry::Never);
        key.changed(Event::string("set"));
    }
}

fn msetnx(ctx: &mut Context<'_, '_>) -> CommandResult {
    if ctx.argc().is_multiple_of(2) {
        return Err(CommandError::constant(
            "ERR wrong number of arguments for 'msetnx' command",
        ));
    }
    if any_key(ctx, true) {
        ctx.reply.integer(0);
        return Ok(());
    }
    set_all(ctx);
    ctx.reply.integer(1);
    Ok(())
}

/// Whether some key exists (`wanted`) or is missing (`!wanted`).
fn any_key(ctx: &mut Context<'_, '_>, wanted: bool) -> bool {
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let key = ctx.keys.write(index);
        let exists = key.exists();
        key.unchanged();
        if exists == wanted {
            return true;
        }
    }
    false
}

fn msetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let pairs = parse_i64(ctx.arg(1))
        .filter(|count| (1..=i64::from(i32::MAX)).contains(count))
        .ok_or(CommandError::constant("ERR invalid numkeys value or out of range"))? as usize;
    let first_option = 2 + pairs * 2;
    if first_option > ctx.argc() {
        return Err(CommandError::SYNTAX);
    }
    let options = parse_options(ctx, first_option, Grammar::MsetEx)?;
    let expiry = expiry_of(ctx, &options)?;
    let refused = match options.condition {
        Condition::Missing => any_key(ctx, true),
        Condition::Present => any_key(ctx, false),
        Condition::None | Condition::Equal(_) => false,
    };
    if refused {
        ctx.reply.integer(0);
        return Ok(());
    }
    for index in 0..pairs {
        ctx.keys.prefetch_ahead(index);
        let value = ctx.arg(3 + index * 2);
        // Unlike SET's, a time that has passed does not delete the key at once: it expires like others.
        put(ctx.keys.write(index), value, expiry);
    }
    if let Expiry::At(at) = expiry
        && ctx.keys.effects.logs()
    {
        log_msetex(ctx, first_option, at);
    }
    ctx.reply.integer(1);
    Ok(())
}

/// Has the log repeat MSETEX with the time that its last expiry means.
#[cold]
fn log_msetex(ctx: &mut Context<'_, '_>, first_option: usize, at_ms: u64) {
    let mut digits = itoa::Buffer::new();
    let mut words: Vec<&[u8]> = ctx.args.iter().collect();
    let is_time = |index: &usize| ExpiryUnit::of_option(ctx.arg(*index)).is_some();
    let times: Vec<usize> = (first_option..ctx.argc().saturating_sub(1)).filter(is_time).collect();
    if let Some(last) = times.last() {
        words[*last] = b"PXAT";
        words[*last + 1] = digits.format(at_ms).as_bytes();
        // Earlier ones are of the same unit, which is another one now.
        for earlier in times.iter().rev().skip(1) {
            words.drain(*earlier..*earlier + 2);
        }
    }
    ctx.keys.effects.log_instead(&words);
}
