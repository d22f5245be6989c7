//! The hash of a member, by which index and leaves find it.

use crate::records::hash_of;

/// The hash of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberHash(u64);

impl MemberHash {
    /// The bits by which the index finds a member.
    #[inline]
    pub(super) const fn prefix(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The bits by which a leaf finds a member: some of those of the index, so that they also find what the index means.
    #[inline]
    pub(super) const fn tag(self) -> u8 {
        tag_of(self.prefix())
    }
}

/// The hash of a member as [`hash_of`] gives it.
pub(super) const fn of_hash(hash: u64) -> MemberHash {
    MemberHash(hash)
}

/// The tag of a member whose hash begins with `prefix`.
#[inline]
pub(super) const fn tag_of(prefix: u32) -> u8 {
    prefix as u8
}

/// Hashes a member.
#[inline]
pub(super) fn member_hash(member: &[u8]) -> MemberHash {
    MemberHash(hash_of(member))
}
