//! The scenario that a seed selects: the servers, their clients, and the disturbances.

use std::ffi::OsString;

use fastrand::Rng;

use crate::due_keys;
use crate::mix::{OperationKind as Kind, OperationMix};
use crate::modules;
use crate::operation::KEYS_PER_TYPE;

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
    /// The operations of the first two clients, if they differ.
    pub first_mix: Option<OperationMix>,
    /// `true` if the first two clients send one pipeline each.
    pub first_leave_early: bool,
    /// `true` if clients begin at the same times, together with the disturbances.
    pub has_meetings: bool,
    /// `true` if clients pause between requests, so that they last as long as the disturbances.
    pub is_slow: bool,
    /// `true` if clients send their requests in many pieces.
    pub sends_pieces: bool,
    /// The disturbances that a further client causes.
    pub disturbances: Vec<Disturbance>,
    /// `true` if all keys are in two slots of the keyspace.
    pub shares_slots: bool,
    /// `true` if a replica follows the server.
    pub has_replica: bool,
    /// `true` if the replica receives the dump over a connection of its own.
    pub has_dual_channel: bool,
    /// `true` if a client subscribes to the messages of the others.
    pub has_subscriber: bool,
    /// `true` if a client caches what it reads.
    pub has_tracker: bool,
    /// `true` if connections move between the workers all the time.
    pub moves_connections: bool,
    /// What happens to the slots in a cluster of two nodes; empty if the run has no cluster.
    pub slot_moves: Vec<SlotMove>,
    /// The failovers between the server and its replica; empty if the run has none.
    pub failovers: Vec<FailoverAction>,
    /// `true` if a client runs endless scripts.
    pub has_endless_scripts: bool,
    /// `true` if scripts and commands in exclusive mode take turns.
    pub has_turns: bool,
    /// `true` if a client receives messages while it waits for lists.
    pub has_blocked_receiver: bool,
    /// `true` if a client reads replies late that are larger than the buffers of a socket.
    pub has_late_reader: bool,
    /// `true` if keys are evicted.
    pub evicts: bool,
    /// `true` if the run ends with SHUTDOWN.
    pub shuts_down: bool,
    /// `true` if a client looks at what a loss of power would leave of the append-only file.
    pub loses_power: bool,
    /// `true` if a client saves dumps, which are loaded at the end. No other client saves then.
    pub observes_dumps: bool,
    /// `true` if the servers load a module, whose commands replace some operations.
    pub has_module: bool,
}

/// An action of the client that moves slots. It is for one node; the other one may refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMove {
    /// CLUSTER MIGRATESLOTS of the slot with the keys, or of a range around it.
    Begin,
    /// The same, and the end is awaited.
    BeginAndWait,
    /// CLUSTER CANCELSLOTMIGRATIONS.
    Cancel,
    /// CLIENT KILL of a connection over which slots migrate.
    KillLink,
    /// BGSAVE.
    Save,
    /// BGREWRITEAOF.
    Rewrite,
    /// SCRIPT KILL.
    KillScript,
}

/// An action of the client that exchanges the roles of a server and its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverAction {
    /// FAILOVER, whose end is awaited.
    Complete,
    /// The same with a timeout, after which the server stays the primary.
    WithTimeout,
    /// FAILOVER and FAILOVER ABORT in a transaction.
    Abort,
}

/// An action of the disturbing client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// CLIENT PAUSE WRITE, and later CLIENT UNPAUSE.
    Pause,
    /// BGSAVE.
    Save,
    /// BGREWRITEAOF on two connections at once.
    Rewrite,
    /// CLIENT KILL of all others.
    KillClients,
    /// CLIENT KILL of all others in a transaction.
    KillInTransaction,
    /// CONFIG SET of a parameter that takes effect in exclusive mode.
    Configure,
    /// SCRIPT KILL.
    KillScript,
    /// FUNCTION LOAD of a library.
    LoadFunctions,
    /// DEBUG RELOAD.
    Reload,
    /// REPLICAOF a server that does not exist, and later REPLICAOF NO ONE.
    Demote,
    /// `maxmemory` below the used memory or slightly above it, and no limit later.
    Evict,
    /// Connections that move stay where they are for a while, or from now on. A reply that was lost when a connection
    /// moved would otherwise be found by its next move.
    StopMoves,
}

/// What the clients of a run do most of the time. What can go wrong in the smallest windows is what a combination is
/// for.
struct Focus {
    /// The kinds of operations. One that is named twice is twice as frequent.
    kinds: &'static [Kind],
    /// The only kinds of operations of the first two clients, if they differ from the others.
    first_clients: &'static [Kind],
    disturbances: &'static [Disturbance],
    needs: &'static [Need],
    /// How many times as often as another one it is drawn.
    weight: usize,
}

/// What a focus needs, and other runs may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Connections move.
    Moves,
    /// All keys are in two slots.
    SharedSlots,
    /// A client caches what it reads.
    Tracker,
    /// A client subscribes to the messages of the others.
    Subscriber,
    /// Each client has three connections, one after the other.
    ShortConnections,
    /// Each client has one connection, on which it sends many pipelines.
    LongConnections,
    /// There is one worker: it is alone at the gate, but for scripts and background threads.
    OneWorker,
    /// There are three workers or more, and five clients or more.
    Crowd,
    /// There are two keys of each type.
    TwoKeys,
    /// The first two clients send one pipeline each.
    FirstLeaveEarly,
    /// Clients send at the same times.
    Meetings,
    /// Clients send their requests in many pieces.
    Pieces,
}

impl Focus {
    const fn new(kinds: &'static [Kind], disturbances: &'static [Disturbance]) -> Focus {
        Focus {
            kinds,
            first_clients: &[],
            disturbances,
            needs: &[],
            weight: 1,
        }
    }

    /// Draws the combination more often: it reaches what it is for in few runs only.
    const fn weighted(self, weight: usize) -> Focus {
        Focus { weight, ..self }
    }

    fn draw(random: &mut Rng) -> &'static Focus {
        let sum: usize = FOCUSES.iter().map(|focus| focus.weight).sum();
        let mut left = random.usize(..sum);
        for focus in &FOCUSES {
            if left < focus.weight {
                return focus;
            }
            left -= focus.weight;
        }
        &FOCUSES[0]
    }

    /// Two clients that send other operations only, while the rest sends only those of the focus.
    const fn beside(self, first_clients: &'static [Kind]) -> Focus {
        Focus { first_clients, ..self }
    }

    const fn with(self, needs: &'static [Need]) -> Focus {
        Focus { needs, ..self }
    }
}

const FOCUSES: [Focus; 29] = [
    Focus::new(&[Kind::FlushAll, Kind::Transaction], &[Disturbance::Pause]),
    // Commands that were admitted wait at the gate, or on their way to another thread.
    Focus::new(&[Kind::ExclusiveTransaction], &[Disturbance::Pause])
        .beside(&[Kind::String])
        .with(&[Need::Crowd, Need::Meetings]),
    Focus::new(&[Kind::ExclusiveTransaction], &[Disturbance::Demote])
        .beside(&[Kind::String])
        .with(&[Need::Crowd, Need::Meetings]),
    Focus::new(&[Kind::SetRepeatedly], &[Disturbance::Demote])
        .beside(&[Kind::Set, Kind::ExclusiveTransaction])
        .with(&[Need::Crowd, Need::Meetings]),
    Focus::new(
        &[Kind::FlushAll, Kind::Set, Kind::SetRepeatedly],
        &[Disturbance::Demote],
    ),
    Focus::new(
        &[Kind::BlockingPop, Kind::BlockingMove, Kind::List],
        &[Disturbance::Pause],
    ),
    // Scripts keep the slots of destinations, so that clients are served later.
    Focus::new(
        &[Kind::BlockingMove, Kind::BlockingMove, Kind::BlockingPop, Kind::List],
        &[Disturbance::Pause],
    )
    .beside(&[Kind::ScriptSlowPush])
    .with(&[Need::LongConnections, Need::Crowd, Need::TwoKeys, Need::Meetings])
    .weighted(4),
    Focus::new(
        &[Kind::BlockingPop, Kind::BlockingMove, Kind::List, Kind::ScriptPush],
        &[],
    )
    .with(&[Need::Moves]),
    // Two clients serve the same waiting ones at once.
    Focus::new(&[Kind::BlockingPop], &[])
        .beside(&[Kind::PushMany])
        .with(&[Need::Crowd, Need::TwoKeys, Need::Meetings]),
    // The waiting clients are served by others than their own workers. More elements than clients that wait would make
    // the search for an order give up, since a wrong order shows late.
    Focus::new(
        &[Kind::BlockingPop, Kind::BlockingPop, Kind::BlockingMove],
        &[Disturbance::StopMoves],
    )
    .beside(&[Kind::Push])
    .with(&[Need::Crowd, Need::Moves, Need::TwoKeys, Need::LongConnections])
    .weighted(5),
    Focus::new(
        &[Kind::ExclusiveTransaction, Kind::String],
        &[Disturbance::KillInTransaction, Disturbance::KillClients],
    )
    .beside(&[Kind::String])
    .with(&[Need::ShortConnections, Need::Crowd, Need::Meetings]),
    Focus::new(
        &[Kind::String, Kind::FlushAll],
        &[Disturbance::Save, Disturbance::Rewrite],
    ),
    Focus::new(
        &[Kind::ScriptSlowAppend, Kind::ScriptUndeclared, Kind::ScriptSlowSwap],
        &[Disturbance::KillScript],
    ),
    // Clients leave while their commands wait for scripts.
    Focus::new(
        &[Kind::ScriptSlowSwap, Kind::ScriptSlowSwap, Kind::FlushAll],
        &[Disturbance::KillClients],
    )
    .with(&[Need::ShortConnections, Need::Meetings]),
    // The clients whose commands waited for scripts are killed, and further scripts begin.
    Focus::new(
        &[Kind::ScriptSlowSwap, Kind::ScriptSlowPush],
        &[Disturbance::KillClients, Disturbance::KillScript],
    )
    .beside(&[Kind::FlushAll])
    .with(&[
        Need::Crowd,
        Need::FirstLeaveEarly,
        Need::ShortConnections,
        Need::Meetings,
    ])
    .weighted(4),
    Focus::new(&[Kind::ScriptSlowSwap, Kind::String], &[Disturbance::KillClients])
        .with(&[Need::ShortConnections, Need::OneWorker]),
    // Scripts that write at the same time need slots of each other.
    Focus::new(
        &[Kind::ScriptUndeclared, Kind::ScriptAppendUndeclared, Kind::String],
        &[Disturbance::KillScript],
    )
    .with(&[Need::Crowd]),
    Focus::new(
        &[Kind::ScriptUndeclared, Kind::ScriptSlowSwap, Kind::String],
        &[Disturbance::KillScript],
    )
    .with(&[Need::Crowd, Need::Tracker, Need::Meetings]),
    Focus::new(&[Kind::Volatile, Kind::Transaction], &[]),
    Focus::new(&[Kind::Volatile, Kind::Volatile], &[]).with(&[Need::Pieces]),
    Focus::new(&[Kind::Volatile], &[])
        .beside(&[Kind::Volatile])
        .with(&[Need::Pieces, Need::Crowd, Need::LongConnections])
        .weighted(5),
    Focus::new(&[Kind::Watch, Kind::Transaction, Kind::String], &[]),
    Focus::new(&[Kind::WatchedTransaction], &[])
        .beside(&[Kind::WatchedTransaction])
        .with(&[Need::Crowd, Need::Meetings]),
    Focus::new(&[Kind::Read, Kind::ScriptRead], &[])
        .beside(&[Kind::String])
        .with(&[Need::SharedSlots, Need::Crowd, Need::Meetings])
        .weighted(4),
    Focus::new(&[Kind::Publish, Kind::String], &[]).with(&[Need::Moves]),
    Focus::new(&[Kind::PublishTransaction, Kind::PublishTransaction], &[]).with(&[Need::Subscriber, Need::Crowd]),
    Focus::new(&[Kind::String, Kind::String], &[]).with(&[Need::Moves, Need::Tracker]),
    // Commands that a pause holds back have left their workers.
    Focus::new(&[Kind::SetRepeatedly], &[Disturbance::Pause])
        .beside(&[Kind::String])
        .with(&[Need::Crowd, Need::Meetings]),
    // The keys of commands on snapshots change before the results are stored.
    Focus::new(
        &[Kind::Set, Kind::Set, Kind::List],
        &[Disturbance::Pause, Disturbance::Demote],
    )
    .beside(&[Kind::Set, Kind::FlushAll])
    .with(&[Need::Crowd, Need::TwoKeys, Need::Meetings]),
];

impl Disturbance {
    const ALL: [Disturbance; 11] = [
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
        Disturbance::StopMoves,
    ];

    /// Draws many disturbances of the given kinds.
    fn draw_of(random: &mut Rng, kinds: &[Disturbance]) -> Vec<Disturbance> {
        let count = if kinds.is_empty() { 0 } else { random.usize(4..24) };
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

/// Returns the combination whose number is in `WEFT_SIM_FOCUS`, to see what it reaches.
fn chosen_focus() -> Option<&'static Focus> {
    let number = std::env::var("WEFT_SIM_FOCUS").ok()?;
    FOCUSES.get(number.parse::<usize>().ok()?)
}

/// Returns `true` if `WEFT_SIM_WITH`, a list of names, makes a part of every run that others have at random.
pub fn is_forced(name: &str) -> bool {
    std::env::var("WEFT_SIM_WITH").is_ok_and(|list| list.split(',').any(|other| other == name))
}

impl RunPlan {
    /// Draws a scenario; what was added later from `further`.
    pub fn draw(random: &mut Rng, further: &mut Rng) -> RunPlan {
        let mut plan = RunPlan {
            shuts_down: further.u32(..3) == 0 || is_forced("shutdown"),
            has_blocked_receiver: further.u32(..3) == 0 || is_forced("blocked-receiver"),
            has_late_reader: further.u32(..6) == 0 || is_forced("late-reader"),
            has_endless_scripts: further.u32(..4) == 0 || is_forced("endless"),
            loses_power: further.bool() || is_forced("power-loss"),
            has_dual_channel: further.bool() || is_forced("dual-channel"),
            ..Self::draw_single(random)
        };
        let is_cluster = random.u32(..16) == 0 || std::env::var_os("WEFT_SIM_CLUSTER").is_some();
        let evicts = further.u32(..8) == 0 || is_forced("eviction");
        // From what is drawn already, so that the seeds stay what they are.
        let drawn = plan.clients + 2 * plan.pipelines + 3 * plan.workers;
        let fails_over = drawn.is_multiple_of(13) || is_forced("failovers");
        plan.has_turns = (plan.clients + 3 * plan.workers).is_multiple_of(7) || is_forced("turns");
        let plan = match (is_cluster, evicts) {
            (true, _) => plan.with_cluster(random),
            (false, _) if fails_over => plan.with_failovers(further),
            (false, true) => plan.with_eviction(further),
            (false, false) => plan.with_observed_dumps(),
        };
        RunPlan {
            has_module: plan.may_have_module() && ((drawn / 3).is_multiple_of(4) || is_forced("module")),
            ..plan
        }
    }

    /// Returns `true` if a server of the run may load a module. What is known of modules belongs to the process, so
    /// there must be no other server meanwhile. And nothing tells the model what is evicted between the calls of a
    /// module's command.
    fn may_have_module(&self) -> bool {
        self.slot_moves.is_empty() && self.failovers.is_empty() && !self.has_replica && !self.evicts
    }

    /// Returns `true` if keyspace events may come to the module at home. Scripts run there in exclusive mode then, so
    /// an endless one can only be killed after `busy-reply-threshold`, as in Valkey. And no other server may load data
    /// later: to it, the module has subscribed, too.
    fn may_have_home_events(&self) -> bool {
        !self.has_endless_scripts && !self.shuts_down && !self.observes_dumps && self.appendfsync.is_none()
    }

    /// Makes some plans ones in which a client saves dumps.
    fn with_observed_dumps(mut self) -> RunPlan {
        // From what is drawn already, so that the seeds stay what they are.
        let is_drawn = (self.clients + self.pipelines + self.workers).is_multiple_of(3);
        if is_drawn || is_forced("dumps") {
            self.observes_dumps = true;
            self.disturbances
                .retain(|disturbance| !matches!(disturbance, Disturbance::Save | Disturbance::Reload));
        }
        self
    }

    /// Makes it a plan in which a server and its replica exchange their roles.
    fn with_failovers(self, random: &mut Rng) -> RunPlan {
        const KINDS: &[Kind] = &[
            Kind::String,
            Kind::String,
            Kind::List,
            Kind::Set,
            Kind::Transaction,
            Kind::ExclusiveTransaction,
            Kind::ScriptSwap,
            Kind::ScriptSlowSwap,
            Kind::ScriptUndeclared,
            Kind::ScriptAppendUndeclared,
            Kind::ScriptPush,
            Kind::Push,
            Kind::PushMany,
            Kind::BlockingPop,
            Kind::BlockingMove,
            Kind::SetRepeatedly,
        ];
        const ACTIONS: [FailoverAction; 4] = [
            FailoverAction::Complete,
            FailoverAction::Complete,
            FailoverAction::WithTimeout,
            FailoverAction::Abort,
        ];
        RunPlan {
            mix: OperationMix::of(KINDS, random.usize(1..=KEYS_PER_TYPE)),
            failovers: (0..random.usize(1..6))
                .map(|_| ACTIONS[random.usize(..ACTIONS.len())])
                .collect(),
            has_replica: true,
            ..self
        }
    }

    /// Makes it a plan in which keys are evicted. Clients send only what tells the model which keys are left.
    fn with_eviction(self, random: &mut Rng) -> RunPlan {
        const KINDS: &[Kind] = &[
            Kind::Read,
            Kind::String,
            Kind::String,
            Kind::Transaction,
            Kind::Watch,
            Kind::WatchedTransaction,
            Kind::Push,
            Kind::PushMany,
            Kind::BlockingPop,
            Kind::SetRepeatedly,
            Kind::Volatile,
            Kind::Publish,
        ];
        const DISTURBANCES: &[Disturbance] = &[
            Disturbance::Evict,
            Disturbance::Evict,
            Disturbance::Evict,
            Disturbance::Save,
            Disturbance::Rewrite,
        ];
        RunPlan {
            mix: OperationMix::of(KINDS, random.usize(1..=KEYS_PER_TYPE)),
            first_mix: None,
            disturbances: Disturbance::draw_of(random, DISTURBANCES),
            is_slow: true,
            has_endless_scripts: false,
            has_turns: false,
            evicts: true,
            ..self
        }
    }

    /// Concentrates a plan of a cluster on what happens while the slot changes its owner: clients that wait for keys,
    /// scripts that run, waiters whose slot a script holds.
    fn focus_on_moves(&mut self, random: &mut Rng) {
        const WAITS: &[Kind] = &[Kind::BlockingPop, Kind::BlockingPop, Kind::BlockingMove, Kind::List];
        const SCRIPTS: &[Kind] = &[
            Kind::ScriptUndeclared,
            Kind::ScriptSlowSwap,
            Kind::ScriptAppendUndeclared,
        ];
        const MOVES: &[Kind] = &[Kind::BlockingMove, Kind::BlockingMove, Kind::BlockingPop, Kind::List];
        let (kinds, first_kinds) = match random.u32(..6) {
            0 | 1 => (WAITS, None),
            2 => (SCRIPTS, Some(&[Kind::String][..])),
            3 => (MOVES, Some(&[Kind::ScriptSlowPush][..])),
            _ => return,
        };
        self.mix = OperationMix::of(kinds, 2);
        self.first_mix = first_kinds.map(|kinds| OperationMix::of(kinds, 2));
    }

    /// Makes it a plan of a cluster of two nodes, without what the model knows for one server only.
    fn with_cluster(mut self, random: &mut Rng) -> RunPlan {
        self.focus_on_moves(random);
        const SINGLE: [Kind; 3] = [Kind::FlushAll, Kind::Publish, Kind::PublishTransaction];
        for mix in [Some(&mut self.mix), self.first_mix.as_mut()].into_iter().flatten() {
            mix.exclude(&SINGLE);
        }
        let moves = [
            SlotMove::Begin,
            SlotMove::Begin,
            SlotMove::BeginAndWait,
            SlotMove::BeginAndWait,
            SlotMove::BeginAndWait,
            SlotMove::Cancel,
            SlotMove::KillLink,
            SlotMove::Save,
            SlotMove::Rewrite,
            SlotMove::KillScript,
        ];
        RunPlan {
            slot_moves: (0..random.usize(1..12))
                .map(|_| moves[random.usize(..moves.len())])
                .collect(),
            disturbances: Vec::new(),
            has_replica: false,
            has_subscriber: false,
            has_tracker: false,
            has_meetings: false,
            shares_slots: false,
            ..self
        }
    }

    /// Draws a scenario of one server.
    fn draw_single(random: &mut Rng) -> RunPlan {
        let drawn = random.bool().then(|| Focus::draw(random));
        let focus = chosen_focus().or(drawn);
        let needs = |need: Need| focus.is_some_and(|focus| focus.needs.contains(&need));
        let appendfsync = [None, Some("always"), Some("everysec")][random.usize(..3)];
        // Connections that live shortly end more often.
        let connections_per_client = match (needs(Need::ShortConnections), needs(Need::LongConnections)) {
            (true, _) => 3,
            (_, true) => 1,
            _ => [1, 1, 3][random.usize(..3)],
        };
        let pipelines = random.usize(2..9) * if needs(Need::LongConnections) { 3 } else { 1 };
        let keys = match needs(Need::TwoKeys) {
            true => 2,
            false => [KEYS_PER_TYPE, KEYS_PER_TYPE, 2, 1][random.usize(..4)],
        };
        RunPlan {
            workers: match (needs(Need::OneWorker), needs(Need::Crowd)) {
                (true, _) => 1,
                (_, true) => random.usize(3..5),
                _ => random.usize(1..5),
            },
            clients: random.usize(if needs(Need::Crowd) { 5..8 } else { 2..8 }),
            connections_per_client,
            pipelines: (pipelines / connections_per_client).max(1),
            appendfsync,
            mix: match focus {
                Some(focus) if !focus.first_clients.is_empty() => OperationMix::of(focus.kinds, keys),
                Some(focus) => OperationMix::draw_focused(random, focus.kinds, keys),
                None => OperationMix::draw(random, keys),
            },
            first_mix: focus
                .filter(|focus| !focus.first_clients.is_empty())
                .map(|focus| OperationMix::of(focus.first_clients, keys)),
            first_leave_early: needs(Need::FirstLeaveEarly),
            has_meetings: needs(Need::Meetings) || random.u32(..6) == 0,
            is_slow: focus.is_some_and(|focus| !focus.disturbances.is_empty()),
            sends_pieces: needs(Need::Pieces) || random.u32(..6) == 0,
            disturbances: match focus {
                Some(focus) => Disturbance::draw_of(random, focus.disturbances),
                None => Disturbance::draw_list(random),
            },
            shares_slots: needs(Need::SharedSlots) || random.u32(..3) == 0,
            has_replica: random.u32(..4) == 0 || is_forced("dual-channel"),
            has_dual_channel: false,
            has_subscriber: needs(Need::Subscriber) || random.u32(..3) == 0,
            has_tracker: needs(Need::Tracker) || random.u32(..3) == 0,
            moves_connections: needs(Need::Moves) || random.u32(..3) == 0,
            slot_moves: Vec::new(),
            failovers: Vec::new(),
            has_endless_scripts: false,
            has_turns: false,
            evicts: false,
            has_late_reader: false,
            has_blocked_receiver: false,
            shuts_down: false,
            loses_power: false,
            observes_dumps: false,
            has_module: false,
        }
    }

    /// Returns `true` if a client checks that keys expire while a script holds the slot of one of them. Nothing else
    /// may keep the server from deleting them: a pause, its role, a load, or a snapshot that has not saved their slots.
    pub fn watches_expiry(&self) -> bool {
        const HARMLESS: [Disturbance; 4] = [
            Disturbance::Configure,
            Disturbance::KillScript,
            Disturbance::LoadFunctions,
            Disturbance::StopMoves,
        ];
        let is_single = self.slot_moves.is_empty() && self.failovers.is_empty() && !self.has_replica;
        let mut disturbances = self.disturbances.iter();
        let are_harmless = disturbances.all(|disturbance| HARMLESS.contains(disturbance));
        self.has_endless_scripts && is_single && !self.shares_slots && !self.observes_dumps && are_harmless
    }

    /// Returns `true` if no sync of the append-only file is made while a snapshot is written
    /// (`no-appendfsync-on-rewrite`), in some of the runs with `appendfsync always`.
    pub fn spares_disk(&self) -> bool {
        // From what is drawn already, so that the seeds stay what they are.
        let is_drawn = (self.clients + 2 * self.workers).is_multiple_of(5);
        self.appendfsync == Some("always") && (is_drawn || is_forced("spared-disk"))
    }

    /// Returns `true` if lists and sets have the layout of large ones from a few elements on, in half of the runs. A
    /// command on a snapshot pins such a value, and copies a small one.
    fn has_large_values(&self) -> bool {
        // From what is drawn already, so that the seeds stay what they are.
        let is_drawn = (self.clients + self.pipelines + 2 * self.workers).is_multiple_of(2);
        !self.evicts && (is_drawn || is_forced("large-values"))
    }

    /// The command line of a node of a cluster.
    pub fn node_arguments(&self, node: usize, socket: &str, port: u16, bus_port: u16) -> Vec<OsString> {
        let mut arguments = self.server_arguments(port, socket);
        let bus_port = bus_port.to_string();
        let [nodes, dump, folder] = [
            format!("nodes-{node}.conf"),
            format!("dump-{node}.rdb"),
            format!("aof-{node}"),
        ];
        let words = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus_port],
            ["--cluster-config-file", &nodes],
            ["--cluster-allow-replica-migration", "no"],
            ["--dbfilename", &dump],
            ["--appenddirname", &folder],
        ];
        arguments.extend(words.as_flattened().iter().map(OsString::from));
        arguments
    }

    /// The command line of the server that clients talk to.
    pub fn primary_arguments(&self, port: u16) -> Vec<OsString> {
        let mut arguments = self.server_arguments(if self.has_replica { port } else { 0 }, "primary.sock");
        if self.has_module {
            // From what is drawn already, so that the seeds stay what they are.
            let words = modules::arguments(self.clients + self.workers, self.may_have_home_events());
            arguments.extend(words.into_iter().map(OsString::from));
        }
        if self.watches_expiry() {
            arguments.extend(["--hash-seed", due_keys::HASH_SEED].map(OsString::from));
        }
        arguments
    }

    /// The command line of a server that loads what is left of the append-only file in a directory.
    pub fn restored_arguments(&self, socket: &str, folder: &str) -> Vec<OsString> {
        let mut arguments = self.server_arguments(0, socket);
        let words = ["--appenddirname", folder, "--dbfilename", "restored.rdb"];
        arguments.extend(words.map(OsString::from));
        arguments
    }

    /// The command line of a server that loads a dump.
    pub fn loading_arguments(&self, socket: &str, file: &str) -> Vec<OsString> {
        let mut arguments = self.server_arguments(0, socket);
        let words = ["--appendonly", "no", "--dbfilename", file];
        arguments.extend(words.map(OsString::from));
        arguments
    }

    fn server_arguments(&self, port: u16, socket: &str) -> Vec<OsString> {
        let workers = self.workers.to_string();
        let port = port.to_string();
        let mut words = vec![
            "weft-server",
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            socket,
        ];
        words.extend(["--io-threads", &workers, "--io-threads-always-active", "yes"]);
        words.extend(["--save", "", "--enable-debug-command", "yes", "--logfile", "log"]);
        words.extend(["--appendonly", if self.appendfsync.is_some() { "yes" } else { "no" }]);
        words.extend(["--appendfsync", self.appendfsync.unwrap_or("everysec")]);
        words.extend(["--repl-diskless-sync-delay", "0"]);
        // In a run whose threads are often stalled, a script may take five seconds. The server would refuse all
        // commands then, of which the model knows nothing.
        words.extend(["--busy-reply-threshold", "3600000"]);
        words.extend(self.dual_channel_arguments());
        if self.moves_connections {
            words.extend(["--connection-move-interval", "1"]);
        }
        if self.spares_disk() {
            words.extend(["--no-appendfsync-on-rewrite", "yes"]);
        }
        if self.watches_expiry() {
            words.extend(["--hz", "100"]);
        }
        if self.has_large_values() {
            words.extend(["--list-max-listpack-size", "2", "--set-max-intset-entries", "1"]);
            words.extend(["--set-max-listpack-entries", "1"]);
        }
        words.into_iter().map(OsString::from).collect()
    }

    fn dual_channel_arguments(&self) -> [&'static str; 2] {
        let value = if self.has_dual_channel { "yes" } else { "no" };
        ["--dual-channel-replication-enabled", value]
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
        // Drawn from what is drawn already, so that the seeds stay what they are.
        let apply_threads = ["1", "2", "4"][(self.clients + self.pipelines) % 3];
        words.extend(["--io-threads", "1", "--replica-apply-threads", apply_threads]);
        words.extend(["--save", "", "--replicaof", &primary]);
        words.extend(self.dual_channel_arguments());
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
