//! The elements that SORT sorts: their source, and their copies.

use std::ops::{ControlFlow, Range};

use weft_table::ValueRef;
use weft_values::Value;
use weft_values::list::{Direction, ListRef};
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::SortedSetView;

use crate::commands::error::CommandError;
use crate::commands::list::stored::value_as_list;
use crate::commands::set::value_as_set;
use crate::commands::sorted_set::value_as_sorted_set;

/// A collection that can be sorted.
pub enum SortSource<'a> {
    /// A missing key.
    Missing,
    /// A list, in list order.
    List(ListRef<'a>),
    /// A set, without order.
    Set(SetView<'a>),
    /// A sorted set, in the order of scores.
    SortedSet(SortedSetView<'a>),
}

impl<'a> SortSource<'a> {
    /// Returns the collection in a value.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value cannot be sorted.
    pub fn from_value(value: ValueRef<'a, Value>) -> Result<Self, CommandError> {
        match packed_kind(value) {
            Some(PackedKind::List) => value_as_list(value).map(SortSource::List),
            Some(PackedKind::Set) => value_as_set(value).map(SortSource::Set),
            Some(PackedKind::SortedSet) => value_as_sorted_set(value).map(SortSource::SortedSet),
            _ => Err(CommandError::WRONG_TYPE),
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            SortSource::Missing => 0,
            SortSource::List(list) => list.len(),
            SortSource::Set(set) => set.len(),
            SortSource::SortedSet(set) => set.len(),
        }
    }

    /// Copies the elements of a range, counted from the first or, with `is_reverse`, from the last. A set has no order
    /// and is not read in reverse.
    pub fn copy_range(&self, range: Range<usize>, is_reverse: bool) -> SortElements {
        let mut elements = SortElements::default();
        let count = range.len();
        if count == 0 {
            return elements;
        }
        match self {
            SortSource::Missing => {}
            SortSource::List(list) => {
                let (start, direction) = match is_reverse {
                    true => (list.len() - 1 - range.start, Direction::Backward),
                    false => (range.start, Direction::Forward),
                };
                list.visit(start, direction, |element| {
                    elements.push(element);
                    match elements.len() == count {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
            }
            SortSource::Set(set) => set
                .iter()
                .skip(range.start)
                .take(count)
                .for_each(|member| elements.push(member)),
            SortSource::SortedSet(set) => {
                let ranks = match is_reverse {
                    true => set.len() - range.end..set.len() - range.start,
                    false => range,
                };
                set.iter_ranks(ranks, is_reverse)
                    .for_each(|(member, _)| elements.push(member));
            }
        }
        elements
    }
}

/// Copies of elements, stored contiguously.
#[derive(Default)]
pub struct SortElements {
    bytes: Vec<u8>,
    /// The end of each element.
    ends: Vec<usize>,
}

impl SortElements {
    /// Adds an element.
    pub fn push(&mut self, element: Element<'_>) {
        self.bytes.extend_from_slice(element.text(&mut [0; DECIMAL_MAX_BYTES]));
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns an element.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn element(&self, index: usize) -> &[u8] {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.bytes[start..self.ends[index]]
    }

    /// Iterates over all elements.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|index| self.element(index))
    }
}

/// Returns the kind of a collection; `None` for other types.
fn packed_kind(value: ValueRef<'_, Value>) -> Option<PackedKind> {
    match value {
        ValueRef::Packed(packed) => match PackedKind::of(packed) {
            PackedKind::IntegerSet => Some(PackedKind::Set),
            kind => Some(kind),
        },
        ValueRef::Object(Value::List(_)) => Some(PackedKind::List),
        ValueRef::Object(Value::Set(_)) => Some(PackedKind::Set),
        ValueRef::Object(Value::SortedSet(_)) => Some(PackedKind::SortedSet),
        _ => None,
    }
}
