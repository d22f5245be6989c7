//! Configuration: the parameters, their values, the file, the command line, and the CONFIG command behind them.
//!
//! ```text
//!  parameters   the const table: every name, kind, range, default, right
//!      |
//!  value        one value: read it, print it          specials, numbers, title: its parts
//!      |
//!  values       Config: all values, shared by all threads; CONFIG GET
//!      |
//!      +-- set         CONFIG SET: all or nothing
//!      +-- rewrite     CONFIG REWRITE: the file, brought up to date
//!      +-- file        reading the file              lines, glob: its syntax
//!             |
//!         command_line   what the program was started with
//! ```
//!
//! A value is read on every command, and changed a few times a day: numbers are atomics, the rest sits behind a lock
//! that only readers of that rest touch. Whoever caches values compares [`Config::generation`] and reads them again
//! when it moved.

pub mod command_line;
mod compact_forms;
mod directory;
mod file;
mod glob;
mod lines;
mod numbers;
pub mod parameters;
mod rewrite;
mod set;
pub mod specials;
pub mod system_check;
pub mod title;
mod value;
mod values;

#[cfg(test)]
mod tests;

pub use command_line::{Action, program_version};
pub use directory::error_text;
pub use file::StartError;
pub use parameters::{Flags, ParameterId, find, id};
pub use rewrite::{Extent, replace_file};
pub use set::{ApplyResult, Permissions, SetError};
pub use specials::{ClientClass, OutputBufferLimit, Primary, keyspace_events};
pub use values::Config;

/// The version of Valkey whose parameters, files and replies these are.
pub const COMPATIBLE_VERSION: &str = "9.1.2";
