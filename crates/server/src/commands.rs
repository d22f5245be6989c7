//! The commands: their metadata, their registry and their handlers.

pub mod spec;
pub mod tables;
