//! Lists in the encoding of RDB files, node by node.
//!
//! ```text
//! list, 1            count   string ...
//! ziplist, 10        string: a ziplist
//! quicklist, 14      count   string: a ziplist ...
//! quicklist 2, 18    count   (container  string) ...     container 1: an element, 2: a listpack
//! ```

use weft_values::Value;
use weft_values::list::{List, ListEnd, ListLimits, ListRef, NewList, NodeKind};
use weft_values::listpack::{self, DECIMAL_MAX_BYTES, format_decimal};

use super::EncodingLimits;
use super::dump_payload::RestoredValue;
use super::strings::{ParsedString, RdbReader, write_compressed, write_length, write_string};
use super::ziplist::{Ziplist, ZiplistElement};

/// The type of a list of strings, used by the oldest versions.
pub const TYPE_LIST: u8 = 1;
/// The type of a ziplist.
pub const TYPE_ZIPLIST: u8 = 10;
/// The type of a quicklist of ziplists.
pub const TYPE_QUICKLIST: u8 = 14;
/// The type of a quicklist of listpacks and large elements. Only this type is written.
pub const TYPE_QUICKLIST_2: u8 = 18;

const CONTAINER_PLAIN: usize = 1;
const CONTAINER_PACKED: usize = 2;

/// Appends a list and its type. Strings are compressed if `compress` is set (`rdbcompression`).
pub fn write(out: &mut Vec<u8>, list: ListRef<'_>, compress: bool) {
    out.push(TYPE_QUICKLIST_2);
    match list {
        ListRef::Packed(list) => {
            write_length(out, 1);
            write_length(out, CONTAINER_PACKED);
            let mut whole = Vec::new();
            listpack::write_listpack(&mut whole, list.run().bytes(), list.len());
            write_string(out, &whole, compress);
        }
        ListRef::Large(list) => {
            let nodes = list.stored_nodes();
            write_length(out, nodes.len());
            for node in nodes {
                write_length(
                    out,
                    match node.container {
                        NodeKind::Plain => CONTAINER_PLAIN,
                        NodeKind::Packed => CONTAINER_PACKED,
                    },
                );
                // Nodes that are compressed in memory stay compressed.
                match node.compressed {
                    Some((packed, length)) => write_compressed(out, packed, length),
                    None => write_string(out, &node.whole, compress),
                }
            }
        }
    }
}

/// Reads a list of the given type; `None` if it is invalid or empty.
pub fn read<'p>(kind: u8, reader: &mut RdbReader<'p>, limits: &EncodingLimits) -> Option<RestoredValue<'p>> {
    let mut list = List::quicklist(limits.listpack_size, limits.list_compress_depth);
    match kind {
        TYPE_LIST => read_strings(reader, &mut list)?,
        TYPE_ZIPLIST => read_ziplist(reader, &mut list)?,
        TYPE_QUICKLIST => read_ziplists(reader, &mut list)?,
        _ => read_nodes(reader, &mut list)?,
    }
    if list.is_empty() {
        return None;
    }
    // A single ziplist stays a quicklist, as in Valkey.
    if kind == TYPE_ZIPLIST {
        return Some(RestoredValue::Object(Value::List(list)));
    }
    Some(match list.into_new_list(ListLimits::new(limits.listpack_size)) {
        NewList::Packed(bytes) => RestoredValue::Packed(bytes),
        NewList::Large(list) => RestoredValue::Object(Value::List(list)),
    })
}

fn read_strings(reader: &mut RdbReader<'_>, list: &mut List) -> Option<()> {
    for _ in 0..reader.length()? {
        match reader.string()? {
            ParsedString::Int(number) => list.push(ListEnd::Tail, format_decimal(number, &mut [0; DECIMAL_MAX_BYTES])),
            ParsedString::Bytes(bytes) => list.push(ListEnd::Tail, bytes),
            ParsedString::Decompressed(bytes) => list.push(ListEnd::Tail, &bytes),
        }
    }
    Some(())
}

fn read_ziplist(reader: &mut RdbReader<'_>, list: &mut List) -> Option<()> {
    let bytes = reader.string()?.into_bytes()?;
    for element in Ziplist::validate(&bytes)?.iter() {
        match element {
            ZiplistElement::Int(number) => {
                list.push(ListEnd::Tail, format_decimal(number, &mut [0; DECIMAL_MAX_BYTES]))
            }
            ZiplistElement::Bytes(bytes) => list.push(ListEnd::Tail, bytes),
        }
    }
    Some(())
}

fn read_ziplists(reader: &mut RdbReader<'_>, list: &mut List) -> Option<()> {
    let mut run = Vec::new();
    for _ in 0..reader.length()? {
        let bytes = reader.string()?.into_bytes()?;
        let elements = Ziplist::validate(&bytes)?;
        run.clear();
        for element in elements.iter() {
            match element {
                ZiplistElement::Int(number) => listpack::push_int(&mut run, number),
                ZiplistElement::Bytes(bytes) => listpack::push(&mut run, bytes),
            }
        }
        if !elements.is_empty() {
            list.append_run(&run, elements.len());
        }
    }
    Some(())
}

fn read_nodes(reader: &mut RdbReader<'_>, list: &mut List) -> Option<()> {
    for _ in 0..reader.length()? {
        let container = reader.length()?;
        let bytes = match reader.string()? {
            // Only a plain node, with a single element, can be a number.
            ParsedString::Int(number) if container == CONTAINER_PLAIN => {
                format_decimal(number, &mut [0; DECIMAL_MAX_BYTES]).to_vec().into()
            }
            other => other.into_bytes()?,
        };
        match container {
            CONTAINER_PLAIN if !bytes.is_empty() => list.append_plain(&bytes),
            CONTAINER_PACKED => {
                let (run, count) = listpack::validate(&bytes)?;
                if count > 0 {
                    list.append_run(run.bytes(), count);
                }
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
