//! LOLWUT: draws a piece of woven cloth and shows the version.

use weft_resp::number::{parse_f64, parse_i64};

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use weft_config::{COMPATIBLE_VERSION, REDIS_VERSION, id};

/// LOLWUT.
pub const BINDINGS: &[(&str, Binding)] = &[("lolwut", leased(lolwut))];

/// The default number of columns and rows, and the largest.
const DEFAULT_SIZE: (usize, usize) = (66, 20);
const MAX_SIZE: (usize, usize) = (160, 64);

/// The version that is drawn by default.
const DEFAULT_VERSION: i64 = 9;

/// Executes `LOLWUT [VERSION n] [columns rows] [real imaginary]`. The version selects the weave; further numbers add to
/// its seed.
fn lolwut(ctx: &mut Context<'_, '_>) -> CommandResult {
    let has_version = ctx.argc() > 2 && ctx.arg(1).eq_ignore_ascii_case(b"version");
    let first = if has_version { 3 } else { 1 };
    let version = match has_version {
        true => parse_i64(ctx.arg(2)).ok_or(CommandError::NOT_AN_INTEGER)?,
        false => DEFAULT_VERSION,
    };
    let words: Vec<&[u8]> = (first..ctx.argc()).map(|index| ctx.arg(index)).collect();
    let cut = CanvasOptions::parse(version, &words)?;
    let config = &ctx.server.config;
    let version_text = match config.boolean(id::EXTENDED_REDIS_COMPATIBILITY) {
        true => REDIS_VERSION,
        false => COMPATIBLE_VERSION,
    };
    let text = draw_cloth(cut.seed, cut.columns, cut.rows)
        + &format!(
            "\nwoven by Weft {}, {} ver. {version_text}\n",
            env!("CARGO_PKG_VERSION"),
            config.product_name()
        );
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

/// The arguments of LOLWUT.
struct CanvasOptions {
    columns: usize,
    rows: usize,
    seed: u64,
}

impl CanvasOptions {
    /// Parses the arguments. The versions that Valkey has drawings for differ in the number of words that they read (90
    /// is the ninth version, too). Other versions read none.
    fn parse(version: i64, words: &[&[u8]]) -> Result<CanvasOptions, CommandError> {
        let (integers, floats) = match (version, words) {
            (5, _) => (&words[..words.len().min(3)], &[][..]),
            (6, _) => (&words[..words.len().min(2)], &[][..]),
            (90..=99 | 9, [] | [_, _] | [_, _, _, _]) => words.split_at(words.len().min(2)),
            (90..=99 | 9, _) => {
                return Err(CommandError::constant(
                    "ERR Syntax error. Use: LOLWUT [columns rows] [real imaginary]",
                ));
            }
            _ => (&[][..], &[][..]),
        };
        let mut cut = CanvasOptions {
            columns: DEFAULT_SIZE.0,
            rows: DEFAULT_SIZE.1,
            seed: version as u64,
        };
        for (place, word) in integers.iter().enumerate() {
            let number = parse_i64(word).ok_or(CommandError::NOT_AN_INTEGER)?;
            match place {
                0 => cut.columns = number.clamp(1, MAX_SIZE.0 as i64) as usize,
                1 => cut.rows = number.clamp(1, MAX_SIZE.1 as i64) as usize,
                _ => cut.seed = cut.seed.wrapping_mul(31).wrapping_add(number as u64),
            }
        }
        for word in floats {
            let number = parse_f64(word).ok_or(CommandError::NOT_A_FLOAT)?;
            cut.seed = cut.seed.wrapping_mul(31).wrapping_add(number.to_bits());
        }
        Ok(cut)
    }
}

/// Draws vertical warp threads that the weft crosses, over one and under the next. A twill pattern that depends on the
/// seed decides where the weft is on top and over how many threads it goes.
fn draw_cloth(seed: u64, columns: usize, rows: usize) -> String {
    const OVER: [char; 3] = ['─', '═', '╌'];
    const UNDER: [char; 3] = ['│', '║', '╎'];
    let float = 2 + seed % 4;
    let drift = 1 + (seed / 4) % 3;
    let mut text = String::with_capacity(rows * (columns * 3 + 1));
    for row in 0..rows as u64 {
        for column in 0..columns as u64 {
            // Diamonds: the diagonal changes its direction every `float * float` rows.
            let turn = float * float;
            let slope = if (row / turn).is_multiple_of(2) {
                row
            } else {
                turn - row % turn
            };
            let over = (column + slope * drift) % (float + 1) < float.div_ceil(2);
            let stripe = ((column / (4 * float) + row / (2 * float)) % 3) as usize;
            text.push(if over { OVER[stripe] } else { UNDER[stripe] });
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cloth_has_its_size_and_both_kinds_of_threads() {
        for seed in 0..40 {
            let text = draw_cloth(seed, 30, 12);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 12);
            assert!(lines.iter().all(|line| line.chars().count() == 30));
            assert!(text.contains('─') && text.contains('│'), "seed {seed}:\n{text}");
        }
        assert_ne!(draw_cloth(0, 30, 12), draw_cloth(1, 30, 12));
    }
}
