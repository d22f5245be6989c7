//! LCS: the longest common subsequence of two strings.

use weft_resp::number::parse_i64;
use weft_values::lcs::{Comparison, LcsMatch, estimate_steps, length};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::string::bytes::OwnedString;
use weft_config::id;

/// The command and its handler.
pub const BINDINGS: &[(&str, Binding)] = &[("lcs", leased(lcs))];

/// The maximum length of either string, in bytes.
const MAX_STRING_BYTES: usize = u32::MAX as usize - 2;
const OUT_OF_MEMORY: CommandError =
    CommandError::constant("ERR Insufficient memory, failed allocating transient memory for LCS");

/// The options that select the form of the reply.
struct LcsOptions {
    is_length_only: bool,
    should_reply_matches: bool,
    should_reply_match_lengths: bool,
    min_match_len: usize,
}

fn parse_options(ctx: &Context<'_, '_>) -> Result<LcsOptions, CommandError> {
    let mut options = LcsOptions {
        is_length_only: false,
        should_reply_matches: false,
        should_reply_match_lengths: false,
        min_match_len: 0,
    };
    let mut index = 3;
    while index < ctx.argc() {
        let is = |name: &str| ctx.arg(index).eq_ignore_ascii_case(name.as_bytes());
        if is("IDX") {
            options.should_reply_matches = true;
        } else if is("LEN") {
            options.is_length_only = true;
        } else if is("WITHMATCHLEN") {
            options.should_reply_match_lengths = true;
        } else if is("MINMATCHLEN") && index + 1 < ctx.argc() {
            let shortest = parse_i64(ctx.arg(index + 1)).ok_or(CommandError::NOT_AN_INTEGER)?;
            options.min_match_len = usize::try_from(shortest).unwrap_or(0);
            index += 1;
        } else {
            return Err(CommandError::SYNTAX);
        }
        index += 1;
    }
    if options.is_length_only && options.should_reply_matches {
        return Err(CommandError::constant(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    Ok(options)
}

fn read_string(ctx: &mut Context<'_, '_>, index: usize) -> Result<OwnedString, CommandError> {
    let held = ctx.keys.read(index).map(|entry| OwnedString::from_value(entry.value()));
    held.transpose()
        .map(Option::unwrap_or_default)
        .map_err(|_| CommandError::constant("ERR The specified keys must contain string values"))
}

/// Rejects strings for which Valkey would need more memory than `proto-max-bulk-len`: it uses a table of four-byte
/// lengths. Weft needs a fraction of this memory, but clients know the limit.
fn check_memory(ctx: &Context<'_, '_>, first: &[u8], second: &[u8]) -> CommandResult {
    if first.len() > MAX_STRING_BYTES || second.len() > MAX_STRING_BYTES {
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
    // Both are looked up before the types are checked.
    let (first, second) = (read_string(ctx, 0), read_string(ctx, 1));
    let (first, second) = (first?, second?);
    let options = parse_options(ctx)?;
    check_memory(ctx, &first, &second)?;
    if ctx.detach_if_long(estimate_steps(first.len(), second.len())) {
        return Ok(());
    }
    if options.is_length_only {
        let length = length(&first, &second).map_err(|_| OUT_OF_MEMORY)?;
        ctx.reply.integer(length as i64);
        return Ok(());
    }
    let comparison = Comparison::new(&first, &second).map_err(|_| OUT_OF_MEMORY)?;
    if options.should_reply_matches {
        reply_with_matches(ctx, &comparison, &options);
    } else {
        ctx.reply.bulk(&comparison.subsequence());
    }
    Ok(())
}

fn reply_with_matches(ctx: &mut Context<'_, '_>, comparison: &Comparison<'_>, options: &LcsOptions) {
    let mut matches = comparison.matches();
    matches.retain(|found| found.length() >= options.min_match_len);
    let reply = &mut ctx.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(matches.len());
    for found in &matches {
        reply.array(if options.should_reply_match_lengths { 3 } else { 2 });
        let LcsMatch { first, second } = found;
        for range in [first, second] {
            reply.array(2);
            reply.integer(range.start as i64);
            reply.integer(range.end as i64 - 1);
        }
        if options.should_reply_match_lengths {
            reply.integer(found.length() as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(comparison.length() as i64);
}
