//! The arguments of one request, as ranges of the input buffer.

use crate::ArgRange;

/// The arguments of a request, including the command name as the first one.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    request: &'a [u8],
    ranges: &'a [ArgRange],
}

impl<'a> Args<'a> {
    /// Creates the list of the arguments that lie at `ranges` in `request`.
    #[inline]
    pub const fn new(request: &'a [u8], ranges: &'a [ArgRange]) -> Self {
        Args { request, ranges }
    }

    /// The number of arguments, including the command name.
    #[inline]
    pub const fn len(self) -> usize {
        self.ranges.len()
    }

    /// Returns `true` if there are no arguments.
    pub const fn is_empty(self) -> bool {
        self.ranges.is_empty()
    }

    /// The argument at `index`, or an empty slice if `index` is out of range.
    #[inline]
    pub fn argument(self, index: usize) -> &'a [u8] {
        self.ranges.get(index).map_or(&[], |range| range.of(self.request))
    }

    /// Iterates over all arguments in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        self.ranges.iter().map(move |range| range.of(self.request))
    }

    /// The length of the whole request in bytes.
    pub const fn request_len(self) -> usize {
        self.request.len()
    }
}
