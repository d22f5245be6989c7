//! Sets in the encoding of RDB files.
//!
//! ```text
//! 2    number of members, each member as a string       the form of tables, and of all sets in old versions
//! 11   a string: width (4), members (4), the integers of that width, ascending; all little-endian
//! 20   a string: a listpack
//! ```

use weft_values::Value;
use weft_values::listpack;
use weft_values::set::{PackedIntegers, Set, SetLimits, SetView};

use super::dump_payload::RestoredValue;
use super::strings::{ParsedString, RdbReader, write_length, write_string};

/// The type of a set of arbitrary members.
pub const TYPE_SET: u8 = 2;
/// The type of a set of integers.
pub const TYPE_INTSET: u8 = 11;
/// The type of a set in a listpack.
pub const TYPE_LISTPACK: u8 = 20;

/// Appends a set and its type.
pub fn write(out: &mut Vec<u8>, set: SetView<'_>, compress: bool) {
    match set {
        SetView::Integers(integers) => {
            let mut whole = Vec::with_capacity(8 + integers.bytes().len());
            whole.extend((integers.width() as u32).to_le_bytes());
            whole.extend((integers.len() as u32).to_le_bytes());
            whole.extend(integers.bytes());
            out.push(TYPE_INTSET);
            write_string(out, &whole, compress);
        }
        SetView::Run { count, run } => {
            let mut whole = Vec::with_capacity(listpack::listpack_bytes(run.bytes().len()));
            listpack::write_listpack(&mut whole, run.bytes(), count);
            out.push(TYPE_LISTPACK);
            write_string(out, &whole, compress);
        }
        SetView::Table(table) => {
            out.push(TYPE_SET);
            write_length(out, table.len());
            for member in table.iter() {
                write_string(out, member, compress);
            }
        }
    }
}

/// Reads a set of one of the types above, in the encoding that `limits` give it; `None` if it is invalid.
pub fn read<'p>(kind: u8, reader: &mut RdbReader<'_>, limits: SetLimits) -> Option<RestoredValue<'p>> {
    let set = read_set(kind, reader, limits)?;
    Some(match set.packed() {
        Some(packed) => RestoredValue::Packed(packed.to_vec()),
        None => RestoredValue::Object(Value::Set(set)),
    })
}

fn read_set(kind: u8, reader: &mut RdbReader<'_>, limits: SetLimits) -> Option<Set> {
    match kind {
        TYPE_SET => read_members(reader, limits),
        TYPE_INTSET => read_intset(&reader.string()?.into_bytes()?, limits),
        TYPE_LISTPACK => read_listpack(&reader.string()?.into_bytes()?, limits),
        _ => None,
    }
}

/// Reads a set of [`TYPE_SET`], in the encoding that the limits give it; `None` if it is empty or contains a member
/// twice.
fn read_members(reader: &mut RdbReader<'_>, limits: SetLimits) -> Option<Set> {
    let members = reader.length()?;
    let mut set = if members > limits.integers {
        // The stated number is not trusted, so no memory is reserved for it.
        Set::new_table(0, 0)
    } else {
        Set::new_integers()
    };
    for _ in 0..members {
        let missing = match reader.string()? {
            ParsedString::Int(number) => set.add_element(listpack::Element::Int(number), limits),
            ParsedString::Bytes(member) => set.add(member, limits),
            ParsedString::Decompressed(member) => set.add(&member, limits),
        };
        if !missing {
            return None;
        }
    }
    set.shrink();
    (members > 0).then_some(set)
}

/// Reads a set of [`TYPE_INTSET`]; `None` if it is empty or invalid.
fn read_intset(whole: &[u8], limits: SetLimits) -> Option<Set> {
    let (width, rest) = whole.split_first_chunk::<4>()?;
    let (members, numbers) = rest.split_first_chunk::<4>()?;
    let integers = PackedIntegers::validate(u32::from_le_bytes(*width) as usize, numbers)?;
    if integers.is_empty() || integers.len() != u32::from_le_bytes(*members) as usize {
        return None;
    }
    let mut set = Set::from_packed(integers.to_packed());
    set.prepare_for_members(integers.len(), limits);
    Some(set)
}

/// Reads a set of [`TYPE_LISTPACK`]; `None` if it is empty, contains a member twice, or is invalid.
fn read_listpack(whole: &[u8], limits: SetLimits) -> Option<Set> {
    let (run, _) = listpack::validate(whole)?;
    Set::from_external_run(run, limits).filter(|set| !set.is_empty())
}

#[cfg(test)]
mod tests;
