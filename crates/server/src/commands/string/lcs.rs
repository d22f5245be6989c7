//! LCS: the longest common subsequence of two strings.

use weft_resp::number::parse_i64;
use weft_values::lcs::{Comparison, LcsMatch, estimate_steps, length};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::string::bytes::HeldString;
use weft_config::id;

/// The command and its handler.
pub const BINDINGS: &[(&str, Binding)] = &[("lcs", leased(lcs))];

/// The maximum length of either string, in bytes.
const LONGEST: usize = u32::MAX as usize - 2;
const OUT_OF_MEMORY: CommandError =
    CommandError::constant("ERR Insufficient memory, failed allocating transient memory for LCS");

/// The options that select the form of the reply.
struct Options {
    length_only: bool,
    matches: bool,
    with_match_length: bool,
    shortest_match: usize,
}

fn parse_options(ctx: &Context<'_, '_>) -> Result<Options, CommandError> {
    let mut options = Options {
        length_only: false,
        matches: false,
        with_match_length: false,
        shortest_match: 0,
    };
    let mut index = 3;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        if is("IDX") {
            options.matches = true;
        } else if is("LEN") {
            options.length_only = true;
        } else if is("WITHMATCHLEN") {
            options.with_match_length = true;
        } else if is("MINMATCHLEN") && index + 1 < ctx.argc() {
            let shortest = parse_i64(ctx.arg(index + 1)).ok_or(CommandError::NOT_AN_INTEGER)?;
            options.shortest_match = usize::try_from(shortest).unwrap_or(0);
            index += 1;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    if options.length_only && options.matches {
        return Err(CommandError::constant(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    Ok(options)
}

fn string_at(ctx: &mut Context<'_, '_>, index: usize) -> Result<HeldString, CommandError> {
    let held = ctx.keys.read(index).map(|entry| HeldString::of(entry.value()));
    held.transpose()
        .map(Option::unwrap_or_default)
        .map_err(|_| CommandError::constant("ERR The specified keys must contain string values"))
}

/// Rejects strings for which Valkey would need more memory than `proto-max-bulk-len`: it uses a table of four-byte
/// lengths. Weft needs a fraction of this memory, but clients know the limit.
fn check_memory(ctx: &Context<'_, '_>, first: &[u8], second: &[u8]) -> CommandResult {
    if first.len() > LONGEST || second.len() > LONGEST {
        return Err(CommandError::constant("ERR String too long for LCS"));
    }
    let limit = ctx.server.config.integer(id::PROTO_MAX_BULK_LEN).max(0) as u128;
    if (first.len() as u128 + 1) * (second.len() as u128 + 1) * 4 > limit {
        return Err(CommandError::constant(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    Ok(())
}

fn lcs(ctx: &mut Context<'_, '_>) -> CommandResult {
    let (first, second) = (string_at(ctx, 0)?, string_at(ctx, 1)?);
    let options = parse_options(ctx)?;
    check_memory(ctx, &first, &second)?;
    if ctx.leaves_worker(estimate_steps(first.len(), second.len())) {
        return Ok(());
    }
    if options.length_only {
        let length = length(&first, &second).map_err(|_| OUT_OF_MEMORY)?;
        ctx.reply.integer(length as i64);
        return Ok(());
    }
    let comparison = Comparison::new(&first, &second).map_err(|_| OUT_OF_MEMORY)?;
    if options.matches {
        reply_with_matches(ctx, &comparison, &options);
    } else {
        ctx.reply.bulk(&comparison.subsequence());
    }
    Ok(())
}

fn reply_with_matches(ctx: &mut Context<'_, '_>, comparison: &Comparison<'_>, options: &Options) {
    let mut matches = comparison.matches();
    matches.retain(|found| found.length() >= options.shortest_match);
    let reply = &mut ctx.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(matches.len());
    for found in &matches {
        reply.array(if options.with_match_length { 3 } else { 2 });
        let LcsMatch { first, second } = found;
        for (start, end) in [first, second] {
            reply.array(2);
            reply.integer(*start as i64);
            reply.integer(*end as i64);
        }
        if options.with_match_length {
            reply.integer(found.length() as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(comparison.length() as i64);
}
