//! The scenario that a seed selects: the servers, their clients, and the disturbances.

use std::ffi::OsString;

use fastrand::Rng;

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
    /// The disturbances that a further client causes.
    pub disturbances: Vec<Disturbance>,
    /// `true` if a replica follows the server.
    pub has_replica: bool,
    /// `true` if a client subscribes to the messages of the others.
    pub has_subscriber: bool,
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

impl RunPlan {
    /// Draws a scenario.
    pub fn draw(random: &mut Rng) -> RunPlan {
        use Disturbance::*;
        let appendfsync = [None, Some("always"), Some("everysec")][random.usize(..3)];
        let all = [
            Pause,
            Save,
            Rewrite,
            KillClients,
            Configure,
            KillScript,
            LoadFunctions,
            Reload,
            Demote,
        ];
        let count = random.usize(..6);
        let disturbances = (0..count).map(|_| all[random.usize(..all.len())]).collect();
        RunPlan {
            workers: random.usize(1..5),
            clients: random.usize(2..8),
            pipelines: random.usize(2..9),
            appendfsync,
            disturbances,
            has_replica: random.u32(..4) == 0,
            has_subscriber: random.u32(..3) == 0,
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
