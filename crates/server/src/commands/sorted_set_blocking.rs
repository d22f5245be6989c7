//! The commands on sorted sets that wait for a member: BZPOPMIN, BZPOPMAX, BZMPOP.

use super::context::Binding;

/// The commands of this file and their handlers.
pub const BINDINGS: &[(&str, Binding)] = &[];
