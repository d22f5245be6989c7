//! Scenarios about transactions: the effects of EXEC are visible completely or not at all, and watched keys do not
//! change during a transaction.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;

use super::client::StressReply;
use super::run::{ReconnectingClient, StressRun};

const ACCOUNTS: usize = 40;
const INITIAL_BALANCE: i64 = 1000;
const WATCHED: usize = 3;

/// The number of increments of watched counters that certainly ran, and the number of those that may have run: their
/// connection was closed before the reply.
static CERTAIN_INCREMENTS: AtomicU64 = AtomicU64::new(0);
static UNKNOWN_INCREMENTS: AtomicU64 = AtomicU64::new(0);

fn account(index: usize) -> String {
    format!("account:{index}")
}

/// Sets the balance of every account.
pub fn prepare_transfers(run: &StressRun) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    for index in 0..ACCOUNTS {
        client.execute(&format!("SET {} {INITIAL_BALANCE}", account(index)))?;
    }
    Ok(())
}

/// Executes these commands in a transaction and returns the reply to EXEC. `Err` means that the connection was closed;
/// it is `Err(true)` if EXEC may have run.
fn run_transaction(
    client: &mut ReconnectingClient<'_>,
    commands: &[String],
) -> Result<Result<StressReply, bool>, String> {
    for command in std::iter::once("MULTI").chain(commands.iter().map(String::as_str)) {
        if client.execute(command)?.is_none() {
            return Ok(Err(false));
        }
    }
    Ok(client.execute("EXEC")?.ok_or(true))
}

/// Runs the scenario: half of the threads move money between accounts, and the other half sum up all accounts.
pub fn transfer_accounts(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        if thread.is_multiple_of(2) {
            let amount = rng.i64(1..10);
            let (from, to) = (account(rng.usize(..ACCOUNTS)), account(rng.usize(..ACCOUNTS)));
            // A reply lost with a closed connection does not matter: the sum is the same whether the transaction ran or
            // not.
            let _ = run_transaction(
                &mut client,
                &[format!("DECRBY {from} {amount}"), format!("INCRBY {to} {amount}")],
            )?;
        } else {
            check_sum(&mut client)?;
        }
    }
    Ok(())
}

fn check_sum(client: &mut ReconnectingClient<'_>) -> Result<(), String> {
    let reads: Vec<String> = (0..ACCOUNTS).map(|index| format!("GET {}", account(index))).collect();
    let Ok(reply) = run_transaction(client, &reads)? else {
        return Ok(());
    };
    let sum: i64 = reply
        .items()
        .iter()
        .filter_map(|item| item.text().parse::<i64>().ok())
        .sum();
    let expected = ACCOUNTS as i64 * INITIAL_BALANCE;
    if sum == expected {
        client.run.succeed();
        Ok(())
    } else {
        Err(format!("the accounts add up to {sum} instead of {expected}"))
    }
}

/// Checks that the sum is unchanged.
pub fn check_transfers(run: &StressRun) -> Result<(), String> {
    check_sum(&mut ReconnectingClient::new(run, 0)?)
}

/// Increments counters by reading them, and writing only if no other client wrote meanwhile.
pub fn watched_counters(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let counter = format!("watched:{}", rng.usize(..WATCHED));
        if client.execute(&format!("WATCH {counter}"))?.is_none() {
            continue;
        }
        let Some(value) = client.execute(&format!("GET {counter}"))? else {
            continue;
        };
        let next = value.text().parse::<u64>().unwrap_or(0) + 1;
        match run_transaction(&mut client, &[format!("SET {counter} {next}")])? {
            Ok(reply) if reply.items().is_empty() => {}
            Ok(_) => {
                run.succeed();
                CERTAIN_INCREMENTS.fetch_add(1, Ordering::Relaxed);
            }
            Err(may_have_run) => {
                UNKNOWN_INCREMENTS.fetch_add(u64::from(may_have_run), Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Checks that no increment was lost or counted twice.
pub fn check_watched_counters(run: &StressRun) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    let mut sum = 0;
    for index in 0..WATCHED {
        let value = client.call(&format!("GET watched:{index}"))?;
        sum += value.and_then(|value| value.text().parse::<u64>().ok()).unwrap_or(0);
    }
    let (certain, unknown) = (
        CERTAIN_INCREMENTS.swap(0, Ordering::Relaxed),
        UNKNOWN_INCREMENTS.swap(0, Ordering::Relaxed),
    );
    let left = client.call("INFO clients")?.map_or(String::new(), |info| info.text());
    if !(certain..=certain + unknown).contains(&sum) {
        return Err(format!(
            "{certain} increments, {unknown} unknown, but the counters say {sum}"
        ));
    }
    if !left.contains("total_watched_keys:0\r") {
        return Err("watches of disconnected clients are left".to_owned());
    }
    Ok(())
}
