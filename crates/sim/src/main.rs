//! `weft-sim`: runs servers in one process under a seeded scheduler, and checks what their clients see.
//!
//! `cargo xtask sim` builds this program with the feature `simulated` and runs it once per seed. One run is one
//! process: it starts the servers of a scenario, runs clients against them as threads of the same scheduler, and ends
//! with a line of figures. The same seed gives the same run, step by step.
//!
//! Modules in reading order: `run` is the course of one run, `operation` what clients ask, `mix` how often they ask it,
//! `client` how they send it, `disturber` what happens meanwhile, `meeting` when, `subscriber` and `tracker` what
//! further clients receive, `blocked_receiver` what they receive while they wait, `late_reader` how replies wait for a
//! socket, `endless` what runs until it is killed, `due_keys` what expires meanwhile, `turns` what waits for scripts,
//! `modules` what commands of a module replace,
//! `power_loss` what the disk keeps of a write, `cluster` a run with two nodes, `model` what a store does with it,
//! `checker` decides if the replies are those of one order, with the help of `executions`, `constraints` and
//! `list_order`, `lateness` if clients were answered in time, and `shutdown` ends the server within a `bound`.
mod blocked_receiver;
mod bound;
mod checker;
mod client;
mod cluster;
mod constraints;
mod disturber;
mod due_keys;
mod dump_observer;
mod endless;
mod entropy;
mod executions;
mod failovers;
mod history;
mod late_reader;
mod lateness;
mod list_order;
mod meeting;
mod mix;
mod model;
mod modules;
mod nodes;
mod operation;
mod power_loss;
mod reply;
mod run;
mod scenario;
mod shutdown;
mod subscriber;
mod tracker;
mod turns;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
