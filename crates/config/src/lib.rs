//! Configuration: the parameters, their values, the configuration file, the command line, and the CONFIG command.
//!
//! ```text
//!  parameters   the const table: name, kind, range, default and flags of each parameter
//!      |
//!  value        one value: parsing, printing          specials, numbers, title: its parts
//!      |
//!  values       Config: all values, shared by all threads; CONFIG GET
//!      |
//!      +-- set         CONFIG SET: all or nothing
//!      +-- rewrite     CONFIG REWRITE: updates the file
//!      +-- file        reads the file                 lines, glob: its syntax      start_error, advice: its errors
//!             |
//!         command_line   the arguments of the program
//! ```
//!
//! Values are read by every command and change rarely. Numbers are atomics. The other values are behind a lock that
//! only their readers take. Code that caches values compares [`Config::generation`] and reads them again when it has
//! changed.
#![forbid(unsafe_code)]

mod advice;
pub mod command_line;
mod directory;
mod file;
mod glob;
mod lines;
mod numbers;
pub mod parameters;
mod rewrite;
mod set;
pub mod specials;
mod start_error;
pub mod system_check;
pub mod title;
mod value;
mod value_error;
mod values;

#[cfg(test)]
mod tests;

pub use advice::similar_of;
pub use command_line::{CommandLine, StartAction, program_version};
pub use file::UNUSED_MODULE_SETTING;
pub use glob::is_pattern as is_glob_pattern;
pub use parameters::{ChangeAction, ParameterFlags, ParameterId, find, id};
pub use rewrite::{ConfigRewriteError, ModuleSetting, RewriteScope, RewrittenDirectives};
pub use set::{ApplyResult, ParameterFailure, SetError, SetPermissions};
pub use specials::{ClientClass, OutputBufferLimit, PrimaryAddress, keyspace_events};
pub use start_error::StartError;
pub use value_error::ValueError;
pub use values::{Config, ConfigChangeGuard};

/// The version of Valkey whose parameters, files and replies are implemented.
pub const COMPATIBLE_VERSION: &str = "9.1.2";
/// The version of Redis with whose protocol and commands Valkey is compatible. Some clients read it.
pub const REDIS_VERSION: &str = "7.2.4";
