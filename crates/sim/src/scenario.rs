//! The scenario that a seed selects: the servers, their clients, and the disturbances.

use std::ffi::OsString;

use fastrand::Rng;

use crate::mix::OperationMix;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The number of workers.
    pub workers: usize,
    /// The number of clients.
    pub clients: usize,
    /// The number of pipelines that each client sends.
    pub pipelines: usize,
    /// `appendfsync`, if the server has an append-only file.
    pub appendfsync: Option<&'static str>,
    /// The operations that clients send.
    pub mix: OperationMix,
    /// The disturbances that a further client causes.
    pub disturbances: Vec<Disturbance>,
    /// `true` if a replica follows the server.
    pub has_replica: bool,
    /// `true` if a client subscribes to the messages of the others.
    pub has_subscriber: bool,
    /// `true` if a client caches what it reads.
    pub has_tracker: bool,
    /// `true` if connections move between the workers all the time.
    pub moves_connections: bool,
}

/// An action of the disturbing client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// CLIENT PAUSE WRITE, and later CLIENT UNPAUSE.
    Pause,
    /// BGSAVE.
    Save,
    /// BGREWRITEAOF.
    Rewrite,
    /// CLIENT KILL of all others.
    KillClients,
    /// CLIENT KILL of all others in a transaction.
    KillInTransaction,
    /// CONFIG SET of a parameter that takes effect in exclusive mode.
    Configure,
    /// SCRIPT KILL.
    KillScript,
    /// FLUSHALL by a function that loads a library.
    LoadFunctions,
    /// DEBUG RELOAD.
    Reload,
    /// REPLICAOF a server that does not exist, and later REPLICAOF NO ONE.
    Demote,
}

impl Disturbance {
    const ALL: [Disturbance; 10] = [
        Disturbance::Pause,
        Disturbance::Save,
        Disturbance::Rewrite,
        Disturbance::KillClients,
        Disturbance::KillInTransaction,
        Disturbance::Configure,
        Disturbance::KillScript,
        Disturbance::LoadFunctions,
        Disturbance::Reload,
        Disturbance::Demote,
    ];

    /// Draws the disturbances of a run: a few of all kinds, or many of one or two.
    fn draw_list(random: &mut Rng) -> Vec<Disturbance> {
        let mut draw = || Disturbance::ALL[random.usize(..Disturbance::ALL.len())];
        let two = [draw(), draw()];
        match random.u32(..3) {
            0 => (0..random.usize(4..16)).map(|_| two[random.usize(..2)]).collect(),
            _ => (0..random.usize(..6))
                .map(|_| Disturbance::ALL[random.usize(..Disturbance::ALL.len())])
                .collect(),
        }
    }
}

impl RunPlan {
    /// Draws a scenario.
    pub fn draw(random: &mut Rng) -> RunPlan {
        let appendfsync = [None, Some("always"), Some("everysec")][random.usize(..3)];
        RunPlan {
            workers: random.usize(1..5),
            clients: random.usize(2..8),
            pipelines: random.usize(2..9),
            appendfsync,
            mix: OperationMix::draw(random),
            disturbances: Disturbance::draw_list(random),
            has_replica: random.u32(..4) == 0,
            has_subscriber: random.u32(..3) == 0,
            has_tracker: random.u32(..3) == 0,
            moves_connections: random.u32(..3) == 0,
        }
    }

    /// The command line of the server that clients talk to.
    pub fn primary_arguments(&self, port: u16) -> Vec<OsString> {
        let workers = self.workers.to_string();
        let port = if self.has_replica { port } else { 0 }.to_string();
        let mut words = vec![
            "weft-server",
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            "primary.sock",
        ];
        words.extend(["--io-threads", &workers, "--io-threads-always-active", "yes"]);
        words.extend(["--save", "", "--enable-debug-command", "yes", "--logfile", "log"]);
        words.extend(["--appendonly", if self.appendfsync.is_some() { "yes" } else { "no" }]);
        words.extend(["--appendfsync", self.appendfsync.unwrap_or("everysec")]);
        words.extend(["--repl-diskless-sync-delay", "0"]);
        if self.moves_connections {
            words.extend(["--connection-move-interval", "1"]);
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// The command line of the replica.
    pub fn replica_arguments(&self, primary_port: u16, port: u16) -> Vec<OsString> {
        let primary = format!("127.0.0.1 {primary_port}");
        let port = port.to_string();
        let mut words = vec![
            "weft-server",
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            "replica.sock",
        ];
        words.extend(["--io-threads", "1", "--save", "", "--replicaof", &primary]);
        words.extend(["--enable-debug-command", "yes"]);
        words.extend([
            "--dbfilename",
            "replica.rdb",
            "--appenddirname",
            "replica-aof",
            "--logfile",
            "log",
        ]);
        words.into_iter().map(OsString::from).collect()
    }
}
