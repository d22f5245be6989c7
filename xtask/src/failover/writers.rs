//! The writers of a round: each kind runs one kind of command on keys of one slot and records every event.
//!
//! Keys are `{tag}:ROUND:KIND:WRITER`. Registers and counters have one writer; a queue has several.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::history::{Observation, Outcome, WriterEvent};
use super::session::{Attempt, Session, words};
use crate::stress::client::StressReply;

/// The number of members of the larger source of SUNIONSTORE. Uniting it takes long enough to leave the worker.
const UNION_MEMBERS: usize = 4000;
/// The length of a queue above which its producer pauses.
const MAX_QUEUE_LENGTH: i64 = 60;
/// The time between two commands of a writer, in microseconds.
const PAUSE_US: Range<u64> = 100..1500;
/// The number of commands in a pipeline.
const PIPELINE_LENGTH: u64 = 16;
/// A script that writes two keys.
const SCRIPT: &str = "redis.call('SET', KEYS[1], ARGV[1]) \
     for i = 1, 50 do redis.call('HINCRBY', KEYS[2], 'steps', 1) end \
     redis.call('HSET', KEYS[2], 'version', ARGV[1]) return ARGV[1]";

/// The work that a writer does until the round ends.
pub type WriterWork = fn(&mut Session<'_>, &Keys, &mut Log<'_>) -> Result<(), String>;

/// A kind of writer: its name, and the work that it does.
pub type WriterKind = (&'static str, WriterWork);

/// The kinds of writers that every tag gets.
pub const KINDS: &[WriterKind] = &[
    ("set", set_versions),
    ("pipeline", send_pipelines),
    ("counter", increment),
    ("queue", push),
    ("queue", consume),
    ("queue", consume),
    ("members", add_members),
    ("exec", run_transactions),
    ("eval", run_scripts),
    ("union", unite),
];

/// The kinds of writers in a cluster whose nodes are only restarted and replaced as planned.
pub const PLANNED_KINDS: &[WriterKind] = &[
    ("set", set_versions),
    ("read", read_back),
    ("pipeline", send_pipelines),
    ("counter", increment),
    ("queue", push),
    ("queue", consume),
    ("members", add_members),
    ("exec", run_transactions),
    ("eval", run_scripts),
    ("union", unite),
];

/// The names of a writer's keys.
pub struct Keys {
    pub prefix: String,
    pub writer: usize,
}

impl Keys {
    /// Returns the name of a key that only this writer writes.
    fn own(&self, kind: &str) -> String {
        format!("{}:{kind}:{}", self.prefix, self.writer)
    }

    /// Returns the name of a key that all writers of the tag share.
    fn shared(&self, kind: &str) -> String {
        format!("{}:{kind}:shared", self.prefix)
    }
}

/// The events of one writer, and the number of them that were acknowledged.
pub struct Log<'a> {
    pub events: Vec<WriterEvent>,
    pub progress: &'a AtomicU64,
}

impl Log<'_> {
    fn push(&mut self, event: WriterEvent) {
        if event.outcome() >= Some(Outcome::Acknowledged) {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
        self.events.push(event);
    }
}

fn set_versions(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let key = keys.own("set");
    for version in 1.. {
        if !session.run.is_running() {
            break;
        }
        let text = version.to_string();
        let reads = session.rng.bool();
        let command = if reads {
            words(&["SET", &key, &text, "GET"])
        } else {
            words(&["SET", &key, &text])
        };
        let written = session.write(&[command])?;
        if reads && written.outcome >= Outcome::Acknowledged {
            log.push(WriterEvent::Read {
                register: key.clone(),
                version: written.reply.text().parse().unwrap_or(0),
            });
        }
        log.push(WriterEvent::Write {
            registers: vec![key.clone()],
            version,
            outcome: written.outcome,
        });
        session.pause(PAUSE_US);
    }
    Ok(())
}

/// Writes versions, and reads each one several times. In a cluster only the primary replies, so what was acknowledged
/// must be there.
fn read_back(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let key = keys.own("read");
    for version in 1u64.. {
        if !session.run.is_running() {
            break;
        }
        let written = session.write(&[words(&["SET", &key, &version.to_string()])])?;
        log.push(WriterEvent::Write {
            registers: vec![key.clone()],
            version,
            outcome: written.outcome,
        });
        for _ in 0..4 {
            session.pause(PAUSE_US);
            if let Attempt::Replies(replies) = session.attempt(&[words(&["GET", &key])])? {
                let read = replies.first().map(StressReply::text).unwrap_or_default();
                log.push(WriterEvent::Read {
                    register: key.clone(),
                    version: read.parse().unwrap_or(0),
                });
            }
        }
    }
    Ok(())
}

fn send_pipelines(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let registers = [keys.own("pipeline-one"), keys.own("pipeline-other")];
    let mut first = 1;
    while session.run.is_running() {
        let versions = first..first + PIPELINE_LENGTH;
        let writes: Vec<(&String, u64)> = versions
            .map(|version| (&registers[session.rng.usize(..2)], version))
            .collect();
        let commands: Vec<Vec<String>> = writes
            .iter()
            .map(|(register, version)| words(&["SET", register, &version.to_string()]))
            .collect();
        let outcomes = session.write_each(&commands)?;
        for ((register, version), outcome) in writes.into_iter().zip(outcomes) {
            log.push(WriterEvent::Write {
                registers: vec![register.clone()],
                version,
                outcome,
            });
        }
        first += PIPELINE_LENGTH;
        session.pause(PAUSE_US);
    }
    Ok(())
}

fn increment(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let counter = keys.own("counter");
    while session.run.is_running() {
        let written = session.write(&[words(&["INCR", &counter])])?;
        log.push(WriterEvent::Increment {
            counter: counter.clone(),
            value: written.reply.text().parse().ok(),
            outcome: written.outcome,
        });
        session.pause(PAUSE_US);
    }
    Ok(())
}

fn push(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let queue = keys.shared("queue");
    let mut number = 0;
    while session.run.is_running() {
        let mut command = words(&[["LPUSH", "RPUSH"][session.rng.usize(..2)], &queue]);
        for _ in 0..session.rng.usize(1..4) {
            number += 1;
            command.push(format!("element-{}-{number}", keys.writer));
        }
        let written = session.write(std::slice::from_ref(&command))?;
        for element in &command[2..] {
            log.push(WriterEvent::Add {
                collection: queue.clone(),
                element: element.clone(),
                outcome: written.outcome,
            });
        }
        if matches!(written.reply, StressReply::Integer(length) if length > MAX_QUEUE_LENGTH) {
            std::thread::sleep(Duration::from_millis(5));
        }
        session.pause(PAUSE_US);
    }
    Ok(())
}

fn consume(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let (queue, other, moved) = (keys.shared("queue"), keys.shared("absent"), keys.shared("moved"));
    while session.run.is_running() {
        let (command, may_take) = match session.rng.u8(..6) {
            0 => (words(&["LPOP", &queue, "3"]), 3),
            1 => (words(&["BRPOPLPUSH", &queue, &moved, "0.3"]), 0),
            2 => (words(&["BLMPOP", "0.3", "2", &other, &queue, "LEFT", "COUNT", "2"]), 2),
            3 => (words(&["BRPOP", &other, &queue, "0.2"]), 1),
            _ => (words(&["BLPOP", &queue, "0.4"]), 1),
        };
        let written = session.write(std::slice::from_ref(&command))?;
        let elements = elements_of(&written.reply);
        if may_take == 0 {
            for element in elements {
                log.push(WriterEvent::Move {
                    to: moved.clone(),
                    element,
                    outcome: written.outcome,
                });
            }
        } else if !elements.is_empty() || written.outcome == Outcome::Unknown {
            log.push(WriterEvent::Take {
                collection: queue.clone(),
                elements,
                may_take,
                outcome: written.outcome,
                received: written.received,
                settled: written.settled,
            });
        }
    }
    Ok(())
}

/// Returns the elements in a reply, at any depth.
fn elements_of(reply: &StressReply) -> Vec<String> {
    match reply {
        StressReply::Array(items) => items.iter().flat_map(elements_of).collect(),
        other => Some(other.text())
            .filter(|text| text.starts_with("element-"))
            .into_iter()
            .collect(),
    }
}

fn add_members(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let set = keys.shared("members");
    let mut number = 0;
    while session.run.is_running() {
        number += 1;
        let element = format!("member-{}-{number}", keys.writer);
        let written = session.write(&[words(&["SADD", &set, &element])])?;
        log.push(WriterEvent::Add {
            collection: set.clone(),
            element,
            outcome: written.outcome,
        });
        session.pause(PAUSE_US);
    }
    Ok(())
}

fn run_transactions(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let registers = vec![keys.own("exec-one"), keys.own("exec-other")];
    for version in 1u64.. {
        if !session.run.is_running() {
            break;
        }
        let text = version.to_string();
        let written = session.write(&[
            words(&["MULTI"]),
            words(&["SET", &registers[0], &text]),
            words(&["SET", &registers[1], &text]),
            words(&["EXEC"]),
        ])?;
        let is_whole = matches!(written.reply.items(), [StressReply::Simple(_), StressReply::Simple(_)]);
        if written.outcome >= Outcome::Acknowledged && !is_whole {
            return Err(format!("EXEC of two writes was answered by {:?}", written.reply));
        }
        log.push(WriterEvent::Write {
            registers: registers.clone(),
            version,
            outcome: written.outcome,
        });
        session.pause(PAUSE_US);
    }
    Ok(())
}

fn run_scripts(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let registers = vec![keys.own("eval-string"), keys.own("eval-hash")];
    for version in 1u64.. {
        if !session.run.is_running() {
            break;
        }
        let text = version.to_string();
        let written = session.write(&[words(&["EVAL", SCRIPT, "2", &registers[0], &registers[1], &text])])?;
        log.push(WriterEvent::Write {
            registers: registers.clone(),
            version,
            outcome: written.outcome,
        });
        session.pause(PAUSE_US);
    }
    Ok(())
}

/// Stores the union of a large set and of a set that grows by one member each time. The greatest of these members is
/// the version of the result.
fn unite(session: &mut Session<'_>, keys: &Keys, log: &mut Log<'_>) -> Result<(), String> {
    let (large, growing, result) = (keys.own("large"), keys.own("growing"), keys.own("union"));
    let mut source = words(&["SADD", &large]);
    source.extend((0..UNION_MEMBERS).map(|number| format!("base-{number}")));
    for version in 1u64.. {
        // An unplanned failover may have lost the source, so it is written again from time to time.
        if version % 50 == 1 {
            session.insist(&source.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        session.insist(&["SADD", &growing, &format!("version-{version}")])?;
        if !session.run.is_running() {
            break;
        }
        let written = session.write(&[words(&["SUNIONSTORE", &result, &large, &growing])])?;
        log.push(WriterEvent::Write {
            registers: vec![result.clone()],
            version,
            outcome: written.outcome,
        });
        // Without a limit the servers would do little else, and a restarted one would load its log for long.
        std::thread::sleep(Duration::from_millis(session.rng.u64(4..12)));
    }
    Ok(())
}

/// Reads the state of every key that one of the events names.
///
/// # Errors
/// Fails like [`Session::attempt`].
pub fn observe(session: &mut Session<'_>, events: &[WriterEvent], observation: &mut Observation) -> Result<(), String> {
    for event in events {
        match event {
            WriterEvent::Write { registers, .. } => {
                for register in registers {
                    observe_register(session, register, observation)?;
                }
            }
            WriterEvent::Increment { counter: register, .. } | WriterEvent::Read { register, .. } => {
                observe_register(session, register, observation)?;
            }
            WriterEvent::Add { collection, .. }
            | WriterEvent::Take { collection, .. }
            | WriterEvent::Move { to: collection, .. } => {
                observe_collection(session, collection, observation)?;
            }
        }
    }
    Ok(())
}

fn observe_register(session: &mut Session<'_>, key: &str, observation: &mut Observation) -> Result<(), String> {
    if observation.registers.contains_key(key) {
        return Ok(());
    }
    let version = if key.contains(":union:") {
        let reply = session.insist(&["SMEMBERS", key])?;
        let members: Vec<String> = reply.items().iter().map(StressReply::text).collect();
        let base = members.iter().filter(|member| member.starts_with("base-")).count();
        let version = members
            .iter()
            .filter_map(|member| member.strip_prefix("version-")?.parse().ok())
            .max();
        // The large source was written by one command, so a failover loses it as a whole or not at all.
        if base != 0 && base != UNION_MEMBERS {
            let story = format!("{key}: the union has {base} of {UNION_MEMBERS} members of the large source");
            observation.impossible.push(story);
        }
        version.unwrap_or(0)
    } else {
        let command = match key.contains(":eval-hash:") {
            true => vec!["HGET", key, "version"],
            false => vec!["GET", key],
        };
        session.insist(&command)?.text().parse().unwrap_or(0)
    };
    observation.registers.insert(key.to_owned(), version);
    Ok(())
}

fn observe_collection(session: &mut Session<'_>, key: &str, observation: &mut Observation) -> Result<(), String> {
    if observation.collections.contains_key(key) {
        return Ok(());
    }
    let command = match key.contains(":members:") {
        true => vec!["SMEMBERS", key],
        false => vec!["LRANGE", key, "0", "-1"],
    };
    let reply = session.insist(&command)?;
    let elements = reply.items().iter().map(StressReply::text).collect();
    observation.collections.insert(key.to_owned(), elements);
    if key.contains(":queue:") {
        // Elements are also there if the only commands that moved some had no reply.
        observe_collection(session, &key.replace(":queue:", ":moved:"), observation)?;
    }
    Ok(())
}
