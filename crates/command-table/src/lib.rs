//! The table of commands: the name, arity, flags, keys, arguments and documentation of every command of Valkey.
//!
//! - [`spec`]: the types of a row, and the builders that the tables are written with.
//! - [`tables`]: the rows, one table for each command group.
//! - [`keys`]: finds the keys among the arguments of a request.
//! - [`registry`]: binds handlers to rows, and finds a command by its name.
#![forbid(unsafe_code)]

pub mod keys;
pub mod registry;
pub mod spec;
pub mod tables;
