//! The knowledge of the clients of a run: how many operations were sent and acknowledged at each point of the
//! recording.

use super::model::State;
use super::operations::Operations;
use super::recording::{FileEvent, LogRecord};
use super::run::RunSettings;

/// The distance between two kept states of a writer, in operations.
const CHECKPOINT: usize = 100;
/// The time for which `appendfsync everysec` may lose acknowledged writes.
const EVERYSEC_NS: u64 = 2_000_000_000;

/// A count that was reached at a record.
struct Reached {
    record: usize,
    time_ns: u64,
    count: usize,
}

/// The operations of one writer.
struct WriterHistory {
    sent: Vec<Reached>,
    acknowledged: Vec<Reached>,
    /// The states after 0, 100, 200, ... operations.
    checkpoints: Vec<Operations>,
}

/// An action of an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Off,
    On,
    SaveBegin,
    Saved,
}

/// The bounds of what a writer's keys may contain after a power loss.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The number of operations that must have survived.
    pub least: usize,
    /// The number of operations that had been sent.
    pub most: usize,
}

/// How the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The power fails.
    Power,
    /// The same, for a planted defect: a write counts as acknowledged when it is sent.
    PowerAndEarlyReplies,
    /// The process is killed. Nothing that it has written is lost.
    Kill,
}

/// The file that the server loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedFile {
    AppendOnly,
    Dump,
}

/// The history of a run.
pub struct History {
    writers: Vec<WriterHistory>,
    phases: Vec<(usize, Phase)>,
    policy: &'static str,
}

impl History {
    /// Reads the markers of a recording, and repeats the operations that they name.
    ///
    /// # Errors
    /// Fails if a marker is not readable.
    pub fn new(records: &[LogRecord], settings: &RunSettings, states: &[State]) -> Result<Self, String> {
        let mut history = History {
            writers: Vec::new(),
            phases: Vec::new(),
            policy: settings.policy,
        };
        for _ in 0..states.len() {
            history.writers.push(WriterHistory {
                sent: Vec::new(),
                acknowledged: Vec::new(),
                checkpoints: Vec::new(),
            });
        }
        for (index, record) in records.iter().enumerate() {
            if let FileEvent::Marker(text) = &record.event {
                let unreadable = || format!("unreadable marker '{text}'");
                history
                    .add_marker((index, record.time_ns), text)
                    .ok_or_else(unreadable)?;
            }
        }
        for (index, (writer, state)) in history.writers.iter_mut().zip(states).enumerate() {
            let run = (settings.seed, settings.run);
            let mut operations = Operations::new(run, index, settings.base_ms, state.clone());
            let most = writer.sent.last().map_or(0, |sent| sent.count);
            loop {
                if operations.count.is_multiple_of(CHECKPOINT) {
                    writer.checkpoints.push(operations.clone());
                }
                if operations.count >= most {
                    break;
                }
                operations.advance();
            }
        }
        Ok(history)
    }

    fn add_marker(&mut self, (record, time_ns): (usize, u64), text: &str) -> Option<()> {
        let words: Vec<&str> = text.split(' ').collect();
        match words.as_slice() {
            [kind @ ("s" | "a"), writer, count] => {
                let writer = self.writers.get_mut(writer.parse::<usize>().ok()?)?;
                let list = if *kind == "s" {
                    &mut writer.sent
                } else {
                    &mut writer.acknowledged
                };
                list.push(Reached {
                    record,
                    time_ns,
                    count: count.parse().ok()?,
                });
            }
            ["p", phase] => {
                let phase = match *phase {
                    "off" => Phase::Off,
                    "on" => Phase::On,
                    "save-begin" => Phase::SaveBegin,
                    "saved" => Phase::Saved,
                    _ => return None,
                };
                self.phases.push((record, phase));
            }
            _ => return None,
        }
        Some(())
    }

    /// Says what the administrator did last, for error messages.
    pub fn last_phases(&self) -> String {
        let last = &self.phases[self.phases.len().saturating_sub(4)..];
        format!("the last phases, with their records: {last:?}")
    }

    /// The number of operations that were acknowledged in the run.
    pub fn acknowledged(&self) -> usize {
        self.writers
            .iter()
            .filter_map(|writer| writer.acknowledged.last())
            .map(|last| last.count)
            .sum()
    }

    /// The record before which a load of the dump file must have everything that was acknowledged.
    fn saved_at(&self, cut: usize) -> Option<usize> {
        let (mut begin, mut saved) = (None, None);
        for (record, phase) in self.phases.iter().take_while(|(record, _)| *record < cut) {
            match phase {
                Phase::SaveBegin => begin = Some(*record),
                Phase::Saved => saved = begin,
                Phase::Off | Phase::On => {}
            }
        }
        saved
    }

    /// Returns `true` if a dump file that was reported as complete exists at this record.
    pub fn has_dump(&self, cut: usize) -> bool {
        self.saved_at(cut).is_some()
    }

    /// Returns what must and what may be left of each writer's operations after a failure before a record.
    pub fn bounds(&self, (cut, time_ns): (usize, u64), file: LoadedFile, failure: Failure) -> Vec<Bounds> {
        let covered_until = match file {
            LoadedFile::Dump => self.saved_at(cut).unwrap_or(0),
            LoadedFile::AppendOnly => {
                let before = self.phases.iter().take_while(|(record, _)| *record < cut);
                let switches = before.filter(|(_, phase)| matches!(phase, Phase::Off | Phase::On));
                match switches.last() {
                    Some((record, Phase::Off)) => *record,
                    _ => cut,
                }
            }
        };
        let until_ns = match (file, self.policy) {
            (LoadedFile::Dump, _) | (_, "always") => u64::MAX,
            _ if failure == Failure::Kill => u64::MAX,
            (_, "everysec") => time_ns.saturating_sub(EVERYSEC_NS),
            _ => 0,
        };
        let bounds = self.writers.iter().map(|writer| {
            let source = match failure {
                Failure::PowerAndEarlyReplies => &writer.sent,
                Failure::Power | Failure::Kill => &writer.acknowledged,
            };
            let covered = source
                .iter()
                .take_while(|reached| reached.record < covered_until && reached.time_ns < until_ns);
            let sent = writer.sent.iter().take_while(|reached| reached.record < cut);
            Bounds {
                least: covered.last().map_or(0, |reached| reached.count),
                most: sent.last().map_or(0, |reached| reached.count),
            }
        });
        bounds.collect()
    }

    /// The record at which an operation was sent.
    pub fn sent_at(&self, writer: usize, operation: usize) -> usize {
        let sent = &self.writers[writer].sent;
        let index = sent.partition_point(|reached| reached.count < operation);
        sent.get(index).map_or(usize::MAX, |reached| reached.record)
    }

    /// The number of operations that were acknowledged before a record.
    pub fn acknowledged_before(&self, writer: usize, record: usize) -> usize {
        let acknowledged = &self.writers[writer].acknowledged;
        let index = acknowledged.partition_point(|reached| reached.record < record);
        index.checked_sub(1).map_or(0, |last| acknowledged[last].count)
    }

    /// The operations of a writer, positioned behind the first `count` of them.
    pub fn operations(&self, writer: usize, count: usize) -> Operations {
        let checkpoints = &self.writers[writer].checkpoints;
        let mut operations = checkpoints[(count / CHECKPOINT).min(checkpoints.len() - 1)].clone();
        while operations.count < count {
            operations.advance();
        }
        operations
    }
}
