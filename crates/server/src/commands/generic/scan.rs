//! SCAN and KEYS: the keys of a database, in steps or all at once.
//!
//! Both walk from slot to slot with one read lease at a time ([`crate::keyspace::walk`]), so no other command is
//! stopped. Long work runs on a background thread: KEYS on more than a few keys, and SCAN with a COUNT beyond that.

use weft_base::SlotIndex;
use weft_resp::number::{parse_i64, parse_u64};
use weft_resp::{Protocol, Reply, glob};
use weft_table::EntryRef;
use weft_values::Value;

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::CommandError;
use crate::commands::generic::type_name;
use crate::commands::scripting::script::{busy_error, busy_error_of_run};
use crate::keyspace::access::is_expired;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::walk::{Cursor, WalkAccess, WalkEnd, WalkRange, walk, walk_blocking, walk_slot};
use crate::state::Server;
use weft_base::slots::slot_of_pattern;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("keys", leased(keys).with_undeclared_keys()),
    ("scan", leased(scan).with_undeclared_keys()),
];

/// The number of keys that a worker examines in place; they take about 100 µs if they are not cached.
pub(crate) const MAX_KEYS_ON_WORKER: usize = 1000;
/// The default COUNT: the number of keys that a call of SCAN visits.
pub(crate) const DEFAULT_COUNT: usize = 10;
/// The types that TYPE accepts.
const TYPE_NAMES: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

/// The filter for keys.
#[derive(Clone)]
pub(crate) struct ScanFilter<P> {
    /// The pattern that keys must match; `None` matches all.
    pub pattern: Option<P>,
    /// The type that keys must have.
    pub type_name: Option<&'static str>,
    /// The time at which keys must not have expired, in milliseconds since the Unix epoch.
    alive_at_ms: u64,
}

/// The result of a filter for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterResult {
    Excluded,
    Expired,
    Included,
}

impl<P: AsRef<[u8]>> ScanFilter<P> {
    pub(crate) fn evaluate(&self, entry: EntryRef<'_, Value>) -> FilterResult {
        if self.type_name.is_some_and(|wanted| type_name(entry.value()) != wanted) {
            return FilterResult::Excluded;
        }
        if let Some(pattern) = &self.pattern
            && !glob::matches(pattern.as_ref(), entry.key(), false)
        {
            return FilterResult::Excluded;
        }
        match is_expired(entry.expire_at_ms(), self.alive_at_ms) {
            true => FilterResult::Expired,
            false => FilterResult::Included,
        }
    }
}

impl<'a> ScanFilter<&'a [u8]> {
    pub(crate) fn from_pattern(ctx: &Context<'_, '_>, pattern: &'a [u8]) -> Self {
        ScanFilter {
            // A single star matches even the empty key, unlike any other pattern with a star.
            pattern: (pattern != b"*").then_some(pattern),
            type_name: None,
            alive_at_ms: ctx.expiry_time_ms(),
        }
    }

    pub(crate) fn to_owned(&self) -> ScanFilter<Vec<u8>> {
        ScanFilter {
            pattern: self.pattern.map(<[u8]>::to_vec),
            type_name: self.type_name,
            alive_at_ms: self.alive_at_ms,
        }
    }
}

/// A list of names as bulk strings, with their number.
pub(crate) struct BulkNameList {
    bytes: Vec<u8>,
    count: usize,
    protocol: Protocol,
}

impl BulkNameList {
    pub(crate) fn new(protocol: Protocol) -> Self {
        BulkNameList {
            bytes: Vec::new(),
            count: 0,
            protocol,
        }
    }

    pub(crate) fn add(&mut self, name: &[u8]) {
        Reply::new(&mut self.bytes, self.protocol).bulk(name);
        self.count += 1;
    }

    pub(crate) fn reply(&self, reply: &mut Reply<'_>) {
        reply.array(self.count);
        reply.raw(&self.bytes);
    }

    fn reply_with_cursor(&self, stop: WalkEnd, reply: &mut Reply<'_>) {
        let next = match stop {
            WalkEnd::End => Cursor::START,
            WalkEnd::Paused(next) | WalkEnd::Contended(next) => next,
        };
        reply.array(2);
        reply.bulk(next.to_number().to_string().as_bytes());
        self.reply(reply);
    }
}

/// Parses the options of SCAN: COUNT and the filters.
fn parse_scan_options<'a>(ctx: &Context<'a, '_>) -> Result<(usize, ScanFilter<&'a [u8]>), CommandError> {
    let mut count = DEFAULT_COUNT;
    let mut filter = ScanFilter::from_pattern(ctx, b"*");
    let mut index = 2;
    while index < ctx.argc() {
        let option = ctx.arg(index);
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let next = (index + 1 < ctx.argc()).then(|| ctx.arg(index + 1));
        match next {
            Some(next) if is("COUNT") => {
                let number = parse_i64(next).ok_or(CommandError::NOT_AN_INTEGER)?;
                count = usize::try_from(number)
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or(CommandError::SYNTAX)?;
            }
            Some(next) if is("MATCH") => filter.pattern = ScanFilter::from_pattern(ctx, next).pattern,
            Some(next) if is("TYPE") => filter.type_name = Some(parse_type_name(next)?),
            _ if is("NOVALUES") => {
                return Err(CommandError::constant("ERR NOVALUES option can only be used in HSCAN"));
            }
            _ if is("NOSCORES") => {
                return Err(CommandError::constant("ERR NOSCORES option can only be used in ZSCAN"));
            }
            _ => return Err(CommandError::SYNTAX),
        }
        index += 2;
    }
    Ok((count, filter))
}

pub(crate) fn parse_type_name(name: &[u8]) -> Result<&'static str, CommandError> {
    TYPE_NAMES
        .into_iter()
        .find(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        .or_else(|| weft_modules::module::types::find_by_name(name, true).map(|kind| kind.name))
        .ok_or_else(|| CommandError::with_word("ERR unknown type name '", name, "'"))
}

fn scan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let from = parse_u64(ctx.arg(1)).ok_or(CommandError::constant("ERR invalid cursor"))?;
    let (count, filter) = parse_scan_options(ctx)?;
    let from = Cursor::from_number(from);
    let exclusive = ctx.keys.held.holds_all_slots();
    let many = ctx.server.keyspace.counts.keys(ctx.keys.db) > MAX_KEYS_ON_WORKER as u64;
    let is_long = count > MAX_KEYS_ON_WORKER && many && !exclusive;
    match only_slot(ctx, &filter) {
        // Everything in the slot comes before the cursor.
        Some(slot) if slot < from.slot() => {
            BulkNameList::new(ctx.reply.protocol).reply_with_cursor(WalkEnd::End, &mut ctx.reply)
        }
        Some(slot) if is_long => scan_in_background(ctx, range_in_slot(slot, from), count, filter.to_owned()),
        Some(slot) => scan_slot(ctx, slot, from, count, &filter),
        None if is_long => scan_in_background(ctx, from.into(), count, filter.to_owned()),
        None => scan_in_place(ctx, from, count, &filter),
    }
    Ok(())
}

/// Returns the cluster slot that contains all matching keys, if the pattern determines one.
fn only_slot(ctx: &Context<'_, '_>, filter: &ScanFilter<&[u8]>) -> Option<SlotIndex> {
    ctx.server.cluster.as_ref()?;
    slot_of_pattern(filter.pattern?)
}

/// Returns the part of a slot that begins at `from`, or the whole slot if that lies before it.
fn range_in_slot(slot: SlotIndex, from: Cursor) -> WalkRange {
    let from = if from.slot() == slot {
        from
    } else {
        Cursor::at_slot(slot.index())
    };
    WalkRange { from, last: slot }
}

fn scan_slot(ctx: &mut Context<'_, '_>, slot: SlotIndex, from: Cursor, count: usize, filter: &ScanFilter<&[u8]>) {
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let stop = walk_slot(&access, ctx.keys.db, slot, from, count, &mut |_, entry| {
        if filter.evaluate(entry) == FilterResult::Included {
            found.add(entry.key());
        }
    });
    match stop {
        WalkEnd::Contended(here) => ctx.defer_until_free(here.slot()),
        WalkEnd::End | WalkEnd::Paused(_) => found.reply_with_cursor(stop, &mut ctx.reply),
    }
}

fn scan_in_place(ctx: &mut Context<'_, '_>, from: Cursor, count: usize, filter: &ScanFilter<&[u8]>) {
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let db = ctx.keys.db;
    let (hasher, effects) = (&ctx.server.keyspace.hasher, &mut *ctx.keys.effects);
    let (seen_expiry, now_ms) = (&ctx.server.keyspace.counts.seen_expiry, ctx.now_ms);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    // A database that fits into one reply is returned completely, so that no second call is needed.
    let small = ctx.server.keyspace.counts.keys(db) <= count as u64;
    let at_least = count.saturating_add(usize::from(small));
    let stop = walk(
        &access,
        db,
        from,
        at_least,
        &mut |_, entry| match filter.evaluate(entry) {
            FilterResult::Excluded => {}
            FilterResult::Included => found.add(entry.key()),
            FilterResult::Expired => {
                let key = PlannedKey::unnamed(hasher.hash(entry.key()));
                seen_expiry.note(now_ms);
                effects.queue_expired(db, &key, entry.key(), false);
            }
        },
    );
    if stop == WalkEnd::Contended(from) {
        // No key was examined.
        ctx.defer_until_free(from.slot());
    } else {
        found.reply_with_cursor(stop, &mut ctx.reply);
    }
}

fn scan_in_background(ctx: &mut Context<'_, '_>, range: WalkRange, count: usize, filter: ScanFilter<Vec<u8>>) {
    let (db, protocol) = (ctx.keys.db, ctx.reply.protocol);
    ctx.reply_from_background(move |server, seat| {
        let mut found = BulkNameList::new(protocol);
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let stop = walk_blocking(seat, &gives_up, db, range, count, &mut |_, entry| {
            if filter.evaluate(entry) == FilterResult::Included {
                found.add(entry.key());
            }
        });
        build_reply(protocol, |reply| match busy_error_of_walk(server, stop) {
            Some(error) if stop == WalkEnd::Contended(range.from) => reply.error_bytes(&error.0),
            _ => found.reply_with_cursor(stop, reply),
        })
    });
}

fn keys(ctx: &mut Context<'_, '_>) -> CommandResult {
    let filter = ScanFilter::from_pattern(ctx, ctx.arg(1));
    let exclusive = ctx.keys.held.holds_all_slots();
    let few = ctx.server.keyspace.counts.keys(ctx.keys.db) <= MAX_KEYS_ON_WORKER as u64;
    match only_slot(ctx, &filter) {
        Some(slot) if exclusive || few => keys_of_slot(ctx, slot, &filter),
        Some(slot) => keys_in_background(ctx, range_in_slot(slot, Cursor::START), filter.to_owned()),
        None => {
            if !(exclusive || few) || !keys_in_place(ctx, &filter) {
                keys_in_background(ctx, Cursor::START.into(), filter.to_owned());
            }
        }
    }
    Ok(())
}

fn keys_of_slot(ctx: &mut Context<'_, '_>, slot: SlotIndex, filter: &ScanFilter<&[u8]>) {
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let stop = walk_slot(
        &access,
        ctx.keys.db,
        slot,
        Cursor::START,
        usize::MAX,
        &mut |_, entry| {
            if filter.evaluate(entry) == FilterResult::Included {
                found.add(entry.key());
            }
        },
    );
    match stop {
        WalkEnd::Contended(here) => ctx.defer_until_free(here.slot()),
        WalkEnd::End | WalkEnd::Paused(_) => found.reply(&mut ctx.reply),
    }
}

/// Replies with the names of all matching keys, unless a slot is being written.
fn keys_in_place(ctx: &mut Context<'_, '_>, filter: &ScanFilter<&[u8]>) -> bool {
    let mut found = BulkNameList::new(ctx.reply.protocol);
    let access = WalkAccess::for_command(&ctx.keys.held, ctx.pass);
    let stop = walk(&access, ctx.keys.db, Cursor::START, usize::MAX, &mut |_, entry| {
        if filter.evaluate(entry) == FilterResult::Included {
            found.add(entry.key());
        }
    });
    let complete = stop == WalkEnd::End;
    if complete {
        found.reply(&mut ctx.reply);
    }
    complete
}

fn keys_in_background(ctx: &mut Context<'_, '_>, range: WalkRange, filter: ScanFilter<Vec<u8>>) {
    let (db, protocol) = (ctx.keys.db, ctx.reply.protocol);
    ctx.reply_from_background(move |server, seat| {
        let mut found = BulkNameList::new(protocol);
        let gives_up = |slot| is_held_by_overdue_script(server, slot);
        let stop = walk_blocking(seat, &gives_up, db, range, usize::MAX, &mut |_, entry| {
            if filter.evaluate(entry) == FilterResult::Included {
                found.add(entry.key());
            }
        });
        build_reply(protocol, |reply| match busy_error_of_walk(server, stop) {
            Some(error) => reply.error_bytes(&error.0),
            None => found.reply(reply),
        })
    });
}

/// Returns `true` if an overdue script holds a slot.
pub(crate) fn is_held_by_overdue_script(server: &Server, slot: SlotIndex) -> bool {
    server.scripting.running.overdue_holder(Some(slot.get())).is_some()
}

/// Returns the error if a walk gave up because an overdue script holds the next slot.
pub(crate) fn busy_error_of_walk(server: &Server, stop: WalkEnd) -> Option<CommandError> {
    let WalkEnd::Contended(here) = stop else {
        return None;
    };
    let holder = server.scripting.running.overdue_holder(Some(here.slot().get()));
    Some(holder.map_or_else(
        || busy_error(&server.config, false),
        |run| busy_error_of_run(&server.config, &run),
    ))
}
