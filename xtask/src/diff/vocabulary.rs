//! The words of generated commands: possible values of fields, scores, stream ids and other arguments.

use fastrand::Rng;

use super::grammar::{FLOATS, INTEGERS, KEYS, choose};

/// The properties that all words of one command share.
#[derive(Debug)]
pub struct CommandContext<'a> {
    /// The subject of its sequence.
    pub theme: &'a str,
    /// The command, in lower case.
    pub command: &'a str,
    /// The number of commands before it.
    pub step: usize,
    /// The number of repetitions of repeatable arguments.
    pub count: usize,
    /// `true` for a long command that should name many different elements.
    pub is_long: bool,
    /// The format of range bounds where the command allows several: 0 positions, 1 scores, 2 lexicographic.
    pub bound_format: u32,
}

/// Few items, so that commands use the same ones. They include values that encodings treat specially.
const ITEMS: &[&str] = &[
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "1",
    "2",
    "3",
    "-7",
    "100",
    "70000",
    "9223372036854775807",
    "01",
    "1.5",
    "",
    "\0\r\n",
    "a longer member of thirty bytes",
    "one that is longer than the sixty-four bytes that small encodings take",
];
const NUMBERS: &[&str] = &["1", "2", "3", "5", "-4", "10", "100", "32768", "-2147483649", "0"];
const SCORES: &[&str] = &[
    "0",
    "1",
    "1",
    "2",
    "3",
    "-1",
    "1.5",
    "-2.25",
    "0.1",
    "1e17",
    "1e-5",
    "3.0e3",
    "inf",
    "-inf",
    "+inf",
    "nan",
    "abc",
    "-0",
    "17179869185.5",
    "123456789012345678",
];
const SCORE_BOUNDS: &[&str] = &[
    "-inf", "+inf", "inf", "0", "1", "(1", "2", "(2", "1.5", "(0.1", "-1", "(-inf", "100", "abc", "(", "nan",
];
const LEX_BOUNDS: &[&str] = &["-", "+", "[a", "(a", "[b", "(c", "[f", "[", "(", "a", "", "[1", "(zz"];
const TIMEOUTS: &[&str] = &[
    "0.001", "0.001", "1e-3", ".002", "0.01", "0.001", "0.005", "-1", "abc", "1e400",
];
const PATTERNS: &[&str] = &["*", "a*", "[ab]", "?", "", "*1*", "m1*", "nothing"];
const SORT_PATTERNS: &[&str] = &[
    "w_*", "h_*->f", "w_*->f", "nosort", "x_*", "#", "*", "w_a", "h_*->", "->f",
];
const GEO_MEMBERS: &[&str] = &["Palermo", "Catania", "Rome", "Oslo", "a", "b", "c", "nowhere"];
const LONGITUDES: &[&str] = &[
    "13.361389",
    "15.087269",
    "12.496366",
    "10.75",
    "0",
    "-179.9",
    "180",
    "179.5",
    "-180",
    "13.4",
];
const LATITUDES: &[&str] = &[
    "38.115556",
    "37.502669",
    "41.902782",
    "59.91",
    "0",
    "85.05112878",
    "-85.05112878",
    "-45",
    "38",
];
const DISTANCES: &[&str] = &[
    "200", "1000", "5000", "0", "1", "300000", "1.5", "99999999", "500", "20000", "-1", "abc",
];
const STREAM_IDS: &[&str] = &[
    "-",
    "+",
    "0",
    "0-0",
    "0-1",
    "1",
    "$",
    "abc",
    "1-",
    "18446744073709551615-18446744073709551615",
    "18446744073709551615",
    "1-99999999999999999999",
];

/// Returns one word for the argument called `name` in Valkey's documentation.
pub fn word(sentence: &CommandContext, name: &str, rng: &mut Rng) -> Vec<u8> {
    if rng.u32(0..150) == 0 && !may_block(sentence.command) {
        return choose(rng, &["", "abc", "-1", "9223372036854775807", "1.5"]).into();
    }
    let text = match name {
        "field" | "member" | "member1" | "member2" | "element" | "pivot" | "value" => return item(sentence, name, rng),
        "key" | "source" | "destination" | "dst" | "src" | "destkey" | "sourcekey" | "storekey" | "storedistkey" => {
            key(sentence.theme, rng)
        }
        "numkeys" | "numfields" | "num-vertices" => argument_count(sentence, rng),
        "score" => score(sentence, rng),
        "increment" if sentence.command.ends_with("float") || sentence.theme == "sorted_set" => {
            choose(rng, FLOATS).into()
        }
        "increment" if rng.bool() => rng.i32(-20..20).to_string(),
        "increment" => choose(rng, INTEGERS).into(),
        "weight" => choose(rng, &["1", "2", "-1", "0.5", "0", "inf", "nan", "x"]).into(),
        "min" | "max" | "start" | "stop" | "end" => range_bound(sentence, rng),
        "index" => rng.i32(-9..12).to_string(),
        "rank" => choose(rng, &["1", "2", "-1", "-2", "3", "0", "-9223372036854775808"]).into(),
        "timeout" => choose(rng, TIMEOUTS).into(),
        "cursor" if rng.u32(0..10) > 0 => "0".into(),
        "cursor" => choose(rng, &["abc", "-1", "", "18446744073709551616", "0x"]).into(),
        "pattern" => choose(rng, PATTERNS).into(),
        "by-pattern" | "get-pattern" => choose(rng, SORT_PATTERNS).into(),
        "longitude" if rng.u32(0..8) == 0 => choose(rng, &["181", "-180.1", "abc", "inf", "nan"]).into(),
        "longitude" => choose(rng, LONGITUDES).into(),
        "latitude" if rng.u32(0..8) == 0 => choose(rng, &["86", "-85.1", "x", "-inf", ""]).into(),
        "latitude" => choose(rng, LATITUDES).into(),
        "radius" | "width" | "height" => choose(rng, DISTANCES).into(),
        "subcommand" => choose(rng, &["GETREG", "ENCODING", "DECODE", "TODENSE", "NONE"]).into(),
        _ => stream_word(sentence, name, rng)
            .or_else(|| expiry_time(sentence, name, rng))
            .unwrap_or_else(|| count(sentence, rng)),
    };
    text.into_bytes()
}

/// Returns `true` if the command may block: a timeout of 0 would wait indefinitely.
pub fn may_block(command: &str) -> bool {
    command.starts_with('b') || command.starts_with("xread")
}

fn key(theme: &str, rng: &mut Rng) -> String {
    match rng.u32(0..60) {
        0 => String::new(),
        // Most stream commands need an entry and a group, which a random key rarely has.
        1..40 if theme == "stream" => choose(rng, &KEYS[..2]).into(),
        _ => choose(rng, &KEYS[..4]).into(),
    }
}

fn item(sentence: &CommandContext, name: &str, rng: &mut Rng) -> Vec<u8> {
    if sentence.is_long {
        return format!("m{}", rng.u32(0..2000)).into_bytes();
    }
    let text = match (sentence.theme, name) {
        ("geo", _) => choose(rng, GEO_MEMBERS),
        ("sort", _) if rng.u32(0..4) > 0 => choose(rng, &["1", "2", "3", "10", "-4", "1.5", "2e1"]),
        ("hash", "value") if rng.u32(0..3) > 0 => choose(rng, NUMBERS),
        _ => choose(rng, ITEMS),
    };
    text.into()
}

fn score(sentence: &CommandContext, rng: &mut Rng) -> String {
    if sentence.is_long {
        return rng.i32(-50..200).to_string();
    }
    match rng.u32(0..3) {
        0 => choose(rng, SCORES).into(),
        _ => rng.i32(-3..6).to_string(),
    }
}

/// Returns the number of arguments that follow; sometimes a wrong one.
fn argument_count(sentence: &CommandContext, rng: &mut Rng) -> String {
    if rng.u32(0..14) > 0 {
        return sentence.count.to_string();
    }
    choose(
        rng,
        &["0", "-1", "1", "2", "5", "abc", "2147483648", "9223372036854775807"],
    )
    .into()
}

/// Returns a number of elements: mostly small, sometimes at the ends of its range.
fn count(sentence: &CommandContext, rng: &mut Rng) -> String {
    let scans = sentence.command.ends_with("scan");
    match rng.u32(0..12) {
        // All elements at once: the part of a table that a smaller page covers is specific to each server.
        _ if scans => choose(rng, &["100000", "100000", "100000", "1", "0", "-5", "x"]).into(),
        // A count that is in range would depend on the available memory.
        0 if sentence.command == "xautoclaim" => "9223372036854775808".into(),
        0 => choose(
            rng,
            &[
                "9223372036854775807",
                "-9223372036854775808",
                "9223372036854775808",
                "4294967296",
            ],
        )
        .into(),
        1 => "0".into(),
        _ => rng.i32(-4..9).to_string(),
    }
}

fn range_bound(sentence: &CommandContext, rng: &mut Rng) -> String {
    let command = sentence.command;
    if sentence.theme == "stream" {
        let border = stream_id(sentence, rng);
        return if rng.u32(0..6) == 0 {
            format!("({border}")
        } else {
            border
        };
    }
    let borders = match command {
        "zrange" | "zrangestore" => sentence.bound_format,
        _ if command.ends_with("byscore") || command == "zcount" => 1,
        _ if command.ends_with("bylex") || command == "zlexcount" => 2,
        _ => 0,
    };
    match borders {
        0 => rng.i32(-9..12).to_string(),
        1 => choose(rng, SCORE_BOUNDS).into(),
        _ => choose(rng, LEX_BOUNDS).into(),
    }
}

fn stream_id(sentence: &CommandContext, rng: &mut Rng) -> String {
    match rng.u32(0..8) {
        0 | 1 => choose(rng, STREAM_IDS).into(),
        _ => format!("{}-{}", rng.usize(1..sentence.step + 2), rng.u32(0..3)),
    }
}

/// Returns a word for an argument that only stream commands have.
fn stream_word(sentence: &CommandContext, name: &str, rng: &mut Rng) -> Option<String> {
    if sentence.theme != "stream" {
        return None;
    }
    Some(match name {
        // The ids of new entries must increase.
        "id" if sentence.command == "xadd" => match rng.u32(0..10) {
            0 => choose(rng, STREAM_IDS).into(),
            1 => format!("{}-*", sentence.step + 1),
            _ => format!("{}-{}", sentence.step + 1, rng.u32(0..4)),
        },
        "id" if sentence.command == "xreadgroup" && rng.u32(0..3) > 0 => ">".into(),
        "id" | "last-id" | "lastid" | "max-deleted-id" => stream_id(sentence, rng),
        "threshold" if rng.bool() => rng.u32(0..12).to_string(),
        "threshold" => stream_id(sentence, rng),
        "group" => choose(rng, &["g1", "g1", "g1", "g1", "g1", "g2", "nogroup"]).into(),
        "consumer" => choose(rng, &["c1", "c1", "c2", "c3"]).into(),
        "min-idle-time" => choose(rng, &["0", "0", "0", "50000", "1000000", "-1", "x"]).into(),
        "ms" => choose(rng, &["0", "100000", "200000", "-1"]).into(),
        // A time in the future counts as now.
        "unix-time-milliseconds" => choose(rng, &["1000", "4000000000000", "-1"]).into(),
        "milliseconds" => choose(rng, &["1", "2", "10", "-1", "x"]).into(),
        "entries-read" | "entries-added" => choose(rng, &["-1", "0", "1", "5", "100", "-2", "x"]).into(),
        _ => return None,
    })
}

/// Returns a time to live that does not expire during the run, or has expired before. Times from now on are rarely
/// equal, because it is random which of two equal ones expires later.
fn expiry_time(sentence: &CommandContext, name: &str, rng: &mut Rng) -> Option<String> {
    let over = rng.u32(0..6) == 0;
    // A field stored with a past expiry time is deleted at a time that the server chooses.
    let over = over && sentence.command != "hsetex";
    let ahead = rng.u64(10..20_000) * 10;
    let (number, thousandths) = match name {
        "seconds" if over => return Some(choose(rng, &["0", "-1", "x", "9223372036854775807"]).into()),
        "milliseconds" if over => return Some(choose(rng, &["0", "-1", "x", "9223372036854775807"]).into()),
        "unix-time-seconds" | "unix-time-milliseconds" if over => {
            return Some(choose(rng, &["0", "1", "-1", "x", "9223372036854775807"]).into());
        }
        "seconds" => (ahead, 1),
        "milliseconds" => (ahead, 1000),
        "unix-time-seconds" => (4_000_000_000 + ahead, 1),
        "unix-time-milliseconds" => (4_000_000_000 + ahead, 1000),
        _ => return None,
    };
    Some((number * thousandths).to_string())
}
