//! `weft-bench`: the load generator and the comparison tables.
#![forbid(unsafe_code)]

mod background_load;
mod cli;
mod compare;
mod content;
mod control;
mod draw;
mod driver;
mod error;
mod expect;
mod flags;
mod keyspace;
mod load;
mod process;
mod reply;
mod report;
mod run;
mod server;
mod sets;
mod template;

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
