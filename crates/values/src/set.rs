//! Sets.
//!
//! A set has one of three forms, and Valkey's three names for them:
//!
//! ```text
//!   form       reported     where                                  order of members
//!   Integers   intset       packed, or bytes behind the entry      ascending
//!   Run        listpack     packed, or bytes behind the entry      as they came
//!   Table      hashtable    records and their index                none
//! ```
//!
//! The first two are *flat*: the bytes of a packed set (see [`packed`](crate::packed)), searched from end to end or by
//! bisection. As long as they are few they live in the table entry of their key. A change unpacks them, which copies
//! them into a [`Set`], changes that, and stores what it has become.
//!
//! ```text
//!   +------+-----------------------+----------------+
//!   | kind | members, 4, little e. | run            |      Run; that of Integers is in `integers`
//!   +------+-----------------------+----------------+
//! ```
//!
//! Sets that outgrow their [`Limits`] change their form, and never back, but for what SPOP leaves of a set when it takes
//! most of it, as in Valkey.

mod integers;
mod random;
mod table;
mod view;

pub use integers::Integers;
pub use table::Table;
pub use view::{Members, SetView};

use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, Run};
use crate::packed::{self, PackedKind};
use crate::records::Records;
use crate::size_class::{self, reserve_class};

/// No set of integers has more members, whatever its limit says.
const MOST_INTEGERS: usize = 1 << 30;
/// No run has more bytes.
const LARGEST_RUN_BYTES: usize = 1 << 30;
/// Bytes in front of the run of a flat set.
const RUN_HEADER_BYTES: usize = 5;
/// What a whole listpack has beside its run: Valkey's limit includes that.
const WHOLE_BYTES: usize = 7;

/// How far a set may grow in each of its compact forms.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `set-max-intset-entries`.
    pub integers: usize,
    /// `set-max-listpack-entries`.
    pub run_members: usize,
    /// `set-max-listpack-value`, bytes of a member.
    pub run_member_bytes: usize,
}

impl Limits {
    fn most_integers(self) -> usize {
        self.integers.min(MOST_INTEGERS)
    }
}

/// A set that can be changed.
#[derive(Clone, Debug)]
pub struct Set(Form);

#[derive(Clone, Debug)]
enum Form {
    /// The bytes of a packed set, of any length.
    Flat(Vec<u8>),
    /// Any members.
    Table(Table),
}

impl Set {
    /// An empty set for about `expected` members of which `member` is the first. `room` is used if bytes are needed.
    pub fn of_first(member: &[u8], expected: usize, limits: Limits, room: Vec<u8>) -> Self {
        if expected <= limits.integers && listpack::integer_of(member).is_some() {
            Set(Form::Flat(integers::empty(room)))
        } else if expected <= limits.run_members {
            Set(Form::Flat(empty_run(room)))
        } else {
            Set(Form::Table(Table::default()))
        }
    }

    /// An empty set of integers.
    pub fn of_integers() -> Self {
        Set(Form::Flat(integers::empty(Vec::new())))
    }

    /// An empty set that begins as a run.
    pub fn of_run() -> Self {
        Set(Form::Flat(empty_run(Vec::new())))
    }

    /// An empty set that is a table from the start, prepared for so many members of so many bytes in all.
    pub fn of_table(members: usize, bytes: usize) -> Self {
        Set(Form::Table(Table::with_capacity(members, bytes)))
    }

    /// The set of a run from outside, whatever the length of its members. `None` if one is there twice.
    pub fn of_foreign_run(run: Run<'_>, limits: Limits) -> Option<Self> {
        let mut table = Table::default();
        let mut flat = empty_run(Vec::new());
        for (_, member) in run {
            if !table.insert(member.text(&mut [0; DECIMAL_MAX_BYTES])) {
                return None;
            }
            // Others may store as a string what is an integer here.
            listpack::push_element(&mut flat, normal(member));
        }
        if table.len() > limits.run_members {
            return Some(Set(Form::Table(table)));
        }
        set_count(&mut flat, table.len());
        Some(Set(Form::Flat(flat)))
    }

    /// The set that a packed set is.
    pub fn unpack(packed: Vec<u8>) -> Self {
        Set(Form::Flat(packed))
    }

    /// The packed form, if the set has one and it is small enough for a table entry.
    pub fn packed(&self) -> Option<&[u8]> {
        match &self.0 {
            Form::Flat(flat) if flat.len() <= packed::LARGEST_BYTES => Some(flat),
            _ => None,
        }
    }

    /// The bytes that a flat set used: room for the next.
    pub fn into_room(self) -> Option<Vec<u8>> {
        match self.0 {
            Form::Flat(flat) => Some(flat),
            Form::Table(_) => None,
        }
    }

    /// The set, to be looked at.
    #[inline]
    pub fn view(&self) -> SetView<'_> {
        match &self.0 {
            Form::Flat(flat) => SetView::of_packed(flat),
            Form::Table(table) => SetView::Table(table),
        }
    }

    /// The records of a table.
    pub fn records(&self) -> Option<&Records> {
        match &self.0 {
            Form::Flat(_) => None,
            Form::Table(table) => Some(table.records()),
        }
    }

    /// Members.
    #[inline]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        self.view().encoding_name()
    }

    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match &self.0 {
            Form::Flat(flat) => flat.capacity(),
            Form::Table(table) => table.allocated_bytes(),
        }
    }

    /// Prepares for `more` members; a set that is sure to become a table, by Valkey's reckoning, becomes one now.
    pub fn expect(&mut self, more: usize, limits: Limits) {
        let becomes_table = match self.view() {
            SetView::Integers(_) => more > limits.integers,
            SetView::Run { .. } => more > limits.run_members,
            SetView::Table(_) => false,
        };
        if becomes_table {
            self.become_table();
        }
    }

    /// Adds a member. Whether it was missing.
    #[inline]
    pub fn add(&mut self, member: &[u8], limits: Limits) -> bool {
        match &mut self.0 {
            Form::Table(table) => table.insert(member),
            Form::Flat(_) => self.add_to_flat(Element::of(member), limits),
        }
    }

    /// Adds a member in the form that a view gave it in. Whether it was missing.
    #[inline]
    pub fn add_element(&mut self, member: Element<'_>, limits: Limits) -> bool {
        match &mut self.0 {
            Form::Table(table) => table.insert(member.text(&mut [0; DECIMAL_MAX_BYTES])),
            Form::Flat(_) => self.add_to_flat(member, limits),
        }
    }

    fn add_to_flat(&mut self, member: Element<'_>, limits: Limits) -> bool {
        if self.view().contains_element(member) {
            return false;
        }
        self.add_missing(member, limits);
        true
    }

    /// Adds a member that is known to be missing.
    pub fn add_missing(&mut self, member: Element<'_>, limits: Limits) {
        if let Form::Table(table) = &mut self.0 {
            return table.insert_missing(member.text(&mut [0; DECIMAL_MAX_BYTES]));
        }
        let member = normal(member);
        if let (Form::Flat(flat), Element::Int(number)) = (&mut self.0, member)
            && PackedKind::of(flat) == PackedKind::IntegerSet
        {
            reserve_class(flat, 8);
            integers::insert(flat, number);
            if Integers::of_packed(flat).len() > limits.most_integers() {
                self.become_table();
            }
            return;
        }
        match self.view() {
            SetView::Integers(integers) if integers_fit_run(integers, member, limits) => self.become_run(),
            SetView::Run { count, run } if fits_run(count, run, member, limits) => {}
            SetView::Table(_) => {}
            _ => self.become_table(),
        }
        match &mut self.0 {
            Form::Flat(flat) => push(flat, member),
            Form::Table(table) => table.insert_missing(member.text(&mut [0; DECIMAL_MAX_BYTES])),
        }
    }

    /// Takes a member out. Whether it was there.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.0 {
            Form::Table(table) => table.remove(member),
            Form::Flat(flat) => remove_from_flat(flat, Element::of(member)),
        }
    }

    /// Takes a member out that a view gave. Whether it was there.
    pub fn remove_element(&mut self, member: Element<'_>) -> bool {
        match &mut self.0 {
            Form::Table(table) => table.remove(member.text(&mut [0; DECIMAL_MAX_BYTES])),
            Form::Flat(flat) => remove_from_flat(flat, normal(member)),
        }
    }

    /// Gives back memory that is to spare after many members were added.
    pub fn shrink(&mut self) {
        match &mut self.0 {
            Form::Flat(flat) => size_class::shrink_to_class(flat),
            Form::Table(table) => table.shrink(),
        }
    }

    /// Makes a set of nothing but integers one of that form, unless they are too many.
    pub fn prefer_integers(&mut self, limits: Limits) {
        let view = self.view();
        if matches!(view, SetView::Integers(_)) || view.len() > limits.most_integers() {
            return;
        }
        let mut numbers: Vec<i64> = Vec::with_capacity(view.len());
        for member in view.iter() {
            match normal(member) {
                Element::Int(number) => numbers.push(number),
                Element::Bytes(_) => return,
            }
        }
        numbers.sort_unstable();
        self.0 = Form::Flat(integers::of_ascending(&numbers));
    }

    fn become_run(&mut self) {
        let view = self.view();
        let mut flat = empty_run(Vec::new());
        view.iter().for_each(|member| listpack::push_element(&mut flat, member));
        set_count(&mut flat, view.len());
        self.0 = Form::Flat(flat);
    }

    fn become_table(&mut self) {
        let view = self.view();
        let mut table = Table::with_capacity(view.len() + 1, view.text_bytes());
        view.iter()
            .for_each(|member| table.insert_missing(member.text(&mut [0; DECIMAL_MAX_BYTES])));
        self.0 = Form::Table(table);
    }
}

/// A member in the form in which flat sets have it: tables have integers as bytes.
#[inline]
fn normal(member: Element<'_>) -> Element<'_> {
    match member {
        Element::Int(_) => member,
        Element::Bytes(bytes) => Element::of(bytes),
    }
}

/// Whether a set of integers may become a run, to take a member that is none.
fn integers_fit_run(integers: Integers<'_>, member: Element<'_>, limits: Limits) -> bool {
    let ends = [integers.first(), integers.last()].map(|end| end.map_or(0, |end| Element::Int(end).text_bytes()));
    let longest = ends[0].max(ends[1]);
    let bytes = member.text_bytes();
    // That each takes a listpack's largest element for integers is an upper bound.
    integers.len() < limits.run_members
        && bytes <= limits.run_member_bytes
        && longest <= limits.run_member_bytes
        && integers.len() * 10 + bytes + WHOLE_BYTES <= LARGEST_RUN_BYTES
}

/// Whether a run may take one more member.
fn fits_run(count: usize, run: Run<'_>, member: Element<'_>, limits: Limits) -> bool {
    let bytes = member.text_bytes();
    count < limits.run_members
        && bytes <= limits.run_member_bytes
        && run.bytes().len() + bytes + WHOLE_BYTES <= LARGEST_RUN_BYTES
}

/// A flat set without any member.
fn empty_run(mut room: Vec<u8>) -> Vec<u8> {
    room.clear();
    room.extend_from_slice(&[PackedKind::Set as u8, 0, 0, 0, 0]);
    room
}

/// The members and the run of a flat set that is none of integers.
#[inline]
fn run_of(flat: &[u8]) -> (usize, Run<'_>) {
    match *flat {
        [_, a, b, c, d, ref run @ ..] => (u32::from_le_bytes([a, b, c, d]) as usize, Run::new(run)),
        _ => unreachable!("a flat set begins with its number of members"),
    }
}

fn set_count(flat: &mut [u8], count: usize) {
    flat[1..RUN_HEADER_BYTES].copy_from_slice(&(count as u32).to_le_bytes());
}

fn push(flat: &mut Vec<u8>, member: Element<'_>) {
    let count = run_of(flat).0;
    reserve_class(flat, member.run_bytes());
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
