//! The scenario that a seed selects: the servers, their clients, and the disturbances.

use std::ffi::OsString;

use fastrand::Rng;

use crate::mix::{OperationKind as Kind, OperationMix};

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The number of workers.
    pub workers: usize,
    /// The number of clients.
    pub clients: usize,
    /// The number of connections that each client makes, one after the other.
    pub connections_per_client: usize,
    /// The number of pipelines that a client sends on each connection.
    pub pipelines: usize,
    /// `appendfsync`, if the server has an append-only file.
    pub appendfsync: Option<&'static str>,
    /// The operations that clients send.
    pub mix: OperationMix,
    /// The disturbances that a further client causes.
    pub disturbances: Vec<Disturbance>,
    /// `true` if all keys are in two slots of the keyspace.
    pub shares_slots: bool,
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

/// What the clients of a run do most of the time. What can go wrong in the smallest windows is what a combination is
/// for.
struct Focus {
    kinds: &'static [Kind],
    disturbances: &'static [Disturbance],
    moves_connections: bool,
}

impl Focus {
    const fn new(kinds: &'static [Kind], disturbances: &'static [Disturbance]) -> Focus {
        Focus {
            kinds,
            disturbances,
            moves_connections: false,
        }
    }

    const fn with_moves(self) -> Focus {
        Focus {
            moves_connections: true,
            ..self
        }
    }
}

const FOCUSES: [Focus; 13] = [
    Focus::new(&[Kind::FlushAll, Kind::Transaction], &[Disturbance::Pause]),
    Focus::new(
        &[Kind::Set, Kind::SetRepeatedly],
        &[Disturbance::Pause, Disturbance::Demote],
    ),
    Focus::new(
        &[Kind::FlushAll, Kind::Set, Kind::SetRepeatedly],
        &[Disturbance::Demote],
    ),
    Focus::new(
        &[Kind::BlockingPop, Kind::BlockingMove, Kind::List],
        &[Disturbance::Pause],
    ),
    Focus::new(
        &[Kind::BlockingPop, Kind::BlockingMove, Kind::List, Kind::ScriptPush],
        &[],
    )
    .with_moves(),
    Focus::new(
        &[Kind::String],
        &[Disturbance::KillInTransaction, Disturbance::KillClients],
    ),
    Focus::new(
        &[Kind::String, Kind::FlushAll],
        &[Disturbance::Save, Disturbance::Rewrite],
    ),
    Focus::new(
        &[Kind::ScriptSlowAppend, Kind::ScriptUndeclared, Kind::ScriptSwap],
        &[Disturbance::KillScript],
    ),
    Focus::new(&[Kind::Volatile, Kind::Transaction], &[]),
    Focus::new(&[Kind::Watch, Kind::Transaction, Kind::String], &[]),
    Focus::new(&[Kind::Read], &[]),
    Focus::new(&[Kind::BlockingPop, Kind::String], &[]),
    Focus::new(&[Kind::Publish, Kind::String], &[]).with_moves(),
];

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

    /// Draws many disturbances of the given kinds.
    fn draw_of(random: &mut Rng, kinds: &[Disturbance]) -> Vec<Disturbance> {
        let count = if kinds.is_empty() { 0 } else { random.usize(4..16) };
        (0..count).map(|_| kinds[random.usize(..kinds.len())]).collect()
    }

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
        let focus = random.bool().then(|| &FOCUSES[random.usize(..FOCUSES.len())]);
        let appendfsync = [None, Some("always"), Some("everysec")][random.usize(..3)];
        // Connections that live shortly end more often.
        let connections_per_client = [1, 1, 3][random.usize(..3)];
        RunPlan {
            workers: random.usize(1..5),
            clients: random.usize(2..8),
            connections_per_client,
            pipelines: (random.usize(2..9) / connections_per_client).max(1),
            appendfsync,
            mix: match focus {
                Some(focus) => OperationMix::draw_focused(random, focus.kinds),
                None => OperationMix::draw(random),
            },
            disturbances: match focus {
                Some(focus) => Disturbance::draw_of(random, focus.disturbances),
                None => Disturbance::draw_list(random),
            },
            shares_slots: random.u32(..3) == 0,
            has_replica: random.u32(..4) == 0,
            has_subscriber: random.u32(..3) == 0,
            has_tracker: random.u32(..3) == 0,
            moves_connections: focus.is_some_and(|focus| focus.moves_connections) || random.u32(..3) == 0,
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
