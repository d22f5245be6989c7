//! `weft-bench`: the load generator and the comparison tables.
#![forbid(unsafe_code)]

mod background_load;
mod cli;
mod compare;
mod comparison;
mod content;
mod control;
mod draw;
mod driver;
mod error;
mod expect;
mod fill;
mod flags;
mod keyspace;
mod load;
mod load_stream;
mod machine_memory;
mod process;
mod replica;
mod reply;
mod report;
mod run;
mod scripts;
mod server;
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
            eprintln!("weft-bench: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
