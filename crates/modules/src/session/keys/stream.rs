//! Access to streams.

use weft_values::stream::{StreamId, TrimTarget};

use super::SessionKey;

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAddError {
    /// The key holds another type.
    WrongType,
    /// The id is not greater than that of the last entry.
    IdTooSmall,
    /// The stream has no further id.
    NoFurtherId,
    /// The entry is too large.
    TooLarge,
}

/// Access to streams.
pub trait StreamSession {
    /// Adds an entry, and returns its id. Without an id the entry gets one by the current time. Creates the stream if
    /// the key is missing.
    ///
    /// # Errors
    /// If the entry was not added.
    fn add_entry(
        &mut self,
        key: SessionKey<'_>,
        id: Option<StreamId>,
        fields: &[(&[u8], &[u8])],
    ) -> Result<StreamId, StreamAddError>;

    /// Removes an entry. Returns `true` if there was one. The stream stays even if no entry is left.
    fn remove_entry(&mut self, key: SessionKey<'_>, id: StreamId) -> bool;

    /// Returns the id of the first entry between two ids, which are included, or of the last one; calls `visit` with
    /// each of its fields and values.
    fn read_entry(
        &mut self,
        key: SessionKey<'_>,
        range: (StreamId, StreamId),
        is_last: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<StreamId>;

    /// Removes the first entries of a stream, and returns their number. With `is_approximate` it keeps more of them if
    /// that is cheaper.
    fn trim_stream(&mut self, key: SessionKey<'_>, target: TrimTarget, is_approximate: bool) -> u64;
}
