//! The commands on the expiry of fields of hashes.

use super::context::Binding;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[];
