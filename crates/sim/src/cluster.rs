//! Runs with a cluster of two nodes: the slot with all keys moves between them while clients write.
//!
//! Clients follow the slot. To the checker both nodes are one store: what one of them refuses has no effect.

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
use crate::operation::{TAG_SLOT, use_one_cluster_slot};
use crate::reply::SeenReply;
use crate::run::{check_copies, client_memory, join_clients, judge, read_everything, wait_until_alone};
use crate::scenario::{RunPlan, SlotMove};

/// The sockets of the nodes.
const NODES: [&str; 2] = ["primary.sock", "other.sock"];
/// The slots that move. Each node keeps one more: a node that has lost its last slot becomes a replica.
const MOVING: [u16; 2] = [1, 16382];
/// What shows the state of a node.
const STATE_REQUESTS: &[&str] = &["CLUSTER NODES", "CLUSTER GETSLOTMIGRATIONS"];
/// The longest run of a client, in pipelines. In some seeds almost every step switches threads.
const MAX_PIPELINES: usize = 30;
/// The time in which no thread can run while a request that does not block is unanswered, in nanoseconds. Writes to a
/// slot that moves wait for messages between the nodes.
const MAX_IDLE_WAIT_NS: u64 = 2_000_000_000;

/// Runs a plan of a cluster.
pub fn run(plan: &RunPlan, random: &mut Rng, port: u16) -> Result<String, String> {
    use_one_cluster_slot();
    let mut client_bytes = 0;
    for (node, socket) in NODES.iter().enumerate() {
        let number = node as u16;
        start_server(
            ["node-0", "node-1"][node],
            plan.node_arguments(node, socket, port + number, port + 2 + number),
        );
        // The second one starts later: both would write temporary files of the same name.
        client_bytes = client_memory(&mut connect(socket, 1)?)?;
    }
    let mut admins = Admins::connect(NODES, STATE_REQUESTS)?;
    admins.form_cluster(port)?;
    let mut threads = Vec::new();
    for index in 0..plan.clients {
        let (seed, plan) = (random.u64(..), plan.clone());
        threads.push(spawn(&format!("client-{index}"), move || {
            run_client(seed, index, &plan)
        }));
    }
    let (seed, mover) = (random.u64(..), plan.clone());
    threads.push(spawn("mover", move || move_slots(seed, &mover)));
    let mut histories = join_clients(threads)?;
    let owner = admins.wait_for_owner()?;
    for admin in &mut admins.clients {
        wait_until_alone(false, false, client_bytes, admin)?;
    }
    admins.expect_no_keys(1 - owner)?;
    read_everything(&mut admins.clients[owner])?;
    check_copies(plan, &mut admins.clients[owner])?;
    histories.extend(admins.clients.map(Client::into_history));
    let longest = lateness::find_longest_wait(&histories);
    longest.check(MAX_IDLE_WAIT_NS)?;
    let circumstances = Circumstances {
        may_redirect: true,
        ..Circumstances::default()
    };
    judge(&histories, circumstances, &longest)
}

impl Admins {
    /// Lets the nodes meet. The first one owns all slots but the last.
    fn form_cluster(&mut self, port: u16) -> Result<(), String> {
        let [_, last] = MOVING;
        self.ask(0, &format!("CLUSTER ADDSLOTSRANGE 0 {last}"))?;
        self.ask(1, &format!("CLUSTER ADDSLOTS {}", last + 1))?;
        self.ask(0, "CLUSTER SET-CONFIG-EPOCH 1")?;
        self.ask(1, "CLUSTER SET-CONFIG-EPOCH 2")?;
        self.ask(0, &format!("CLUSTER MEET 127.0.0.1 {} {}", port + 1, port + 3))?;
        self.wait_until("the nodes know each other", |admins| {
            for node in 0..2 {
                let nodes = admins.ask_text(node, "CLUSTER NODES")?;
                let is_ok = admins.ask_text(node, "CLUSTER INFO")?.contains("cluster_state:ok");
                let slots = [format!(" 0-{last}\n"), format!(" {}\n", last + 1)];
                let are_known = slots.iter().all(|slots| nodes.contains(slots));
                if !is_ok || nodes.matches(" connected").count() != 2 || !are_known {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn has_unfinished_job(&mut self, node: usize) -> Result<bool, String> {
        let jobs = self.ask(node, "CLUSTER GETSLOTMIGRATIONS")?;
        let SeenReply::Array(jobs) = &jobs else {
            return Err(format!("CLUSTER GETSLOTMIGRATIONS was answered by {jobs:?}"));
        };
        let has_ended = |job: &SeenReply| {
            let ends = ["success", "failed", "cancelled"].map(|state| SeenReply::bulk(Some(state.as_bytes())));
            matches!(job, SeenReply::Array(items) if items.iter().any(|item| ends.contains(item)))
        };
        Ok(!jobs.iter().all(has_ended))
    }

    /// Kills the first connection of a node over which slots migrate, if there is one.
    fn kill_migration_link(&mut self, node: usize) -> Result<(), String> {
        let list = self.ask_text(node, "CLIENT LIST")?;
        let field = |line: &str, name: &str| {
            let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
            fields.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let is_link = |line: &&str| field(line, "flags").is_some_and(|flags| flags.contains(['i', 'E']));
        match list.lines().find(is_link).and_then(|line| field(line, "id")) {
            Some(id) => self.ask(node, &format!("CLIENT KILL ID {id}")).map(drop),
            None => Ok(()),
        }
    }

    /// Waits until no migration is under way, and returns the node that serves the keys; the other one does not.
    fn wait_for_owner(&mut self) -> Result<usize, String> {
        let mut owner = None;
        self.wait_until("one node owns the slot", |admins| {
            for node in 0..2 {
                if admins.has_unfinished_job(node)? {
                    return Ok(false);
                }
            }
            let mut serving = Vec::new();
            for node in 0..2 {
                let reply = admins.ask(node, "GET {a}absent")?;
                if reply == SeenReply::Null {
                    serving.push(node);
                }
            }
            owner = serving.first().copied();
            Ok(serving.len() == 1)
        })?;
        owner.ok_or_else(|| "no node owns the slot".to_owned())
    }

    /// Checks that the node without the slot has none of its keys, even hidden.
    fn expect_no_keys(&mut self, node: usize) -> Result<(), String> {
        self.wait_until("the node without the slot has no keys", |admins| {
            let count = admins.ask(node, &format!("CLUSTER COUNTKEYSINSLOT {TAG_SLOT}"))?;
            let size = admins.ask(node, "DBSIZE")?;
            Ok(count == SeenReply::Integer(0) && size == SeenReply::Integer(0))
        })
    }
}

/// Runs a client. It has a connection to each node that it needs.
fn run_client(seed: u64, index: usize, plan: &RunPlan) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let mix = plan.first_mix.as_ref().filter(|_| index < 2).unwrap_or(&plan.mix);
    let mut source = OperationSource::new(mix.clone(), index as u64);
    let mut connections: [Option<Client>; 2] = [None, None];
    let mut node = 0;
    for _ in 0..(plan.pipelines * 3).min(MAX_PIPELINES) {
        // A migration takes much longer than a request.
        if random.bool() {
            thread::sleep(Duration::from_micros(random.u64(..30_000)));
        }
        let client = match &mut connections[node] {
            Some(client) => client,
            none => none.insert(connect_client(NODES[node], &mut random, plan)?),
        };
        match client.run(source.draw_pipeline(&mut random)) {
            Ok(()) => {}
            Err(ClientEnd::Closed) => return Err("a node closed a connection".to_owned()),
            Err(ClientEnd::Failed(reason)) => return Err(reason),
        }
        if client.was_redirected() {
            node = 1 - node;
        }
    }
    end_connections(connections, node, &source.draw_pipeline(&mut random), &mut random)
}

/// Moves slots, one action after the other.
fn move_slots(seed: u64, plan: &RunPlan) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let mut admins = Admins::connect(NODES, STATE_REQUESTS)?;
    let mut ids = Vec::new();
    for node in 0..2 {
        ids.push(admins.ask_text(node, "CLUSTER MYID")?);
    }
    for action in &plan.slot_moves {
        thread::sleep(Duration::from_micros(random.u64(..100_000)));
        let node = random.usize(..2);
        match action {
            SlotMove::Begin => begin(&mut admins, &mut random, node, &ids)?,
            SlotMove::BeginAndWait => {
                begin(&mut admins, &mut random, 0, &ids)?;
                begin(&mut admins, &mut random, 1, &ids)?;
                admins.wait_until("no migration is under way", |admins| {
                    Ok(!admins.has_unfinished_job(0)? && !admins.has_unfinished_job(1)?)
                })?;
            }
            SlotMove::KillLink => admins.kill_migration_link(node)?,
            SlotMove::Cancel => drop(admins.ask(node, "CLUSTER CANCELSLOTMIGRATIONS")?),
            // The temporary files of the nodes would have the same names: both are one process.
            SlotMove::Save => drop(admins.ask(0, "BGSAVE")?),
            SlotMove::Rewrite => drop(admins.ask(0, "BGREWRITEAOF")?),
            SlotMove::KillScript => {
                for _ in 0..random.usize(..30) {
                    admins.ask(node, "SCRIPT KILL")?;
                }
            }
        }
    }
    Ok(admins.clients.map(Client::into_history).into())
}

/// Begins a migration from a node to the other one. A node without the slots refuses it.
fn begin(admins: &mut Admins, random: &mut Rng, node: usize, ids: &[String]) -> Result<(), String> {
    let [first, last] = match random.u32(..3) {
        0 => [random.u16(MOVING[0]..=TAG_SLOT), random.u16(TAG_SLOT..=MOVING[1])],
        1 => [TAG_SLOT; 2],
        _ => MOVING,
    };
    let target = &ids[1 - node];
    admins
        .ask(
            node,
            &format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {target}"),
        )
        .map(drop)
}
