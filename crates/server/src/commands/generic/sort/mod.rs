//! SORT and SORT_RO: the elements of a list, set or sorted set, in their own order or by values of other keys.
//!
//! 1. The options are parsed. Then the elements are copied: all of them or, if they keep their order, those of the
//!    window.
//! 2. BY: the weight of each is looked up through its pattern, or the element is its own weight.
//! 3. The elements are sorted, and LIMIT selects the window.
//! 4. GET: the reply or the stored list is built.
//!
//! Keys behind patterns are read under leases that the command takes on its way (see `keyspace/access/undeclared.rs`).
//! It changes nothing before it has read everything, so it can start over when a slot is refused.

mod elements;
mod pattern;

use std::cmp::Ordering;
use std::ffi::CString;
use std::ops::Range;

use weft_reactor::Collation;
use weft_resp::number::{parse_f64, parse_i64};
use weft_table::ValueRef;
use weft_values::listpack::Element;

use crate::commands::context::{Binding, CommandResult, Context, NextStep, bulk_of, leased};
use crate::commands::error::CommandError;
use crate::commands::hash::fields::hash_of_value;
use crate::commands::list::stored;
use crate::commands::list::stored::ListSettings;
use crate::commands::permission::reads_every_key;
use crate::keyspace::access::{Contended, FurtherLeases, Keys};
use crate::keyspace::hash::KeyHasher;
use crate::net::client::ClientFlags;
use crate::notify::keyspace_event::Event;
use crate::runtime::process::collation;
use elements::{Elements, Source};
use pattern::{Pattern, text_of};
use weft_base::slots::cluster_slot;
use weft_base::slots::slot_of_pattern;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("sort", leased(sort).reaching_further()),
    ("sort_ro", leased(sort_read_only).reaching_further()),
];

const NOT_A_WEIGHT: CommandError = CommandError::constant("ERR One or more scores can't be converted into double");

// Patterns may lead to any key.
const BY_DENIED: CommandError =
    CommandError::constant("ERR BY option of SORT denied due to insufficient ACL permissions.");
const GET_DENIED: CommandError =
    CommandError::constant("ERR GET option of SORT denied due to insufficient ACL permissions.");

/// The time to copy an element, in ns.
const COPY_NS: u64 = 60;
/// The time to follow a pattern, in ns.
const FOLLOW_NS: u64 = 400;
/// The number of words of one logged command that stores a part of the result.
const LOGGED_WORDS: usize = 1024;
/// The bytes of elements after which such a command ends.
const LOGGED_BYTES: usize = 64 << 10;
/// The time of a comparison, in ns.
const COMPARE_NS: u64 = 15;

fn sort(ctx: &mut Context<'_, '_>) -> CommandResult {
    sort_with(ctx, true)
}

fn sort_read_only(ctx: &mut Context<'_, '_>) -> CommandResult {
    sort_with(ctx, false)
}

/// The options of a SORT.
#[derive(Debug, Default)]
struct Options<'a> {
    descending: bool,
    alphabetical: bool,
    /// LIMIT: elements to leave out, and to show if not negative.
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    /// BY was given a pattern that is the same for all elements: they stay in their order.
    unsorted: bool,
    gets: Vec<Pattern<'a>>,
    stores: bool,
}

impl<'a> Options<'a> {
    fn parse(ctx: &Context<'a, '_>, may_store: bool) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut index = 2;
        while index < ctx.argc() {
            let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
            let left = ctx.argc() - index - 1;
            if is("ASC") {
                options.descending = false;
            } else if is("DESC") {
                options.descending = true;
            } else if is("ALPHA") {
                options.alphabetical = true;
            } else if is("LIMIT") && left >= 2 {
                let number = |argument| parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER);
                options.limit = Some((number(ctx.arg(index + 1))?, number(ctx.arg(index + 2))?));
                index += 2;
            } else if may_store && is("STORE") && left >= 1 {
                options.stores = true;
                index += 1;
            } else if is("BY") && left >= 1 {
                let by = ctx.arg(index + 1);
                let constant = !text_of(by).contains(&b'*');
                if !constant && leaves_slot(ctx, by) {
                    return Err(BY_CROSSES);
                }
                if !constant && !reads_every_key(ctx) {
                    return Err(BY_DENIED);
                }
                // Once constant, a later pattern does not restore sorting.
                options.unsorted |= constant;
                options.by = Some(by);
                index += 1;
            } else if is("GET") && left >= 1 {
                if ctx.arg(index + 1) != b"#" && leaves_slot(ctx, ctx.arg(index + 1)) {
                    return Err(GET_CROSSES);
                }
                if !reads_every_key(ctx) {
                    return Err(GET_DENIED);
                }
                options.gets.push(Pattern::parse(ctx.arg(index + 1)));
                index += 1;
            } else {
                return Err(CommandError::SYNTAX);
            }
            index += 1;
        }
        Ok(options)
    }

    /// The elements that LIMIT asks for, out of `len`.
    fn window(&self, len: usize) -> Range<usize> {
        let (skipped, count) = self.limit.unwrap_or((0, -1));
        let start = usize::try_from(skipped).unwrap_or(0).min(len);
        // A negative count stands for all elements.
        let end = usize::try_from(count).map_or(len, |count| start.saturating_add(count).min(len));
        start..end
    }

    /// Returns `true` if patterns lead to other keys.
    fn reaches_further(&self) -> bool {
        let by = self.by.filter(|_| !self.unsorted).map(Pattern::parse);
        self.gets.iter().chain(&by).any(Pattern::leads_to_a_key)
    }

    /// An estimate of what sorting `len` elements takes, ns.
    fn cost_ns(&self, len: usize) -> u64 {
        let shown = self.window(len).len() as u64;
        let len = len as u64;
        let follow_get = shown * self.gets.iter().filter(|get| get.leads_to_a_key()).count() as u64;
        if self.unsorted {
            return shown * COPY_NS + follow_get * FOLLOW_NS;
        }
        let follow_by = if self.by.is_some() { len } else { 0 };
        let comparisons = len * u64::from(len.checked_ilog2().unwrap_or(0) + 1);
        len * COPY_NS + (follow_by + follow_get) * FOLLOW_NS + comparisons * COMPARE_NS
    }
}

const BY_CROSSES: CommandError = CommandError::constant(
    "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);
const GET_CROSSES: CommandError = CommandError::constant(
    "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);

/// Returns `true` if, in a cluster, keys that a pattern leads to may be in other slots than the sorted key.
fn leaves_slot(ctx: &Context<'_, '_>, pattern: &[u8]) -> bool {
    ctx.server.cluster.is_some() && slot_of_pattern(pattern) != Some(cluster_slot(ctx.arg(1)))
}

/// The reason why there is no result.
enum SortFailure {
    /// There never will be.
    Failed(CommandError),
    /// A slot was leased by another thread.
    Contended,
}

impl From<Contended> for SortFailure {
    fn from(Contended: Contended) -> Self {
        SortFailure::Contended
    }
}

impl From<CommandError> for SortFailure {
    fn from(error: CommandError) -> Self {
        SortFailure::Failed(error)
    }
}

fn sort_with(ctx: &mut Context<'_, '_>, may_store: bool) -> CommandResult {
    let mut options = Options::parse(ctx, may_store)?;
    let in_place_ns = ctx.in_place_ns();
    let source = match ctx.keys.read(0) {
        Some(entry) => Source::of(entry.value())?,
        None => Source::Nothing,
    };
    if options.unsorted
        && (options.stores || ctx.client.flags.contains(ClientFlags::SCRIPT))
        && matches!(source, Source::Set(_))
    {
        // A set has no order to stay in, and what is stored, or seen by a script, must not depend on chance.
        options.unsorted = false;
        options.alphabetical = true;
        options.by = None;
    }
    let len = source.len();
    let window = options.window(len);
    if options.cost_ns(len) > in_place_ns {
        if options.reaches_further() {
            ctx.leave_under_leases();
        } else {
            ctx.leave();
        }
        return Ok(());
    }
    let (elements, window) = match options.unsorted {
        true => {
            let elements = source.window(window, options.descending);
            let all = 0..elements.len();
            (elements, all)
        }
        false => (source.window(0..len, false), window),
    };
    match sort_elements(ctx, &options, &elements, window) {
        Ok(()) => Ok(()),
        Err(SortFailure::Failed(error)) => Err(error),
        Err(SortFailure::Contended) => {
            ctx.after = NextStep::Defer;
            Ok(())
        }
    }
}

fn sort_elements(
    ctx: &mut Context<'_, '_>,
    options: &Options<'_>,
    elements: &Elements,
    window: Range<usize>,
) -> Result<(), SortFailure> {
    let mut follower = PatternLookup {
        further: FurtherLeases::new(ctx.pass),
        hasher: &ctx.server.keyspace.hasher,
        name: Vec::new(),
        met_expired: false,
    };
    let mut order: Vec<usize> = (0..elements.len()).collect();
    if !options.unsorted {
        let weights = weigh(&mut ctx.keys, &mut follower, options, elements)?;
        order.sort_by(|one, other| {
            let ascending = weights.compare(elements, *one, *other, options.stores);
            if options.descending {
                ascending.reverse()
            } else {
                ascending
            }
        });
    }
    let chosen = order.get(window).unwrap_or_default();
    if options.stores {
        let result = gather(&mut ctx.keys, &mut follower, options, elements, chosen)?;
        let met_expired = follower.met_expired || follower.further.has_met_expired();
        drop(follower);
        if met_expired && ctx.keys.effects.is_logging() {
            log_result(ctx, &result);
        }
        store(ctx, &result);
        return Ok(());
    }
    ctx.reply.array(chosen.len() * options.gets.len().max(1));
    for index in chosen {
        let element = elements.at(*index);
        if options.gets.is_empty() {
            ctx.reply.bulk(element);
        }
        for get in &options.gets {
            show(ctx, &mut follower, get, element)?;
        }
    }
    Ok(())
}

/// Replies with what a GET finds for an element.
fn show(
    ctx: &mut Context<'_, '_>,
    follower: &mut PatternLookup<'_, '_>,
    get: &Pattern<'_>,
    element: &[u8],
) -> Result<(), SortFailure> {
    let Context {
        keys, reply, shared, ..
    } = ctx;
    match get {
        Pattern::Element => reply.bulk(element),
        Pattern::Nothing => reply.null(),
        Pattern::Key(key) if key.field.is_none() => {
            // Large strings are not copied.
            match follower.entry(keys, key, element)? {
                Some(entry) => bulk_of(reply, shared, entry).unwrap_or_else(|_| reply.null()),
                None => reply.null(),
            }
        }
        Pattern::Key(key) => follower.follow(keys, key, element, |found| match found {
            Some(Element::Int(number)) => reply.bulk_integer(number),
            Some(Element::Bytes(bytes)) => reply.bulk(bytes),
            None => reply.null(),
        })?,
    }
    Ok(())
}

/// Returns the elements of the list to store. A missing value of a GET is an empty string there.
fn gather(
    keys: &mut Keys<'_, '_>,
    follower: &mut PatternLookup<'_, '_>,
    options: &Options<'_>,
    elements: &Elements,
    chosen: &[usize],
) -> Result<Elements, SortFailure> {
    let mut result = Elements::default();
    for index in chosen {
        let element = elements.at(*index);
        if options.gets.is_empty() {
            result.push(Element::Bytes(element));
        }
        for get in &options.gets {
            match get {
                Pattern::Element => result.push(Element::Bytes(element)),
                Pattern::Nothing => result.push(Element::Bytes(b"")),
                Pattern::Key(key) => follower.follow(keys, key, element, |found| {
                    result.push(found.unwrap_or(Element::Bytes(b"")));
                })?,
            }
        }
    }
    Ok(result)
}

/// Stores the result in the last key of the plan, which is the destination.
fn store(ctx: &mut Context<'_, '_>, result: &Elements) {
    let rules = ListSettings::of(&ctx.server.config);
    let destination = ctx.keys.len() - 1;
    let mut key = ctx.keys.write(destination);
    if result.len() > 0 {
        stored::replace(&mut key, result.iter(), rules);
        key.changed_times(Event::list("sortstore"), result.len() as u64);
    } else if key.delete() {
        key.changed(Event::generic("del"));
    }
    ctx.reply.integer(result.len() as i64);
}

/// Propagates the stored result instead of the command: keys behind its patterns had expired, and still exist on
/// replicas.
fn log_result(ctx: &mut Context<'_, '_>, result: &Elements) {
    let keys = &mut ctx.keys;
    let destination = keys.name(keys.len() - 1);
    keys.effects.log_also(keys.db, &[b"DEL", destination]);
    let mut words: Vec<&[u8]> = vec![b"RPUSH", destination];
    let mut bytes = 0;
    for element in result.iter() {
        words.push(element);
        bytes += element.len();
        if words.len() >= LOGGED_WORDS || bytes >= LOGGED_BYTES {
            keys.effects.log_also(keys.db, &words);
            words.truncate(2);
            bytes = 0;
        }
    }
    if words.len() > 2 {
        keys.effects.log_also(keys.db, &words);
    }
    keys.effects.log_nothing();
}

/// Looks up what patterns lead to.
struct PatternLookup<'a, 'p> {
    further: FurtherLeases<'a, 'p>,
    hasher: &'a KeyHasher,
    /// The name of the key that was looked up last.
    name: Vec<u8>,
    /// A field that a pattern led to had expired.
    met_expired: bool,
}

impl PatternLookup<'_, '_> {
    /// The entry of the key that a pattern makes of an element.
    fn entry<'k>(
        &'k mut self,
        keys: &'k mut Keys<'_, '_>,
        key: &pattern::KeyPattern<'_>,
        element: &[u8],
    ) -> Result<Option<weft_table::EntryRef<'k, weft_values::Value>>, Contended> {
        key.name_for(element, &mut self.name);
        keys.read_undeclared(&mut self.further, self.hasher.hash(&self.name), &self.name)
    }

    /// Runs `show` on the string, or the field of a hash, that a pattern leads to.
    fn follow<R>(
        &mut self,
        keys: &mut Keys<'_, '_>,
        key: &pattern::KeyPattern<'_>,
        element: &[u8],
        show: impl FnOnce(Option<Element<'_>>) -> R,
    ) -> Result<R, Contended> {
        let now_ms = keys.context.now_ms;
        let value = self.entry(keys, key, element)?.map(|entry| entry.value());
        let mut met_expired = false;
        let shown = match (value, key.field) {
            (Some(value), Some(field)) => {
                let hash = hash_of_value(value).ok();
                let found = hash.and_then(|hash| hash.value(field, now_ms));
                met_expired = found.is_none() && hash.is_some_and(|hash| hash.value(field, 0).is_some());
                show(found)
            }
            (Some(ValueRef::Int(number)), None) => show(Some(Element::Int(number))),
            (Some(ValueRef::Bytes(bytes)), None) => show(Some(Element::Bytes(bytes))),
            (Some(ValueRef::Blob(blob)), None) => show(Some(Element::Bytes(blob))),
            (Some(ValueRef::Packed(_) | ValueRef::Object(_)) | None, _) => show(None),
        };
        self.met_expired |= met_expired;
        Ok(shown)
    }
}

/// The values by which elements are compared.
enum Weights {
    /// Numbers; 0 where there is none.
    Numbers(Vec<f64>),
    /// Strings; an element without one comes first.
    Texts { texts: Elements, present: Vec<bool> },
    /// The elements themselves.
    Elements,
}

fn weigh(
    keys: &mut Keys<'_, '_>,
    follower: &mut PatternLookup<'_, '_>,
    options: &Options<'_>,
    elements: &Elements,
) -> Result<Weights, SortFailure> {
    // A stored result is the same on every server, whatever the locale.
    let collation = collation::current().filter(|_| options.alphabetical && !options.stores);
    // A pattern without a key, or for the element itself, keeps the order and is handled before.
    let key = match options.by.map(Pattern::parse) {
        Some(Pattern::Key(key)) => Some(key),
        Some(Pattern::Element | Pattern::Nothing) | None => None,
    };
    match (key, options.alphabetical) {
        (None, true) => Ok(match collation {
            None => Weights::Elements,
            Some(collation) => Weights::Texts {
                texts: collated(elements, &collation),
                present: vec![true; elements.len()],
            },
        }),
        (None, false) => {
            let numbers: Option<Vec<f64>> = elements.iter().map(number_of).collect();
            Ok(Weights::Numbers(numbers.ok_or(NOT_A_WEIGHT)?))
        }
        (Some(key), true) => {
            let (mut texts, mut present) = (Elements::default(), Vec::with_capacity(elements.len()));
            for element in elements.iter() {
                follower.follow(keys, &key, element, |found| {
                    present.push(found.is_some());
                    texts.push(found.unwrap_or(Element::Bytes(b"")));
                })?;
            }
            if let Some(collation) = collation {
                texts = collated(&texts, &collation);
            }
            Ok(Weights::Texts { texts, present })
        }
        (Some(key), false) => {
            let mut numbers = Vec::with_capacity(elements.len());
            for element in elements.iter() {
                let number = follower.follow(keys, &key, element, |found| match found {
                    None => Some(0.0),
                    Some(Element::Int(number)) => Some(number as f64),
                    Some(Element::Bytes(bytes)) => number_of(bytes),
                })?;
                numbers.push(number);
            }
            let numbers: Option<Vec<f64>> = numbers.into_iter().collect();
            Ok(Weights::Numbers(numbers.ok_or(NOT_A_WEIGHT)?))
        }
    }
}

/// Returns the bytes that stand for strings in comparisons in a locale.
fn collated(texts: &Elements, collation: &Collation) -> Elements {
    let mut keys = Elements::default();
    let mut key = Vec::new();
    for text in texts.iter() {
        key.clear();
        // A string ends at its first zero byte there.
        let text = CString::new(text_of(text)).unwrap_or_default();
        collation.append_sort_key(&text, &mut key);
        keys.push(Element::Bytes(&key));
    }
    keys
}

/// The number that a string is, up to a zero byte.
fn number_of(bytes: &[u8]) -> Option<f64> {
    parse_f64(text_of(bytes))
}

impl Weights {
    /// Compares two elements. What is stored is the same everywhere, so it is compared byte by byte.
    fn compare(&self, elements: &Elements, one: usize, other: usize, stores: bool) -> Ordering {
        let collate = |one: &[u8], other: &[u8]| match stores {
            true => one.cmp(other),
            false => text_of(one).cmp(text_of(other)),
        };
        match self {
            Weights::Numbers(numbers) => numbers[one]
                .partial_cmp(&numbers[other])
                .unwrap_or(Ordering::Equal)
                .then_with(|| elements.at(one).cmp(elements.at(other))),
            Weights::Texts { texts, present } => match (present[one], present[other]) {
                (true, true) => collate(texts.at(one), texts.at(other)),
                (one, other) => one.cmp(&other),
            },
            Weights::Elements => collate(elements.at(one), elements.at(other)),
        }
    }
}
