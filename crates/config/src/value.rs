//! The value of one parameter: its default, parsing it from arguments, printing it.

use std::sync::Arc;

use weft_resp::number;

use super::numbers;
use super::parameters::{Adjustment, Choices, NumberNotation, Parameter, ParameterFlags, ParameterKind, SpecialKind};
use super::specials::{self, OomScoreAdjustments, OutputBufferLimits, PrimaryAddress, SavePoint};
use super::value_error::ValueError;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A boolean, enumeration, integer (an unsigned one by its bits) or set of keyspace events.
    Number(i64),
    /// A string.
    Text(Arc<[u8]>),
    /// `dir`: the operating system holds the value.
    Directory,
    /// `save`.
    SavePoints(Arc<[SavePoint]>),
    /// `client-output-buffer-limit`.
    OutputBufferLimits(OutputBufferLimits),
    /// `oom-score-adj-values`.
    OomScoreAdjustments(OomScoreAdjustments),
    /// `bind` and `rdma-bind`.
    Addresses(Arc<[Arc<str>]>),
    /// `replicaof`.
    Primary(Option<PrimaryAddress>),
    /// `latency-tracking-info-percentiles`.
    Percentiles(Arc<[f64]>),
}

impl Parameter {
    /// Returns the default value.
    pub fn default_value(&self) -> ParameterValue {
        match self.kind {
            ParameterKind::Bool { default } => ParameterValue::Number(i64::from(default)),
            ParameterKind::Enum { default, .. } => ParameterValue::Number(default),
            ParameterKind::Integer { default, adjust, .. } => ParameterValue::Number(adjust_number(default, adjust)),
            ParameterKind::Text { default, .. } => ParameterValue::Text(default.as_bytes().into()),
            ParameterKind::Special(special) => default_special(special),
        }
    }

    /// Parses a value. `current` is the current value, since some parameters are changed in part.
    ///
    /// # Errors
    /// The reason for which the arguments are invalid, in Valkey's words.
    pub fn read(&self, arguments: &[&[u8]], current: &ParameterValue) -> Result<ParameterValue, ValueError> {
        match self.kind {
            ParameterKind::Bool { .. } => read_bool(single_argument(arguments)?),
            ParameterKind::Enum { choices, conflict, .. } => {
                if !self.flags.contains(ParameterFlags::MULTI_ARG) {
                    single_argument(arguments)?;
                }
                let number = read_choices(choices, arguments)?;
                match conflict {
                    Some(conflict) if number & conflict.bits == conflict.bits => Err(conflict.reason.into()),
                    _ => Ok(ParameterValue::Number(number)),
                }
            }
            ParameterKind::Integer { .. } => self.read_integer(single_argument(arguments)?),
            ParameterKind::Text { binary, check, .. } => {
                let text = single_argument(arguments)?;
                let text = if binary { text } else { numbers::c_string(text) };
                check.validation_error(self.name, text).map_or_else(
                    || Ok(ParameterValue::Text(text.into())),
                    |reason| Err(ValueError::Described(reason)),
                )
            }
            ParameterKind::Special(special) => read_special(special, arguments, current),
        }
    }

    fn read_integer(&self, text: &[u8]) -> Result<ParameterValue, ValueError> {
        let ParameterKind::Integer {
            min,
            max,
            unit,
            unsigned,
            adjust,
            ..
        } = self.kind
        else {
            return Err(ValueError::NotInteger);
        };
        let number = read_number(text, unit)?;
        if !(number == 0 && adjust == Adjustment::ZeroIsAutomatic) {
            check_bounds(number, min, max, unit, unsigned)?;
        }
        Ok(ParameterValue::Number(adjust_number(number, adjust)))
    }

    /// Prints a value as CONFIG GET shows it.
    pub fn print(&self, value: &ParameterValue) -> Vec<u8> {
        match value {
            ParameterValue::Number(number) => self.print_number(*number).into_bytes(),
            ParameterValue::Text(text) => text.to_vec(),
            ParameterValue::Directory => working_directory(),
            ParameterValue::SavePoints(points) => specials::print_save_points(points).into_bytes(),
            ParameterValue::OutputBufferLimits(limits) => specials::print_output_buffer_limits(limits).into_bytes(),
            ParameterValue::OomScoreAdjustments(values) => specials::print_oom_score_adjustments(values).into_bytes(),
            ParameterValue::Addresses(addresses) => addresses.join(" ").into_bytes(),
            ParameterValue::Primary(primary) => specials::print_primary(primary.as_ref()).into_bytes(),
            ParameterValue::Percentiles(percentiles) => specials::print_percentiles(percentiles).into_bytes(),
        }
    }

    fn print_number(&self, number: i64) -> String {
        match self.kind {
            ParameterKind::Bool { .. } => if number != 0 { "yes" } else { "no" }.into(),
            ParameterKind::Enum { choices, .. } => {
                print_choices(choices, number, self.flags.contains(ParameterFlags::MULTI_ARG))
            }
            ParameterKind::Integer {
                unit: NumberNotation::MemoryOrPercent,
                ..
            } if number < 0 => format!("{}%", number.unsigned_abs()),
            ParameterKind::Integer {
                unit: NumberNotation::Memory | NumberNotation::MemoryOrPercent,
                ..
            } => (number as u64).to_string(),
            ParameterKind::Integer {
                unit: NumberNotation::Octal,
                ..
            } => format!("{number:o}"),
            ParameterKind::Special(SpecialKind::KeyspaceEvents) => specials::keyspace_events::to_letters(number),
            ParameterKind::Integer { .. } | ParameterKind::Text { .. } | ParameterKind::Special(_) => {
                number.to_string()
            }
        }
    }
}

fn default_special(special: SpecialKind) -> ParameterValue {
    match special {
        SpecialKind::Directory => ParameterValue::Directory,
        SpecialKind::SavePoints => ParameterValue::SavePoints(specials::DEFAULT_SAVE_POINTS.into()),
        SpecialKind::OutputBufferLimits => ParameterValue::OutputBufferLimits(specials::DEFAULT_OUTPUT_BUFFER_LIMITS),
        SpecialKind::OomScoreAdjustments => {
            ParameterValue::OomScoreAdjustments(specials::DEFAULT_OOM_SCORE_ADJUSTMENTS)
        }
        SpecialKind::KeyspaceEvents => ParameterValue::Number(0),
        SpecialKind::Addresses(defaults) => {
            ParameterValue::Addresses(defaults.iter().map(|&address| address.into()).collect())
        }
        SpecialKind::Primary => ParameterValue::Primary(None),
        SpecialKind::Percentiles => ParameterValue::Percentiles(specials::DEFAULT_PERCENTILES.into()),
    }
}

fn read_special(
    special: SpecialKind,
    arguments: &[&[u8]],
    current: &ParameterValue,
) -> Result<ParameterValue, ValueError> {
    Ok(match special {
        SpecialKind::Directory => match single_argument(arguments)? {
            b"" => return Err("dir can't be empty".into()),
            _ => ParameterValue::Directory,
        },
        SpecialKind::SavePoints => ParameterValue::SavePoints(specials::read_save_points(arguments)?.into()),
        SpecialKind::OutputBufferLimits => {
            let limits = match current {
                ParameterValue::OutputBufferLimits(limits) => limits,
                _ => &specials::DEFAULT_OUTPUT_BUFFER_LIMITS,
            };
            ParameterValue::OutputBufferLimits(specials::read_output_buffer_limits(arguments, limits)?)
        }
        SpecialKind::OomScoreAdjustments => {
            ParameterValue::OomScoreAdjustments(specials::read_oom_score_adjustments(arguments)?)
        }
        SpecialKind::KeyspaceEvents => ParameterValue::Number(
            specials::keyspace_events::from_letters(numbers::c_string(single_argument(arguments)?))
                .ok_or("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")?,
        ),
        SpecialKind::Addresses(_) => ParameterValue::Addresses(specials::read_addresses(arguments)?.into()),
        SpecialKind::Primary => ParameterValue::Primary(specials::read_primary(arguments)?),
        SpecialKind::Percentiles => ParameterValue::Percentiles(specials::read_percentiles(arguments)?.into()),
    })
}

fn single_argument<'text>(arguments: &[&'text [u8]]) -> Result<&'text [u8], ValueError> {
    match arguments {
        [argument] => Ok(argument),
        _ => Err(ValueError::WrongArgumentCount),
    }
}

fn read_bool(text: &[u8]) -> Result<ParameterValue, ValueError> {
    match numbers::c_string(text).to_ascii_lowercase().as_slice() {
        b"yes" => Ok(ParameterValue::Number(1)),
        b"no" => Ok(ParameterValue::Number(0)),
        _ => Err(ValueError::NotBoolean),
    }
}

fn read_choices(choices: Choices, arguments: &[&[u8]]) -> Result<i64, ValueError> {
    let number_of = |argument: &[u8]| {
        choices
            .iter()
            .find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(numbers::c_string(argument)))
            .map(|(_, number)| *number)
    };
    (!arguments.is_empty())
        .then(|| {
            arguments
                .iter()
                .try_fold(0, |bits, argument| Some(bits | number_of(argument)?))
        })
        .flatten()
        .ok_or(ValueError::UnknownChoice(choices))
}

/// Returns the name of a number, or the names whose bits it consists of.
fn print_choices(choices: Choices, number: i64, several: bool) -> String {
    if let Some((name, _)) = choices.iter().find(|(_, choice)| *choice == number) {
        return (*name).into();
    }
    let mut names = Vec::new();
    let mut rest = if several { number } else { 0 };
    for (name, bits) in choices {
        if *bits != 0 && rest & bits == *bits {
            names.push(*name);
            rest &= !bits;
        }
    }
    if names.is_empty() || rest != 0 {
        "unknown".into()
    } else {
        names.join(" ")
    }
}

fn read_number(text: &[u8], unit: NumberNotation) -> Result<i64, ValueError> {
    let memory = || number::parse_memory(text).map(|amount| amount as i64);
    let (number, refusal) = match unit {
        NumberNotation::Plain => (number::parse_i64(text), ValueError::NotInteger),
        NumberNotation::Octal => (numbers::parse_octal(text), ValueError::NotOctal),
        NumberNotation::Memory => (memory(), ValueError::NotMemory),
        NumberNotation::SignedMemory => (memory().or_else(|| number::parse_i64(text)), ValueError::NotMemory),
        NumberNotation::MemoryOrPercent => (
            memory().or_else(|| {
                number::parse_i64(text.strip_suffix(b"%")?)
                    .filter(|&n| n >= 0)
                    .map(|percent| -percent)
            }),
            ValueError::NotMemoryOrPercent,
        ),
    };
    number.ok_or(refusal)
}

fn check_bounds(number: i64, min: i64, max: i64, unit: NumberNotation, unsigned: bool) -> Result<(), ValueError> {
    if unsigned {
        let (number, min, max) = (number as u64, min as u64, max as u64);
        if (min..=max).contains(&number) {
            return Ok(());
        }
        return Err(match unit {
            NumberNotation::Octal => ValueError::OutOfRange {
                min: format!("{min:o}"),
                max: format!("{max:o}"),
            },
            _ => out_of_range(min, max),
        });
    }
    if unit == NumberNotation::MemoryOrPercent && number < 0 {
        return if number < min {
            Err(ValueError::PercentageTooHigh(min.unsigned_abs()))
        } else {
            Ok(())
        };
    }
    if (min..=max).contains(&number) {
        Ok(())
    } else {
        Err(out_of_range(min, max))
    }
}

fn out_of_range(min: impl ToString, max: impl ToString) -> ValueError {
    ValueError::OutOfRange {
        min: min.to_string(),
        max: max.to_string(),
    }
}

fn adjust_number(number: i64, adjust: Adjustment) -> i64 {
    match adjust {
        Adjustment::None => number,
        Adjustment::Clamp(min, max) => number.clamp(min, max),
        Adjustment::ZeroIsAutomatic if number == 0 => automatic_threads(),
        Adjustment::ZeroIsAutomatic => number,
    }
}

/// Returns the number of CPUs that this process may use, within the range of `io-threads`.
fn automatic_threads() -> i64 {
    let cpus = weft_os::thread::available_parallelism().map_or(1, usize::from);
    cpus.min(256) as i64
}

fn working_directory() -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    std::env::current_dir().map_or_else(|_| Vec::new(), |path| path.into_os_string().into_vec())
}
