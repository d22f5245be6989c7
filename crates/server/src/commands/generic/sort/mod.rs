//! SORT and SORT_RO: the elements of a list, set or sorted set, in their own order or by values of other keys.
//!
//! 1. The options are parsed. Then the elements are copied: all of them or, if they keep their order, those of the
//!    window.
//! 2. BY: the weight of each is looked up through its pattern, or the element is its own weight.
//! 3. The elements are sorted, and LIMIT selects the window.
//! 4. GET: the reply or the stored list is built.
//!
//! Keys behind patterns are read under leases that the command takes while it runs (see
//! `keyspace/access/undeclared.rs`). It changes nothing before it has read everything, so it can start over when a slot
//! is refused. If it stores the result, it keeps these leases until it is logged.

mod elements;
mod order;
mod pattern;

use std::cmp::Ordering;
use std::ffi::CString;
use std::ops::Range;

use weft_reactor::Collation;
use weft_resp::number::{parse_f64, parse_i64};
use weft_table::ValueRef;
use weft_values::listpack::Element;

use crate::commands::context::{Binding, CommandResult, Context, leased, reply_bulk};
use crate::commands::error::CommandError;
use crate::commands::hash::fields::value_as_hash;
use crate::commands::list::stored;
use crate::commands::list::stored::ListSettings;
use crate::commands::permission::can_read_all_keys;
use crate::keyspace::access::{Contended, FurtherLeases, Keys};
use crate::keyspace::hash::KeyHasher;
use crate::net::client::ClientFlags;
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::runtime::process::collation;
use elements::{SortElements, SortSource};
use order::{prefix_of_text, sorted_window};
use pattern::{SortPattern, c_string_prefix};
use weft_base::SlotIndex;
use weft_base::slots::cluster_slot;
use weft_base::slots::slot_of_pattern;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("sort", leased(sort).with_undeclared_keys()),
    ("sort_ro", leased(sort_read_only).with_undeclared_keys()),
];

const NOT_A_WEIGHT: CommandError = CommandError::constant("ERR One or more scores can't be converted into double");

// Patterns may refer to any key.
const BY_DENIED: CommandError =
    CommandError::constant("ERR BY option of SORT denied due to insufficient ACL permissions.");
const GET_DENIED: CommandError =
    CommandError::constant("ERR GET option of SORT denied due to insufficient ACL permissions.");

/// The time to copy an element, in nanoseconds.
const COPY_NS: u64 = 60;
/// The time to follow a pattern, in nanoseconds.
const PATTERN_LOOKUP_NS: u64 = 400;
/// The maximum number of words of one logged command that stores a part of the result.
const MAX_LOGGED_ARGUMENTS: usize = 1024;
/// The size of elements in bytes after which such a command ends.
const MAX_LOGGED_BYTES: usize = 64 << 10;
/// The time of a comparison, in nanoseconds.
const COMPARE_NS: u64 = 15;

fn sort(ctx: &mut Context<'_, '_>) -> CommandResult {
    sort_with(ctx, true)
}

fn sort_read_only(ctx: &mut Context<'_, '_>) -> CommandResult {
    sort_with(ctx, false)
}

/// The options of a SORT.
#[derive(Debug, Default)]
struct SortOptions<'a> {
    is_descending: bool,
    is_alphabetical: bool,
    /// LIMIT: the number of elements to skip, and the number to return if not negative.
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    /// The pattern of BY is the same for all elements: they keep their order.
    is_unsorted: bool,
    get_patterns: Vec<SortPattern<'a>>,
    should_store: bool,
}

impl<'a> SortOptions<'a> {
    fn parse(ctx: &Context<'a, '_>, may_store: bool) -> Result<Self, CommandError> {
        let mut options = SortOptions::default();
        let mut index = 2;
        while index < ctx.argc() {
            let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
            let left = ctx.argc() - index - 1;
            if is("ASC") {
                options.is_descending = false;
            } else if is("DESC") {
                options.is_descending = true;
            } else if is("ALPHA") {
                options.is_alphabetical = true;
            } else if is("LIMIT") && left >= 2 {
                let number = |argument| parse_i64(argument).ok_or(CommandError::NOT_AN_INTEGER);
                options.limit = Some((number(ctx.arg(index + 1))?, number(ctx.arg(index + 2))?));
                index += 2;
            } else if may_store && is("STORE") && left >= 1 {
                options.should_store = true;
                index += 1;
            } else if is("BY") && left >= 1 {
                let by = ctx.arg(index + 1);
                let constant = !c_string_prefix(by).contains(&b'*');
                if !constant && may_leave_slot(ctx, by) {
                    return Err(BY_CROSS_SLOT);
                }
                if !constant && !can_read_all_keys(ctx) {
                    return Err(BY_DENIED);
                }
                // Once a pattern was constant, a later pattern does not restore sorting.
                options.is_unsorted |= constant;
                options.by = Some(by);
                index += 1;
            } else if is("GET") && left >= 1 {
                if ctx.arg(index + 1) != b"#" && may_leave_slot(ctx, ctx.arg(index + 1)) {
                    return Err(GET_CROSS_SLOT);
                }
                if !can_read_all_keys(ctx) {
                    return Err(GET_DENIED);
                }
                options.get_patterns.push(SortPattern::parse(ctx.arg(index + 1)));
                index += 1;
            } else {
                return Err(CommandError::SYNTAX);
            }
            index += 1;
        }
        Ok(options)
    }

    /// Returns the range of elements selected by LIMIT, out of `len`.
    fn limit_range(&self, len: usize) -> Range<usize> {
        let (skipped, count) = self.limit.unwrap_or((0, -1));
        let start = usize::try_from(skipped).unwrap_or(0).min(len);
        // A negative count stands for all elements.
        let end = usize::try_from(count).map_or(len, |count| start.saturating_add(count).min(len));
        start..end
    }

    /// Returns `true` if patterns refer to other keys.
    fn has_key_patterns(&self) -> bool {
        let by = self.by.filter(|_| !self.is_unsorted).map(SortPattern::parse);
        self.get_patterns.iter().chain(&by).any(SortPattern::has_key)
    }

    /// Estimates the time to sort `len` elements, in nanoseconds.
    fn cost_ns(&self, len: usize) -> u64 {
        let shown = self.limit_range(len).len() as u64;
        let len = len as u64;
        let follow_get = shown * self.get_patterns.iter().filter(|get| get.has_key()).count() as u64;
        if self.is_unsorted {
            return shown * COPY_NS + follow_get * PATTERN_LOOKUP_NS;
        }
        let follow_by = if self.by.is_some() { len } else { 0 };
        let comparisons = len * u64::from(len.checked_ilog2().unwrap_or(0) + 1);
        len * COPY_NS + (follow_by + follow_get) * PATTERN_LOOKUP_NS + comparisons * COMPARE_NS
    }
}

const BY_CROSS_SLOT: CommandError = CommandError::constant(
    "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);
const GET_CROSS_SLOT: CommandError = CommandError::constant(
    "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);

/// Returns `true` if, in a cluster, keys of a pattern may be in other slots than the sorted key.
fn may_leave_slot(ctx: &Context<'_, '_>, pattern: &[u8]) -> bool {
    ctx.server.cluster.is_some() && slot_of_pattern(pattern) != Some(cluster_slot(ctx.arg(1)))
}

/// The reason why there is no result.
enum SortError {
    /// The command is invalid.
    Command(CommandError),
    /// This slot was leased by another thread.
    Contended(SlotIndex),
}

impl From<Contended> for SortError {
    fn from(Contended(slot): Contended) -> Self {
        SortError::Contended(slot)
    }
}

impl From<CommandError> for SortError {
    fn from(error: CommandError) -> Self {
        SortError::Command(error)
    }
}

fn sort_with(ctx: &mut Context<'_, '_>, may_store: bool) -> CommandResult {
    let mut options = SortOptions::parse(ctx, may_store)?;
    let in_place_ns = ctx.max_worker_ns();
    let source = match ctx.keys.read(0) {
        Some(entry) => SortSource::from_value(entry.value())?,
        None => SortSource::Missing,
    };
    if options.is_unsorted
        && (options.should_store || ctx.client.flags.contains(ClientFlags::SCRIPT))
        && matches!(source, SortSource::Set(_))
    {
        // A set has no order to preserve, and the result must be deterministic if it is stored or read by a script.
        options.is_unsorted = false;
        options.is_alphabetical = true;
        options.by = None;
    }
    let len = source.len();
    let window = options.limit_range(len);
    if options.cost_ns(len) > in_place_ns {
        if options.has_key_patterns() {
            ctx.detach_under_leases();
        } else {
            ctx.detach();
        }
        return Ok(());
    }
    let (elements, window) = match options.is_unsorted {
        true => {
            let elements = source.copy_range(window, options.is_descending);
            let all = 0..elements.len();
            (elements, all)
        }
        false => (source.copy_range(0..len, false), window),
    };
    match sort_elements(ctx, &options, &elements, window) {
        Ok(()) => Ok(()),
        Err(SortError::Command(error)) => Err(error),
        Err(SortError::Contended(slot)) => {
            ctx.defer_until_free(slot);
            Ok(())
        }
    }
}

fn sort_elements(
    ctx: &mut Context<'_, '_>,
    options: &SortOptions<'_>,
    elements: &SortElements,
    window: Range<usize>,
) -> Result<(), SortError> {
    let mut follower = PatternLookup {
        leases: FurtherLeases::new(ctx.pass),
        hasher: &ctx.server.keyspace.hasher,
        name: Vec::new(),
        found_expired: false,
    };
    let chosen: Vec<usize> = match options.is_unsorted {
        true => window.collect(),
        false => {
            let weights = compute_weights(&mut ctx.keys, &mut follower, options, elements)?;
            sorted_window(
                elements.len(),
                window,
                options.is_descending,
                |index| weights.prefix(elements, index, options.should_store),
                |one, other| weights.compare(elements, one, other, options.should_store),
            )
        }
    };
    if options.should_store {
        let result = collect_stored_elements(&mut ctx.keys, &mut follower, options, elements, &chosen)?;
        let met_expired = follower.found_expired || follower.leases.has_met_expired();
        // The command is logged after this, and repeated with the values that the log has before it.
        ctx.further_leases = Some(Box::new(follower.leases));
        if met_expired && ctx.keys.effects.is_logging() {
            if result.len() > 0 {
                // An expired destination is deleted before the result is logged, not after it.
                drop(ctx.keys.write(ctx.keys.len() - 1));
            }
            propagate_result(ctx, &result);
        }
        store_result(ctx, &result);
        return Ok(());
    }
    ctx.reply.array(chosen.len() * options.get_patterns.len().max(1));
    for index in chosen {
        let element = elements.element(index);
        if options.get_patterns.is_empty() {
            ctx.reply.bulk(element);
        }
        for get in &options.get_patterns {
            reply_pattern_value(ctx, &mut follower, get, element)?;
        }
    }
    Ok(())
}

/// Replies with the value that a GET pattern finds for an element.
fn reply_pattern_value(
    ctx: &mut Context<'_, '_>,
    lookup: &mut PatternLookup<'_, '_>,
    get: &SortPattern<'_>,
    element: &[u8],
) -> Result<(), SortError> {
    let Context {
        keys, reply, shared, ..
    } = ctx;
    match get {
        SortPattern::Element => reply.bulk(element),
        SortPattern::Nothing => reply.null(),
        SortPattern::Key(key) if key.field.is_none() => {
            // Large strings are not copied.
            match lookup.entry(keys, key, element)? {
                Some(entry) => reply_bulk(reply, shared, entry).unwrap_or_else(|_| reply.null()),
                None => reply.null(),
            }
        }
        SortPattern::Key(key) => lookup.with_pattern_value(keys, key, element, |found| match found {
            Some(Element::Int(number)) => reply.bulk_integer(number),
            Some(Element::Bytes(bytes)) => reply.bulk(bytes),
            None => reply.null(),
        })?,
    }
    Ok(())
}

/// Returns the elements of the list to store. A missing value of a GET is an empty string there.
fn collect_stored_elements(
    keys: &mut Keys<'_, '_>,
    lookup: &mut PatternLookup<'_, '_>,
    options: &SortOptions<'_>,
    elements: &SortElements,
    order: &[usize],
) -> Result<SortElements, SortError> {
    let mut result = SortElements::default();
    for index in order {
        let element = elements.element(*index);
        if options.get_patterns.is_empty() {
            result.push(Element::Bytes(element));
        }
        for get in &options.get_patterns {
            match get {
                SortPattern::Element => result.push(Element::Bytes(element)),
                SortPattern::Nothing => result.push(Element::Bytes(b"")),
                SortPattern::Key(key) => lookup.with_pattern_value(keys, key, element, |found| {
                    result.push(found.unwrap_or(Element::Bytes(b"")));
                })?,
            }
        }
    }
    Ok(result)
}

/// Stores the result in the last key of the plan, which is the destination.
fn store_result(ctx: &mut Context<'_, '_>, result: &SortElements) {
    let rules = ListSettings::from_config(&ctx.server.config);
    let destination = ctx.keys.len() - 1;
    let mut key = ctx.keys.write_destination(destination, result.len() == 0);
    if result.len() > 0 {
        stored::replace_list(&mut key, result.iter(), rules);
        key.changed_times(KeyspaceEvent::list("sortstore"), result.len() as u64);
    } else if key.delete() {
        key.changed(KeyspaceEvent::generic("del"));
    }
    ctx.reply.integer(result.len() as i64);
}

/// Propagates the stored result instead of the command: keys behind its patterns had expired, and still exist on
/// replicas.
fn propagate_result(ctx: &mut Context<'_, '_>, result: &SortElements) {
    let keys = &mut ctx.keys;
    let destination = keys.name(keys.len() - 1);
    keys.effects.log_also(keys.db, &[b"DEL", destination]);
    let mut words: Vec<&[u8]> = vec![b"RPUSH", destination];
    let mut bytes = 0;
    for element in result.iter() {
        words.push(element);
        bytes += element.len();
        if words.len() >= MAX_LOGGED_ARGUMENTS || bytes >= MAX_LOGGED_BYTES {
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

/// Looks up the keys of patterns.
struct PatternLookup<'a, 'p> {
    leases: FurtherLeases<'a, 'p>,
    hasher: &'a KeyHasher,
    /// The name of the key that was looked up last.
    name: Vec<u8>,
    /// A field that a pattern refers to has expired.
    found_expired: bool,
}

impl PatternLookup<'_, '_> {
    /// Returns the entry of the key that a pattern yields for an element.
    fn entry<'k>(
        &'k mut self,
        keys: &'k mut Keys<'_, '_>,
        key: &pattern::SortKeyPattern<'_>,
        element: &[u8],
    ) -> Result<Option<weft_table::EntryRef<'k, weft_values::Value>>, Contended> {
        key.write_key_name(element, &mut self.name);
        keys.read_undeclared(&mut self.leases, self.hasher.hash(&self.name), &self.name)
    }

    /// Runs `visit` on the string, or the field of a hash, to which a pattern refers.
    fn with_pattern_value<R>(
        &mut self,
        keys: &mut Keys<'_, '_>,
        key: &pattern::SortKeyPattern<'_>,
        element: &[u8],
        visit: impl FnOnce(Option<Element<'_>>) -> R,
    ) -> Result<R, Contended> {
        let now_ms = keys.context.now_ms;
        let value = self.entry(keys, key, element)?.map(|entry| entry.value());
        let mut met_expired = false;
        let shown = match (value, key.field) {
            (Some(value), Some(field)) => {
                let hash = value_as_hash(value).ok();
                let found = hash.and_then(|hash| hash.value(field, now_ms));
                met_expired = found.is_none() && hash.is_some_and(|hash| hash.value(field, 0).is_some());
                visit(found)
            }
            (Some(ValueRef::Int(number)), None) => visit(Some(Element::Int(number))),
            (Some(ValueRef::Bytes(bytes)), None) => visit(Some(Element::Bytes(bytes))),
            (Some(ValueRef::Blob(blob)), None) => visit(Some(Element::Bytes(blob))),
            (Some(ValueRef::Packed(_) | ValueRef::Object(_)) | None, _) => visit(None),
        };
        self.found_expired |= met_expired;
        Ok(shown)
    }
}

/// The values by which elements are compared.
enum SortWeights {
    /// Numbers; 0 for a missing value.
    Numbers(Vec<f64>),
    /// Strings; an element without one comes first.
    Texts { texts: SortElements, present: Vec<bool> },
    /// The elements themselves.
    Elements,
}

fn compute_weights(
    keys: &mut Keys<'_, '_>,
    lookup: &mut PatternLookup<'_, '_>,
    options: &SortOptions<'_>,
    elements: &SortElements,
) -> Result<SortWeights, SortError> {
    // A stored result is the same on every server, regardless of the locale.
    let collation = collation::current().filter(|_| options.is_alphabetical && !options.should_store);
    // A pattern without a key, or for the element itself, keeps the order and has been handled before.
    let key = match options.by.map(SortPattern::parse) {
        Some(SortPattern::Key(key)) => Some(key),
        Some(SortPattern::Element | SortPattern::Nothing) | None => None,
    };
    match (key, options.is_alphabetical) {
        (None, true) => Ok(match collation {
            None => SortWeights::Elements,
            Some(collation) => SortWeights::Texts {
                texts: collation_keys(elements, &collation),
                present: vec![true; elements.len()],
            },
        }),
        (None, false) => {
            let numbers: Option<Vec<f64>> = elements.iter().map(parse_weight).collect();
            Ok(SortWeights::Numbers(numbers.ok_or(NOT_A_WEIGHT)?))
        }
        (Some(key), true) => {
            let (mut texts, mut present) = (SortElements::default(), Vec::with_capacity(elements.len()));
            for element in elements.iter() {
                lookup.with_pattern_value(keys, &key, element, |found| {
                    present.push(found.is_some());
                    texts.push(found.unwrap_or(Element::Bytes(b"")));
                })?;
            }
            if let Some(collation) = collation {
                texts = collation_keys(&texts, &collation);
            }
            Ok(SortWeights::Texts { texts, present })
        }
        (Some(key), false) => {
            let mut numbers = Vec::with_capacity(elements.len());
            for element in elements.iter() {
                let number = lookup.with_pattern_value(keys, &key, element, |found| match found {
                    None => Some(0.0),
                    Some(Element::Int(number)) => Some(number as f64),
                    Some(Element::Bytes(bytes)) => parse_weight(bytes),
                })?;
                numbers.push(number);
            }
            let numbers: Option<Vec<f64>> = numbers.into_iter().collect();
            Ok(SortWeights::Numbers(numbers.ok_or(NOT_A_WEIGHT)?))
        }
    }
}

/// Returns the keys by which strings compare in a locale.
fn collation_keys(texts: &SortElements, collation: &Collation) -> SortElements {
    let mut keys = SortElements::default();
    let mut key = Vec::new();
    for text in texts.iter() {
        key.clear();
        // The locale's comparison ends a string at its first zero byte.
        let text = CString::new(c_string_prefix(text)).unwrap_or_default();
        collation.append_sort_key(&text, &mut key);
        keys.push(Element::Bytes(&key));
    }
    keys
}

/// Parses a number, up to a zero byte.
fn parse_weight(bytes: &[u8]) -> Option<f64> {
    parse_f64(c_string_prefix(bytes))
}

impl SortWeights {
    /// Returns a number that is smaller for the first of two elements, unless it is equal.
    fn prefix(&self, elements: &SortElements, index: usize, is_stored: bool) -> u64 {
        let of_text = |text| match is_stored {
            true => prefix_of_text(text),
            false => prefix_of_text(c_string_prefix(text)),
        };
        match self {
            SortWeights::Numbers(_) => 0,
            // The text of an element without one is empty.
            SortWeights::Texts { texts, .. } => of_text(texts.element(index)),
            SortWeights::Elements => of_text(elements.element(index)),
        }
    }

    /// Compares two elements. Stored results are the same everywhere, so their elements are compared byte by byte.
    fn compare(&self, elements: &SortElements, first: usize, second: usize, is_stored: bool) -> Ordering {
        let collate = |one: &[u8], other: &[u8]| match is_stored {
            true => one.cmp(other),
            false => c_string_prefix(one).cmp(c_string_prefix(other)),
        };
        match self {
            SortWeights::Numbers(numbers) => numbers[first]
                .partial_cmp(&numbers[second])
                .unwrap_or(Ordering::Equal)
                .then_with(|| elements.element(first).cmp(elements.element(second))),
            SortWeights::Texts { texts, present } => match (present[first], present[second]) {
                (true, true) => collate(texts.element(first), texts.element(second)),
                (one, other) => one.cmp(&other),
            },
            SortWeights::Elements => collate(elements.element(first), elements.element(second)),
        }
    }
}
