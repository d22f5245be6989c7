//! Fields that expire: setting and removing their expiry, asking for it, and reading or writing fields along with it.

use weft_resp::Reply;
use weft_resp::number::parse_i64;
use weft_values::hash::{FieldExpiry, Hash, HashRef};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::generic::expire::{Conditions, in_seconds, is_already_expired};
use crate::commands::generic::expiry_argument::{ExpiryUnit, any_absolute_ms, invalid_expire_time};
use crate::commands::hash::fields::{
    CHANGE_NS, Names, Pairs, checked, close, hash_at, hash_of_entry, live_beside_expired, remove_fields, set_fields,
    show_value, unpack,
};
use crate::commands::string::set_options::{Condition, Grammar, SetOptions, parse_options};
use crate::keyspace::access::KeyWrite;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::notify::keyspace_event::Event;

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

const WRONG_NUMFIELDS: CommandError =
    CommandError::constant("ERR numfields should be greater than 0 and match the provided number of fields");

/// The answer about a field that is not there.
const MISSING: i64 = -2;
/// The answer about a field that does not expire.
const PERSISTENT: i64 = -1;
/// The answer about a field whose expiry was refused.
const REFUSED: i64 = 0;
/// The answer about a field whose expiry was changed.
const CHANGED: i64 = 1;
/// The answer about a field that is gone, since its expiry has passed.
const EXPIRED: i64 = 2;

/// The argument `FIELDS` from `first` on; the last argument is none.
fn fields_word(ctx: &Context<'_, '_>, first: usize) -> Option<usize> {
    (first..ctx.argc().saturating_sub(1)).find(|index| ctx.arg(*index).eq_ignore_ascii_case(b"FIELDS"))
}

/// The number that follows `FIELDS` at `word`.
fn numfields(ctx: &Context<'_, '_>, word: usize) -> Result<i64, CommandError> {
    parse_i64(ctx.arg(word + 1)).ok_or(CommandError::NOT_AN_INTEGER)
}

/// The names that follow `FIELDS` at `word`, whose number must be right.
fn names_after<'a>(ctx: &Context<'a, '_>, word: usize, wrong: CommandError) -> Result<Names<'a>, CommandError> {
    let first = word + 2;
    let given = ctx.argc().saturating_sub(first);
    if numfields(ctx, word)? != given as i64 || given == 0 {
        return Err(wrong);
    }
    Ok(Names::new(ctx.args, first, given))
}

/// The names of a command that takes nothing but the key and them.
fn names_only<'a>(ctx: &Context<'a, '_>, wrong: CommandError) -> Result<Names<'a>, CommandError> {
    if !ctx.arg(2).eq_ignore_ascii_case(b"FIELDS") {
        return Err(CommandError::SYNTAX);
    }
    names_after(ctx, 2, wrong)
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

/// The time that an amount means; negative amounts are refused.
fn time_ms(ctx: &Context<'_, '_>, amount: &[u8], unit: ExpiryUnit) -> Result<i64, CommandError> {
    let amount = parse_i64(amount).ok_or(CommandError::NOT_AN_INTEGER)?;
    if amount < 0 {
        return Err(invalid_expire_time(ctx.command.full_name));
    }
    any_absolute_ms(amount, unit, ctx.now_ms, ctx.command.full_name)
}

fn set_expiry(ctx: &mut Context<'_, '_>, unit: ExpiryUnit) -> CommandResult {
    let word = fields_word(ctx, 3).ok_or(WRONG_NUMFIELDS)?;
    let conditions = Conditions::parse(ctx.args.iter().take(word).skip(3))?;
    let names = names_after(ctx, word, WRONG_NUMFIELDS)?;
    let at_ms = time_ms(ctx, ctx.arg(2), unit)?;
    if ctx.leaves_worker(names.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let plan = NewExpiry {
        conditions,
        at_ms,
        passed: is_already_expired(ctx, at_ms),
        now_ms: ctx.alive_ms(),
    };
    let mut key = checked(ctx.keys.write(0))?;
    if plan.unpacks(&key, names) {
        unpack(&mut key);
    }
    let live = live_beside_expired(&mut key, names.iter(), plan.now_ms);
    let (mut set, mut gone) = (0, 0);
    let mut gone_names = LoggedNames::new(&mut key);
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = plan.apply(&mut key, name);
        set += u64::from(answer == CHANGED);
        gone += u64::from(answer == EXPIRED);
        if answer == EXPIRED {
            gone_names.add(name);
        }
        ctx.reply.integer(answer);
    }
    if gone > 0 {
        gone_names.log(&mut key, &[b"HDEL", ctx.args.argument(1)]);
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
                LoggedNames(Some(live)).log_counted(&mut key, &words);
            }
        }
    }
    if set > 0 && gone == 0 {
        key.changed_times(Event::hash("hexpire"), set);
    } else {
        end_expiry(key, gone);
    }
    Ok(())
}

/// Names of fields to propagate, if writes are logged.
struct LoggedNames<'a>(Option<Vec<&'a [u8]>>);

impl<'a> LoggedNames<'a> {
    fn new(key: &mut KeyWrite<'_>) -> Self {
        LoggedNames(key.effects().is_logging().then(Vec::new))
    }

    #[inline]
    fn add(&mut self, name: &'a [u8]) {
        if let Some(names) = &mut self.0 {
            names.push(name);
        }
    }

    /// Propagates these words and the names instead of the command that runs.
    fn log(self, key: &mut KeyWrite<'_>, words: &[&[u8]]) {
        if let Some(names) = self.0 {
            key.log_instead(&[words, &names].concat());
        }
    }

    /// Like [`Self::log`], with `FIELDS` and the number of names in between.
    fn log_counted(self, key: &mut KeyWrite<'_>, words: &[&[u8]]) {
        let mut digits = itoa::Buffer::new();
        let count = self.0.as_ref().map_or(0, Vec::len);
        let count: [&[u8]; 2] = [b"FIELDS", digits.format(count).as_bytes()];
        self.log(key, &[words, &count].concat());
    }
}

/// Closes a key some of whose fields went because their new expiry had passed.
fn end_expiry(mut key: KeyWrite<'_>, gone: u64) {
    if gone == 0 {
        return;
    }
    key.count_expired_fields(gone);
    close(key, Event::hash("hexpired"), gone);
}

/// An expiry on its way to fields.
struct NewExpiry {
    conditions: Conditions,
    at_ms: i64,
    /// `true` if it lies in the past, so that the fields are deleted.
    passed: bool,
    now_ms: u64,
}

impl NewExpiry {
    /// Returns `true` if a field of a packed hash gets an expiry.
    fn unpacks(&self, key: &KeyWrite<'_>, names: Names<'_>) -> bool {
        let Some(packed @ HashRef::Packed(_)) = hash_at(key) else {
            return false;
        };
        let present = |name| packed.value(name, self.now_ms).is_some();
        !self.passed && self.conditions.allow(None, self.at_ms) && names.iter().any(present)
    }

    fn apply(&self, key: &mut KeyWrite<'_>, name: &[u8]) -> i64 {
        let current = match hash_at(key) {
            None => return MISSING,
            Some(HashRef::Packed(run)) if run.find(name, 2).is_none() => return MISSING,
            Some(HashRef::Packed(_)) => None,
            Some(HashRef::Large(hash)) => match hash.find(name, self.now_ms) {
                None => return MISSING,
                Some(record) => record.expire_at_ms,
            },
        };
        if !self.conditions.allow(current.map(|at_ms| at_ms as i64), self.at_ms) {
            return REFUSED;
        }
        if self.passed {
            remove_fields(key, std::iter::once(name), self.now_ms);
            return EXPIRED;
        }
        key.change_hash(|hash| hash.set_expiry(name, Some(self.at_ms as u64)));
        CHANGED
    }
}

fn hpersist(ctx: &mut Context<'_, '_>) -> CommandResult {
    let names = names_only(ctx, WRONG_NUMFIELDS)?;
    if ctx.leaves_worker(names.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let now_ms = ctx.alive_ms();
    let mut key = checked(ctx.keys.write(0))?;
    if let Some(live) = live_beside_expired(&mut key, names.iter(), now_ms) {
        LoggedNames(Some(live)).log_counted(&mut key, &[b"HPERSIST", ctx.args.argument(1)]);
    }
    let mut persisted = 0;
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = match expiry_of(hash_at(&key), name, now_ms) {
            None => MISSING,
            Some(None) => PERSISTENT,
            Some(Some(_)) => {
                key.change_hash(|hash| hash.set_expiry(name, None));
                persisted += 1;
                CHANGED
            }
        };
        ctx.reply.integer(answer);
    }
    if persisted > 0 {
        key.changed_times(Event::hash("hpersist"), persisted);
    }
    Ok(())
}

/// Returns the expiry of a field, if it has one, if the field exists.
fn expiry_of(hash: Option<HashRef<'_>>, name: &[u8], now_ms: u64) -> Option<Option<u64>> {
    match hash? {
        HashRef::Packed(run) => run.find(name, 2).map(|_| None),
        HashRef::Large(hash) => hash.find(name, now_ms).map(|record| record.expire_at_ms),
    }
}

fn httl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiries(ctx, |at_ms| in_seconds(at_ms.saturating_sub(now_ms).max(0)))
}

fn hpttl(ctx: &mut Context<'_, '_>) -> CommandResult {
    let now_ms = ctx.now_ms as i64;
    reply_with_expiries(ctx, |at_ms| at_ms.saturating_sub(now_ms).max(0))
}

fn hexpiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiries(ctx, in_seconds)
}

fn hpexpiretime(ctx: &mut Context<'_, '_>) -> CommandResult {
    reply_with_expiries(ctx, |at_ms| at_ms)
}

fn reply_with_expiries(ctx: &mut Context<'_, '_>, shown: impl Fn(i64) -> i64) -> CommandResult {
    let names = names_only(ctx, CommandError::SYNTAX)?;
    let now_ms = ctx.alive_ms();
    let hash = hash_of_entry(ctx.keys.read(0))?;
    ctx.reply.array(names.len());
    for name in names.iter() {
        let answer = match expiry_of(hash, name, now_ms) {
            None => MISSING,
            Some(None) => PERSISTENT,
            Some(Some(at_ms)) => shown(at_ms as i64),
        };
        ctx.reply.integer(answer);
    }
    Ok(())
}

/// The time that the options of HGETEX or HSETEX name, if any.
fn at_ms_of(ctx: &Context<'_, '_>, options: &SetOptions<'_>) -> Result<Option<i64>, CommandError> {
    let at_ms = |(unit, amount)| time_ms(ctx, amount, unit);
    options.expiry.map(at_ms).transpose()
}

/// Returns an error if the key holds something other than a hash.
fn check_type(ctx: &mut Context<'_, '_>) -> CommandResult {
    checked(ctx.keys.write(0)).map(drop)
}

fn hgetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let word = fields_word(ctx, 2).ok_or(WRONG_NUMFIELDS)?;
    let options = parse_options(ctx, 2..word, Grammar::HgetEx)?;
    let names = names_after(ctx, word, WRONG_NUMFIELDS)?;
    check_type(ctx)?;
    let at_ms = at_ms_of(ctx, &options)?;
    if ctx.leaves_worker(names.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let new = match at_ms {
        None if options.persist => Some(None),
        None => None,
        Some(at_ms) => Some(Some(at_ms)),
    };
    let passed = at_ms.is_some_and(|at_ms| is_already_expired(ctx, at_ms));
    let now_ms = ctx.alive_ms();
    let mut key = ctx.keys.write(0);
    key.count_lookup();
    let mut changed = 0;
    let mut changed_names = LoggedNames::new(&mut key);
    ctx.reply.array(names.len());
    for name in names.iter() {
        let there = show_current(&mut ctx.reply, hash_at(&key), name, now_ms);
        let change = match new {
            Some(Some(_)) if there && passed => remove_fields(&mut key, std::iter::once(name), now_ms) > 0,
            Some(at_ms) if there => change_expiry(&mut key, name, at_ms.map(|at_ms| at_ms as u64)),
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
        Some(_) if passed => changed_names.log(&mut key, &[b"HDEL", key_name]),
        Some(at_ms) => {
            let at = digits.format(at_ms).as_bytes();
            changed_names.log_counted(&mut key, &[b"HPEXPIREAT", key_name, at]);
        }
        None => changed_names.log_counted(&mut key, &[b"HPERSIST", key_name]),
    }
    if passed {
        end_expiry(key, changed);
    } else if changed > 0 {
        let event = if at_ms.is_some() { "hexpire" } else { "hpersist" };
        key.changed_times(Event::hash(event), changed);
    }
    Ok(())
}

/// Shows the value of a field, or null; whether it is there.
fn show_current(reply: &mut Reply<'_>, hash: Option<HashRef<'_>>, name: &[u8], now_ms: u64) -> bool {
    let value = hash.and_then(|hash| hash.value(name, now_ms));
    show_value(reply, value);
    value.is_some()
}

/// Gives a field that is there another expiry; whether that changes anything.
fn change_expiry(key: &mut KeyWrite<'_>, name: &[u8], expire_at_ms: Option<u64>) -> bool {
    if expire_at_ms.is_some() {
        unpack(key);
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
    let names = names_only(ctx, WRONG_NUMFIELDS)?;
    if ctx.leaves_worker(names.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    let now_ms = ctx.alive_ms();
    let mut key = checked(ctx.keys.write(0))?;
    if let Some(live) = live_beside_expired(&mut key, names.iter(), now_ms) {
        LoggedNames(Some(live)).log(&mut key, &[b"HDEL", ctx.args.argument(1)]);
    }
    let mut removed = 0;
    ctx.reply.array(names.len());
    for name in names.iter() {
        if show_current(&mut ctx.reply, hash_at(&key), name, now_ms) {
            removed += remove_fields(&mut key, std::iter::once(name), now_ms);
        }
    }
    if removed > 0 {
        close(key, Event::hash("hdel"), removed as u64);
    }
    Ok(())
}

fn hsetex(ctx: &mut Context<'_, '_>) -> CommandResult {
    let word = fields_word(ctx, 2).ok_or(WRONG_NUMFIELDS)?;
    let options = parse_options(ctx, 2..word, Grammar::HsetEx)?;
    let given = ctx.argc() - (word + 2);
    let count = numfields(ctx, word)?;
    if given == 0 || count.checked_mul(2) != Some(given as i64) {
        return Err(WRONG_NUMFIELDS);
    }
    let pairs = Pairs::new(ctx.args, word + 2, given / 2);
    check_type(ctx)?;
    let exists = ctx.keys.peek(0).is_some();
    let met = match options.condition {
        Condition::Missing => !exists,
        Condition::Present => exists,
        Condition::None | Condition::Equal(_) => true,
    };
    if !met {
        ctx.reply.integer(0);
        return Ok(());
    }
    let at_ms = at_ms_of(ctx, &options)?;
    let now_ms = ctx.alive_ms();
    if let Some(wanted) = options.fields_exist {
        let hash = hash_of_entry(ctx.keys.peek(0))?;
        let exists = |name| hash.is_some_and(|hash| hash.value(name, now_ms).is_some());
        if pairs.iter().any(|(name, _)| exists(name) != wanted) {
            ctx.reply.integer(0);
            return Ok(());
        }
    }
    if ctx.leaves_worker(pairs.len() as u64 * CHANGE_NS) {
        return Ok(());
    }
    match at_ms {
        Some(at_ms) if is_already_expired(ctx, at_ms) => set_passed(ctx, pairs),
        _ => {
            if options.keep_ttl {
                log_expired(ctx, pairs);
            }
            set_expiring(ctx, pairs, at_ms, options.keep_ttl);
            log_setting(ctx, word, at_ms, options.keep_ttl);
        }
    }
    ctx.reply.integer(1);
    Ok(())
}

/// Propagates, before HSETEX with KEEPTTL, that expired fields lose their expiry: for replicas they have not expired,
/// and would keep it. They are set, not deleted, because a hash that loses its last field would lose its own expiry.
fn log_expired(ctx: &mut Context<'_, '_>, pairs: Pairs<'_>) {
    if !ctx.keys.effects.is_logging() {
        return;
    }
    let now_ms = ctx.alive_ms();
    let Some(HashRef::Large(hash)) = hash_of_entry(ctx.keys.peek(0)).ok().flatten() else {
        return;
    };
    let has_expired = |name: &[u8]| hash.find(name, now_ms).is_none() && hash.find(name, 0).is_some();
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
fn log_setting(ctx: &mut Context<'_, '_>, word: usize, at_ms: Option<i64>, keep_ttl: bool) {
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
fn set_expiring(ctx: &mut Context<'_, '_>, pairs: Pairs<'_>, at_ms: Option<i64>, keep_ttl: bool) {
    let expiry = match at_ms {
        Some(at_ms) => FieldExpiry::At(at_ms as u64),
        None if keep_ttl => FieldExpiry::Keep,
        None => FieldExpiry::Never,
    };
    let (limits, now_ms) = (ctx.server.config.hash_limits(), ctx.alive_ms());
    let mut key = ctx.keys.write(0);
    let done = set_fields(&mut key, pairs.iter(), expiry, limits, now_ms);
    key.record_expired_fields(done.expired);
    if at_ms.is_some() {
        key.record_event(Event::hash("hset"));
        key.changed_times(Event::hash("hexpire"), pairs.len() as u64);
    } else {
        key.changed_times(Event::hash("hset"), pairs.len() as u64);
    }
}

/// Sets fields that expire at once: they go, whether they were there or not.
fn set_passed(ctx: &mut Context<'_, '_>, pairs: Pairs<'_>) {
    let mut key = ctx.keys.write(0);
    if !key.exists() {
        key.record_event(Event::NEW);
    }
    let mut gone = LoggedNames::new(&mut key);
    for (name, _) in pairs.iter() {
        // At the beginning of time nothing has expired: fields that have go as well.
        if remove_fields(&mut key, std::iter::once(name), 0) > 0 {
            gone.add(name);
        }
    }
    if gone.0.as_ref().is_some_and(Vec::is_empty) {
        key.effects().log_nothing();
    } else {
        gone.log(&mut key, &[b"HDEL", ctx.args.argument(1)]);
    }
    key.count_expired_fields(pairs.len() as u64);
    key.record_event(Event::hash("hset"));
    key.record_event(Event::hash("hexpire"));
    let times = pairs.len() as u64;
    if key.exists() {
        close(key, Event::hash("hexpired"), times);
    } else {
        key.record_event(Event::hash("hexpired"));
        key.changed_times(Event::generic("del"), times);
    }
}
