//! Runs with a server and a replica that exchange their roles by FAILOVER while clients write.
//!
//! Clients follow the primary. To the checker both servers are one store: what a replica refuses has no effect, and all
//! else must be there on the next primary. Clients send writes only, since a replica may reply to reads with what has
//! changed on the primary meanwhile.

use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;
use weft_server::simulation::start_server;

use crate::client::{Client, ClientEnd, connect, spawn};
use crate::history::ConnectionHistory;
use crate::lateness;
use crate::mix::OperationSource;
use crate::model::Circumstances;
use crate::nodes::{Admins, connect_client, end_connections};
use crate::operation::Operation;
use crate::run::{check_copies, client_memory, join_clients, judge, read_everything, wait_until_alone};
use crate::scenario::{FailoverAction, RunPlan};

/// The sockets of the servers.
const SERVERS: [&str; 2] = ["primary.sock", "replica.sock"];
/// The longest run of a client, in pipelines.
const MAX_PIPELINES: usize = 30;
/// The time in which no thread can run while a request that does not block is unanswered, in nanoseconds. A failover
/// pauses writes until the replica has reported that it has everything.
const MAX_IDLE_WAIT_NS: u64 = 5_000_000_000;

/// Runs a plan with failovers.
///
/// # Errors
/// If a check fails.
pub fn run(plan: &RunPlan, random: &mut Rng, port: u16) -> Result<String, String> {
    start_server("primary", plan.primary_arguments(port));
    let client_bytes = client_memory(&mut connect(SERVERS[0], 1)?)?;
    start_server("replica", plan.replica_arguments(port, port + 1));
    let mut admins = Admins::connect(SERVERS, &["INFO replication"])?;
    let first = wait_for_primary(&mut admins)?;
    if first != 0 {
        return Err("the replica is a primary from the start".to_owned());
    }
    let mut threads = Vec::new();
    for index in 0..plan.clients {
        let (seed, plan) = (random.u64(..), plan.clone());
        threads.push(spawn(&format!("client-{index}"), move || {
            run_client(seed, index, &plan)
        }));
    }
    let (seed, actions) = (random.u64(..), plan.failovers.clone());
    threads.push(spawn("failovers", move || fail_over_repeatedly(seed, &actions)));
    let mut histories = join_clients(threads)?;
    let primary = wait_for_primary(&mut admins)?;
    wait_until_alone(false, true, client_bytes, &mut admins.clients[primary])?;
    read_everything(&mut admins.clients[primary])?;
    admins.wait_until("the replica has the same data", |admins| {
        Ok(admins.ask(0, "DEBUG DIGEST")? == admins.ask(1, "DEBUG DIGEST")?)
    })?;
    let copies = RunPlan {
        has_replica: false,
        // The second server has no append-only file.
        appendfsync: plan.appendfsync.filter(|_| primary == 0),
        ..plan.clone()
    };
    check_copies(&copies, &mut admins.clients[primary])?;
    let promotions = promotions(&mut admins)?;
    histories.extend(admins.clients.map(Client::into_history));
    let longest = lateness::find_longest_wait(&histories);
    longest.check(MAX_IDLE_WAIT_NS)?;
    let circumstances = Circumstances {
        may_redirect: true,
        may_fail_over: true,
        ..Circumstances::default()
    };
    judge(&histories, circumstances, &longest).map(|text| format!("{text}, {promotions} failovers"))
}

/// Returns the number of failovers that have succeeded, which is even if the first server is the primary.
fn promotions(admins: &mut Admins) -> Result<usize, String> {
    let text = std::fs::read_to_string("log").map_err(|error| format!("the log: {error}"))?;
    let count = text.matches("PRIMARY MODE enabled (failover request").count();
    let primary = wait_for_primary(admins)?;
    match count % 2 == primary {
        true => Ok(count),
        false => Err(format!("{count} failovers, and server {primary} is the primary")),
    }
}

/// Waits until one of the servers is a primary without a failover, and the other one follows it. Returns the primary.
fn wait_for_primary(admins: &mut Admins) -> Result<usize, String> {
    let mut primary = None;
    admins.wait_until("one server follows the other", |admins| {
        let mut infos = Vec::new();
        for node in 0..2 {
            infos.push(admins.ask_text(node, "INFO replication")?);
        }
        let has = |node: usize, line: &str| infos[node].lines().any(|other| other == line);
        primary = (0..2).find(|&node| {
            has(node, "role:master")
                && has(node, "master_failover_state:no-failover")
                && infos[node].contains("state=online")
                && has(1 - node, "role:slave")
                && has(1 - node, "master_link_status:up")
        });
        Ok(primary.is_some())
    })?;
    primary.ok_or_else(|| "there is no primary".to_owned())
}

/// Exchanges the roles of the servers again and again.
fn fail_over_repeatedly(seed: u64, actions: &[FailoverAction]) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let mut admins = Admins::connect(SERVERS, &["INFO replication"])?;
    for action in actions {
        thread::sleep(Duration::from_micros(random.u64(..60_000)));
        let primary = wait_for_primary(&mut admins)?;
        match action {
            FailoverAction::Complete => drop(admins.ask(primary, "FAILOVER")?),
            FailoverAction::WithTimeout => drop(admins.ask(primary, "FAILOVER TIMEOUT 20")?),
            // In a transaction: once the replica is asked to become the primary, there may be two of them.
            FailoverAction::Abort => {
                for request in ["MULTI", "FAILOVER", "FAILOVER ABORT", "EXEC"] {
                    admins.ask(primary, request)?;
                }
            }
        }
        wait_for_primary(&mut admins)?;
    }
    Ok(admins.clients.map(Client::into_history).into())
}

/// Runs a client. It sends its requests to the server that is the primary, as far as it knows.
fn run_client(seed: u64, index: usize, plan: &RunPlan) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let mut source = OperationSource::new(plan.mix.clone(), index as u64);
    let mut finished = Vec::new();
    let mut connections: [Option<Client>; 2] = [None, None];
    let mut node = 0;
    for _ in 0..(plan.pipelines * 3).min(MAX_PIPELINES) {
        if random.bool() {
            thread::sleep(Duration::from_micros(random.u64(..20_000)));
        }
        let mut client = match connections[node].take() {
            Some(client) => client,
            None => connect_client(SERVERS[node], &mut random, plan)?,
        };
        match client.run(writes(source.draw_pipeline(&mut random))) {
            Ok(()) => {
                let was_refused = client.was_refused_by_replica();
                connections[node] = Some(client);
                if was_refused {
                    node = 1 - node;
                }
            }
            // A client that was blocked when its server became a replica is disconnected.
            Err(ClientEnd::Closed) => {
                finished.push(client.into_history());
                node = 1 - node;
            }
            Err(ClientEnd::Failed(reason)) => return Err(reason),
        }
    }
    let last = writes(source.draw_pipeline(&mut random));
    finished.extend(end_connections(connections, node, &last, &mut random)?);
    Ok(finished)
}

/// Replaces what a replica would not refuse.
fn writes(operations: Vec<Operation>) -> Vec<Operation> {
    let replaced = |operation: Operation| match operation.is_write() {
        true => operation,
        false => Operation::Append(0),
    };
    operations.into_iter().map(replaced).collect()
}
