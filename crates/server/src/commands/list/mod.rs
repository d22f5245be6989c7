//! The commands on lists that do not wait.

pub mod blocking;
pub mod pop;
mod position;
pub mod stored;

use std::ops::ControlFlow;

use weft_resp::Reply;
use weft_resp::number::parse_i64;
use weft_values::list::{Direction, ListEnd, ListRef};
use weft_values::listpack::{Element, Needle};

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use crate::keyspace::access::KeyWrite;
use crate::notify::keyspace_event::KeyspaceEvent;
use stored::{
    ListAddition, ListSettings, change_list, entry_as_list, prepare_for_addition, push_elements, shrink_layout,
};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("lindex", leased(lindex)),
    ("linsert", leased(linsert)),
    ("llen", leased(llen)),
    ("lmove", leased(pop::lmove)),
    ("lmpop", leased(pop::lmpop)),
    ("lpop", leased(pop::lpop).with_list_end(ListEnd::Head)),
    ("lpos", leased(position::lpos)),
    ("lpush", leased(lpush).with_list_end(ListEnd::Head)),
    ("lpushx", leased(lpushx).with_list_end(ListEnd::Head)),
    ("lrange", leased(lrange)),
    ("lrem", leased(position::lrem)),
    ("lset", leased(lset)),
    ("ltrim", leased(ltrim)),
    ("rpop", leased(pop::rpop).with_list_end(ListEnd::Tail)),
    ("rpoplpush", leased(pop::rpoplpush)),
    ("rpush", leased(rpush).with_list_end(ListEnd::Tail)),
    ("rpushx", leased(rpushx).with_list_end(ListEnd::Tail)),
];

/// The time to write, remove or add an element, in nanoseconds.
const ELEMENT_NS: u64 = 20;
/// The time to read an element, in nanoseconds.
const READ_ELEMENT_NS: u64 = 5;

/// The number of bytes of elements that are copied in a nanosecond.
const BYTES_PER_NS: u64 = 4;

/// Returns the time to reply with `count` elements of a list, or with all if there are fewer, in nanoseconds.
fn reply_cost_ns(list: ListRef<'_>, count: usize) -> u64 {
    let (count, length) = (count.min(list.len()) as u64, list.len().max(1) as u64);
    let bytes = (list.approximate_bytes() as u64 / length).saturating_mul(count);
    count * ELEMENT_NS + bytes / BYTES_PER_NS
}

/// Writes an element as a bulk string.
#[inline]
pub fn reply_element(reply: &mut Reply<'_>, element: Element<'_>) {
    match element {
        Element::Int(number) => reply.bulk_integer(number),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// Writes `count` elements from element `start` on as an array.
fn reply_range(reply: &mut Reply<'_>, list: ListRef<'_>, start: usize, count: usize, direction: Direction) {
    reply.array(count);
    let mut left = count;
    if left == 0 {
        return;
    }
    list.visit(start, direction, |element| {
        reply_element(reply, element);
        left -= 1;
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
}

/// The reason why a list is not changed.
enum ListRefusal {
    /// The key does not exist.
    Missing,
    /// The key holds another type.
    Error(CommandError),
    /// The change would take too long on this thread.
    TooLong,
}

impl ListRefusal {
    /// Writes the reply; `missing` writes it for a missing key. The key is closed.
    fn reply(self, ctx: &mut Context<'_, '_>, missing: impl FnOnce(&mut Reply<'_>)) -> CommandResult {
        match self {
            ListRefusal::Missing => missing(&mut ctx.reply),
            ListRefusal::Error(error) => return Err(error),
            ListRefusal::TooLong => ctx.detach(),
        }
        Ok(())
    }
}

/// Returns the length of the list that a key holds.
fn list_length(key: &KeyWrite<'_>) -> Result<usize, ListRefusal> {
    match entry_as_list(key.entry()) {
        Ok(Some(list)) => Ok(list.len()),
        Ok(None) => Err(ListRefusal::Missing),
        Err(error) => Err(ListRefusal::Error(error)),
    }
}

/// Resolves an index, which counts from the end if it is negative; `None` outside the list.
fn resolve_index(index: i64, length: usize) -> Option<usize> {
    let from_start = if index < 0 {
        index.checked_add(length as i64)?
    } else {
        index
    };
    usize::try_from(from_start).ok().filter(|&index| index < length)
}

/// Resolves a range of two indexes, both included, to the first element and the number of elements.
fn resolve_range(start: i64, stop: i64, length: usize) -> (usize, usize) {
    let length = length as i64;
    let from_end = |index: i64| if index < 0 { index + length } else { index };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(length - 1));
    if start > stop {
        (0, 0)
    } else {
        (start as usize, (stop - start + 1) as usize)
    }
}

fn parse_integer(argument: &[u8]) -> Result<i64, CommandError> {
    parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER)
}

fn lpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_arguments(ctx, ListEnd::Head, false)
}

fn rpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_arguments(ctx, ListEnd::Tail, false)
}

fn lpushx(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_arguments(ctx, ListEnd::Head, true)
}

fn rpushx(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_arguments(ctx, ListEnd::Tail, true)
}

/// Returns the event of adding elements at an end.
fn push_event(end: ListEnd) -> KeyspaceEvent {
    match end {
        ListEnd::Head => KeyspaceEvent::list("lpush"),
        ListEnd::Tail => KeyspaceEvent::list("rpush"),
    }
}

fn push_arguments(ctx: &mut Context<'_, '_>, end: ListEnd, only_existing: bool) -> CommandResult {
    let count = ctx.argc() - 2;
    if ctx.detach_if_long(count as u64 * ELEMENT_NS) {
        return Ok(());
    }
    let rules = ListSettings::from_config(&ctx.server.config);
    let elements = ctx.args.iter().skip(2);
    let mut key = ctx.keys.write(0);
    if only_existing && !key.exists() {
        ctx.reply.integer(0);
        return Ok(());
    }
    match push_elements(&mut key, end, elements, rules) {
        Ok(length) => {
            key.changed_times(push_event(end), count as u64);
            ctx.reply.integer(length as i64);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn llen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let list = entry_as_list(ctx.keys.read(0))?;
    ctx.reply.integer(list.map_or(0, ListRef::len) as i64);
    Ok(())
}

fn lindex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let argument = ctx.arg(2);
    let Some(list) = entry_as_list(ctx.keys.read(0))? else {
        ctx.reply.null();
        return Ok(());
    };
    let reply = &mut ctx.reply;
    let found = resolve_index(parse_integer(argument)?, list.len())
        .and_then(|index| list.with_element(index, |element| reply_element(reply, element)));
    if found.is_none() {
        reply.null();
    }
    Ok(())
}

fn lrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (start, stop) = (parse_integer(ctx.arg(2))?, parse_integer(ctx.arg(3))?);
    let in_place_ns = ctx.max_worker_ns();
    let Some(list) = entry_as_list(ctx.keys.read(0))? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let (start, count) = resolve_range(start, stop, list.len());
    if reply_cost_ns(list, count) > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    reply_range(&mut ctx.reply, list, start, count, Direction::Forward);
    Ok(())
}

fn lset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (index, element) = (ctx.arg(2), ctx.arg(3));
    let rules = ListSettings::from_config(&ctx.server.config);
    let mut key = ctx.keys.write(0);
    let position = match entry_as_list(key.entry()) {
        Ok(None) => Err(CommandError::NO_SUCH_KEY),
        Ok(Some(list)) => parse_integer(index).map(|index| resolve_index(index, list.len())),
        Err(error) => Err(error),
    };
    let position = position?;
    // Valkey converts the list even if the element does not exist.
    prepare_for_addition(
        &mut key,
        ListEnd::Tail,
        ListAddition::from_elements(std::iter::once(element)),
        rules,
    );
    let Some(place) = position else {
        return Err(CommandError::constant("ERR index out of range"));
    };
    change_list(&mut key, |list| list.replace(place, element));
    shrink_layout(&mut key, rules);
    key.changed(KeyspaceEvent::list("lset"));
    ctx.reply.ok();
    Ok(())
}

fn linsert(ctx: &mut Context<'_, '_>) -> CommandResult {
    let after = match ctx.arg(2).to_ascii_lowercase().as_slice() {
        b"after" => true,
        b"before" => false,
        _ => return Err(CommandError::SYNTAX),
    };
    let (pivot, element) = (Needle::new(ctx.arg(3)), ctx.arg(4));
    let rules = ListSettings::from_config(&ctx.server.config);
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let found = match entry_as_list(key.entry()) {
        Ok(Some(list)) if list.len() as u64 * READ_ELEMENT_NS > in_place_ns => Err(ListRefusal::TooLong),
        Ok(Some(list)) => Ok(position::first_equal(list, &pivot)),
        Ok(None) => Err(ListRefusal::Missing),
        Err(error) => Err(ListRefusal::Error(error)),
    };
    let found = match found {
        Ok(found) => found,
        Err(refused) => {
            drop(key);
            return refused.reply(ctx, |reply| reply.integer(0));
        }
    };
    // Valkey converts the list even if the pivot does not exist.
    prepare_for_addition(
        &mut key,
        ListEnd::Tail,
        ListAddition::from_elements(std::iter::once(element)),
        rules,
    );
    let Some(index) = found else {
        ctx.reply.integer(-1);
        return Ok(());
    };
    let length = change_list(&mut key, |list| {
        list.insert(index, after, element);
        list.len()
    });
    key.changed(KeyspaceEvent::list("linsert"));
    ctx.reply.integer(length as i64);
    Ok(())
}

fn ltrim(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (start, stop) = (parse_integer(ctx.arg(2))?, parse_integer(ctx.arg(3))?);
    let rules = ListSettings::from_config(&ctx.server.config);
    let in_place_ns = ctx.max_worker_ns();
    let mut key = ctx.keys.write(0);
    let length = match list_length(&key) {
        Ok(length) => length,
        Err(refused) => {
            drop(key);
            return refused.reply(ctx, |reply| reply.ok());
        }
    };
    let (first, kept) = resolve_range(start, stop, length);
    let removed = length - kept;
    // Whole nodes are removed at low cost.
    if kept > 0 && removed as u64 > in_place_ns {
        drop(key);
        ctx.detach();
        return Ok(());
    }
    if kept == 0 {
        key.record_event(KeyspaceEvent::list("ltrim"));
        key.delete_emptied();
        key.changed_times(KeyspaceEvent::generic("del"), removed as u64);
    } else {
        let behind = length - first - kept;
        change_list(&mut key, |list| {
            list.remove_range(0, first);
            list.remove_range(kept, behind);
        });
        shrink_layout(&mut key, rules);
        if removed > 0 {
            key.changed_times(KeyspaceEvent::list("ltrim"), removed as u64);
        } else {
            key.record_event(KeyspaceEvent::list("ltrim"));
            key.changed_quietly(0);
        }
    }
    ctx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_resolved_from_both_ends() {
        let cases = [
            (0, Some(0)),
            (2, Some(2)),
            (3, None),
            (-1, Some(2)),
            (-3, Some(0)),
            (-4, None),
            (i64::MIN, None),
            (i64::MAX, None),
        ];
        for (index, expected) in cases {
            assert_eq!(resolve_index(index, 3), expected, "{index}");
        }
    }

    #[test]
    fn ranges_are_clamped_to_the_list() {
        let cases = [
            (0, -1, (0, 3)),
            (1, 1, (1, 1)),
            (-2, 100, (1, 2)),
            (-100, 0, (0, 1)),
            (3, 5, (0, 0)),
            (2, 1, (0, 0)),
            (i64::MIN, i64::MAX, (0, 3)),
            (0, i64::MIN, (0, 0)),
        ];
        for (start, stop, expected) in cases {
            assert_eq!(resolve_range(start, stop, 3), expected, "{start} {stop}");
        }
    }
}
