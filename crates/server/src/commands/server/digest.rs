//! DEBUG DIGEST and DIGEST-VALUE: a digest of data that does not depend on its order in memory.
//!
//! The digest of a key is a chain: each part is hashed into the parts before it. The digest of a database is the
//! exclusive or of its keys' digests. Both equal Valkey's, so that the data of both servers can be compared.

use std::collections::HashMap;
use std::ops::ControlFlow;

use sha1::{Digest as _, Sha1};
use weft_base::{DbIndex, SlotIndex};
use weft_resp::number::format_f64_shortest;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::hash::{self, HashRef};
use weft_values::list::packed::PackedList;
use weft_values::list::{Direction, ListRef};
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::SortedSetView;
use weft_values::sorted_set::packed::PackedSortedSet;
use weft_values::stream::{Stream, StreamId};

use crate::commands::context::{CommandResult, Context, build_reply};
use crate::commands::error::CommandError;
use crate::commands::generic::scan::{busy_error_of_walk, is_held_by_overdue_script};
use crate::keyspace::access::{HeldLeases, KeyCounts};
use crate::keyspace::module_values::{ModuleKey, find_module_keys};
use crate::keyspace::walk::{Cursor, WalkAccess, walk, walk_blocking};

/// Marks a key that expires. The time is left out, because it differs between copies.
const EXPIRE_MARK: &[u8] = b"!!expire!!";
/// Valkey's number of the type string.
const TYPE_STRING: u32 = 0;
/// Valkey's number of the type list.
const TYPE_LIST: u32 = 1;
/// Valkey's number of the type set.
const TYPE_SET: u32 = 2;
/// Valkey's number of the type sorted set.
const TYPE_SORTED_SET: u32 = 3;
/// Valkey's number of the type hash.
const TYPE_HASH: u32 = 4;
/// Valkey's number of the type of modules' values.
const TYPE_MODULE: u32 = 5;
/// Valkey's number of the type stream.
const TYPE_STREAM: u32 = 6;

/// A digest that is being computed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DataDigest([u8; 20]);

impl DataDigest {
    /// Adds a part. The order of parts that are added in this way does not matter.
    fn add_unordered(&mut self, part: &[u8]) {
        let hash = Sha1::digest(part);
        self.0.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    /// Adds a part and hashes the result, so that the order of parts matters.
    fn add_ordered(&mut self, part: &[u8]) {
        self.add_unordered(part);
        self.0 = Sha1::digest(self.0).into();
    }

    fn add_value(&mut self, entry: EntryRef<'_, Value>, now_ms: u64, module: Option<&ModuleDigest>) {
        match entry.value() {
            ValueRef::Packed(packed) => self.add_packed(packed),
            ValueRef::Object(Value::Module(_)) => self.add_module_value(module),
            ValueRef::Object(object) => self.add_object(object, now_ms),
            _ => self.add_string(entry.value()),
        }
        if entry.expire_at_ms().is_some() {
            self.add_unordered(EXPIRE_MARK);
        }
    }

    fn add_packed(&mut self, packed: &[u8]) {
        match PackedKind::of(packed) {
            PackedKind::List => self.add_list(ListRef::Packed(PackedList::new(packed))),
            PackedKind::Hash => self.add_hash(HashRef::Packed(hash::run_of(packed)), 0),
            PackedKind::Set | PackedKind::IntegerSet => self.add_set(SetView::of_packed(packed)),
            PackedKind::SortedSet => self.add_sorted_set(SortedSetView::Packed(PackedSortedSet::new(packed))),
        }
    }

    fn add_object(&mut self, object: &Value, now_ms: u64) {
        match object {
            Value::List(list) => self.add_list(ListRef::Large(list)),
            Value::Hash(hash) => self.add_hash(HashRef::Large(hash), now_ms),
            Value::Set(set) => self.add_set(set.view()),
            Value::SortedSet(set) => self.add_sorted_set(SortedSetView::Large(set)),
            Value::Stream(stream) => self.add_stream(stream),
            Value::Module(_) => self.add_module_value(None),
        }
    }

    /// Adds a value of a module, of which the module has computed the digest.
    fn add_module_value(&mut self, digest: Option<&ModuleDigest>) {
        self.add_ordered(&TYPE_MODULE.to_be_bytes());
        if let Some(digest) = digest {
            self.add_unordered(digest);
        }
    }

    fn add_stream(&mut self, stream: &Stream) {
        self.add_ordered(&TYPE_STREAM.to_be_bytes());
        for entry in stream.entries(StreamId::MIN, StreamId::MAX) {
            self.add_ordered(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
            for (name, value) in entry.pairs() {
                self.add_ordered(name.text(&mut [0; DECIMAL_MAX_BYTES]));
                self.add_ordered(value.text(&mut [0; DECIMAL_MAX_BYTES]));
            }
        }
    }

    /// Adds a hash. The expiry of fields is omitted, like all times. Expired fields are omitted, too.
    fn add_hash(&mut self, hash: HashRef<'_>, now_ms: u64) {
        self.add_ordered(&TYPE_HASH.to_be_bytes());
        hash.for_each(now_ms, |field| {
            let mut digest = DataDigest::default();
            digest.add_ordered(field.name.text(&mut [0; DECIMAL_MAX_BYTES]));
            digest.add_ordered(field.value.text(&mut [0; DECIMAL_MAX_BYTES]));
            self.add_unordered(&digest.0);
        });
    }

    fn add_set(&mut self, set: SetView<'_>) {
        self.add_ordered(&TYPE_SET.to_be_bytes());
        for member in set.iter() {
            self.add_unordered(member.text(&mut [0; DECIMAL_MAX_BYTES]));
        }
    }

    fn add_sorted_set(&mut self, set: SortedSetView<'_>) {
        self.add_ordered(&TYPE_SORTED_SET.to_be_bytes());
        let mut text = Vec::new();
        for (member, score) in set.iter() {
            let mut pair = DataDigest::default();
            pair.add_ordered(member.text(&mut [0; DECIMAL_MAX_BYTES]));
            text.clear();
            format_f64_shortest(score, &mut text);
            pair.add_ordered(&text);
            self.add_unordered(&pair.0);
        }
    }

    fn add_list(&mut self, list: ListRef<'_>) {
        self.add_ordered(&TYPE_LIST.to_be_bytes());
        list.visit(0, Direction::Forward, |element| {
            self.add_ordered(element.text(&mut [0; DECIMAL_MAX_BYTES]));
            ControlFlow::Continue(())
        });
    }

    fn add_string(&mut self, value: ValueRef<'_, Value>) {
        self.add_ordered(&TYPE_STRING.to_be_bytes());
        match value {
            ValueRef::Int(number) => self.add_ordered(number.to_string().as_bytes()),
            ValueRef::Bytes(bytes) => self.add_ordered(bytes),
            ValueRef::Blob(blob) => self.add_ordered(blob),
            ValueRef::Packed(_) | ValueRef::Object(_) => {}
        }
    }

    /// Returns the digest as 40 hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }
}

/// The digest of a value that its module has computed.
pub type ModuleDigest = [u8; 20];
/// The digests of values of modules, by database and name.
pub type ModuleDigests = HashMap<(DbIndex, Box<[u8]>), ModuleDigest>;

/// Returns the digest of a value with its expiry. `module` is that of a value of a module.
pub fn digest_value(entry: EntryRef<'_, Value>, now_ms: u64, module: Option<&ModuleDigest>) -> DataDigest {
    let mut fingerprint = DataDigest::default();
    fingerprint.add_value(entry, now_ms, module);
    fingerprint
}

/// Calls a function with each key of a database.
type DatabaseWalk<'a> = dyn FnMut(DbIndex, &mut dyn FnMut(SlotIndex, EntryRef<'_, Value>)) + 'a;

/// Returns the digest of all databases. A key that has expired and is not deleted yet is a part of it, as in Valkey.
fn digest_all(counts: &KeyCounts, now_ms: u64, modules: &ModuleDigests, walk: &mut DatabaseWalk<'_>) -> DataDigest {
    let mut all = DataDigest::default();
    for db in DbIndex::all(counts.databases()) {
        if counts.keys(db) == 0 {
            continue;
        }
        all.add_ordered(&(db.get() as u32).to_be_bytes());
        walk(db, &mut |_, entry| {
            let mut key = DataDigest::default();
            key.add_ordered(entry.key());
            let module = match modules.is_empty() {
                true => None,
                false => modules.get(&(db, entry.key().into())),
            };
            key.add_value(entry, now_ms, module);
            all.add_unordered(&key.0);
        });
    }
    all
}

/// Executes DEBUG DIGEST.
pub fn whole_digest(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (protocol, now_ms) = (ctx.client.protocol, ctx.now_ms);
    let modules = module_digests(ctx, |_, _| true)?;
    if let Some(whole) = WalkAccess::for_whole_keyspace(&ctx.keys.held) {
        let counts = &ctx.server.keyspace.counts;
        let fingerprint = digest_all(counts, now_ms, &modules, &mut |db, visit| {
            walk(&whole, db, Cursor::START, usize::MAX, visit);
        });
        ctx.reply.simple(&fingerprint.to_hex());
        return Ok(());
    }
    ctx.reply_from_background(move |server, seat| {
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let mut refusal = None;
        let fingerprint = digest_all(&server.keyspace.counts, now_ms, &modules, &mut |db, visit| {
            let end = walk_blocking(seat, &gives_up, db, Cursor::START, usize::MAX, visit);
            refusal = refusal.take().or_else(|| busy_error_of_walk(server, end));
        });
        build_reply(protocol, |reply| match refusal {
            Some(error) => reply.error_bytes(&error.0),
            None => reply.simple(&fingerprint.to_hex()),
        })
    });
    Ok(())
}

/// Has modules compute the digests of their values, of those keys for which `is_wanted` returns `true`. In exclusive
/// mode, in which this command runs if modules have types.
pub fn module_digests(
    ctx: &mut Context<'_, '_>,
    is_wanted: impl Fn(DbIndex, &[u8]) -> bool,
) -> Result<ModuleDigests, CommandError> {
    let mut keys = match &ctx.keys.held {
        HeldLeases::Exclusive(all) => find_module_keys(all, &ctx.server.keyspace, None),
        _ => Vec::new(),
    };
    keys.retain(|key| is_wanted(key.db, &key.name));
    if keys.is_empty() {
        return Ok(ModuleDigests::default());
    }
    ctx.call_modules(|| {
        let digest_of = |key: ModuleKey| {
            let digest = key.value.digest(&key.name, key.db.get() as u32)?;
            Some(((key.db, key.name), digest))
        };
        keys.into_iter().filter_map(digest_of).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_parts_depend_on_order_and_unordered_parts_do_not() {
        let build = |parts: &[&str], chain: bool| {
            let mut fingerprint = DataDigest::default();
            for part in parts {
                match chain {
                    true => fingerprint.add_ordered(part.as_bytes()),
                    false => fingerprint.add_unordered(part.as_bytes()),
                }
            }
            fingerprint
        };
        assert_ne!(build(&["a", "b"], true), build(&["b", "a"], true));
        assert_eq!(build(&["a", "b"], false), build(&["b", "a"], false));
        assert_eq!(build(&["a", "a"], false).to_hex(), "0".repeat(40));
    }
}
