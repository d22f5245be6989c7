//! Fields that expire: setting, removing and querying their expiry, and reading or writing fields together with it.

use weft_resp::Reply;
use weft_resp::number::parse_i64;
use weft_values::hash::{FieldExpiry, Hash, HashRef};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::generic::expire::{ExpiryConditions, first_future_ms, is_already_expired, round_to_seconds};
use crate::commands::generic::expiry_argument::{ExpiryUnit, invalid_expire_time_error, to_unix_ms};
use crate::commands::hash::fields::{
    CHANGE_FIELD_NS, FieldNames, FieldValueArguments, check_hash_key, close_changed_key, entry_as_hash, key_as_hash,
    live_names_if_any_expired, remove_fields, reply_value_or_null, set_fields, unpack_hash,
};
use crate::commands::string::set_options::{SetCondition, SetOptions, SetOptionsGrammar, parse_options};
use crate::keyspace::access::KeyWrite;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("hexpire", leased(hexpire)),
    ("hexpireat", leased(hexpireat)),
    ("hexpiretime", leased(hexpiretime)),
    ("hgetdel", leased(hgetdel)),
    ("hgetex", leased(hgetex)),
    ("hpersist", leased(hpersist)),
    ("hpexpire", leased(hpexpire)),
    ("hpexpireat", leased(hpexpireat)),
    ("hpexpiretime", leased(hpexpiretime)),
    ("hpttl", leased(hpttl)),
    ("hsetex", leased(hsetex)),
    ("httl", leased(httl)),
];

const NUMFIELDS_ERROR: CommandError =
    CommandError::constant("ERR numfields should be greater than 0 and match the provided number of fields");

/// The reply for a field that does not exist.
const FIELD_MISSING: i64 = -2;
/// The reply for a field that does not expire.
const FIELD_PERSISTENT: i64 = -1;
/// The reply for a field whose condition was not met.
const EXPIRY_REFUSED: i64 = 0;
/// The reply for a field whose expiry was changed.
const EXPIRY_CHANGED: i64 = 1;
/// The reply for a field that was deleted because the expiry is in the past.
const FIELD_EXPIRED: i64 = 2;

/// Returns the index of the argument `FIELDS` at or after `first`, excluding the last argument.
fn find_fields_argument(ctx: &Context<'_, '_>, first: usize) -> Option<usize> {
    (first..ctx.argc().saturating_sub(1)).find(|index| ctx.arg(*index).eq_ignore_ascii_case(b"FIELDS"))
}

/// Parses the number that follows `FIELDS` at `word`.
fn parse_numfields(ctx: &Context<'_, '_>, word: usize) -> Result<i64, CommandError> {
    parse_i64(ctx.arg(word + 1)).ok_or(CommandError::NOT_AN_INTEGER)
}

/// Returns the names that follow `FIELDS` at `word`, whose number must be correct.
fn field_names_after<'a>(
    ctx: &Context<'a, '_>,
    word: usize,
    error: CommandError,
) -> Result<FieldNames<'a>, CommandError> {
    let first = word + 2;
    let given = ctx.argc().saturating_sub(first);
    if parse_numfields(ctx, word)? != given as i64 || given == 0 {
        return Err(error);
    }
    Ok(FieldNames::new(ctx.args, first, given))
}

/// Returns the names of a command that has only the key and `FIELDS` as arguments.
fn trailing_field_names<'a>(ctx: &Context<'a, '_>, error: CommandError) -> Result<FieldNames<'a>, CommandError> {
    if !ctx.arg(2).eq_ignore_ascii_case(b"FIELDS") {
        return Err(CommandError::SYNTAX);
    }
    field_names_after(ctx, 2, error)
}

fn hexpire(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::Seconds)
}

fn hpexpire(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::Milliseconds)
}

fn hexpireat(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::UnixSeconds)
}

fn hpexpireat(ctx: &mut Context<'_, '_>) -> CommandResult {
    set_expiry(ctx, ExpiryUnit::UnixMilliseconds)
}

/// Returns the time of an amount; negative amounts are rejected.
fn parse_expiry_ms(ctx: &Context<'_, '_>, amount: &[u8], unit: ExpiryUnit) -> Result<i64, CommandError> {
    let amount = parse_i64(amount).ok_or(CommandError::NOT_AN_INTEGER)?;
    if amount < 0 {
        return Err(invalid_expire_time_error(ctx.command.full_name));
    }
    to_unix_ms(amount, unit, ctx.now_ms, ctx.command.full_name)
}

fn set_expiry(ctx: &mut Context<'_, '_>, unit: ExpiryUnit) -> CommandResult {
    let word = find_fields_argument(ctx, 3).ok_or(NUMFIELDS_ERROR)?;
    let conditions = ExpiryConditions::parse(ctx.args.iter().take(word).skip(3))?;
    let names = field_names_after(ctx, word, NUMFIELDS_ERROR)?;
    let at_ms = parse_expiry_ms(ctx, ctx.arg(2), unit)?;
    if ctx.detach_if_long(names.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    let plan = FieldExpiryChange {
        conditions,
        at_ms,
        is_past: is_already_expired(ctx, at_ms),
        now_ms: ctx.expiry_time_ms(),
    };
    let mut key = check_hash_key(ctx.keys.write(0))?;
    if plan.must_unpack(&key, names) {
        unpack_hash(&mut key);
    }
    let live = live_names_if_any_expired(&mut key, names.iter(), plan.now_ms);
    let (mut set, mut gone) = (0, 0);
    let mut gone_names = PropagatedFields::new(&mut key);
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = plan.apply(&mut key, name);
        set += u64::from(answer == EXPIRY_CHANGED);
        gone += u64::from(answer == FIELD_EXPIRED);
        if answer == FIELD_EXPIRED {
            gone_names.add(name);
        }
        ctx.reply.integer(answer);
    }
    if gone > 0 {
        gone_names.propagate(&mut key, &[b"HDEL", ctx.args.argument(1)]);
    } else if key.effects().is_logging() {
        let mut digits = itoa::Buffer::new();
        let mut words: Vec<&[u8]> = vec![b"HPEXPIREAT", ctx.args.argument(1), digits.format(at_ms).as_bytes()];
        match live {
            None => {
                words.extend(ctx.args.iter().skip(3));
                key.log_instead(&words);
            }
            Some(live) => {
                words.extend(ctx.args.iter().take(word).skip(3));
                PropagatedFields(Some(live)).propagate_with_count(&mut key, &words);
            }
        }
    }
    if set > 0 && gone == 0 {
        key.changed_times(KeyspaceEvent::hash("hexpire"), set);
    } else {
        close_after_expiry(key, gone);
    }
    Ok(())
}

/// Names of fields to propagate, if writes are logged.
struct PropagatedFields<'a>(Option<Vec<&'a [u8]>>);

impl<'a> PropagatedFields<'a> {
    fn new(key: &mut KeyWrite<'_>) -> Self {
        PropagatedFields(key.effects().is_logging().then(Vec::new))
    }

    #[inline]
    fn add(&mut self, name: &'a [u8]) {
        if let Some(names) = &mut self.0 {
            names.push(name);
        }
    }

    /// Propagates these words and the names instead of the command that runs.
    fn propagate(self, key: &mut KeyWrite<'_>, words: &[&[u8]]) {
        if let Some(names) = self.0 {
            key.log_instead(&[words, &names].concat());
        }
    }

    /// Like [`Self::propagate`], with `FIELDS` and the number of names in between.
    fn propagate_with_count(self, key: &mut KeyWrite<'_>, words: &[&[u8]]) {
        let mut digits = itoa::Buffer::new();
        let count = self.0.as_ref().map_or(0, Vec::len);
        let count: [&[u8]; 2] = [b"FIELDS", digits.format(count).as_bytes()];
        self.propagate(key, &[words, &count].concat());
    }
}

/// Closes a key after fields were deleted because their new expiry is in the past.
fn close_after_expiry(mut key: KeyWrite<'_>, deleted: u64) {
    if deleted == 0 {
        return;
    }
    key.count_expired_fields(deleted);
    close_changed_key(key, KeyspaceEvent::hash("hexpired"), deleted);
}

/// A new expiry for fields.
struct FieldExpiryChange {
    conditions: ExpiryConditions,
    at_ms: i64,
    /// `true` if it is in the past, so that the fields are deleted.
    is_past: bool,
    now_ms: u64,
}

impl FieldExpiryChange {
    /// Returns `true` if a field of a packed hash gets an expiry.
    fn must_unpack(&self, key: &KeyWrite<'_>, names: FieldNames<'_>) -> bool {
        let Some(packed @ HashRef::Packed(_)) = key_as_hash(key) else {
            return false;
        };
        let present = |name| packed.value(name, self.now_ms).is_some();
        !self.is_past && self.conditions.allow(None, self.at_ms) && names.iter().any(present)
    }

    fn apply(&self, key: &mut KeyWrite<'_>, name: &[u8]) -> i64 {
        let current = match key_as_hash(key) {
            None => return FIELD_MISSING,
            Some(HashRef::Packed(run)) if run.find(name, 2).is_none() => return FIELD_MISSING,
            Some(HashRef::Packed(_)) => None,
            Some(HashRef::Large(hash)) => match hash.find(name, self.now_ms) {
                None => return FIELD_MISSING,
                Some(record) => record.expire_at_ms,
            },
        };
        if !self.conditions.allow(current.map(|at_ms| at_ms as i64), self.at_ms) {
            return EXPIRY_REFUSED;
        }
        if self.is_past {
            remove_fields(key, std::iter::once(name), self.now_ms);
            return FIELD_EXPIRED;
        }
        key.change_hash(|hash| hash.set_expiry(name, Some(self.at_ms as u64)));
        EXPIRY_CHANGED
    }
}

fn hpersist(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = trailing_field_names(ctx, NUMFIELDS_ERROR)?;
    if ctx.detach_if_long(names.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    let now_ms = ctx.expiry_time_ms();
    let mut key = check_hash_key(ctx.keys.write(0))?;
    if let Some(live) = live_names_if_any_expired(&mut key, names.iter(), now_ms) {
        PropagatedFields(Some(live)).propagate_with_count(&mut key, &[b"HPERSIST", ctx.args.argument(1)]);
    }
    let mut persisted = 0;
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = match field_expiry(key_as_hash(&key), name, now_ms) {
            None => FIELD_MISSING,
            Some(None) => FIELD_PERSISTENT,
            Some(Some(_)) => {
                key.change_hash(|hash| hash.set_expiry(name, None));
                persisted += 1;
                EXPIRY_CHANGED
            }
        };
        ctx.reply.integer(answer);
    }
    if persisted > 0 {
        key.changed_times(KeyspaceEvent::hash("hpersist"), persisted);
    }
    Ok(())
}

/// Returns the expiry of a field, if the field exists; `Some(None)` if it does not expire.
fn field_expiry(hash: Option<HashRef<'_>>, name: &[u8], now_ms: u64) -> Option<Option<u64>> {
    match hash? {
        HashRef::Packed(run) => run.find(name, 2).map(|_| None),
        HashRef::Large(hash) => hash.find(name, now_ms).map(|record| record.expire_at_ms),
    }
}

fn httl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiries(ctx, |at_ms| round_to_seconds(at_ms.saturating_sub(now_ms).max(0)))
}

fn hpttl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiries(ctx, |at_ms| at_ms.saturating_sub(now_ms).max(0))
}

fn hexpiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiries(ctx, round_to_seconds)
}

fn hpexpiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiries(ctx, |at_ms| at_ms)
}

fn reply_with_expiries(ctx: &mut Context<'_, '_>, convert: impl Fn(i64) -> i64) -> CommandResult {
    let names = trailing_field_names(ctx, CommandError::SYNTAX)?;
    let now_ms = ctx.expiry_time_ms();
    let hash = entry_as_hash(ctx.keys.read(0))?;
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = match field_expiry(hash, name, now_ms) {
            None => FIELD_MISSING,
            Some(None) => FIELD_PERSISTENT,
            Some(Some(at_ms)) => convert(at_ms as i64),
        };
        ctx.reply.integer(answer);
    }
    Ok(())
}

/// Returns the time that the options of HGETEX or HSETEX specify, if any.
fn option_expiry_ms(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<Option<i64>, CommandError> {
    let at_ms = |(unit, amount)| parse_expiry_ms(ctx, amount, unit);
    options.expiry.map(at_ms).transpose()
}

fn hgetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let word = find_fields_argument(ctx, 2).ok_or(NUMFIELDS_ERROR)?;
    let options = parse_options(ctx, 2..word, SetOptionsGrammar::HgetEx)?;
    let names = field_names_after(ctx, word, NUMFIELDS_ERROR)?;
    let keeps_expired = ctx.keeps_expired();
    let is_hidden = ctx.keys.misses_kept_key(0, keeps_expired);
    if !is_hidden {
        check_hash_key(ctx.keys.write(0).counted())?;
    }
    let at_ms = option_expiry_ms(ctx, &options)?;
    if ctx.detach_if_long(names.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    if is_hidden {
        ctx.reply.array(names.len());
        names.iter().for_each(|_| ctx.reply.null());
        return Ok(());
    }
    let new = match at_ms {
        None if options.should_persist => Some(None),
        None => None,
        Some(at_ms) => Some(Some(at_ms)),
    };
    let passed = at_ms.is_some_and(|at_ms| is_already_expired(ctx, at_ms));
    let now_ms = ctx.expiry_time_ms();
    let mut key = ctx.keys.write(0).opened_again();
    let mut changed = 0;
    let mut changed_names = PropagatedFields::new(&mut key);
    ctx.reply.array(names.len());
    for name in names.iter() {
        let there = reply_live_value(&mut ctx.reply, key_as_hash(&key), name, now_ms);
        let change = match new {
            Some(Some(_)) if there && passed => remove_fields(&mut key, std::iter::once(name), now_ms) > 0,
            Some(at_ms) if there => set_field_expiry(&mut key, name, at_ms.map(|at_ms| at_ms as u64)),
            _ => false,
        };
        changed += u64::from(change);
        if change {
            changed_names.add(name);
        }
    }
    let mut digits = itoa::Buffer::new();
    let key_name = ctx.args.argument(1);
    match at_ms {
        Some(_) if passed => changed_names.propagate(&mut key, &[b"HDEL", key_name]),
        Some(at_ms) => {
            let at = digits.format(at_ms).as_bytes();
            changed_names.propagate_with_count(&mut key, &[b"HPEXPIREAT", key_name, at]);
        }
        None => changed_names.propagate_with_count(&mut key, &[b"HPERSIST", key_name]),
    }
    if passed {
        close_after_expiry(key, changed);
    } else if changed > 0 {
        let event = if at_ms.is_some() { "hexpire" } else { "hpersist" };
        key.changed_times(KeyspaceEvent::hash(event), changed);
    }
    Ok(())
}

/// Writes the value of a field, or null. Returns `true` if the field exists.
fn reply_live_value(reply: &mut Reply<'_>, hash: Option<HashRef<'_>>, name: &[u8], now_ms: u64) -> bool {
    let value = hash.and_then(|hash| hash.value(name, now_ms));
    reply_value_or_null(reply, value);
    value.is_some()
}

/// Sets the expiry of an existing field. Returns `true` if that changes anything.
fn set_field_expiry(key: &mut KeyWrite<'_>, name: &[u8], expire_at_ms: Option<u64>) -> bool {
    if expire_at_ms.is_some() {
        unpack_hash(key);
    }
    let change = |hash: &mut Hash| {
        // It was found just before, so no time is needed.
        let persistent = hash.find(name, 0).is_some_and(|record| record.expire_at_ms.is_none());
        let changes = expire_at_ms.is_some() || !persistent;
        if changes {
            hash.set_expiry(name, expire_at_ms);
        }
        changes
    };
    key.change_hash(change).unwrap_or(false)
}

fn hgetdel(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = trailing_field_names(ctx, NUMFIELDS_ERROR)?;
    if ctx.detach_if_long(names.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    let now_ms = ctx.expiry_time_ms();
    let mut key = check_hash_key(ctx.keys.write(0))?;
    if let Some(live) = live_names_if_any_expired(&mut key, names.iter(), now_ms) {
        PropagatedFields(Some(live)).propagate(&mut key, &[b"HDEL", ctx.args.argument(1)]);
    }
    let mut removed = 0;
    ctx.reply.array(names.len());
    for name in names.iter() {
        if reply_live_value(&mut ctx.reply, key_as_hash(&key), name, now_ms) {
            removed += remove_fields(&mut key, std::iter::once(name), now_ms);
        }
    }
    if removed > 0 {
        close_changed_key(key, KeyspaceEvent::hash("hdel"), removed as u64);
    }
    Ok(())
}

fn hsetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let word = find_fields_argument(ctx, 2).ok_or(NUMFIELDS_ERROR)?;
    let options = parse_options(ctx, 2..word, SetOptionsGrammar::HsetEx)?;
    let given = ctx.argc() - (word + 2);
    let count = parse_numfields(ctx, word)?;
    if given == 0 || count.checked_mul(2) != Some(given as i64) {
        return Err(NUMFIELDS_ERROR);
    }
    let pairs = FieldValueArguments::new(ctx.args, word + 2, given / 2);
    check_hash_key(ctx.keys.write(0))?;
    let exists = ctx.keys.peek(0).is_some();
    let met = match options.condition {
        SetCondition::Missing => !exists,
        SetCondition::Present => exists,
        SetCondition::None | SetCondition::Equal(_) => true,
    };
    if !met {
        ctx.reply.integer(0);
        return Ok(());
    }
    let at_ms = option_expiry_ms(ctx, &options)?;
    let now_ms = ctx.expiry_time_ms();
    if let Some(wanted) = options.must_fields_exist {
        let hash = entry_as_hash(ctx.keys.peek(0))?;
        let exists = |name| hash.is_some_and(|hash| hash.value(name, now_ms).is_some());
        if pairs.iter().any(|(name, _)| exists(name) != wanted) {
            ctx.reply.integer(0);
            return Ok(());
        }
    }
    if ctx.detach_if_long(pairs.len() as u64 * CHANGE_FIELD_NS) {
        return Ok(());
    }
    match at_ms {
        Some(at_ms) if is_already_expired(ctx, at_ms) => set_already_expired_fields(ctx, pairs),
        _ => {
            if options.should_keep_ttl {
                propagate_expired_fields(ctx, pairs);
            }
            set_fields_with_expiry(ctx, pairs, at_ms, options.should_keep_ttl);
            propagate_hsetex(ctx, word, at_ms, options.should_keep_ttl);
        }
    }
    ctx.reply.integer(1);
    Ok(())
}

/// Propagates, before HSETEX with KEEPTTL, that expired fields lose their expiry: on replicas they have not expired and
/// would keep it. They are set, not deleted, because a hash that loses its last field would lose its own expiry.
fn propagate_expired_fields(ctx: &mut Context<'_, '_>, pairs: FieldValueArguments<'_>) {
    if !ctx.keys.effects.is_logging() {
        return;
    }
    // As `set_fields` sees it.
    let future_ms = first_future_ms(ctx.past_expiry_ms());
    let Some(HashRef::Large(hash)) = entry_as_hash(ctx.keys.peek(0)).ok().flatten() else {
        return;
    };
    let has_expired = |name: &[u8]| hash.find(name, future_ms).is_none() && hash.find(name, 0).is_some();
    let expired = pairs.iter().filter(|(name, _)| has_expired(name));
    let expired: Vec<&[u8]> = expired.flat_map(|(name, value)| [name, value]).collect();
    if !expired.is_empty() {
        let mut digits = itoa::Buffer::new();
        let count = digits.format(expired.len() / 2).as_bytes();
        let words: [&[u8]; 4] = [b"HSETEX", ctx.args.argument(1), b"FIELDS", count];
        let db = ctx.keys.db;
        ctx.keys.effects.log_also(db, &[&words, expired.as_slice()].concat());
    }
}

/// Propagates HSETEX without its conditions, which were met.
fn propagate_hsetex(ctx: &mut Context<'_, '_>, word: usize, at_ms: Option<i64>, keep_ttl: bool) {
    if !ctx.keys.effects.is_logging() {
        return;
    }
    let mut digits = itoa::Buffer::new();
    let mut words: Vec<&[u8]> = vec![b"HSETEX", ctx.args.argument(1)];
    match at_ms {
        Some(at_ms) => words.extend([&b"PXAT"[..], digits.format(at_ms).as_bytes()]),
        None if keep_ttl => words.push(b"KEEPTTL"),
        None => {}
    }
    words.extend(ctx.args.iter().skip(word));
    ctx.keys.effects.log_instead(&words);
}

/// Sets fields, with an expiry in the future if they have one.
fn set_fields_with_expiry(
    ctx: &mut Context<'_, '_>,
    pairs: FieldValueArguments<'_>,
    at_ms: Option<i64>,
    keep_ttl: bool,
) {
    let expiry = match at_ms {
        Some(at_ms) => FieldExpiry::At(at_ms as u64),
        None if keep_ttl => FieldExpiry::Keep,
        None => FieldExpiry::Never,
    };
    let (limits, past_ms) = (ctx.server.config.hash_limits(), ctx.past_expiry_ms());
    let mut key = ctx.keys.write(0).opened_again();
    let done = set_fields(&mut key, pairs.iter(), expiry, limits, past_ms);
    key.record_expired_fields(done.expired);
    if at_ms.is_some() {
        key.record_event(KeyspaceEvent::hash("hset"));
        key.changed_times(KeyspaceEvent::hash("hexpire"), pairs.len() as u64);
    } else {
        key.changed_times(KeyspaceEvent::hash("hset"), pairs.len() as u64);
    }
}

/// Sets fields with an expiry in the past: they are deleted, whether or not they existed.
fn set_already_expired_fields(ctx: &mut Context<'_, '_>, pairs: FieldValueArguments<'_>) {
    let mut key = ctx.keys.write(0).opened_again();
    if !key.exists() {
        key.record_event(KeyspaceEvent::NEW);
    }
    let mut gone = PropagatedFields::new(&mut key);
    let mut removed = 0;
    for (name, _) in pairs.iter() {
        // At time 0 nothing has expired, so this removes expired fields as well.
        if remove_fields(&mut key, std::iter::once(name), 0) > 0 {
            removed += 1;
            gone.add(name);
        }
    }
    if gone.0.as_ref().is_some_and(Vec::is_empty) {
        key.effects().log_nothing();
    } else {
        gone.propagate(&mut key, &[b"HDEL", ctx.args.argument(1)]);
    }
    key.count_expired_fields(pairs.len() as u64);
    key.record_event(KeyspaceEvent::hash("hset"));
    key.record_event(KeyspaceEvent::hash("hexpire"));
    if removed == 0 {
        // The events are those of a change, but clients that watch the key have nothing to notice.
        key.record_event(KeyspaceEvent::hash("hexpired"));
        if !key.exists() {
            key.record_event(KeyspaceEvent::generic("del"));
        }
        key.changed_quietly(0);
    } else if key.exists() {
        close_changed_key(key, KeyspaceEvent::hash("hexpired"), removed);
    } else {
        key.record_event(KeyspaceEvent::hash("hexpired"));
        key.changed_times(KeyspaceEvent::generic("del"), removed);
    }
}
