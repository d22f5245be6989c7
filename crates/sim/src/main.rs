//! `weft-sim`: runs servers in one process under a seeded scheduler, and checks what their clients see.
//!
//! `cargo xtask sim` builds this program with the feature `simulated` and runs it once per seed. One run is one
//! process: it starts the servers of a scenario, runs clients against them as threads of the same scheduler, and ends
//! with a line of figures. The same seed gives the same run, step by step.
//!
//! Modules in reading order: `run` is the course of one run, `operation` is what clients ask, `mix` how often they ask
//! it, `client` how they send it, `disturber` what happens meanwhile, `subscriber` and `tracker` what further clients
//! receive, `model` what a store does with it, and `checker` decides if the replies are those of one order.
#[cfg(feature = "simulated")]
mod checker;
#[cfg(feature = "simulated")]
mod client;
#[cfg(feature = "simulated")]
mod disturber;
#[cfg(feature = "simulated")]
mod entropy;
#[cfg(feature = "simulated")]
mod history;
#[cfg(feature = "simulated")]
mod mix;
#[cfg(feature = "simulated")]
mod model;
#[cfg(feature = "simulated")]
mod operation;
#[cfg(feature = "simulated")]
mod reply;
#[cfg(feature = "simulated")]
mod run;
#[cfg(feature = "simulated")]
mod scenario;
#[cfg(feature = "simulated")]
mod subscriber;
#[cfg(feature = "simulated")]
mod tracker;

use std::process::ExitCode;

#[cfg(feature = "simulated")]
fn main() -> ExitCode {
    run::main()
}

#[cfg(not(feature = "simulated"))]
fn main() -> ExitCode {
    eprintln!("weft-sim needs a build with the feature `simulated`; run `cargo xtask sim`");
    ExitCode::FAILURE
}
