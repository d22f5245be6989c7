//! Collection types whose values are stored outside the table entry, and algorithms on values.
#![forbid(unsafe_code)]

pub mod bitfield;
pub mod bits;
pub mod foreign;
pub mod geohash;
pub mod hash;
pub mod hyperloglog;
pub mod lcs;
pub mod list;
pub mod listpack;
pub mod lzf;
pub mod packed;
pub mod records;
pub mod relocation;
mod scan_page;
pub mod set;
pub mod size_class;
pub mod sorted_set;
pub mod stream;

use std::sync::Arc;

use foreign::ForeignValue;
use hash::Hash;
use list::List;
use relocation::{PartCursor, PartMover};
use set::Set;
use sorted_set::SortedSet;
use stream::Stream;

/// A collection that is too large or too complex to be packed into its table entry; see [`packed`] for packed
/// collections. Strings are stored in the table entries.
#[derive(Clone, Debug)]
pub enum Value {
    /// A list.
    List(List),
    /// A hash.
    Hash(Hash),
    /// A set.
    Set(Set),
    /// A sorted set.
    SortedSet(SortedSet),
    /// A stream.
    Stream(Stream),
    /// A value of a module. A clone is another handle of the same value.
    Module(Arc<dyn ForeignValue>),
}

// A value occupies one allocation of 64 bytes next to its entry. A type that needs more stores the rest behind a
// pointer.
const _: () = assert!(size_of::<Value>() <= 64);

impl Value {
    /// The name of the type, as TYPE and SCAN use it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::SortedSet(_) => "zset",
            Value::Stream(_) => "stream",
            Value::Module(value) => value.type_name(),
        }
    }

    /// The name of the encoding that Valkey would report with OBJECT ENCODING.
    pub fn encoding_name(&self) -> &'static str {
        match self {
            Value::List(list) => list.encoding_name(),
            Value::Hash(hash) => hash.encoding_name(),
            Value::Set(set) => set.encoding_name(),
            Value::SortedSet(set) => set.encoding_name(),
            Value::Stream(_) => "stream",
            Value::Module(_) => "raw",
        }
    }

    /// Returns the records in which members or fields are looked up, if the value has any.
    pub fn records(&self) -> Option<&records::Records> {
        match self {
            Value::Hash(hash) => Some(hash.records()),
            Value::Set(set) => set.records(),
            Value::List(_) | Value::SortedSet(_) | Value::Stream(_) | Value::Module(_) => None,
        }
    }

    /// Returns the list if the value is one.
    pub fn list(&self) -> Option<&list::List> {
        match self {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns the module's value if it is one.
    pub fn module(&self) -> Option<&Arc<dyn ForeignValue>> {
        match self {
            Value::Module(value) => Some(value),
            _ => None,
        }
    }

    /// The approximate number of allocations that freeing the value would involve in Valkey. By this number, Valkey
    /// decides whether a background thread frees a value.
    pub fn free_effort(&self) -> usize {
        match self {
            Value::Set(set) if set.encoding_name() == "hashtable" => set.len(),
            Value::SortedSet(set) if set.encoding_name() == "skiplist" => set.len(),
            Value::List(list) if list.is_quicklist() => list.stored_nodes().len(),
            Value::Hash(hash) if hash.encoding_name() == "hashtable" => hash.len(),
            Value::Stream(stream) => stream.free_effort(),
            Value::List(_) | Value::Hash(_) | Value::Set(_) | Value::SortedSet(_) => 1,
            // Its module decides when it is freed.
            Value::Module(_) => 1,
        }
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match self {
            Value::List(list) => list.allocated_bytes(),
            Value::Hash(hash) => hash.allocated_bytes(),
            Value::Set(set) => set.allocated_bytes(),
            Value::SortedSet(set) => set.allocated_bytes(),
            Value::Stream(stream) => stream.allocated_bytes(),
            // Only its module knows them.
            Value::Module(_) => 0,
        }
    }

    /// Moves parts of the value from `from` on, until the mover's step is done. Returns the cursor for the next step,
    /// or `None` at the end.
    pub fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        match self {
            Value::List(list) => list.move_parts(from, mover),
            Value::Hash(hash) => hash.move_parts(from, mover),
            Value::Set(set) => set.move_parts(from, mover),
            Value::SortedSet(set) => set.move_parts(from, mover),
            Value::Stream(stream) => stream.move_parts(from, mover),
            Value::Module(_) => None,
        }
    }
}
