//! Parses the configuration file: one directive per line, with comments, quotes, includes and repetitions.
//!
//! The options of the command line are lines too. They follow the file and standard input, so the last line about a
//! parameter wins. `save` lines accumulate, and `client-output-buffer-limit` changes only the classes it names.
//! `user`, `rename-command` and `loadmodule` lines, and the settings of modules, are collected for those that process
//! them.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use super::advice;
use super::command_line::CommandLine;
use super::directory::change_directory;
use super::glob;
use super::lines::split_arguments;
use super::parameters::{self, NamedParameter, ParameterFlags, ParameterId, ParameterKind, SpecialKind, id};
use super::start_error::{ConfigDirective, LineSource, SourceLine, StartError};
use super::value::ParameterValue;
use super::value_error::ValueError;
use super::values::{Config, ConfigOrigin};
use weft_base::files::error_text;

/// The maximum depth of includes. A greater depth means that files include each other in a cycle.
const INCLUDE_DEPTH_MAX: usize = 64;

/// The reason for which the server does not start if no module has a parameter that the configuration sets.
pub const UNUSED_MODULE_SETTING: &str =
    "Module Configuration detected without loadmodule directive or no ApplyConfig call: aborting";

const BAD_DIRECTIVE: &str = "Bad directive or wrong number of arguments";

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
        let mut config = ConfigText::default();
        config.append(
            text,
            file.as_deref()
                .map_or(LineSource::StandardInput, |file| LineSource::File(file.into())),
        );
        let mut reader = ConfigFileReader::new(file);
        reader.parse_text(&config, 0)?;
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

/// The text of one or more sources, one after the other. As in Valkey, a source without a newline at its end shares a
/// line with the next one.
#[derive(Default)]
struct ConfigText {
    bytes: Vec<u8>,
    /// The sources, and the offset at which each begins.
    parts: Vec<(usize, LineSource)>,
}

impl ConfigText {
    fn append(&mut self, text: &[u8], source: LineSource) {
        self.parts.push((self.bytes.len(), source));
        self.bytes.extend_from_slice(text);
    }

    /// Returns all lines that are neither empty nor comments.
    fn lines(&self) -> impl Iterator<Item = SourceLine> {
        let mut parts = self.parts.iter().peekable();
        let mut source = None;
        let (mut offset, mut first_number) = (0, 1);
        self.bytes
            .split(|&byte| byte == b'\n')
            .enumerate()
            .filter_map(move |(index, line)| {
                let number = index + 1;
                while let Some((start, next)) = parts.next_if(|(start, _)| *start <= offset) {
                    source = Some(next);
                    // The first line of a source may be the rest of a line that another source has begun.
                    first_number = if *start == offset { number } else { number - 1 };
                }
                offset += line.len() + 1;
                let line = line.trim_ascii();
                (!line.is_empty() && !line.starts_with(b"#")).then(|| SourceLine {
                    number,
                    line: line.to_vec(),
                    source: source.cloned().unwrap_or(LineSource::CommandLine),
                    number_in_source: number - first_number + 1,
                })
            })
    }
}

/// The values and directives while files are read.
struct ConfigFileReader {
    values: Vec<ParameterValue>,
    origin: ConfigOrigin,
    /// Set after the first `save` line. It replaces the defaults, and later ones add to it.
    has_seen_save: bool,
    /// The last line that is a setting of a module, with its name.
    module_setting: Option<(String, SourceLine)>,
}

/// The reason for which a line is invalid: the line itself, or a line of a file that it includes.
enum LineError {
    InLine { reason: String, advice: String },
    InIncludedFile(StartError),
}

impl LineError {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> LineError {
        LineError::InLine {
            reason: reason.into(),
            advice: advice.into(),
        }
    }

    fn at(self, place: SourceLine) -> StartError {
        match self {
            LineError::InLine { reason, advice } => StartError::Configuration {
                place: Some(place),
                reason,
                advice,
            },
            LineError::InIncludedFile(error) => StartError::InIncludedFile {
                error: Box::new(error),
                included_by: place,
            },
        }
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
        let mut text = ConfigText::default();
        if let Some(file) = &file {
            read_files(file, &mut text)?;
        }
        if command_line.standard_input {
            let mut input = Vec::new();
            io::stdin().read_to_end(&mut input).map_err(|error| {
                StartError::Other(format!(
                    "Fatal error, can't read standard input: {}",
                    error_text(&error)
                ))
            })?;
            text.append(&input, LineSource::StandardInput);
        }
        text.bytes.push(b'\n');
        text.append(&command_line.options, LineSource::CommandLine);
        let mut reader = ConfigFileReader::new(file);
        reader.parse_text(&text, 0)?;
        Ok(reader)
    }

    fn parse_text(&mut self, text: &ConfigText, depth: usize) -> Result<(), StartError> {
        text.lines()
            .try_for_each(|place| self.parse_line(&place, depth).map_err(|error| error.at(place)))
    }

    fn parse_line(&mut self, place: &SourceLine, depth: usize) -> Result<(), LineError> {
        let arguments = split_arguments(&place.line)
            .ok_or_else(|| LineError::new("Unbalanced quotes in configuration line", advice::FOR_QUOTES))?;
        let Some((name, arguments)) = arguments.split_first() else {
            return Ok(());
        };
        match parameters::find(name) {
            Some(named) => {
                self.parse_parameter(named, arguments)
                    .map_err(|reason| LineError::new(reason.to_string(), advice::for_parameter(named)))?;
                self.origin.locations.insert(named.id, place.location());
                Ok(())
            }
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
            (b"loadmodule", [_, ..]) => self.origin.modules.push(directive()),
            (b"sentinel", []) => {}
            (b"sentinel", _) => {
                let reason = "sentinel directive while not in sentinel mode";
                return Err(LineError::new(reason, advice::FOR_SENTINEL));
            }
            _ if name.contains(&b'.') && arguments.is_empty() => {
                let reason = "Module config specified without value";
                return Err(LineError::new(reason, advice::FOR_MODULES));
            }
            _ if name.contains(&b'.') => {
                self.module_setting = Some((String::from_utf8_lossy(name).into(), place.clone()));
                self.origin.module_settings.push((name.to_vec(), arguments.join(&b' ')));
            }
            _ => return Err(LineError::new(BAD_DIRECTIVE, advice::for_directive(name))),
        }
        Ok(())
    }

    fn include(&mut self, path: &[u8], depth: usize) -> Result<(), LineError> {
        if depth == INCLUDE_DEPTH_MAX {
            let reason = "Configuration files include each other in a cycle";
            return Err(LineError::new(reason, advice::FOR_INCLUDES));
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let mut text = ConfigText::default();
        read_files(path, &mut text)
            .and_then(|()| self.parse_text(&text, depth + 1))
            .map_err(LineError::InIncludedFile)
    }

    /// Checks the configuration as a whole. `open_log_file` is called with the path of the log file, if there is one.
    fn finish(self, open_log_file: fn(&Path) -> io::Result<()>) -> Result<Config, StartError> {
        let whole = |reason: String, advice: String| {
            Err(StartError::Configuration {
                place: None,
                reason,
                advice,
            })
        };
        // With modules, the start checks that each setting is used.
        if let Some((setting, place)) = self.module_setting
            && self.origin.modules.is_empty()
        {
            return Err(StartError::AtLine {
                text: format!("Unused Module Configuration: {setting}\n{UNUSED_MODULE_SETTING}"),
                place,
                advice: advice::FOR_MODULES.into(),
            });
        }
        let config = Config::new(&self.values, self.origin);
        let logfile = config.text(id::LOGFILE);
        if !logfile.is_empty() {
            let path = Path::new(std::ffi::OsStr::from_bytes(&logfile));
            if let Err(error) = open_log_file(path) {
                let reason = format!("Can't open the log file: {}", error_text(&error));
                return whole(reason, config.advice(id::LOGFILE, advice::FOR_LOG_FILE));
            }
        }
        if config.boolean(id::CLUSTER_ENABLED) && config.primary().is_some() {
            let reason = "replicaof directive not allowed in cluster mode";
            return whole(
                reason.into(),
                config.advice(id::REPLICAOF, advice::FOR_REPLICA_IN_CLUSTER),
            );
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

/// Appends the contents of a file, or of all files that match a pattern, which may be none.
fn read_files(path: &Path, text: &mut ConfigText) -> Result<(), StartError> {
    let name = path.as_os_str().as_bytes();
    let paths = if glob::is_pattern(name) {
        glob::expand_paths(name)
    } else {
        vec![path.to_path_buf()]
    };
    for path in paths {
        let contents = std::fs::read(&path).map_err(|error| {
            let path = path.display();
            StartError::Other(format!(
                "Fatal error, can't open config file '{path}': {}",
                error_text(&error)
            ))
        })?;
        // A relative path is about the working directory, which a later line `dir` may change.
        let path = std::path::absolute(&path).unwrap_or(path);
        text.append(&contents, LineSource::File(path.into()));
    }
    Ok(())
}

/// Returns `true` if a rewritten file keeps this directive although it is not a parameter.
pub(super) fn is_directive(name: &[u8]) -> bool {
    advice::DIRECTIVES
        .iter()
        .any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
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
