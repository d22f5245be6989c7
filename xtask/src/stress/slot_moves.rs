//! Moves slots between the nodes of a cluster: key by key with MIGRATE, and as a whole with CLUSTER MIGRATESLOTS.
//!
//! Manual moves and migrations of whole slots exclude each other on a node, so they take turns.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply};
use super::run::StressRun;
use super::tags::{self, TAGS, tag};
use super::watchdog;

/// The number of keys that each MIGRATE moves.
const KEYS_PER_MIGRATE: usize = 5;
/// The time limit of MIGRATE in milliseconds. The target may be paused, or run a script that ends only when it is
/// killed.
const MIGRATE_TIMEOUT_MS: u32 = 20_000;
/// The maximum number of slots that migrate as a whole at the same time.
const MAX_MIGRATIONS: usize = 3;
/// The pause between two looks at something that must end.
const POLL_PAUSE: Duration = Duration::from_millis(10);
/// The states in which a migration has ended.
const END_STATES: [&str; 3] = ["success", "failed", "cancelled"];
/// The reasons of failed migrations that nothing explains here. Others are that data was flushed, that a script kept a
/// node from taking over in time, that a paused node was late, or that the migration was cancelled.
const UNEXPECTED_REASONS: [&str; 3] = [
    "Failed to process command",
    "Unexpected state machine transition",
    "Unknown SYNCSLOTS",
];

/// The error of CLUSTER CANCELSLOTMIGRATIONS on a node that exports no slot.
const NO_MIGRATIONS: &str = "ERR No migrations ongoing";
/// The errors of CLUSTER SETSLOT on a node that imports or exports a slot as a whole.
const MIGRATIONS_IN_PROGRESS: [&str; 2] = ["ERR Slot import in progress.", "ERR Slot export in progress."];

/// The kinds of achievements: moves of a slot that were completed.
pub const KINDS: &[&str] = &[BY_KEY, AS_A_WHOLE];
const BY_KEY: &str = "MIGRATE";
const AS_A_WHOLE: &str = "CLUSTER MIGRATESLOTS";

/// The nodes of the cluster.
struct ClusterNodes {
    clients: Vec<StressClient>,
    ids: Vec<String>,
}

/// A slot that migrates as a whole.
struct Migration {
    tag: usize,
    from: usize,
    to: usize,
}

/// Returns an error unless a command was answered by a simple string.
pub fn expect_ok(reply: Result<StressReply, CallError>) -> Result<(), String> {
    match reply? {
        StressReply::Simple(_) => Ok(()),
        other => Err(format!("a command on the cluster was answered by {other:?}")),
    }
}

/// Moves the slots of random tags to random other nodes, with all of their keys.
pub fn move_slots(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut nodes = ClusterNodes::connect(run)?;
    while run.is_running() {
        match rng.bool() {
            true => nodes.move_by_key(run, &mut rng)?,
            false => nodes.move_as_whole(run, &mut rng)?,
        }
        std::thread::sleep(Duration::from_millis(rng.u64(..20)));
    }
    Ok(())
}

/// Checks that no node has keys of a slot of another node. The keys of a slot that has left as a whole are deleted
/// after that.
pub fn check_slots(run: &StressRun) -> Result<(), String> {
    let mut nodes = ClusterNodes::connect(run)?;
    let deadline = Instant::now() + watchdog::bound();
    for tag in 0..TAGS {
        while let Err(story) = nodes.check_slot(tag) {
            if Instant::now() > deadline {
                return Err(story);
            }
            std::thread::sleep(POLL_PAUSE);
        }
    }
    Ok(())
}

impl ClusterNodes {
    fn connect(run: &StressRun) -> Result<ClusterNodes, String> {
        let mut nodes = ClusterNodes {
            clients: Vec::new(),
            ids: Vec::new(),
        };
        for node in 0..run.servers() {
            let mut client = run.connect_to(node)?;
            nodes.ids.push(client.execute("CLUSTER MYID")?.text());
            nodes.clients.push(client);
        }
        Ok(nodes)
    }

    fn slot(&mut self, number: usize) -> Result<String, String> {
        let reply = self.clients[0].execute(&format!("CLUSTER KEYSLOT {}", tag(number)))?;
        Ok(reply.text())
    }

    /// Returns the node that has the slot of a tag.
    fn owner(&mut self, number: usize) -> Result<usize, String> {
        for (index, node) in self.clients.iter_mut().enumerate() {
            match node.call(&format!("EXISTS {}left", tag(number)))? {
                StressReply::Error(error) if error.starts_with("MOVED ") => {}
                StressReply::Integer(_) => return Ok(index),
                other => return Err(format!("EXISTS was answered by {other:?}")),
            }
        }
        Err(format!("no node has the slot of {}", tag(number)))
    }

    /// Moves a slot with CLUSTER SETSLOT and MIGRATE.
    fn move_by_key(&mut self, run: &StressRun, rng: &mut Rng) -> Result<(), String> {
        let number = random_tag(rng, tags::moves_by_key);
        let (slot, from) = (self.slot(number)?, self.owner(number)?);
        let count = self.clients.len();
        let to = (from + rng.usize(1..count)) % count;
        let (ids, clients) = (&self.ids, &mut self.clients);
        set_slot(&mut clients[to], &format!("{slot} IMPORTING {}", ids[from]))?;
        set_slot(&mut clients[from], &format!("{slot} MIGRATING {}", ids[to]))?;
        migrate_keys(run, &mut clients[from], &slot, to)?;
        let others = (0..count).filter(|node| ![to, from].contains(node));
        for node in [to, from].into_iter().chain(others) {
            set_slot(&mut clients[node], &format!("{slot} NODE {}", ids[to]))?;
        }
        run.succeed_in(BY_KEY);
        Ok(())
    }

    /// Moves some slots with CLUSTER MIGRATESLOTS. A migration may be cancelled, or fail because of what else happens.
    fn move_as_whole(&mut self, run: &StressRun, rng: &mut Rng) -> Result<(), String> {
        let mut migrations: Vec<Migration> = Vec::new();
        for _ in 0..rng.usize(1..=MAX_MIGRATIONS) {
            let number = random_tag(rng, tags::moves_as_whole);
            if migrations.iter().any(|other| other.tag == number) {
                continue;
            }
            let (slot, from) = (self.slot(number)?, self.owner(number)?);
            let to = (from + rng.usize(1..self.clients.len())) % self.clients.len();
            let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", self.ids[to]);
            expect_ok(self.clients[from].call(&command))?;
            migrations.push(Migration { tag: number, from, to });
        }
        if rng.u8(..8) == 0 {
            std::thread::sleep(Duration::from_millis(rng.u64(..50)));
            match self.clients[migrations[0].from].call("CLUSTER CANCELSLOTMIGRATIONS")? {
                // The migrations of this node have ended.
                StressReply::Error(error) if error == NO_MIGRATIONS => {}
                reply => expect_ok(Ok(reply))?,
            }
        }
        self.await_migrations()?;
        for Migration { tag: number, from, to } in migrations {
            match self.owner(number)? {
                owner if owner == to => run.succeed_in(AS_A_WHOLE),
                owner if owner == from => {}
                owner => {
                    let tag = tag(number);
                    return Err(format!(
                        "the slot of {tag} migrated from node {from} to {to}, and node {owner} has it"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Waits until all nodes have ended all migrations.
    fn await_migrations(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + 2 * watchdog::bound();
        // During the first pass without a migration, a node that was looked at may still have begun an import.
        let mut quiet_passes = 0;
        while quiet_passes < 2 {
            match self.running_migration()? {
                None => quiet_passes += 1,
                Some(job) if Instant::now() > deadline => {
                    return Err(format!("a migration of a whole slot does not end: {job:?}"));
                }
                Some(_) => {
                    quiet_passes = 0;
                    std::thread::sleep(POLL_PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Returns a migration that has not ended.
    fn running_migration(&mut self) -> Result<Option<StressReply>, String> {
        for node in &mut self.clients {
            let jobs = node.execute("CLUSTER GETSLOTMIGRATIONS")?;
            for job in jobs.items() {
                let message = field(job, "message");
                if UNEXPECTED_REASONS.iter().any(|reason| message.contains(reason)) {
                    return Err(format!("a migration of a whole slot failed: {job:?}"));
                }
                if !has_ended(job) {
                    return Ok(Some(job.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Checks that only the owner of a tag's slot has keys of it.
    fn check_slot(&mut self, number: usize) -> Result<(), String> {
        let (slot, owner) = (self.slot(number)?, self.owner(number)?);
        for (index, node) in self.clients.iter_mut().enumerate() {
            let count = node.execute(&format!("CLUSTER COUNTKEYSINSLOT {slot}"))?;
            if (count != StressReply::Integer(0)) != (owner == index) {
                return Err(format!(
                    "node {index} has {count:?} keys of slot {slot}, whose node is {owner}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns a random tag whose slot may move in a certain way.
fn random_tag(rng: &mut Rng, may_move: fn(usize) -> bool) -> usize {
    loop {
        let number = rng.usize(..TAGS);
        if may_move(number) {
            return number;
        }
    }
}

/// Returns a field of a migration, or an empty text.
fn field(job: &StressReply, name: &str) -> String {
    let mut pairs = job.items().chunks_exact(2);
    let found = pairs.find(|pair| pair[0].text() == name);
    found.map_or_else(String::new, |pair| pair[1].text())
}

fn has_ended(job: &StressReply) -> bool {
    END_STATES.contains(&field(job, "state").as_str())
}

/// Sends CLUSTER SETSLOT, again as long as a node refuses it because of a migration of a whole slot: an import may
/// begin and end after its export was cancelled.
fn set_slot(node: &mut StressClient, arguments: &str) -> Result<(), String> {
    let deadline = Instant::now() + watchdog::bound();
    loop {
        match node.call(&format!("CLUSTER SETSLOT {arguments}"))? {
            StressReply::Error(error) if MIGRATIONS_IN_PROGRESS.contains(&&*error) && Instant::now() < deadline => {
                std::thread::sleep(POLL_PAUSE);
            }
            reply => return expect_ok(Ok(reply)),
        }
    }
}

fn migrate_keys(run: &StressRun, from: &mut StressClient, slot: &str, to: usize) -> Result<(), String> {
    let port = run.addresses[to].port();
    loop {
        let keys = from.execute(&format!("CLUSTER GETKEYSINSLOT {slot} {KEYS_PER_MIGRATE}"))?;
        let names: Vec<String> = keys.items().iter().map(StressReply::text).collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut words: Vec<String> = format!("MIGRATE 127.0.0.1 {port}  0 {MIGRATE_TIMEOUT_MS} KEYS")
            .split(' ')
            .map(str::to_owned)
            .collect();
        words.extend(names);
        match from.call_words(words)? {
            // The keys have expired. They are in the slot until they are deleted.
            StressReply::Simple(text) if text == "NOKEY" => std::thread::sleep(POLL_PAUSE),
            StressReply::Simple(_) => {}
            other => return Err(format!("MIGRATE was answered by {other:?}")),
        }
    }
}
