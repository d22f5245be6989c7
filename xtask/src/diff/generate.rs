//! Random commands over a few keys, in lockstep on both servers; a difference is shrunk.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::connection::{encode, words};
use super::grammar::{KEYS, Leeway, pick, sentence};
use super::pair::{Binaries, Servers};
use super::run::{Difference, answers_agree, shown, shown_apart};

const SEQUENCE_COMMANDS: usize = 40;

/// What a run of the generator did.
pub struct Outcome {
    /// How many commands were sent to each server.
    pub commands: usize,
    /// The first sequence on which the servers part.
    pub found: Option<Found>,
}

/// A shrunk sequence on which the servers part.
pub struct Found {
    seed: u64,
    protocol: u8,
    commands: Vec<String>,
    difference: Difference,
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, protocol) = (self.seed, self.protocol);
        writeln!(out, "the servers part in RESP{protocol}, --seed {seed}:")?;
        for command in &self.commands {
            writeln!(out, "  {command}")?;
        }
        writeln!(out, "at: {}", self.difference.command)?;
        writeln!(out, "    weft:   {}", self.difference.weft)?;
        write!(out, "    valkey: {}", self.difference.valkey)
    }
}

impl Found {
    /// How many commands it takes to see the difference.
    pub fn length(&self) -> usize {
        self.commands.len()
    }
}

#[derive(Clone)]
struct Command {
    words: Vec<Vec<u8>>,
    leeway: Leeway,
}

/// Sends sequences for `duration`; the n-th uses `seed + n`. `filter` restricts the commands.
pub fn run(binaries: &Binaries, seed: u64, duration: Duration, filter: &str) -> Result<Outcome, String> {
    let mut servers = Servers::start(binaries, &[])?;
    let start = Instant::now();
    let mut outcome = Outcome {
        commands: 0,
        found: None,
    };
    for number in 0.. {
        let seed = seed.wrapping_add(number);
        let commands = sequence(seed, filter);
        if commands.is_empty() || start.elapsed() >= duration {
            break;
        }
        for protocol in [2, 3] {
            outcome.commands += commands.len();
            if first_difference(&mut servers, &commands, protocol)?.is_some() {
                outcome.found = shrunk(&mut servers, commands, protocol, seed)?;
                return Ok(outcome);
            }
        }
    }
    Ok(outcome)
}

/// The commands for one seed, and at their end commands that look at every key.
fn sequence(seed: u64, filter: &str) -> Vec<Command> {
    let mut rng = Rng::with_seed(seed);
    let mut commands = Vec::new();
    for _ in 0..SEQUENCE_COMMANDS {
        let Some(production) = pick(&mut rng, filter) else {
            return Vec::new();
        };
        commands.push(Command {
            words: sentence(production, &mut rng),
            leeway: production.leeway,
        });
    }
    for key in KEYS {
        let looks = [
            ("GET", Leeway::None),
            ("OBJECT ENCODING", Leeway::None),
            ("PTTL", Leeway::Clock),
        ];
        for (look, leeway) in looks {
            let mut words = words(look);
            words.push(key.as_bytes().to_vec());
            commands.push(Command { words, leeway });
        }
    }
    commands
}

/// Sends all commands at once and finds the first whose replies differ, with its index.
fn first_difference(
    servers: &mut Servers,
    commands: &[Command],
    protocol: u8,
) -> Result<Option<(usize, Difference)>, String> {
    servers.reset()?;
    let mut client = servers.connect(protocol)?;
    let mut bytes = Vec::new();
    for command in commands {
        encode(&command.words, &mut bytes);
    }
    client.send_bytes(&bytes);
    for (index, command) in commands.iter().enumerate() {
        let answers = client.answers();
        let rules = command.leeway.rules();
        if !answers_agree(&rules, &answers) {
            let (weft, valkey) = shown_apart(&rules, &answers);
            let gone = servers.ended();
            let difference = Difference {
                line: 0,
                command: shown(&command.words),
                weft: weft + &gone,
                valkey,
            };
            return Ok(Some((index, difference)));
        }
    }
    Ok(None)
}

/// Drops commands as long as a difference remains.
fn shrunk(servers: &mut Servers, mut commands: Vec<Command>, protocol: u8, seed: u64) -> Result<Option<Found>, String> {
    let mut last = None;
    let mut chunk = commands.len();
    while chunk > 0 {
        if let Some((index, difference)) = first_difference(servers, &commands, protocol)? {
            commands.truncate(index + 1);
            last = Some(difference);
        }
        let mut start = 0;
        while start < commands.len() {
            let end = (start + chunk).min(commands.len());
            let fewer = [&commands[..start], &commands[end..]].concat();
            match first_difference(servers, &fewer, protocol)? {
                Some((index, difference)) => {
                    commands = fewer;
                    commands.truncate(index + 1);
                    last = Some(difference);
                }
                None => start = end,
            }
        }
        chunk /= 2;
    }
    Ok(last.map(|difference| Found {
        seed,
        protocol,
        commands: commands.iter().map(|command| shown(&command.words)).collect(),
        difference,
    }))
}
