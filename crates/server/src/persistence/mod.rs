//! Data on disk: dumps, the append-only file, and the snapshots that both are written from.

pub mod aof;
pub mod aof_files;
pub mod rdb_file;
pub mod save;
pub mod snapshot;
pub mod snapshot_state;
