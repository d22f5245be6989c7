//! EVAL and FCALL, and the commands that load and stop scripts.

pub mod function;
pub mod preparing;
pub mod script;
