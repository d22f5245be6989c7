//! Sorted sets in the encoding of RDB files.
//!
//! ```text
//!  3   number of members, each a string and its score in decimal    old versions
//!  5   number of members, each a string and its score, 8 bytes      skiplists, from the highest score to the lowest
//! 12   a string: a ziplist of alternating members and scores        old versions
//! 17   a string: a listpack of alternating members and scores       listpacks
//!
//! decimal:  FD NaN   FE infinity   FF negative infinity   else length (1), digits
//! ```

use weft_resp::number::{format_f64, parse_score_bound};
use weft_values::listpack::{self, DECIMAL_MAX_BYTES, Element};
use weft_values::sorted_set::{
    DetachedSortedSet, MAX_MEMBER_BYTES, MemberBuilder, SortedSetEncoding, SortedSetLimits, SortedSetView,
};

use super::strings::{ParsedString, RdbReader, write_length, write_string};
use super::ziplist::{self, Ziplist};

/// The type of a sorted set with scores in decimal.
pub const TYPE_DECIMAL: u8 = 3;
/// The type of a sorted set with scores in binary.
pub const TYPE_BINARY: u8 = 5;
/// The type of a sorted set in a ziplist.
pub const TYPE_ZIPLIST: u8 = 12;
/// The type of a sorted set in a listpack.
pub const TYPE_LISTPACK: u8 = 17;

const DECIMAL_NAN: u8 = 253;
const DECIMAL_INFINITY: u8 = 254;
const DECIMAL_NEGATIVE_INFINITY: u8 = 255;
/// The largest absolute value that a listpack stores as an integer. Larger scores are stored as text.
const INTEGER_MAX: f64 = (1u64 << 62) as f64;

/// Appends a sorted set and its type.
pub fn write(out: &mut Vec<u8>, set: SortedSetView<'_>, compress: bool) {
    match set {
        SortedSetView::Large(large) if large.encoding() == SortedSetEncoding::Skiplist => {
            out.push(TYPE_BINARY);
            write_length(out, large.len());
            for (member, score) in large.iter_ranks(0..large.len(), true) {
                write_string(out, member, compress);
                out.extend(score.to_le_bytes());
            }
        }
        _ => {
            let mut run = Vec::new();
            for (member, score) in set.iter() {
                push_member(&mut run, member);
                push_score(&mut run, score);
            }
            let mut whole = Vec::with_capacity(listpack::listpack_bytes(run.len()));
            listpack::write_listpack(&mut whole, &run, set.len() * 2);
            out.push(TYPE_LISTPACK);
            write_string(out, &whole, compress);
        }
    }
}

fn push_member(run: &mut Vec<u8>, member: Element<'_>) {
    match member {
        Element::Bytes(bytes) => listpack::push(run, bytes),
        number => listpack::push_element(run, number),
    }
}

fn push_score(run: &mut Vec<u8>, score: f64) {
    let integer = score as i64;
    if score.abs() <= INTEGER_MAX && integer as f64 == score {
        listpack::push_int(run, integer);
    } else {
        let mut text = Vec::new();
        format_f64(score, &mut text);
        listpack::push(run, &text);
    }
}

/// Reads a sorted set of one of these types, in the encoding that the limits give it; `None` if it is empty or invalid,
/// or if the type is a different one.
pub fn read(kind: u8, reader: &mut RdbReader<'_>, limits: SortedSetLimits) -> Option<DetachedSortedSet> {
    match kind {
        TYPE_DECIMAL => read_members(reader, false, limits),
        TYPE_BINARY => read_members(reader, true, limits),
        TYPE_ZIPLIST => read_ziplist(&reader.string()?.into_bytes()?, limits),
        TYPE_LISTPACK => read_listpack(&reader.string()?.into_bytes()?, limits),
        _ => None,
    }
}

fn read_members(reader: &mut RdbReader<'_>, is_binary: bool, limits: SortedSetLimits) -> Option<DetachedSortedSet> {
    let count = reader.length()?;
    let mut gathering = MemberBuilder::default();
    for _ in 0..count {
        let member = reader.string()?;
        let score = if is_binary {
            f64::from_le_bytes(reader.bytes(8)?.try_into().ok()?)
        } else {
            read_decimal(reader)?
        };
        match member {
            ParsedString::Int(number) => gathering.push_element(Element::Int(number), score),
            ParsedString::Bytes(member) => push_checked(&mut gathering, member, score)?,
            ParsedString::Decompressed(member) => push_checked(&mut gathering, &member, score)?,
        }
        if score.is_nan() {
            return None;
        }
    }
    finish_draft(gathering, limits)
}

fn push_checked(gathering: &mut MemberBuilder, member: &[u8], score: f64) -> Option<()> {
    let fits = member.len() <= MAX_MEMBER_BYTES && !score.is_nan();
    fits.then(|| gathering.push(member, score))
}

fn finish_draft(gathering: MemberBuilder, limits: SortedSetLimits) -> Option<DetachedSortedSet> {
    let is_valid = !gathering.is_empty() && !gathering.has_duplicates();
    is_valid.then(|| gathering.build(limits))
}

fn read_decimal(reader: &mut RdbReader<'_>) -> Option<f64> {
    match reader.byte()? {
        DECIMAL_NAN => None,
        DECIMAL_INFINITY => Some(f64::INFINITY),
        DECIMAL_NEGATIVE_INFINITY => Some(f64::NEG_INFINITY),
        length => parse_score_bound(reader.bytes(usize::from(length))?),
    }
}

/// A listpack or ziplist becomes a skiplist if it has too many members. The length of its members does not matter.
fn limits_for_packed(limits: SortedSetLimits) -> SortedSetLimits {
    SortedSetLimits {
        member_bytes: usize::MAX,
        ..limits
    }
}

fn read_listpack(whole: &[u8], limits: SortedSetLimits) -> Option<DetachedSortedSet> {
    let (run, count) = listpack::validate(whole)?;
    if count % 2 == 1 {
        return None;
    }
    let mut gathering = MemberBuilder::with_capacity(count / 2);
    let mut elements = run.iter().map(|(_, element)| element);
    while let (Some(member), Some(score)) = (elements.next(), elements.next()) {
        push_pair(&mut gathering, member, score)?;
    }
    finish_draft(gathering, limits_for_packed(limits))
}

fn read_ziplist(whole: &[u8], limits: SortedSetLimits) -> Option<DetachedSortedSet> {
    let ziplist = Ziplist::validate(whole)?;
    let mut gathering = MemberBuilder::default();
    let mut elements = ziplist.iter().map(|element| match element {
        ziplist::ZiplistElement::Int(number) => Element::Int(number),
        ziplist::ZiplistElement::Bytes(bytes) => Element::Bytes(bytes),
    });
    while let Some(member) = elements.next() {
        push_pair(&mut gathering, member, elements.next()?)?;
    }
    finish_draft(gathering, limits_for_packed(limits))
}

fn push_pair(gathering: &mut MemberBuilder, member: Element<'_>, score: Element<'_>) -> Option<()> {
    let score = match score {
        Element::Int(number) => number as f64,
        Element::Bytes(text) => parse_score_bound(text)?,
    };
    push_checked(gathering, member.text(&mut [0; DECIMAL_MAX_BYTES]), score)
}

#[cfg(test)]
mod tests;
