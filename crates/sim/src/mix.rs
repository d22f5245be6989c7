//! The mix of operations that the clients of a run send.
//!
//! Half of the runs draw other frequencies than the usual ones, and leave kinds of operations out: what is rare among
//! all operations then meets itself often (Groce and others, "Swarm testing", 2012).

use fastrand::Rng;

use crate::modules;
use crate::operation::Operation::{self, *};
use crate::operation::VOLATILE_KEYS;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Read,
    String,
    List,
    Set,
    Volatile,
    Transaction,
    ScriptSwap,
    ScriptSlowAppend,
    ScriptRead,
    ScriptUndeclared,
    ScriptAppendUndeclared,
    ScriptPush,
    ScriptSlowPush,
    ScriptSlowSwap,
    Watch,
    WatchedTransaction,
    PublishTransaction,
    ExclusiveTransaction,
    Push,
    PushMany,
    BlockingPop,
    BlockingMove,
    SetRepeatedly,
    FlushAll,
    Publish,
    Ignored,
}

use OperationKind as Kind;

/// The usual frequencies.
const USUAL: [(OperationKind, u32); 26] = [
    (Kind::Read, 4),
    (Kind::String, 32),
    (Kind::List, 21),
    (Kind::Set, 8),
    (Kind::Volatile, 7),
    (Kind::Transaction, 8),
    (Kind::ScriptSwap, 3),
    (Kind::ScriptSlowAppend, 3),
    (Kind::ScriptRead, 3),
    (Kind::ScriptUndeclared, 2),
    (Kind::ScriptAppendUndeclared, 2),
    (Kind::ScriptPush, 2),
    (Kind::ScriptSlowPush, 1),
    (Kind::ScriptSlowSwap, 1),
    (Kind::Watch, 3),
    (Kind::WatchedTransaction, 2),
    (Kind::PublishTransaction, 2),
    (Kind::ExclusiveTransaction, 1),
    (Kind::Push, 2),
    (Kind::PushMany, 2),
    (Kind::BlockingPop, 3),
    (Kind::BlockingMove, 3),
    (Kind::SetRepeatedly, 3),
    (Kind::FlushAll, 1),
    (Kind::Publish, 5),
    (Kind::Ignored, 1),
];

/// Requests whose replies the model ignores.
const IGNORED: [&[&str]; 7] = [
    &["INFO", "everything"],
    &["CLIENT", "LIST"],
    &["DBSIZE"],
    &["SCAN", "0"],
    &["CONFIG", "SET", "slowlog-max-len", "100"],
    &["MEMORY", "STATS"],
    &["SCRIPT", "FLUSH"],
];

/// The frequencies of the kinds of operations in a run, and the number of keys.
#[derive(Clone, Debug)]
pub struct OperationMix {
    frequencies: Vec<(OperationKind, u32)>,
    /// The number of keys of each type.
    keys: usize,
}

/// A client as a source of operations: it numbers the messages that it publishes.
#[derive(Clone, Debug)]
pub struct OperationSource {
    mix: OperationMix,
    client: u64,
    published: u64,
    /// Draws which operations commands of a module replace, in a run with one. They come from other numbers than the
    /// operations, so that the seeds keep these.
    for_module: Option<Rng>,
}

impl OperationMix {
    /// Draws the mix of a run.
    pub fn draw(random: &mut Rng, keys: usize) -> OperationMix {
        let mut frequencies = USUAL.to_vec();
        if random.bool() {
            for (_, frequency) in &mut frequencies {
                *frequency *= [0, 0, 1, 1, 8][random.usize(..5)];
            }
            // Something must be left.
            frequencies.push((Kind::String, 4));
        }
        OperationMix { frequencies, keys }
    }

    /// A mix of nothing else than some kinds.
    pub fn of(kinds: &[OperationKind], keys: usize) -> OperationMix {
        OperationMix {
            frequencies: kinds.iter().map(|kind| (*kind, 1)).collect(),
            keys,
        }
    }

    /// Draws a mix in which some kinds are most of the operations.
    pub fn draw_focused(random: &mut Rng, kinds: &[OperationKind], keys: usize) -> OperationMix {
        let mut mix = OperationMix::draw(random, keys);
        mix.frequencies.extend(kinds.iter().map(|kind| (*kind, 60)));
        mix
    }

    /// Leaves kinds of operations out.
    pub fn exclude(&mut self, kinds: &[OperationKind]) {
        self.frequencies.retain(|(kind, _)| !kinds.contains(kind));
    }

    fn draw_kind(&self, random: &mut Rng, is_allowed: impl Fn(OperationKind) -> bool) -> OperationKind {
        let allowed = || self.frequencies.iter().filter(|(kind, _)| is_allowed(*kind));
        let sum: u32 = allowed().map(|(_, frequency)| frequency).sum();
        let mut left = random.u32(..sum.max(1));
        for (kind, frequency) in allowed() {
            if left < *frequency {
                return *kind;
            }
            left -= frequency;
        }
        Kind::String
    }

    fn key(&self, random: &mut Rng) -> usize {
        random.usize(..self.keys)
    }

    /// Draws one to three different keys.
    fn key_list(&self, random: &mut Rng) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.keys).collect();
        random.shuffle(&mut all);
        all.truncate(random.usize(1..4));
        all
    }

    /// Draws an operation that is one command and does not block, as in transactions.
    fn draw_simple(&self, random: &mut Rng) -> Operation {
        let is_simple = |kind| matches!(kind, Kind::String | Kind::List | Kind::Set);
        match self.draw_kind(random, is_simple) {
            Kind::List => self.draw_of_list(random),
            Kind::Set => self.draw_of_set(random),
            _ => self.draw_of_string(random),
        }
    }

    fn draw_of_string(&self, random: &mut Rng) -> Operation {
        match random.u32(..8) {
            0 | 1 => Get(self.key(random)),
            2 => Set(self.key(random), random.u32(..)),
            3 => SetGet(self.key(random), random.u32(..)),
            4 => Append(self.key(random)),
            5 => Delete(self.key(random)),
            6 => SetMany(self.key_list(random), random.u32(..)),
            _ => GetAll,
        }
    }

    fn draw_of_list(&self, random: &mut Rng) -> Operation {
        match random.u32(..5) {
            0 | 1 => Push {
                list: self.key(random),
                value: random.u32(..),
                is_left: random.bool(),
            },
            2 => Pop {
                list: self.key(random),
                is_left: random.bool(),
            },
            3 => Move(self.key(random), self.key(random)),
            _ => Range(self.key(random)),
        }
    }

    fn draw_of_set(&self, random: &mut Rng) -> Operation {
        match random.u32(..4) {
            0 => AddMember(self.key(random), random.u32(..6)),
            1 => Count(self.key(random)),
            _ => UnionStore(self.key(random), self.key_list(random)),
        }
    }

    fn draw_script(&self, random: &mut Rng, kind: OperationKind) -> Operation {
        let (first, second) = (self.key(random), self.key(random));
        match kind {
            Kind::ScriptSwap => ScriptSwap(first, second, random.u32(..)),
            Kind::ScriptSlowAppend => ScriptSlowAppend(first, second),
            Kind::ScriptRead => ScriptRead(first, second),
            Kind::ScriptPush => ScriptPush(first, random.u32(..)),
            Kind::ScriptSlowPush => ScriptSlowPush(first, random.u32(..)),
            Kind::ScriptSlowSwap => ScriptSlowSwap(first, second, random.u32(..)),
            Kind::ScriptAppendUndeclared => ScriptAppendUndeclared(first, second),
            _ => ScriptUndeclared(first, second, random.u32(..)),
        }
    }
}

impl OperationSource {
    /// The source of a client's operations.
    pub fn new(mix: OperationMix, client: u64) -> OperationSource {
        OperationSource {
            mix,
            client,
            published: 0,
            for_module: None,
        }
    }

    /// Makes it a source in which commands of a module replace some operations.
    pub fn with_module(mut self, has_module: bool) -> OperationSource {
        self.for_module = has_module.then(|| Rng::with_seed(self.client ^ 0x6d6f_6475_6c65));
        self
    }

    /// Draws the operations of a pipeline.
    pub fn draw_pipeline(&mut self, random: &mut Rng) -> Vec<Operation> {
        let length = if random.bool() { 1 } else { random.usize(1..8) };
        let mut operations: Vec<Operation> = (0..length).flat_map(|_| self.draw(random)).collect();
        if let Some(random) = &mut self.for_module {
            let replaced = operations.iter_mut();
            replaced.for_each(|operation| modules::replace(operation, random));
        }
        operations
    }

    /// Draws an operation, or some that belong together.
    fn draw(&mut self, random: &mut Rng) -> Vec<Operation> {
        match self.mix.draw_kind(random, |_| true) {
            Kind::WatchedTransaction => draw_watched_transaction(random),
            kind => vec![self.draw_of_kind(random, kind)],
        }
    }

    fn draw_of_kind(&mut self, random: &mut Rng, kind: OperationKind) -> Operation {
        let mix = &self.mix;
        match kind {
            Kind::Read if random.bool() => GetAll,
            Kind::Read => Get(mix.key(random)),
            Kind::String => mix.draw_of_string(random),
            Kind::List => mix.draw_of_list(random),
            Kind::Set => mix.draw_of_set(random),
            Kind::Volatile => draw_volatile(random),
            Kind::Transaction => Transaction((0..random.usize(1..4)).map(|_| mix.draw_simple(random)).collect()),
            Kind::Watch => Watch(mix.key_list(random)),
            Kind::BlockingPop => BlockingPop {
                lists: mix.key_list(random),
                timeout_ms: draw_timeout_ms(random),
            },
            Kind::BlockingMove => BlockingMove {
                from: mix.key(random),
                to: mix.key(random),
                timeout_ms: draw_timeout_ms(random),
            },
            Kind::SetRepeatedly => SetRepeatedly(mix.key(random), random.u32(..)),
            Kind::FlushAll => FlushAll,
            Kind::Publish => self.draw_publish(),
            Kind::PublishTransaction => {
                let write = SetGet(mix.key(random), random.u32(..));
                Transaction(vec![write, self.draw_publish()])
            }
            // A command whose keys are not known in advance makes EXEC wait until it is alone at the gate.
            Kind::ExclusiveTransaction => Transaction(vec![
                SetGet(mix.key(random), random.u32(..)),
                Ignored(vec!["SCAN", "0"]),
            ]),
            Kind::Push => Push {
                list: mix.key(random),
                value: random.u32(..),
                is_left: random.bool(),
            },
            Kind::PushMany => PushMany {
                list: mix.key(random),
                values: (0..random.usize(2..6)).map(|_| random.u32(..)).collect(),
            },
            Kind::Ignored => Ignored(IGNORED[random.usize(..IGNORED.len())].to_vec()),
            script => mix.draw_script(random, script),
        }
    }

    fn draw_publish(&mut self) -> Operation {
        self.published += 1;
        Publish {
            client: self.client,
            number: self.published,
        }
    }
}

/// Draws an operation on a key with an expiry. The effect of none of them depends on whether the key has expired, so
/// the model knows the state even if the reply was lost.
/// Returns a timeout of a blocking command: now and then so long that a client which is served only at its end is
/// served too late.
fn draw_timeout_ms(random: &mut Rng) -> u32 {
    match random.u32(..4) {
        0 => random.u32(40..400),
        _ => random.u32(1..40),
    }
}

fn draw_volatile(random: &mut Rng) -> Operation {
    let key = random.usize(..VOLATILE_KEYS);
    match random.u32(..8) {
        0 | 1 => SetVolatile {
            key,
            value: random.u32(..),
            ttl_ms: (random.u32(..4) > 0).then(|| random.u32(1..8)),
        },
        2 => DeleteVolatile(key),
        _ => GetVolatile(key),
    }
}

/// Draws WATCH and GET of a key, and a transaction that only uses another one. Two such transactions whose keys are
/// exchanged must not both succeed if they overlap.
fn draw_watched_transaction(random: &mut Rng) -> Vec<Operation> {
    let (watched, used) = if random.bool() { (0, 1) } else { (1, 0) };
    let reads = (0..random.usize(..10)).map(|_| Get(used));
    let operations = reads.chain([SetGet(used, random.u32(..))]).collect();
    vec![Watch(vec![watched]), Get(watched), Transaction(operations)]
}
