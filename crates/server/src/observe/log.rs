//! The log: lines in Valkey's format, to a file, standard output or syslog.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// How important a line is; also the values of `loglevel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// For developers.
    Debug,
    /// Rarely useful, but not a mess.
    Verbose,
    /// What one wants in production.
    Notice,
    /// Only what is important.
    Warning,
}

/// Where lines go and how they look.
#[derive(Default)]
pub struct Destination {
    /// A file, appended to; empty for standard output.
    pub file: String,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Notice as u8);
static DESTINATION: OnceLock<Destination> = OnceLock::new();

/// Sets where lines go; the first call counts.
pub fn open(destination: Destination) {
    let _ = DESTINATION.set(destination);
}

/// Sets the least important level that is written.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether lines of this level are written.
pub fn is_on(level: Level) -> bool {
    level as u8 >= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line.
pub fn write(level: Level, message: Arguments<'_>) {
    if !is_on(level) {
        return;
    }
    let sign = [".", "-", "*", "#"][level as usize];
    let now = jiff::Zoned::now();
    let line = format!(
        "{}:M {}.{:03} {sign} {message}\n",
        std::process::id(),
        now.strftime("%d %b %Y %H:%M:%S"),
        now.millisecond()
    );
    let file = DESTINATION.get().map_or("", |destination| destination.file.as_str());
    if file.is_empty() {
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    } else if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(file) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Writes a line of level notice.
macro_rules! notice {
    ($($text:tt)*) => { $crate::observe::log::write($crate::observe::log::Level::Notice, format_args!($($text)*)) };
}
/// Writes a line of level warning.
macro_rules! warning {
    ($($text:tt)*) => { $crate::observe::log::write($crate::observe::log::Level::Warning, format_args!($($text)*)) };
}
/// Writes a line of level verbose.
macro_rules! verbose {
    ($($text:tt)*) => { $crate::observe::log::write($crate::observe::log::Level::Verbose, format_args!($($text)*)) };
}
pub(crate) use {notice, verbose, warning};
