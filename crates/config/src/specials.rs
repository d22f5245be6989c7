//! The parameters whose values have their own structure: parsing and printing.

use std::sync::Arc;

use weft_resp::number::parse_memory;

use super::numbers::{format_with_unit, parse_fraction, parse_lenient};
use super::value_error::ValueError;

/// A pair of `save`: a dump is due after this many changes within this many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePoint {
    /// The number of seconds since the last dump, at least 1.
    pub seconds: i64,
    /// The number of changes since the last dump.
    pub changes: i32,
}

/// The default pairs of `save`.
pub const DEFAULT_SAVE_POINTS: [SavePoint; 3] = [
    SavePoint {
        seconds: 3600,
        changes: 1,
    },
    SavePoint {
        seconds: 300,
        changes: 100,
    },
    SavePoint {
        seconds: 60,
        changes: 10_000,
    },
];

/// The output buffer limits of a client class; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputBufferLimit {
    /// The number of bytes above which the client is disconnected at once.
    pub hard_bytes: u64,
    /// The number of bytes above which the client is disconnected after `soft_seconds`.
    pub soft_bytes: u64,
    /// The time for which the soft limit may be exceeded, in seconds.
    pub soft_seconds: i32,
}

/// The client classes with separate output buffer limits. Their numbers are indexes into the array of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientClass {
    /// All other clients.
    Normal = 0,
    /// Replicas, and clients in MONITOR mode.
    Replica = 1,
    /// Subscribers of channels and patterns.
    Pubsub = 2,
}

impl ClientClass {
    const ALL: [ClientClass; 3] = [ClientClass::Normal, ClientClass::Replica, ClientClass::Pubsub];

    fn from_name(name: &[u8]) -> Option<ClientClass> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(ClientClass::Normal),
            b"slave" | b"replica" => Some(ClientClass::Replica),
            b"pubsub" => Some(ClientClass::Pubsub),
            _ => None,
        }
    }
}

/// The limits of all classes, by [`ClientClass`].
pub type OutputBufferLimits = [OutputBufferLimit; 3];

/// The default limits.
pub const DEFAULT_OUTPUT_BUFFER_LIMITS: OutputBufferLimits = [
    OutputBufferLimit {
        hard_bytes: 0,
        soft_bytes: 0,
        soft_seconds: 0,
    },
    OutputBufferLimit {
        hard_bytes: 256 << 20,
        soft_bytes: 64 << 20,
        soft_seconds: 60,
    },
    OutputBufferLimit {
        hard_bytes: 32 << 20,
        soft_bytes: 8 << 20,
        soft_seconds: 60,
    },
];

/// The address of this server's primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryAddress {
    /// The host name or IP address.
    pub host: Arc<str>,
    /// The TCP port.
    pub port: u16,
}

/// The adjustments of the kernel's out-of-memory score for a primary, a replica and a background child.
pub type OomScoreAdjustments = [i32; 3];

/// The default adjustments.
pub const DEFAULT_OOM_SCORE_ADJUSTMENTS: OomScoreAdjustments = [0, 200, 800];

/// The default percentiles.
pub const DEFAULT_PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// The maximum number of addresses of `bind`.
const MAX_ADDRESSES: usize = 16;

/// The bits of `notify-keyspace-events`.
pub mod keyspace_events {
    /// `K`: publish to the channel of the key.
    pub const KEYSPACE: i64 = 1;
    /// `E`: publish to the channel of the event.
    pub const KEYEVENT: i64 = 1 << 1;
    /// `g`: commands that are not specific to a type.
    pub const GENERIC: i64 = 1 << 2;
    /// `$`: string commands.
    pub const STRING: i64 = 1 << 3;
    /// `l`: list commands.
    pub const LIST: i64 = 1 << 4;
    /// `s`: set commands.
    pub const SET: i64 = 1 << 5;
    /// `h`: hash commands.
    pub const HASH: i64 = 1 << 6;
    /// `z`: sorted set commands.
    pub const ZSET: i64 = 1 << 7;
    /// `x`: a key expired.
    pub const EXPIRED: i64 = 1 << 8;
    /// `e`: a key was evicted.
    pub const EVICTED: i64 = 1 << 9;
    /// `t`: stream commands.
    pub const STREAM: i64 = 1 << 10;
    /// `m`: a read missed.
    pub const KEY_MISS: i64 = 1 << 11;
    /// `d`: module types.
    pub const MODULE: i64 = 1 << 13;
    /// `n`: a key was created.
    pub const NEW: i64 = 1 << 14;
    /// `A`: all letters except `K`, `E`, `m` and `n`.
    pub const ALL: i64 = GENERIC | STRING | LIST | SET | HASH | ZSET | EXPIRED | EVICTED | STREAM | MODULE;

    /// The letters that `A` represents, and `n`, in the order in which they are printed.
    const CLASSES: [(u8, i64); 11] = [
        (b'g', GENERIC),
        (b'$', STRING),
        (b'l', LIST),
        (b's', SET),
        (b'h', HASH),
        (b'z', ZSET),
        (b'x', EXPIRED),
        (b'e', EVICTED),
        (b't', STREAM),
        (b'd', MODULE),
        (b'n', NEW),
    ];
    /// The letters printed after those.
    const CHANNELS: [(u8, i64); 3] = [(b'K', KEYSPACE), (b'E', KEYEVENT), (b'm', KEY_MISS)];

    /// Parses letters. Returns `None` if a letter is unknown.
    pub fn from_letters(letters: &[u8]) -> Option<i64> {
        letters.iter().try_fold(0, |bits, letter| match letter {
            b'A' => Some(bits | ALL),
            _ => {
                let (_, bit) = CLASSES.iter().chain(&CHANNELS).find(|(known, _)| known == letter)?;
                Some(bits | bit)
            }
        })
    }

    /// Prints the bits as letters.
    pub fn to_letters(bits: i64) -> String {
        let letters = |table: &[(u8, i64)]| -> String {
            table
                .iter()
                .filter(|(_, bit)| bits & bit != 0)
                .map(|(letter, _)| char::from(*letter))
                .collect()
        };
        let classes = if bits & ALL == ALL {
            "A".into()
        } else {
            letters(&CLASSES)
        };
        classes + &letters(&CHANNELS)
    }
}

/// Parses the arguments of one `save`. A single empty argument means no dumps.
pub fn read_save_points(arguments: &[&[u8]]) -> Result<Vec<SavePoint>, ValueError> {
    let refusal = ValueError::Parameter("Invalid save parameters");
    let arguments = if matches!(arguments, [b""]) { &[] } else { arguments };
    let (pairs, []) = arguments.as_chunks::<2>() else {
        return Err(refusal);
    };
    pairs
        .iter()
        .map(|[seconds, changes]| {
            let seconds = parse_lenient(seconds).filter(|&seconds| seconds >= 1)?;
            let changes = parse_lenient(changes).filter(|&changes| changes >= 0)?;
            Some(SavePoint {
                seconds,
                // Never so many. Other bits of the number could make it a negative one, which no file may have.
                changes: i32::try_from(changes).unwrap_or(i32::MAX),
            })
        })
        .collect::<Option<_>>()
        .ok_or(refusal)
}

/// Prints the pairs of `save`.
pub fn print_save_points(points: &[SavePoint]) -> String {
    join_with_blanks(
        points
            .iter()
            .map(|point| format!("{} {}", point.seconds, point.changes)),
    )
}

/// Parses groups of class, hard limit, soft limit and seconds. Classes that are not named keep their limits.
pub fn read_output_buffer_limits(
    arguments: &[&[u8]],
    current: &OutputBufferLimits,
) -> Result<OutputBufferLimits, ValueError> {
    let (groups, []) = arguments.as_chunks::<4>() else {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    };
    let mut limits = *current;
    for [class, hard, soft, seconds] in groups {
        let class =
            ClientClass::from_name(class).ok_or("Invalid client class specified in buffer limit configuration.")?;
        limits[class as usize] = read_output_buffer_limit(hard, soft, seconds)
            .ok_or("Error in hard, soft or soft_seconds setting in buffer limit configuration.")?;
    }
    Ok(limits)
}

fn read_output_buffer_limit(hard: &[u8], soft: &[u8], seconds: &[u8]) -> Option<OutputBufferLimit> {
    let soft_seconds = parse_lenient(seconds)? as i32;
    (soft_seconds >= 0).then_some(OutputBufferLimit {
        hard_bytes: parse_memory(hard)?,
        soft_bytes: parse_memory(soft)?,
        soft_seconds,
    })
}

/// Prints the limits of all classes in one line, as for CONFIG GET.
pub fn print_output_buffer_limits(limits: &OutputBufferLimits) -> String {
    join_with_blanks(ClientClass::ALL.iter().map(|&class| {
        let name = ["normal", "slave", "pubsub"][class as usize];
        let limit = limits[class as usize];
        format!(
            "{name} {} {} {}",
            limit.hard_bytes, limit.soft_bytes, limit.soft_seconds
        )
    }))
}

/// Prints the limits of one class as a line of the configuration file.
pub fn print_output_buffer_limit(class: usize, limit: &OutputBufferLimit) -> String {
    let name = ["normal", "replica", "pubsub"][class];
    format!(
        "{name} {} {} {}",
        format_with_unit(limit.hard_bytes),
        format_with_unit(limit.soft_bytes),
        limit.soft_seconds
    )
}

/// Parses three numbers between -2000 and 2000.
pub fn read_oom_score_adjustments(arguments: &[&[u8]]) -> Result<OomScoreAdjustments, ValueError> {
    let arguments: &[&[u8]; 3] = arguments.try_into().map_err(|_| ValueError::WrongArgumentCount)?;
    let mut values = [0; 3];
    for (value, argument) in values.iter_mut().zip(arguments) {
        let number = parse_lenient(argument).filter(|number| (-2000..=2000).contains(number));
        *value = number.ok_or("Invalid oom-score-adj-values, elements must be between -2000 and 2000.")? as i32;
    }
    Ok(values)
}

/// Prints three numbers.
pub fn print_oom_score_adjustments(values: &OomScoreAdjustments) -> String {
    join_with_blanks(values.iter().map(i32::to_string))
}

/// Parses addresses. A single empty argument means none.
pub fn read_addresses(arguments: &[&[u8]]) -> Result<Vec<Arc<str>>, ValueError> {
    if arguments.len() > MAX_ADDRESSES {
        return Err("Too many bind addresses specified.".into());
    }
    let arguments = if matches!(arguments, [b""]) { &[] } else { arguments };
    Ok(arguments
        .iter()
        .map(|address| String::from_utf8_lossy(address).into())
        .collect())
}

/// Parses a host and port, or `no one`.
pub fn read_primary(arguments: &[&[u8]]) -> Result<Option<PrimaryAddress>, ValueError> {
    let &[host, port] = arguments else {
        return Err(ValueError::WrongArgumentCount);
    };
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        return Ok(None);
    }
    let port = parse_lenient(port)
        .and_then(|port| u16::try_from(port).ok())
        .ok_or("Invalid primary port")?;
    Ok(Some(PrimaryAddress {
        host: String::from_utf8_lossy(host).into(),
        port,
    }))
}

/// Prints the host and port, or an empty string.
pub fn print_primary(primary: Option<&PrimaryAddress>) -> String {
    primary.map_or_else(String::new, |primary| format!("{} {}", primary.host, primary.port))
}

/// Parses numbers between 0 and 100. A single empty argument means none.
pub fn read_percentiles(arguments: &[&[u8]]) -> Result<Vec<f64>, ValueError> {
    if matches!(arguments, [b""]) {
        return Ok(Vec::new());
    }
    arguments
        .iter()
        .map(|argument| {
            let percentile = parse_fraction(argument).ok_or("Invalid latency-tracking-info-percentiles parameters")?;
            if (0.0..=100.0).contains(&percentile) {
                Ok(percentile)
            } else {
                Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".into())
            }
        })
        .collect()
}

/// Prints percentiles with at most six decimals.
pub fn print_percentiles(percentiles: &[f64]) -> String {
    join_with_blanks(percentiles.iter().map(|percentile| {
        let text = format!("{percentile:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    }))
}

fn join_with_blanks(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" ")
}
