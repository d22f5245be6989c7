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
use crate::notify::keyspace_event::Event;
use stored::{Addition, ListSettings, change, list_at, prepare, push, settle};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("lindex", leased(lindex)),
    ("linsert", leased(linsert)),
    ("llen", leased(llen)),
    ("lmove", leased(pop::lmove)),
    ("lmpop", leased(pop::lmpop)),
    ("lpop", leased(pop::lpop).of_end(ListEnd::Head)),
    ("lpos", leased(position::lpos)),
    ("lpush", leased(lpush).of_end(ListEnd::Head)),
    ("lpushx", leased(lpushx).of_end(ListEnd::Head)),
    ("lrange", leased(lrange)),
    ("lrem", leased(position::lrem)),
    ("lset", leased(lset)),
    ("ltrim", leased(ltrim)),
    ("rpop", leased(pop::rpop).of_end(ListEnd::Tail)),
    ("rpoplpush", leased(pop::rpoplpush)),
    ("rpush", leased(rpush).of_end(ListEnd::Tail)),
    ("rpushx", leased(rpushx).of_end(ListEnd::Tail)),
];

/// The time to write, remove or add an element, in ns.
const ELEMENT_NS: u64 = 20;
/// The time to read an element, in ns.
const GLANCE_NS: u64 = 5;

/// Bytes of elements that are copied in a nanosecond.
const BYTES_PER_NS: u64 = 4;

/// Returns the time to reply with `count` elements of a list, or with all if there are fewer, in ns.
fn showing_ns(list: ListRef<'_>, count: usize) -> u64 {
    let (count, length) = (count.min(list.len()) as u64, list.len().max(1) as u64);
    let bytes = (list.approximate_bytes() as u64 / length).saturating_mul(count);
    count * ELEMENT_NS + bytes / BYTES_PER_NS
}

/// Writes an element as a bulk string.
#[inline]
pub fn reply_with(reply: &mut Reply<'_>, element: Element<'_>) {
    match element {
        Element::Int(number) => reply.bulk_integer(number),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// Writes `count` elements from element `start` on as an array.
fn reply_with_range(reply: &mut Reply<'_>, list: ListRef<'_>, start: usize, count: usize, direction: Direction) {
    reply.array(count);
    let mut left = count;
    if left == 0 {
        return;
    }
    list.visit(start, direction, |element| {
        reply_with(reply, element);
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
    /// There is none.
    Missing,
    /// The key holds something else.
    Error(CommandError),
    /// The change would take too long here.
    TooLong,
}

impl ListRefusal {
    /// Answers the client; `missing` writes the reply for a missing key. The key is closed.
    fn answer(self, ctx: &mut Context<'_, '_>, missing: impl FnOnce(&mut Reply<'_>)) -> CommandResult {
        match self {
            ListRefusal::Missing => missing(&mut ctx.reply),
            ListRefusal::Error(error) => return Err(error),
            ListRefusal::TooLong => ctx.leave(),
        }
        Ok(())
    }
}

/// The length of the list that a key holds.
fn length_at(key: &KeyWrite<'_>) -> Result<usize, ListRefusal> {
    match list_at(key.entry()) {
        Ok(Some(list)) => Ok(list.len()),
        Ok(None) => Err(ListRefusal::Missing),
        Err(error) => Err(ListRefusal::Error(error)),
    }
}

/// The index that a client means, counted from the end if it is negative; `None` outside the list.
fn index_in(index: i64, length: usize) -> Option<usize> {
    let from_start = if index < 0 {
        index.checked_add(length as i64)?
    } else {
        index
    };
    usize::try_from(from_start).ok().filter(|&index| index < length)
}

/// The elements that a client means by two indexes, both included: the first, and how many.
fn range_in(start: i64, stop: i64, length: usize) -> (usize, usize) {
    let length = length as i64;
    let from_end = |index: i64| if index < 0 { index + length } else { index };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(length - 1));
    if start > stop {
        (0, 0)
    } else {
        (start as usize, (stop - start + 1) as usize)
    }
}

fn integer(argument: &[u8]) -> Result<i64, CommandError> {
    parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER)
}

fn lpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_all(ctx, ListEnd::Head, false)
}

fn rpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_all(ctx, ListEnd::Tail, false)
}

fn lpushx(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_all(ctx, ListEnd::Head, true)
}

fn rpushx(ctx: &mut Context<'_, '_>) -> CommandResult {
    push_all(ctx, ListEnd::Tail, true)
}

/// The event of adding at an end.
fn pushed(end: ListEnd) -> Event {
    match end {
        ListEnd::Head => Event::list("lpush"),
        ListEnd::Tail => Event::list("rpush"),
    }
}

fn push_all(ctx: &mut Context<'_, '_>, end: ListEnd, only_existing: bool) -> CommandResult {
    let count = ctx.argc() - 2;
    if ctx.leaves_worker(count as u64 * ELEMENT_NS) {
        return Ok(());
    }
    let rules = ListSettings::of(&ctx.server.config);
    let elements = ctx.args.iter().skip(2);
    let mut key = ctx.keys.write(0);
    if only_existing && !key.exists() {
        ctx.reply.integer(0);
        return Ok(());
    }
    match push(&mut key, end, elements, rules) {
        Ok(length) => {
            key.changed_times(pushed(end), count as u64);
            ctx.reply.integer(length as i64);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn llen(ctx: &mut Context<'_, '_>) -> CommandResult {
    let list = list_at(ctx.keys.read(0))?;
    ctx.reply.integer(list.map_or(0, ListRef::len) as i64);
    Ok(())
}

fn lindex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let argument = ctx.arg(2);
    let Some(list) = list_at(ctx.keys.read(0))? else {
        ctx.reply.null();
        return Ok(());
    };
    let reply = &mut ctx.reply;
    let found = index_in(integer(argument)?, list.len())
        .and_then(|index| list.with_element(index, |element| reply_with(reply, element)));
    if found.is_none() {
        reply.null();
    }
    Ok(())
}

fn lrange(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (start, stop) = (integer(ctx.arg(2))?, integer(ctx.arg(3))?);
    let in_place_ns = ctx.in_place_ns();
    let Some(list) = list_at(ctx.keys.read(0))? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let (start, count) = range_in(start, stop, list.len());
    if showing_ns(list, count) > in_place_ns {
        ctx.leave();
        return Ok(());
    }
    reply_with_range(&mut ctx.reply, list, start, count, Direction::Forward);
    Ok(())
}

fn lset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (index, element) = (ctx.arg(2), ctx.arg(3));
    let rules = ListSettings::of(&ctx.server.config);
    let mut key = ctx.keys.write(0);
    let place = match list_at(key.entry()) {
        Ok(None) => Err(CommandError::NO_SUCH_KEY),
        Ok(Some(list)) => integer(index).map(|index| index_in(index, list.len())),
        Err(error) => Err(error),
    };
    let place = place?;
    // Valkey converts the list even if the element does not exist.
    prepare(&mut key, ListEnd::Tail, Addition::of(std::iter::once(element)), rules);
    let Some(place) = place else {
        return Err(CommandError::constant("ERR index out of range"));
    };
    change(&mut key, |list| list.replace(place, element));
    settle(&mut key, rules);
    key.changed(Event::list("lset"));
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
    let rules = ListSettings::of(&ctx.server.config);
    let in_place_ns = ctx.in_place_ns();
    let mut key = ctx.keys.write(0);
    let found = match list_at(key.entry()) {
        Ok(Some(list)) if list.len() as u64 * GLANCE_NS > in_place_ns => Err(ListRefusal::TooLong),
        Ok(Some(list)) => Ok(position::first_equal(list, &pivot)),
        Ok(None) => Err(ListRefusal::Missing),
        Err(error) => Err(ListRefusal::Error(error)),
    };
    let found = match found {
        Ok(found) => found,
        Err(refused) => {
            drop(key);
            return refused.answer(ctx, |reply| reply.integer(0));
        }
    };
    // Valkey converts the list even if the pivot does not exist.
    prepare(&mut key, ListEnd::Tail, Addition::of(std::iter::once(element)), rules);
    let Some(index) = found else {
        ctx.reply.integer(-1);
        return Ok(());
    };
    let length = change(&mut key, |list| {
        list.insert(index, after, element);
        list.len()
    });
    key.changed(Event::list("linsert"));
    ctx.reply.integer(length as i64);
    Ok(())
}

fn ltrim(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (start, stop) = (integer(ctx.arg(2))?, integer(ctx.arg(3))?);
    let rules = ListSettings::of(&ctx.server.config);
    let in_place_ns = ctx.in_place_ns();
    let mut key = ctx.keys.write(0);
    let length = match length_at(&key) {
        Ok(length) => length,
        Err(refused) => {
            drop(key);
            return refused.answer(ctx, |reply| reply.ok());
        }
    };
    let (first, kept) = range_in(start, stop, length);
    let removed = length - kept;
    // Whole nodes are removed at little cost each.
    if kept > 0 && removed as u64 > in_place_ns {
        drop(key);
        ctx.leave();
        return Ok(());
    }
    if kept == 0 {
        key.record_event(Event::list("ltrim"));
        key.delete();
        key.changed_times(Event::generic("del"), removed as u64);
    } else {
        let behind = length - first - kept;
        change(&mut key, |list| {
            list.remove_range(0, first);
            list.remove_range(kept, behind);
        });
        settle(&mut key, rules);
        if removed > 0 {
            key.changed_times(Event::list("ltrim"), removed as u64);
        } else {
            key.record_event(Event::list("ltrim"));
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
    fn indexes_count_from_either_end() {
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
            assert_eq!(index_in(index, 3), expected, "{index}");
        }
    }

    #[test]
    fn ranges_are_cut_to_the_list() {
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
            assert_eq!(range_in(start, stop, 3), expected, "{start} {stop}");
        }
    }
}
