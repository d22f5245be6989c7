//! Removing elements from the ends of lists, and moving them to other lists.

use weft_resp::Reply;
use weft_resp::number::parse_i64;
use weft_values::list::{Direction, ListEnd};

use super::stored::{ListSettings, change_list, entry_as_list, push_elements, shrink_layout};
use super::{push_event, reply_cost_ns, reply_element, reply_range};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::keyspace::access::{KeyWrite, Keys};
use crate::notify::keyspace_event::KeyspaceEvent;

/// Returns the event of removing elements at an end.
fn pop_event(end: ListEnd) -> KeyspaceEvent {
    match end {
        ListEnd::Head => KeyspaceEvent::list("lpop"),
        ListEnd::Tail => KeyspaceEvent::list("rpop"),
    }
}

/// Returns the index of the element at an end, and the direction away from it.
fn end_index_and_direction(end: ListEnd, length: usize) -> (usize, Direction) {
    match end {
        ListEnd::Head => (0, Direction::Forward),
        ListEnd::Tail => (length - 1, Direction::Backward),
    }
}

/// Removes `count` of a list's `length` elements at an end and closes the key.
fn remove_at_end(mut key: KeyWrite<'_>, end: ListEnd, count: usize, length: usize, settings: ListSettings) {
    if count == length {
        key.record_event(pop_event(end));
        key.delete_emptied();
        key.changed_times(KeyspaceEvent::generic("del"), count as u64);
        return;
    }
    let start = match end {
        ListEnd::Head => 0,
        ListEnd::Tail => length - count,
    };
    change_list(&mut key, |list| list.remove_range(start, count));
    shrink_layout(&mut key, settings);
    key.changed_times(pop_event(end), count as u64);
}

/// Pops one element of a key that is known to hold a list, and replies with it; closes the key.
pub fn pop_one(key: KeyWrite<'_>, end: ListEnd, settings: ListSettings, reply: &mut Reply<'_>) {
    let Ok(Some(list)) = entry_as_list(key.entry()) else {
        return;
    };
    let length = list.len();
    list.with_element(end_index_and_direction(end, length).0, |element| {
        reply_element(reply, element)
    });
    remove_at_end(key, end, 1, length, settings);
}

/// Pops up to `count` elements of a key that is known to hold a list, and replies with an array of them; closes the
/// key.
pub fn pop_many(key: KeyWrite<'_>, end: ListEnd, count: usize, settings: ListSettings, reply: &mut Reply<'_>) {
    let Ok(Some(list)) = entry_as_list(key.entry()) else {
        return;
    };
    let length = list.len();
    let count = count.min(length);
    let (start, direction) = end_index_and_direction(end, length);
    reply_range(reply, list, start, count, direction);
    remove_at_end(key, end, count, length, settings);
}

/// Propagates, instead of the running command, the pop of this number of elements, or of one.
pub fn propagate_pop(key: &mut KeyWrite<'_>, end: ListEnd, count: Option<usize>) {
    if !key.effects().is_logging() {
        return;
    }
    let word: &[u8] = match end {
        ListEnd::Head => b"LPOP",
        ListEnd::Tail => b"RPOP",
    };
    let length = entry_as_list(key.entry()).ok().flatten().map_or(0, |list| list.len());
    let mut digits = itoa::Buffer::new();
    let name = key.name_for_plan();
    match count {
        None => key.log_instead(&[word, name]),
        Some(count) => key.log_instead(&[word, name, digits.format(count.min(length)).as_bytes()]),
    }
}

pub(super) fn lpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop(ctx, ListEnd::Head)
}

pub(super) fn rpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    pop(ctx, ListEnd::Tail)
}

fn pop(ctx: &mut Context<'_, '_>, end: ListEnd) -> CommandResult {
    let count = match ctx.argc() {
        2 => None,
        3 => Some(
            parse_i64(ctx.arg(2))
                .and_then(|count| usize::try_from(count).ok())
                .ok_or(CommandError::constant("ERR value is out of range, must be positive"))?,
        ),
        _ => {
            let name = ctx.command.full_name;
            return Err(CommandError::from_text(format!(
                "ERR wrong number of arguments for '{name}' command"
            )));
        }
    };
    let rules = ListSettings::from_config(&ctx.server.config);
    let in_place_ns = ctx.max_worker_ns();
    let key = ctx.keys.write(0);
    let cost_ns = entry_as_list(key.entry())?.map(|list| reply_cost_ns(list, count.unwrap_or(1)));
    match (cost_ns, count) {
        (None, count) => match count {
            None => ctx.reply.null(),
            Some(_) => ctx.reply.null_array(),
        },
        (Some(_), None) => pop_one(key, end, rules, &mut ctx.reply),
        (Some(_), Some(0)) => {
            ctx.reply.array(0);
        }
        (Some(cost_ns), Some(_)) if cost_ns > in_place_ns => {
            drop(key);
            ctx.detach();
        }
        (Some(_), Some(count)) => pop_many(key, end, count, rules, &mut ctx.reply),
    }
    Ok(())
}

/// Parses the name of an end of a list.
///
/// # Errors
/// A syntax error for any other word.
pub fn parse_list_end(word: &[u8]) -> Result<ListEnd, CommandError> {
    if word.eq_ignore_ascii_case(b"left") {
        Ok(ListEnd::Head)
    } else if word.eq_ignore_ascii_case(b"right") {
        Ok(ListEnd::Tail)
    } else {
        Err(CommandError::SYNTAX)
    }
}

/// The arguments of LMPOP and BLMPOP after the keys.
#[derive(Clone, Copy, Debug)]
pub struct MultiPopArguments {
    /// The end from which elements are taken.
    pub end: ListEnd,
    /// The maximum number of elements.
    pub count: usize,
}

/// Parses `numkeys key... LEFT|RIGHT [COUNT count]` from argument `first` on.
///
/// # Errors
/// If a number is not positive, or the syntax is invalid.
pub fn parse_multi_pop(ctx: &Context<'_, '_>, first: usize) -> Result<MultiPopArguments, CommandError> {
    let positive = |index, error| {
        parse_i64(ctx.arg(index))
            .and_then(|number| usize::try_from(number).ok())
            .filter(|&number| number > 0)
            .ok_or(CommandError::constant(error))
    };
    let keys = positive(first, "ERR numkeys should be greater than 0")?;
    let direction_index = first.saturating_add(keys).saturating_add(1);
    if direction_index >= ctx.argc() {
        return Err(CommandError::SYNTAX);
    }
    let mut arguments = MultiPopArguments {
        end: parse_list_end(ctx.arg(direction_index))?,
        count: 1,
    };
    let mut counted = false;
    let mut index = direction_index + 1;
    while index < ctx.argc() {
        let more = index + 1 < ctx.argc();
        if counted || !more || !ctx.arg(index).eq_ignore_ascii_case(b"count") {
            return Err(CommandError::SYNTAX);
        }
        arguments.count = positive(index + 1, "ERR count should be greater than 0")?;
        counted = true;
        index += 2;
    }
    Ok(arguments)
}

pub(super) fn lmpop(ctx: &mut Context<'_, '_>) -> CommandResult {
    let pop = parse_multi_pop(ctx, 1)?;
    if !pop_first_of(ctx, pop)? {
        ctx.reply.null_array();
    }
    Ok(())
}

/// Pops from the first existing key, and replies or leaves the worker. Returns `false` if no key exists.
///
/// # Errors
/// `WRONGTYPE` if an earlier key holds another type.
pub fn pop_first_of(
    ctx: &mut Context<'_, '_>,
    MultiPopArguments { end, count }: MultiPopArguments,
) -> Result<bool, CommandError> {
    let rules = ListSettings::from_config(&ctx.server.config);
    let in_place_ns = ctx.max_worker_ns();
    for index in 0..ctx.keys.len() {
        ctx.keys.prefetch_ahead(index);
        let name = ctx.keys.name(index);
        let mut key = ctx.keys.write(index);
        match entry_as_list(key.entry()).map(|list| list.map(|list| reply_cost_ns(list, count))) {
            Err(error) => {
                return Err(error);
            }
            Ok(None) => {}
            Ok(Some(cost_ns)) if cost_ns > in_place_ns => {
                drop(key);
                ctx.detach();
                return Ok(true);
            }
            Ok(Some(_)) => {
                ctx.reply.array(2);
                ctx.reply.bulk(name);
                propagate_pop(&mut key, end, Some(count));
                pop_many(key, end, count, rules, &mut ctx.reply);
                return Ok(true);
            }
        }
    }
    Ok(false)
}

pub(super) fn lmove(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (from, to) = (parse_list_end(ctx.arg(3))?, parse_list_end(ctx.arg(4))?);
    move_between_keys(ctx, from, to)
}

pub(super) fn rpoplpush(ctx: &mut Context<'_, '_>) -> CommandResult {
    move_between_keys(ctx, ListEnd::Tail, ListEnd::Head)
}

fn move_between_keys(ctx: &mut Context<'_, '_>, source_end: ListEnd, destination_end: ListEnd) -> CommandResult {
    let rules = ListSettings::from_config(&ctx.server.config);
    if !move_element(&mut ctx.keys, source_end, destination_end, rules, &mut ctx.reply)? {
        ctx.reply.null();
    }
    Ok(())
}

/// The two keys of a move.
pub trait ListMoveKeys {
    /// Returns `true` if both keys are the same.
    fn are_same(&self) -> bool;
    /// Opens the source.
    fn source(&mut self) -> KeyWrite<'_>;
    /// Opens the destination.
    fn destination(&mut self) -> KeyWrite<'_>;
}

/// The first two keys of a command.
impl ListMoveKeys for Keys<'_, '_> {
    fn are_same(&self) -> bool {
        self.name(0) == self.name(1)
    }

    fn source(&mut self) -> KeyWrite<'_> {
        self.write(0)
    }

    fn destination(&mut self) -> KeyWrite<'_> {
        self.write(1)
    }
}

/// Moves an element from one list to another, and replies with it. Returns `false` if the source is missing.
///
/// # Errors
/// `WRONGTYPE` if a key holds another type.
pub fn move_element(
    keys: &mut impl ListMoveKeys,
    source_end: ListEnd,
    destination_end: ListEnd,
    settings: ListSettings,
    reply: &mut Reply<'_>,
) -> Result<bool, CommandError> {
    let same = keys.are_same();
    let mut source = keys.source();
    let element = match entry_as_list(source.entry()) {
        Ok(Some(list)) => list.with_element(end_index_and_direction(source_end, list.len()).0, |element| {
            (element.to_vec(), list.len())
        }),
        Ok(None) => None,
        Err(error) => {
            return Err(error);
        }
    };
    let Some((element, length)) = element else {
        return Ok(false);
    };
    if same {
        // The key is looked up as the source and as the destination.
        source.begin_another_use();
        rotate_element(source, source_end, destination_end, &element, settings);
    } else {
        drop(source);
        let mut destination = keys.destination();
        push_elements(
            &mut destination,
            destination_end,
            std::iter::once(&element[..]),
            settings,
        )?;
        // The move counts once, with the removal.
        destination.changed_times(push_event(destination_end), 0);
        remove_at_end(keys.source().opened_again(), source_end, 1, length, settings);
    }
    reply.bulk(&element);
    Ok(true)
}

/// Moves an element from one end of a list to an end of the same list, in two steps, since that may change its
/// encoding.
fn rotate_element(
    mut key: KeyWrite<'_>,
    source_end: ListEnd,
    destination_end: ListEnd,
    element: &[u8],
    settings: ListSettings,
) {
    change_list(&mut key, |list| {
        list.remove_range(end_index_and_direction(source_end, list.len()).0, 1)
    });
    // The list may be empty for a moment, but it still exists and takes the element back.
    let pushed_back = push_elements(&mut key, destination_end, std::iter::once(element), settings);
    debug_assert!(pushed_back.is_ok());
    shrink_layout(&mut key, settings);
    key.record_event(push_event(destination_end));
    key.changed(pop_event(source_end));
}
