//! A list in either form, so that commands need not distinguish them.

use std::ops::ControlFlow;

use super::packed::{PackedList, PackedListMut};
use super::position::Direction;
use super::position::ElementAction;
use super::position::ListEnd;
use super::{List, visit_run};
use crate::listpack::Element;

/// A list in either form, for reading.
#[derive(Clone, Copy, Debug)]
pub enum ListRef<'a> {
    /// A list packed into its table entry.
    Packed(PackedList<'a>),
    /// A list stored as a value of its own.
    Large(&'a List),
}

impl ListRef<'_> {
    /// The number of elements.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            ListRef::Packed(list) => list.len(),
            ListRef::Large(list) => list.len(),
        }
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The approximate size of the elements in bytes, or less if they are compressed.
    #[inline]
    pub fn approximate_bytes(self) -> usize {
        match self {
            ListRef::Packed(list) => list.run().bytes().len(),
            ListRef::Large(list) => list.allocated_bytes(),
        }
    }

    /// Calls `view` with element `index` and returns its result, or `None` if the index is out of range.
    #[inline]
    pub fn with_element<R>(self, index: usize, view: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        match self {
            ListRef::Packed(list) => {
                let offset = list.offset_of(index)?;
                list.run().at(offset).map(view)
            }
            ListRef::Large(list) => list.with_element(index, view),
        }
    }

    /// Calls `view` for the elements from element `start` on, until it returns `Break`.
    #[inline]
    pub fn visit(self, start: usize, direction: Direction, view: impl FnMut(Element<'_>) -> ControlFlow<()>) {
        match self {
            ListRef::Packed(list) => {
                if let Some(offset) = list.offset_of(start) {
                    let _ = visit_run(list.run(), offset, direction, view);
                }
            }
            ListRef::Large(list) => list.visit(start, direction, view),
        }
    }
}

/// A list in either form, for modification. The caller must ensure that a packed list has space for added elements.
#[derive(Debug)]
pub enum ListMut<'a> {
    /// A list packed into its table entry.
    Packed(PackedListMut<'a>),
    /// A list stored as a value of its own.
    Large(&'a mut List),
}

impl ListMut<'_> {
    /// Returns the list for reading.
    #[inline]
    pub fn as_ref(&self) -> ListRef<'_> {
        match self {
            ListMut::Packed(list) => ListRef::Packed(list.as_ref()),
            ListMut::Large(list) => ListRef::Large(list),
        }
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, end: ListEnd, element: &[u8]) {
        match self {
            ListMut::Packed(list) => list.push(end, Element::of(element)),
            ListMut::Large(list) => list.push(end, element),
        }
    }

    /// Inserts an element before or after element `index`. Does nothing if there is no such element.
    pub fn insert(&mut self, index: usize, after: bool, element: &[u8]) {
        match self {
            ListMut::Packed(list) => {
                if let Some(start) = list.as_ref().offset_of(index) {
                    let place = if after {
                        list.as_ref().run().end_of(start)
                    } else {
                        start
                    };
                    list.splice(place..place, 0, Some(Element::of(element)));
                }
            }
            ListMut::Large(list) => {
                list.insert(index, after, element);
            }
        }
    }

    /// Replaces element `index`. Does nothing if there is no such element.
    pub fn replace(&mut self, index: usize, element: &[u8]) {
        match self {
            ListMut::Packed(list) => {
                if let Some(start) = list.as_ref().offset_of(index) {
                    let end = list.as_ref().run().end_of(start);
                    list.splice(start..end, 1, Some(Element::of(element)));
                }
            }
            ListMut::Large(list) => {
                list.replace(index, element);
            }
        }
    }

    /// Removes `count` elements from element `start` on, all of which must exist.
    #[inline]
    pub fn remove_range(&mut self, start: usize, count: usize) {
        match self {
            ListMut::Packed(list) => list.remove_range(start, count),
            ListMut::Large(list) => list.remove_range(start, count),
        }
    }

    /// Removes the elements that `remove` selects, in the given direction. Returns the number of removed elements.
    pub fn remove_if(&mut self, direction: Direction, remove: impl FnMut(Element<'_>) -> ElementAction) -> usize {
        match self {
            ListMut::Packed(list) => list.remove_if(direction, remove),
            ListMut::Large(list) => list.remove_if(direction, remove),
        }
    }
}
