//! The commands on streams.

use super::context::Binding;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[];
