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
//! A key is on this server until it is deleted, and until then its value is the one that was sent: writers wait, as
//! every client does in Valkey. So do transactions, and scripts whose declared keys or first write include such a key.
//! A change that does not wait (FLUSHALL, a later write of a script to a key that it has not declared) is detected at
//! the end: a key that changed is sent again, and a key that was deleted is deleted on the target.
//!
//! Nothing more is sent for a key that clients may have written on the target ([`SlotStanding`]): its slot has left
//! this node since the key was frozen, even if it has come back, or this node only imports the slot. The same is
//! checked before keys are sent again because a cached connection broke: the target may have executed the first
//! request.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{DbIndex, LogSequence, RoleEpoch, SlotIndex, ThreadIndex};
use weft_resp::Protocol;
use weft_resp::number::parse_i64;
use weft_table::{Blob, EntryRef, Shared, ValueRef};
use weft_values::Value;

use crate::commands::context::{BackgroundStep, Binding, CommandResult, Context, NextStep, build_reply, leased};
use crate::commands::error::CommandError;
use crate::commands::generic::module_value_of;
use crate::keyspace::access::{AccessContext, KeyWrite};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::Effects;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::pinned::Pin;
use crate::keyspace::{GatePassage, Seat};
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::state::{Message, Server, UnservedKeys};
use weft_base::slots::cluster_slot;
use weft_config::id;
use weft_modules::objects::value::{ModuleValue, of_object};
use weft_rdb::dump_payload;

mod target;

pub use target::cached_connections;
use target::{MigrateIoError, MigrateTarget};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[("migrate", leased(migrate).with_module_values())];

/// The default timeout in milliseconds.
const DEFAULT_TIMEOUT_MS: u64 = 1000;
/// The maximum number of times that a key which keeps changing is sent.
const MAX_SEND_ROUNDS: usize = 8;
/// The pause between two attempts to lease a slot.
const LEASE_RETRY_PAUSE: Duration = Duration::from_micros(50);
/// The error for keys that the target has taken and that stay here.
const MAY_NOT_DELETE: &[u8] = b"ERR The keys were sent, but this server may not delete them any more";

/// The arguments of MIGRATE.
struct MigrateRequest {
    host: Vec<u8>,
    port: Vec<u8>,
    db: i64,
    timeout: Duration,
    should_copy: bool,
    should_replace: bool,
    /// The password, or user and password.
    auth: Vec<Vec<u8>>,
    /// The source database.
    from_db: DbIndex,
    should_compress: bool,
    needs_asking: bool,
    /// The role epoch in which the keys were frozen.
    role_epoch: RoleEpoch,
}

/// A value that is being migrated.
enum MigratedValue {
    /// The payload that is sent.
    Payload(Vec<u8>),
    /// A long string.
    Blob(Blob),
    /// A large collection.
    Object(Shared<Value>),
    /// A value of a module: its payload, which the module has made, and how often it had been opened for writing then.
    Module(Vec<u8>, Arc<ModuleValue>, u64),
}

impl MigratedValue {
    fn from_entry(entry: EntryRef<'_, Value>, should_compress: bool) -> Self {
        match (entry.value(), entry.share()) {
            (_, Some(object)) => MigratedValue::Object(object),
            (ValueRef::Blob(blob), _) => MigratedValue::Blob(blob.clone()),
            (value, _) => MigratedValue::Payload(dump_payload::dump(value, should_compress)),
        }
    }

    fn payload(&self, compress: bool) -> Vec<u8> {
        match self {
            MigratedValue::Payload(payload) | MigratedValue::Module(payload, ..) => payload.clone(),
            MigratedValue::Blob(blob) => dump_payload::dump(ValueRef::Blob(blob), compress),
            MigratedValue::Object(object) => dump_payload::dump(ValueRef::Object(object), compress),
        }
    }

    fn equals(&self, value: ValueRef<'_, Value>, compress: bool) -> bool {
        match (self, value) {
            (MigratedValue::Blob(kept), ValueRef::Blob(blob)) => kept.is_same(blob),
            (MigratedValue::Object(kept), ValueRef::Object(object)) => kept.is_of(object),
            (MigratedValue::Module(_, kept, writes), ValueRef::Object(object)) => {
                of_object(object).is_some_and(|value| Arc::ptr_eq(&value, kept)) && kept.writes() == *writes
            }
            (MigratedValue::Payload(kept), ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_)) => {
                *kept == dump_payload::dump(value, compress)
            }
            _ => false,
        }
    }
}

/// Has a module make the payload of its value.
fn take_module_value(
    ctx: &mut Context<'_, '_>,
    name: &[u8],
    value: Arc<ModuleValue>,
    should_compress: bool,
) -> Result<MigratedValue, CommandError> {
    let (db, writes) = (ctx.keys.db.get() as u32, value.writes());
    let payload = ctx.call_modules(|| value.dump(name, db, should_compress))?;
    let failed = CommandError::constant("ERR The module could not save the value");
    Ok(MigratedValue::Module(payload.ok_or(failed)?, value, writes))
}

/// A key that is being migrated.
struct MigratedKey {
    name: Box<[u8]>,
    hash: u64,
    slot: SlotIndex,
    /// The number of times that this node had lost the slot when the key was frozen.
    times_lost: u32,
    /// `true` if this node owned the slot when the key was frozen.
    was_owned: bool,
    expire_at_ms: Option<u64>,
    value: MigratedValue,
}

/// Parses the arguments. The second part is `true` if the keys follow KEYS.
fn parse_request(ctx: &Context<'_, '_>) -> Result<MigrateRequest, CommandError> {
    let mut options = MigrateRequest {
        host: ctx.arg(1).to_vec(),
        port: ctx.arg(2).to_vec(),
        db: 0,
        timeout: Duration::ZERO,
        should_copy: false,
        should_replace: false,
        auth: Vec::new(),
        from_db: ctx.keys.db,
        should_compress: ctx.server.config.boolean(id::RDBCOMPRESSION),
        needs_asking: ctx.server.cluster.is_some(),
        role_epoch: ctx.server.replication.role_epoch(),
    };
    let mut index = 6;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        let more = ctx.argc() - index - 1;
        if is("copy") {
            options.should_copy = true;
        } else if is("replace") {
            options.should_replace = true;
        } else if is("auth") && more >= 1 {
            index += 1;
            options.auth = vec![ctx.arg(index).to_vec()];
        } else if is("auth2") && more >= 2 {
            options.auth = vec![ctx.arg(index + 1).to_vec(), ctx.arg(index + 2).to_vec()];
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
    options.db = parse_i64(ctx.arg(4)).ok_or(CommandError::NOT_AN_INTEGER)?;
    let timeout_ms = u64::try_from(timeout).ok().filter(|ms| *ms > 0);
    options.timeout = Duration::from_millis(timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS));
    Ok(options)
}

/// Counts the lookup of every key.
fn count_lookups(ctx: &mut Context<'_, '_>) {
    for index in 0..ctx.keys.len() {
        let _ = ctx.keys.read(index);
    }
}

fn migrate(ctx: &mut Context<'_, '_>) -> CommandResult {
    let options = parse_request(ctx)?;
    let mut migrated_keys: Vec<MigratedKey> = Vec::new();
    let mut names = Vec::new();
    // MIGRATE may name many keys, and it may name a key twice.
    let mut seen = HashSet::new();
    for index in 0..ctx.keys.len() {
        let (key, name) = (ctx.keys.planned[index], ctx.keys.name(index));
        let there = ctx.keys.peek(index).is_some();
        if there && seen.insert(name) {
            names.push((key.slot, (ctx.keys.db, name.into())));
            migrated_keys.push(MigratedKey {
                name: name.into(),
                hash: key.hash,
                slot: key.slot,
                times_lost: times_lost(ctx.server, key.slot),
                was_owned: is_owned(ctx.server, key.slot),
                expire_at_ms: None,
                value: MigratedValue::Payload(Vec::new()),
            });
        }
    }
    if migrated_keys.is_empty() {
        count_lookups(ctx);
        ctx.reply.simple("NOKEY");
        return Ok(());
    }
    // The pin is set before the first handle is created, and both under the leases.
    let keyspace = &ctx.server.keyspace;
    let Some(pin) = keyspace.pinned.freeze(&keyspace.slots, names) else {
        if ctx.may_block {
            ctx.next_step = NextStep::Defer;
            return Ok(());
        }
        return Err(CommandError::constant("TRYAGAIN Another MIGRATE is moving these keys"));
    };
    count_lookups(ctx);
    let mut next = 0;
    for index in 0..ctx.keys.len() {
        let name = ctx.keys.name(index);
        let Some(migrated_key) = migrated_keys.get_mut(next).filter(|next| *next.name == *name) else {
            continue;
        };
        if let Some(entry) = ctx.keys.peek(index) {
            migrated_key.expire_at_ms = entry.expire_at_ms();
            migrated_key.value = match module_value_of(entry) {
                None => MigratedValue::from_entry(entry, options.should_compress),
                Some(value) => take_module_value(ctx, name, value, options.should_compress)?,
            };
        }
        next += 1;
    }
    let frozen = FrozenKeys {
        keys: migrated_keys,
        pin,
    };
    ctx.run_after_exchange(Box::new(move |server, seat| {
        let (result, first_write) = migrate_keys(server, seat, &options, frozen);
        let bytes = build_reply(Protocol::Resp2, |reply| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error_bytes(&error),
        });
        BackgroundStep::Reply { bytes, first_write }
    }));
    Ok(())
}

/// Keys that wait to be sent. If their client is killed first, they are dropped: the pin ends after all handles.
struct FrozenKeys {
    keys: Vec<MigratedKey>,
    pin: Pin,
}

/// Sends the keys, and sends those again that have changed meanwhile. The pin ends after all handles. Also returns the
/// position in the log of the first deletion here, or none.
///
/// A few commands change frozen keys without waiting. A key that one of them deleted or renamed is deleted on the
/// target, too, because it was gone before it could be moved.
fn migrate_keys(
    server: &Arc<Server>,
    seat: &mut Seat,
    options: &MigrateRequest,
    frozen: FrozenKeys,
) -> (Result<(), Vec<u8>>, LogSequence) {
    let FrozenKeys {
        keys: mut migrated_keys,
        pin,
    } = frozen;
    let mut replace = options.should_replace;
    let (mut result, mut first_write) = (Ok(()), LogSequence::NONE);
    for _ in 0..MAX_SEND_ROUNDS {
        let (taken, failed) = send_keys(server, seat, options, &migrated_keys, replace);
        result = failed;
        if options.should_copy {
            break;
        }
        let deletions = delete_accepted_keys(server, seat, options, migrated_keys, &taken);
        if first_write.is_none() {
            first_write = deletions.first_write;
        }
        migrated_keys = deletions.changed_keys;
        let taken_back = delete_on_target(server, seat, options, deletions.missing_keys);
        result = result.and(taken_back).and(deletions.outcome);
        if migrated_keys.is_empty() || result.is_err() {
            break;
        }
        if !may_send_again(server, seat, options, &migrated_keys, true) {
            result = Err(MAY_NOT_DELETE.to_vec());
            break;
        }
        replace = true;
    }
    if result.is_ok() && !options.should_copy && !migrated_keys.is_empty() {
        result = Err(b"TRYAGAIN Keys were changed all the time and are still here".to_vec());
    }
    drop(migrated_keys);
    drop(pin);
    (result, first_write)
}

/// Deletes keys on the target that it has taken and that were deleted here.
fn delete_on_target(
    server: &Server,
    seat: &mut Seat,
    options: &MigrateRequest,
    mut keys: Vec<MigratedKey>,
) -> Result<(), Vec<u8>> {
    // Other keys may have kept this thread waiting since these were found missing. Clients may use them on the target.
    keys.retain(|key| slot_standing(server, key) == SlotStanding::Owned);
    if keys.is_empty() {
        return Ok(());
    }
    if !may_send_again(server, seat, options, &keys, true) {
        return Err(MAY_NOT_DELETE.to_vec());
    }
    let exchange = || {
        let (mut target, _) = MigrateTarget::connect(server, &options.host, &options.port, options.timeout)?;
        let mut request = Vec::new();
        let mut replies = append_preamble(&target, options, &mut request);
        for MigratedKey { name, .. } in &keys {
            if options.needs_asking {
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
        target.return_to_cache(options.db);
        Ok(refusal)
    };
    match exchange() {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err([b"ERR Target instance replied with error: ", &refusal[1..]].concat()),
        Err(failure) => Err(io_error_reply(failure)),
    }
}

/// Appends the requests that must precede commands on a new connection; returns the number of their replies.
fn append_preamble(target: &MigrateTarget, options: &MigrateRequest, request: &mut Vec<u8>) -> usize {
    let mut replies = 0;
    if !options.auth.is_empty() {
        let words = std::iter::once(&b"AUTH"[..]).chain(options.auth.iter().map(Vec::as_slice));
        target::write_command(request, words);
        replies += 1;
    }
    if target.db() != Some(options.db) {
        target::write_command(request, [&b"SELECT"[..], options.db.to_string().as_bytes()].into_iter());
        replies += 1;
    }
    replies
}

/// Sends the keys. Returns for each if the target has taken it.
fn send_keys(
    server: &Server,
    seat: &mut Seat,
    options: &MigrateRequest,
    migrated_keys: &[MigratedKey],
    replace: bool,
) -> (Vec<bool>, Result<(), Vec<u8>>) {
    let mut accepted = vec![false; migrated_keys.len()];
    let mut may_retry = true;
    loop {
        let (mut target, cached) = match MigrateTarget::connect(server, &options.host, &options.port, options.timeout) {
            Ok(target) => target,
            Err(failure) => return (accepted, Err(io_error_reply(failure))),
        };
        match exchange_requests(&mut target, options, migrated_keys, replace, &mut accepted) {
            Ok(None) => {
                target.return_to_cache(options.db);
                return (accepted, Ok(()));
            }
            Ok(Some(refusal)) => {
                let text = [b"ERR Target instance replied with error: ", &refusal[..]].concat();
                return (accepted, Err(text));
            }
            Err(failure) => {
                let nothing_happened = !accepted.contains(&true);
                let is_broken = cached && may_retry && nothing_happened && !failure.is_timeout();
                if is_broken && may_send_again(server, seat, options, migrated_keys, replace) {
                    // The target has closed the connection while it was idle, or after it has executed the request.
                    may_retry = false;
                    continue;
                }
                return (accepted, Err(io_error_reply(failure)));
            }
        }
    }
}

fn io_error_reply(failure: MigrateIoError) -> Vec<u8> {
    format!("IOERR error or timeout {} to target instance", failure.verb())
        .replace("connecting to target instance", "connecting to the client")
        .into_bytes()
}

/// Makes one exchange: sends all requests, then reads all replies. Returns the first refusal, if there is one.
fn exchange_requests(
    target: &mut MigrateTarget,
    options: &MigrateRequest,
    migrated_keys: &[MigratedKey],
    replace: bool,
    accepted: &mut [bool],
) -> Result<Option<Vec<u8>>, MigrateIoError> {
    let mut request = Vec::new();
    let now_ms = weft_base::clock::unix_ms();
    let before = append_preamble(target, options, &mut request);
    let mut sent = Vec::new();
    for (index, key) in migrated_keys.iter().enumerate() {
        let ttl_ms = match key.expire_at_ms {
            None => 0,
            Some(at_ms) if at_ms < now_ms => {
                // The key has expired for every reader.
                accepted[index] = true;
                continue;
            }
            Some(at_ms) => (at_ms - now_ms).max(1),
        };
        let (ttl, value) = (ttl_ms.to_string(), key.value.payload(options.should_compress));
        let name: &[u8] = if options.needs_asking {
            b"RESTORE-ASKING"
        } else {
            b"RESTORE"
        };
        let words = [name, &key.name, ttl.as_bytes(), &value].into_iter();
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
            accepted[index] = true;
        }
    }
    Ok(refusal)
}

/// The outcome for keys that the target has taken.
struct LocalDeletions {
    /// Keys that have changed since they were sent, in their current state.
    changed_keys: Vec<MigratedKey>,
    /// Keys that were deleted or renamed meanwhile.
    missing_keys: Vec<MigratedKey>,
    /// An error if a key is on the target but could not be deleted here.
    outcome: Result<(), Vec<u8>>,
    /// The position in the log of the first deletion, or none.
    first_write: LogSequence,
}

/// The outcome for one key that the target has taken.
enum LocalDeletionOutcome {
    /// It was unchanged, and was deleted.
    Deleted,
    /// It was deleted already.
    Missing,
    /// It has changed.
    Changed,
    /// It is here, but its slot has left this node meanwhile, or it has changed and clients may have written it on the
    /// target. It was not deleted.
    Kept,
}

/// Deletes the keys that the target has accepted.
fn delete_accepted_keys(
    server: &Arc<Server>,
    seat: &mut Seat,
    options: &MigrateRequest,
    migrated_keys: Vec<MigratedKey>,
    accepted: &[bool],
) -> LocalDeletions {
    let mut deletions = LocalDeletions {
        changed_keys: Vec::new(),
        missing_keys: Vec::new(),
        outcome: Ok(()),
        first_write: LogSequence::NONE,
    };
    let thread_index = ThreadIndex::new(seat.index());
    for (mut key, _) in migrated_keys.into_iter().zip(accepted).filter(|(_, taken)| **taken) {
        loop {
            let pass = seat.enter();
            // Role changes and pauses begin in exclusive mode.
            if server.replication.is_replica() || !may_continue(server, options) {
                deletions.outcome = Err(MAY_NOT_DELETE.to_vec());
                break;
            }
            let attempt = match is_paused(server, &key) {
                true => None,
                false => delete_accepted_key(server, &pass, thread_index, options, &mut key),
            };
            if let Some((outcome, write)) = attempt {
                if deletions.first_write.is_none() {
                    deletions.first_write = write;
                }
                match outcome {
                    LocalDeletionOutcome::Deleted => {}
                    LocalDeletionOutcome::Missing => deletions.missing_keys.push(key),
                    LocalDeletionOutcome::Changed => deletions.changed_keys.push(key),
                    LocalDeletionOutcome::Kept => deletions.outcome = Err(MAY_NOT_DELETE.to_vec()),
                }
                break;
            }
            drop(pass);
            weft_os::thread::sleep(LEASE_RETRY_PAUSE);
        }
    }
    deletions
}

/// Deletes a key that the target has accepted, if it is unchanged since it was sent. Also returns the position of the
/// deletion in the log, or none. Returns `None` if its slot is leased by another thread.
fn delete_accepted_key(
    server: &Arc<Server>,
    pass: &GatePassage<'_>,
    thread_index: ThreadIndex,
    options: &MigrateRequest,
    migrated_key: &mut MigratedKey,
) -> Option<(LocalDeletionOutcome, LogSequence)> {
    let mut lease = pass.write_spinning(migrated_key.slot.index())?;
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
        thread_index,
        should_touch: false,
    };
    let key = NamedKey {
        name: &migrated_key.name,
        hash: migrated_key.hash,
        slot: migrated_key.slot,
    };
    let (header, slot) = lease.parts_mut();
    let mut write = KeyWrite::new(header, slot, key, options.from_db, &access, &mut effects);
    let now = write.entry();
    let is_missing = now.is_none();
    // Under the lease, so no view is published in exclusive mode meanwhile.
    let standing = slot_standing(server, migrated_key);
    let now = now.filter(|_| standing != SlotStanding::Left);
    let same = now.is_some_and(|entry| {
        entry.expire_at_ms() == migrated_key.expire_at_ms
            && migrated_key.value.equals(entry.value(), options.should_compress)
    });
    let is_resendable = !same && standing == SlotStanding::Owned;
    let changed = now.filter(|_| is_resendable).map(|entry| {
        (
            entry.expire_at_ms(),
            MigratedValue::from_entry(entry, options.should_compress),
        )
    });
    if same && write.delete() {
        write.changed(KeyspaceEvent::generic("del"));
    } else {
        drop(write);
    }
    if changed.is_none() && effects.dirty > 0 {
        effects.log_also(options.from_db, &[b"DEL", &migrated_key.name]);
    }
    effects.log_writer.commit();
    let sequence = effects.log_writer.last_sequence();
    NotificationSender::new(server, &mut effects, thread_index).send_recorded_effects(None);
    drop(lease);
    let outcome = match changed {
        Some((expire_at_ms, value)) => {
            (migrated_key.expire_at_ms, migrated_key.value) = (expire_at_ms, value);
            LocalDeletionOutcome::Changed
        }
        None if same => LocalDeletionOutcome::Deleted,
        // It may be another key than the one that was sent: the slot may have come back.
        None if !is_missing => LocalDeletionOutcome::Kept,
        // Clients may use the key on the target. Its deletion here counts as later than its move.
        None if standing != SlotStanding::Owned => LocalDeletionOutcome::Deleted,
        // A key that expires here expires there at the same time.
        None if migrated_key.expire_at_ms.is_none_or(|at_ms| access.now_ms < at_ms) => LocalDeletionOutcome::Missing,
        None => LocalDeletionOutcome::Deleted,
    };
    apply_effects(server, thread_index, effects);
    Some((outcome, sequence))
}

/// Returns the number of times that this node has lost a slot.
fn times_lost(server: &Server, slot: SlotIndex) -> u32 {
    server.cluster.as_ref().map_or(0, |cluster| cluster.times_lost(slot))
}

/// Returns `true` if this node owns a slot, or is in no cluster.
fn is_owned(server: &Server, slot: SlotIndex) -> bool {
    server
        .cluster
        .as_ref()
        .is_none_or(|cluster| cluster.view().is_mine(slot))
}

/// The relation of this node to the slot of a key that it has sent. It decides if clients may have written the key on
/// the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotStanding {
    /// This node has owned the slot since the key was frozen. Clients come here as long as the key is here.
    Owned,
    /// This node imports the slot, or did so when the key was frozen. The target may be the owner, which serves the key
    /// as soon as it has it.
    Imported,
    /// The slot has left this node since the key was frozen, even if it has come back.
    Left,
}

/// Determines the relation by what this node knows now. The view that commands use may be older while a script runs.
fn slot_standing(server: &Server, key: &MigratedKey) -> SlotStanding {
    let Some(cluster) = &server.cluster else {
        return SlotStanding::Owned;
    };
    let (is_mine, is_importing) = {
        let state = cluster.lock(&server.config);
        let is_mine = state.owner(key.slot) == Some(state.myself);
        (is_mine, state.importing.contains_key(&key.slot))
    };
    if !(is_mine || is_importing) || cluster.times_lost(key.slot) != key.times_lost {
        SlotStanding::Left
    } else if is_mine && key.was_owned {
        SlotStanding::Owned
    } else {
        SlotStanding::Imported
    }
}

/// Returns `true` if this server may go on with a MIGRATE. The caller is in a passage of the gate.
fn may_continue(server: &Server, options: &MigrateRequest) -> bool {
    server.replication.role_epoch() == options.role_epoch && !server.scripting.running.is_shutting_down()
}

/// Returns `true` if writes to a key are paused. The caller is in a passage of the gate.
fn is_paused(server: &Server, key: &MigratedKey) -> bool {
    let pause = &server.clients.pause;
    pause.are_writes_paused(weft_base::clock::unix_ms())
        || (pause.held_slots.is_any() && pause.held_slots.contains(cluster_slot(&key.name)))
}

/// Returns `true` if something may be sent for keys that the target may have already. `overwrites` is `true` if it
/// replaces or deletes them there: then no client may have written them. Waits for the end of a pause of writes.
fn may_send_again(
    server: &Server,
    seat: &mut Seat,
    options: &MigrateRequest,
    keys: &[MigratedKey],
    overwrites: bool,
) -> bool {
    let may_send = |key: &MigratedKey| match slot_standing(server, key) {
        SlotStanding::Owned => true,
        SlotStanding::Imported => !overwrites,
        SlotStanding::Left => false,
    };
    loop {
        let pass = seat.enter();
        if !may_continue(server, options) || !keys.iter().all(may_send) {
            return false;
        }
        if !keys.iter().any(|key| is_paused(server, key)) {
            return true;
        }
        drop(pass);
        weft_os::thread::sleep(LEASE_RETRY_PAUSE);
    }
}

/// Records the effects of a key.
fn apply_effects(server: &Arc<Server>, thread_index: ThreadIndex, mut effects: Effects) {
    use crate::observability::metrics::Counter;
    let metrics = &server.stats.metrics;
    metrics.add(thread_index, Counter::Dirty, std::mem::take(&mut effects.dirty));
    metrics.add(
        thread_index,
        Counter::ExpiredKeys,
        std::mem::take(&mut effects.expired_keys),
    );
    if !effects.ready.is_empty() {
        let ready = std::mem::take(&mut effects.ready).into();
        server
            .worker(ThreadIndex::FIRST)
            .send(Message::ServeWaiters(UnservedKeys::new(ready)));
    }
    NotificationSender::new(server, &mut effects, thread_index).send_broadcasts();
    wake_workers(server, &mut effects);
}
