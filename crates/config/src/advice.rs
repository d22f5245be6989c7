//! Advice in errors: what a line of the configuration may contain.

use super::numbers::format_with_unit;
use super::parameters::{
    self, Adjustment, NamedParameter, NumberNotation, Parameter, ParameterFlags, ParameterId, ParameterKind,
    SpecialKind, TextCheck,
};
use super::value::ParameterValue;
use super::values::Config;

/// The directives, which are no parameters, and their arguments.
pub const DIRECTIVES: [(&str, &str); 5] = [
    ("include", "one path or pattern of files"),
    (
        "rename-command",
        "the name of a command and its new name; \"\" removes the command",
    ),
    ("user", "the name of a user and its rules"),
    ("loadmodule", "the path of a module and its arguments"),
    ("sentinel", "the words of a Sentinel"),
];

/// Advice for a line whose quotes are not closed.
pub const FOR_QUOTES: &str = "Close the quotes that the line opens, with a blank or the end of the line behind them. \
                             Within double quotes, \\\" is a quote and \\\\ a backslash.";
/// Advice for the settings of modules.
pub const FOR_MODULES: &str =
    "A setting whose name has a dot belongs to a module: load that module with loadmodule, or remove the line.";
/// Advice for the directive of Sentinels.
pub const FOR_SENTINEL: &str = "Weft does not run as a Sentinel: remove the line.";
/// Advice for a log file that cannot be opened.
pub const FOR_LOG_FILE: &str = "a file that the user of the server may write, in a directory that exists; \"\" is \
                                standard output";
/// Advice for files that include each other.
pub const FOR_INCLUDES: &str = "Remove one of the include lines of the cycle.";
/// Advice for a replica with cluster mode.
pub const FOR_REPLICA_IN_CLUSTER: &str =
    "it takes effect with cluster-enabled no only; in a cluster, CLUSTER REPLICATE chooses the primary of a node";

/// A name longer than this, in bytes, resembles no other.
const MAX_NAME_BYTES: usize = 64;
/// A name resembles another that differs by at most so many letters, and by fewer if it is short.
const MAX_DIFFERENCES: usize = 3;

/// Returns a sentence about the values of a parameter.
pub fn for_parameter(named: NamedParameter) -> String {
    let parameter = named.id.parameter();
    let takes = if parameter.flags.contains(ParameterFlags::MULTI_ARG) {
        "takes"
    } else if matches!(parameter.kind, ParameterKind::Text { .. }) {
        "takes one value, in quotes if it contains blanks:"
    } else {
        "takes one value:"
    };
    let default = default_text(parameter).map_or_else(String::new, |text| format!("; the default is {text}"));
    format!("{} {takes} {}{default}.", named.name, accepted_values(parameter))
}

impl Config {
    /// Returns sentences about a parameter whose value does not work: the value, `valid`, which says what would work,
    /// and the line that sets the parameter. The value of a secret is left out.
    pub fn advice(&self, id: ParameterId, valid: &str) -> String {
        let parameter = id.parameter();
        let value = self.printed(id);
        let value = match value.as_slice() {
            [] => "is empty".into(),
            _ if parameter.flags.contains(ParameterFlags::SENSITIVE) => "is not usable".into(),
            value => format!("is '{}'", String::from_utf8_lossy(value)),
        };
        let source = match self.setting_location(id) {
            Some(location) => format!(" It is set by {location}."),
            None => String::new(),
        };
        format!("{} {value}: {valid}.{source}", parameter.name)
    }
}

/// Returns a sentence about a name that is neither a parameter nor a directive, or has too few or too many arguments.
pub fn for_directive(name: &[u8]) -> String {
    let shown = String::from_utf8_lossy(name);
    if let Some((directive, arguments)) = DIRECTIVES.iter().find(|(known, _)| known.as_bytes() == name) {
        return format!("{directive} takes {arguments}.");
    }
    let is_parameter = |name: &[u8]| parameters::find(name).is_some();
    if let Some(at) = name.iter().position(|&byte| matches!(byte, b'=' | b':'))
        && is_parameter(&name[..at])
    {
        let parameter = String::from_utf8_lossy(&name[..at]);
        return format!("A blank separates the name {parameter} from its value.");
    }
    match similar_name(name) {
        Some(similar) => format!("There is no parameter '{shown}'. Did you mean '{similar}'?"),
        None => format!("There is no parameter '{shown}'; weft-server --print-default-config prints all of them."),
    }
}

/// Returns the name of a parameter or directive that differs from `name` by a few letters.
fn similar_name(name: &[u8]) -> Option<&'static str> {
    let directives = DIRECTIVES.iter().map(|(directive, _)| *directive);
    similar_of(name, parameters::names().map(|named| named.name).chain(directives))
}

/// Returns the one of `known` that differs from `name` by a few letters.
pub fn similar_of(name: &[u8], known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let most = (1 + name.len() / 4).min(MAX_DIFFERENCES);
    known
        .map(|known| (differences(name, known.as_bytes()), known))
        .filter(|(count, _)| *count <= most)
        .min_by_key(|(count, _)| *count)
        .map(|(_, known)| known)
}

/// Returns the number of letters to insert, remove or replace to make one name of the other (the Levenshtein distance).
fn differences(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, byte) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(byte != known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// Returns the values that a parameter accepts, in words.
fn accepted_values(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Bool { .. } => "yes or no".into(),
        ParameterKind::Enum { choices, .. } => {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            match parameter.flags.contains(ParameterFlags::MULTI_ARG) {
                true => format!("one or more of {}", words.join(", ")),
                false => format!("one of {}", words.join(", ")),
            }
        }
        ParameterKind::Integer {
            min,
            max,
            unit,
            unsigned,
            adjust,
            ..
        } => {
            let min = if adjust == Adjustment::ZeroIsAutomatic { 0 } else { min };
            accepted_numbers(min, max, unit, unsigned)
        }
        ParameterKind::Text { check, .. } => accepted_text(check).into(),
        ParameterKind::Special(kind) => accepted_special(kind).into(),
    }
}

fn accepted_numbers(min: i64, max: i64, unit: NumberNotation, unsigned: bool) -> String {
    let is_unlimited = max == i64::MAX || (unsigned && max == -1);
    let range = |print: &dyn Fn(i64) -> String| match is_unlimited {
        true => format!("of at least {}", print(min)),
        false => format!("from {} to {}", print(min), print(max)),
    };
    let bytes = "an amount of bytes";
    let units = "with or without one of the units kb, mb and gb";
    match unit {
        NumberNotation::Plain if unsigned => format!("a number {}", range(&|number: i64| (number as u64).to_string())),
        NumberNotation::Plain => format!("a number {}", range(&|number: i64| number.to_string())),
        NumberNotation::Octal => format!("an octal number from {min:o} to {max:o}"),
        NumberNotation::Memory if is_unlimited && min == 0 => format!("{bytes}, {units}"),
        NumberNotation::Memory => format!(
            "{bytes} {}, {units}",
            range(&|number: i64| format_with_unit(number as u64))
        ),
        NumberNotation::SignedMemory => format!("{bytes}, {units}, or a negative number of at least {min}"),
        NumberNotation::MemoryOrPercent => {
            format!("{bytes}, {units}, or a percentage from 0% to {}%", min.unsigned_abs())
        }
    }
}

fn accepted_text(check: TextCheck) -> &'static str {
    match check {
        TextCheck::Any => "any text",
        TextCheck::NotEmpty => "a text that is not empty",
        TextCheck::FileName => "the name of a file, without a directory",
        TextCheck::DirectoryName => "the name of a directory, without the directory that contains it",
        TextCheck::Ipv4 => "an IPv4 address, or \"\"",
        TextCheck::Ipv6 => "an IPv6 address, or \"\"",
        TextCheck::HostName => "at most 255 letters, digits, hyphens and dots",
        TextCheck::NodeName => "letters, digits and the characters - . / : _",
        TextCheck::AnnouncedAddress => "at most 45 letters, digits and the characters - . / : _",
        TextCheck::TitleTemplate => {
            "a text with the fields {title}, {listen-addr}, {server-mode}, {port}, {tls-port}, {unixsocket} and \
             {config-file}"
        }
        TextCheck::HashSeed => "at most 256 bytes",
    }
}

fn accepted_special(kind: SpecialKind) -> &'static str {
    match kind {
        SpecialKind::Directory => "a directory that exists and that the user of the server may enter",
        SpecialKind::SavePoints => "pairs of seconds, at least 1, and a number of changes, or \"\"",
        SpecialKind::OutputBufferLimits => {
            "groups of a class (normal, replica or pubsub), a hard limit and a soft limit in bytes, and seconds"
        }
        SpecialKind::OomScoreAdjustments => "three numbers from -2000 to 2000",
        SpecialKind::KeyspaceEvents => "letters of Ag$lshzxeKEtmdn, or \"\"",
        SpecialKind::Addresses(_) => "at most 16 addresses, each with a - in front if it may be missing",
        SpecialKind::Primary => "a host and a port from 0 to 65535, or no one",
        SpecialKind::Percentiles => "numbers from 0 to 100, or \"\"",
    }
}

/// Returns the default value as a line would contain it; `None` if the value depends on the process.
fn default_text(parameter: &Parameter) -> Option<String> {
    let value = parameter.default_value();
    match (parameter.kind, &value) {
        (_, ParameterValue::Directory | ParameterValue::Primary(_)) => None,
        (
            ParameterKind::Integer {
                adjust: Adjustment::ZeroIsAutomatic,
                ..
            },
            _,
        ) => Some("0, which means automatic".into()),
        (
            ParameterKind::Integer {
                unit: NumberNotation::Memory,
                ..
            },
            ParameterValue::Number(number),
        ) => Some(format_with_unit(*number as u64)),
        _ => {
            let text = String::from_utf8_lossy(&parameter.print(&value)).into_owned();
            let is_one_word = parameter.flags.contains(ParameterFlags::MULTI_ARG) || !text.contains(' ');
            Some(match text.is_empty() || !is_one_word {
                true => format!("\"{text}\""),
                false => text,
            })
        }
    }
}
