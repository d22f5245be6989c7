//! The bitmap commands: strings as arrays of bits and as arrays of integers of any width.

use weft_resp::number::parse_i64;
use weft_table::{Blob, NewValue};
use weft_values::bitfield::{IntegerType, OverflowBehavior};
use weft_values::bits::{self, BitOperation};

use super::context::{Binding, CommandResult, Context, MIN_SHARED_REPLY_BYTES, leased};
use super::error::CommandError;
use crate::commands::string::bytes::{OwnedString, inspect_before_change, with_bytes};
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The bitmap commands and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("bitcount", leased(bitcount)),
    ("bitfield", leased(bitfield)),
    ("bitfield_ro", leased(bitfield_ro)),
    ("bitop", leased(bitop)),
    ("bitpos", leased(bitpos)),
    ("getbit", leased(getbit)),
    ("setbit", leased(setbit)),
];

const INVALID_OFFSET: CommandError = CommandError::constant("ERR bit offset is not an integer or out of range");
const INVALID_BIT: CommandError = CommandError::constant("ERR bit is not an integer or out of range");

/// The number of bytes that BITCOUNT, BITPOS and BITOP (over all its sources) read from memory in a nanosecond.
const BYTES_PER_NS: u64 = 5;

// ---- single bits --------------------------------------------------------------------------------------
/// Parses the bit offset of an argument, within the limit of `proto-max-bulk-len`. If a width is given, `#n` means `n`
/// times `width` bits.
fn parse_bit_offset(ctx: &Context<'_, '_>, argument: &[u8], width: Option<u32>) -> Result<u64, CommandError> {
    let (digits, unit) = match (argument.strip_prefix(b"#"), width) {
        (Some(digits), Some(width)) => (digits, i64::from(width)),
        _ => (argument, 1),
    };
    parse_i64(digits)
        .and_then(|number| u64::try_from(number.wrapping_mul(unit)).ok())
        .filter(|offset| offset >> 3 < ctx.max_string_bytes())
        .ok_or(INVALID_OFFSET)
}

/// Passes the string's bytes, extended to at least `length`, to `change`. Creates the key if it is missing.
///
/// The key must be missing or hold a string.
fn change_string_bytes<R>(key: &mut KeyWrite<'_>, length: usize, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
    /// The length in bytes above which a new string is allocated with its exact length. Growing it would reserve more.
    const MAX_EXACT_ALLOCATION: usize = 1024;
    if !key.exists() {
        let length = if length > MAX_EXACT_ALLOCATION { length } else { 0 };
        key.set(NewValue::Bytes(&vec![0; length]), ExpiryUpdate::Remove);
    }
    key.entry_mut().map(|mut entry| change(entry.bytes_mut(length)))
}

fn setbit(ctx: &mut Context<'_, '_>) -> CommandResult {
    let offset = parse_bit_offset(ctx, ctx.arg(2), None)?;
    let on = match parse_i64(ctx.arg(3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(INVALID_BIT),
    };
    let end = (offset >> 3) as usize + 1;
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let before = inspect_before_change(key.entry(), |_| end)?;
    if before.cost_ns > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    }
    let was_on = change_string_bytes(&mut key, end, |bytes| {
        let was_on = bits::bit_at(bytes, offset);
        if let Some(byte) = bytes.get_mut(end - 1)
            && was_on != on
        {
            *byte ^= bits::bit_mask(offset);
        }
        was_on
    })
    .unwrap_or(false);
    if was_on != on || before.length < end {
        key.changed(KeyspaceEvent::string("setbit"));
    }
    ctx.reply.integer(i64::from(was_on));
    Ok(())
}

fn getbit(ctx: &mut Context<'_, '_>) -> CommandResult {
    let offset = parse_bit_offset(ctx, ctx.arg(2), None)?;
    let on = match ctx.keys.read(0) {
        Some(entry) => with_bytes(entry.value(), |bytes| bits::bit_at(bytes, offset))?,
        None => false,
    };
    ctx.reply.integer(i64::from(on));
    Ok(())
}

// ---- ranges -------------------------------------------------------------------------------------------
/// The range argument of BITCOUNT and BITPOS.
struct BitCountRange {
    start: i64,
    /// The last position; `None` stands for the end of the string.
    end: Option<i64>,
    is_bit_range: bool,
}

impl BitCountRange {
    /// Parses `[start [end [BYTE | BIT]]]`, which begins at argument `first`.
    fn parse(ctx: &Context<'_, '_>, first: usize) -> Result<Self, CommandError> {
        let given = ctx.argc() - first;
        if given > 3 {
            return Err(CommandError::SYNTAX);
        }
        let number = |index: usize| parse_i64(ctx.arg(index)).ok_or(CommandError::NOT_AN_INTEGER);
        let start = if given > 0 { number(first)? } else { 0 };
        let in_bits = match ctx.arg(first + 2) {
            _ if given < 3 => false,
            unit if unit.eq_ignore_ascii_case(b"bit") => true,
            unit if unit.eq_ignore_ascii_case(b"byte") => false,
            _ => return Err(CommandError::SYNTAX),
        };
        let end = if given > 1 { Some(number(first + 1)?) } else { None };
        Ok(BitCountRange {
            start,
            end,
            is_bit_range: in_bits,
        })
    }

    /// Returns `true` if both ends count from the end of the string and are in the wrong order.
    fn is_reversed(&self) -> bool {
        self.start < 0 && self.end.is_some_and(|end| end < 0 && self.start > end)
    }

    /// Returns the first and the last bit of the range in a string of `length` bytes; `None` if the range is empty.
    fn resolve(&self, length: usize) -> Option<(u64, u64)> {
        let units = if self.is_bit_range {
            length as i64 * 8
        } else {
            length as i64
        };
        let from_start = |index: i64| {
            if index < 0 {
                units.saturating_add(index).max(0)
            } else {
                index
            }
        };
        let start = from_start(self.start);
        let end = self.end.map_or(units - 1, from_start).min(units - 1);
        if start > end {
            return None;
        }
        let (start, end) = (start as u64, end as u64);
        Some(if self.is_bit_range {
            (start, end)
        } else {
            (start * 8, end * 8 + 7)
        })
    }
}

/// The result of scanning a range.
enum BitRangeScan<R> {
    /// The key is missing.
    Missing,
    /// The range is empty.
    Empty,
    /// The result of the scan.
    Found(R),
    /// The scan takes too long: it moves to a background thread.
    MovedToBackground,
}

/// Calls `look` with the bytes of the first key and the first and last bit of the range.
fn scan_range<R>(
    ctx: &mut Context<'_, '_>,
    range: &BitCountRange,
    scan: impl FnOnce(&[u8], u64, u64) -> R,
) -> Result<BitRangeScan<R>, CommandError> {
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        return Ok(BitRangeScan::Missing);
    };
    let looked = with_bytes(entry.value(), |bytes| {
        let Some((first, last)) = range.resolve(bytes.len()) else {
            return BitRangeScan::Empty;
        };
        let cost_ns = (last - first) / 8 / BYTES_PER_NS;
        if cost_ns > in_place_ns {
            return BitRangeScan::MovedToBackground;
        }
        BitRangeScan::Found(scan(bytes, first, last))
    })?;
    if let BitRangeScan::MovedToBackground = looked {
        ctx.detach();
    }
    Ok(looked)
}

fn bitcount(ctx: &mut Context<'_, '_>) -> CommandResult {
    let range = BitCountRange::parse(ctx, 2)?;
    let count = match scan_range(ctx, &range, bits::count_ones_between)? {
        BitRangeScan::MovedToBackground => return Ok(()),
        BitRangeScan::Found(count) if !range.is_reversed() => count,
        BitRangeScan::Found(_) | BitRangeScan::Missing | BitRangeScan::Empty => 0,
    };
    ctx.reply.integer(count as i64);
    Ok(())
}

fn bitpos(ctx: &mut Context<'_, '_>) -> CommandResult {
    let bit = match parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::constant("ERR The bit argument must be 1 or 0.")),
    };
    let range = BitCountRange::parse(ctx, 3)?;
    // Unless an end is given, zeros follow the string without end.
    let zeros_follow = range.end.is_none();
    let look = |bytes: &[u8], first, last| match bits::find_bit_between(bytes, bit, first, last) {
        Some(at) => at as i64,
        None if !bit && zeros_follow => bytes.len() as i64 * 8,
        None => -1,
    };
    let at = match scan_range(ctx, &range, look)? {
        BitRangeScan::MovedToBackground => return Ok(()),
        BitRangeScan::Found(at) => at,
        BitRangeScan::Missing if !bit => 0,
        BitRangeScan::Missing | BitRangeScan::Empty => -1,
    };
    ctx.reply.integer(at);
    Ok(())
}

// ---- whole strings ----------------------------------------------------------------------------------------

fn bitop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let operations = [
        ("AND", BitOperation::And),
        ("OR", BitOperation::Or),
        ("XOR", BitOperation::Xor),
        ("NOT", BitOperation::Not),
    ];
    let (_, operation) = operations
        .into_iter()
        .find(|(name, _)| ctx.arg(1).eq_ignore_ascii_case(name.as_bytes()))
        .ok_or(CommandError::SYNTAX)?;
    if operation == BitOperation::Not && ctx.argc() != 4 {
        return Err(CommandError::constant(
            "ERR BITOP NOT must be called with a single source key.",
        ));
    }
    // The destination is the first key.
    let mut sources: Vec<OwnedString> = Vec::with_capacity(ctx.keys.len());
    for index in 1..ctx.keys.len() {
        sources.push(match ctx.keys.read(index) {
            Some(entry) => OwnedString::from_value(entry.value())?,
            None => OwnedString::default(),
        });
    }
    let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
    let total: u64 = sources.iter().map(|source| source.len() as u64).sum();
    if ctx.detach_if_long(total / BYTES_PER_NS) {
        return Ok(());
    }
    let result = bits::combine(operation, &sources);
    let length = result.len();
    let mut key = ctx.keys.write_destination(0, length == 0);
    if length > 0 {
        let value = match result.len() {
            ..=MIN_SHARED_REPLY_BYTES => NewValue::Bytes(&result),
            _ => NewValue::Blob(Blob::from(result)),
        };
        key.set(value, ExpiryUpdate::Remove);
        // As in Valkey, the result of a bit operation has the encoding `literal_byte` even if it is short.
        change_string_bytes(&mut key, 0, |_| ());
        key.changed(KeyspaceEvent::string("set"));
    } else if key.delete() {
        key.changed(KeyspaceEvent::generic("del"));
    }
    ctx.reply.integer(length as i64);
    Ok(())
}

// ---- integers -----------------------------------------------------------------------------------------

/// One operation of BITFIELD.
struct BitFieldOperation {
    integer_type: IntegerType,
    offset: u64,
    action: BitFieldAction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BitFieldAction {
    Get,
    Set(i64, OverflowBehavior),
    Increment(i64, OverflowBehavior),
}

impl BitFieldOperation {
    /// Performs the operation. Returns the reply, and `true` if it changed the bytes.
    fn apply(&self, bytes: &mut [u8]) -> (Option<i64>, bool) {
        let before = self.integer_type.read(bytes, self.offset);
        let (after, reply) = match self.action {
            BitFieldAction::Get => return (Some(before), false),
            BitFieldAction::Set(value, overflow) => (self.integer_type.value_to_set(value, overflow), Some(before)),
            BitFieldAction::Increment(by, overflow) => {
                let after = self.integer_type.value_to_increment(before, by, overflow);
                (after, after)
            }
        };
        let Some(after) = after else {
            return (None, false);
        };
        self.integer_type.write(bytes, self.offset, after);
        (reply, before != after)
    }
}

fn parse_integer_type(argument: &[u8]) -> Result<IntegerType, CommandError> {
    let signed = match argument.first() {
        Some(b'i') => Some(true),
        Some(b'u') => Some(false),
        _ => None,
    };
    signed
        .zip(argument.get(1..).and_then(parse_i64))
        .and_then(|(signed, bits)| IntegerType::new(signed, bits))
        .ok_or(CommandError::constant(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        ))
}

fn parse_overflow(argument: &[u8]) -> Result<OverflowBehavior, CommandError> {
    let kinds = [
        ("WRAP", OverflowBehavior::Wrap),
        ("SAT", OverflowBehavior::Saturate),
        ("FAIL", OverflowBehavior::Fail),
    ];
    kinds
        .into_iter()
        .find(|(name, _)| argument.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, overflow)| overflow)
        .ok_or(CommandError::constant("ERR Invalid OVERFLOW type specified"))
}

fn parse_field_operations(ctx: &Context<'_, '_>) -> Result<Vec<BitFieldOperation>, CommandError> {
    let mut operations = Vec::new();
    let mut overflow = OverflowBehavior::Wrap;
    let mut index = 2;
    while index < ctx.argc() {
        let word = ctx.arg(index);
        let words_after = ctx.argc() - index - 1;
        let is = |name: &str, words| word.eq_ignore_ascii_case(name.as_bytes()) && words_after >= words;
        if is("OVERFLOW", 1) {
            overflow = parse_overflow(ctx.arg(index + 1))?;
            index += 2;
            continue;
        }
        let (is_get, is_set) = (is("GET", 2), is("SET", 3));
        if !is_get && !is_set && !is("INCRBY", 3) {
            return Err(CommandError::SYNTAX);
        }
        let form = parse_integer_type(ctx.arg(index + 1))?;
        let offset = parse_bit_offset(ctx, ctx.arg(index + 2), Some(form.bits()))?;
        let action = if is_get {
            BitFieldAction::Get
        } else {
            let number = parse_i64(ctx.arg(index + 3)).ok_or(CommandError::NOT_AN_INTEGER)?;
            if is_set {
                BitFieldAction::Set(number, overflow)
            } else {
                BitFieldAction::Increment(number, overflow)
            }
        };
        operations.push(BitFieldOperation {
            integer_type: form,
            offset,
            action,
        });
        index += if is_get { 3 } else { 4 };
    }
    Ok(operations)
}

fn bitfield(ctx: &mut Context<'_, '_>) -> CommandResult {
    let operations = parse_field_operations(ctx)?;
    if operations
        .iter()
        .all(|operation| operation.action == BitFieldAction::Get)
    {
        return read_fields(ctx, &operations);
    }
    change_fields(ctx, &operations)
}

fn bitfield_ro(ctx: &mut Context<'_, '_>) -> CommandResult {
    let operations = parse_field_operations(ctx)?;
    if operations
        .iter()
        .any(|operation| operation.action != BitFieldAction::Get)
    {
        return Err(CommandError::constant(
            "ERR BITFIELD_RO only supports the GET subcommand",
        ));
    }
    read_fields(ctx, &operations)
}

fn read_fields(ctx: &mut Context<'_, '_>, operations: &[BitFieldOperation]) -> CommandResult {
    let reply = &mut ctx.reply;
    let mut read = |bytes: &[u8]| {
        reply.array(operations.len());
        for operation in operations {
            reply.integer(operation.integer_type.read(bytes, operation.offset));
        }
    };
    match ctx.keys.read(0) {
        Some(entry) => with_bytes(entry.value(), read),
        None => {
            read(b"");
            Ok(())
        }
    }
}

fn change_fields(ctx: &mut Context<'_, '_>, operations: &[BitFieldOperation]) -> CommandResult {
    // The string is extended to the end of the farthest write, even if that write then overflows and fails.
    let writes = operations
        .iter()
        .filter(|operation| operation.action != BitFieldAction::Get);
    let ends = writes.map(|operation| (operation.offset + u64::from(operation.integer_type.bits() - 1)) >> 3);
    let end = ends.max().unwrap_or(0) as usize + 1;
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let before = inspect_before_change(key.entry(), |_| end)?;
    if before.cost_ns > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    }
    let grown = before.length < end;
    let reply = &mut ctx.reply;
    reply.array(operations.len());
    let changes = change_string_bytes(&mut key, end, |bytes| {
        let mut changes = 0;
        for operation in operations {
            let (answer, changed) = operation.apply(bytes);
            match answer {
                Some(number) => reply.integer(number),
                None => reply.null(),
            }
            let wrote = answer.is_some() && operation.action != BitFieldAction::Get;
            changes += u64::from(wrote && (changed || grown));
        }
        changes
    });
    match changes.unwrap_or(0) {
        0 if !grown => {}
        // All writes failed. As in Valkey, the zeros that they have appended are no change of the key.
        0 => key.changed_quietly(0),
        changes => key.changed_times(KeyspaceEvent::string("setbit"), changes),
    }
    Ok(())
}
