//! DEBUG POPULATE: many keys at once, for tests and benchmarks.

use std::time::Duration;

use weft_resp::number::parse_i64;
use weft_table::NewValue;

use crate::commands::context::{CommandResult, Context, reply_bytes};
use crate::commands::error::CommandError;
use crate::keyspace::access::NamedKey;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Pass, Seat, publish};
use crate::state::Server;

/// How long a slot that somebody else leases is left alone.
const RETRY: Duration = Duration::from_micros(50);

/// What to make.
struct Order {
    db: usize,
    count: u64,
    prefix: Vec<u8>,
    /// 0: as long as its text.
    value_bytes: usize,
}

/// `DEBUG POPULATE count [prefix] [size]`.
pub fn populate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let number = |argument: &[u8]| -> Result<u64, CommandError> {
        match parse_i64(argument) {
            Some(number) if number >= 0 => Ok(number as u64),
            _ => Err(CommandError::constant("ERR value is out of range, must be positive")),
        }
    };
    let count = number(ctx.arg(2))?;
    let value_bytes = if ctx.argc() == 5 { number(ctx.arg(4))? } else { 0 };
    if value_bytes > ctx.server.config.unsigned(crate::config::id::PROTO_MAX_BULK_LEN) {
        return Err(CommandError::STRING_TOO_LONG);
    }
    let order = Order {
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
    ctx.in_background(move |server, seat| {
        make(server, seat, &order);
        reply_bytes(protocol, |reply| reply.ok())
    });
    Ok(())
}

/// Makes the keys that do not exist, one lease each, letting others through.
fn make(server: &Server, seat: &mut Seat, order: &Order) {
    let row = seat.index();
    let mut next = 0;
    while next < order.count {
        let pass = seat.enter();
        let mut contended = false;
        while next < order.count && !contended && !pass.gate_is_closing() {
            match make_one(server, &pass, row, order, next) {
                Some(()) => next += 1,
                None => contended = true,
            }
        }
        drop(pass);
        if contended {
            std::thread::sleep(RETRY);
        }
    }
}

/// Makes one key if it does not exist; `None` when its slot is leased. It does not count as a change, as in Valkey.
fn make_one(server: &Server, pass: &Pass<'_>, row: usize, order: &Order, number: u64) -> Option<()> {
    let name = [&order.prefix[..], format!(":{number}").as_bytes()].concat();
    let keyspace = &server.keyspace;
    let hash = keyspace.hasher.hash(&name);
    let mut lease = pass.write_spinning(KeyHasher::slot(hash))?;
    let (header, slot) = lease.parts_mut();
    let table = slot.table_mut(order.db);
    if table.find(hash, &name).is_some() {
        return Some(());
    }
    if header.is_unsaved() {
        let key = NamedKey {
            name: &name,
            hash,
            slot: KeyHasher::slot(hash) as u16,
        };
        keyspace.preimages.keep(order.db, key, table);
    }
    let mut value = format!("value:{number}").into_bytes();
    if order.value_bytes > 0 {
        value.resize(order.value_bytes, 0);
    }
    // Used now, in the coarse sense of the access clock.
    let clock = (weft_reactor::unix_ms() / 1000) as u32 & ((1 << 24) - 1);
    let freed = table.insert(hash, &name, NewValue::Bytes(&value), None, clock);
    publish(header, slot);
    keyspace.counts.add(row, order.db, 1, 0);
    drop(lease);
    drop(freed);
    Some(())
}
