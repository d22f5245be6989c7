//! A set as it is read: packed in its entry or behind it.

use super::integers::{self, Integers};
use super::run_of;
use super::table::{self, Table};
use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, Run};
use crate::packed::PackedKind;

/// A set to be looked at.
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    /// Ascending integers.
    Integers(Integers<'a>),
    /// A run of members.
    Run {
        /// How many there are.
        count: usize,
        /// The members.
        run: Run<'a>,
    },
    /// A table of members.
    Table(&'a Table),
}

impl<'a> SetView<'a> {
    /// The set that these packed bytes are.
    #[inline]
    pub fn of_packed(packed: &'a [u8]) -> Self {
        match PackedKind::of(packed) {
            PackedKind::IntegerSet => SetView::Integers(Integers::of_packed(packed)),
            PackedKind::Set => {
                let (count, run) = run_of(packed);
                SetView::Run { count, run }
            }
            other => unreachable!("{other:?} is no set"),
        }
    }

    /// Members.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            SetView::Integers(integers) => integers.len(),
            SetView::Run { count, .. } => *count,
            SetView::Table(table) => table.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match self {
            SetView::Integers(_) => "intset",
            SetView::Run { .. } => "listpack",
            SetView::Table(_) => "hashtable",
        }
    }

    /// Whether this is a member.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self {
            SetView::Integers(integers) => listpack::integer_of(member).is_some_and(|number| integers.contains(number)),
            SetView::Run { run, .. } => run.find(member, 1).is_some(),
            SetView::Table(table) => table.contains(member),
        }
    }

    /// Whether this is a member, in whichever form it comes.
    #[inline]
    pub fn contains_element(&self, member: Element<'_>) -> bool {
        match (self, member) {
            (_, Element::Bytes(bytes)) => self.contains(bytes),
            (SetView::Integers(integers), Element::Int(number)) => integers.contains(number),
            (SetView::Run { run, .. }, member) => run.iter().any(|(_, other)| other == member),
            (SetView::Table(table), member) => table.contains(member.text(&mut [0; DECIMAL_MAX_BYTES])),
        }
    }

    /// About how long [`Self::contains`] takes, ns.
    pub fn search_ns(&self) -> u64 {
        match self {
            SetView::Integers(_) => 20,
            SetView::Run { count, .. } => 10 + 2 * *count as u64,
            SetView::Table(_) => 100,
        }
    }

    /// At least the length of all members together, in bytes; hardly more, unless they are integers.
    pub fn text_bytes(&self) -> usize {
        match self {
            SetView::Integers(integers) => integers.len() * (integers.width() * 5 / 2 + 1),
            SetView::Run { count, run } => run.bytes().len() + count * 3,
            SetView::Table(table) => table.allocated_bytes(),
        }
    }

    /// Visits all members; faster than the iterator.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(Element<'a>)) {
        match self {
            SetView::Table(table) => table.for_each(|member| visit(Element::Bytes(member))),
            flat => flat.iter().for_each(visit),
        }
    }

    /// Visits members from a cursor on (0 at first), at least `at_least` of them if there are so many, and returns the
    /// cursor for the next call, 0 at the end. A flat set is visited at once.
    pub fn scan(&self, cursor: u64, at_least: usize, mut visit: impl FnMut(Element<'_>)) -> u64 {
        if let SetView::Table(table) = self {
            return table.scan(cursor, at_least, &mut |member| visit(Element::Bytes(member)));
        }
        self.iter().for_each(visit);
        0
    }

    /// Every member.
    #[inline]
    pub fn iter(&self) -> Members<'a> {
        match self {
            SetView::Integers(integers) => Members::Integers(integers.iter()),
            SetView::Run { run, .. } => Members::Run(run.iter()),
            SetView::Table(table) => Members::Table(table.iter()),
        }
    }
}

/// The members of a set. Integers come as such from the flat forms, as bytes from a table.
#[derive(Clone)]
pub enum Members<'a> {
    /// Numbers that are left, of so many bytes.
    Integers(integers::Iter<'a>),
    /// Elements that are left.
    Run(listpack::Iter<'a>),
    /// Records that are left.
    Table(table::Iter<'a>),
}

impl<'a> Iterator for Members<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        match self {
            Members::Integers(integers) => integers.next().map(Element::Int),
            Members::Run(run) => run.next().map(|(_, element)| element),
            Members::Table(table) => table.next().map(Element::Bytes),
        }
    }
}
