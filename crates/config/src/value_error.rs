//! The reasons for which a value is refused, in Valkey's words.

use std::fmt;

use super::parameters::Choices;

/// The reason for which the arguments of a parameter are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Too few or too many arguments.
    #[error("wrong number of arguments")]
    WrongArgumentCount,
    /// Not a switch.
    #[error("argument must be 'yes' or 'no'")]
    NotBoolean,
    /// Not an integer.
    #[error("argument couldn't be parsed into an integer")]
    NotInteger,
    /// Not an octal number.
    #[error("argument couldn't be parsed as an octal number")]
    NotOctal,
    /// Not an amount of memory.
    #[error("argument must be a memory value")]
    NotMemory,
    /// Neither an amount of memory nor a percentage.
    #[error("argument must be a memory or percent value")]
    NotMemoryOrPercent,
    /// None of the names that the parameter accepts.
    #[error("argument(s) must be one of the following: {}", ChoiceNames(.0))]
    UnknownChoice(Choices),
    /// A number outside its range.
    #[error("argument must be between {min} and {max} inclusive")]
    OutOfRange {
        /// The smallest accepted number, as the parameter writes it.
        min: String,
        /// The largest accepted number, as the parameter writes it.
        max: String,
    },
    /// A percentage above its limit.
    #[error("percentage argument must be less or equal to {0}")]
    PercentageTooHigh(u64),
    /// A reason that only one parameter has.
    #[error("{0}")]
    Parameter(&'static str),
    /// A reason that names the parameter or a path.
    #[error("{0}")]
    Described(String),
}

impl From<&'static str> for ValueError {
    fn from(reason: &'static str) -> Self {
        ValueError::Parameter(reason)
    }
}

/// Prints the names of choices.
struct ChoiceNames<'c>(&'c Choices);

impl fmt::Display for ChoiceNames<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        out.write_str(&names.join(", "))
    }
}
