//! Parses the command line: a file, `-` for standard input, and options that become lines of configuration.
//!
//! `weft-server redis.conf --port 7000 --save 900 1` reads the file and then the lines `port 7000` and `save 900
//! 1`. An option takes every argument up to the next one that starts with `--`. It takes at least one, so a value may
//! start with `--` too. Values are quoted, so blanks in them do not matter. The form `--option=value` does not exist.
//!
//! The program may be started under the names `valkey-server` and `redis-server`. Under the names of the programs that
//! check RDB and append-only files, it runs those ([`StartAction`](crate::StartAction)). The name of Sentinel is
//! refused.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::lines::{quote_argument, split_arguments};
use super::{COMPATIBLE_VERSION, StartError};

/// The action that the command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAction {
    /// Start the server.
    RunServer(CommandLine),
    /// Print this text to standard output and exit with 0.
    PrintText(String),
    /// Check an RDB file. Contains the arguments after the program name.
    CheckDump(Vec<OsString>),
    /// Check an append-only file. Contains the arguments after the program name.
    CheckAppendOnly(Vec<OsString>),
    /// Run [`super::system_check::run`] and exit with its result.
    CheckSystem,
    /// Check this configuration as a start would, and exit.
    CheckConfiguration(CommandLine),
}

/// The sources of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// `true` to read standard input after the file.
    pub standard_input: bool,
    /// The lines to read after both.
    pub options: Vec<u8>,
}

impl StartAction {
    /// Parses the arguments. The first is the program name.
    ///
    /// # Errors
    /// When the server does not support the request. Invalid options are detected later, when the configuration is
    /// read.
    pub fn parse(arguments: &[OsString]) -> Result<StartAction, StartError> {
        let program = arguments.first().map_or(&b""[..], |program| program.as_bytes());
        let behind = || arguments.get(1..).unwrap_or_default().to_vec();
        // As in Valkey, the name may occur anywhere in the path.
        let called = |part: &[u8]| program.windows(part.len()).any(|window| window == part);
        if called(b"valkey-check-rdb") || called(b"redis-check-rdb") {
            return Ok(StartAction::CheckDump(behind()));
        }
        if called(b"valkey-check-aof") || called(b"redis-check-aof") {
            return Ok(StartAction::CheckAppendOnly(behind()));
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let (program, arguments) = arguments
            .split_first()
            .map_or((&b""[..], &[][..]), |(program, rest)| (*program, rest));
        refuse_other_programs(program, arguments)?;
        match arguments.first().copied() {
            Some(b"-v" | b"--version") => Ok(StartAction::PrintText(version_line())),
            Some(b"-h" | b"--help") => Ok(StartAction::PrintText(USAGE.into())),
            Some(b"--test-memory") => Err(StartError::Other(
                "This server has no memory test; use one that runs without an operating system.".into(),
            )),
            Some(b"--check-system") => Ok(StartAction::CheckSystem),
            Some(b"--check-config") => Ok(StartAction::CheckConfiguration(CommandLine::parse(&arguments[1..]))),
            Some(b"--print-default-config") => Ok(StartAction::PrintText(DEFAULT_CONFIGURATION.into())),
            _ => Ok(StartAction::RunServer(CommandLine::parse(arguments))),
        }
    }
}

/// The other programs that Valkey's binary provides under these names, and which this binary is not.
const OTHER_PROGRAMS: [(&str, &str); 3] = [
    ("-sentinel", "This server has no Sentinel mode."),
    ("-cli", "This is a server, not a client."),
    ("-benchmark", "This is a server, not a load generator."),
];

fn refuse_other_programs(program: &[u8], arguments: &[&[u8]]) -> Result<(), StartError> {
    let name = program.rsplit(|&byte| byte == b'/').next().unwrap_or(program);
    let called = |part: &str| name.windows(part.len()).any(|window| window == part.as_bytes());
    let sentinel = arguments.contains(&&b"--sentinel"[..]);
    match OTHER_PROGRAMS
        .iter()
        .find(|(part, _)| called(part) || (sentinel && *part == "-sentinel"))
    {
        Some((_, reason)) => Err(StartError::Other((*reason).into())),
        None => Ok(()),
    }
}

impl CommandLine {
    fn parse(arguments: &[&[u8]]) -> CommandLine {
        let mut command_line = CommandLine::default();
        let mut rest = arguments;
        if let Some((first, others)) = arguments.split_first()
            && !first.starts_with(b"-")
        {
            command_line.file = Some(PathBuf::from(std::ffi::OsStr::from_bytes(first)));
            rest = others;
        }
        let mut awaits_value = false;
        for (index, &argument) in rest.iter().enumerate() {
            let is_first = index == 0 && command_line.file.is_none();
            let next = rest.get(index + 1);
            if argument == b"-" && (is_first || next.is_none()) {
                command_line.standard_input = true;
            } else if !awaits_value && argument.starts_with(b"--") {
                awaits_value = command_line.begin_option(argument, next.copied());
            } else {
                command_line.options.extend(quote_argument(argument));
                command_line.options.push(b' ');
                awaits_value = false;
            }
        }
        command_line
    }

    /// Starts the line of an option. Returns `true` if the next argument is a value even if it starts with `--`.
    fn begin_option(&mut self, argument: &[u8], next: Option<&[u8]>) -> bool {
        if !self.options.is_empty() {
            self.options.push(b'\n');
        }
        self.options.extend_from_slice(&argument[2..]);
        self.options.push(b' ');
        let carries_value = split_arguments(argument).is_none_or(|parts| parts.len() != 1);
        let ends_here = next.is_none_or(|next| next.starts_with(b"--"));
        if argument.eq_ignore_ascii_case(b"--save") && ends_here {
            // Scripts generate "--save" from an empty list of pairs to specify no save points.
            self.options.extend_from_slice(b"\"\"");
            return false;
        }
        !carries_value
    }
}

/// Returns the line that `--version` prints. Tools parse its beginning; Weft's own version comes last.
pub fn version_line() -> String {
    format!("Valkey server {}\n", program_version())
}

/// Returns the same line without the name of the program.
pub fn program_version() -> String {
    let commit = option_env!("WEFT_COMMIT").unwrap_or("00000000");
    let build = option_env!("WEFT_BUILD").unwrap_or("0");
    format!(
        "v={COMPATIBLE_VERSION} sha={commit}:0 malloc=jemalloc-5.3.0 bits={} build={build} weft={}",
        usize::BITS,
        env!("CARGO_PKG_VERSION"),
    )
}

/// A configuration file with every parameter at its default, as a comment.
const DEFAULT_CONFIGURATION: &str = include_str!("../../../weft.conf");

const USAGE: &str = "\
Usage: weft-server [FILE | -] [--PARAMETER VALUE...]... [-]

  FILE                   read the configuration from this file
  -                      read it from standard input, before the options
  --PARAMETER VALUE...   set a parameter, as a line of the file would
  -v, --version          print the version
  -h, --help             print this
  --check-system         check for system settings that slow the server down
  --check-config ...     check the configuration that follows, without a start
  --print-default-config print a file with every parameter at its default

Examples:
  weft-server
  weft-server /etc/weft/weft.conf
  weft-server --port 7777 --maxmemory 2gb
  weft-server /etc/weft/weft.conf --loglevel verbose
  weft-server --check-config /etc/weft/weft.conf
  echo 'maxmemory 128mb' | weft-server -
";
