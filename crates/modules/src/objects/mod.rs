//! What modules hold pointers to.

pub mod context;
pub mod string;
