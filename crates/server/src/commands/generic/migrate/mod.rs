//! MIGRATE: moves keys to another server, in one atomic step.
//!
//! ```text
//!   worker, under the leases of the keys       background thread                      target
//!   ────────────────────────────────────       ─────────────────                      ──────
//!   which keys exist?
//!   freeze them: no writes
//!   keep handles of their values ────────────▶ AUTH, SELECT, RESTORE k, RESTORE l ──▶
//!   the connection parks                                                          ◀── +OK, +OK
//!      other clients read the keys             leases: still what was sent?
//!      writers of the keys are put off           yes ─▶ delete it        no ─▶ send it again
//!                                              the keys are free again
//!   reply                          ◀─────────
//! ```
//!
//! A key is on this server until it is deleted, and until then its value is the one that was sent: a writer waits, as
//! every client does in Valkey. The few commands that do not check for frozen keys (transactions in exclusive mode,
//! scripts, FLUSHALL) are noticed in the end: a key that they changed is sent again, and one that they deleted is
//! deleted on the target.

use std::sync::Arc;
use std::time::Duration;

use weft_resp::Protocol;
use weft_resp::number::parse_i64;
use weft_table::{Blob, EntryRef, Shared, ValueRef};
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, NextStep, leased, reply_bytes};
use crate::commands::error::CommandError;
use crate::keyspace::access::{AccessContext, KeyWrite};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::Effects;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::pinned::Pin;
use crate::keyspace::{GatePassage, Seat};
use crate::notify::keyspace_event::Event;
use crate::notify::messages::{NotificationSender, wake};
use crate::state::{Message, Server, UnservedKeys};
use weft_config::id;
use weft_rdb::dump_payload;

mod target;

pub use target::kept;
use target::{Failure, Target};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("migrate", leased(migrate))];

/// Timeout when none is given, ms.
const DEFAULT_TIMEOUT_MS: u64 = 1000;
/// The number of times that a key which keeps changing is sent.
const ROUNDS: usize = 8;
/// Between two attempts to lease a slot.
const RETRY: Duration = Duration::from_micros(50);

/// The arguments of MIGRATE.
struct MigrateRequest {
    host: Vec<u8>,
    port: Vec<u8>,
    db: i64,
    timeout: Duration,
    copy: bool,
    replace: bool,
    /// Password, or user and password.
    auth: Vec<Vec<u8>>,
    /// The source database.
    from_db: usize,
    compress: bool,
    asking: bool,
}

/// A value on its way.
enum MigratedValue {
    /// The payload that is sent.
    Payload(Vec<u8>),
    /// A long string.
    Blob(Blob),
    /// A large collection.
    Object(Shared<Value>),
}

impl MigratedValue {
    fn of(entry: EntryRef<'_, Value>, compress: bool) -> Self {
        match (entry.value(), entry.share()) {
            (_, Some(object)) => MigratedValue::Object(object),
            (ValueRef::Blob(blob), _) => MigratedValue::Blob(blob.clone()),
            (value, _) => MigratedValue::Payload(dump_payload::dump(value, compress)),
        }
    }

    fn payload(&self, compress: bool) -> Vec<u8> {
        match self {
            MigratedValue::Payload(payload) => payload.clone(),
            MigratedValue::Blob(blob) => dump_payload::dump(ValueRef::Blob(blob), compress),
            MigratedValue::Object(object) => dump_payload::dump(ValueRef::Object(object), compress),
        }
    }

    fn is(&self, value: ValueRef<'_, Value>, compress: bool) -> bool {
        match (self, value) {
            (MigratedValue::Blob(kept), ValueRef::Blob(blob)) => kept.is_same(blob),
            (MigratedValue::Object(kept), ValueRef::Object(object)) => kept.is_of(object),
            (MigratedValue::Payload(kept), ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_)) => {
                *kept == dump_payload::dump(value, compress)
            }
            _ => false,
        }
    }
}

/// A key on its way.
struct MigratedKey {
    name: Box<[u8]>,
    hash: u64,
    slot: u16,
    expire_at_ms: Option<u64>,
    value: MigratedValue,
}

/// Parses the arguments. The second part is `true` if the keys are behind KEYS.
fn order(ctx: &Context<'_, '_>) -> Result<MigrateRequest, CommandError> {
    let mut order = MigrateRequest {
        host: ctx.arg(1).to_vec(),
        port: ctx.arg(2).to_vec(),
        db: 0,
        timeout: Duration::ZERO,
        copy: false,
        replace: false,
        auth: Vec::new(),
        from_db: ctx.keys.db,
        compress: ctx.server.config.boolean(id::RDBCOMPRESSION),
        asking: ctx.server.cluster.is_some(),
    };
    let mut index = 6;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let more = ctx.argc() - index - 1;
        if is("copy") {
            order.copy = true;
        } else if is("replace") {
            order.replace = true;
        } else if is("auth") && more >= 1 {
            index += 1;
            order.auth = vec![ctx.arg(index).to_vec()];
        } else if is("auth2") && more >= 2 {
            order.auth = vec![ctx.arg(index + 1).to_vec(), ctx.arg(index + 2).to_vec()];
            index += 2;
        } else if is("keys") {
            if !ctx.arg(3).is_empty() {
                return Err(CommandError::constant(
                    "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                ));
            }
            break;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    let timeout = parse_i64(ctx.arg(5)).ok_or(CommandError::NOT_AN_INTEGER)?;
    order.db = parse_i64(ctx.arg(4)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let timeout_ms = u64::try_from(timeout).ok().filter(|ms| *ms > 0);
    order.timeout = Duration::from_millis(timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS));
    Ok(order)
}

fn migrate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let order = order(ctx)?;
    let mut parcels: Vec<MigratedKey> = Vec::new();
    let mut names = Vec::new();
    for index in 0..ctx.keys.len() {
        let (key, name) = (ctx.keys.planned[index], ctx.keys.name(index));
        let there = ctx.keys.peek(index).is_some();
        if there && !parcels.iter().any(|parcel| *parcel.name == *name) {
            names.push((key.slot, (ctx.keys.db, name.into())));
            parcels.push(MigratedKey {
                name: name.into(),
                hash: key.hash,
                slot: key.slot,
                expire_at_ms: None,
                value: MigratedValue::Payload(Vec::new()),
            });
        }
    }
    if parcels.is_empty() {
        ctx.reply.simple("NOKEY");
        return Ok(());
    }
    // The mark comes before the first handle, and both under the leases.
    let keyspace = &ctx.server.keyspace;
    let Some(pin) = keyspace.pinned.freeze(&keyspace.slots, names) else {
        if ctx.may_block {
            ctx.after = NextStep::Defer;
            return Ok(());
        }
        return Err(CommandError::constant("TRYAGAIN Another MIGRATE is moving these keys"));
    };
    let mut next = 0;
    for index in 0..ctx.keys.len() {
        let name = ctx.keys.name(index);
        let Some(parcel) = parcels.get_mut(next).filter(|parcel| *parcel.name == *name) else {
            continue;
        };
        if let Some(entry) = ctx.keys.peek(index) {
            parcel.expire_at_ms = entry.expire_at_ms();
            parcel.value = MigratedValue::of(entry, order.compress);
        }
        next += 1;
    }
    ctx.in_background(move |server, seat| {
        let result = send(server, seat, &order, parcels, pin);
        reply_bytes(Protocol::Resp2, |reply| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error_bytes(&error),
        })
    });
    Ok(())
}

/// Sends the keys, and again those that have changed meanwhile. The pin ends after all handles.
///
/// Scripts, transactions in exclusive mode and FLUSHALL change frozen keys without waiting. A key that one of them
/// deleted or renamed is deleted on the target, too, because it was gone before it could be moved.
fn send(
    server: &Arc<Server>,
    seat: &mut Seat,
    order: &MigrateRequest,
    mut parcels: Vec<MigratedKey>,
    pin: Pin,
) -> Result<(), Vec<u8>> {
    let mut replace = order.replace;
    let mut result = Ok(());
    for _ in 0..ROUNDS {
        let (taken, failed) = deliver(server, order, &parcels, replace);
        result = failed;
        if order.copy {
            break;
        }
        let settled = settle(server, seat, order, parcels, &taken);
        parcels = settled.changed;
        let taken_back = take_back(server, order, &settled.gone);
        result = result.and(taken_back).and(settled.outcome);
        if parcels.is_empty() || result.is_err() {
            break;
        }
        replace = true;
    }
    if result.is_ok() && !order.copy && !parcels.is_empty() {
        result = Err(b"TRYAGAIN Keys were changed all the time and are still here".to_vec());
    }
    drop(parcels);
    drop(pin);
    result
}

/// Deletes keys on the target that it has taken and that were deleted here.
fn take_back(server: &Server, order: &MigrateRequest, gone: &[Box<[u8]>]) -> Result<(), Vec<u8>> {
    if gone.is_empty() {
        return Ok(());
    }
    let exchange = || {
        let (mut target, _) = Target::connect(server, &order.host, &order.port, order.timeout)?;
        let mut request = Vec::new();
        let mut replies = log_in_and_select(&target, order, &mut request);
        for name in gone {
            if order.asking {
                target::write_command(&mut request, [&b"ASKING"[..]].into_iter());
                replies += 1;
            }
            target::write_command(&mut request, [&b"DEL"[..], name].into_iter());
            replies += 1;
        }
        target.write(&request)?;
        let mut refusal = None;
        for _ in 0..replies {
            let line = target.read_line()?;
            if line.first() == Some(&b'-') {
                refusal.get_or_insert(line);
            }
        }
        target.keep(order.db);
        Ok(refusal)
    };
    match exchange() {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err([b"ERR Target instance replied with error: ", &refusal[1..]].concat()),
        Err(failure) => Err(io_error(failure)),
    }
}

/// Writes what a new connection needs before commands; returns how many replies that brings.
fn log_in_and_select(target: &Target, order: &MigrateRequest, request: &mut Vec<u8>) -> usize {
    let mut replies = 0;
    if !order.auth.is_empty() {
        let words = std::iter::once(&b"AUTH"[..]).chain(order.auth.iter().map(Vec::as_slice));
        target::write_command(request, words);
        replies += 1;
    }
    if target.db() != Some(order.db) {
        target::write_command(request, [&b"SELECT"[..], order.db.to_string().as_bytes()].into_iter());
        replies += 1;
    }
    replies
}

/// Sends the keys. Returns for each if the target has taken it.
fn deliver(
    server: &Server,
    order: &MigrateRequest,
    parcels: &[MigratedKey],
    replace: bool,
) -> (Vec<bool>, Result<(), Vec<u8>>) {
    let mut taken = vec![false; parcels.len()];
    let mut may_retry = true;
    loop {
        let (mut target, cached) = match Target::connect(server, &order.host, &order.port, order.timeout) {
            Ok(target) => target,
            Err(failure) => return (taken, Err(io_error(failure))),
        };
        match talk(&mut target, order, parcels, replace, &mut taken) {
            Ok(None) => {
                target.keep(order.db);
                return (taken, Ok(()));
            }
            Ok(Some(refusal)) => {
                let text = [b"ERR Target instance replied with error: ", &refusal[..]].concat();
                return (taken, Err(text));
            }
            Err(failure) => {
                let nothing_happened = !taken.contains(&true);
                if cached && may_retry && nothing_happened && !failure.timed_out() {
                    // The target has closed the connection while it was idle.
                    may_retry = false;
                    continue;
                }
                return (taken, Err(io_error(failure)));
            }
        }
    }
}

fn io_error(failure: Failure) -> Vec<u8> {
    format!("IOERR error or timeout {} to target instance", failure.verb())
        .replace("connecting to target instance", "connecting to the client")
        .into_bytes()
}

/// One exchange: all requests, then all replies. Returns the first refusal, if there is one.
fn talk(
    target: &mut Target,
    order: &MigrateRequest,
    parcels: &[MigratedKey],
    replace: bool,
    taken: &mut [bool],
) -> Result<Option<Vec<u8>>, Failure> {
    let mut request = Vec::new();
    let now_ms = weft_base::clock::unix_ms();
    let before = log_in_and_select(target, order, &mut request);
    let mut sent = Vec::new();
    for (index, parcel) in parcels.iter().enumerate() {
        let ttl_ms = match parcel.expire_at_ms {
            None => 0,
            Some(at_ms) if at_ms < now_ms => {
                // The key has expired for every reader.
                taken[index] = true;
                continue;
            }
            Some(at_ms) => (at_ms - now_ms).max(1),
        };
        let (ttl, value) = (ttl_ms.to_string(), parcel.value.payload(order.compress));
        let name: &[u8] = if order.asking { b"RESTORE-ASKING" } else { b"RESTORE" };
        let words = [name, &parcel.name, ttl.as_bytes(), &value].into_iter();
        target::write_command(&mut request, words.chain(replace.then_some(&b"REPLACE"[..])));
        sent.push(index);
    }
    target.write(&request)?;
    let mut refusal = None;
    for _ in 0..before {
        let line = target.read_line()?;
        if line.first() == Some(&b'-') && refusal.is_none() {
            refusal = Some(line[1..].to_vec());
        }
    }
    let refused_before = refusal.is_some();
    for index in sent {
        let line = target.read_line()?;
        if line.first() == Some(&b'-') || refused_before {
            refusal.get_or_insert_with(|| line.get(1..).unwrap_or_default().to_vec());
        } else {
            taken[index] = true;
        }
    }
    Ok(refusal)
}

/// The outcome for keys that the target has taken.
struct LocalDeletions {
    /// They are not any more what was sent; as they are now.
    changed: Vec<MigratedKey>,
    /// Keys that were deleted or renamed meanwhile.
    gone: Vec<Box<[u8]>>,
    /// An error if a key that the target has is still here.
    outcome: Result<(), Vec<u8>>,
}

/// The outcome for one key that the target has taken.
enum LocalDeletion {
    /// It was unchanged, and was deleted.
    Deleted,
    /// It was deleted already.
    Gone,
    /// It has changed.
    Changed,
}

/// Deletes the keys that the target has.
fn settle(
    server: &Arc<Server>,
    seat: &mut Seat,
    order: &MigrateRequest,
    parcels: Vec<MigratedKey>,
    taken: &[bool],
) -> LocalDeletions {
    let mut settled = LocalDeletions {
        changed: Vec::new(),
        gone: Vec::new(),
        outcome: Ok(()),
    };
    let row = seat.index();
    for (mut parcel, _) in parcels.into_iter().zip(taken).filter(|(_, taken)| **taken) {
        loop {
            let pass = seat.enter();
            // Another role, and a pause, begin in exclusive mode.
            if server.replication.is_replica() || server.scripting.running.is_shutting_down() {
                settled.outcome = Err(b"ERR The keys were sent, but this server may not delete them any more".to_vec());
                break;
            }
            let fate = match server.clients.pause.holds_writes(weft_base::clock::unix_ms()) {
                true => None,
                false => settle_one(server, &pass, row, order, &mut parcel),
            };
            match fate {
                Some(LocalDeletion::Deleted) => break,
                Some(LocalDeletion::Gone) => {
                    settled.gone.push(parcel.name);
                    break;
                }
                Some(LocalDeletion::Changed) => {
                    settled.changed.push(parcel);
                    break;
                }
                None => {}
            }
            drop(pass);
            std::thread::sleep(RETRY);
        }
    }
    settled
}

/// Deletes a key that the target has, if it is what was sent. `None` if its slot is leased by another thread.
fn settle_one(
    server: &Arc<Server>,
    pass: &GatePassage<'_>,
    row: usize,
    order: &MigrateRequest,
    parcel: &mut MigratedKey,
) -> Option<LocalDeletion> {
    let mut lease = pass.write_spinning(usize::from(parcel.slot))?;
    let keyspace = &server.keyspace;
    let mut effects = Effects {
        hooks: keyspace.hooks.current(),
        log_writer: server.propagation.log_writer(),
        ..Effects::for_keyspace(keyspace)
    };
    let clock = AccessClock::default();
    let access = AccessContext {
        now_ms: weft_base::clock::unix_ms(),
        clock: &clock,
        counts: &keyspace.counts,
        thread_index: row,
        should_touch: false,
        sees_expired: false,
    };
    let key = NamedKey {
        name: &parcel.name,
        hash: parcel.hash,
        slot: parcel.slot,
    };
    let mut write = KeyWrite::new(lease.parts_mut(), key, order.from_db, &access, &mut effects);
    let now = write.entry();
    let is_gone = now.is_none();
    let same = now.is_some_and(|entry| {
        entry.expire_at_ms() == parcel.expire_at_ms && parcel.value.is(entry.value(), order.compress)
    });
    let changed = now
        .filter(|_| !same)
        .map(|entry| (entry.expire_at_ms(), MigratedValue::of(entry, order.compress)));
    if same && write.delete() {
        write.changed(Event::generic("del"));
    } else {
        drop(write);
    }
    if changed.is_none() && effects.dirty > 0 {
        effects.log_also(order.from_db, &[b"DEL", &parcel.name]);
    }
    effects.log_writer.commit();
    NotificationSender::new(server, &mut effects, row).tell(0);
    drop(lease);
    let fate = match changed {
        Some((expire_at_ms, value)) => {
            (parcel.expire_at_ms, parcel.value) = (expire_at_ms, value);
            LocalDeletion::Changed
        }
        // A key that expires here expires there at the same time.
        None if is_gone && parcel.expire_at_ms.is_none_or(|at_ms| access.now_ms < at_ms) => LocalDeletion::Gone,
        None => LocalDeletion::Deleted,
    };
    finish(server, row, effects);
    Some(fate)
}

/// Records the effects of a key.
fn finish(server: &Arc<Server>, row: usize, mut effects: Effects) {
    use crate::observability::metrics::Counter;
    let metrics = &server.stats.metrics;
    metrics.add(row, Counter::Dirty, std::mem::take(&mut effects.dirty));
    metrics.add(row, Counter::ExpiredKeys, std::mem::take(&mut effects.expired_keys));
    if !effects.ready.is_empty() {
        let ready = std::mem::take(&mut effects.ready).into();
        server.workers[0].send(Message::Serve(UnservedKeys::new(ready)));
    }
    NotificationSender::new(server, &mut effects, row).broadcast();
    wake(server, &mut effects);
}
