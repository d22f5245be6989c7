//! Access of modules to lists.

use weft_modules::session::keys::{ListSession, SessionKey};
use weft_values::list::ListEnd;
use weft_values::listpack::DECIMAL_MAX_BYTES;

use super::ModuleSession;
use crate::commands::list::stored::{
    ListAddition, ListSettings, change_list, entry_as_list, prepare_for_addition, push_elements, shrink_layout,
};
use crate::keyspace::access::KeyWrite;

/// Returns the length of the list that a key holds.
fn list_length(write: &KeyWrite<'_>) -> Option<usize> {
    entry_as_list(write.entry()).ok().flatten().map(|list| list.len())
}

/// Returns `true` if the key holds a list with an element at this index.
fn has_element(write: &KeyWrite<'_>, index: usize) -> bool {
    list_length(write).is_some_and(|length| index < length)
}

impl ModuleSession<'_, '_> {
    /// Changes a list that gets an element, if it has one at `index`.
    fn add_beside(
        &mut self,
        key: SessionKey<'_>,
        index: usize,
        element: &[u8],
        change: impl FnOnce(&mut weft_values::list::ListMut<'_>),
    ) -> bool {
        let done = self.edit_key(key, |write, context| {
            if !has_element(write, index) {
                return false;
            }
            let settings = ListSettings::from_config(&context.server.config);
            let addition = ListAddition::from_elements(std::iter::once(element));
            prepare_for_addition(write, ListEnd::Tail, addition, settings);
            change_list(write, change);
            true
        });
        done.unwrap_or(false)
    }
}

impl ListSession for ModuleSession<'_, '_> {
    fn push_element(&mut self, key: SessionKey<'_>, end: ListEnd, element: &[u8]) -> bool {
        let pushed = self.edit_key(key, |write, context| {
            let settings = ListSettings::from_config(&context.server.config);
            push_elements(write, end, std::iter::once(element), settings).is_ok()
        });
        pushed.unwrap_or(false)
    }

    fn pop_element(&mut self, key: SessionKey<'_>, end: ListEnd, visit: &mut dyn FnMut(&[u8])) -> bool {
        let popped = self.edit_key(key, |write, context| {
            let index = match (end, list_length(write)) {
                (_, None | Some(0)) => return false,
                (ListEnd::Head, _) => 0,
                (ListEnd::Tail, Some(length)) => length - 1,
            };
            if let Ok(Some(list)) = entry_as_list(write.entry()) {
                list.with_element(index, |element| visit(element.text(&mut [0; DECIMAL_MAX_BYTES])));
            }
            change_list(write, |list| list.remove_range(index, 1));
            shrink_layout(write, ListSettings::from_config(&context.server.config));
            true
        });
        popped.unwrap_or(false)
    }

    fn read_element(&mut self, key: SessionKey<'_>, index: usize, visit: &mut dyn FnMut(&[u8])) -> bool {
        let found = self.with_stored(key, |entry| {
            let list = entry_as_list(Some(entry)).ok().flatten()?;
            list.with_element(index, |element| visit(element.text(&mut [0; DECIMAL_MAX_BYTES])))
        });
        found.flatten().is_some()
    }

    fn replace_element(&mut self, key: SessionKey<'_>, index: usize, element: &[u8]) -> bool {
        self.add_beside(key, index, element, |list| list.replace(index, element))
    }

    fn insert_element(&mut self, key: SessionKey<'_>, index: usize, is_after: bool, element: &[u8]) -> bool {
        self.add_beside(key, index, element, |list| list.insert(index, is_after, element))
    }

    fn remove_element(&mut self, key: SessionKey<'_>, index: usize) -> bool {
        let removed = self.edit_key(key, |write, context| {
            if !has_element(write, index) {
                return false;
            }
            change_list(write, |list| list.remove_range(index, 1));
            shrink_layout(write, ListSettings::from_config(&context.server.config));
            true
        });
        removed.unwrap_or(false)
    }
}
