//! `weft-sim`: runs servers in one process under a seeded scheduler, and checks what their clients see.
//!
//! `cargo xtask sim` builds this program with `RUSTFLAGS="--cfg weft_sim"` and runs it once per seed. One run is one
//! process: it starts the servers of a scenario, runs clients against them as threads of the same scheduler, and ends
//! with a line of figures. The same seed gives the same run, step by step.
//!
//! Modules in reading order: `run` is the course of one run, `operation` is what clients ask, `mix` how often they ask
//! it, `client` how they send it, `disturber` what happens meanwhile, `subscriber` and `tracker` what further clients
//! receive, `model` what a store does with it, and `checker` decides if the replies are those of one order.
#[cfg(weft_sim)]
mod checker;
#[cfg(weft_sim)]
mod client;
#[cfg(weft_sim)]
mod disturber;
#[cfg(weft_sim)]
mod entropy;
#[cfg(weft_sim)]
mod history;
#[cfg(weft_sim)]
mod mix;
#[cfg(weft_sim)]
mod model;
#[cfg(weft_sim)]
mod operation;
#[cfg(weft_sim)]
mod reply;
#[cfg(weft_sim)]
mod run;
#[cfg(weft_sim)]
mod scenario;
#[cfg(weft_sim)]
mod subscriber;
#[cfg(weft_sim)]
mod tracker;

use std::process::ExitCode;

#[cfg(weft_sim)]
fn main() -> ExitCode {
    run::main()
}

#[cfg(not(weft_sim))]
fn main() -> ExitCode {
    eprintln!("weft-sim needs a build with RUSTFLAGS=\"--cfg weft_sim\"; run `cargo xtask sim`");
    ExitCode::FAILURE
}
