//! The operation that a blocked client waits for, as data: the thread that serves it has neither its request nor its
//! connection.

use weft_values::list::ListEnd;
use weft_values::stream::StreamId;

use super::waiter::WaitKey;

/// An end of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreEnd {
    /// The members with the lowest scores.
    Min,
    /// The members with the highest scores.
    Max,
}

/// The operation on the first of a waiter's keys that is ready.
#[derive(Clone, Debug)]
pub enum Operation {
    /// BLPOP, BRPOP: one element.
    ListPop(ListEnd),
    /// BLMPOP: up to so many elements.
    ListPopMany(ListEnd, usize),
    /// BLMOVE, BRPOPLPUSH: one element, to another list or the same.
    ListMove {
        /// The end it is taken from.
        from: ListEnd,
        /// The end it is put at.
        to: ListEnd,
        /// The list where it is put.
        destination: WaitKey,
    },
    /// BZPOPMIN, BZPOPMAX: one member.
    SortedSetPop(ScoreEnd),
    /// BZMPOP: up to so many members.
    SortedSetPopMany(ScoreEnd, usize),
    /// XREAD: up to this many entries of every stream, each after an ID of its own.
    StreamRead(Box<[StreamId]>, usize),
    /// XREADGROUP: entries that were not delivered to the group yet.
    StreamReadGroup(Box<GroupRead>),
}

/// The arguments of XREADGROUP.
#[derive(Clone, Debug)]
pub struct GroupRead {
    /// The group.
    pub group: Box<[u8]>,
    /// The consumer.
    pub consumer: Box<[u8]>,
    /// Entries of each stream at most.
    pub count: usize,
    /// `true` if entries count as acknowledged at once.
    pub no_ack: bool,
}

/// The kind of a key, as waiters distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list.
    List,
    /// A sorted set.
    SortedSet,
    /// A stream.
    Stream,
    /// Missing, or of a type that no command waits for.
    Other,
}

/// The queue of a key that a waiter stands in. Waiters of different queues never compete with each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// For a list: one after the other, as long as there are elements.
    Lists,
    /// For a sorted set: in the same way.
    SortedSets,
    /// For a stream's entries, which all of them may get.
    Streams,
    /// For a stream's entries as a consumer of this group: one after the other, as long as there are entries. The
    /// waiters also end when the stream is deleted.
    Group(Box<[u8]>),
}

impl Operation {
    /// Returns the queue to stand in.
    pub fn line(&self) -> Line {
        match self {
            Operation::ListPop(_) | Operation::ListPopMany(..) | Operation::ListMove { .. } => Line::Lists,
            Operation::SortedSetPop(_) | Operation::SortedSetPopMany(..) => Line::SortedSets,
            Operation::StreamRead(..) => Line::Streams,
            Operation::StreamReadGroup(read) => Line::Group(read.group.clone()),
        }
    }

    /// Returns the key that is written besides the one that is ready.
    pub fn destination(&self) -> Option<&WaitKey> {
        match self {
            Operation::ListMove { destination, .. } => Some(destination),
            _ => None,
        }
    }
}

impl Line {
    /// Returns `true` if a key of this kind concerns the waiters of this queue.
    pub fn is_served_by(&self, kind: Kind) -> bool {
        match self {
            Line::Lists => kind == Kind::List,
            Line::SortedSets => kind == Kind::SortedSet,
            Line::Streams => kind == Kind::Stream,
            // With the stream its groups go, which ends the wait as well.
            Line::Group(_) => true,
        }
    }
}
