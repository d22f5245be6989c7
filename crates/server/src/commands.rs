//! The commands: their metadata, their registry and their handlers.

pub mod command_info;
pub mod registry;
pub mod spec;
pub mod tables;
