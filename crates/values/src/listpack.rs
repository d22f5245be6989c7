//! Runs of small elements, encoded as in Valkey's listpacks.
