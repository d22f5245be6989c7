//! Parses the configuration file: one directive per line, with comments, quotes, includes and repetitions.
//!
//! The options of the command line are lines too. They follow the file and standard input, so the last line about a
//! parameter wins. `save` lines accumulate, and `client-output-buffer-limit` changes only the classes it names.
//! `user` and `rename-command` lines are collected for the modules that process them. `loadmodule` loads nothing.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use super::COMPATIBLE_VERSION;
use super::command_line::CommandLine;
use super::directory::change_directory;
use super::glob;
use super::lines::split_arguments;
use super::parameters::{self, NamedParameter, ParameterFlags, ParameterId, ParameterKind, SpecialKind, id};
use super::value::ParameterValue;
use super::value_error::ValueError;
use super::values::{Config, ConfigOrigin};
use weft_base::files::error_text;

/// The maximum depth of includes. A greater depth means that files include each other in a cycle.
const INCLUDE_DEPTH_MAX: usize = 64;

const BAD_DIRECTIVE: &str = "Bad directive or wrong number of arguments";

/// A line of the configuration file that sets no parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDirective {
    /// The arguments after the name of the directive.
    pub arguments: Vec<Vec<u8>>,
    place: SourceLine,
}

impl ConfigDirective {
    /// Returns the error that stops the start because of this line.
    pub fn error(&self, reason: impl Into<String>) -> StartError {
        StartError::Configuration {
            place: Some(self.place.clone()),
            reason: reason.into(),
        }
    }
}

/// The number of a line, counted from 1, and its text without surrounding blanks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    number: usize,
    line: Vec<u8>,
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
    },
    /// Any other reason.
    Other(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Configuration { place, reason } => {
                writeln!(out, "\n*** FATAL CONFIG FILE ERROR (Version {COMPATIBLE_VERSION}) ***")?;
                if let Some(SourceLine { number, line }) = place {
                    writeln!(out, "Reading the configuration file, at line {number}")?;
                    writeln!(out, ">>> '{}'", String::from_utf8_lossy(line))?;
                }
                out.write_str(reason)
            }
            StartError::Other(reason) => out.write_str(reason),
        }
    }
}

impl std::error::Error for StartError {}

impl Config {
    /// Reads the file, standard input and the options of the command line.
    ///
    /// `dir` takes effect while reading: relative paths in later lines are resolved against it.
    ///
    /// # Errors
    /// The first invalid line, or a file that cannot be read.
    pub fn load(command_line: &CommandLine) -> Result<Config, StartError> {
        ConfigFileReader::read(command_line)?.finish(create_log_file)
    }

    /// Reads the same without a start: a log file that is missing is not created.
    ///
    /// # Errors
    /// Like [`Config::load`].
    pub fn check(command_line: &CommandLine) -> Result<Config, StartError> {
        ConfigFileReader::read(command_line)?.finish(check_log_file)
    }

    /// Parses the text of a file.
    #[cfg(test)]
    pub(super) fn parse(text: &[u8], file: Option<PathBuf>) -> Result<Config, StartError> {
        let mut reader = ConfigFileReader::new(file);
        reader.parse_text(text, 0)?;
        reader.finish(create_log_file)
    }
}

/// Opens the log file, and creates it if it is missing.
fn create_log_file(path: &Path) -> io::Result<()> {
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map(|_| ())
}

/// Checks that the log file can be written or created.
fn check_log_file(path: &Path) -> io::Result<()> {
    if path.exists() {
        return std::fs::OpenOptions::new().append(true).open(path).map(|_| ());
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(eaccess(
        directory.unwrap_or(Path::new(".")),
        AccessFlags::W_OK | AccessFlags::X_OK,
    )?)
}

/// The values and directives while files are read.
struct ConfigFileReader {
    values: Vec<ParameterValue>,
    origin: ConfigOrigin,
    /// Set after the first `save` line. It replaces the defaults, and later ones add to it.
    has_seen_save: bool,
    module_setting: Option<String>,
}

/// The reason for which a line is invalid: the line itself, or a line of a file that it includes.
enum LineError {
    InLine(String),
    InIncludedFile(StartError),
}

impl From<ValueError> for LineError {
    fn from(reason: ValueError) -> LineError {
        LineError::InLine(reason.to_string())
    }
}

impl From<&str> for LineError {
    fn from(reason: &str) -> LineError {
        LineError::InLine(reason.into())
    }
}

impl ConfigFileReader {
    fn new(file: Option<PathBuf>) -> ConfigFileReader {
        ConfigFileReader {
            values: ParameterId::all().map(|id| id.parameter().default_value()).collect(),
            origin: ConfigOrigin {
                file,
                ..ConfigOrigin::default()
            },
            has_seen_save: false,
            module_setting: None,
        }
    }

    /// Reads everything that the command line names.
    fn read(command_line: &CommandLine) -> Result<ConfigFileReader, StartError> {
        let file = command_line
            .file
            .as_ref()
            .map(std::path::absolute)
            .transpose()
            .map_err(|error| {
                StartError::Other(format!("Fatal error, can't open config file: {}", error_text(&error)))
            })?;
        let mut text = Vec::new();
        if let Some(file) = &file {
            text.extend(read_files(file)?);
        }
        if command_line.standard_input {
            io::stdin().read_to_end(&mut text).map_err(|error| {
                StartError::Other(format!(
                    "Fatal error, can't read standard input: {}",
                    error_text(&error)
                ))
            })?;
        }
        text.push(b'\n');
        text.extend_from_slice(&command_line.options);
        let mut reader = ConfigFileReader::new(file);
        reader.parse_text(&text, 0)?;
        Ok(reader)
    }

    fn parse_text(&mut self, text: &[u8], depth: usize) -> Result<(), StartError> {
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let place = SourceLine {
                number: index + 1,
                line: line.to_vec(),
            };
            self.parse_line(&place, depth).map_err(|error| match error {
                LineError::InLine(reason) => StartError::Configuration {
                    place: Some(place),
                    reason,
                },
                LineError::InIncludedFile(error) => error,
            })?;
        }
        Ok(())
    }

    fn parse_line(&mut self, place: &SourceLine, depth: usize) -> Result<(), LineError> {
        let arguments = split_arguments(&place.line).ok_or("Unbalanced quotes in configuration line")?;
        let Some((name, arguments)) = arguments.split_first() else {
            return Ok(());
        };
        match parameters::find(name) {
            Some(named) => Ok(self.parse_parameter(named, arguments)?),
            None => self.parse_directive(&name.to_ascii_lowercase(), arguments, place, depth),
        }
    }

    fn parse_parameter(&mut self, named: NamedParameter, arguments: &[Vec<u8>]) -> Result<(), ValueError> {
        let parameter = named.id.parameter();
        let whole: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        let parts;
        let arguments = match whole.as_slice() {
            // One argument that contains several values, as in --save "900 1".
            [one] if parameter.flags.contains(ParameterFlags::MULTI_ARG) && !one.is_empty() => {
                parts = split_arguments(one).unwrap_or_default();
                parts.iter().map(Vec::as_slice).collect()
            }
            _ => whole,
        };
        let current = &self.values[named.id.index()];
        if named.id.is_retired() {
            // Valkey ignores these lines, whatever their single argument is. An invalid value is not stored.
            let [_] = arguments.as_slice() else {
                return Err(BAD_DIRECTIVE.into());
            };
            self.values[named.id.index()] = parameter.read(&arguments, current).unwrap_or(current.clone());
            return Ok(());
        }
        let mut value = parameter.read(&arguments, current)?;
        match (parameter.kind, arguments.as_slice()) {
            (ParameterKind::Special(SpecialKind::Directory), [directory]) => {
                change_directory(directory).map_err(|error| ValueError::Described(error_text(&error)))?
            }
            (ParameterKind::Special(SpecialKind::SavePoints), arguments) => {
                value = merge_save_points(self.has_seen_save, current, value, arguments);
                self.has_seen_save = true;
            }
            _ => {}
        }
        self.values[named.id.index()] = value;
        Ok(())
    }

    fn parse_directive(
        &mut self,
        name: &[u8],
        arguments: &[Vec<u8>],
        place: &SourceLine,
        depth: usize,
    ) -> Result<(), LineError> {
        let directive = || ConfigDirective {
            arguments: arguments.to_vec(),
            place: place.clone(),
        };
        match (name, arguments) {
            (b"include", [path]) => self.include(path, depth)?,
            (b"rename-command", [_, _]) => self.origin.renamed_commands.push(directive()),
            (b"user", [_, ..]) => self.origin.users.push(directive()),
            (b"loadmodule", [_, ..]) => {}
            (b"sentinel", []) => {}
            (b"sentinel", _) => return Err("sentinel directive while not in sentinel mode".into()),
            _ if name.contains(&b'.') && arguments.is_empty() => {
                return Err("Module config specified without value".into());
            }
            _ if name.contains(&b'.') => self.module_setting = Some(String::from_utf8_lossy(name).into()),
            _ => return Err(BAD_DIRECTIVE.into()),
        }
        Ok(())
    }

    fn include(&mut self, path: &[u8], depth: usize) -> Result<(), LineError> {
        if depth == INCLUDE_DEPTH_MAX {
            return Err("Configuration files include each other in a cycle".into());
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let text = read_files(path).map_err(LineError::InIncludedFile)?;
        self.parse_text(&text, depth + 1).map_err(LineError::InIncludedFile)
    }

    /// Checks the configuration as a whole. `open_log_file` is called with the path of the log file, if there is one.
    fn finish(self, open_log_file: fn(&Path) -> io::Result<()>) -> Result<Config, StartError> {
        let whole = |reason: String| Err(StartError::Configuration { place: None, reason });
        if let Some(setting) = self.module_setting {
            return Err(StartError::Other(format!("Unused Module Configuration: {setting}")));
        }
        let config = Config::new(&self.values, self.origin);
        let logfile = config.text(id::LOGFILE);
        if !logfile.is_empty() {
            let path = Path::new(std::ffi::OsStr::from_bytes(&logfile));
            if let Err(error) = open_log_file(path) {
                return whole(format!("Can't open the log file: {}", error_text(&error)));
            }
        }
        if config.boolean(id::CLUSTER_ENABLED) && config.primary().is_some() {
            return whole("replicaof directive not allowed in cluster mode".into());
        }
        Ok(config)
    }
}

/// Returns the pairs of `save` after one more `save` line.
fn merge_save_points(
    save_seen: bool,
    current: &ParameterValue,
    new: ParameterValue,
    arguments: &[&[u8]],
) -> ParameterValue {
    let resets = !save_seen || matches!(arguments, [b""]);
    match (current, new) {
        (ParameterValue::SavePoints(current), ParameterValue::SavePoints(new)) if !resets => {
            ParameterValue::SavePoints(current.iter().chain(new.iter()).copied().collect())
        }
        (_, new) => new,
    }
}

/// Returns the contents of a file, or of all files that match a pattern, which may be none.
fn read_files(path: &Path) -> Result<Vec<u8>, StartError> {
    let name = path.as_os_str().as_bytes();
    let paths = if glob::is_pattern(name) {
        glob::expand_paths(name)
    } else {
        vec![path.to_path_buf()]
    };
    let mut text = Vec::new();
    for path in paths {
        text.extend(std::fs::read(&path).map_err(|error| {
            let path = path.display();
            StartError::Other(format!(
                "Fatal error, can't open config file '{path}': {}",
                error_text(&error)
            ))
        })?);
    }
    Ok(text)
}

/// Returns `true` if a rewritten file keeps this directive although it is not a parameter.
pub(super) fn is_directive(name: &[u8]) -> bool {
    const DIRECTIVES: [&str; 5] = ["include", "rename-command", "user", "loadmodule", "sentinel"];
    DIRECTIVES
        .iter()
        .any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the value that a line gives to a parameter if it is the only line about it.
pub(super) fn value_of_line(named: NamedParameter, line: &[u8]) -> Option<ParameterValue> {
    let arguments = split_arguments(line)?;
    let mut reader = ConfigFileReader::new(None);
    if matches!(
        named.id.parameter().kind,
        ParameterKind::Special(SpecialKind::Directory)
    ) {
        return None;
    }
    reader.parse_parameter(named, arguments.get(1..)?).ok()?;
    Some(reader.values.swap_remove(named.id.index()))
}
