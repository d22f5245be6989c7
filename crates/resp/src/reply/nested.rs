//! Collections of unknown lengths that may be nested to any depth.
//!
//! Every collection begins with the header of an empty one. A length of one digit replaces the digit there. Longer ones
//! are inserted when the outermost collection is complete, all in one pass over the reply, so its cost does not grow
//! with the depth.

use super::{HEADER_MAX_LEN, Reply, ascii_digit};

/// The length of the header of a collection with fewer than ten elements: a prefix, a digit, CR LF.
const SHORT_HEADER_LEN: usize = 4;

/// The lengths that are still to be inserted into a reply.
#[derive(Debug, Default)]
pub struct NestedLengths {
    /// The position of each header, and the length to insert.
    long: Vec<(usize, usize)>,
}

/// A collection that is begun. It must be passed to the `end_` function that corresponds to the `begin_` function that
/// returned it.
#[derive(Debug)]
#[must_use = "a collection that is begun must be ended"]
pub struct NestedCollection {
    position: usize,
}

impl NestedLengths {
    /// Begins an array. Its elements must follow. Collections begun inside it must be ended first.
    pub fn begin_array(&mut self, reply: &mut Reply<'_>) -> NestedCollection {
        let begun = NestedCollection { position: reply.len() };
        reply.array(0);
        begun
    }

    /// Begins a map. The rules of [`Self::begin_array`] apply.
    pub fn begin_map(&mut self, reply: &mut Reply<'_>) -> NestedCollection {
        let begun = NestedCollection { position: reply.len() };
        reply.map(0);
        begun
    }

    /// Begins a set. The rules of [`Self::begin_array`] apply.
    pub fn begin_set(&mut self, reply: &mut Reply<'_>) -> NestedCollection {
        let begun = NestedCollection { position: reply.len() };
        reply.set(0);
        begun
    }

    /// Ends an array of `len` elements.
    pub fn end_array(&mut self, collection: NestedCollection, len: usize, reply: &mut Reply<'_>) {
        self.set_length(collection, len, reply);
    }

    /// Ends a map of `len` pairs.
    pub fn end_map(&mut self, collection: NestedCollection, len: usize, reply: &mut Reply<'_>) {
        let (_, len) = reply.map_header(len);
        self.set_length(collection, len, reply);
    }

    /// Ends a set of `len` elements.
    pub fn end_set(&mut self, collection: NestedCollection, len: usize, reply: &mut Reply<'_>) {
        self.set_length(collection, len, reply);
    }

    fn set_length(&mut self, collection: NestedCollection, len: usize, reply: &mut Reply<'_>) {
        match len {
            0..10 => reply.out[collection.position + 1] = ascii_digit(len),
            _ => self.long.push((collection.position, len)),
        }
    }

    /// Inserts the lengths that have more than one digit. To be called when the outermost collection is ended.
    pub fn insert(mut self, reply: &mut Reply<'_>) {
        self.long.sort_unstable();
        let mut source_end = reply.len();
        let mut header = Vec::with_capacity(HEADER_MAX_LEN);
        let longer: usize = self.long.iter().map(|(_, len)| number_of_digits(*len) - 1).sum();
        reply.out.resize(source_end + longer, 0);
        let mut target_end = reply.len();
        for (position, len) in self.long.into_iter().rev() {
            header.clear();
            Reply::new(&mut header, reply.protocol).write_header(reply.out[position], len);
            let content = position + SHORT_HEADER_LEN..source_end;
            let target = target_end - content.len();
            reply.out.copy_within(content, target);
            source_end = position;
            target_end = target - header.len();
            reply.out[target_end..target].copy_from_slice(&header);
        }
        assert_eq!(source_end, target_end, "every length is as long as it was counted");
    }
}

fn number_of_digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}
