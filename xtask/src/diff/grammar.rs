//! The grammar of generated commands: one table of commands and their arguments.

use fastrand::Rng;

use super::leeway::AllowedDifference;

/// A kind of argument.
#[derive(Clone, Copy, Debug)]
pub enum GrammarArgument {
    /// This literal word.
    Word(&'static str),
    /// One of a few keys.
    Key,
    /// A value: small numbers, short and long texts, or binary data.
    Value,
    /// A member of a collection: one of a few, so that collections share members.
    Member,
    /// An integer, sometimes at the ends of its range.
    Integer,
    /// A position in a string: small, of either sign.
    Index,
    /// A position to write to: small and not negative.
    Offset,
    /// A decimal fraction.
    Float,
    /// 0 or 1.
    Bit,
    /// A time to live in seconds that does not expire during the run, or has expired before.
    Seconds,
    /// The same as [`Seconds`], in milliseconds.
    Milliseconds,
    /// A Unix time in seconds, far in the future or in the past.
    UnixSeconds,
    /// The same as [`UnixSeconds`], in milliseconds.
    UnixMilliseconds,
    /// A BITFIELD type.
    FieldType,
    /// A BITFIELD offset.
    FieldOffset,
    /// A database number.
    Database,
    /// A glob pattern over the keys.
    Pattern,
    /// One of these sequences.
    OneOf(&'static [&'static [GrammarArgument]]),
    /// This sequence or nothing.
    Optional(&'static [GrammarArgument]),
    /// This sequence, repeated a random number of times between the two numbers.
    Repeat(usize, usize, &'static [GrammarArgument]),
    /// A count, then this sequence that number of times.
    Counted(&'static [GrammarArgument]),
}

use GrammarArgument::{
    Bit, Counted, Database, FieldOffset, FieldType, Float, Index, Integer, Key, Member, Milliseconds, Offset, OneOf,
    Optional, Pattern, Repeat, Seconds, UnixMilliseconds, UnixSeconds, Value, Word,
};

/// A command that can be generated.
#[derive(Debug)]
pub struct Production {
    /// The command's name.
    pub name: &'static str,
    /// The relative frequency of the command.
    pub weight: u32,
    /// The allowed differences in its reply.
    pub leeway: AllowedDifference,
    /// The arguments of the command.
    pub arguments: &'static [GrammarArgument],
}

const fn production(name: &'static str, weight: u32, arguments: &'static [GrammarArgument]) -> Production {
    production_with_leeway(name, weight, AllowedDifference::None, arguments)
}

const fn production_with_leeway(
    name: &'static str,
    weight: u32,
    leeway: AllowedDifference,
    arguments: &'static [GrammarArgument],
) -> Production {
    Production {
        name,
        weight,
        leeway,
        arguments,
    }
}

const EXPIRY: GrammarArgument = OneOf(&[
    &[],
    &[],
    &[Word("EX"), Seconds],
    &[Word("PX"), Milliseconds],
    &[Word("EXAT"), UnixSeconds],
    &[Word("PXAT"), UnixMilliseconds],
    &[Word("KEEPTTL")],
]);
/// An expiry for MSETEX. That command stores even values that have expired, and the time of their deletion is random.
const FUTURE_EXPIRY: GrammarArgument = OneOf(&[
    &[],
    &[],
    &[Word("EX"), Seconds],
    &[Word("PX"), Milliseconds],
    &[Word("EXAT"), Word("4000000000")],
    &[Word("PXAT"), Word("4000000000000")],
    &[Word("KEEPTTL")],
]);
const EXISTENCE: GrammarArgument = OneOf(&[&[], &[], &[Word("NX")], &[Word("XX")]]);
/// A comparison for absolute times only. For times to live, it is random which of two equal ones expires later.
const COMPARISON: GrammarArgument = OneOf(&[&[EXISTENCE], &[Word("GT")], &[Word("LT")], &[Word("XX"), Word("GT")]]);
const RANGE: GrammarArgument = OneOf(&[
    &[],
    &[Index],
    &[Index, Index],
    &[Index, Index, Word("BIT")],
    &[Index, Index, Word("BYTE")],
]);
const FIELD_GET: &[GrammarArgument] = &[Word("GET"), FieldType, FieldOffset];
const FIELD_OPERATION: GrammarArgument = OneOf(&[
    FIELD_GET,
    &[Word("SET"), FieldType, FieldOffset, Integer],
    &[Word("INCRBY"), FieldType, FieldOffset, Integer],
    &[Word("OVERFLOW"), Word("WRAP")],
    &[Word("OVERFLOW"), Word("SAT")],
    &[Word("OVERFLOW"), Word("FAIL")],
]);
const BIT_OPERATION: GrammarArgument = OneOf(&[&[Word("AND")], &[Word("OR")], &[Word("XOR")]]);

/// The commands. The usual weight is 10.
#[rustfmt::skip]
pub const PRODUCTIONS: &[Production] = &[
    production("APPEND", 10, &[Key, Value]),
    production("BITCOUNT", 10, &[Key, RANGE]),
    production("BITFIELD", 12, &[Key, Repeat(1, 4, &[FIELD_OPERATION])]),
    production("BITFIELD_RO", 4, &[Key, Repeat(0, 3, FIELD_GET)]),
    production("BITOP", 10, &[BIT_OPERATION, Key, Repeat(1, 3, &[Key])]),
    production("BITOP", 3, &[Word("NOT"), Key, Key]),
    production("BITPOS", 10, &[Key, Bit, RANGE]),
    production("COPY", 6, &[Key, Key, Optional(&[Word("DB"), Database]), Optional(&[Word("REPLACE")])]),
    production("DBSIZE", 3, &[]),
    production("DEBUG", 2, &[Word("DIGEST-VALUE"), Key]),
    production("DECR", 6, &[Key]),
    production("DECRBY", 6, &[Key, Integer]),
    production("DEL", 6, &[Repeat(1, 3, &[Key])]),
    production("DELIFEQ", 6, &[Key, Value]),
    production_with_leeway("DUMP", 2, AllowedDifference::Payload, &[Key]),
    production("ECHO", 1, &[Value]),
    production("EXISTS", 6, &[Repeat(1, 4, &[Key])]),
    production("EXPIRE", 8, &[Key, Seconds, EXISTENCE]),
    production("EXPIREAT", 5, &[Key, UnixSeconds, COMPARISON]),
    production_with_leeway("EXPIRETIME", 4, AllowedDifference::ExpirySeconds, &[Key]),
    production("FLUSHDB", 1, &[]),
    production("GET", 10, &[Key]),
    production("GETBIT", 6, &[Key, Offset]),
    production("GETDEL", 4, &[Key]),
    production("GETEX", 8, &[Key, EXPIRY]),
    production("GETEX", 2, &[Key, Word("PERSIST")]),
    production("GETRANGE", 8, &[Key, Index, Index]),
    production("GETSET", 4, &[Key, Value]),
    production("INCR", 6, &[Key]),
    production("INCRBY", 6, &[Key, Integer]),
    production("INCRBYFLOAT", 8, &[Key, Float]),
    production_with_leeway("KEYS", 4, AllowedDifference::Order, &[Pattern]),
    production("LCS", 4, &[Key, Key, Optional(&[Word("LEN")])]),
    production("LCS", 4, &[Key, Key, Word("IDX"), Optional(&[Word("MINMATCHLEN"), Index]),
                      Optional(&[Word("WITHMATCHLEN")])]),
    production("MGET", 6, &[Repeat(1, 5, &[Key])]),
    production("MOVE", 3, &[Key, Database]),
    production("MSET", 6, &[Repeat(1, 3, &[Key, Value])]),
    production("MSETEX", 6, &[Counted(&[Key, Value]), Optional(&[OneOf(&[&[Word("NX")], &[Word("XX")]])]),
                         FUTURE_EXPIRY]),
    production("MSETNX", 4, &[Repeat(1, 3, &[Key, Value])]),
    production("OBJECT", 8, &[Word("ENCODING"), Key]),
    // A large value that is being sent to the client counts as a reference.
    production_with_leeway("OBJECT", 1, AllowedDifference::Type, &[Word("REFCOUNT"), Key]),
    production("PERSIST", 4, &[Key]),
    production("PEXPIRE", 6, &[Key, Milliseconds, EXISTENCE]),
    production("PEXPIREAT", 4, &[Key, UnixMilliseconds, COMPARISON]),
    production_with_leeway("PEXPIRETIME", 4, AllowedDifference::ExpiryMilliseconds, &[Key]),
    production("PSETEX", 4, &[Key, Milliseconds, Value]),
    production_with_leeway("PTTL", 6, AllowedDifference::Milliseconds, &[Key]),
    production_with_leeway("RANDOMKEY", 1, AllowedDifference::RandomDraw("KEYS"), &[]),
    production("RENAME", 4, &[Key, Key]),
    production("RENAMENX", 4, &[Key, Key]),
    production("SADD", 20, &[Key, Repeat(1, 8, &[Member])]),
    production("SCARD", 4, &[Key]),
    production_with_leeway("SDIFF", 6, AllowedDifference::Order, &[Repeat(1, 4, &[Key])]),
    production("SDIFFSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    production("SELECT", 1, &[Database]),
    production("SET", 20, &[Key, Value, EXPIRY, Optional(&[Word("GET")]),
                       OneOf(&[&[], &[], &[Word("NX")], &[Word("XX")], &[Word("IFEQ"), Value]])]),
    production("SETBIT", 10, &[Key, Offset, Bit]),
    production("SETEX", 4, &[Key, Seconds, Value]),
    production("SETNX", 4, &[Key, Value]),
    production("SETRANGE", 8, &[Key, Offset, Value]),
    production_with_leeway("SINTER", 6, AllowedDifference::Order, &[Repeat(1, 4, &[Key])]),
    production("SINTERCARD", 4, &[Counted(&[Key]), Optional(&[Word("LIMIT"), Index])]),
    production("SINTERSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    production("SISMEMBER", 6, &[Key, Member]),
    production_with_leeway("SMEMBERS", 8, AllowedDifference::Order, &[Key]),
    production("SMISMEMBER", 4, &[Key, Repeat(1, 4, &[Member])]),
    production("SMOVE", 6, &[Key, Key, Member]),
    production_with_leeway("SRANDMEMBER", 3, AllowedDifference::RandomDraw("SMEMBERS"), &[Key, Optional(&[Index])]),
    production("SREM", 8, &[Key, Repeat(1, 4, &[Member])]),
    production("STRLEN", 5, &[Key]),
    production("SUBSTR", 3, &[Key, Index, Index]),
    production_with_leeway("SUNION", 6, AllowedDifference::Order, &[Repeat(1, 4, &[Key])]),
    production("SUNIONSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    production("SWAPDB", 1, &[Database, Database]),
    production("TOUCH", 3, &[Repeat(1, 3, &[Key])]),
    production_with_leeway("TTL", 6, AllowedDifference::Seconds, &[Key]),
    production("TYPE", 5, &[Key]),
    production("UNLINK", 3, &[Repeat(1, 3, &[Key])]),
];

/// Commands that apply to every type of value, for sequences about one type.
pub const GENERIC: &[&str] = &[
    "COPY", "DEBUG", "DEL", "DUMP", "EXISTS", "EXPIRE", "KEYS", "MOVE", "OBJECT", "PERSIST", "PTTL", "RENAME",
    "RENAMENX", "SELECT", "SET", "TOUCH", "TYPE", "UNLINK",
];

/// The keys of generated commands. They are few, so that commands use the same ones.
pub const KEYS: &[&str] = &["k1", "k2", "k3", "{tag}4", ""];

/// Integers, and texts that are nearly integers.
pub const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "7",
    "255",
    "256",
    "-128",
    "1000000",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "01",
    "+5",
    " 5",
    "5x",
    "",
];
/// Decimal fractions, and texts that are nearly decimal fractions.
pub const FLOATS: &[&str] = &[
    "0", "1", "-1", "0.1", "1.5", "-2.25", "3.0e3", "1e17", "1e-5", "5.0", "inf", "nan", "1e400", "abc", "0x10", " 1",
    "1.", ".5",
];
const TIMES: &[&str] = &["100", "1000", "5000", "100000", "0", "-1", "-100000"];
const MOMENTS_SECONDS: &[&str] = &["4000000000", "4100000000", "9000000000", "1", "0", "-5"];
const GARBAGE: &[&str] = &[
    "",
    "abc",
    "-1",
    "0",
    "99999999999999999999",
    "9223372036854775807",
    "-9223372036854775808",
    "1.5",
    "NX",
    "XX",
    "GET",
    "EX",
    "\0\r\n",
    "nan",
];

/// Generates the words of one random command.
pub fn write_command(production: &Production, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut words = vec![production.name.as_bytes().to_vec()];
    append_arguments(production.arguments, rng, &mut words);
    if rng.u32(0..25) == 0 {
        corrupt(rng, &mut words);
    }
    words
}

/// Picks a production by weight among those whose name `wanted` accepts.
pub fn pick_production(rng: &mut Rng, wanted: impl Fn(&str) -> bool) -> Option<&'static Production> {
    let matching = || PRODUCTIONS.iter().filter(|production| wanted(production.name));
    let total: u32 = matching().map(|production| production.weight).sum();
    if total == 0 {
        return None;
    }
    let mut position = rng.u32(0..total);
    matching().find(|production| match position.checked_sub(production.weight) {
        Some(rest) => {
            position = rest;
            false
        }
        None => true,
    })
}

/// Makes a command probably invalid: removes, adds, duplicates or replaces a word.
pub fn corrupt(rng: &mut Rng, words: &mut Vec<Vec<u8>>) {
    let garbage = choose(rng, GARBAGE).as_bytes().to_vec();
    let index = rng.usize(0..words.len());
    match rng.u32(0..4) {
        0 if index > 0 => {
            words.remove(index);
        }
        1 => words.push(garbage),
        2 if index > 0 => words.insert(index, words[index].clone()),
        _ if index > 0 => words[index] = garbage,
        _ => words.push(garbage),
    }
}

/// Returns a random element of `words`.
pub fn choose<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(0..words.len())]
}

fn append_arguments(arguments: &[GrammarArgument], rng: &mut Rng, words: &mut Vec<Vec<u8>>) {
    for argument in arguments {
        match argument {
            OneOf(sequences) => append_arguments(sequences[rng.usize(0..sequences.len())], rng, words),
            Optional(sequence) => {
                if rng.bool() {
                    append_arguments(sequence, rng, words);
                }
            }
            Repeat(least, most, sequence) => {
                for _ in 0..rng.usize(*least..=*most) {
                    append_arguments(sequence, rng, words);
                }
            }
            Counted(sequence) => {
                let count = rng.usize(1..4);
                words.push(count.to_string().into_bytes());
                for _ in 0..count {
                    append_arguments(sequence, rng, words);
                }
            }
            Value => words.push(random_value(rng)),
            simple => words.push(random_word(simple, rng).into_bytes()),
        }
    }
}

fn random_word(argument: &GrammarArgument, rng: &mut Rng) -> String {
    match argument {
        Word(word) => (*word).to_string(),
        // The empty key is rare, as in practice.
        Key if rng.u32(0..30) > 0 => choose(rng, &KEYS[..4]).to_string(),
        Key => String::new(),
        Member => match rng.u32(0..8) {
            0..4 => rng.i32(-5..300).to_string(),
            4..7 => format!("m{}", rng.u32(0..100)),
            _ => "long".repeat(rng.usize(1..20)),
        },
        Integer if rng.bool() => rng.i32(-300..300).to_string(),
        Integer => choose(rng, INTEGERS).to_string(),
        Index => rng.i32(-12..40).to_string(),
        Offset if rng.u32(0..20) == 0 => choose(rng, INTEGERS).replace("2147483648", "4096"),
        Offset => rng.u32(0..80).to_string(),
        Float => choose(rng, FLOATS).to_string(),
        Bit => rng.u32(0..2).to_string(),
        Seconds => choose(rng, TIMES).to_string(),
        Milliseconds => choose(rng, &["100000", "5000000", "0", "-1", "777777"]).to_string(),
        UnixSeconds => choose(rng, MOMENTS_SECONDS).to_string(),
        UnixMilliseconds => choose(rng, MOMENTS_SECONDS).to_string() + "000",
        FieldType => {
            let sign = if rng.bool() { 'i' } else { 'u' };
            format!("{sign}{}", rng.u32(0..=65))
        }
        FieldOffset => {
            let mark = if rng.u32(0..3) == 0 { "#" } else { "" };
            format!("{mark}{}", rng.u32(0..40))
        }
        Database => choose(rng, &["0", "1", "9", "16", "-1"]).to_string(),
        Pattern => choose(rng, &["*", "k*", "k?", "k[12]", "k[^1]", "{tag}*", "", "nothing"]).to_string(),
        Value | OneOf(_) | Optional(_) | Repeat(..) | Counted(_) => String::new(),
    }
}

fn random_value(rng: &mut Rng) -> Vec<u8> {
    match rng.u32(0..12) {
        0..3 => rng.i32(-100..1000).to_string().into_bytes(),
        3 => choose(rng, INTEGERS).as_bytes().to_vec(),
        4 => choose(rng, FLOATS).as_bytes().to_vec(),
        5 => Vec::new(),
        6 => (0..rng.usize(1..30)).map(|_| rng.u8(..)).collect(),
        7 => vec![b'a' + rng.u8(0..3); rng.usize(40..50)],
        8 if rng.u32(0..10) == 0 => vec![b'z'; rng.usize(16_000..70_000)],
        _ => (0..rng.usize(1..12)).map(|_| b'a' + rng.u8(0..4)).collect(),
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the grammar.

    use super::{PRODUCTIONS, pick_production, write_command};
    use fastrand::Rng;

    #[test]
    fn the_same_seed_writes_the_same_commands() {
        let write = |seed| {
            let mut rng = Rng::with_seed(seed);
            let mut next = || pick_production(&mut rng, |_| true).map(|production| write_command(production, &mut rng));
            (0..200).filter_map(|_| next()).collect::<Vec<_>>()
        };
        assert_eq!(write(7), write(7));
        assert_ne!(write(7), write(8));
    }

    #[test]
    fn every_production_is_picked_and_a_condition_restricts() {
        let mut rng = Rng::with_seed(1);
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            names.extend(pick_production(&mut rng, |_| true).map(|production| production.name));
        }
        assert!(PRODUCTIONS.iter().all(|production| names.contains(production.name)));
        for _ in 0..100 {
            let name = pick_production(&mut rng, |name| name.contains("BIT")).map(|production| production.name);
            assert!(name.is_some_and(|name| name.contains("BIT")), "{name:?}");
        }
        assert!(pick_production(&mut rng, |_| false).is_none());
    }
}
