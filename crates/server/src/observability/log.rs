//! The log: lines in Valkey's formats, written to a file or standard output, and to syslog.
//!
//! The file is opened for every line, so it can be moved or deleted at any time: the next line creates a new one,
//! without any signal to the server. Lines are rare enough for that. Each line is a single write to a descriptor in
//! append mode, so lines of several threads or processes do not mix.
//!
//! The crates below the server log through the facade of the `log` crate, which [`install`] connects to this log: its
//! levels warn and error are Valkey's warning, info is notice, debug is verbose, and trace is debug.

use std::fmt::Arguments;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::log_line::{LogFormat, LogLine, Role, TimestampFormat};
use super::syslog::Syslog;

use weft_os::atomic::{AtomicBool, AtomicU8, Ordering};

/// The importance of a line; also the values of `loglevel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Details for developers.
    Debug,
    /// Details that are rarely useful, but fewer than at level debug.
    Verbose,
    /// The level for production.
    Notice,
    /// Important events only.
    Warning,
}

/// The destination of lines.
#[derive(Default)]
pub struct LogDestination {
    /// The file to which lines are appended; `None` for standard output.
    pub file: Option<PathBuf>,
    /// The system log, in addition to the file.
    pub syslog: Option<Syslog>,
}

/// The threshold of `loglevel nothing`, above every level.
const NOTHING: u8 = 4;

static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Notice as u8);
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Legacy as u8);
static TIMESTAMPS: AtomicU8 = AtomicU8::new(TimestampFormat::Legacy as u8);
static ROLE: AtomicU8 = AtomicU8::new(Role::Primary as u8);
static IS_CHILD: AtomicBool = AtomicBool::new(false);
static DESTINATION: OnceLock<LogDestination> = OnceLock::new();

/// Receives the lines of the crates below the server.
struct Facade;

impl ::log::Log for Facade {
    fn enabled(&self, metadata: &::log::Metadata<'_>) -> bool {
        metadata.target().starts_with("weft_") && is_enabled(level_of(metadata.level()))
    }

    fn log(&self, record: &::log::Record<'_>) {
        if self.enabled(record.metadata()) {
            write(level_of(record.level()), *record.args());
        }
    }

    fn flush(&self) {}
}

fn level_of(level: ::log::Level) -> Level {
    match level {
        ::log::Level::Error | ::log::Level::Warn => Level::Warning,
        ::log::Level::Info => Level::Notice,
        ::log::Level::Debug => Level::Verbose,
        ::log::Level::Trace => Level::Debug,
    }
}

/// Connects the facade of the `log` crate to this log. Only the first call has an effect.
pub fn install() {
    if ::log::set_logger(&Facade).is_ok() {
        ::log::set_max_level(::log::LevelFilter::Trace);
    }
}

/// Sets the destination of lines. Only the first call has an effect.
pub fn open(destination: LogDestination) {
    let _ = DESTINATION.set(destination);
}

/// Sets the lowest level that is written, as `loglevel` numbers them; 4 writes nothing.
pub fn set_threshold(loglevel: i64) {
    let threshold = u8::try_from(loglevel).unwrap_or(NOTHING).min(NOTHING);
    THRESHOLD.store(threshold, Ordering::Relaxed);
}

/// Sets the format of lines and of their timestamps.
pub fn set_format(format: LogFormat, timestamps: TimestampFormat) {
    FORMAT.store(format as u8, Ordering::Relaxed);
    TIMESTAMPS.store(timestamps as u8, Ordering::Relaxed);
}

/// Sets the role that lines show.
pub fn set_role(role: Role) {
    ROLE.store(role as u8, Ordering::Relaxed);
}

/// Makes the lines of this process those of a child. Standard output is written without its lock from now on, because a
/// thread that this process does not have may hold it.
pub fn become_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    set_role(Role::Child);
}

/// Returns `true` if lines of this level are written.
pub fn is_enabled(level: Level) -> bool {
    level as u8 >= THRESHOLD.load(Ordering::Relaxed)
}

/// Writes one line.
pub fn write(level: Level, message: Arguments<'_>) {
    if !is_enabled(level) {
        return;
    }
    let message = message.to_string();
    let line = LogLine {
        process: std::process::id(),
        role: Role::from(ROLE.load(Ordering::Relaxed)),
        level,
        message: &message,
    };
    let format = LogFormat::from(i64::from(FORMAT.load(Ordering::Relaxed)));
    let timestamps = TimestampFormat::from(i64::from(TIMESTAMPS.load(Ordering::Relaxed)));
    append(line.render(format, timestamps, &jiff::Zoned::now()).as_bytes());
    if let Some(syslog) = DESTINATION.get().and_then(|destination| destination.syslog.as_ref()) {
        syslog.send(level, &message);
    }
}

/// Writes text unchanged, without a line prefix.
pub fn write_raw(level: Level, text: &str) {
    if is_enabled(level) {
        append(text.as_bytes());
    }
}

/// Returns a descriptor of the log, for code that must not open a file when it writes, such as a crash handler.
///
/// # Errors
/// If the file cannot be opened or no descriptor is left.
pub fn descriptor() -> std::io::Result<OwnedFd> {
    match file() {
        Some(file) => Ok(open_file(file)?.into()),
        None => std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned(),
    }
}

fn file() -> Option<&'static PathBuf> {
    DESTINATION.get()?.file.as_ref()
}

fn open_file(path: &PathBuf) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}

/// A line that cannot be written is lost: there is no other place to report the error.
fn append(bytes: &[u8]) {
    let _ = match file() {
        Some(path) => open_file(path).and_then(|mut file| file.write_all(bytes)),
        None if IS_CHILD.load(Ordering::Relaxed) => {
            let written = nix::unistd::write(std::io::stdout(), bytes);
            written.map(drop).map_err(std::io::Error::from)
        }
        None => {
            let mut output = std::io::stdout().lock();
            output.write_all(bytes).and_then(|()| output.flush())
        }
    };
}

/// Writes a line of level warning.
macro_rules! warning {
    ($($text:tt)*) => { $crate::observability::log::write($crate::observability::log::Level::Warning, format_args!($($text)*)) };
}
/// Writes a line of level notice.
macro_rules! notice {
    ($($text:tt)*) => { $crate::observability::log::write($crate::observability::log::Level::Notice, format_args!($($text)*)) };
}
/// Writes a line of level verbose.
macro_rules! verbose {
    ($($text:tt)*) => { $crate::observability::log::write($crate::observability::log::Level::Verbose, format_args!($($text)*)) };
}
/// Writes a line of level debug.
macro_rules! debug {
    ($($text:tt)*) => { $crate::observability::log::write($crate::observability::log::Level::Debug, format_args!($($text)*)) };
}
pub(crate) use {debug, notice, verbose, warning};
