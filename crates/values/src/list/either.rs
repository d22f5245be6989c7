//! A list in either form, so that commands need not tell them apart.

use std::ops::ControlFlow;

use super::packed::{ElementAction, PackedList, PackedListMut};
use super::{Direction, End, List, visit_run};
use crate::listpack::Element;

/// A list in either form, for reading.
#[derive(Clone, Copy, Debug)]
pub enum ListRef<'a> {
    /// Packed into its table entry.
    Packed(PackedList<'a>),
    /// Behind its entry.
    Large(&'a List),
}

impl ListRef<'_> {
    /// Number of elements.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            ListRef::Packed(list) => list.len(),
            ListRef::Large(list) => list.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// About how many bytes the elements have; less if they are compressed.
    #[inline]
    pub fn approximate_bytes(self) -> usize {
        match self {
            ListRef::Packed(list) => list.run().bytes().len(),
            ListRef::Large(list) => list.allocated_bytes(),
        }
    }

    /// Runs `view` on element `index`.
    #[inline]
    pub fn with<R>(self, index: usize, view: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        match self {
            ListRef::Packed(list) => {
                let offset = list.offset_of(index)?;
                list.run().at(offset).map(view)
            }
            ListRef::Large(list) => list.with(index, view),
        }
    }

    /// Shows elements to `view`, from element `start` on, until it breaks.
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

/// A list in either form, to be changed. A packed one has room for what is put into it: the caller made sure.
#[derive(Debug)]
pub enum ListMut<'a> {
    /// Packed into its table entry.
    Packed(PackedListMut<'a>),
    /// Behind its entry.
    Large(&'a mut List),
}

impl ListMut<'_> {
    /// The same list for reading.
    #[inline]
    pub fn as_ref(&self) -> ListRef<'_> {
        match self {
            ListMut::Packed(list) => ListRef::Packed(list.as_ref()),
            ListMut::Large(list) => ListRef::Large(list),
        }
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, end: End, element: &[u8]) {
        match self {
            ListMut::Packed(list) => list.push(end, Element::of(element)),
            ListMut::Large(list) => list.push(end, element),
        }
    }

    /// Puts an element before or after element `index`; does nothing if there is none.
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

    /// Puts an element in the place of element `index`; does nothing if there is none.
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

    /// Removes `count` elements from element `start` on; there are so many.
    #[inline]
    pub fn remove_range(&mut self, start: usize, count: usize) {
        match self {
            ListMut::Packed(list) => list.remove_range(start, count),
            ListMut::Large(list) => list.remove_range(start, count),
        }
    }

    /// Removes elements that `remove` picks, in one direction; returns how many.
    pub fn remove_if(&mut self, direction: Direction, remove: impl FnMut(Element<'_>) -> ElementAction) -> usize {
        match self {
            ListMut::Packed(list) => list.remove_if(direction, remove),
            ListMut::Large(list) => list.remove_if(direction, remove),
        }
    }
}
