//! The hash tags of the keys in a cluster whose slots move. The number of a tag says in which ways its slot moves.

/// The number of tags.
pub const TAGS: usize = 16;

/// Returns the tag with this number, which may be larger than the number of tags.
pub fn tag(number: usize) -> String {
    format!("{{{}}}", number % TAGS)
}

/// Returns `true` if the keys of the tag's slot may move one by one, with MIGRATE.
pub fn moves_by_key(number: usize) -> bool {
    number % 4 != 3
}

/// Returns `true` if the tag's slot may move as a whole, with CLUSTER MIGRATESLOTS.
pub fn moves_as_whole(number: usize) -> bool {
    number % 4 != 2
}
