//! The length of an encoded value, computed from its outermost structure only.

use std::io::Read;

use super::error::RdbFault;
use super::source::RdbSource;
use weft_modules::objects::io::opcode as module_opcode;
use weft_rdb::dump_payload::{TYPE_EARLY_MODULE, TYPE_MODULE};
use weft_rdb::strings::{ParsedString, RdbReader};
use weft_rdb::{dump_payload, hashes, lists, sets, sorted_sets, streams};

/// Skips a value of this type.
///
/// # Errors
/// If the file is truncated, has an invalid length, or if the type is unknown.
pub fn skip_value<R: Read>(source: &mut RdbSource<R>, kind: u8) -> Result<(), RdbFault> {
    match kind {
        dump_payload::TYPE_STRING
        | hashes::TYPE_ZIPMAP
        | hashes::TYPE_ZIPLIST
        | hashes::TYPE_LISTPACK
        | lists::TYPE_ZIPLIST
        | sets::TYPE_INTSET
        | sets::TYPE_LISTPACK
        | sorted_sets::TYPE_ZIPLIST
        | sorted_sets::TYPE_LISTPACK => source.skip_string().map(drop),
        lists::TYPE_LIST | sets::TYPE_SET | lists::TYPE_QUICKLIST => {
            skip_each(source, |source| source.skip_string().map(drop))
        }
        lists::TYPE_QUICKLIST_2 => skip_each(source, |source| {
            source.length()?;
            source.skip_string().map(drop)
        }),
        hashes::TYPE_HASH => skip_each(source, skip_pair),
        hashes::TYPE_EXPIRING => skip_each(source, |source| {
            skip_pair(source)?;
            source.take(8).map(drop)
        }),
        sorted_sets::TYPE_BINARY => skip_each(source, |source| {
            source.skip_string()?;
            source.take(8).map(drop)
        }),
        sorted_sets::TYPE_DECIMAL => skip_each(source, |source| {
            source.skip_string()?;
            skip_decimal(source)
        }),
        streams::TYPE_FIRST | streams::TYPE_SECOND | streams::TYPE_THIRD => skip_stream(source, kind),
        TYPE_EARLY_MODULE => Err(RdbFault::damaged("Pre-release module format not supported")),
        TYPE_MODULE => {
            source.length()?;
            skip_module_elements(source)
        }
        _ => Err(RdbFault::UnknownType(kind)),
    }
}

/// Skips elements. Their number is read first.
fn skip_each<R: Read>(
    source: &mut RdbSource<R>,
    mut skip: impl FnMut(&mut RdbSource<R>) -> Result<(), RdbFault>,
) -> Result<(), RdbFault> {
    for _ in 0..source.length()? {
        skip(source)?;
    }
    Ok(())
}

fn skip_pair<R: Read>(source: &mut RdbSource<R>) -> Result<(), RdbFault> {
    source.skip_string()?;
    source.skip_string().map(drop)
}

/// Skips a decimal number, which is preceded by its length. The three highest lengths stand for NaN and the infinities.
fn skip_decimal<R: Read>(source: &mut RdbSource<R>) -> Result<(), RdbFault> {
    match source.byte()? {
        253..=255 => Ok(()),
        length => source.take(usize::from(length)).map(drop),
    }
}

fn skip_lengths<R: Read>(source: &mut RdbSource<R>, count: usize) -> Result<(), RdbFault> {
    for _ in 0..count {
        source.length()?;
    }
    Ok(())
}

fn skip_stream<R: Read>(source: &mut RdbSource<R>, version: u8) -> Result<(), RdbFault> {
    let (second, third) = (version >= streams::TYPE_SECOND, version >= streams::TYPE_THIRD);
    skip_each(source, skip_pair)?;
    // The length and the last ID, then the first ID, the largest deleted ID, and the number of entries added.
    skip_lengths(source, if second { 3 + 5 } else { 3 })?;
    skip_each(source, |source| {
        source.skip_string()?;
        skip_lengths(source, if second { 3 } else { 2 })?;
        skip_each(source, |source| {
            source.take(16 + 8)?;
            source.length().map(drop)
        })?;
        skip_each(source, |source| {
            source.skip_string()?;
            source.take(if third { 8 + 8 } else { 8 })?;
            skip_each(source, |source| source.take(16).map(drop))
        })
    })
}

/// Skips the elements of a module's data, each behind an opcode, up to its end.
///
/// # Errors
/// If the file is truncated, or an opcode is unknown.
pub fn skip_module_elements<R: Read>(source: &mut RdbSource<R>) -> Result<(), RdbFault> {
    loop {
        match u8::try_from(source.length()?) {
            Ok(module_opcode::END) => return Ok(()),
            Ok(module_opcode::SIGNED | module_opcode::UNSIGNED) => drop(source.length()?),
            Ok(module_opcode::FLOAT) => drop(source.array::<4>()?),
            Ok(module_opcode::DOUBLE) => drop(source.array::<8>()?),
            Ok(module_opcode::STRING) => {
                source.skip_string()?;
            }
            _ => return Err(RdbFault::damaged("Unknown opcode in module data")),
        }
    }
}

/// The name encoded in a module's type id: nine characters of six bits, above a ten-bit version.
pub fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9)
        .map(|place| LETTERS[(id >> (10 + 6 * (8 - place))) as usize & 63] as char)
        .collect()
}

/// Returns `true` if a value that no decoder accepts has no elements. Such keys are skipped. `body` is the value
/// without its type.
pub fn is_empty_value(kind: u8, body: &[u8]) -> bool {
    const EMPTY_LISTPACK: &[u8] = &[7, 0, 0, 0, 0, 0, 0xff];
    const EMPTY_ZIPLIST: &[u8] = &[11, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0xff];
    let holds = |empty: &[u8]| is_string(&mut RdbReader::new(body), empty);
    match kind {
        lists::TYPE_LIST
        | sets::TYPE_SET
        | sorted_sets::TYPE_DECIMAL
        | sorted_sets::TYPE_BINARY
        | hashes::TYPE_HASH
        | hashes::TYPE_EXPIRING => RdbReader::new(body).length() == Some(0),
        hashes::TYPE_LISTPACK | sets::TYPE_LISTPACK | sorted_sets::TYPE_LISTPACK => holds(EMPTY_LISTPACK),
        hashes::TYPE_ZIPLIST | lists::TYPE_ZIPLIST | sorted_sets::TYPE_ZIPLIST => holds(EMPTY_ZIPLIST),
        hashes::TYPE_ZIPMAP => holds(&[0, 0xff]),
        sets::TYPE_INTSET => matches!(body, [8, 2 | 4 | 8, 0, 0, 0, 0, 0, 0, 0]),
        lists::TYPE_QUICKLIST => all_nodes_equal(body, false, EMPTY_ZIPLIST),
        lists::TYPE_QUICKLIST_2 => all_nodes_equal(body, true, EMPTY_LISTPACK),
        _ => false,
    }
}

/// Returns `true` if every node of a list equals `node`. If `has_containers` is set, each node is preceded by its
/// container.
fn all_nodes_equal(body: &[u8], has_containers: bool, node: &[u8]) -> bool {
    let mut reader = RdbReader::new(body);
    let Some(count) = reader.length() else {
        return false;
    };
    (0..count).all(|_| {
        let framed = !has_containers || reader.length().is_some();
        framed && is_string(&mut reader, node)
    })
}

fn is_string(reader: &mut RdbReader<'_>, wanted: &[u8]) -> bool {
    let text = reader.string().and_then(ParsedString::into_bytes);
    text.is_some_and(|bytes| bytes[..] == *wanted)
}
