//! Random commands over a few keys, sent to both servers in lockstep; a difference is shrunk.
//!
//! Each sequence has a subject. It is either strings, whose commands are in the [`grammar`](super::grammar), or one of
//! the themes in [`themes`](super::themes), whose commands and arguments come from Valkey's documentation. About four
//! of five commands belong to the subject. The rest apply to any key, and a few belong to another subject, for wrong
//! types. A sequence ends with commands that read every key.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::connection::{Answer, encode, words};
use super::grammar::{GENERIC, KEYS, PRODUCTIONS, pick, sentence, spoil};
use super::leeway::{Evidence, Leeway};
use super::metadata::Syntax;
use super::pair::{Binaries, Both, Servers};
use super::permissions;
use super::run::{Difference, answers_agree, shown, shown_apart};
use super::themes::{LEFT_OUT, Parameters, THEMES, Theme, is_accident, leeway};
use super::vocabulary::is_blocking;

const SEQUENCE_COMMANDS: usize = 40;

/// The result of a run of the generator.
#[derive(Default)]
pub struct Outcome {
    /// The number of commands sent to each server.
    pub commands: usize,
    /// For each subject, the first sequence for which the servers differ.
    pub found: Vec<Found>,
    /// The commands that Weft does not have yet.
    pub lacking: Vec<String>,
}

/// A shrunk sequence for which the servers differ.
pub struct Found {
    subject: &'static str,
    seed: u64,
    protocol: u8,
    sequence: Sequence,
    difference: Difference,
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subject, seed, protocol) = (self.subject, self.seed, self.protocol);
        writeln!(
            out,
            "the servers differ in RESP{protocol}, --filter {subject} --seed {seed}:"
        )?;
        for (name, value) in self.sequence.in_force() {
            writeln!(out, "  CONFIG SET {name} {value}")?;
        }
        for command in &self.sequence.commands {
            writeln!(out, "  {}", shown(&command.words))?;
        }
        writeln!(out, "at: {}", self.difference.command)?;
        writeln!(out, "    weft:   {}", self.difference.weft)?;
        write!(out, "    valkey: {}", self.difference.valkey)
    }
}

impl Found {
    /// The number of commands that are needed to reproduce the difference.
    pub fn length(&self) -> usize {
        self.sequence.commands.len()
    }
}

/// A command with the commands that are sent before and after it.
#[derive(Clone)]
struct Command {
    words: Vec<Vec<u8>>,
    leeway: Leeway,
    before: Option<Vec<Vec<u8>>>,
    after: Option<Vec<Vec<u8>>>,
}

impl Command {
    fn new(words: Vec<Vec<u8>>, leeway: Leeway) -> Self {
        Self {
            before: leeway.before(&words),
            after: leeway.after(&words),
            words,
            leeway,
        }
    }

    fn plain(line: &str) -> Self {
        Self::new(words(line), Leeway::None)
    }
}

#[derive(Clone)]
struct Sequence {
    /// Parameters that both servers have during the sequence.
    always: Parameters,
    /// Additional parameters, which may be irrelevant to a difference.
    parameters: Parameters,
    commands: Vec<Command>,
}

impl Sequence {
    fn in_force(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> + use<> {
        self.always.iter().chain(self.parameters)
    }
}

/// The subject of sequences.
enum Subject {
    /// Strings and keys in general, restricted to commands whose names contain the text.
    Strings(String),
    /// A theme, with the commands that both servers have.
    Theme(&'static Theme, Vec<Syntax>),
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Self::Strings(_) => "string",
            Self::Theme(theme, _) => theme.name,
        }
    }
}

/// The subjects and commands that can be generated.
struct Book {
    subjects: Vec<Subject>,
    lacking: BTreeSet<String>,
}

/// Sends sequences for `duration`; the n-th uses `seed + n`. `filter` names a subject, or restricts the commands for
/// strings.
///
/// # Errors
/// Fails if a server cannot be started or does not describe its commands.
pub fn run(binaries: &Binaries, seed: u64, duration: Duration, filter: &str) -> Result<Outcome, String> {
    // With this frequency, the timeouts of blocked clients are detected soon.
    let mut servers = Servers::start(binaries, &words_of("--hz 500"))?;
    let book = Book::read(&mut servers, filter)?;
    let start = Instant::now();
    let mut outcome = Outcome {
        lacking: book.lacking.iter().cloned().collect(),
        ..Outcome::default()
    };
    for number in 0.. {
        let seed = seed.wrapping_add(number);
        let subjects = book.subjects.len() as u64;
        if start.elapsed() >= duration || outcome.found.len() as u64 == subjects {
            break;
        }
        let subject = &book.subjects[(seed % subjects) as usize];
        if outcome.found.iter().any(|found| found.subject == subject.name()) {
            continue;
        }
        let sequence = book.sequence(subject, seed);
        for protocol in [2, 3] {
            outcome.commands += sequence.commands.len();
            if first_difference(&mut servers, &sequence, protocol)?.is_some() {
                outcome
                    .found
                    .extend(shrunk(&mut servers, sequence, protocol, seed, subject.name())?);
                break;
            }
        }
    }
    Ok(outcome)
}

impl Book {
    /// Queries Valkey for the commands of every theme, and Weft for those of them that it has.
    fn read(servers: &mut Servers, filter: &str) -> Result<Self, String> {
        let mut book = Self {
            subjects: Vec::new(),
            lacking: BTreeSet::new(),
        };
        let names: BTreeSet<String> = PRODUCTIONS.iter().map(|production| production.name.into()).collect();
        book.lacking
            .extend(servers.lacking(&names.into_iter().collect::<Vec<_>>())?);
        for theme in THEMES.iter().filter(|theme| filter.is_empty() || filter == theme.name) {
            let syntaxes = book.syntaxes(servers, theme)?;
            if !syntaxes.is_empty() {
                book.subjects.push(Subject::Theme(theme, syntaxes));
            }
        }
        if !THEMES.iter().any(|theme| theme.name == filter) {
            let part = if filter == "string" { "" } else { filter };
            if pick(&mut Rng::with_seed(0), |name| {
                book.can_send(name) && name.contains(part)
            })
            .is_some()
            {
                book.subjects.push(Subject::Strings(part.to_string()));
            }
        }
        Ok(book)
    }

    fn can_send(&self, name: &str) -> bool {
        !self.lacking.contains(name)
    }

    fn syntaxes(&mut self, servers: &mut Servers, theme: &Theme) -> Result<Vec<Syntax>, String> {
        let mut names = Vec::new();
        if !theme.category.is_empty() {
            let query = words(&format!("COMMAND LIST FILTERBY ACLCAT {}", theme.category));
            let Answer::Reply(received) = servers.ask(&query).valkey else {
                return Err("valkey: no list of commands".to_string());
            };
            let name = |item: &super::reply::Reply| String::from_utf8_lossy(item.text()).into_owned();
            names = received.reply.items().iter().map(name).collect();
            names.retain(|name| !LEFT_OUT.iter().any(|(left_out, _)| left_out == name));
            names.sort();
        }
        names.extend(theme.also.iter().map(ToString::to_string));
        let first = |line: &&str| line.split(' ').next().unwrap_or_default().to_lowercase();
        let prelude: Vec<String> = theme.prelude.iter().map(first).collect();
        self.lacking.extend(servers.lacking(&prelude)?);
        self.lacking.extend(servers.lacking(&names)?);
        names.retain(|name| self.can_send(name));
        let mut syntaxes = Vec::new();
        for name in names {
            let query = words(&format!("COMMAND DOCS {name}"));
            let Answer::Reply(received) = servers.ask(&query).valkey else {
                return Err(format!("valkey: no documentation of {name}"));
            };
            let syntax = Syntax::parse(&name, &received.reply);
            syntaxes.push(syntax.ok_or_else(|| format!("the documentation of {name} has another form"))?);
        }
        Ok(syntaxes)
    }

    /// Generates the commands for one seed, followed by commands that read every key.
    fn sequence(&self, subject: &Subject, seed: u64) -> Sequence {
        let mut rng = Rng::with_seed(seed);
        let mut sequence = Sequence {
            always: &[],
            parameters: &[],
            commands: Vec::new(),
        };
        if let Subject::Theme(theme, _) = subject {
            sequence.always = theme.always;
            if rng.bool() {
                sequence.parameters = rng.choice(theme.parameters).copied().unwrap_or_default();
            }
            if rng.u32(0..4) > 0 {
                let can_send = |line: &&&str| self.can_send(&line.split(' ').next().unwrap_or("").to_lowercase());
                let lines = theme.prelude.iter().filter(can_send);
                sequence.commands.extend(lines.map(|line| Command::plain(line)));
            }
        }
        let stores = rng.bool();
        while sequence.commands.len() < SEQUENCE_COMMANDS {
            let command = self.command(subject, sequence.commands.len(), &mut rng);
            sequence
                .commands
                .extend(command.filter(|command| stores || !stores_set(command)));
        }
        if sequence.commands.iter().any(sorts) {
            sequence.commands.retain(|command| !is_about_sorted_sets(command));
        }
        self.look_at_everything(subject, &mut sequence.commands);
        if sequence.commands.iter().any(stores_set) {
            for command in &mut sequence.commands {
                *command = Command::new(command.words.clone(), command.leeway.without_order());
            }
        }
        sequence
    }

    fn command(&self, subject: &Subject, step: usize, rng: &mut Rng) -> Option<Command> {
        match subject {
            Subject::Strings(part) => {
                let production = pick(rng, |name| self.can_send(name) && name.contains(part.as_str()))?;
                Some(Command::new(sentence(production, rng), production.leeway))
            }
            Subject::Theme(theme, _) if theme.name == "acl" => {
                let words = permissions::command(rng);
                let leeway = match words.get(1).map(Vec::as_slice) {
                    Some(b"CAT") => Leeway::Elements,
                    _ => Leeway::None,
                };
                Some(Command::new(words, leeway))
            }
            Subject::Theme(_, _) if rng.u32(0..5) == 0 => {
                let production = pick(rng, |name| self.can_send(name) && GENERIC.contains(&name))?;
                Some(Command::new(sentence(production, rng), production.leeway))
            }
            Subject::Theme(theme, _) if rng.u32(0..25) == 0 => {
                let other = &self.subjects[rng.usize(0..self.subjects.len())];
                match other {
                    Subject::Theme(_, syntaxes) => themed(theme, syntaxes, step, rng),
                    Subject::Strings(_) => self.command(other, step, rng),
                }
            }
            Subject::Theme(theme, syntaxes) => themed(theme, syntaxes, step, rng),
        }
    }

    fn look_at_everything(&self, subject: &Subject, commands: &mut Vec<Command>) {
        let whole = match subject.name() {
            "hash" => ("HGETALL", "", Leeway::Pairs),
            "list" | "sort" => ("LRANGE", "0 -1", Leeway::None),
            "set" => ("SMEMBERS", "", Leeway::Elements),
            "sorted_set" | "geo" => ("ZRANGE", "0 -1 WITHSCORES", Leeway::None),
            "stream" => ("XINFO STREAM", "FULL COUNT 0", Leeway::StreamTimes),
            _ => ("GET", "", Leeway::None),
        };
        let looks = [
            ("OBJECT ENCODING", "", Leeway::None),
            ("PTTL", "", Leeway::Clock),
            ("DEBUG DIGEST-VALUE", "", Leeway::None),
            whole,
        ];
        for key in KEYS {
            for (look, rest, leeway) in looks {
                let mut line = words(look);
                if !self.can_send(&String::from_utf8_lossy(&line[0]).to_lowercase()) {
                    continue;
                }
                line.push(key.as_bytes().to_vec());
                line.extend(words(rest));
                commands.push(Command::new(line, leeway));
            }
        }
    }
}

/// Returns `true` if the command stores a set whose order depends on the iteration order of other sets.
fn stores_set(command: &Command) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    matches!(name.as_slice(), b"SDIFFSTORE" | b"SINTERSTORE" | b"SUNIONSTORE")
}

fn sorts(command: &Command) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    matches!(name.as_slice(), b"SORT" | b"SORT_RO")
}

/// Returns `true` if the command may create a sorted set. Valkey converts a sorted set that it sorts into a skiplist;
/// Weft does not.
fn is_about_sorted_sets(command: &Command) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    [&b"Z"[..], b"BZ", b"GEO"].iter().any(|start| name.starts_with(start))
}

fn words_of(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_string).collect()
}

/// Generates a command of a theme. Commands that may block are rare, because waiting takes time.
fn themed(theme: &Theme, syntaxes: &[Syntax], step: usize, rng: &mut Rng) -> Option<Command> {
    let mut syntax = rng.choice(syntaxes)?;
    if is_blocking(&syntax.name) && syntax.name.starts_with('b') && rng.u32(0..4) > 0 {
        syntax = rng.choice(syntaxes)?;
    }
    let mut words = syntax.sentence(theme.name, step, rng);
    if rng.u32(0..25) == 0 && !is_blocking(&syntax.name) {
        spoil(rng, &mut words);
    }
    (!is_accident(&words)).then(|| Command::new(words, leeway(&syntax.name)))
}

/// Sends all commands at once. Returns the first difference between the replies, with the index of its command.
fn first_difference(
    servers: &mut Servers,
    sequence: &Sequence,
    protocol: u8,
) -> Result<Option<(usize, Difference)>, String> {
    servers.reset()?;
    for (name, value) in sequence.in_force() {
        servers.configure(name, value);
    }
    let mut client = servers.connect(protocol)?;
    let mut bytes = Vec::new();
    for command in &sequence.commands {
        let around = [&command.before, &Some(command.words.clone()), &command.after];
        around.into_iter().flatten().for_each(|words| encode(words, &mut bytes));
    }
    client.send_bytes(&bytes);
    for (index, command) in sequence.commands.iter().enumerate() {
        let mut differ = |words: &[Vec<u8>], rules: &[super::normalise::Rule], answers: &Both<Answer>| {
            let (weft, valkey) = shown_apart(rules, answers);
            let gone = servers.ended();
            let difference = Difference {
                line: 0,
                command: shown(words),
                weft: weft + &gone,
                valkey,
            };
            Ok(Some((index, difference)))
        };
        let before = command.before.as_ref().map(|_| client.answers());
        if let (Some(words), Some(answers)) = (&command.before, &before) {
            let rules = command.leeway.rules_before();
            if !answers_agree(&rules, answers) {
                return differ(words, &rules, answers);
            }
        }
        let answers = client.answers();
        let evidence = Evidence {
            words: &command.words,
            before: before.as_ref(),
            answers: &answers,
        };
        if !command.leeway.accepts(&evidence) {
            return differ(&command.words, &command.leeway.rules(&evidence), &answers);
        }
        // Both servers wait indefinitely, and all later commands wait too.
        if answers.weft == Answer::Silent {
            return Ok(None);
        }
        // The number of deleted keys may differ, so the reply is not compared.
        if command.after.is_some() {
            client.answers();
        }
    }
    Ok(None)
}

/// Removes commands as long as a difference remains.
fn shrunk(
    servers: &mut Servers,
    mut sequence: Sequence,
    protocol: u8,
    seed: u64,
    subject: &'static str,
) -> Result<Option<Found>, String> {
    let mut last = None;
    let plain = Sequence {
        parameters: &[],
        ..sequence.clone()
    };
    if first_difference(servers, &plain, protocol)?.is_some() {
        sequence = plain;
    }
    let mut chunk = sequence.commands.len();
    while chunk > 0 {
        if let Some((index, difference)) = first_difference(servers, &sequence, protocol)? {
            sequence.commands.truncate(index + 1);
            last = Some(difference);
        }
        let mut start = 0;
        while start < sequence.commands.len() {
            let end = (start + chunk).min(sequence.commands.len());
            let fewer = Sequence {
                always: sequence.always,
                parameters: sequence.parameters,
                commands: [&sequence.commands[..start], &sequence.commands[end..]].concat(),
            };
            match first_difference(servers, &fewer, protocol)? {
                Some((index, difference)) => {
                    sequence = fewer;
                    sequence.commands.truncate(index + 1);
                    last = Some(difference);
                }
                None => start = end,
            }
        }
        chunk /= 2;
    }
    Ok(last.map(|difference| Found {
        subject,
        seed,
        protocol,
        sequence,
        difference,
    }))
}
