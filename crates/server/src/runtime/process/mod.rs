//! The process and its environment: daemon, supervisor, files, limits, warnings, crash reports.

pub mod banner;
pub mod collation;
pub mod cpus;
pub mod crash;
pub mod daemon;
pub mod kernel;
pub mod oom_score;
pub mod open_files;
pub mod pid_file;
pub mod restart;
pub mod supervisor;
pub mod threads;
pub mod title;
