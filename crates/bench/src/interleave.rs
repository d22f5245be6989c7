//! `lab interleave`: shows why prefetching works, with nothing but linked lists.
//!
//! A processor waits about as long for one line of memory as it takes for hundreds of instructions, but it can wait for
//! many lines at the same time. A walk along a linked list cannot use that: the address of the next node is in the node
//! that it waits for. The program walks the same lists in three ways:
//!
//! 1. *one after the other*: each list to its end. At most one node is awaited at any time.
//! 2. *interleaved*: a step in each list in turn. The steps do not depend on each other, so the processor awaits as
//!    many nodes as its window of instructions spans. With more work per node, that is fewer.
//! 3. *interleaved with prefetch*: as before, and each step prefetches the node of the list's next step. All lists'
//!    nodes are on their way whatever the work per node is.
//!
//! A server does the third with the keys of a batch of commands, in place of the lists: it prefetches what a command of
//! each client needs (slot, bucket, entry, value) before it executes the first one.
//!
//! The nodes of all lists lie in one array. Each list visits its nodes in a random order of its own, in the whole
//! array, so the hardware prefetcher, which follows lines in a row and constant distances, finds nothing. Every way
//! must return the same checksum for each list, which depends on the order of its nodes.
//!
//! A signal ends the program after the current walk. The table then has what was measured.

use std::hint::black_box;
use std::time::Instant;

use weft_sync::prefetch;

use crate::draw::{Draw, scramble};
use crate::environment::RunEnvironment;
use crate::error::{Error, Result};
use crate::interruption::Interruption;
use crate::machine_memory;
use crate::process;
use crate::progress::{log_line, print_result};
use crate::report::{ReportTable, format_decimal, format_ratio, median, write_table};

#[cfg(test)]
mod tests;

/// The parameters of the walks.
#[derive(Debug, Clone)]
pub struct InterleaveOptions {
    /// The number of lists.
    pub lists: usize,
    /// The number of nodes of each list.
    pub nodes: usize,
    /// The number of multiplications per node, each of which needs the result of the one before.
    pub work: usize,
    /// The number of interleaved rounds.
    pub rounds: usize,
    /// The seed of the orders.
    pub seed: u64,
    /// The core on which the program runs; `None` is any.
    pub core: Option<usize>,
    /// The command line of this program, for the result.
    pub command_line: String,
    /// The request to end the run before its time.
    pub interruption: Interruption,
}

/// A node of a list. Indexes instead of pointers need half the memory, and no unsafe code.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    /// The index of the next node.
    next: u32,
    value: u32,
}

/// Lists of equal length in one array: node `place` of list `list` is at `place * lists + list`.
#[derive(Debug)]
struct LinkedLists {
    nodes: Vec<Node>,
    lists: usize,
}

/// A way to walk along all lists. Returns the checksum of each list.
type Walk = fn(&LinkedLists, work: usize) -> Vec<u64>;

const WALKS: [(&str, Walk); 3] = [
    ("one after the other", LinkedLists::walk_one_after_other),
    ("interleaved", LinkedLists::walk_interleaved),
    ("interleaved with prefetch", LinkedLists::walk_with_prefetch),
];

/// The size of a cache line in bytes, for the text of the result.
const LINE_BYTES: usize = 64;

impl LinkedLists {
    /// Creates `lists` lists of `length` nodes each.
    ///
    /// # Errors
    /// Fails if the run is interrupted.
    fn new(lists: usize, length: usize, seed: u64, interruption: &Interruption) -> Result<LinkedLists> {
        let mut nodes = vec![Node::default(); lists * length];
        let mut successors = vec![0; length];
        for list in 0..lists {
            interruption.check()?;
            random_cycle(&mut successors, scramble(seed ^ scramble(list as u64)));
            for (place, successor) in successors.iter().enumerate() {
                let index = place * lists + list;
                nodes[index] = Node {
                    next: successor * lists as u32 + list as u32,
                    value: scramble(index as u64) as u32,
                };
            }
        }
        Ok(LinkedLists { nodes, lists })
    }

    /// The number of nodes of each list.
    fn length(&self) -> usize {
        self.nodes.len() / self.lists
    }

    fn walk_one_after_other(&self, work: usize) -> Vec<u64> {
        let length = self.length();
        let walk = |list: usize| {
            let mut sum = 0;
            let mut index = list as u32;
            for _ in 0..length {
                let node = self.nodes[index as usize];
                sum = visit(sum, node.value, work);
                index = node.next;
            }
            sum
        };
        (0..self.lists).map(walk).collect()
    }

    fn walk_interleaved(&self, work: usize) -> Vec<u64> {
        self.walk_in_turn(work, |_| {})
    }

    fn walk_with_prefetch(&self, work: usize) -> Vec<u64> {
        let first = self.nodes.as_ptr();
        self.walk_in_turn(work, |next| prefetch(first.wrapping_add(next as usize).cast()))
    }

    /// Takes a step in each list in turn. Calls `announce` with the index of the node of the list's next step.
    #[inline(always)]
    fn walk_in_turn(&self, work: usize, announce: impl Fn(u32)) -> Vec<u64> {
        let mut steps: Vec<(u32, u64)> = (0..self.lists as u32).map(|list| (list, 0)).collect();
        for _ in 0..self.length() {
            for (index, sum) in &mut steps {
                let node = self.nodes[*index as usize];
                *index = node.next;
                announce(node.next);
                *sum = visit(*sum, node.value, work);
            }
        }
        steps.into_iter().map(|(_, sum)| sum).collect()
    }
}

/// Fills `successors` with a random cycle through all of its places (Sattolo, 1986): each place holds the next one.
fn random_cycle(successors: &mut [u32], seed: u64) {
    for (place, successor) in successors.iter_mut().enumerate() {
        *successor = place as u32;
    }
    let mut draw = Draw::new(seed, 0);
    for last in (1..successors.len()).rev() {
        let other = draw.below(last as u64) as usize;
        successors.swap(last, other);
    }
}

/// Returns a checksum with one more value: it depends on the order of the values.
#[inline(always)]
fn visit(sum: u64, value: u32, work: usize) -> u64 {
    let mut sum = sum.rotate_left(5) ^ u64::from(value);
    for _ in 0..work {
        sum = sum.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    }
    sum
}

/// The results of all rounds.
#[derive(Debug, Default)]
struct WalkTimes {
    /// The nanoseconds per node of each way, in each round.
    ns_per_node: [Vec<f64>; WALKS.len()],
    /// The checksum of each list, once there was a walk.
    sums: Option<Vec<u64>>,
}

impl WalkTimes {
    /// Returns the checksum of all lists.
    fn checksum(&self) -> u64 {
        let sums = self.sums.iter().flatten();
        sums.fold(0, |all, sum| scramble(all ^ sum))
    }
}

/// Measures the walks and prints a table.
///
/// # Errors
/// Fails if the memory does not suffice, the core does not exist, two ways have different checksums, or the run is
/// interrupted. What was measured before a failure is printed all the same.
pub fn run(options: &InterleaveOptions) -> Result<()> {
    let environment = RunEnvironment::current();
    let bytes = memory_bytes(options)?;
    check_available(bytes, machine_memory::available_bytes())?;
    if let Some(core) = options.core {
        process::pin_this_thread(&[core])?;
    }
    log_line(format_args!(
        "creating {} lists of {} nodes",
        options.lists, options.nodes
    ));
    let lists = LinkedLists::new(options.lists, options.nodes, options.seed, &options.interruption)?;
    let mut times = WalkTimes::default();
    let outcome = measure(&lists, options, &mut times);
    if times.ns_per_node.iter().any(|ns| !ns.is_empty()) {
        let text = results_text(&environment, options, &times, outcome.as_ref().err());
        print_result(&text);
    }
    outcome
}

/// Walks in all ways, in each round.
fn measure(lists: &LinkedLists, options: &InterleaveOptions, times: &mut WalkTimes) -> Result<()> {
    for round in 1..=options.rounds {
        for ((name, walk), ns_per_node) in WALKS.iter().zip(&mut times.ns_per_node) {
            options.interruption.check()?;
            let begin = Instant::now();
            let sums = black_box(walk(black_box(lists), options.work));
            let ns = begin.elapsed().as_nanos() as f64 / lists.nodes.len() as f64;
            let rounds = options.rounds;
            log_line(format_args!("round {round} of {rounds}: {name}: {ns:.2} ns per node"));
            if times.sums.get_or_insert_with(|| sums.clone()) != &sums {
                let text = format!("{name}: the checksums differ from those of the walk before");
                return Err(Error::WrongReply(text));
            }
            ns_per_node.push(ns);
        }
    }
    Ok(())
}

/// Returns the number of bytes that the lists need, with the largest array that creates them.
///
/// # Errors
/// Fails if there are more nodes than an index can name.
fn memory_bytes(options: &InterleaveOptions) -> Result<u64> {
    let all = options.lists as u64 * options.nodes as u64;
    if all > u64::from(u32::MAX) {
        return Err(Error::Usage(format!("{all} nodes are more than 2^32")));
    }
    Ok(all * size_of::<Node>() as u64 + options.nodes as u64 * size_of::<u32>() as u64)
}

/// Checks that the walks leave a quarter of the available memory to other programs.
fn check_available(needed: u64, available: Option<u64>) -> Result<()> {
    let megabytes = |bytes: u64| bytes / 1_000_000;
    match available {
        Some(available) if needed > available / 4 * 3 => Err(Error::Usage(format!(
            "the lists need {} MB, and at most three quarters of the available {} MB may be used: give fewer --nodes",
            megabytes(needed),
            megabytes(available)
        ))),
        _ => Ok(()),
    }
}

/// Formats the results as a Markdown table, with the reason why the run ended early.
fn results_text(
    environment: &RunEnvironment,
    options: &InterleaveOptions,
    times: &WalkTimes,
    early_end: Option<&Error>,
) -> String {
    let bytes = options.lists * options.nodes * size_of::<Node>();
    let mut text = format!(
        "{}.\n\nCommand line: `{}` of weft-bench {}.\n\n\
         {} lists of {} nodes of {} B in one array of {:.0} MB (a line of memory has {LINE_BYTES} B), each in a random \
         order, {} multiplications per node, {} rounds. All walks below have the checksum {:016x}.\n\n",
        environment.text(),
        options.command_line,
        env!("CARGO_PKG_VERSION"),
        options.lists,
        options.nodes,
        size_of::<Node>(),
        bytes as f64 / 1e6,
        options.work,
        options.rounds,
        times.checksum()
    );
    if let Some(reason) = early_end {
        text.push_str(&format!("**The run ended early: {reason}.**\n\n"));
    }
    let baseline = &times.ns_per_node[0];
    let rows = WALKS.iter().zip(&times.ns_per_node).map(|((name, _), ns)| {
        let ratios = baseline.iter().zip(ns).map(|(first, this)| first / this);
        vec![
            (*name).to_string(),
            ns.len().to_string(),
            format_decimal(median(ns.iter().copied()), 2),
            format_ratio(median(ratios)),
        ]
    });
    let heads = [
        "walk",
        "rounds",
        "ns per node, median",
        "times as fast as one after the other",
    ];
    let table = ReportTable {
        heads: heads.map(String::from).to_vec(),
        rows: rows.collect(),
    };
    write_table(&mut text, &table);
    text
}
