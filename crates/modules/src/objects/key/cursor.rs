//! The positions of iterations over the elements of a key.

use weft_values::stream::StreamId;

use crate::session::keys::{MemberPosition, SortedSetRange};

/// The iteration over the elements of a key.
#[derive(Default)]
pub enum KeyCursor {
    /// There is none.
    #[default]
    None,
    /// Elements of a list have been read by index. A list needs no position, but it counts as an iteration.
    List,
    /// An iteration over a sorted set.
    SortedSet(SortedSetCursor),
    /// An iteration over a stream.
    Stream(Box<StreamCursor>),
}

/// An iteration over a range of a sorted set.
pub struct SortedSetCursor {
    /// The range.
    pub range: SortedSetRange,
    /// The current member; `None` if the range is empty.
    pub current: Option<MemberPosition>,
    /// `true` once a step has left the range.
    pub has_ended: bool,
}

/// An iteration over a range of a stream.
pub struct StreamCursor {
    /// The first id that was not visited yet.
    pub start: StreamId,
    /// The last id that was not visited yet.
    pub end: StreamId,
    /// `true` if all ids were visited.
    pub has_ended: bool,
    /// `true` if the iteration goes from the end to the start.
    pub is_reverse: bool,
    /// The current entry; `None` before the first one and after it was deleted.
    pub current: Option<StreamId>,
    /// The fields of the current entry with their values.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The number of fields that the module has read.
    pub fields_read: usize,
}
