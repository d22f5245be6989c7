//! Hashes in the encoding of RDB files.
//!
//! ```text
//! 4     number of fields, each field and value as strings       the form of tables, and of all hashes in old versions
//! 9     a string: a zipmap                                      only read
//! 13    a string: a ziplist                                     only read
//! 16    a string: a listpack of fields and values
//! 22    number of fields, each field and value as strings and its expiry: ms since the epoch, -1 for none (8,
//!       little-endian)                                          tables some of whose fields have an expiry
//! ```

use std::borrow::Cow;

use weft_values::hash::{self, FieldExpiry, Hash, HashEncoding, HashLimits, HashRef, PreviousField};
use weft_values::listpack::{self, DECIMAL_MAX_BYTES, Element};
use weft_values::packed::{MAX_PACKED_BYTES, PackedKind};

use super::strings::{ParsedString, RdbReader, write_length, write_string};
use super::ziplist::{self, Ziplist};
use super::zipmap::Zipmap;

/// The type of a hash as a table.
pub const TYPE_HASH: u8 = 4;
/// The type of a hash in a zipmap.
pub const TYPE_ZIPMAP: u8 = 9;
/// The type of a hash in a ziplist.
pub const TYPE_ZIPLIST: u8 = 13;
/// The type of a hash in a listpack.
pub const TYPE_LISTPACK: u8 = 16;
/// The type of a hash in which some fields have an expiry.
pub const TYPE_EXPIRING: u8 = 22;

/// All types of hashes.
pub const TYPES: [u8; 5] = [TYPE_HASH, TYPE_ZIPMAP, TYPE_ZIPLIST, TYPE_LISTPACK, TYPE_EXPIRING];

const NO_EXPIRY: i64 = -1;
/// The number of fields for which memory is reserved in advance; a higher count must be backed by data.
const MAX_RESERVED_FIELDS: usize = 1 << 16;

/// Appends a hash and its type.
pub fn write(out: &mut Vec<u8>, hash: HashRef<'_>, compress: bool) {
    match hash {
        HashRef::Packed(run) => write_listpack(out, run.bytes(), compress),
        HashRef::Large(hash) if hash.encoding() == HashEncoding::Listpack => {
            let mut run = Vec::with_capacity(HashRef::Large(hash).stored_bytes() * 2);
            for (_, record) in hash.records().iter() {
                listpack::push(&mut run, record.key);
                listpack::push(&mut run, record.value);
            }
            write_listpack(out, &run, compress);
        }
        HashRef::Large(hash) => write_table(out, hash, compress),
    }
}

fn write_listpack(out: &mut Vec<u8>, run: &[u8], compress: bool) {
    let mut whole = Vec::with_capacity(listpack::listpack_bytes(run.len()));
    listpack::write_listpack(&mut whole, run, listpack::ElementRun::new(run).count());
    out.push(TYPE_LISTPACK);
    write_string(out, &whole, compress);
}

fn write_table(out: &mut Vec<u8>, hash: &Hash, compress: bool) {
    let volatile = hash.has_expiring_fields();
    out.push(if volatile { TYPE_EXPIRING } else { TYPE_HASH });
    write_length(out, hash.len());
    for (_, record) in hash.records().iter() {
        write_string(out, record.key, compress);
        write_string(out, record.value, compress);
        if volatile {
            let expire_at_ms = record.expire_at_ms.map_or(NO_EXPIRY, |at_ms| at_ms as i64);
            out.extend(expire_at_ms.to_le_bytes());
        }
    }
}

/// A hash that was read, in the encoding that the limits give it.
#[derive(Debug)]
pub enum ReadHash {
    /// A packed hash, which is stored in the table entry.
    Packed(Vec<u8>),
    /// A hash as a separate object.
    Large(Hash),
}

/// Reads a hash of any of these types, in the encoding that the limits give it; `None` if it is invalid, empty, or
/// contains a field twice.
pub fn read(kind: u8, reader: &mut RdbReader<'_>, limits: HashLimits) -> Option<ReadHash> {
    match kind {
        TYPE_HASH | TYPE_EXPIRING => read_table(reader, limits, kind == TYPE_EXPIRING),
        _ => {
            let whole = reader.string()?.into_bytes()?;
            match kind {
                TYPE_LISTPACK => read_listpack(&whole, limits),
                TYPE_ZIPLIST => read_ziplist(&whole, limits),
                TYPE_ZIPMAP => read_zipmap(&whole, limits),
                _ => None,
            }
        }
    }
}

/// A hash under construction, to which each field is added once.
struct HashBuilder {
    hash: Hash,
    /// The size in bytes of a listpack with all fields.
    run_bytes: usize,
}

impl HashBuilder {
    fn new(reported: HashEncoding, claimed_fields: usize) -> Self {
        let fields = claimed_fields.min(MAX_RESERVED_FIELDS);
        HashBuilder {
            hash: Hash::with_capacity(reported, fields, 0),
            run_bytes: 0,
        }
    }

    fn add(&mut self, name: &[u8], value: &[u8], expiry: FieldExpiry) -> Option<()> {
        self.run_bytes += Element::of(name).run_bytes() + Element::of(value).run_bytes();
        // At time 0 nothing has expired, so a duplicate field is detected.
        (self.hash.set(name, value, expiry, 0) == PreviousField::Absent).then_some(())
    }

    fn finish(self) -> Option<ReadHash> {
        if self.hash.is_empty() {
            return None;
        }
        if self.hash.encoding() == HashEncoding::Hashtable || self.run_bytes >= MAX_PACKED_BYTES {
            return Some(ReadHash::Large(self.hash));
        }
        let mut packed = Vec::with_capacity(1 + self.run_bytes);
        packed.push(PackedKind::Hash as u8);
        for (_, record) in self.hash.records().iter() {
            listpack::push(&mut packed, record.key);
            listpack::push(&mut packed, record.value);
        }
        Some(ReadHash::Packed(packed))
    }
}

fn read_table(reader: &mut RdbReader<'_>, limits: HashLimits, expiring: bool) -> Option<ReadHash> {
    let fields = reader.length()?;
    let compact = !expiring && fields <= limits.fields;
    let mut draft = HashBuilder::new(
        if compact {
            HashEncoding::Listpack
        } else {
            HashEncoding::Hashtable
        },
        fields,
    );
    for _ in 0..fields {
        let (name, value) = (into_bytes(reader.string()?), into_bytes(reader.string()?));
        if name.len().max(value.len()) > limits.value_bytes {
            draft.hash.set_hashtable_encoding();
        }
        let expiry = if expiring {
            read_expiry(reader)?
        } else {
            FieldExpiry::Never
        };
        draft.add(&name, &value, expiry)?;
    }
    draft.finish()
}

fn read_expiry(reader: &mut RdbReader<'_>) -> Option<FieldExpiry> {
    let bytes: [u8; 8] = reader.bytes(8)?.try_into().ok()?;
    match i64::from_le_bytes(bytes) {
        NO_EXPIRY => Some(FieldExpiry::Never),
        at_ms => u64::try_from(at_ms).ok().map(FieldExpiry::At),
    }
}

fn into_bytes(loaded: ParsedString<'_>) -> Cow<'_, [u8]> {
    match loaded {
        ParsedString::Int(number) => Cow::Owned(number.to_string().into_bytes()),
        ParsedString::Bytes(bytes) => Cow::Borrowed(bytes),
        ParsedString::Decompressed(bytes) => Cow::Owned(bytes),
    }
}

fn read_listpack(whole: &[u8], limits: HashLimits) -> Option<ReadHash> {
    let (run, elements) = listpack::validate(whole)?;
    if !elements.is_multiple_of(2) {
        return None;
    }
    let mut draft = HashBuilder::new(reported_encoding(elements / 2, limits), elements / 2);
    for field in hash::fields_of(run) {
        let (mut name, mut value) = ([0; DECIMAL_MAX_BYTES], [0; DECIMAL_MAX_BYTES]);
        draft.add(
            field.name.text(&mut name),
            field.value.text(&mut value),
            FieldExpiry::Never,
        )?;
    }
    draft.finish()
}

/// The reported encoding of a hash with this many fields that was stored in a compact encoding.
fn reported_encoding(fields: usize, limits: HashLimits) -> HashEncoding {
    if fields <= limits.fields {
        HashEncoding::Listpack
    } else {
        HashEncoding::Hashtable
    }
}

fn read_ziplist(whole: &[u8], limits: HashLimits) -> Option<ReadHash> {
    let list = Ziplist::validate(whole)?;
    if !list.len().is_multiple_of(2) {
        return None;
    }
    let mut draft = HashBuilder::new(reported_encoding(list.len() / 2, limits), list.len() / 2);
    let mut elements = list.iter();
    while let (Some(name), Some(value)) = (elements.next(), elements.next()) {
        draft.add(&element_text(name), &element_text(value), FieldExpiry::Never)?;
    }
    draft.finish()
}

fn element_text(element: ziplist::ZiplistElement<'_>) -> Cow<'_, [u8]> {
    match element {
        ziplist::ZiplistElement::Int(number) => Cow::Owned(number.to_string().into_bytes()),
        ziplist::ZiplistElement::Bytes(bytes) => Cow::Borrowed(bytes),
    }
}

fn read_zipmap(whole: &[u8], limits: HashLimits) -> Option<ReadHash> {
    let map = Zipmap::validate(whole)?;
    let mut draft = HashBuilder::new(reported_encoding(map.len(), limits), map.len());
    for (name, value) in map.iter() {
        if name.len().max(value.len()) > limits.value_bytes {
            draft.hash.set_hashtable_encoding();
        }
        draft.add(name, value, FieldExpiry::Never)?;
    }
    draft.finish()
}

#[cfg(test)]
mod tests;
