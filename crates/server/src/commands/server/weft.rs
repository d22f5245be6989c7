//! WEFT: the commands that Valkey does not have. They report the most used and the biggest keys.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_resp::Reply;
use weft_resp::number::parse_i64;

use crate::commands::context::{Binding, CommandResult, Context, build_reply, leased};
use crate::commands::error::{CommandError, printable_name};
use crate::observability::big_keys::{
    BigKeyReport, DEFAULT_COUNT, DEFAULT_EFFORT, MAX_COUNT, MAX_EFFORT, TYPES, TypeFigures,
};
use crate::observability::hot_keys::{DEFAULT_SAMPLE_RATIO, HotKey, HotKeyReport, MAX_SAMPLE_RATIO, SKETCH_KEYS};
use crate::state::Server;

#[cfg(test)]
mod tests;

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("weft|bigkeys", leased(big_keys)),
    ("weft|help", leased(help)),
    ("weft|hotkeys", leased(hot_keys)),
];

/// The default number of keys of WEFT HOTKEYS GET.
const DEFAULT_HOT_KEYS: u64 = 16;
/// The highest number of keys of WEFT HOTKEYS GET.
const MAX_HOT_KEYS: u64 = SKETCH_KEYS as u64;
/// The option with which a client names what it starts, so that it can stop that and nothing else.
const ID_OPTION: NumberOption = ("ID", 0, 1, i64::MAX as u64);
/// The longest time for which keys are sampled, in seconds: 100 years.
const MAX_DURATION_S: u64 = 100 * 365 * 86_400;

/// An option with a number: its name, its default, and the lowest and the highest value.
type NumberOption = (&'static str, u64, u64, u64);

/// Parses the options after the operation. Returns the value of each.
fn parse_options<const COUNT: usize>(
    ctx: &Context<'_, '_>,
    options: [NumberOption; COUNT],
) -> Result<[u64; COUNT], CommandError> {
    let mut values = options.map(|(_, default, ..)| default);
    let mut index = 3;
    while index < ctx.argc() {
        let word = ctx.arg(index);
        let known = options
            .iter()
            .position(|(name, ..)| word.eq_ignore_ascii_case(name.as_bytes()));
        let Some(position) = known.filter(|_| index + 1 < ctx.argc()) else {
            return Err(CommandError::SYNTAX);
        };
        let (_, _, min, max) = options[position];
        let number = parse_i64(ctx.arg(index + 1)).and_then(|number| u64::try_from(number).ok());
        values[position] = number
            .filter(|number| (min..=max).contains(number))
            .ok_or(CommandError::NOT_AN_INTEGER)?;
        index += 2;
    }
    Ok(values)
}

/// Returns `true` if the word after the subcommand is this one.
fn is_operation(ctx: &Context<'_, '_>, name: &str) -> bool {
    ctx.arg(2).eq_ignore_ascii_case(name.as_bytes())
}

fn unknown_operation(ctx: &Context<'_, '_>) -> CommandError {
    CommandError::with_word(
        "ERR unknown operation or wrong number of arguments for '",
        printable_name(ctx.arg(2)),
        "'. Try WEFT HELP.",
    )
}

fn hot_keys(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (server, now_ms) = (ctx.server, unix_ms());
    if is_operation(ctx, "start") {
        let options = [
            (
                "SAMPLE",
                u64::from(DEFAULT_SAMPLE_RATIO),
                1,
                u64::from(MAX_SAMPLE_RATIO),
            ),
            // Without the option, until it is stopped.
            ("DURATION", u64::MAX, 1, MAX_DURATION_S),
            ID_OPTION,
        ];
        let [ratio, duration_s, id] = parse_options(ctx, options)?;
        let until_ms = now_ms.saturating_add(duration_s.saturating_mul(1000));
        if !server.stats.hot_keys.start(ratio as u32, now_ms, until_ms, id) {
            return Err(CommandError::constant("ERR Keys are being sampled already"));
        }
    } else if is_operation(ctx, "get") {
        let [count] = parse_options(ctx, [("COUNT", DEFAULT_HOT_KEYS, 1, MAX_HOT_KEYS)])?;
        let protocol = ctx.client.protocol;
        return ctx.run_without_keys(move |server: &Arc<Server>| {
            let report = server.stats.hot_keys.report(count as usize, unix_ms());
            build_reply(protocol, |reply| write_hot_keys(reply, &report))
        });
    } else if is_operation(ctx, "stop") && ctx.argc() == 3 {
        server.stats.hot_keys.stop(now_ms);
    } else if is_operation(ctx, "stop") && ctx.argc() == 5 {
        let [id] = parse_options(ctx, [ID_OPTION])?;
        if !server.stats.hot_keys.stop_own(id, now_ms) {
            return Err(CommandError::constant("ERR No keys are being sampled under this id"));
        }
    } else if is_operation(ctx, "reset") && ctx.argc() == 3 {
        server.stats.hot_keys.reset(now_ms);
    } else {
        return Err(unknown_operation(ctx));
    }
    ctx.reply.ok();
    Ok(())
}

fn write_hot_keys(reply: &mut Reply<'_>, report: &HotKeyReport) {
    let HotKeyReport {
        is_active,
        ratio,
        started_ms,
        duration_ms,
        samples,
        id,
        keys,
    } = report;
    reply.map(7);
    reply.bulk(b"state");
    let state = if *is_active { "on" } else { "off" };
    reply.bulk(state.as_bytes());
    for (name, number) in [
        ("sample-ratio", u64::from(*ratio)),
        ("started-ms", *started_ms),
        ("duration-ms", *duration_ms),
        ("samples", *samples),
        ("id", *id),
    ] {
        write_number(reply, name, number);
    }
    reply.bulk(b"keys");
    reply.array(keys.len());
    keys.iter().for_each(|key| write_hot_key(reply, key));
}

fn write_hot_key(reply: &mut Reply<'_>, key: &HotKey) {
    reply.map(8);
    write_number(reply, "database", key.db.get() as u64);
    reply.bulk(b"key");
    reply.bulk(&key.name);
    write_number(reply, "key-length", key.name_bytes as u64);
    write_number(reply, "uses", key.uses);
    write_number(reply, "error", key.error);
    for (name, share) in [
        ("share", key.share),
        ("write-share", key.write_share),
        ("time-share", key.time_share),
    ] {
        reply.bulk(name.as_bytes());
        // Four digits: the estimates are no more precise than that.
        reply.double((share * 10_000.0).round() / 10_000.0);
    }
}

fn write_number(reply: &mut Reply<'_>, name: &str, number: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
}

fn big_keys(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (server, now_ms) = (ctx.server, unix_ms());
    if is_operation(ctx, "start") {
        let options = [
            ("COUNT", DEFAULT_COUNT as u64, 1, MAX_COUNT as u64),
            ("EFFORT", u64::from(DEFAULT_EFFORT), 1, u64::from(MAX_EFFORT)),
            ID_OPTION,
        ];
        let [count, effort, id] = parse_options(ctx, options)?;
        if !server.stats.big_keys.start(count as usize, effort as u32, now_ms, id) {
            return Err(CommandError::constant("ERR A scan for big keys is in progress already"));
        }
    } else if is_operation(ctx, "get") && ctx.argc() == 3 {
        let report = server.stats.big_keys.report(now_ms);
        write_big_keys(&mut ctx.reply, &report);
        return Ok(());
    } else if is_operation(ctx, "stop") && ctx.argc() == 3 {
        server.stats.big_keys.stop(now_ms);
    } else if is_operation(ctx, "stop") && ctx.argc() == 5 {
        let [id] = parse_options(ctx, [ID_OPTION])?;
        if !server.stats.big_keys.stop_own(id, now_ms) {
            return Err(CommandError::constant("ERR No scan is in progress under this id"));
        }
    } else if is_operation(ctx, "reset") && ctx.argc() == 3 {
        server.stats.big_keys.reset();
    } else {
        return Err(unknown_operation(ctx));
    }
    ctx.reply.ok();
    Ok(())
}

fn write_big_keys(reply: &mut Reply<'_>, report: &BigKeyReport) {
    let BigKeyReport {
        phase,
        started_ms,
        duration_ms,
        completed_scans,
        skipped_slots,
        id,
        types,
    } = report;
    let sum = |figure: fn(&TypeFigures) -> u64| -> u64 { types.iter().map(figure).sum() };
    reply.map(9);
    reply.bulk(b"state");
    reply.bulk(phase.name().as_bytes());
    for (name, number) in [
        ("started-ms", *started_ms),
        ("duration-ms", *duration_ms),
        ("complete-scans", *completed_scans),
        ("skipped-slots", *skipped_slots),
        ("keys", sum(|figures| figures.keys)),
        ("bytes", sum(|figures| figures.bytes)),
        ("id", *id),
    ] {
        write_number(reply, name, number);
    }
    reply.bulk(b"types");
    reply.array(types.len());
    for (name, figures) in TYPES.into_iter().zip(types) {
        reply.map(4);
        reply.bulk(b"type");
        reply.bulk(name.as_bytes());
        write_number(reply, "keys", figures.keys);
        write_number(reply, "bytes", figures.bytes);
        reply.bulk(b"biggest");
        reply.array(figures.biggest().len());
        for key in figures.biggest() {
            reply.map(5);
            write_number(reply, "database", key.db.get() as u64);
            reply.bulk(b"key");
            reply.bulk(&key.name);
            write_number(reply, "key-length", key.name_bytes as u64);
            write_number(reply, "bytes", key.bytes);
            write_number(reply, "elements", key.elements);
        }
    }
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "WEFT",
        &[
            (
                "HOTKEYS START [SAMPLE <ratio>] [DURATION <seconds>] [ID <id>]",
                "Sample one of <ratio> uses of keys (default: 64), and drop earlier samples. <id> is a number\n\
                 for STOP.",
            ),
            (
                "HOTKEYS GET [COUNT <count>]",
                "Show the most used keys (default: 16): database, name, uses and by how much they may be\n\
                 overestimated, and shares of all uses, of writes, and of the time of commands with keys.",
            ),
            (
                "HOTKEYS STOP [ID <id>]",
                "Stop sampling, if it was started with <id>. The samples remain.",
            ),
            ("HOTKEYS RESET", "Drop the samples."),
            (
                "BIGKEYS START [COUNT <count>] [EFFORT <percent>] [ID <id>]",
                "Visit all keys in the background, with <percent> of a thread's time (default: 5), and\n\
                 keep the <count> biggest of each type (default: 10). <id> is a number for STOP.",
            ),
            (
                "BIGKEYS GET",
                "Show the state of the scan, and the biggest keys so far with bytes and elements.",
            ),
            (
                "BIGKEYS STOP [ID <id>]",
                "Stop the scan, if it was started with <id>. What it has found remains.",
            ),
            ("BIGKEYS RESET", "Stop the scan and drop what it has found."),
        ],
    )
}
