//! The hash of a member, by which the index and the leaves find it.

use crate::records::hash_of;

/// The hash of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberHash(u64);

impl MemberHash {
    /// The bits that the index uses.
    #[inline]
    pub(super) const fn prefix(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The bits that a leaf uses. They are a subset of the bits of the index, so that the leaf can also find the
    /// members of an index entry.
    #[inline]
    pub(super) const fn tag(self) -> u8 {
        tag_of(self.prefix())
    }
}

/// Creates a member hash from the result of [`hash_of`].
pub(super) const fn of_hash(hash: u64) -> MemberHash {
    MemberHash(hash)
}

/// Returns the tag of a member whose hash begins with `prefix`.
#[inline]
pub(super) const fn tag_of(prefix: u32) -> u8 {
    prefix as u8
}

/// Hashes a member.
#[inline]
pub(super) fn member_hash(member: &[u8]) -> MemberHash {
    MemberHash(hash_of(member))
}
