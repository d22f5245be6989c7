//! EVAL and FCALL, and the commands that load and stop scripts.

pub mod function;
pub mod module_calls;
pub mod preparing;
pub mod script;
