//! The value of one parameter: its default, parsing it from arguments, printing it.

use std::sync::Arc;

use weft_resp::number;

use super::numbers;
use super::parameters::{Adjust, Choices, Flags, Kind, Parameter, Special, Unit};
use super::specials::{self, OomScoreAdjustments, OutputBufferLimits, Primary, SavePoint};

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A boolean, enumeration, integer (an unsigned one by its bits) or set of keyspace events.
    Number(i64),
    /// A string.
    Text(Arc<[u8]>),
    /// `dir`: the operating system holds the value.
    Directory,
    /// `save`.
    SavePoints(Arc<[SavePoint]>),
    /// `client_config-output-buffer-limit`.
    OutputBufferLimits(OutputBufferLimits),
    /// `oom-score-adj-values`.
    OomScoreAdjustments(OomScoreAdjustments),
    /// `bind` and `rdma-bind`.
    Addresses(Arc<[Arc<str>]>),
    /// `replicaof`.
    Primary(Option<Primary>),
    /// `record_latency-tracking-info-percentiles`.
    Percentiles(Arc<[f64]>),
}

impl Parameter {
    /// Returns the default value.
    pub fn default_value(&self) -> Value {
        match self.kind {
            Kind::Bool { default } => Value::Number(i64::from(default)),
            Kind::Enum { default, .. } => Value::Number(default),
            Kind::Integer { default, adjust, .. } => Value::Number(adjusted(default, adjust)),
            Kind::Text { default, .. } => Value::Text(default.as_bytes().into()),
            Kind::Special(special) => default_special(special),
        }
    }

    /// Parses a value. `current` is the current value, since some parameters are changed in part.
    ///
    /// # Errors
    /// The reason for which the arguments are invalid, in Valkey's words.
    pub fn read(&self, arguments: &[&[u8]], current: &Value) -> Result<Value, String> {
        match self.kind {
            Kind::Bool { .. } => read_bool(single(arguments)?),
            Kind::Enum { choices, conflict, .. } => {
                if !self.flags.contains(Flags::MULTI_ARG) {
                    single(arguments)?;
                }
                let number = read_choices(choices, arguments)?;
                match conflict {
                    Some((bits, reason)) if number & bits == bits => Err(reason.into()),
                    _ => Ok(Value::Number(number)),
                }
            }
            Kind::Integer { .. } => self.read_integer(single(arguments)?),
            Kind::Text { binary, check, .. } => {
                let text = single(arguments)?;
                let end = if binary {
                    None
                } else {
                    text.iter().position(|&byte| byte == 0)
                };
                let text = &text[..end.unwrap_or(text.len())];
                check
                    .refusal(self.name, text)
                    .map_or_else(|| Ok(Value::Text(text.into())), Err)
            }
            Kind::Special(special) => read_special(special, arguments, current),
        }
    }

    fn read_integer(&self, text: &[u8]) -> Result<Value, String> {
        let Kind::Integer {
            min,
            max,
            unit,
            unsigned,
            adjust,
            ..
        } = self.kind
        else {
            return Err("argument couldn't be parsed into an integer".into());
        };
        let number = read_number(text, unit)?;
        if !(number == 0 && adjust == Adjust::ZeroIsAutomatic) {
            check_bounds(number, min, max, unit, unsigned)?;
        }
        Ok(Value::Number(adjusted(number, adjust)))
    }

    /// Prints a value as CONFIG GET shows it.
    pub fn print(&self, value: &Value) -> Vec<u8> {
        match value {
            Value::Number(number) => self.print_number(*number).into_bytes(),
            Value::Text(text) => text.to_vec(),
            Value::Directory => working_directory(),
            Value::SavePoints(points) => specials::print_save_points(points).into_bytes(),
            Value::OutputBufferLimits(limits) => specials::print_output_buffer_limits(limits).into_bytes(),
            Value::OomScoreAdjustments(values) => specials::print_oom_score_adjustments(values).into_bytes(),
            Value::Addresses(addresses) => addresses.join(" ").into_bytes(),
            Value::Primary(primary) => specials::print_primary(primary.as_ref()).into_bytes(),
            Value::Percentiles(percentiles) => specials::print_percentiles(percentiles).into_bytes(),
        }
    }

    fn print_number(&self, number: i64) -> String {
        match self.kind {
            Kind::Bool { .. } => if number != 0 { "yes" } else { "no" }.into(),
            Kind::Enum { choices, .. } => print_choices(choices, number, self.flags.contains(Flags::MULTI_ARG)),
            Kind::Integer {
                unit: Unit::MemoryOrPercent,
                ..
            } if number < 0 => format!("{}%", number.unsigned_abs()),
            Kind::Integer {
                unit: Unit::Memory | Unit::MemoryOrPercent,
                ..
            } => (number as u64).to_string(),
            Kind::Integer { unit: Unit::Octal, .. } => format!("{number:o}"),
            Kind::Special(Special::KeyspaceEvents) => specials::keyspace_events::to_letters(number),
            Kind::Integer { .. } | Kind::Text { .. } | Kind::Special(_) => number.to_string(),
        }
    }
}

fn default_special(special: Special) -> Value {
    match special {
        Special::Directory => Value::Directory,
        Special::SavePoints => Value::SavePoints(specials::DEFAULT_SAVE_POINTS.into()),
        Special::OutputBufferLimits => Value::OutputBufferLimits(specials::DEFAULT_OUTPUT_BUFFER_LIMITS),
        Special::OomScoreAdjustments => Value::OomScoreAdjustments(specials::DEFAULT_OOM_SCORE_ADJUSTMENTS),
        Special::KeyspaceEvents => Value::Number(0),
        Special::Addresses(defaults) => Value::Addresses(defaults.iter().map(|&address| address.into()).collect()),
        Special::Primary => Value::Primary(None),
        Special::Percentiles => Value::Percentiles(specials::DEFAULT_PERCENTILES.into()),
    }
}

fn read_special(special: Special, arguments: &[&[u8]], current: &Value) -> Result<Value, String> {
    Ok(match special {
        Special::Directory => match single(arguments)? {
            b"" => return Err("dir can't be empty".into()),
            _ => Value::Directory,
        },
        Special::SavePoints => Value::SavePoints(specials::read_save_points(arguments)?.into()),
        Special::OutputBufferLimits => {
            let limits = match current {
                Value::OutputBufferLimits(limits) => limits,
                _ => &specials::DEFAULT_OUTPUT_BUFFER_LIMITS,
            };
            Value::OutputBufferLimits(specials::read_output_buffer_limits(arguments, limits)?)
        }
        Special::OomScoreAdjustments => Value::OomScoreAdjustments(specials::read_oom_score_adjustments(arguments)?),
        Special::KeyspaceEvents => Value::Number(
            specials::keyspace_events::from_letters(single(arguments)?)
                .ok_or("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")?,
        ),
        Special::Addresses(_) => Value::Addresses(specials::read_addresses(arguments)?.into()),
        Special::Primary => Value::Primary(specials::read_primary(arguments)?),
        Special::Percentiles => Value::Percentiles(specials::read_percentiles(arguments)?.into()),
    })
}

fn single<'text>(arguments: &[&'text [u8]]) -> Result<&'text [u8], String> {
    match arguments {
        [argument] => Ok(argument),
        _ => Err("wrong number of arguments".into()),
    }
}

fn read_bool(text: &[u8]) -> Result<Value, String> {
    match text.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(Value::Number(1)),
        b"no" => Ok(Value::Number(0)),
        _ => Err("argument must be 'yes' or 'no'".into()),
    }
}

fn read_choices(choices: Choices, arguments: &[&[u8]]) -> Result<i64, String> {
    let number_of = |argument: &[u8]| {
        choices
            .iter()
            .find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(argument))
            .map(|(_, number)| *number)
    };
    (!arguments.is_empty())
        .then(|| {
            arguments
                .iter()
                .try_fold(0, |bits, argument| Some(bits | number_of(argument)?))
        })
        .flatten()
        .ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            format!("argument(s) must be one of the following: {}", names.join(", "))
        })
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

fn read_number(text: &[u8], unit: Unit) -> Result<i64, String> {
    let memory = || number::parse_memory(text).map(|amount| amount as i64);
    let (number, refusal) = match unit {
        Unit::Plain => (number::parse_i64(text), "argument couldn't be parsed into an integer"),
        Unit::Octal => (numbers::octal(text), "argument couldn't be parsed as an octal number"),
        Unit::Memory => (memory(), "argument must be a memory value"),
        Unit::SignedMemory => (
            memory().or_else(|| number::parse_i64(text)),
            "argument must be a memory value",
        ),
        Unit::MemoryOrPercent => (
            memory().or_else(|| {
                number::parse_i64(text.strip_suffix(b"%")?)
                    .filter(|&n| n >= 0)
                    .map(|percent| -percent)
            }),
            "argument must be a memory or percent value",
        ),
    };
    number.ok_or_else(|| refusal.into())
}

fn check_bounds(number: i64, min: i64, max: i64, unit: Unit, unsigned: bool) -> Result<(), String> {
    if unsigned {
        let (number, min, max) = (number as u64, min as u64, max as u64);
        if (min..=max).contains(&number) {
            return Ok(());
        }
        return Err(match unit {
            Unit::Octal => format!("argument must be between {min:o} and {max:o} inclusive"),
            _ => format!("argument must be between {min} and {max} inclusive"),
        });
    }
    if unit == Unit::MemoryOrPercent && number < 0 {
        return if number < min {
            Err(format!(
                "percentage argument must be less or equal to {}",
                min.unsigned_abs()
            ))
        } else {
            Ok(())
        };
    }
    if (min..=max).contains(&number) {
        Ok(())
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

fn adjusted(number: i64, adjust: Adjust) -> i64 {
    match adjust {
        Adjust::Keep => number,
        Adjust::Clamp(min, max) => number.clamp(min, max),
        Adjust::ZeroIsAutomatic if number == 0 => automatic_threads(),
        Adjust::ZeroIsAutomatic => number,
    }
}

/// Returns the number of CPUs that this process may use, within the range of `io-threads`.
fn automatic_threads() -> i64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    cpus.min(256) as i64
}

fn working_directory() -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    std::env::current_dir().map_or_else(|_| Vec::new(), |path| path.into_os_string().into_vec())
}
