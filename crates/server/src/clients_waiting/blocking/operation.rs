//! The operation that a blocked client waits for, as data: the thread that serves it has neither its request nor its
//! connection.

use std::sync::Arc;

use weft_modules::objects::blocked_client::BlockedClient;
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

/// The operation to perform on the first of a waiter's keys that is ready.
#[derive(Clone, Debug)]
pub enum BlockingOperation {
    /// BLPOP, BRPOP: one element.
    ListPop(ListEnd),
    /// BLMPOP: up to this number of elements.
    ListPopMany(ListEnd, usize),
    /// BLMOVE, BRPOPLPUSH: one element, to another list or the same.
    ListMove {
        /// The end from which the element is taken.
        source_end: ListEnd,
        /// The end at which it is inserted.
        destination_end: ListEnd,
        /// The list into which it is inserted.
        destination: WaitKey,
        /// The client's words for the two ends, which are propagated as they are; `None` for BRPOPLPUSH.
        end_words: Option<[Box<[u8]>; 2]>,
    },
    /// BZPOPMIN, BZPOPMAX: one member.
    SortedSetPop(ScoreEnd),
    /// BZMPOP: up to this number of members.
    SortedSetPopMany(ScoreEnd, usize),
    /// XREAD: up to this many entries of every stream, each after an ID of its own.
    StreamRead(Box<[StreamId]>, usize),
    /// XREADGROUP: entries that were not delivered to the group yet.
    StreamReadGroup(Box<GroupRead>),
    /// A module has blocked the client, and serves it itself.
    Module {
        /// The blocked client.
        client: Arc<BlockedClient>,
        /// `true` if the module also learns of the deletion of a key.
        includes_deletion: bool,
    },
}

/// The arguments of XREADGROUP.
#[derive(Clone, Debug)]
pub struct GroupRead {
    /// The group.
    pub group: Box<[u8]>,
    /// The consumer.
    pub consumer: Box<[u8]>,
    /// The maximum number of entries of each stream.
    pub count: usize,
    /// `true` if entries count as acknowledged immediately.
    pub no_ack: bool,
}

/// The kind of a key, as waiters distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitedKind {
    /// A list.
    List,
    /// A sorted set.
    SortedSet,
    /// A stream.
    Stream,
    /// Of a type that no command waits for.
    NotWaited,
    /// There is no such key.
    Missing,
}

/// The queue of a key in which a waiter stands. Waiters of different queues never compete with each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitQueueKind {
    /// For a list: one after the other, as long as there are elements.
    List,
    /// For a sorted set: in the same way.
    SortedSet,
    /// For a stream's entries, which all of them may get.
    Stream,
    /// For a stream's entries as a consumer of this group: one after the other, as long as there are entries. The
    /// waiters also end when the stream is deleted.
    StreamGroup(Box<[u8]>),
    /// For any value, which a module examines.
    Module,
    /// For any value, or the deletion of the key.
    ModuleWithDeletion,
}

impl BlockingOperation {
    /// Returns the queue for this operation.
    pub fn queue_kind(&self) -> WaitQueueKind {
        match self {
            BlockingOperation::ListPop(_) | BlockingOperation::ListPopMany(..) | BlockingOperation::ListMove { .. } => {
                WaitQueueKind::List
            }
            BlockingOperation::SortedSetPop(_) | BlockingOperation::SortedSetPopMany(..) => WaitQueueKind::SortedSet,
            BlockingOperation::StreamRead(..) => WaitQueueKind::Stream,
            BlockingOperation::StreamReadGroup(read) => WaitQueueKind::StreamGroup(read.group.clone()),
            BlockingOperation::Module {
                includes_deletion: false,
                ..
            } => WaitQueueKind::Module,
            BlockingOperation::Module {
                includes_deletion: true,
                ..
            } => WaitQueueKind::ModuleWithDeletion,
        }
    }

    /// Returns `true` if the command may write.
    pub fn writes(&self) -> bool {
        !matches!(self, BlockingOperation::StreamRead(..))
    }

    /// Returns the key that is written besides the one that is ready.
    pub fn destination(&self) -> Option<&WaitKey> {
        match self {
            BlockingOperation::ListMove { destination, .. } => Some(destination),
            _ => None,
        }
    }
}

impl WaitQueueKind {
    /// Returns `true` if the waiters of this queue also learn of the deletion of the key.
    pub fn includes_deletion(&self) -> bool {
        matches!(self, WaitQueueKind::StreamGroup(_) | WaitQueueKind::ModuleWithDeletion)
    }

    /// Returns `true` if modules serve the waiters of this queue.
    pub fn is_of_modules(&self) -> bool {
        matches!(self, WaitQueueKind::Module | WaitQueueKind::ModuleWithDeletion)
    }

    /// Returns `true` if a key of this kind matters to the waiters of this queue.
    pub fn matches_kind(&self, kind: WaitedKind) -> bool {
        match self {
            WaitQueueKind::List => kind == WaitedKind::List,
            WaitQueueKind::SortedSet => kind == WaitedKind::SortedSet,
            WaitQueueKind::Stream => kind == WaitedKind::Stream,
            // The groups of a stream are deleted with it, which ends the wait as well.
            WaitQueueKind::StreamGroup(_) | WaitQueueKind::ModuleWithDeletion => true,
            WaitQueueKind::Module => kind != WaitedKind::Missing,
        }
    }
}
