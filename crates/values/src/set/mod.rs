//! Sets.
//!
//! A set has one of three forms, which correspond to Valkey's encodings:
//!
//! ```text
//!   form       encoding     storage                                order of members
//!   Integers   intset       packed, or a separate byte string      ascending
//!   Run        listpack     packed, or a separate byte string      insertion order
//!   Table      hashtable    records and their index                none
//! ```
//!
//! The first two forms are *flat*: they are the bytes of a packed set (see [`packed`](crate::packed)), searched
//! linearly or by bisection. As long as these bytes are few, they are stored in the table entry of the key. To change a
//! packed set, the caller unpacks it: it copies the bytes into a [`Set`], changes that, and stores the result.
//!
//! ```text
//!   +------+------------------------------+----------------+
//!   | kind | member count, 4, little e.   | run            |      Run; for Integers see `integers`
//!   +------+------------------------------+----------------+
//! ```
//!
//! A set that exceeds its [`SetLimits`] changes its form and never changes back. As in Valkey, the exception is the
//! remainder of a set after SPOP removed most of it.

mod integers;
mod random;
mod table;
mod view;

pub use integers::PackedIntegers;
pub use table::SetTable;
pub use view::{SetMembers, SetView};

use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, ElementRun};
use crate::packed::{self, PackedKind};
use crate::records::Records;
use crate::relocation::{PartCursor, PartMover};
use crate::size_class::{self, reserve_size_class};

/// The maximum number of members of a set of integers, regardless of the configured limit.
const MAX_INTEGERS: usize = 1 << 30;
/// The maximum length of a run in bytes.
const MAX_RUN_BYTES: usize = 1 << 30;
/// The number of bytes before the run of a flat set.
const RUN_HEADER_BYTES: usize = 5;
/// The size of a listpack's header and end mark in bytes. Valkey's limit includes them.
const LISTPACK_OVERHEAD_BYTES: usize = 7;

/// The limits of the compact forms of a set.
#[derive(Clone, Copy, Debug)]
pub struct SetLimits {
    /// `set-max-intset-entries`.
    pub integers: usize,
    /// `set-max-listpack-entries`.
    pub run_members: usize,
    /// `set-max-listpack-value`, the maximum length of a member in bytes.
    pub run_member_bytes: usize,
}

impl SetLimits {
    fn max_integers(self) -> usize {
        self.integers.min(MAX_INTEGERS)
    }
}

/// A set that can be changed.
#[derive(Clone, Debug)]
pub struct Set(SetForm);

#[derive(Clone, Debug)]
enum SetForm {
    /// The bytes of a packed set of any length.
    Flat(Vec<u8>),
    /// A set of arbitrary members.
    Table(SetTable),
}

impl Set {
    /// Creates an empty set in the form for about `expected` members, of which `member` is the first. A flat set reuses
    /// the allocation of `buffer`.
    pub fn for_first_member(member: &[u8], expected: usize, limits: SetLimits, buffer: Vec<u8>) -> Self {
        if expected <= limits.integers && listpack::parse_integer(member).is_some() {
            Set(SetForm::Flat(integers::empty_in(buffer)))
        } else if expected <= limits.run_members {
            Set(SetForm::Flat(empty_run(buffer)))
        } else {
            Set(SetForm::Table(SetTable::default()))
        }
    }

    /// Creates an empty set of integers.
    pub fn new_integers() -> Self {
        Set(SetForm::Flat(integers::empty_in(Vec::new())))
    }

    /// Creates an empty set in the form of a run.
    pub fn new_run() -> Self {
        Set(SetForm::Flat(empty_run(Vec::new())))
    }

    /// Creates an empty set in the form of a table, with capacity for `members` members of `bytes` bytes in total.
    pub fn new_table(members: usize, bytes: usize) -> Self {
        Set(SetForm::Table(SetTable::with_capacity(members, bytes)))
    }

    /// Creates a set from a run of external origin, regardless of the length of its members. Returns `None` if a member
    /// occurs twice.
    pub fn from_external_run(run: ElementRun<'_>, limits: SetLimits) -> Option<Self> {
        let mut table = SetTable::default();
        let mut flat = empty_run(Vec::new());
        for (_, member) in run {
            if !table.insert(member.text(&mut [0; DECIMAL_MAX_BYTES])) {
                return None;
            }
            // Other servers may store as a string what is an integer here.
            listpack::push_element(&mut flat, normalize(member));
        }
        if table.len() > limits.run_members {
            return Some(Set(SetForm::Table(table)));
        }
        set_count(&mut flat, table.len());
        Some(Set(SetForm::Flat(flat)))
    }

    /// Creates a set from the bytes of a packed set.
    pub fn from_packed(packed: Vec<u8>) -> Self {
        Set(SetForm::Flat(packed))
    }

    /// Returns the packed bytes if the set is flat and small enough for a table entry.
    pub fn packed(&self) -> Option<&[u8]> {
        match &self.0 {
            SetForm::Flat(flat) if flat.len() <= packed::MAX_PACKED_BYTES => Some(flat),
            _ => None,
        }
    }

    /// Returns the byte vector of a flat set, so that another set can reuse the allocation.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        match self.0 {
            SetForm::Flat(flat) => Some(flat),
            SetForm::Table(_) => None,
        }
    }

    /// Returns a read-only view of the set.
    #[inline]
    pub fn view(&self) -> SetView<'_> {
        match &self.0 {
            SetForm::Flat(flat) => SetView::of_packed(flat),
            SetForm::Table(table) => SetView::Table(table),
        }
    }

    /// Returns the records if the set is a table.
    pub fn records(&self) -> Option<&Records> {
        match &self.0 {
            SetForm::Flat(_) => None,
            SetForm::Table(table) => Some(table.records()),
        }
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Returns `true` if the set has no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        self.view().encoding_name()
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match &self.0 {
            SetForm::Flat(flat) => flat.capacity(),
            SetForm::Table(table) => table.allocated_bytes(),
        }
    }

    /// Moves the bytes or the records; see [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        match &mut self.0 {
            SetForm::Flat(flat) => {
                mover.vec(flat);
                None
            }
            SetForm::Table(table) => table.move_parts(from, mover),
        }
    }

    /// Prepares for the addition of `more` members. If this number exceeds the limit of the current form, as Valkey
    /// estimates it, the set becomes a table immediately.
    pub fn prepare_for_members(&mut self, more: usize, limits: SetLimits) {
        let becomes_table = match self.view() {
            SetView::Integers(_) => more > limits.integers,
            SetView::Run { .. } => more > limits.run_members,
            SetView::Table(_) => false,
        };
        if becomes_table {
            self.convert_to_table();
        }
    }

    /// Adds a member. Returns `true` if it was not present.
    #[inline]
    pub fn add(&mut self, member: &[u8], limits: SetLimits) -> bool {
        match &mut self.0 {
            SetForm::Table(table) => table.insert(member),
            SetForm::Flat(_) => self.add_to_flat(Element::of(member), limits),
        }
    }

    /// Adds a member in the form in which a view returned it. Returns `true` if it was not present.
    #[inline]
    pub fn add_element(&mut self, member: Element<'_>, limits: SetLimits) -> bool {
        match &mut self.0 {
            SetForm::Table(table) => table.insert(member.text(&mut [0; DECIMAL_MAX_BYTES])),
            SetForm::Flat(_) => self.add_to_flat(member, limits),
        }
    }

    fn add_to_flat(&mut self, member: Element<'_>, limits: SetLimits) -> bool {
        if self.view().contains_element(member) {
            return false;
        }
        self.add_new(member, limits);
        true
    }

    /// Adds a member that is known not to be present.
    pub fn add_new(&mut self, member: Element<'_>, limits: SetLimits) {
        if let SetForm::Table(table) = &mut self.0 {
            return table.insert_new(member.text(&mut [0; DECIMAL_MAX_BYTES]));
        }
        let member = normalize(member);
        if let (SetForm::Flat(flat), Element::Int(number)) = (&mut self.0, member)
            && PackedKind::of(flat) == PackedKind::IntegerSet
        {
            reserve_size_class(flat, 8);
            integers::insert(flat, number);
            if PackedIntegers::of_packed(flat).len() > limits.max_integers() {
                self.convert_to_table();
            }
            return;
        }
        match self.view() {
            SetView::Integers(integers) if integers_fit_run(integers, member, limits) => self.convert_to_run(),
            SetView::Run { count, run } if fits_run(count, run, member, limits) => {}
            SetView::Table(_) => {}
            _ => self.convert_to_table(),
        }
        match &mut self.0 {
            SetForm::Flat(flat) => push(flat, member),
            SetForm::Table(table) => table.insert_new(member.text(&mut [0; DECIMAL_MAX_BYTES])),
        }
    }

    /// Removes a member. Returns `true` if it was present.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.0 {
            SetForm::Table(table) => table.remove(member),
            SetForm::Flat(flat) => remove_from_flat(flat, Element::of(member)),
        }
    }

    /// Removes a member in the form in which a view returned it. Returns `true` if it was present.
    pub fn remove_element(&mut self, member: Element<'_>) -> bool {
        match &mut self.0 {
            SetForm::Table(table) => table.remove(member.text(&mut [0; DECIMAL_MAX_BYTES])),
            SetForm::Flat(flat) => remove_from_flat(flat, normalize(member)),
        }
    }

    /// Frees spare capacity after many members were added.
    pub fn shrink(&mut self) {
        match &mut self.0 {
            SetForm::Flat(flat) => size_class::shrink_to_size_class(flat),
            SetForm::Table(table) => table.shrink(),
        }
    }

    /// Converts a set that contains only integers to a set of integers, unless it exceeds the limit.
    pub fn convert_to_integers_if_possible(&mut self, limits: SetLimits) {
        let view = self.view();
        if matches!(view, SetView::Integers(_)) || view.len() > limits.max_integers() {
            return;
        }
        let mut numbers: Vec<i64> = Vec::with_capacity(view.len());
        for member in view.iter() {
            match normalize(member) {
                Element::Int(number) => numbers.push(number),
                Element::Bytes(_) => return,
            }
        }
        numbers.sort_unstable();
        self.0 = SetForm::Flat(integers::from_ascending(&numbers));
    }

    fn convert_to_run(&mut self) {
        let view = self.view();
        let mut flat = empty_run(Vec::new());
        view.iter().for_each(|member| listpack::push_element(&mut flat, member));
        set_count(&mut flat, view.len());
        self.0 = SetForm::Flat(flat);
    }

    fn convert_to_table(&mut self) {
        let view = self.view();
        let mut table = SetTable::with_capacity(view.len() + 1, view.max_text_bytes());
        view.iter()
            .for_each(|member| table.insert_new(member.text(&mut [0; DECIMAL_MAX_BYTES])));
        self.0 = SetForm::Table(table);
    }
}

/// Converts a member to the form that flat sets store. Tables store integers as bytes.
#[inline]
fn normalize(member: Element<'_>) -> Element<'_> {
    match member {
        Element::Int(_) => member,
        Element::Bytes(bytes) => Element::of(bytes),
    }
}

/// Returns `true` if a set of integers may become a run in order to add a member that is not an integer.
fn integers_fit_run(integers: PackedIntegers<'_>, member: Element<'_>, limits: SetLimits) -> bool {
    let ends = [integers.first(), integers.last()].map(|end| end.map_or(0, |end| Element::Int(end).text_bytes()));
    let longest = ends[0].max(ends[1]);
    let bytes = member.text_bytes();
    // The size of the largest listpack element for integers gives an upper bound.
    integers.len() < limits.run_members
        && bytes <= limits.run_member_bytes
        && longest <= limits.run_member_bytes
        && integers.len() * 10 + bytes + LISTPACK_OVERHEAD_BYTES <= MAX_RUN_BYTES
}

/// Returns `true` if a run may contain one more member.
fn fits_run(count: usize, run: ElementRun<'_>, member: Element<'_>, limits: SetLimits) -> bool {
    let bytes = member.text_bytes();
    count < limits.run_members
        && bytes <= limits.run_member_bytes
        && run.bytes().len() + bytes + LISTPACK_OVERHEAD_BYTES <= MAX_RUN_BYTES
}

/// Creates a flat set without members.
fn empty_run(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.extend_from_slice(&[PackedKind::Set as u8, 0, 0, 0, 0]);
    buffer
}

/// Returns the number of members and the run of a flat set in the form of a run.
#[inline]
fn run_of(flat: &[u8]) -> (usize, ElementRun<'_>) {
    match *flat {
        [_, a, b, c, d, ref run @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, ElementRun::new(run)),
        _ => unreachable!("a flat set begins with its number of members"),
    }
}

fn set_count(flat: &mut [u8], count: usize) {
    flat[1..RUN_HEADER_BYTES].copy_from_slice(&(count as u32).to_le_bytes());
}

fn push(flat: &mut Vec<u8>, member: Element<'_>) {
    let count = run_of(flat).0;
    reserve_size_class(flat, member.run_bytes());
    listpack::push_element(flat, member);
    set_count(flat, count + 1);
}

fn remove_from_flat(flat: &mut Vec<u8>, member: Element<'_>) -> bool {
    if PackedKind::of(flat) == PackedKind::IntegerSet {
        return matches!(member, Element::Int(number) if integers::remove(flat, number));
    }
    let (count, run) = run_of(flat);
    let Some((offset, _)) = run.iter().find(|(_, other)| *other == member) else {
        return false;
    };
    listpack::remove(flat, RUN_HEADER_BYTES + offset, 1);
    set_count(flat, count - 1);
    true
}

#[cfg(test)]
mod tests;
