//! DEBUG LISTPACK and DEBUG QUICKLIST: print the elements of a value on the standard output of the server.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;

use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::hash::{self, HashRef};
use weft_values::list::packed::PackedList;
use weft_values::list::{Direction, ListRef};
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::SortedSetView;
use weft_values::sorted_set::packed::PackedSortedSet;

use super::debug::with_entry;
use crate::commands::context::{CommandResult, Context, NextStep, build_reply};
use crate::commands::error::CommandError;
use crate::commands::generic::object::encoding_name;
use crate::keyspace::access::is_expired;

/// Visits an entry that has not expired, as the subcommands do that look a key up: this is a hit or a miss.
pub fn with_live_entry(
    ctx: &mut Context<'_, '_>,
    argument: usize,
    visit: impl FnOnce(&mut Context<'_, '_>, EntryRef<'_, Value>) -> CommandResult,
) -> CommandResult {
    let mut is_found = false;
    let visited = with_entry(ctx, argument, |ctx, entry| {
        is_found = !is_expired(entry.expire_at_ms(), ctx.expiry_time_ms());
        match is_found {
            true => visit(ctx, entry),
            false => Err(CommandError::NO_SUCH_KEY),
        }
    });
    if !matches!(ctx.next_step, NextStep::Defer) {
        let effects = &mut ctx.keys.effects;
        *(if is_found {
            &mut effects.hits
        } else {
            &mut effects.misses
        }) += 1;
    }
    visited
}

/// Returns a line for each element of a value, after a line with their number; `None` if the value has another
/// encoding.
pub fn describe(entry: EntryRef<'_, Value>, encoding: &str) -> Option<String> {
    if encoding_name(entry) != encoding {
        return None;
    }
    let mut lines = ElementLines::default();
    match entry.value() {
        ValueRef::Packed(packed) => match PackedKind::of(packed) {
            PackedKind::List => lines.add_list(ListRef::Packed(PackedList::new(packed))),
            PackedKind::Hash => lines.add_hash(HashRef::Packed(hash::run_of(packed))),
            PackedKind::Set | PackedKind::IntegerSet => lines.add_set(SetView::of_packed(packed)),
            PackedKind::SortedSet => lines.add_sorted_set(SortedSetView::Packed(PackedSortedSet::new(packed))),
        },
        ValueRef::Object(Value::List(list)) => lines.add_list(ListRef::Large(list)),
        ValueRef::Object(Value::Hash(hash)) => lines.add_hash(HashRef::Large(hash)),
        ValueRef::Object(Value::Set(set)) => lines.add_set(set.view()),
        ValueRef::Object(Value::SortedSet(set)) => lines.add_sorted_set(SortedSetView::Large(set)),
        ValueRef::Object(Value::Stream(_) | Value::Module(_))
        | ValueRef::Int(_)
        | ValueRef::Bytes(_)
        | ValueRef::Blob(_) => return None,
    }
    Some(format!("{{elements: {}}}\n{}", lines.count, lines.text))
}

/// Prints a description, and replies that it was printed. The standard output may be slow, so a background thread
/// prints.
pub fn print(ctx: &mut Context<'_, '_>, text: String, encoding: &'static str) -> CommandResult {
    let protocol = ctx.client.protocol;
    ctx.run_without_keys(move |_| {
        // The reply does not depend on it: the standard output may be closed.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
        build_reply(protocol, |reply| {
            reply.simple(&format!("{encoding} structure printed on stdout"));
        })
    })
}

/// The lines of the elements.
#[derive(Default)]
struct ElementLines {
    count: usize,
    text: String,
}

impl ElementLines {
    fn add(&mut self, element: Element<'_>) {
        let text = element.text(&mut [0; DECIMAL_MAX_BYTES]).escape_ascii().to_string();
        let _ = writeln!(self.text, "[{}] {text}", self.count);
        self.count += 1;
    }

    fn add_list(&mut self, list: ListRef<'_>) {
        list.visit(0, Direction::Forward, |element| {
            self.add(element);
            ControlFlow::Continue(())
        });
    }

    fn add_hash(&mut self, hash: HashRef<'_>) {
        hash.for_each(0, |field| {
            self.add(field.name);
            self.add(field.value);
        });
    }

    fn add_set(&mut self, set: SetView<'_>) {
        set.iter().for_each(|member| self.add(member));
    }

    fn add_sorted_set(&mut self, set: SortedSetView<'_>) {
        for (member, score) in set.iter() {
            self.add(member);
            let _ = writeln!(self.text, "[{}] {score}", self.count);
            self.count += 1;
        }
    }
}
