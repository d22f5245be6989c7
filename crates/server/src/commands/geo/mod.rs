//! Positions in sorted sets: a member's score is its position. The search commands are in [`search`].

mod search;

use weft_resp::number::{format_fixed, parse_f64};
use weft_resp::{LongDouble, Reply};
use weft_values::geohash::GeoPosition;
use weft_values::sorted_set::SortedSetView;

use super::context::{Binding, CommandResult, Context, leased};
use super::error::CommandError;
use super::sorted_set::{ZaddOptions, add_scores, value_as_sorted_set};

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("geoadd", leased(geoadd)),
    ("geodist", leased(geodist)),
    ("geohash", leased(geohash)),
    ("geopos", leased(geopos)),
    ("georadius", leased(search::georadius)),
    ("georadius_ro", leased(search::georadius_ro)),
    ("georadiusbymember", leased(search::georadiusbymember)),
    ("georadiusbymember_ro", leased(search::georadiusbymember_ro)),
    ("geosearch", leased(search::geosearch)),
    ("geosearchstore", leased(search::geosearchstore)),
];

/// The number of digits after the point of a distance.
const DISTANCE_DIGITS: u32 = 4;

/// Parses a position given as longitude and latitude.
///
/// # Errors
/// If the words are not numbers, or the position is not on the map.
fn parse_position(longitude: &[u8], latitude: &[u8]) -> Result<GeoPosition, CommandError> {
    let position = GeoPosition {
        longitude: parse_f64(longitude).ok_or(CommandError::NOT_A_FLOAT)?,
        latitude: parse_f64(latitude).ok_or(CommandError::NOT_A_FLOAT)?,
    };
    if position.is_on_map() {
        return Ok(position);
    }
    let GeoPosition { longitude, latitude } = position;
    Err(CommandError::from_text(format!(
        "ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"
    )))
}

/// Returns the length of a unit in metres.
///
/// # Errors
/// If the word is not a unit.
fn parse_unit(word: &[u8]) -> Result<f64, CommandError> {
    let units: [(&[u8], f64); 4] = [(b"m", 1.0), (b"km", 1000.0), (b"ft", 0.3048), (b"mi", 1609.34)];
    let found = units.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name));
    let unknown = CommandError::constant("ERR unsupported unit provided. please use M, KM, FT, MI");
    found.map(|(_, metres)| metres).ok_or(unknown)
}

/// Writes a distance in any unit.
fn reply_distance(reply: &mut Reply<'_>, distance: f64) {
    let mut text = Vec::with_capacity(24);
    format_fixed(distance, DISTANCE_DIGITS, &mut text);
    reply.bulk(&text);
}

fn reply_position(reply: &mut Reply<'_>, position: GeoPosition) {
    reply.array(2);
    reply.long_double(LongDouble::from_f64(position.longitude));
    reply.long_double(LongDouble::from_f64(position.latitude));
}

/// GEOADD key [NX|XX] [CH] longitude latitude member [longitude latitude member ...]
fn geoadd(ctx: &mut Context<'_, '_>) -> CommandResult {
    let mut options = ZaddOptions::default();
    let mut first = 2;
    while first < ctx.argc() {
        let word = ctx.arg(first);
        let flag = match word {
            _ if word.eq_ignore_ascii_case(b"nx") => &mut options.if_missing,
            _ if word.eq_ignore_ascii_case(b"xx") => &mut options.if_present,
            _ if word.eq_ignore_ascii_case(b"ch") => &mut options.should_count_changed,
            _ => break,
        };
        *flag = true;
        first += 1;
    }
    let words = ctx.argc() - first;
    if !words.is_multiple_of(3) || (options.if_missing && options.if_present) {
        return Err(CommandError::SYNTAX);
    }
    let scores: Result<Vec<f64>, CommandError> = (first..ctx.argc())
        .step_by(3)
        .map(|at| parse_position(ctx.arg(at), ctx.arg(at + 1)).map(GeoPosition::score))
        .collect();
    let scores = scores?;
    if scores.is_empty() {
        return Err(CommandError::SYNTAX);
    }
    if ctx.keys.effects.is_logging() {
        propagate_as_zadd(ctx, first, &scores);
    }
    add_scores(ctx, options, scores, first + 2, 3)
}

/// Propagates GEOADD as ZADD with the scores.
#[cold]
fn propagate_as_zadd(ctx: &mut Context<'_, '_>, first: usize, scores: &[f64]) {
    // Geohashes are integers.
    let scores: Vec<String> = scores.iter().map(|score| format!("{score:.0}")).collect();
    let mut words: Vec<&[u8]> = vec![b"ZADD"];
    words.extend(ctx.args.iter().take(first).skip(1));
    for (index, score) in scores.iter().enumerate() {
        words.extend([score.as_bytes(), ctx.args.argument(first + 3 * index + 2)]);
    }
    ctx.keys.effects.log_instead(&words);
}

/// Reads the key and passes its sorted set, if there is one, to the closure.
fn with_sorted_set<R>(
    ctx: &mut Context<'_, '_>,
    visit: impl FnOnce(Option<SortedSetView<'_>>, &mut Reply<'_>) -> R,
) -> Result<R, CommandError> {
    let view = match ctx.keys.read(0) {
        Some(entry) => Some(value_as_sorted_set(entry.value())?),
        None => None,
    };
    Ok(visit(view, &mut ctx.reply))
}

fn member_position(view: Option<&SortedSetView<'_>>, member: &[u8]) -> Option<GeoPosition> {
    view?.score(member).map(GeoPosition::from_score)
}

/// GEODIST key member member [unit]
fn geodist(ctx: &mut Context<'_, '_>) -> CommandResult {
    let metres = match ctx.argc() {
        4 => 1.0,
        5 => parse_unit(ctx.arg(4))?,
        _ => return Err(CommandError::SYNTAX),
    };
    let (one, other) = (ctx.arg(2), ctx.arg(3));
    with_sorted_set(ctx, |view, reply| {
        let positions = member_position(view.as_ref(), one).zip(member_position(view.as_ref(), other));
        match positions {
            Some((one, other)) => reply_distance(reply, one.distance_m(other) / metres),
            None => reply.null(),
        }
    })
}

/// GEOHASH key [member ...]
fn geohash(ctx: &mut Context<'_, '_>) -> CommandResult {
    let args = ctx.args;
    with_sorted_set(ctx, |view, reply| {
        reply.array(args.len() - 2);
        for member in args.iter().skip(2) {
            match member_position(view.as_ref(), member) {
                Some(position) => reply.bulk(&position.geohash()),
                None => reply.null(),
            }
        }
    })
}

/// GEOPOS key [member ...]
fn geopos(ctx: &mut Context<'_, '_>) -> CommandResult {
    let args = ctx.args;
    with_sorted_set(ctx, |view, reply| {
        reply.array(args.len() - 2);
        for member in args.iter().skip(2) {
            match member_position(view.as_ref(), member) {
                Some(position) => reply_position(reply, position),
                None => reply.null_array(),
            }
        }
    })
}
