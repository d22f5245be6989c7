//! ZSCAN.

use weft_resp::Reply;
use weft_resp::number::{format_f64, parse_u64};
use weft_values::listpack::DECIMAL_MAX_BYTES;
use weft_values::sorted_set::{SortedSetEncoding, SortedSetView};

use super::{reply_member, value_as_sorted_set};
use crate::commands::context::{CommandResult, Context};
use crate::commands::error::CommandError;
use crate::commands::generic::scan_options::CollectionScanOptions;

/// The time for writing a member with its score to a reply, in nanoseconds.
const SCAN_MEMBER_NS: u64 = 150;
/// The number of significant digits of a skiplist's scores.
const SCORE_DIGITS: usize = 17;

/// ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]
pub fn zscan(ctx: &mut Context<'_, '_>) -> CommandResult {
    let cursor = parse_u64(ctx.arg(2)).ok_or(CommandError::constant("ERR invalid cursor"))?;
    // A missing key and a wrong type take precedence over invalid options.
    let options = CollectionScanOptions::parse(ctx, 3, Some("NOSCORES"));
    let in_place_ns = ctx.max_worker_ns();
    let Some(entry) = ctx.keys.read(0) else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let view = value_as_sorted_set(entry.value())?;
    let options = options?;
    let exact = matches!(view, SortedSetView::Large(set) if set.encoding() == SortedSetEncoding::Skiplist);
    let visited = if exact {
        view.len().min(options.count)
    } else {
        view.len()
    };
    if visited as u64 * SCAN_MEMBER_NS > in_place_ns {
        ctx.detach();
        return Ok(());
    }
    let mut found = Vec::new();
    let mut count = 0;
    let next = {
        let mut reply = Reply::new(&mut found, ctx.reply.protocol);
        let mut text = Vec::with_capacity(32);
        let mut scratch = [0; DECIMAL_MAX_BYTES];
        view.scan(cursor, options.count, |member, score| {
            if !options.matches(member.text(&mut scratch)) {
                return;
            }
            reply_member(&mut reply, member);
            count += 1;
            if !options.names_only {
                text.clear();
                append_score(score, exact, &mut text);
                reply.bulk(&text);
                count += 1;
            }
        })
    };
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    ctx.reply.array(count);
    ctx.reply.raw(&found);
    Ok(())
}

/// Appends a score as ZSCAN shows it: with 17 digits for a skiplist, and in its stored form for a listpack.
pub(crate) fn append_score(score: f64, is_exact: bool, out: &mut Vec<u8>) {
    let is_plain = score == score.trunc() && score.abs() < 1e15;
    if !is_exact || is_plain || !score.is_finite() {
        format_f64(score, out);
    } else {
        append_digits(score, out);
    }
}

/// Appends a finite number in the format of C's `%.17g`.
fn append_digits(number: f64, out: &mut Vec<u8>) {
    let scientific = format!("{number:.*e}", SCORE_DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| -> usize {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').len()
        } else {
            text.len()
        }
    };
    if (-4..SCORE_DIGITS as i32).contains(&exponent) {
        let fraction = (SCORE_DIGITS as i32 - 1 - exponent).max(0) as usize;
        let fixed = format!("{number:.fraction$}");
        out.extend_from_slice(&fixed.as_bytes()[..without_zeros(&fixed)]);
    } else {
        out.extend_from_slice(&mantissa.as_bytes()[..without_zeros(mantissa)]);
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend(format!("e{sign}{:02}", exponent.abs()).bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_shown_with_seventeen_digits() {
        let cases = [
            (0.1, "0.10000000000000001"),
            (3.16, "3.1600000000000001"),
            (1e300, "1.0000000000000001e+300"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1e20, "1e+20"),
            (-1.5e-7, "-1.4999999999999999e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (-0.0, "-0"),
            (-12.0, "-12"),
            (f64::INFINITY, "inf"),
            (5e-324, "4.9406564584124654e-324"),
        ];
        for (score, expected) in cases {
            let mut text = Vec::new();
            append_score(score, true, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), expected);
        }
    }
}
