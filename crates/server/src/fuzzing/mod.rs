//! The entry points of the fuzz targets in `fuzz/`: what reads untrusted bytes from clients, files and peers.

mod files;
mod links;

pub use files::{check_aof, check_manifest, check_rdb_file};
pub use links::{check_primary_link, check_replica_link};

use weft_table::{EntryRef, Table, ValueRef};
use weft_values::Value;

use crate::commands::server::digest;
use crate::keyspace::string_encoding::encode_string;
use weft_rdb::EncodingLimits;
use weft_rdb::dump_payload;

/// Loads `body`, a value without version and checksum, as RESTORE would. An accepted value is dumped, and the dump must
/// load as the same value.
///
/// # Panics
/// If the dump is refused or loads as a different value.
pub fn check_restore(body: &[u8]) {
    let mut sealed = body.to_vec();
    dump_payload::append_footer(&mut sealed, dump_payload::VERSION);
    assert!(
        dump_payload::is_valid(&sealed, false),
        "a payload that was just made is not sound"
    );
    let limits = EncodingLimits::default();
    let Some((fingerprint, dump)) = with_loaded(&sealed, &limits, fingerprint_and_dump) else {
        return;
    };
    assert!(dump_payload::is_valid(&dump, false), "a dump is not sound: {dump:?}");
    let (again, second_dump) = reload(&dump, &limits);
    assert_eq!(fingerprint, again, "a dump is loaded as something else: {dump:?}");
    // A value whose encoding in the payload is too large for it is loaded into the encoding for its size, and keeps
    // that one.
    let (_, third_dump) = reload(&second_dump, &limits);
    // Members of tables may come in a different order. The fingerprint does not cover the groups of a stream.
    let has_order = with_loaded(&second_dump, &limits, |entry| {
        !matches!(entry.value(), ValueRef::Object(Value::Set(_) | Value::Hash(_)))
    });
    if has_order == Some(true) {
        assert_eq!(
            second_dump, third_dump,
            "a dump changes when it is loaded and dumped again"
        );
    }
}

/// Returns the fingerprint and the dump of a dumped value.
///
/// Panics if the dump is refused.
fn reload(dump: &[u8], limits: &EncodingLimits) -> (String, Vec<u8>) {
    match with_loaded(dump, limits, fingerprint_and_dump) {
        Some(seen) => seen,
        None => panic!("a dump is not loaded: {dump:?}"),
    }
}

/// Returns the fingerprint of an entry and its dump.
fn fingerprint_and_dump(entry: EntryRef<'_, Value>) -> (String, Vec<u8>) {
    (
        digest::digest_value(entry, 0, None).to_hex(),
        dump_payload::dump(entry.value(), true),
    )
}

/// Loads a payload as a key and calls `visit` with its entry; `None` if the payload is refused.
fn with_loaded<R>(payload: &[u8], limits: &EncodingLimits, visit: impl FnOnce(EntryRef<'_, Value>) -> R) -> Option<R> {
    let mut table = Table::new();
    dump_payload::parse_payload(payload, limits)?
        .insert_with(encode_string, |value| drop(table.insert(1, b"key", value, None, 0)));
    table.find(1, b"key").map(visit)
}

#[cfg(test)]
mod tests;
