//! The arguments of one request, where they lie in the input buffer.

use crate::ArgRange;

/// The words of a request, the command's name first.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    request: &'a [u8],
    ranges: &'a [ArgRange],
}

impl<'a> Args<'a> {
    /// The arguments of `request` at `ranges`.
    #[inline]
    pub const fn new(request: &'a [u8], ranges: &'a [ArgRange]) -> Self {
        Args { request, ranges }
    }

    /// How many there are.
    #[inline]
    pub const fn len(self) -> usize {
        self.ranges.len()
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.ranges.is_empty()
    }

    /// The argument at `index`; empty if there are fewer.
    #[inline]
    pub fn at(self, index: usize) -> &'a [u8] {
        self.ranges.get(index).map_or(&[], |range| range.of(self.request))
    }

    /// All of them, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        self.ranges.iter().map(move |range| range.of(self.request))
    }

    /// Length of the whole request in bytes.
    pub const fn request_len(self) -> usize {
        self.request.len()
    }
}
