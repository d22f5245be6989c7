//! The payload that DUMP creates and RESTORE accepts: one value, the version of its encoding, and a checksum.
//!
//! ```text
//! type (1)  value ...  version (2, little-endian)  CRC-64 of all preceding bytes (8, little-endian)
//! ```

mod claimed_size;

pub use claimed_size::claimed_bytes;

use std::borrow::Cow;

use crc::{CRC_64_REDIS, Crc, Table};
use weft_os::atomic::{AtomicBool, Ordering};
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::hash::{self, HashRef};
use weft_values::list::ListRef;
use weft_values::list::packed::PackedList;
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::packed::PackedSortedSet;
use weft_values::sorted_set::{DetachedSortedSet, SortedSetView};
use weft_values::stream::Stream;

use super::EncodingLimits;
use super::hashes;
use super::lists;
use super::sets;
use super::sorted_sets;
use super::streams;
use super::strings::{self, ParsedString, RdbReader};

/// The RDB version that Weft writes.
pub const VERSION: u16 = 80;
/// RDB versions that other servers use for their own encodings.
pub const FOREIGN_VERSIONS: std::ops::RangeInclusive<u16> = 12..=79;
/// Types and opcodes that do not occur in payloads and files of the versions that Redis and Valkey share. Newer
/// versions of Redis use them in a different way.
pub const FOREIGN_TYPES: std::ops::RangeInclusive<u8> = 22..=243;
const FOOTER_BYTES: usize = 10;
const CHECKSUM_BYTES: usize = 8;

/// The type of strings.
pub const TYPE_STRING: u8 = 0;
/// The type of module values in the format used before modules were released.
pub const TYPE_EARLY_MODULE: u8 = 6;
/// The type of module values. Only their modules can encode and decode them.
pub const TYPE_MODULE: u8 = 7;

/// The checksum of payloads and files.
pub static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Returns the payload of a value. Strings are compressed if `compress` is set (`rdbcompression`).
///
/// # Panics
/// As [`write_value`].
pub fn dump(value: ValueRef<'_, Value>, should_compress: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write_value(&mut out, value, should_compress);
    append_footer(&mut out, VERSION);
    out
}

/// Appends the type of a value, and the value.
///
/// # Panics
/// If it is a value of a module, which only the module can encode.
pub fn write_value(out: &mut Vec<u8>, value: ValueRef<'_, Value>, compress: bool) {
    match value {
        ValueRef::Int(number) => {
            out.push(TYPE_STRING);
            strings::write_integer(out, number);
        }
        ValueRef::Bytes(bytes) => {
            out.push(TYPE_STRING);
            strings::write_string(out, bytes, compress);
        }
        ValueRef::Blob(blob) => {
            out.push(TYPE_STRING);
            strings::write_string(out, blob, compress);
        }
        ValueRef::Packed(packed) => match PackedKind::of(packed) {
            PackedKind::List => lists::write(out, ListRef::Packed(PackedList::new(packed)), compress),
            PackedKind::Hash => hashes::write(out, HashRef::Packed(hash::run_of(packed)), compress),
            PackedKind::Set | PackedKind::IntegerSet => sets::write(out, SetView::of_packed(packed), compress),
            PackedKind::SortedSet => {
                sorted_sets::write(out, SortedSetView::Packed(PackedSortedSet::new(packed)), compress)
            }
        },
        ValueRef::Object(object) => match object {
            Value::List(list) => lists::write(out, ListRef::Large(list), compress),
            Value::Hash(hash) => hashes::write(out, HashRef::Large(hash), compress),
            Value::Set(set) => sets::write(out, set.view(), compress),
            Value::SortedSet(set) => sorted_sets::write(out, SortedSetView::Large(set), compress),
            Value::Stream(stream) => {
                out.push(streams::TYPE_THIRD);
                streams::write(out, stream, compress);
            }
            Value::Module(_) => unreachable!("a module encodes its values itself"),
        },
    }
}

/// Completes the payload of a value: appends the version and the checksum.
pub fn append_footer(body: &mut Vec<u8>, version: u16) {
    body.extend(version.to_le_bytes());
    let checksum = CRC.checksum(body);
    body.extend(checksum.to_le_bytes());
}

/// `true` if checksums of payloads and files are verified. Tests of damaged values turn this off (`DEBUG
/// SET-SKIP-CHECKSUM-VALIDATION`).
pub static VERIFIES_CHECKSUMS: AtomicBool = AtomicBool::new(true);

/// Returns `true` if a payload is undamaged and of a readable version. Unknown versions are accepted if `relaxed` is
/// set (`rdb-version-check`).
pub fn is_valid(payload: &[u8], accepts_unknown_versions: bool) -> bool {
    let Some(at) = payload.len().checked_sub(FOOTER_BYTES) else {
        return false;
    };
    let (body, checksum) = payload.split_at(at + FOOTER_BYTES - CHECKSUM_BYTES);
    let version = u16::from_le_bytes([body[at], body[at + 1]]);
    let known = (1..=VERSION).contains(&version) && !FOREIGN_VERSIONS.contains(&version);
    (known || (accepts_unknown_versions && version >= 1))
        && (CRC.checksum(body).to_le_bytes() == checksum || !VERIFIES_CHECKSUMS.load(Ordering::Relaxed))
}

/// The type of a verified payload if its version is one that other servers use for their own encodings and the type is
/// not one of the shared ones.
pub fn foreign_type(payload: &[u8]) -> Option<u8> {
    let at = payload.len().checked_sub(FOOTER_BYTES)?;
    let version = u16::from_le_bytes([*payload.get(at)?, *payload.get(at + 1)?]);
    let kind = *payload.first()?;
    (FOREIGN_VERSIONS.contains(&version) && kind >= *FOREIGN_TYPES.start()).then_some(kind)
}

/// Returns `true` if a payload holds a collection rather than a string.
pub fn is_collection(payload: &[u8]) -> bool {
    payload.first().is_some_and(|kind| *kind != TYPE_STRING)
}

/// Parses the value of a verified payload; `None` if it is invalid. Bytes after a value are ignored, and a value that
/// is too short continues into the footer, as in Valkey. `limits` are those of compact encodings.
pub fn parse_payload<'p>(payload: &'p [u8], limits: &EncodingLimits) -> Option<RestoredValue<'p>> {
    let mut reader = RdbReader::new(payload);
    let kind = reader.byte()?;
    parse_value(kind, &mut reader, limits)
}

/// Parses a value of this type; `None` if it is invalid or has no elements. `limits` are those of compact
/// encodings.
pub fn parse_value<'p>(kind: u8, reader: &mut RdbReader<'p>, limits: &EncodingLimits) -> Option<RestoredValue<'p>> {
    match kind {
        TYPE_STRING => reader.string().map(RestoredValue::String),
        kind @ (lists::TYPE_LIST | lists::TYPE_ZIPLIST | lists::TYPE_QUICKLIST | lists::TYPE_QUICKLIST_2) => {
            lists::read(kind, reader, limits)
        }
        kind if hashes::TYPES.contains(&kind) => hashes::read(kind, reader, limits.hash).map(|hash| match hash {
            hashes::ReadHash::Packed(packed) => RestoredValue::Packed(packed),
            hashes::ReadHash::Large(hash) => RestoredValue::Object(Value::Hash(hash)),
        }),
        kind @ (sets::TYPE_SET | sets::TYPE_INTSET | sets::TYPE_LISTPACK) => sets::read(kind, reader, limits.set),
        version @ (streams::TYPE_FIRST | streams::TYPE_SECOND | streams::TYPE_THIRD) => {
            let stream = streams::read(reader, version)?;
            Some(RestoredValue::Object(Value::Stream(stream)))
        }
        kind => sorted_sets::read(kind, reader, limits.sorted_set).map(restored_sorted_set),
    }
}

fn restored_sorted_set<'p>(draft: DetachedSortedSet) -> RestoredValue<'p> {
    match draft {
        DetachedSortedSet::Packed(packed) => RestoredValue::Packed(packed.bytes().to_vec()),
        DetachedSortedSet::Large(set) => RestoredValue::Object(Value::SortedSet(set)),
    }
}

/// A value that was parsed from a payload.
#[derive(Debug)]
pub enum RestoredValue<'p> {
    /// A string.
    String(ParsedString<'p>),
    /// A small collection in packed form.
    Packed(Vec<u8>),
    /// Any other collection.
    Object(Value),
}

/// A view of the elements of a parsed value.
#[derive(Debug)]
pub enum PayloadContent<'v> {
    /// A string.
    String(Cow<'v, [u8]>),
    /// A list.
    List(ListRef<'v>),
    /// A set.
    Set(SetView<'v>),
    /// A sorted set.
    SortedSet(SortedSetView<'v>),
    /// A hash.
    Hash(HashRef<'v>),
    /// A stream.
    Stream(&'v Stream),
}

impl RestoredValue<'_> {
    /// The elements of the value.
    ///
    /// # Panics
    /// If it is a value of a module, which is not parsed here.
    pub fn content(&self) -> PayloadContent<'_> {
        match self {
            RestoredValue::String(ParsedString::Int(number)) => {
                PayloadContent::String(number.to_string().into_bytes().into())
            }
            RestoredValue::String(ParsedString::Bytes(bytes)) => PayloadContent::String(Cow::Borrowed(bytes)),
            RestoredValue::String(ParsedString::Decompressed(bytes)) => PayloadContent::String(Cow::Borrowed(bytes)),
            RestoredValue::Packed(packed) => match PackedKind::of(packed) {
                PackedKind::List => PayloadContent::List(ListRef::Packed(PackedList::new(packed))),
                PackedKind::Hash => PayloadContent::Hash(HashRef::Packed(hash::run_of(packed))),
                PackedKind::Set | PackedKind::IntegerSet => PayloadContent::Set(SetView::of_packed(packed)),
                PackedKind::SortedSet => PayloadContent::SortedSet(SortedSetView::Packed(PackedSortedSet::new(packed))),
            },
            RestoredValue::Object(object) => match object {
                Value::List(list) => PayloadContent::List(ListRef::Large(list)),
                Value::Hash(hash) => PayloadContent::Hash(HashRef::Large(hash)),
                Value::Set(set) => PayloadContent::Set(set.view()),
                Value::SortedSet(set) => PayloadContent::SortedSet(SortedSetView::Large(set)),
                Value::Stream(stream) => PayloadContent::Stream(stream),
                Value::Module(_) => unreachable!("a module decodes its values itself"),
            },
        }
    }

    /// Passes the value to `put` in a form for insertion. `stored` returns the stored form of string bytes.
    pub fn insert_with<R>(
        self,
        stored: impl FnOnce(&[u8]) -> NewValue<'_, Value>,
        put: impl FnOnce(NewValue<'_, Value>) -> R,
    ) -> R {
        match self {
            RestoredValue::String(loaded) => put(loaded.as_new_value(stored)),
            RestoredValue::Packed(packed) => put(NewValue::Packed(&packed)),
            RestoredValue::Object(value) => put(NewValue::Object(value)),
        }
    }
}

impl<'p> ParsedString<'p> {
    /// The bytes of a string that holds an encoded collection; `None` if it is a number, which never encodes a
    /// collection.
    pub fn into_bytes(self) -> Option<Cow<'p, [u8]>> {
        match self {
            ParsedString::Int(_) => None,
            ParsedString::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
            ParsedString::Decompressed(bytes) => Some(Cow::Owned(bytes)),
        }
    }

    /// The string in a form for insertion. `stored` returns the stored form of bytes.
    pub fn as_new_value<'b>(&'b self, stored: impl FnOnce(&'b [u8]) -> NewValue<'b, Value>) -> NewValue<'b, Value> {
        match self {
            ParsedString::Int(number) => NewValue::Int(*number),
            ParsedString::Bytes(bytes) => stored(bytes),
            ParsedString::Decompressed(bytes) => stored(bytes),
        }
    }
}

#[cfg(test)]
mod tests;
