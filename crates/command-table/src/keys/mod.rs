//! The key walker: finds the arguments of a command that are keys, and the use that the command makes of each.
//!
//! There is one walker, so prefetching, leases, cluster redirects, ACL rules, client-side caching and COMMAND GETKEYS
//! cannot disagree. It needs only the metadata row and the arguments, and allocates no memory. It has four cases, named
//! by [`KeyShape`], which is precomputed in the row:
//!
//! ```text
//! None      PING                 nothing to do
//! One       GET k                one argument; for SET and BITFIELD its flags depend on the options
//! Range     MSET k v k v         first, last, step
//! Complex   everything else      1. turn each key spec into a range of arguments
//!                                2. if one cannot be: run the command's own procedure instead (`SpecialKeys`)
//!                                3. visit
//! ```
//!
//! A malformed command has no keys here: step 1 ends before step 3 begins, so the walker visits no key of an earlier
//! spec if a later one fails. The handler reports the error and accesses no key.

use crate::spec::{BeginSearch, CommandSpec, FindKeys, KeyFlags, KeyShape, KeySpec, ModuleKeys, SpecialKeys};

/// The words of a request; the first is the command's name.
#[allow(clippy::len_without_is_empty, reason = "a request has at least one word")]
pub trait CommandArguments {
    /// Returns the number of words.
    fn len(&self) -> usize;

    /// Returns the word at `index`; empty if there are fewer words.
    fn arg(&self, index: usize) -> &[u8];
}

impl<Word: AsRef<[u8]>> CommandArguments for [Word] {
    fn len(&self) -> usize {
        <[Word]>::len(self)
    }

    fn arg(&self, index: usize) -> &[u8] {
        self.get(index).map_or(&[], AsRef::as_ref)
    }
}

impl CommandArguments for weft_resp::Args<'_> {
    #[inline]
    fn len(&self) -> usize {
        weft_resp::Args::len(*self)
    }

    #[inline]
    fn arg(&self, index: usize) -> &[u8] {
        self.argument(index)
    }
}

/// One key among the arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPosition {
    /// The index of the argument that is the key.
    pub index: usize,
    /// The use of the key.
    pub flags: KeyFlags,
}

/// Visits every key among `args` in the order of the key specs, and returns their number.
///
/// Returns 0 for a command without keys and for malformed arguments.
#[inline]
pub fn walk_keys<Args: CommandArguments + ?Sized>(
    spec: &CommandSpec,
    args: &Args,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    match spec.key_shape {
        KeyShape::None => 0,
        KeyShape::One { index, flags } => {
            let index = usize::from(index);
            if index >= args.len() {
                return 0;
            }
            let flags = if flags.contains(KeyFlags::VARIABLE_FLAGS) {
                option_dependent_flags(spec.special_keys, args)
            } else {
                flags
            };
            visit(KeyPosition { index, flags });
            1
        }
        KeyShape::Range {
            first,
            last,
            step,
            flags,
        } => {
            let count = args.len() as i64;
            let (first, last) = (i64::from(first), i64::from(last));
            let last = if last >= 0 { first + last } else { count + last };
            if first >= count || last >= count || last < first {
                return 0;
            }
            KeyRange {
                first: first as usize,
                last: last as usize,
                step: usize::from(step),
                flags,
            }
            .visit(visit)
        }
        KeyShape::Complex => walk_specs(spec, args, false, visit),
    }
}

/// Like [`walk_keys`], but also visits words that are routed like keys without being keys ([`KeyFlags::NOT_KEY`]).
///
/// Cluster redirects need it: a shard channel belongs to a slot as a key does.
pub fn walk_routed_arguments<Args: CommandArguments + ?Sized>(
    spec: &CommandSpec,
    args: &Args,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    match spec.key_shape {
        KeyShape::Complex => walk_specs(spec, args, true, visit),
        _ => walk_keys(spec, args, visit),
    }
}

/// The largest number of key specs that a command of the tables may have.
pub const MAX_KEY_SPECS: usize = 4;

/// Equally spaced keys with the same flags.
#[derive(Clone, Copy)]
struct KeyRange {
    first: usize,
    last: usize,
    step: usize,
    flags: KeyFlags,
}

impl KeyRange {
    const NONE: KeyRange = KeyRange {
        first: 1,
        last: 0,
        step: 1,
        flags: KeyFlags::empty(),
    };

    fn visit(self, visit: &mut impl FnMut(KeyPosition)) -> usize {
        debug_assert!(self.step > 0, "the keys of a range are apart");
        let mut count = 0;
        let mut index = self.first;
        while index <= self.last {
            visit(KeyPosition {
                index,
                flags: self.flags,
            });
            count += 1;
            index += self.step;
        }
        count
    }
}

/// The error that a key spec does not describe these arguments completely.
struct KeySpecError;

#[inline(never)]
fn walk_specs<Args: CommandArguments + ?Sized>(
    spec: &CommandSpec,
    args: &Args,
    includes_not_keys: bool,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    match spec.special_keys {
        SpecialKeys::GeoRadius => return walk_georadius(args, visit),
        SpecialKeys::Module(finder) if are_specs_unreliable(spec) => {
            if let Some(count) = walk_found(finder, args, visit) {
                return count;
            }
        }
        _ => {}
    }
    if spec.key_specs.len() > MAX_KEY_SPECS {
        return walk_many_specs(spec, args, includes_not_keys, visit);
    }
    let mut ranges = [KeyRange::NONE; MAX_KEY_SPECS];
    for (range, key_spec) in ranges.iter_mut().zip(spec.key_specs) {
        if key_spec.flags.contains(KeyFlags::NOT_KEY) && !includes_not_keys {
            continue;
        }
        match locate_keys(key_spec, args) {
            Ok(located) => *range = located,
            Err(KeySpecError) => return walk_special(spec.special_keys, args, visit),
        }
    }
    let located = ranges.iter().take(spec.key_specs.len());
    located.map(|range| range.visit(visit)).sum()
}

/// Like [`walk_specs`] for more specs than fit on the stack, which only modules have.
#[cold]
fn walk_many_specs<Args: CommandArguments + ?Sized>(
    spec: &CommandSpec,
    args: &Args,
    includes_not_keys: bool,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    let is_walked = |key_spec: &&KeySpec| includes_not_keys || !key_spec.flags.contains(KeyFlags::NOT_KEY);
    let walked = spec.key_specs.iter().filter(is_walked);
    let located: Result<Vec<KeyRange>, KeySpecError> = walked.map(|key_spec| locate_keys(key_spec, args)).collect();
    match located {
        Ok(ranges) => ranges.into_iter().map(|range| range.visit(visit)).sum(),
        Err(KeySpecError) => walk_special(spec.special_keys, args, visit),
    }
}

/// Returns `true` if the procedure of a module command knows more than its key specs: they name no key, or do not say
/// how a key is used.
fn are_specs_unreliable(spec: &CommandSpec) -> bool {
    let mut all = spec.key_specs.iter().map(|spec| spec.flags);
    all.clone().all(|flags| flags.contains(KeyFlags::NOT_KEY))
        || all.any(|flags| flags.contains(KeyFlags::VARIABLE_FLAGS))
}

/// Visits the keys that a module's function finds. Returns `None` if this thread may not call it.
fn walk_found<Args: CommandArguments + ?Sized>(
    finder: ModuleKeys,
    args: &Args,
    visit: &mut impl FnMut(KeyPosition),
) -> Option<usize> {
    let words: Vec<&[u8]> = (0..args.len()).map(|index| args.arg(index)).collect();
    let found = finder.0.find_keys(&words)?;
    // The module may name any positions.
    let is_argument = |(index, _): &(usize, KeyFlags)| (1..args.len()).contains(index);
    let keys = found.into_iter().filter(is_argument);
    Some(keys.map(|(index, flags)| visit(KeyPosition { index, flags })).count())
}

/// Returns the arguments that `spec` describes. The range is empty if the keyword is missing, or if the spec extends to
/// the end and no argument is left. (PFMERGE without sources still creates its destination, which must be leased and
/// permitted. Valkey's walker finds no key in this case.)
fn locate_keys<Args: CommandArguments + ?Sized>(spec: &KeySpec, args: &Args) -> Result<KeyRange, KeySpecError> {
    let count = args.len() as i64;
    let begin = match spec.begin {
        BeginSearch::Index(index) => i64::from(index),
        BeginSearch::Keyword { keyword, start_from } => {
            match find_keyword(keyword.as_bytes(), i64::from(start_from), args) {
                Some(begin) => begin,
                None => return Ok(KeyRange::NONE),
            }
        }
        BeginSearch::Unknown => return Err(KeySpecError),
    };
    let (first, last, step) = match spec.find {
        FindKeys::Range { last: ..0, .. } if begin == count => return Ok(KeyRange::NONE),
        FindKeys::Range { last, step, limit } => (begin, last_key(begin, last, limit, count), step),
        FindKeys::KeyNum { index, first, step } => {
            let number = usize::try_from(begin + i64::from(index)).map_err(|_| KeySpecError)?;
            let key_count = parse_strict_integer(args.arg(number)).ok_or(KeySpecError)?;
            let first = begin + i64::from(first);
            let span = key_count.checked_mul(i64::from(step)).ok_or(KeySpecError)?;
            (first, first.saturating_add(span).saturating_sub(i64::from(step)), step)
        }
        FindKeys::Unknown => return Err(KeySpecError),
    };
    if first < 1 || first >= count || last < first || last >= count || spec.flags.contains(KeyFlags::INCOMPLETE) {
        return Err(KeySpecError);
    }
    Ok(KeyRange {
        first: first as usize,
        last: last as usize,
        step: step.max(1) as usize,
        flags: spec.flags,
    })
}

/// Returns the last key of a range, which may be outside the arguments.
fn last_key(begin: i64, last: i32, limit: i32, count: i64) -> i64 {
    let last = i64::from(last);
    match (last, limit) {
        (0.., _) => begin + last,
        (_, 0) => count + last,
        (_, limit) => begin + (count - begin) / i64::from(limit) + last,
    }
}

/// Returns the argument after `keyword`. A keyword that is the last argument does not count.
fn find_keyword<Args: CommandArguments + ?Sized>(keyword: &[u8], start_from: i64, args: &Args) -> Option<i64> {
    let count = args.len() as i64;
    let is_keyword = |index: &i64| args.arg(*index as usize).eq_ignore_ascii_case(keyword);
    let found = if start_from > 0 {
        (start_from..count - 1).find(is_keyword)
    } else {
        (2..=count + start_from).rev().find(is_keyword)
    };
    found.map(|index| index + 1)
}

/// Parses a decimal integer without sign, leading zeros or surrounding characters.
fn parse_strict_integer(word: &[u8]) -> Option<i64> {
    if word.is_empty() || word.len() > 19 || (word[0] == b'0' && word.len() > 1) {
        return None;
    }
    word.iter().try_fold(0_i64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses the decimal integer that `word` begins with. Returns `None` if it does not begin with a digit or the number
/// is too large.
fn parse_leading_integer(word: &[u8]) -> Option<i64> {
    let digits = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&word[..digits]).ok()?.parse().ok()
}

/// Returns the use of a command's only key, which depends on the options.
fn option_dependent_flags<Args: CommandArguments + ?Sized>(special: SpecialKeys, args: &Args) -> KeyFlags {
    const READ: KeyFlags = KeyFlags::of(&[KeyFlags::RO, KeyFlags::ACCESS]);
    const READ_AND_UPDATE: KeyFlags = KeyFlags::of(&[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE]);
    const OVERWRITE: KeyFlags = KeyFlags::of(&[KeyFlags::OW, KeyFlags::UPDATE]);
    match special {
        SpecialKeys::Set => {
            let returns_old_value = (3..args.len()).any(|index| args.arg(index).eq_ignore_ascii_case(b"get"));
            if returns_old_value { READ_AND_UPDATE } else { OVERWRITE }
        }
        SpecialKeys::BitField if is_read_only_bitfield(args) => READ,
        _ => READ_AND_UPDATE,
    }
}

/// Returns `true` if every operation of a BITFIELD is a GET. A malformed operation counts as a write.
fn is_read_only_bitfield<Args: CommandArguments + ?Sized>(args: &Args) -> bool {
    let mut index = 2;
    while index < args.len() {
        let word = args.arg(index);
        let words_after = args.len() - index - 1;
        if word.eq_ignore_ascii_case(b"get") && words_after >= 2 {
            index += 3;
        } else if word.eq_ignore_ascii_case(b"overflow") && words_after >= 1 {
            index += 2;
        } else {
            return false;
        }
    }
    true
}

fn walk_special<Args: CommandArguments + ?Sized>(
    special: SpecialKeys,
    args: &Args,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    match special {
        SpecialKeys::Sort => walk_sort(args, true, visit),
        SpecialKeys::SortReadOnly => walk_sort(args, false, visit),
        SpecialKeys::Migrate => walk_migrate(args, visit),
        SpecialKeys::GeoRadius => walk_georadius(args, visit),
        SpecialKeys::Counted(count) => walk_counted(args, count, visit),
        SpecialKeys::CountedAndStored => walk_counted_and_stored(args, visit),
        SpecialKeys::Module(finder) => walk_found(finder, args, visit).unwrap_or(0),
        SpecialKeys::None | SpecialKeys::Set | SpecialKeys::BitField => 0,
    }
}

/// Visits the key that is sorted, then the destination. Of several STORE options the last one counts.
fn walk_sort<Args: CommandArguments + ?Sized>(
    args: &Args,
    allows_store: bool,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    if args.len() < 2 {
        return 0;
    }
    visit(KeyPosition {
        index: 1,
        flags: KeyFlags::RO.union(KeyFlags::ACCESS),
    });
    let mut destination = None;
    let mut index = 2;
    while allows_store && index < args.len() {
        let is = |option: &[u8]| args.arg(index).eq_ignore_ascii_case(option);
        let values = if is(b"limit") {
            2
        } else if is(b"get") || is(b"by") {
            1
        } else if is(b"store") && index + 1 < args.len() {
            destination = Some(index + 1);
            1
        } else {
            0
        };
        index += 1 + values;
    }
    let Some(index) = destination else { return 1 };
    visit(KeyPosition {
        index,
        flags: KeyFlags::OW.union(KeyFlags::UPDATE),
    });
    2
}

/// Visits the third argument, or, if it is empty, everything after KEYS.
fn walk_migrate<Args: CommandArguments + ?Sized>(args: &Args, visit: &mut impl FnMut(KeyPosition)) -> usize {
    const FLAGS: KeyFlags = KeyFlags::of(&[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE]);
    let count = args.len();
    if count < 6 {
        return 0;
    }
    let mut index = 6;
    while index < count {
        let is = |option: &[u8]| args.arg(index).eq_ignore_ascii_case(option);
        if is(b"keys") {
            if !args.arg(3).is_empty() || index + 1 >= count {
                return 0;
            }
            return KeyRange {
                first: index + 1,
                last: count - 1,
                step: 1,
                flags: FLAGS,
            }
            .visit(visit);
        }
        let values = if is(b"auth") {
            1
        } else if is(b"auth2") {
            2
        } else {
            0
        };
        index += 1 + values;
    }
    visit(KeyPosition { index: 3, flags: FLAGS });
    1
}

/// Visits the index that is searched, then the destination. Of several STORE and STOREDIST options the last one counts.
fn walk_georadius<Args: CommandArguments + ?Sized>(args: &Args, visit: &mut impl FnMut(KeyPosition)) -> usize {
    if args.len() < 2 {
        return 0;
    }
    visit(KeyPosition {
        index: 1,
        flags: KeyFlags::RO.union(KeyFlags::ACCESS),
    });
    let mut destination = None;
    let mut index = 5;
    while index + 1 < args.len() {
        let word = args.arg(index);
        if word.eq_ignore_ascii_case(b"store") || word.eq_ignore_ascii_case(b"storedist") {
            index += 1;
            destination = Some(index);
        }
        index += 1;
    }
    let Some(index) = destination else { return 1 };
    visit(KeyPosition {
        index,
        flags: KeyFlags::OW.union(KeyFlags::UPDATE),
    });
    2
}

/// Visits keys that follow their number and may have other arguments behind them.
fn walk_counted<Args: CommandArguments + ?Sized>(
    args: &Args,
    count: usize,
    visit: &mut impl FnMut(KeyPosition),
) -> usize {
    let first = count + 1;
    let key_count = parse_leading_integer(args.arg(count)).and_then(|number| usize::try_from(number).ok());
    let Some(key_count @ 1..) = key_count else {
        return 0;
    };
    if key_count > args.len().saturating_sub(first) {
        return 0;
    }
    let last = first + key_count - 1;
    KeyRange {
        first,
        last,
        step: 1,
        flags: KeyFlags::empty(),
    }
    .visit(visit)
}

/// Like [`walk_counted`], then visits the destination.
fn walk_counted_and_stored<Args: CommandArguments + ?Sized>(args: &Args, visit: &mut impl FnMut(KeyPosition)) -> usize {
    let visited = walk_counted(args, 2, visit);
    if visited == 0 {
        return 0;
    }
    visit(KeyPosition {
        index: 1,
        flags: KeyFlags::empty(),
    });
    visited + 1
}

#[cfg(test)]
mod tests;
