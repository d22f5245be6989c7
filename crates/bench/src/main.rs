//! `weft-bench`: the load generator, and the tables and pages of comparisons.
#![forbid(unsafe_code)]

mod background_load;
mod batch_connection;
mod churn;
mod cli;
mod client_threads;
mod compare;
mod comparison;
mod content;
mod control;
mod draw;
mod driver;
mod environment;
mod error;
mod eviction;
mod expect;
mod fill;
mod flag_tables;
mod flags;
#[cfg(test)]
mod folder_for_tests;
mod html_report;
mod interleave;
mod interruption;
mod keyspace;
mod load;
mod load_stream;
mod machine_memory;
mod process;
mod progress;
mod replica;
mod reply;
mod report;
mod run;
mod scripts;
mod server;
#[cfg(test)]
mod server_for_tests;
mod sets;
mod subscribers;
mod template;
mod tls;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match cli::run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::log_line(format_args!("weft-bench: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
