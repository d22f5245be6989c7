//! The sorted set commands, in one file per kind of operation, and the functions that they share for reading, changing
//! and storing a sorted set.

mod add;
pub mod algebra;
pub mod blocking;
mod pop;
mod random;
mod range;
mod range_query;
mod read;
mod remove;
mod scan;

pub use add::{ZaddOptions, add_scores};
pub use pop::{PopEnd, PopReplyFormat, ZmpopArguments, pop_first_of, pop_members};
pub use range::{reply_members, store_result, store_result_with_changes};
pub(crate) use scan::append_score;

use weft_resp::Reply;
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::listpack::Element;
use weft_values::packed::PackedKind;
use weft_values::sorted_set::packed::PackedSortedSet;
use weft_values::sorted_set::{DetachedSortedSet, SortedSet, SortedSetLimits, SortedSetView, UpsertOutcome};

use super::context::{Binding, leased};
use super::error::CommandError;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};

/// The commands of these files and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("zadd", leased(add::zadd).with_member_argument(3)),
    ("zcard", leased(read::zcard)),
    ("zcount", leased(read::zcount)),
    ("zincrby", leased(add::zincrby).with_member_argument(3)),
    ("zlexcount", leased(read::zlexcount)),
    ("zmpop", leased(pop::zmpop)),
    ("zmscore", leased(read::zmscore).with_member_argument(2)),
    ("zpopmax", leased(pop::zpopmax)),
    ("zpopmin", leased(pop::zpopmin)),
    ("zrandmember", leased(random::zrandmember)),
    ("zrange", leased(range::zrange)),
    ("zrangebylex", leased(range::zrangebylex)),
    ("zrangebyscore", leased(range::zrangebyscore)),
    ("zrangestore", leased(range::zrangestore)),
    ("zrank", leased(read::zrank).with_member_argument(2)),
    ("zrem", leased(remove::zrem).with_member_argument(2)),
    ("zremrangebylex", leased(remove::zremrangebylex)),
    ("zremrangebyrank", leased(remove::zremrangebyrank)),
    ("zremrangebyscore", leased(remove::zremrangebyscore)),
    ("zrevrange", leased(range::zrevrange)),
    ("zrevrangebylex", leased(range::zrevrangebylex)),
    ("zrevrangebyscore", leased(range::zrevrangebyscore)),
    ("zrevrank", leased(read::zrevrank).with_member_argument(2)),
    ("zscan", leased(scan::zscan)),
    ("zscore", leased(read::zscore).with_member_argument(2)),
];

/// The time for finding, adding or removing a member, in nanoseconds, if the set is not in the cache.
pub const CHANGE_MEMBER_NS: u64 = 400;
/// The time for writing a member of a range to a reply, in nanoseconds.
pub const REPLY_MEMBER_NS: u64 = 30;
/// The time for removing a member of a range, in nanoseconds.
pub const REMOVE_MEMBER_NS: u64 = 150;

/// Returns a view of the sorted set in a value.
///
/// # Errors
/// `WRONGTYPE` if the value is not a sorted set.
#[inline]
pub fn value_as_sorted_set(value: ValueRef<'_, Value>) -> Result<SortedSetView<'_>, CommandError> {
    match value {
        ValueRef::Packed(packed) if PackedKind::of(packed) == PackedKind::SortedSet => {
            Ok(SortedSetView::Packed(PackedSortedSet::new(packed)))
        }
        ValueRef::Object(Value::SortedSet(set)) => Ok(SortedSetView::Large(set)),
        _ => Err(CommandError::WRONG_TYPE),
    }
}

/// Writes a member to a reply.
#[inline]
pub fn reply_member(reply: &mut Reply<'_>, member: Element<'_>) {
    match member {
        Element::Int(number) => reply.bulk_integer(number),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// Stores a non-empty sorted set under a key.
pub fn store_sorted_set(key: &mut KeyWrite<'_>, detached: DetachedSortedSet, expiry: ExpiryUpdate) {
    match detached {
        DetachedSortedSet::Packed(packed) => key.set(NewValue::Packed(packed.bytes()), expiry),
        DetachedSortedSet::Large(set) => key.set(NewValue::Object(Value::SortedSet(set)), expiry),
    }
}

/// A key's sorted set that is being changed.
pub enum SortedSetEditor<'s> {
    /// A large set, which is changed in place.
    InPlace(&'s mut SortedSet),
    /// A new set, or a copy of a packed one.
    Detached(&'s mut DetachedSortedSet),
}

impl SortedSetEditor<'_> {
    /// Returns a view for reading.
    pub fn view(&self) -> SortedSetView<'_> {
        match self {
            SortedSetEditor::InPlace(set) => SortedSetView::Large(set),
            SortedSetEditor::Detached(draft) => draft.view(),
        }
    }

    /// Adds a member or changes its score. `decide` is called with the current score and returns the new one, or `None`
    /// for no change.
    pub fn upsert(
        &mut self,
        member: &[u8],
        limits: SortedSetLimits,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> UpsertOutcome {
        match self {
            SortedSetEditor::InPlace(set) => set.upsert(member, limits, decide),
            SortedSetEditor::Detached(draft) => draft.upsert(member, limits, decide),
        }
    }

    /// Removes a member. Returns `true` if it was present.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            SortedSetEditor::InPlace(set) => set.remove(member).is_some(),
            SortedSetEditor::Detached(draft) => draft.remove(member),
        }
    }

    /// Removes the members in a range of ranks.
    pub fn remove_ranks(&mut self, ranks: std::ops::Range<usize>) {
        match self {
            SortedSetEditor::InPlace(set) => set.remove_ranks(ranks),
            SortedSetEditor::Detached(draft) => draft.remove_ranks(ranks),
        }
    }
}

/// The outcome of changing a key's sorted set.
pub struct EditOutcome<R> {
    /// The result that `change` returned.
    pub result: R,
    /// `true` if the set is empty and its key was deleted.
    pub is_emptied: bool,
}

/// Changes the sorted set of a key. `copy` makes a detached copy of a packed set. `change` returns a result, and `true`
/// if it changed the set. If the set is empty afterwards, its key is deleted. Returns `None` if the key is missing.
///
/// # Errors
/// `WRONGTYPE` if the value is not a sorted set.
pub fn edit_sorted_set<R>(
    key: &mut KeyWrite<'_>,
    copy: impl FnOnce(&[u8]) -> DetachedSortedSet,
    change: impl FnOnce(SortedSetEditor<'_>) -> (R, bool),
) -> Result<Option<EditOutcome<R>>, CommandError> {
    let Some(entry) = key.entry() else {
        return Ok(None);
    };
    let mut draft = match entry.value() {
        ValueRef::Packed(packed) if PackedKind::of(packed) == PackedKind::SortedSet => copy(packed),
        ValueRef::Object(Value::SortedSet(_)) => return Ok(edit_in_place(key, change)),
        _ => return Err(CommandError::WRONG_TYPE),
    };
    let (result, changed) = change(SortedSetEditor::Detached(&mut draft));
    let emptied = draft.view().is_empty();
    if emptied {
        key.delete_emptied();
    } else if changed {
        store_sorted_set(key, draft, ExpiryUpdate::Keep);
    } else if let DetachedSortedSet::Large(set) = draft {
        // Lower limits than before convert the set even if no member changes.
        key.reencode(NewValue::Object(Value::SortedSet(set)));
    }
    Ok(Some(EditOutcome {
        result,
        is_emptied: emptied,
    }))
}

fn edit_in_place<R>(
    key: &mut KeyWrite<'_>,
    change: impl FnOnce(SortedSetEditor<'_>) -> (R, bool),
) -> Option<EditOutcome<R>> {
    let mut entry = key.entry_mut()?;
    let Some(Value::SortedSet(set)) = entry.object_mut() else {
        return None;
    };
    let (result, _) = change(SortedSetEditor::InPlace(set));
    let emptied = set.is_empty();
    if emptied {
        key.delete_emptied();
    }
    Some(EditOutcome {
        result,
        is_emptied: emptied,
    })
}
