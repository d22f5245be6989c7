//! The size that a payload claims for its value, found without decoding the value.
//!
//! Compressed strings make a payload much smaller than its value, so the length of a payload says little about the time
//! that it takes to decode it.

use crate::strings::RdbReader;
use crate::{hashes, lists, sets, sorted_sets, streams};

/// The number of bytes that a string counts in addition to its length, because it is a separate element. It also bounds
/// the number of strings that are visited within a limit.
const STRING_OVERHEAD_BYTES: usize = 8;

/// What follows the strings of an item.
#[derive(Clone, Copy)]
enum ItemEnd {
    Nothing,
    /// A number of 8 bytes.
    Word,
    /// The length of a number in decimal, and its digits; lengths above 252 stand for special numbers without digits.
    Decimal,
}

/// The largest length of a number in decimal.
const MAX_DECIMAL_BYTES: u8 = 252;

/// The arrangement of the strings in a value.
#[derive(Clone, Copy)]
struct StringLayout {
    /// `true` if the number of items precedes them; otherwise there is one item.
    is_counted: bool,
    /// `true` if an item begins with the number of its container.
    has_container: bool,
    /// The number of strings of an item.
    strings: usize,
    end: ItemEnd,
}

impl StringLayout {
    const ONE_STRING: StringLayout = StringLayout {
        is_counted: false,
        has_container: false,
        strings: 1,
        end: ItemEnd::Nothing,
    };

    const fn counted(strings: usize, end: ItemEnd) -> Self {
        StringLayout {
            is_counted: true,
            has_container: false,
            strings,
            end,
        }
    }

    /// Returns the layout of a type; `None` if the type is unknown. The layout of a stream is that of its blocks, which
    /// hold its entries.
    fn of(kind: u8) -> Option<Self> {
        Some(match kind {
            super::TYPE_STRING
            | lists::TYPE_ZIPLIST
            | hashes::TYPE_ZIPMAP
            | hashes::TYPE_ZIPLIST
            | hashes::TYPE_LISTPACK
            | sets::TYPE_INTSET
            | sets::TYPE_LISTPACK
            | sorted_sets::TYPE_ZIPLIST
            | sorted_sets::TYPE_LISTPACK => Self::ONE_STRING,
            lists::TYPE_LIST | lists::TYPE_QUICKLIST | sets::TYPE_SET => Self::counted(1, ItemEnd::Nothing),
            lists::TYPE_QUICKLIST_2 => StringLayout {
                has_container: true,
                ..Self::counted(1, ItemEnd::Nothing)
            },
            hashes::TYPE_HASH | streams::TYPE_FIRST | streams::TYPE_SECOND | streams::TYPE_THIRD => {
                Self::counted(2, ItemEnd::Nothing)
            }
            hashes::TYPE_EXPIRING => Self::counted(2, ItemEnd::Word),
            sorted_sets::TYPE_BINARY => Self::counted(1, ItemEnd::Word),
            sorted_sets::TYPE_DECIMAL => Self::counted(1, ItemEnd::Decimal),
            _ => return None,
        })
    }
}

/// Returns the approximate size of the value of a payload in bytes, as the lengths of its strings claim it, which need
/// not be true. It is at least about the length of the payload. Counting stops once `limit` is exceeded, so the time of
/// a call depends on the limit rather than on the payload.
pub fn claimed_bytes(payload: &[u8], limit: usize) -> usize {
    let mut reader = RdbReader::new(payload);
    let mut claimed = 0_usize;
    if payload.len() <= limit {
        // The walk ends early at invalid bytes. They and what follows them count as they are.
        let _ = visit_strings(&mut reader, |bytes| {
            claimed = claimed.saturating_add(bytes).saturating_add(STRING_OVERHEAD_BYTES);
            claimed <= limit
        });
    }
    claimed.saturating_add(reader.remaining_bytes())
}

/// Calls `visit` with the claimed length of each string as long as it returns `true`. Returns `None` if it returned
/// `false`, or if the bytes are invalid.
fn visit_strings(reader: &mut RdbReader<'_>, mut visit: impl FnMut(usize) -> bool) -> Option<()> {
    let layout = StringLayout::of(reader.byte()?)?;
    let items = if layout.is_counted { reader.length()? } else { 1 };
    for _ in 0..items {
        if layout.has_container {
            reader.length()?;
        }
        for _ in 0..layout.strings {
            if !visit(reader.skip_string()?) {
                return None;
            }
        }
        match layout.end {
            ItemEnd::Nothing => {}
            ItemEnd::Word => {
                reader.bytes(8)?;
            }
            ItemEnd::Decimal => {
                let length = reader.byte()?;
                if length <= MAX_DECIMAL_BYTES {
                    reader.bytes(usize::from(length))?;
                }
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
