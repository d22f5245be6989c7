//! Tests of the command registry.
