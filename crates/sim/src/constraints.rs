//! The constraints that replies put on the rest of an order. The search for an order leaves a place at once if a
//! remaining reply can no longer come true.
//!
//! Clients write random numbers, so what a reply shows mostly has one request that wrote it. Without these rules, a
//! wrong order of two writes would show only when the search has come to that reply, and it would then try all orders
//! of everything in between.
//!
//! 1. A string that a remaining operation shows is there now, or its beginning is: APPEND adds to it. Otherwise a
//!    remaining operation writes its number, or copies it from another string.
//! 2. If that number was just written for the last time, no operation remains that certainly overwrites the string and
//!    comes before the one that shows it.
//! 3. If a remaining operation finds a string missing, it is missing now, or a remaining operation may delete it.
//! 4. An element that a remaining operation shows is in a list now, or a remaining operation pushes it.
//!
//! A place that breaks a rule has no way to the end, so no order is missed.

use std::collections::{HashMap, VecDeque};

use crate::history::{ConnectionHistory, Event, EventId, any_remains};
use crate::model::Model;
use crate::operation::{self, KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;

/// A string that a reply shows.
struct ShownString {
    shown_by: EventId,
    key: usize,
    value: Vec<u8>,
}

/// The operations that write a number to strings, and the replies that show it there.
#[derive(Default)]
struct StringUses {
    writers: Vec<EventId>,
    shown: Vec<ShownString>,
}

/// The operations that push a number to lists, and those whose replies show it there.
#[derive(Default)]
struct ElementUses {
    writers: Vec<EventId>,
    shown_by: Vec<EventId>,
}

/// The constraints from the replies of all operations.
pub struct ReplyConstraints<'h> {
    histories: &'h [ConnectionHistory],
    strings: HashMap<u32, StringUses>,
    elements: HashMap<u32, ElementUses>,
    /// For each string, the operations that certainly overwrite it.
    overwriting: [Vec<EventId>; KEYS_PER_TYPE],
    /// The operations that write what another string has.
    copying: Vec<EventId>,
    /// For each string, the operations that find it missing, or have deleted it before.
    missing: [Vec<EventId>; KEYS_PER_TYPE],
    /// For each string, the operations that may delete it. `None` if it may also be evicted.
    deleting: Option<[Vec<EventId>; KEYS_PER_TYPE]>,
}

impl<'h> ReplyConstraints<'h> {
    /// Collects what the replies show. `may_evict` is `true` if strings were evicted.
    pub fn new(histories: &'h [ConnectionHistory], may_evict: bool) -> ReplyConstraints<'h> {
        let mut constraints = ReplyConstraints {
            histories,
            strings: HashMap::new(),
            elements: HashMap::new(),
            overwriting: Default::default(),
            copying: Vec::new(),
            missing: Default::default(),
            deleting: (!may_evict).then(Default::default),
        };
        for (connection, history) in histories.iter().enumerate() {
            for (index, event) in history.events.iter().enumerate() {
                let id = EventId { connection, index };
                for (operation, reply) in event.parts() {
                    constraints.add_writes(id, operation, reply);
                    if let Some(reply) = reply {
                        constraints.add_reply(id, operation, reply);
                    }
                }
            }
        }
        constraints
    }

    fn add_writes(&mut self, id: EventId, operation: &Operation, reply: Option<&SeenReply>) {
        if matches!(reply, Some(SeenReply::Error(_))) {
            return;
        }
        if let Some(number) = operation.written_number() {
            self.strings.entry(number).or_default().writers.push(id);
        }
        for number in operation.pushed_elements() {
            self.elements.entry(*number).or_default().writers.push(id);
        }
        if matches!(operation, Operation::ScriptSlowAppend(..)) {
            self.copying.push(id);
        }
        let Some(deleting) = &mut self.deleting else {
            return;
        };
        match operation {
            Operation::Delete(key) if reply != Some(&SeenReply::Integer(0)) => deleting[*key].push(id),
            Operation::FlushAll => deleting.iter_mut().for_each(|ids| ids.push(id)),
            _ => {}
        }
    }

    fn add_reply(&mut self, id: EventId, operation: &Operation, reply: &SeenReply) {
        for (key, reply) in shown_strings(operation, reply) {
            match reply {
                SeenReply::Null => self.missing[key].push(id),
                SeenReply::Bulk(value) => {
                    if let Some(number) = leading_number(value) {
                        self.strings.entry(number).or_default().shown.push(ShownString {
                            shown_by: id,
                            key,
                            value: value.clone(),
                        });
                    }
                }
                _ => {}
            }
        }
        for (_, element) in shown_elements(operation, reply) {
            if let Some(number) = leading_number(element) {
                self.elements.entry(number).or_default().shown_by.push(id);
            }
        }
        for key in overwritten_strings(operation, reply) {
            self.overwriting[key].push(id);
        }
        if let (Operation::Delete(key), SeenReply::Integer(0)) = (operation, reply) {
            self.missing[*key].push(id);
        }
    }

    /// Returns `false` if a remaining reply is ruled out now that `event` is done and has turned `before` into `after`.
    pub fn can_be_met(&self, event: &Event, before: &Model, after: &Model, done: &[usize]) -> bool {
        let operations = event.operation.single_operations();
        let mut written = operations.iter().filter_map(Operation::written_number);
        let mut pushed = operations.iter().flat_map(Operation::pushed_elements);
        let mut overwritten = (0..KEYS_PER_TYPE)
            .filter(|key| before.string(*key) != after.string(*key))
            .filter_map(|key| before.string(key).and_then(leading_number));
        let mut removed = (0..KEYS_PER_TYPE)
            .filter(|list| !after.has_same_list(before, *list))
            .flat_map(|list| removed_elements(before.list(list), after.list(list)))
            .filter_map(|element| leading_number(element));
        let mut new = (0..KEYS_PER_TYPE).filter(|key| after.string(*key).is_some() && before.string(*key).is_none());
        new.all(|key| self.can_be_missing(key, done))
            && written.all(|number| self.can_show_string(number, true, after, done))
            && overwritten.all(|number| self.can_show_string(number, false, after, done))
            && pushed.all(|number| self.can_show_element(*number, after, done))
            && removed.all(|number| self.can_show_element(number, after, done))
    }

    /// Applies rules 1 and 2 to a number. `is_written` is `true` if it was just written.
    fn can_show_string(&self, number: u32, is_written: bool, model: &Model, done: &[usize]) -> bool {
        let Some(uses) = self.strings.get(&number) else {
            return true;
        };
        if any_remains(&uses.writers, done) {
            return true;
        }
        let may_be_copied = any_remains(&self.copying, done);
        let mut shown = uses.shown.iter().filter(|shown| shown.shown_by.remains(done));
        shown.all(|shown| {
            let has_beginning = |key: usize| model.string(key).is_some_and(|value| shown.value.starts_with(value));
            match may_be_copied {
                true => (0..KEYS_PER_TYPE).any(has_beginning),
                false => has_beginning(shown.key) && !(is_written && self.is_overwritten_before(shown, done)),
            }
        })
    }

    /// Returns `true` if a remaining operation overwrites a string before the reply that shows it.
    fn is_overwritten_before(&self, shown: &ShownString, done: &[usize]) -> bool {
        let reader = shown.shown_by;
        let sent_step = self.histories[reader.connection].events[reader.index].sent_step;
        let mut overwriting = self.overwriting[shown.key].iter().filter(|id| id.remains(done));
        overwriting.any(|id| match id.connection == reader.connection {
            true => id.index < reader.index,
            false => self.histories[id.connection].events[id.index].answer_step() < sent_step,
        })
    }

    /// Applies rule 3 to a string that is there.
    fn can_be_missing(&self, key: usize, done: &[usize]) -> bool {
        let deleting = self.deleting.as_ref();
        deleting.is_none_or(|deleting| any_remains(&deleting[key], done)) || !any_remains(&self.missing[key], done)
    }

    /// Applies rule 4 to a number.
    fn can_show_element(&self, number: u32, model: &Model, done: &[usize]) -> bool {
        let Some(uses) = self.elements.get(&number) else {
            return true;
        };
        let is_in_list = || {
            let text = number.to_string().into_bytes();
            (0..KEYS_PER_TYPE).any(|list| model.list(list).contains(&text))
        };
        any_remains(&uses.writers, done) || !any_remains(&uses.shown_by, done) || is_in_list()
    }
}

/// Returns the number at the beginning of a value: that which a client has written.
pub fn leading_number(value: &[u8]) -> Option<u32> {
    let end = value.iter().position(|byte| !byte.is_ascii_digit());
    let digits = &value[..end.unwrap_or(value.len())];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns what a reply shows of strings, with their keys.
fn shown_strings<'r>(operation: &Operation, reply: &'r SeenReply) -> Vec<(usize, &'r SeenReply)> {
    match (operation.effect(), reply) {
        (Operation::Get(key) | Operation::SetGet(key, _), reply) => vec![(*key, reply)],
        (Operation::ScriptSlowAppend(key, _) | Operation::ScriptAppendUndeclared(key, _), reply) => vec![(*key, reply)],
        (Operation::ScriptUndeclared(key, ..), reply) => vec![(*key, reply)],
        (
            Operation::ScriptSwap(first, second, _)
            | Operation::ScriptSlowSwap(first, second, _)
            | Operation::ScriptRead(first, second),
            SeenReply::Array(items),
        ) => [*first, *second].into_iter().zip(items).collect(),
        (Operation::GetAll, SeenReply::Array(items)) => items.iter().enumerate().take(KEYS_PER_TYPE).collect(),
        (Operation::Save, SeenReply::Array(parts)) => match parts.first() {
            Some(SeenReply::Array(items)) => items.iter().enumerate().take(KEYS_PER_TYPE).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Returns the elements that a reply shows, with their lists.
pub fn shown_elements<'r>(operation: &Operation, reply: &'r SeenReply) -> Vec<(usize, &'r [u8])> {
    if let Some(popped) = popped_element(operation, reply) {
        return vec![popped];
    }
    (0..KEYS_PER_TYPE)
        .filter_map(|list| shown_list(operation, reply, list).map(|items| (list, items)))
        .flat_map(|(list, items)| items.into_iter().map(move |element| (list, element)))
        .collect()
}

/// Returns the element that an operation has popped or moved, with the list that it was in.
pub fn popped_element<'r>(operation: &Operation, reply: &'r SeenReply) -> Option<(usize, &'r [u8])> {
    match (operation, reply) {
        (
            Operation::Pop { list: from, .. } | Operation::Move(from, _) | Operation::BlockingMove { from, .. },
            SeenReply::Bulk(element),
        ) => Some((*from, element.as_slice())),
        (Operation::BlockingPop { lists, .. }, SeenReply::Array(items)) => {
            let [SeenReply::Bulk(name), SeenReply::Bulk(element)] = items.as_slice() else {
                return None;
            };
            let is_from = |list: &usize| operation::list(*list).as_bytes() == name.as_slice();
            let from = lists.iter().copied().find(is_from)?;
            Some((from, element.as_slice()))
        }
        _ => None,
    }
}

/// Returns all elements of a list, if the operation has read it as a whole.
pub fn shown_list<'r>(operation: &Operation, reply: &'r SeenReply, list: usize) -> Option<Vec<&'r [u8]>> {
    let items = match (operation, reply) {
        (Operation::Range(read), SeenReply::Array(items)) if *read == list => items,
        (Operation::Save, SeenReply::Array(parts)) => match parts.get(1 + list)? {
            SeenReply::Array(items) => items,
            _ => return None,
        },
        _ => return None,
    };
    let element = |item: &'r SeenReply| match item {
        SeenReply::Bulk(element) => Some(element.as_slice()),
        _ => None,
    };
    items.iter().map(element).collect()
}

/// Returns the strings that an operation with this reply has overwritten or deleted.
fn overwritten_strings(operation: &Operation, reply: &SeenReply) -> Vec<usize> {
    let is_ok = *reply == SeenReply::ok();
    match (operation.effect(), reply) {
        (Operation::Set(key, _) | Operation::SetRepeatedly(key, _), _) if is_ok => vec![*key],
        (Operation::SetMany(keys, _), _) if is_ok => keys.clone(),
        (Operation::FlushAll, _) if is_ok => (0..KEYS_PER_TYPE).collect(),
        (Operation::SetGet(key, _), SeenReply::Bulk(_) | SeenReply::Null) => vec![*key],
        (Operation::Delete(key), SeenReply::Integer(1)) => vec![*key],
        (Operation::ScriptSwap(first, second, _), SeenReply::Array(_)) => vec![*first, *second],
        (Operation::ScriptSlowSwap(first, second, _), SeenReply::Array(_)) => vec![*first, *second],
        (Operation::ScriptUndeclared(first, second, _), SeenReply::Bulk(_)) => vec![*first, *second],
        _ => Vec::new(),
    }
}

/// Returns elements that may have left a list: at least those that have.
fn removed_elements<'m>(
    before: &'m VecDeque<Vec<u8>>,
    after: &VecDeque<Vec<u8>>,
) -> impl Iterator<Item = &'m Vec<u8>> + use<'m> {
    let is_shifted =
        before.len() <= after.len() + 1 && before.iter().skip(1).zip(after).all(|(one, other)| one == other);
    let range = match is_shifted {
        // The first one was popped.
        true => 0..before.len().min(1),
        false => {
            let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
            same..before.len()
        }
    };
    before.range(range)
}
