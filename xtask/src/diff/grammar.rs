//! The grammar of generated commands: one table of commands and their arguments.

use fastrand::Rng;

use super::leeway::Leeway;

/// A kind of argument.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
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
    OneOf(&'static [&'static [Argument]]),
    /// This sequence or nothing.
    Maybe(&'static [Argument]),
    /// This sequence, repeated a random number of times between the two numbers.
    Repeat(usize, usize, &'static [Argument]),
    /// A count, then this sequence that number of times.
    Counted(&'static [Argument]),
}

use Argument::{
    Bit, Counted, Database, FieldOffset, FieldType, Float, Index, Integer, Key, Maybe, Member, Milliseconds, Offset,
    OneOf, Pattern, Repeat, Seconds, UnixMilliseconds, UnixSeconds, Value, Word,
};

/// A command that can be generated.
#[derive(Debug)]
pub struct Production {
    /// The command's name.
    pub name: &'static str,
    /// The relative frequency of the command.
    pub weight: u32,
    /// The allowed differences in its reply.
    pub leeway: Leeway,
    /// The arguments of the command.
    pub arguments: &'static [Argument],
}

const fn plain(name: &'static str, weight: u32, arguments: &'static [Argument]) -> Production {
    with(name, weight, Leeway::None, arguments)
}

const fn with(name: &'static str, weight: u32, leeway: Leeway, arguments: &'static [Argument]) -> Production {
    Production {
        name,
        weight,
        leeway,
        arguments,
    }
}

const EXPIRY: Argument = OneOf(&[
    &[],
    &[],
    &[Word("EX"), Seconds],
    &[Word("PX"), Milliseconds],
    &[Word("EXAT"), UnixSeconds],
    &[Word("PXAT"), UnixMilliseconds],
    &[Word("KEEPTTL")],
]);
/// An expiry for MSETEX. That command stores even values that have expired, and the time of their deletion is random.
const LATER: Argument = OneOf(&[
    &[],
    &[],
    &[Word("EX"), Seconds],
    &[Word("PX"), Milliseconds],
    &[Word("EXAT"), Word("4000000000")],
    &[Word("PXAT"), Word("4000000000000")],
    &[Word("KEEPTTL")],
]);
const EXISTENCE: Argument = OneOf(&[&[], &[], &[Word("NX")], &[Word("XX")]]);
/// A comparison for absolute times only. For times to live, it is random which of two equal ones expires later.
const COMPARISON: Argument = OneOf(&[&[EXISTENCE], &[Word("GT")], &[Word("LT")], &[Word("XX"), Word("GT")]]);
const RANGE: Argument = OneOf(&[
    &[],
    &[Index],
    &[Index, Index],
    &[Index, Index, Word("BIT")],
    &[Index, Index, Word("BYTE")],
]);
const FIELD_GET: &[Argument] = &[Word("GET"), FieldType, FieldOffset];
const FIELD_OPERATION: Argument = OneOf(&[
    FIELD_GET,
    &[Word("SET"), FieldType, FieldOffset, Integer],
    &[Word("INCRBY"), FieldType, FieldOffset, Integer],
    &[Word("OVERFLOW"), Word("WRAP")],
    &[Word("OVERFLOW"), Word("SAT")],
    &[Word("OVERFLOW"), Word("FAIL")],
]);
const BIT_OPERATION: Argument = OneOf(&[&[Word("AND")], &[Word("OR")], &[Word("XOR")]]);

/// The commands. The usual weight is 10.
#[rustfmt::skip]
pub const PRODUCTIONS: &[Production] = &[
    plain("APPEND", 10, &[Key, Value]),
    plain("BITCOUNT", 10, &[Key, RANGE]),
    plain("BITFIELD", 12, &[Key, Repeat(1, 4, &[FIELD_OPERATION])]),
    plain("BITFIELD_RO", 4, &[Key, Repeat(0, 3, FIELD_GET)]),
    plain("BITOP", 10, &[BIT_OPERATION, Key, Repeat(1, 3, &[Key])]),
    plain("BITOP", 3, &[Word("NOT"), Key, Key]),
    plain("BITPOS", 10, &[Key, Bit, RANGE]),
    plain("COPY", 6, &[Key, Key, Maybe(&[Word("DB"), Database]), Maybe(&[Word("REPLACE")])]),
    plain("DBSIZE", 3, &[]),
    plain("DEBUG", 2, &[Word("DIGEST-VALUE"), Key]),
    plain("DECR", 6, &[Key]),
    plain("DECRBY", 6, &[Key, Integer]),
    plain("DEL", 6, &[Repeat(1, 3, &[Key])]),
    plain("DELIFEQ", 6, &[Key, Value]),
    with("DUMP", 2, Leeway::Payload, &[Key]),
    plain("ECHO", 1, &[Value]),
    plain("EXISTS", 6, &[Repeat(1, 4, &[Key])]),
    plain("EXPIRE", 8, &[Key, Seconds, EXISTENCE]),
    plain("EXPIREAT", 5, &[Key, UnixSeconds, COMPARISON]),
    with("EXPIRETIME", 4, Leeway::Seconds, &[Key]),
    plain("FLUSHDB", 1, &[]),
    plain("GET", 10, &[Key]),
    plain("GETBIT", 6, &[Key, Offset]),
    plain("GETDEL", 4, &[Key]),
    plain("GETEX", 8, &[Key, EXPIRY]),
    plain("GETEX", 2, &[Key, Word("PERSIST")]),
    plain("GETRANGE", 8, &[Key, Index, Index]),
    plain("GETSET", 4, &[Key, Value]),
    plain("INCR", 6, &[Key]),
    plain("INCRBY", 6, &[Key, Integer]),
    plain("INCRBYFLOAT", 8, &[Key, Float]),
    with("KEYS", 4, Leeway::Order, &[Pattern]),
    plain("LCS", 4, &[Key, Key, Maybe(&[Word("LEN")])]),
    plain("LCS", 4, &[Key, Key, Word("IDX"), Maybe(&[Word("MINMATCHLEN"), Index]),
                      Maybe(&[Word("WITHMATCHLEN")])]),
    plain("MGET", 6, &[Repeat(1, 5, &[Key])]),
    plain("MOVE", 3, &[Key, Database]),
    plain("MSET", 6, &[Repeat(1, 3, &[Key, Value])]),
    plain("MSETEX", 6, &[Counted(&[Key, Value]), Maybe(&[OneOf(&[&[Word("NX")], &[Word("XX")]])]),
                         LATER]),
    plain("MSETNX", 4, &[Repeat(1, 3, &[Key, Value])]),
    plain("OBJECT", 8, &[Word("ENCODING"), Key]),
    // A large value that is being sent to the client counts as a reference.
    with("OBJECT", 1, Leeway::Type, &[Word("REFCOUNT"), Key]),
    plain("PERSIST", 4, &[Key]),
    plain("PEXPIRE", 6, &[Key, Milliseconds, EXISTENCE]),
    plain("PEXPIREAT", 4, &[Key, UnixMilliseconds, COMPARISON]),
    with("PEXPIRETIME", 4, Leeway::Clock, &[Key]),
    plain("PSETEX", 4, &[Key, Milliseconds, Value]),
    with("PTTL", 6, Leeway::Clock, &[Key]),
    with("RANDOMKEY", 1, Leeway::Type, &[]),
    plain("RENAME", 4, &[Key, Key]),
    plain("RENAMENX", 4, &[Key, Key]),
    plain("SADD", 20, &[Key, Repeat(1, 8, &[Member])]),
    plain("SCARD", 4, &[Key]),
    with("SDIFF", 6, Leeway::Order, &[Repeat(1, 4, &[Key])]),
    plain("SDIFFSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    plain("SELECT", 1, &[Database]),
    plain("SET", 20, &[Key, Value, EXPIRY, Maybe(&[Word("GET")]),
                       OneOf(&[&[], &[], &[Word("NX")], &[Word("XX")], &[Word("IFEQ"), Value]])]),
    plain("SETBIT", 10, &[Key, Offset, Bit]),
    plain("SETEX", 4, &[Key, Seconds, Value]),
    plain("SETNX", 4, &[Key, Value]),
    plain("SETRANGE", 8, &[Key, Offset, Value]),
    with("SINTER", 6, Leeway::Order, &[Repeat(1, 4, &[Key])]),
    plain("SINTERCARD", 4, &[Counted(&[Key]), Maybe(&[Word("LIMIT"), Index])]),
    plain("SINTERSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    plain("SISMEMBER", 6, &[Key, Member]),
    with("SMEMBERS", 8, Leeway::Order, &[Key]),
    plain("SMISMEMBER", 4, &[Key, Repeat(1, 4, &[Member])]),
    plain("SMOVE", 6, &[Key, Key, Member]),
    with("SRANDMEMBER", 3, Leeway::Type, &[Key, Maybe(&[Index])]),
    plain("SREM", 8, &[Key, Repeat(1, 4, &[Member])]),
    plain("STRLEN", 5, &[Key]),
    plain("SUBSTR", 3, &[Key, Index, Index]),
    with("SUNION", 6, Leeway::Order, &[Repeat(1, 4, &[Key])]),
    plain("SUNIONSTORE", 6, &[Key, Repeat(1, 4, &[Key])]),
    plain("SWAPDB", 1, &[Database, Database]),
    plain("TOUCH", 3, &[Repeat(1, 3, &[Key])]),
    with("TTL", 6, Leeway::Seconds, &[Key]),
    plain("TYPE", 5, &[Key]),
    plain("UNLINK", 3, &[Repeat(1, 3, &[Key])]),
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
pub fn sentence(production: &Production, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut words = vec![production.name.as_bytes().to_vec()];
    write(production.arguments, rng, &mut words);
    if rng.u32(0..25) == 0 {
        spoil(rng, &mut words);
    }
    words
}

/// Picks a production by weight among those whose name `wanted` accepts.
pub fn pick(rng: &mut Rng, wanted: impl Fn(&str) -> bool) -> Option<&'static Production> {
    let matching = || PRODUCTIONS.iter().filter(|production| wanted(production.name));
    let total: u32 = matching().map(|production| production.weight).sum();
    if total == 0 {
        return None;
    }
    let mut ticket = rng.u32(0..total);
    matching().find(|production| match ticket.checked_sub(production.weight) {
        Some(rest) => {
            ticket = rest;
            false
        }
        None => true,
    })
}

/// Makes a command probably invalid: removes, adds, duplicates or replaces a word.
pub fn spoil(rng: &mut Rng, words: &mut Vec<Vec<u8>>) {
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

fn write(arguments: &[Argument], rng: &mut Rng, words: &mut Vec<Vec<u8>>) {
    for argument in arguments {
        match argument {
            OneOf(sequences) => write(sequences[rng.usize(0..sequences.len())], rng, words),
            Maybe(sequence) => {
                if rng.bool() {
                    write(sequence, rng, words);
                }
            }
            Repeat(least, most, sequence) => {
                for _ in 0..rng.usize(*least..=*most) {
                    write(sequence, rng, words);
                }
            }
            Counted(sequence) => {
                let count = rng.usize(1..4);
                words.push(count.to_string().into_bytes());
                for _ in 0..count {
                    write(sequence, rng, words);
                }
            }
            Value => words.push(value(rng)),
            simple => words.push(word(simple, rng).into_bytes()),
        }
    }
}

fn word(argument: &Argument, rng: &mut Rng) -> String {
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
        Value | OneOf(_) | Maybe(_) | Repeat(..) | Counted(_) => String::new(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
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

    use super::{PRODUCTIONS, pick, sentence};
    use fastrand::Rng;

    #[test]
    fn the_same_seed_writes_the_same_commands() {
        let write = |seed| {
            let mut rng = Rng::with_seed(seed);
            let mut next = || pick(&mut rng, |_| true).map(|production| sentence(production, &mut rng));
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
            names.extend(pick(&mut rng, |_| true).map(|production| production.name));
        }
        assert!(PRODUCTIONS.iter().all(|production| names.contains(production.name)));
        for _ in 0..100 {
            let name = pick(&mut rng, |name| name.contains("BIT")).map(|production| production.name);
            assert!(name.is_some_and(|name| name.contains("BIT")), "{name:?}");
        }
        assert!(pick(&mut rng, |_| false).is_none());
    }
}
