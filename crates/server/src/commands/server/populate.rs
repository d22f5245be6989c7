//! DEBUG POPULATE: creates many keys at once, for tests and benchmarks.

use std::time::Duration;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_resp::number::parse_i64;
use weft_table::NewValue;

use crate::commands::context::{CommandResult, Context, build_reply};
use crate::commands::error::CommandError;
use crate::commands::generic::scan::{busy_error_of_walk, is_held_by_overdue_script};
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::walk::{Cursor, WalkEnd};
use crate::keyspace::{Seat, Slot, SlotHeader, publish_header};
use crate::state::Server;

/// The pause before another attempt to lease a slot that another thread holds.
const LEASE_RETRY_PAUSE: Duration = Duration::from_micros(50);

/// The arguments of DEBUG POPULATE.
struct PopulateOptions {
    db: DbIndex,
    count: u64,
    prefix: Vec<u8>,
    /// The length of the values in bytes; 0 for the length of their text.
    value_bytes: usize,
}

/// Executes `DEBUG POPULATE count [prefix] [size]`.
pub fn populate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let number = |argument: &[u8]| -> Result<u64, CommandError> {
        match parse_i64(argument) {
            Some(number) if number >= 0 => Ok(number as u64),
            _ => Err(CommandError::constant("ERR value is out of range, must be positive")),
        }
    };
    let count = number(ctx.arg(2))?;
    let value_bytes = if ctx.argc() == 5 { number(ctx.arg(4))? } else { 0 };
    if value_bytes > ctx.server.config.unsigned(weft_config::id::PROTO_MAX_BULK_LEN) {
        return Err(CommandError::STRING_TOO_LONG);
    }
    let options = PopulateOptions {
        db: ctx.client.db,
        count,
        prefix: if ctx.argc() > 3 {
            ctx.arg(3).to_vec()
        } else {
            b"key".to_vec()
        },
        value_bytes: value_bytes as usize,
    };
    let protocol = ctx.client.protocol;
    let thread_index = ctx.keys.context.thread_index;
    if let Some(mut whole) = ctx.keys.held.whole_keyspace() {
        for number in 0..options.count {
            let key = PopulatedKey::new(ctx.server, &options, number);
            let (header, slot) = whole.parts_mut(KeyHasher::slot(key.hash));
            create_key(ctx.server, thread_index, &options, &key, header, slot);
        }
        ctx.reply.ok();
        return Ok(());
    }
    ctx.reply_from_background(move |server, seat| {
        let end = create_keys(server, seat, &options);
        build_reply(protocol, |reply| match busy_error_of_walk(server, end) {
            Some(error) => reply.error_bytes(&error.0),
            None => reply.ok(),
        })
    });
    Ok(())
}

/// Creates the keys that do not exist, under one lease each, and leaves the gate at intervals. Stops at a slot that an
/// overdue script holds.
fn create_keys(server: &Server, seat: &mut Seat, options: &PopulateOptions) -> WalkEnd {
    let thread_index = ThreadIndex::new(seat.index());
    let mut next = 0;
    while next < options.count {
        let pass = seat.enter();
        let mut contended = None;
        while next < options.count && contended.is_none() && !pass.gate_is_closing() {
            let key = PopulatedKey::new(server, options, next);
            let slot = KeyHasher::slot(key.hash);
            match pass.write_spinning(slot) {
                Some(mut lease) => {
                    let (header, data) = lease.parts_mut();
                    let freed = create_key(server, thread_index, options, &key, header, data);
                    drop(lease);
                    drop(freed);
                    next += 1;
                }
                None => contended = Some(slot),
            }
        }
        drop(pass);
        if let Some(slot) = contended {
            if is_held_by_overdue_script(server, SlotIndex::from_index(slot)) {
                return WalkEnd::Contended(Cursor::at_slot(slot));
            }
            weft_os::thread::sleep(LEASE_RETRY_PAUSE);
        }
    }
    WalkEnd::End
}

/// A key to create.
struct PopulatedKey {
    number: u64,
    name: Vec<u8>,
    hash: u64,
}

impl PopulatedKey {
    fn new(server: &Server, options: &PopulateOptions, number: u64) -> Self {
        let name = [&options.prefix[..], format!(":{number}").as_bytes()].concat();
        let hash = server.keyspace.hasher.hash(&name);
        PopulatedKey { number, name, hash }
    }
}

/// Creates one key in its slot if it does not exist, and returns the memory to free. As in Valkey, this does not count
/// as a change.
fn create_key(
    server: &Server,
    thread_index: ThreadIndex,
    options: &PopulateOptions,
    PopulatedKey { number, name, hash }: &PopulatedKey,
    header: &SlotHeader,
    slot: &mut Slot,
) -> impl Sized + use<> {
    let (keyspace, hash) = (&server.keyspace, *hash);
    let table = slot.table_mut(options.db);
    if table.find(hash, name).is_some() {
        return None;
    }
    if header.is_unsaved() {
        let key = NamedKey {
            name,
            hash,
            slot: SlotIndex::from_index(KeyHasher::slot(hash)),
        };
        keyspace.before_images.keep_before_image(options.db, key, table);
    }
    let mut value = format!("value:{number}").into_bytes();
    if options.value_bytes > 0 {
        value.resize(options.value_bytes, 0);
    }
    // The current time on the access clock, which counts seconds.
    let clock = (weft_base::clock::unix_ms() / 1000) as u32 & ((1 << 24) - 1);
    let freed = table.insert(hash, name, NewValue::Bytes(&value), None, clock);
    publish_header(header, slot);
    keyspace.counts.add(thread_index, options.db, 1, 0);
    Some(freed)
}
