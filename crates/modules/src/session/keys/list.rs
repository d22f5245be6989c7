//! Access to lists.

use weft_values::list::ListEnd;

use super::SessionKey;

/// Access to lists. Each function does nothing if the key holds another type.
pub trait ListSession {
    /// Adds an element at an end. Creates the list if the key is missing. Returns `false` if the key holds another
    /// type.
    fn push_element(&mut self, key: SessionKey<'_>, end: ListEnd, element: &[u8]) -> bool;

    /// Removes the element at an end, and calls `visit` with it. Returns `true` if there was one. Deletes an empty
    /// list.
    fn pop_element(&mut self, key: SessionKey<'_>, end: ListEnd, visit: &mut dyn FnMut(&[u8])) -> bool;

    /// Calls `visit` with an element. Returns `true` if there is one at this index.
    fn read_element(&mut self, key: SessionKey<'_>, index: usize, visit: &mut dyn FnMut(&[u8])) -> bool;

    /// Replaces an element. Returns `true` if there is one at this index.
    fn replace_element(&mut self, key: SessionKey<'_>, index: usize, element: &[u8]) -> bool;

    /// Inserts an element before or after another one. Returns `true` if there is one at this index.
    fn insert_element(&mut self, key: SessionKey<'_>, index: usize, is_after: bool, element: &[u8]) -> bool;

    /// Removes an element. Returns `true` if there is one at this index. Deletes an empty list.
    fn remove_element(&mut self, key: SessionKey<'_>, index: usize) -> bool;
}
