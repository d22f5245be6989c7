//! The reasons for which a configuration is refused: Valkey's texts, and the context that these lack.
//!
//! [`StartError`] displays Valkey's text, byte for byte. [`StartError::context`] says what that text leaves out: the
//! file, the line within this file, and what would be valid.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::COMPATIBLE_VERSION;

/// The maximum number of places that a context names. Files that include each other have many.
const MAX_PLACES: usize = 4;

/// The origin of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineSource {
    /// A configuration file.
    File(Arc<Path>),
    /// Standard input.
    StandardInput,
    /// The options of the program, which become lines.
    CommandLine,
}

/// A line of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The number of the line in Valkey's text, counted from 1 through everything that is read together.
    pub(super) number: usize,
    /// The text without surrounding blanks.
    pub(super) line: Vec<u8>,
    pub(super) source: LineSource,
    /// The number of the line in its source, counted from 1.
    pub(super) number_in_source: usize,
}

impl SourceLine {
    /// Returns the place of the line in words. The values of options may be secrets, so only their names are shown.
    pub(super) fn location(&self) -> String {
        let number = self.number_in_source;
        match &self.source {
            LineSource::File(path) => format!("line {number} of {}", path.display()),
            LineSource::StandardInput => format!("line {number} of standard input"),
            LineSource::CommandLine => {
                let name = self.line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
                match name.starts_with(b"\"") {
                    true => "an argument before the first option".into(),
                    false => format!("the option --{}", String::from_utf8_lossy(name)),
                }
            }
        }
    }
}

/// The reason for which the server does not start. The program prints it to standard error and exits with 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The configuration is invalid.
    Configuration {
        /// The line at fault, if it is a single one.
        place: Option<SourceLine>,
        /// The error text.
        reason: String,
        /// A sentence that says what would be valid. May be empty.
        advice: String,
    },
    /// A line is the reason, but Valkey's text does not show it.
    AtLine {
        /// The error text.
        text: String,
        /// The line at fault.
        place: SourceLine,
        /// A sentence that says what would be valid.
        advice: String,
    },
    /// An included file is invalid, or cannot be read.
    InIncludedFile {
        /// The error in the file.
        error: Box<StartError>,
        /// The line that includes the file.
        included_by: SourceLine,
    },
    /// Any other reason.
    Other(String),
}

impl StartError {
    /// Returns the context that Valkey's text lacks, as lines to print after it: where the error is, and what would be
    /// valid. It is empty if there is nothing to add.
    pub fn context(&self) -> String {
        let mut inclusions = Vec::new();
        let mut error = self;
        while let StartError::InIncludedFile {
            error: inner,
            included_by,
        } = error
        {
            inclusions.push(included_by.location());
            error = inner;
        }
        let (place, advice) = match error {
            StartError::Configuration { place, advice, .. } => (place.as_ref(), advice.as_str()),
            StartError::AtLine { place, advice, .. } => (Some(place), advice.as_str()),
            StartError::InIncludedFile { .. } | StartError::Other(_) => (None, ""),
        };
        let mut places: Vec<String> = place.map(SourceLine::location).into_iter().collect();
        places.extend(inclusions.into_iter().rev());
        places.truncate(MAX_PLACES);
        let location = match (place, places.as_slice()) {
            (_, []) => String::new(),
            (Some(_), places) => format!("This is {}.", places.join(", included by ")),
            (None, places) => format!("The file is included by {}.", places.join(", included by ")),
        };
        match (location.as_str(), advice) {
            ("", advice) => advice.into(),
            (location, "") => location.into(),
            (location, advice) => format!("{location}\n{advice}"),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Configuration { place, reason, .. } => {
                writeln!(out, "\n*** FATAL CONFIG FILE ERROR (Version {COMPATIBLE_VERSION}) ***")?;
                if let Some(SourceLine { number, line, .. }) = place {
                    writeln!(out, "Reading the configuration file, at line {number}")?;
                    writeln!(out, ">>> '{}'", String::from_utf8_lossy(line))?;
                }
                out.write_str(reason)
            }
            StartError::InIncludedFile { error, .. } => error.fmt(out),
            StartError::AtLine { text, .. } | StartError::Other(text) => out.write_str(text),
        }
    }
}

impl std::error::Error for StartError {}

/// A line of the configuration file that sets no parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDirective {
    /// The arguments after the name of the directive.
    pub arguments: Vec<Vec<u8>>,
    pub(super) place: SourceLine,
}

impl ConfigDirective {
    /// Returns the error that stops the start because of this line.
    pub fn error(&self, reason: impl Into<String>) -> StartError {
        self.error_with_advice(reason, "")
    }

    /// Returns the same error with a sentence that says what would be valid.
    pub fn error_with_advice(&self, reason: impl Into<String>, advice: impl Into<String>) -> StartError {
        StartError::Configuration {
            place: Some(self.place.clone()),
            reason: reason.into(),
            advice: advice.into(),
        }
    }

    /// Returns the place of the line in words, such as `line 3 of /etc/weft.conf`.
    pub fn location(&self) -> String {
        self.place.location()
    }
}
