//! Compares the module API of both servers: a module runs programs, which are lists of calls of the API.
//!
//! The module is `crates/server/tests/modules/interpreter`. The same file is loaded into both servers. Each sequence
//! begins with empty servers and consists of programs and other commands, in each protocol. Then all keys are read, and
//! another client must have received the same key events and messages. Replies are compared byte by byte.

mod generate;
mod templates;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::connection::{ServerAnswer, encode, split_words};
use super::pair::{ComparedServers, PairedClient, ServerBinaries, ServerPair};
use super::run::format_command;
use crate::workspace;
use generate::{Generator, KEYS, Step, Words};

/// Sets small limits, so that collections change their encoding.
const SERVER_ARGUMENTS: &str = "--notify-keyspace-events KEAmn --hash-max-listpack-entries 4 \
     --hash-max-listpack-value 24 --zset-max-listpack-entries 4 --zset-max-listpack-value 24 --set-max-intset-entries 3 \
     --set-max-listpack-entries 4 --list-max-listpack-size 4 --stream-node-max-entries 3 --hz 500 \
     --enable-module-command yes";
/// The commands before each sequence.
const BEGIN: &[&str] = &["program.end", "flushall", "acl deluser ann", "program.log"];

/// What the run found.
#[derive(Default)]
pub struct ModuleOutcome {
    /// The number of sequences; each runs once in each protocol.
    pub sequences: u64,
    /// The number of commands that were sent to each server.
    pub commands: u64,
    /// The number of calls of the API.
    pub calls: u64,
    /// The differences, shrunk.
    pub differing: Vec<ModuleDifference>,
}

/// A sequence for which the servers differ.
pub struct ModuleDifference {
    seed: u64,
    protocol: u8,
    has_events: bool,
    steps: Vec<Step>,
    found: Found,
}

impl fmt::Display for ModuleDifference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, protocol) = (self.seed, self.protocol);
        let module = if self.has_events {
            "subscribed"
        } else {
            "not subscribed"
        };
        writeln!(
            out,
            "the servers differ in RESP{protocol}, --only modules --seed {seed}, the module is {module} to events:"
        )?;
        for command in self.steps.iter().flat_map(Step::commands) {
            writeln!(out, "  {}", format_command(&command))?;
        }
        writeln!(out, "at: {}", self.found.place)?;
        writeln!(out, "    weft:   {}", self.found.weft)?;
        write!(out, "    valkey: {}", self.found.valkey)
    }
}

/// A difference within a sequence.
struct Found {
    place: String,
    weft: String,
    valkey: String,
    /// `true` if a server did not reply any more.
    is_last: bool,
}

/// The parameters of a run.
pub struct ModulePlan<'a> {
    /// The servers.
    pub binaries: &'a ServerBinaries,
    /// The seed of the first sequence.
    pub seed: u64,
    /// The number of sequences.
    pub sequences: u64,
    /// A part of the names of the subjects.
    pub filter: &'a str,
    /// How many differences are shrunk and shown before the run ends.
    pub max_shown: usize,
}

/// Runs sequences: one half with a module that subscribes to key events, which therefore run on the home worker.
///
/// # Errors
/// Fails if the module cannot be compiled, or a server cannot be started.
pub fn run(plan: &ModulePlan<'_>) -> Result<ModuleOutcome, String> {
    let module = compile()?;
    let mut outcome = ModuleOutcome::default();
    for has_events in [false, true] {
        let mut arguments = split_arguments(SERVER_ARGUMENTS);
        arguments.extend(["--loadmodule".to_string(), module.display().to_string()]);
        arguments.extend(has_events.then(|| "events".to_string()));
        let mut comparison = Comparison::start(plan.binaries, arguments)?;
        let first = plan.seed + if has_events { plan.sequences.div_ceil(2) } else { 0 };
        let count = if has_events {
            plan.sequences / 2
        } else {
            plan.sequences.div_ceil(2)
        };
        for seed in first..first + count {
            if outcome.differing.len() >= plan.max_shown {
                return Ok(outcome);
            }
            outcome.sequences += 1;
            let steps = Generator::sequence(seed, plan.filter);
            outcome.calls += steps.iter().map(count_calls).sum::<u64>() * 2;
            for protocol in [2, 3] {
                outcome.commands += comparison.commands_of(&steps).len() as u64;
                let Some(first) = comparison.first_difference(&steps, protocol)? else {
                    continue;
                };
                if let Some((steps, found)) = comparison.shrink(steps.clone(), protocol)? {
                    let difference = ModuleDifference {
                        seed,
                        protocol,
                        has_events,
                        steps,
                        found,
                    };
                    println!("{difference}");
                    outcome.differing.push(difference);
                } else {
                    let Found {
                        place, weft, valkey, ..
                    } = first;
                    println!("seed {seed}, a difference that does not occur again: {place}\n  {weft}\n  {valkey}");
                }
                break;
            }
        }
    }
    Ok(outcome)
}

fn count_calls(step: &Step) -> u64 {
    match step {
        Step::Program { calls, .. } => calls.len() as u64,
        Step::Command(_) => 0,
    }
}

fn split_arguments(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// Compiles the module against the header for authors. Returns the path of the file.
fn compile() -> Result<PathBuf, String> {
    let root = workspace::root();
    let sources = root.join("crates/server/tests/modules/interpreter");
    let directory = root.join("target/diff-modules");
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    // Another run may load the file meanwhile.
    let new = directory.join(format!("interpreter.{}.so", std::process::id()));
    let target = directory.join("interpreter.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let flags = "-std=gnu11 -O1 -g -Wall -Wextra -Werror -shared -fPIC -pthread";
    let output = Command::new(compiler)
        .args(flags.split(' '))
        .arg("-I")
        .arg(root.join("crates/modules/include"))
        .arg("-o")
        .arg(&new)
        .args(c_files(&sources)?)
        .output()
        .map_err(|error| format!("the C compiler: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "the module does not compile: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    fs::rename(&new, &target).map_err(|error| error.to_string())?;
    Ok(target)
}

fn c_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    Ok(files)
}

/// Both servers with the module, a client, and one that receives events.
struct Comparison<'a> {
    binaries: &'a ServerBinaries,
    arguments: Vec<String>,
    servers: ComparedServers,
    clients: Option<(PairedClient, PairedClient)>,
    /// The number of runs, which marks the end of the events of each.
    runs: u64,
}

impl<'a> Comparison<'a> {
    fn start(binaries: &'a ServerBinaries, arguments: Vec<String>) -> Result<Self, String> {
        let mut servers = ComparedServers::start(binaries, &arguments)?;
        servers.call_control(&split_words("DEBUG SET-ACTIVE-EXPIRE 0"));
        Ok(Self {
            binaries,
            arguments,
            servers,
            clients: None,
            runs: 0,
        })
    }

    /// The commands of a sequence, with those that read all keys.
    fn commands_of(&self, steps: &[Step]) -> Vec<Words> {
        let mut commands: Vec<Words> = steps.iter().flat_map(Step::commands).collect();
        commands.push(split_words("program.log"));
        for database in ["1", "0"] {
            commands.push(split_words(&format!("select {database}")));
            for (place, key) in KEYS.iter().enumerate() {
                for reader in ["object encoding", "dump", "debug digest-value"] {
                    commands.push(split_words(&format!("{reader} {key}")));
                }
                let [a, b, c] = KEYS;
                let whole = format!(
                    "program.read {a} {b} {c} key.open 3 0 {place} 5 key.state 1 0 key.expiry 1 0 scan.key 1 0 \
                     value.show 1 0 call 6 0 E lrange {key} -100 100"
                );
                commands.push(split_words(&whole));
                commands.push(split_words(&format!("lrange {key} 0 -1")));
                commands.push(split_words(&format!("zrange {key} 0 -1 withscores")));
                commands.push(split_words(&format!("xrange {key} - +")));
            }
            commands.push(split_words("dbsize"));
        }
        commands.push(split_words("program.log"));
        commands
    }

    /// Runs a sequence. Returns the first difference.
    fn first_difference(&mut self, steps: &[Step], protocol: u8) -> Result<Option<Found>, String> {
        let found = self.compare(steps, protocol)?;
        if found.is_some() {
            // Replies may be missing or left over, and a script may have confused a server.
            self.clients = None;
            let gone = self.servers.exit_report();
            let is_gone = found.as_ref().is_some_and(|found| found.is_last);
            if is_gone || !gone.is_empty() || steps.iter().any(Step::is_script) {
                *self = Self::start(self.binaries, self.arguments.clone())?;
                return Ok(found.map(|found| Found {
                    weft: found.weft + &gone,
                    ..found
                }));
            }
        }
        Ok(found)
    }

    fn compare(&mut self, steps: &[Step], protocol: u8) -> Result<Option<Found>, String> {
        if self.clients.is_none() {
            let mut events = self.servers.connect(2)?;
            events.send_bytes(b"PSUBSCRIBE __key*@*__:* c* d*\r\nSUBSCRIBE end\r\n");
            (0..4).for_each(|_| drop(events.read_answers()));
            self.clients = Some((self.servers.connect(2)?, events));
        }
        self.runs += 1;
        let end = format!("end-{}", self.runs);
        let commands = self.commands_of(steps);
        let Some((client, events)) = &mut self.clients else {
            return Err("no clients".to_string());
        };
        let mut bytes = Vec::new();
        let hello = format!("hello {protocol}");
        let prefix = [&["reset", &hello][..], BEGIN].concat();
        prefix.iter().for_each(|line| encode(&split_words(line), &mut bytes));
        commands.iter().for_each(|words| encode(words, &mut bytes));
        encode(&split_words(&format!("publish end {end}")), &mut bytes);
        client.send_bytes(&bytes);
        for _ in &prefix {
            client.read_answers();
        }
        let mut first = None;
        let mut has_order = true;
        let uses = |names: &[&[u8]]| commands.iter().flatten().any(|word| names.contains(&word.as_slice()));
        // Modules that delete entries of streams leave statistics behind that are wrong, which XINFO and DUMP show.
        let deletes = uses(&[b"stream.delete", b"stream.walk"]);
        let means = Means {
            edits_strings: uses(&[b"string.access", b"string.append"]),
            sorts: uses(&[b"sort", b"sort_ro"]),
        };
        for words in &commands {
            let answers = client.read_answers();
            let is_dump = words[0] == b"dump";
            let is_comparable = !is_dump || (has_order && !deletes);
            let is_equivalent = match words[0].as_slice() {
                b"object" => means.may_explain(&answers),
                _ => means.may_explain_scores(&answers),
            };
            if words[0] == b"object" {
                let encoding = answers.valkey.to_line();
                let is_converted = is_equivalent && answers.weft != answers.valkey && encoding.contains("skiplist");
                has_order = !encoding.contains("hashtable") && !is_converted;
            }
            if first.is_none() && is_comparable && !is_equivalent {
                first = difference_of(&format_command(words), &answers);
            }
            if is_silent(&answers) {
                return Ok(first.map(|found| Found { is_last: true, ..found }));
            }
        }
        if let Some(found) = out_of_step(&client.read_answers()) {
            return Ok(first.or(Some(found)));
        }
        Ok(first.or(compare_events(events, &end)))
    }

    /// Removes steps and calls as long as a difference remains.
    fn shrink(&mut self, mut steps: Vec<Step>, protocol: u8) -> Result<Option<(Vec<Step>, Found)>, String> {
        let mut last = self.first_difference(&steps, protocol)?;
        if last.is_none() {
            return Ok(None);
        }
        let mut place = 0;
        while place < steps.len() {
            let mut fewer = steps.clone();
            fewer.remove(place);
            match self.first_difference(&fewer, protocol)? {
                Some(found) => (steps, last) = (fewer, Some(found)),
                None => place += 1,
            }
        }
        for place in 0..steps.len() {
            let mut call = 0;
            while let Some(fewer) = without_call(&steps, place, call) {
                match self.first_difference(&fewer, protocol)? {
                    Some(found) => (steps, last) = (fewer, Some(found)),
                    None => call += 1,
                }
            }
            let mut fewer = steps.clone();
            if let Step::Program { wrapping, .. } = &mut fewer[place]
                && *wrapping != generate::Wrapping::None
            {
                *wrapping = generate::Wrapping::None;
                if let Some(found) = self.first_difference(&fewer, protocol)? {
                    (steps, last) = (fewer, Some(found));
                }
            }
        }
        Ok(last.map(|found| (steps, found)))
    }
}

/// Returns the steps without one call of one of them, or `None` if there is no such call.
fn without_call(steps: &[Step], place: usize, call: usize) -> Option<Vec<Step>> {
    let mut fewer = steps.to_vec();
    let Step::Program { calls, .. } = &mut fewer[place] else {
        return None;
    };
    if call >= calls.len() {
        return None;
    }
    calls.remove(call);
    Some(fewer)
}

/// Shortens a long reply.
fn clip(line: &str) -> String {
    const MOST_SHOWN: usize = 1500;
    match line.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}

/// What a sequence does by which the servers come to different encodings of equal values.
struct Means {
    /// It reads a string in place, or stores one to which it has appended. Valkey keeps such a string `raw`.
    edits_strings: bool,
    /// It sorts. Valkey converts a small sorted set that SORT reads.
    sorts: bool,
}

impl Means {
    /// Returns `true` if both answers are encodings that modules cause by different means. Valkey does not store
    /// numbers as such if the module refers to the argument, and changes the encoding of a list when an element cannot
    /// be set.
    fn may_explain(&self, answers: &ServerPair<ServerAnswer>) -> bool {
        let lines = [&answers.weft, &answers.valkey].map(ServerAnswer::to_line);
        let is = |line: &String, name: &str| *line == format!("\"{name}\"");
        let is_list = |line: &String| is(line, "listpack") || is(line, "quicklist");
        let is_string =
            |line: &String| is(line, "int") || is(line, "embstr") || (self.edits_strings && is(line, "raw"));
        let is_sorted_set = self.sorts && is(&lines[0], "listpack") && is(&lines[1], "skiplist");
        is_sorted_set || lines.iter().all(is_list) || lines.iter().all(is_string)
    }

    /// Returns `true` if the answers differ at most in the spelling of scores that modules have scanned, which depends
    /// on the encoding of the sorted set.
    fn may_explain_scores(&self, answers: &ServerPair<ServerAnswer>) -> bool {
        let of = |answer: &ServerAnswer| with_scores_as_numbers(&answer.to_line());
        self.sorts && answers.weft != answers.valkey && of(&answers.weft) == of(&answers.valkey)
    }
}

/// Spells the scores of scanned elements the same way, whatever the encoding was. An element is two hexadecimal words
/// with an equals sign between them.
fn with_scores_as_numbers(line: &str) -> String {
    let spell = |part: &str| {
        let (member, score) = part.split_once('=')?;
        let text = String::from_utf8(from_hex(score)?).ok()?;
        let number: f64 = text.parse().ok()?;
        Some(format!("{member}={number:e}"))
    };
    let parts: Vec<String> = line
        .split('"')
        .map(|part| spell(part).unwrap_or_else(|| part.to_string()))
        .collect();
    parts.join("\"")
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(digits).collect()
}

/// Returns a difference unless the reply is that of the last command.
fn out_of_step(answers: &ServerPair<ServerAnswer>) -> Option<Found> {
    // The number of receivers; an earlier one may not be gone yet.
    let is_last = |answer: &ServerAnswer| [":1", ":2"].contains(&answer.to_line().as_str());
    match is_last(&answers.weft) && is_last(&answers.valkey) {
        true => None,
        false => Some(Found {
            place: "(there are more replies than commands)".to_string(),
            weft: clip(&answers.weft.to_line()),
            valkey: clip(&answers.valkey.to_line()),
            is_last: true,
        }),
    }
}

fn is_silent(answers: &ServerPair<ServerAnswer>) -> bool {
    let is_reply = |answer: &ServerAnswer| matches!(answer, ServerAnswer::Reply(_));
    !is_reply(&answers.weft) || !is_reply(&answers.valkey)
}

fn difference_of(place: &str, answers: &ServerPair<ServerAnswer>) -> Option<Found> {
    if answers.weft == answers.valkey {
        return None;
    }
    Some(Found {
        place: place.to_string(),
        weft: clip(&answers.weft.to_line()),
        valkey: clip(&answers.valkey.to_line()),
        is_last: false,
    })
}

/// Reads events until the message that ends a run. Returns the first difference.
fn compare_events(events: &mut PairedClient, end: &str) -> Option<Found> {
    let mut first = None;
    loop {
        let answers = events.read_answers();
        let is_end = |answer: &ServerAnswer| answer.to_line().contains(&format!("\"{end}\""));
        let (weft, valkey) = (is_end(&answers.weft), is_end(&answers.valkey));
        first = first.or(difference_of("(an event)", &answers));
        if (weft && valkey) || is_silent(&answers) || weft != valkey {
            return first;
        }
    }
}
