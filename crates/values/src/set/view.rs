//! Read-only views of sets, whether packed in the table entry or stored separately.

use super::integers::{self, PackedIntegers};
use super::run_of;
use super::table::{self, SetTable};
use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, ElementRun};
use crate::packed::PackedKind;

/// A read-only view of a set.
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    /// Ascending integers.
    Integers(PackedIntegers<'a>),
    /// A run of members.
    Run {
        /// The number of members.
        count: usize,
        /// The members.
        run: ElementRun<'a>,
    },
    /// A table of members.
    Table(&'a SetTable),
}

impl<'a> SetView<'a> {
    /// Creates a view of packed bytes.
    #[inline]
    pub fn of_packed(packed: &'a [u8]) -> Self {
        match PackedKind::of(packed) {
            PackedKind::IntegerSet => SetView::Integers(PackedIntegers::of_packed(packed)),
            PackedKind::Set => {
                let (count, run) = run_of(packed);
                SetView::Run { count, run }
            }
            other => unreachable!("{other:?} is no set"),
        }
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            SetView::Integers(integers) => integers.len(),
            SetView::Run { count, .. } => *count,
            SetView::Table(table) => table.len(),
        }
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match self {
            SetView::Integers(_) => "intset",
            SetView::Run { .. } => "listpack",
            SetView::Table(_) => "hashtable",
        }
    }

    /// Returns `true` if `member` is present.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self {
            SetView::Integers(integers) => {
                listpack::parse_integer(member).is_some_and(|number| integers.contains(number))
            }
            SetView::Run { run, .. } => run.find(member, 1).is_some(),
            SetView::Table(table) => table.contains(member),
        }
    }

    /// Returns `true` if `member` is present, regardless of the form in which it is given.
    #[inline]
    pub fn contains_element(&self, member: Element<'_>) -> bool {
        match (self, member) {
            (_, Element::Bytes(bytes)) => self.contains(bytes),
            (SetView::Integers(integers), Element::Int(number)) => integers.contains(number),
            (SetView::Run { run, .. }, member) => run.iter().any(|(_, other)| other == member),
            (SetView::Table(table), member) => table.contains(member.text(&mut [0; DECIMAL_MAX_BYTES])),
        }
    }

    /// The approximate time that [`Self::contains`] takes, in nanoseconds.
    pub fn estimate_search_ns(&self) -> u64 {
        match self {
            SetView::Integers(_) => 20,
            SetView::Run { count, .. } => 10 + 2 * *count as u64,
            SetView::Table(_) => 100,
        }
    }

    /// An upper bound for the total length of all members in bytes. It is close to the actual length unless the members
    /// are integers.
    pub fn max_text_bytes(&self) -> usize {
        match self {
            SetView::Integers(integers) => integers.len() * (integers.width() * 5 / 2 + 1),
            SetView::Run { count, run } => run.bytes().len() + count * 3,
            SetView::Table(table) => table.allocated_bytes(),
        }
    }

    /// Calls `visit` for all members. Faster than the iterator.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(Element<'a>)) {
        match self {
            SetView::Table(table) => table.for_each(|member| visit(Element::Bytes(member))),
            flat => flat.iter().for_each(visit),
        }
    }

    /// Visits members from a cursor on (0 at first), at least `at_least` of them if available. Returns the cursor for
    /// the next call, which is 0 at the end. A flat set is visited in one call.
    pub fn scan(&self, cursor: u64, at_least: usize, mut visit: impl FnMut(Element<'_>)) -> u64 {
        if let SetView::Table(table) = self {
            return table.scan(cursor, at_least, &mut |member| visit(Element::Bytes(member)));
        }
        self.iter().for_each(visit);
        0
    }

    /// Iterates over all members.
    #[inline]
    pub fn iter(&self) -> SetMembers<'a> {
        match self {
            SetView::Integers(integers) => SetMembers::Integers(integers.iter()),
            SetView::Run { run, .. } => SetMembers::Run(run.iter()),
            SetView::Table(table) => SetMembers::Table(table.iter()),
        }
    }
}

/// An iterator over the members of a set. Flat forms return integers as such, a table returns them as bytes.
#[derive(Clone)]
pub enum SetMembers<'a> {
    /// The remaining integers.
    Integers(integers::PackedIntegersIter<'a>),
    /// The remaining elements of a run.
    Run(listpack::ElementRunIter<'a>),
    /// The remaining records of a table.
    Table(table::SetTableIter<'a>),
}

impl<'a> Iterator for SetMembers<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        match self {
            SetMembers::Integers(integers) => integers.next().map(Element::Int),
            SetMembers::Run(run) => run.next().map(|(_, element)| element),
            SetMembers::Table(table) => table.next().map(Element::Bytes),
        }
    }
}
