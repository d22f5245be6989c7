//! EVAL, FCALL and their relatives, and the commands that load and stop scripts.

pub mod function;
pub mod script;
