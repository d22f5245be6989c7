//! Dictionaries of modules (`ValkeyModuleDict`): keys in the order of their bytes, with a pointer each.
//!
//! An iterator keeps a copy of its current key instead of a position. So it stays valid when the dictionary changes:
//! its next step goes to the key that then follows its current one.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Bound;

use super::automatic::AutomaticObject;

/// A dictionary that modules hold.
#[derive(Default)]
pub struct Dict {
    entries: BTreeMap<Box<[u8]>, *mut c_void>,
    /// The sum of the lengths of all keys, in bytes.
    key_bytes: usize,
}

impl Dict {
    /// Creates an empty dictionary and returns its pointer.
    pub fn create() -> *mut Dict {
        Box::into_raw(Box::default())
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a key. Returns `false`, and changes nothing, if it exists.
    pub fn add(&mut self, key: &[u8], value: *mut c_void) -> bool {
        let is_new = !self.entries.contains_key(key);
        if is_new {
            self.replace(key, value);
        }
        is_new
    }

    /// Adds a key or replaces its value. Returns `true` if it was added.
    pub fn replace(&mut self, key: &[u8], value: *mut c_void) -> bool {
        match self.entries.get_mut(key) {
            Some(present) => {
                *present = value;
                false
            }
            None => {
                self.entries.insert(Box::from(key), value);
                self.key_bytes += key.len();
                true
            }
        }
    }

    /// Returns the value of a key.
    pub fn value(&self, key: &[u8]) -> Option<*mut c_void> {
        self.entries.get(key).copied()
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<*mut c_void> {
        let value = self.entries.remove(key)?;
        self.key_bytes -= key.len();
        Some(value)
    }

    /// Returns the key that `operator` finds, and its value.
    fn find(&self, operator: SeekOperator, key: &[u8]) -> Option<(&[u8], *mut c_void)> {
        let unbounded = Bound::Unbounded::<&[u8]>;
        let entries = &self.entries;
        let (key, value) = match operator {
            SeekOperator::First => entries.first_key_value(),
            SeekOperator::Last => entries.last_key_value(),
            SeekOperator::Equal => entries.get_key_value(key),
            SeekOperator::Greater => entries.range::<[u8], _>((Bound::Excluded(key), unbounded)).next(),
            SeekOperator::GreaterOrEqual => entries.range::<[u8], _>((Bound::Included(key), unbounded)).next(),
            SeekOperator::Less => entries.range::<[u8], _>((unbounded, Bound::Excluded(key))).next_back(),
            SeekOperator::LessOrEqual => entries.range::<[u8], _>((unbounded, Bound::Included(key))).next_back(),
        }?;
        Some((key, *value))
    }

    /// Returns the approximate memory of the dictionary in bytes, without what its values point to.
    pub fn memory(&self) -> usize {
        // A node of the tree holds up to eleven entries, and is two thirds full on average.
        let entry = size_of::<(Box<[u8]>, *mut c_void)>();
        size_of::<Dict>() + self.len() * (entry + entry / 2) + self.key_bytes
    }
}

impl AutomaticObject for Dict {
    unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller promises that this is a dictionary, which is not used any more.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// A comparison with a key, by which an iterator finds its first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekOperator {
    /// The first key (`^`).
    First,
    /// The last key (`$`).
    Last,
    /// The key itself (`==`).
    Equal,
    /// The first key above (`>`).
    Greater,
    /// The key itself, or the first key above (`>=`).
    GreaterOrEqual,
    /// The last key below (`<`).
    Less,
    /// The key itself, or the last key below (`<=`).
    LessOrEqual,
}

impl SeekOperator {
    /// Parses an operator. As in Valkey, only its first two bytes count, and `=` is the same as `==`.
    pub fn parse(text: &[u8]) -> Option<SeekOperator> {
        let or_equal = text.get(1) == Some(&b'=');
        Some(match (text.first()?, or_equal) {
            (b'^', _) => SeekOperator::First,
            (b'$', _) => SeekOperator::Last,
            (b'=', _) => SeekOperator::Equal,
            (b'>', false) => SeekOperator::Greater,
            (b'>', true) => SeekOperator::GreaterOrEqual,
            (b'<', false) => SeekOperator::Less,
            (b'<', true) => SeekOperator::LessOrEqual,
            _ => return None,
        })
    }

    /// Returns `true` if `key` compares with `other` in this way. `^` and `$` are no comparisons.
    fn holds(self, key: &[u8], other: &[u8]) -> bool {
        match self {
            SeekOperator::First | SeekOperator::Last => false,
            SeekOperator::Equal => key == other,
            SeekOperator::Greater => key > other,
            SeekOperator::GreaterOrEqual => key >= other,
            SeekOperator::Less => key < other,
            SeekOperator::LessOrEqual => key <= other,
        }
    }
}

/// A direction of iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Towards greater keys.
    Next,
    /// Towards smaller keys.
    Previous,
}

/// Where an iterator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// At a key that the next step returns, in whichever direction.
    Found,
    /// At a key that a step has returned.
    Returned,
    /// Beyond the last key in a direction. Only a new search leaves this position.
    End,
}

/// An iterator over a dictionary (`ValkeyModuleDictIter`).
pub struct DictIterator {
    dict: *mut Dict,
    position: Position,
    key: Vec<u8>,
    /// The buffer of the key before, which the next step uses again.
    spare: Vec<u8>,
    value: *mut c_void,
}

impl DictIterator {
    /// Creates an iterator that is at no key, and returns its pointer.
    pub fn create(dict: *mut Dict) -> *mut DictIterator {
        Box::into_raw(Box::new(DictIterator {
            dict,
            position: Position::End,
            key: Vec::new(),
            spare: Vec::new(),
            value: std::ptr::null_mut(),
        }))
    }

    /// Moves to the key that `operator` finds. The next step returns that key; it returns nothing if there is none.
    ///
    /// # Safety
    /// The dictionary of the iterator has not been freed.
    pub unsafe fn seek(&mut self, operator: SeekOperator, key: &[u8]) {
        // SAFETY: the caller promises it, and nothing else uses the dictionary during this function.
        let found = unsafe { &*self.dict }.find(operator, key);
        self.position = match found {
            Some((key, value)) => {
                self.key.clear();
                self.key.extend_from_slice(key);
                self.value = value;
                Position::Found
            }
            None => Position::End,
        };
    }

    /// Lets the iterator be at no key, as an operator does that does not exist.
    pub fn end(&mut self) {
        self.position = Position::End;
    }

    /// Moves a step and returns the key and its value there; `None` at the end.
    ///
    /// # Safety
    /// The dictionary of the iterator has not been freed.
    pub unsafe fn step(&mut self, direction: Direction) -> Option<(&[u8], *mut c_void)> {
        match self.position {
            Position::End => return None,
            Position::Found => {}
            Position::Returned => {
                let operator = match direction {
                    Direction::Next => SeekOperator::Greater,
                    Direction::Previous => SeekOperator::Less,
                };
                // SAFETY: the caller promises it, and nothing else uses the dictionary during this function.
                let Some((key, value)) = unsafe { &*self.dict }.find(operator, &self.key) else {
                    self.position = Position::End;
                    return None;
                };
                self.spare.clear();
                self.spare.extend_from_slice(key);
                std::mem::swap(&mut self.key, &mut self.spare);
                self.value = value;
            }
        }
        self.position = Position::Returned;
        Some((&self.key, self.value))
    }

    /// Returns `true` if the iterator is at a key that compares with `other` by `operator`.
    pub fn compares(&self, operator: SeekOperator, other: &[u8]) -> bool {
        self.position != Position::End && operator.holds(&self.key, other)
    }
}

#[cfg(test)]
mod tests;
