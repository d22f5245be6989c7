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

use super::connection::{Alteration, ServerAnswer, encode, split_words};
use super::exceptions::Exceptions;
use super::grammar::{GENERIC, KEYS, PRODUCTIONS, corrupt, pick_production, write_command};
use super::leeway::{AllowedDifference, ObservedAnswers};
use super::metadata::CommandSyntax;
use super::pair::{ComparedServers, ServerBinaries, ServerPair};
use super::permissions;
use super::reply::Reply;
use super::run::{Difference, answers_agree, format_command, format_difference};
use super::themes::{EXCLUDED_COMMANDS, LEEWAYS, Parameters, THEMES, Theme, is_valkey_accident, leeway_of};
use super::vocabulary::may_block;

const SEQUENCE_COMMANDS: usize = 40;

/// The result of a run of the generator.
#[derive(Default)]
pub struct GeneratorOutcome {
    /// The number of commands sent to each server.
    pub commands: usize,
    /// For each subject, the first sequence for which the servers differ.
    pub differing_sequences: Vec<DifferingSequence>,
    /// The names of the subjects whose commands were sent.
    pub subjects: Vec<&'static str>,
    /// The commands that Weft lacks, which are left out.
    pub missing_commands: Vec<String>,
}

/// A shrunk sequence for which the servers differ.
pub struct DifferingSequence {
    subject: &'static str,
    seed: u64,
    protocol: u8,
    sequence: CommandSequence,
    difference: Difference,
}

impl fmt::Display for DifferingSequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subject, seed, protocol) = (self.subject, self.seed, self.protocol);
        writeln!(
            out,
            "the servers differ in RESP{protocol}, --filter {subject} --seed {seed}:"
        )?;
        for (name, value) in self.sequence.active_parameters() {
            writeln!(out, "  CONFIG SET {name} {value}")?;
        }
        for command in &self.sequence.commands {
            writeln!(out, "  {}", format_command(&command.words))?;
        }
        writeln!(out, "at: {}", self.difference.command)?;
        writeln!(out, "    weft:   {}", self.difference.weft)?;
        write!(out, "    valkey: {}", self.difference.valkey)
    }
}

impl DifferingSequence {
    /// The number of commands that are needed to reproduce the difference.
    pub fn length(&self) -> usize {
        self.sequence.commands.len()
    }
}

/// A command with the commands that are sent before and after it.
#[derive(Clone)]
struct GeneratedCommand {
    words: Vec<Vec<u8>>,
    leeway: AllowedDifference,
    before: Option<Vec<Vec<u8>>>,
    after: Option<Vec<Vec<u8>>>,
}

impl GeneratedCommand {
    fn new(words: Vec<Vec<u8>>, leeway: AllowedDifference) -> Self {
        Self {
            before: leeway.command_before(&words),
            after: leeway.command_after(&words),
            words,
            leeway,
        }
    }

    fn plain(line: &str) -> Self {
        Self::new(split_words(line), AllowedDifference::None)
    }
}

#[derive(Clone)]
struct CommandSequence {
    /// Parameters that both servers have during the sequence.
    always: Parameters,
    /// Additional parameters, which may be irrelevant to a difference.
    parameters: Parameters,
    commands: Vec<GeneratedCommand>,
}

impl CommandSequence {
    fn active_parameters(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> + use<> {
        self.always.iter().chain(self.parameters)
    }
}

/// The subject of sequences.
enum SequenceSubject {
    /// Strings and keys in general, restricted to commands whose names contain the text.
    Strings(String),
    /// A theme, with the commands that both servers have.
    Theme(&'static Theme, Vec<CommandSyntax>),
}

impl SequenceSubject {
    fn name(&self) -> &'static str {
        match self {
            Self::Strings(_) => "string",
            Self::Theme(theme, _) => theme.name,
        }
    }
}

/// The subjects and commands that can be generated.
struct CommandCatalogue<'a> {
    exceptions: &'a Exceptions,
    subjects: Vec<SequenceSubject>,
    lacking: BTreeSet<String>,
}

/// Sends sequences for `duration`; the n-th uses `seed + n`. `filter` names a subject, or restricts the commands for
/// strings.
///
/// # Errors
/// Fails if a server cannot be started or does not describe its commands.
pub fn run(
    binaries: &ServerBinaries,
    seed: u64,
    duration: Duration,
    filter: &str,
    exceptions: &Exceptions,
) -> Result<GeneratorOutcome, String> {
    // With this frequency, the timeouts of blocked clients are detected soon.
    let mut servers = ComparedServers::start(binaries, &words_of("--hz 500"))?;
    let book = CommandCatalogue::load(&mut servers, filter, exceptions)?;
    let start = Instant::now();
    let mut outcome = GeneratorOutcome {
        missing_commands: book.lacking.iter().cloned().collect(),
        subjects: book.subjects.iter().map(SequenceSubject::name).collect(),
        ..GeneratorOutcome::default()
    };
    for number in 0.. {
        let seed = seed.wrapping_add(number);
        let subjects = book.subjects.len() as u64;
        if start.elapsed() >= duration || outcome.differing_sequences.len() as u64 == subjects {
            break;
        }
        let subject = &book.subjects[(seed % subjects) as usize];
        if outcome
            .differing_sequences
            .iter()
            .any(|found| found.subject == subject.name())
        {
            continue;
        }
        let sequence = book.sequence(subject, seed);
        for protocol in [2, 3] {
            outcome.commands += sequence.commands.len();
            if first_difference(&mut servers, &sequence, protocol, exceptions)?.is_some() {
                outcome.differing_sequences.extend(shrink(
                    &mut servers,
                    sequence,
                    protocol,
                    seed,
                    subject.name(),
                    exceptions,
                )?);
                break;
            }
        }
    }
    Ok(outcome)
}

impl<'a> CommandCatalogue<'a> {
    /// Queries Valkey for the commands of every theme, and Weft for those of them that it has.
    fn load(servers: &mut ComparedServers, filter: &str, exceptions: &'a Exceptions) -> Result<Self, String> {
        let mut book = Self {
            exceptions,
            subjects: Vec::new(),
            lacking: BTreeSet::new(),
        };
        let names: BTreeSet<String> = PRODUCTIONS.iter().map(|production| production.name.into()).collect();
        book.lacking
            .extend(servers.missing_commands(&names.into_iter().collect::<Vec<_>>())?);
        for theme in THEMES.iter().filter(|theme| filter.is_empty() || filter == theme.name) {
            let syntaxes = book.theme_syntaxes(servers, theme)?;
            if !syntaxes.is_empty() {
                book.subjects.push(SequenceSubject::Theme(theme, syntaxes));
            }
        }
        if !THEMES.iter().any(|theme| theme.name == filter) {
            let part = if filter == "string" { "" } else { filter };
            if pick_production(&mut Rng::with_seed(0), |name| {
                book.can_send(name) && name.contains(part)
            })
            .is_some()
            {
                book.subjects.push(SequenceSubject::Strings(part.to_string()));
            }
        }
        Ok(book)
    }

    fn can_send(&self, name: &str) -> bool {
        !self.lacking.contains(name)
    }

    fn theme_syntaxes(&mut self, servers: &mut ComparedServers, theme: &Theme) -> Result<Vec<CommandSyntax>, String> {
        let mut names = Vec::new();
        if !theme.category.is_empty() {
            let query = split_words(&format!("COMMAND LIST FILTERBY ACLCAT {}", theme.category));
            let ServerAnswer::Reply(received) = servers.call_control(&query).valkey else {
                return Err("valkey: no list of commands".to_string());
            };
            let name = |item: &Reply| String::from_utf8_lossy(item.text()).into_owned();
            names = received.reply.items().iter().map(name).collect();
            names.retain(|name| !EXCLUDED_COMMANDS.iter().any(|(left_out, _)| left_out == name));
            names.sort();
        }
        names.extend(theme.extra_commands.iter().map(ToString::to_string));
        let first = |line: &&str| line.split(' ').next().unwrap_or_default().to_lowercase();
        let prelude: Vec<String> = theme.initial_commands.iter().map(first).collect();
        self.lacking.extend(servers.missing_commands(&prelude)?);
        self.lacking.extend(servers.missing_commands(&names)?);
        names.retain(|name| self.can_send(name));
        let mut syntaxes = Vec::new();
        for name in names {
            let query = split_words(&format!("COMMAND DOCS {name}"));
            let ServerAnswer::Reply(received) = servers.call_control(&query).valkey else {
                return Err(format!("valkey: no documentation of {name}"));
            };
            let syntax = CommandSyntax::parse(&name, &received.reply);
            syntaxes.push(syntax.ok_or_else(|| format!("the documentation of {name} has another form"))?);
        }
        Ok(syntaxes)
    }

    /// Generates the commands for one seed, followed by commands that read every key.
    fn sequence(&self, subject: &SequenceSubject, seed: u64) -> CommandSequence {
        let mut rng = Rng::with_seed(seed);
        let mut sequence = CommandSequence {
            always: &[],
            parameters: &[],
            commands: Vec::new(),
        };
        if let SequenceSubject::Theme(theme, _) = subject {
            sequence.always = theme.fixed_parameters;
            if rng.bool() {
                sequence.parameters = rng.choice(theme.parameters).copied().unwrap_or_default();
            }
            if rng.u32(0..4) > 0 {
                let can_send = |line: &&&str| self.can_send(&line.split(' ').next().unwrap_or("").to_lowercase());
                let lines = theme.initial_commands.iter().filter(can_send);
                sequence
                    .commands
                    .extend(lines.map(|line| GeneratedCommand::plain(line)));
            }
        }
        let stores = rng.bool();
        while sequence.commands.len() < SEQUENCE_COMMANDS {
            let command = self.command(subject, sequence.commands.len(), &mut rng);
            sequence
                .commands
                .extend(command.filter(|command| stores || !is_set_store(command)));
        }
        leave_out_accepted(&mut sequence.commands, self.exceptions);
        self.append_key_reads(subject, &mut sequence.commands);
        if sequence.commands.iter().any(is_set_store) {
            for command in &mut sequence.commands {
                *command = GeneratedCommand::new(command.words.clone(), command.leeway.without_order());
            }
        }
        sequence
    }

    fn command(&self, subject: &SequenceSubject, step: usize, rng: &mut Rng) -> Option<GeneratedCommand> {
        match subject {
            SequenceSubject::Strings(part) => {
                let production = pick_production(rng, |name| self.can_send(name) && name.contains(part.as_str()))?;
                Some(GeneratedCommand::new(write_command(production, rng), production.leeway))
            }
            SequenceSubject::Theme(theme, _) if theme.name == "acl" => {
                let words = permissions::random_command(rng);
                let leeway = match words.get(1).map(Vec::as_slice) {
                    Some(b"CAT") => AllowedDifference::Elements,
                    _ => AllowedDifference::None,
                };
                Some(GeneratedCommand::new(words, leeway))
            }
            SequenceSubject::Theme(_, _) if rng.u32(0..5) == 0 => {
                let production = pick_production(rng, |name| self.can_send(name) && GENERIC.contains(&name))?;
                Some(GeneratedCommand::new(write_command(production, rng), production.leeway))
            }
            SequenceSubject::Theme(theme, _) if rng.u32(0..25) == 0 => {
                let other = &self.subjects[rng.usize(0..self.subjects.len())];
                match other {
                    SequenceSubject::Theme(_, syntaxes) => self.theme_command(theme, syntaxes, step, rng),
                    SequenceSubject::Strings(_) => self.command(other, step, rng),
                }
            }
            SequenceSubject::Theme(theme, syntaxes) => self.theme_command(theme, syntaxes, step, rng),
        }
    }

    /// Generates a command of a theme. Commands that may block are rare, because waiting takes time.
    fn theme_command(
        &self,
        theme: &Theme,
        syntaxes: &[CommandSyntax],
        step: usize,
        rng: &mut Rng,
    ) -> Option<GeneratedCommand> {
        let mut syntax = rng.choice(syntaxes)?;
        if may_block(&syntax.name) && syntax.name.starts_with('b') && rng.u32(0..4) > 0 {
            syntax = rng.choice(syntaxes)?;
        }
        let mut words = syntax.write_command(theme.name, step, rng);
        if rng.u32(0..25) == 0 && !may_block(&syntax.name) {
            corrupt(rng, &mut words);
        }
        Some(GeneratedCommand::new(words, leeway_of(&syntax.name)))
    }

    fn append_key_reads(&self, subject: &SequenceSubject, commands: &mut Vec<GeneratedCommand>) {
        let looks = key_reads(subject.name());
        for key in KEYS {
            for (look, rest, leeway) in looks {
                let mut line = split_words(look);
                if !self.can_send(&String::from_utf8_lossy(&line[0]).to_lowercase()) {
                    continue;
                }
                line.push(key.as_bytes().to_vec());
                line.extend(split_words(rest));
                commands.push(GeneratedCommand::new(line, leeway));
            }
        }
    }
}

/// Returns the commands that read a key at the end of a sequence: what precedes the key, what follows it, and the
/// leeway.
fn key_reads(subject: &str) -> [(&'static str, &'static str, AllowedDifference); 4] {
    let whole = match subject {
        "hash" => ("HGETALL", "", AllowedDifference::Pairs),
        "list" | "sort" => ("LRANGE", "0 -1", AllowedDifference::None),
        "set" => ("SMEMBERS", "", AllowedDifference::Elements),
        "sorted_set" | "geo" => ("ZRANGE", "0 -1 WITHSCORES", AllowedDifference::None),
        "stream" => ("XINFO STREAM", "FULL COUNT 0", AllowedDifference::StreamTimes),
        _ => ("GET", "", AllowedDifference::None),
    };
    [
        ("OBJECT ENCODING", "", AllowedDifference::None),
        ("PTTL", "", AllowedDifference::Milliseconds),
        ("DEBUG DIGEST-VALUE", "", AllowedDifference::None),
        whole,
    ]
}

/// Returns every leeway that generated commands have.
pub fn used_leeways() -> Vec<AllowedDifference> {
    let of_productions = PRODUCTIONS.iter().map(|production| production.leeway);
    let of_themes = LEEWAYS.iter().map(|(_, leeway)| *leeway);
    let of_reads = THEMES
        .iter()
        .flat_map(|theme| key_reads(theme.name))
        .map(|(_, _, leeway)| leeway);
    let mut leeways: Vec<AllowedDifference> = Vec::new();
    for leeway in of_productions.chain(of_themes).chain(of_reads) {
        for leeway in [leeway, leeway.without_order()] {
            if !leeways.contains(&leeway) {
                leeways.push(leeway);
            }
        }
    }
    leeways
}

/// Removes the commands for which exceptions accept a difference.
fn leave_out_accepted(commands: &mut Vec<GeneratedCommand>, exceptions: &Exceptions) {
    commands.retain(|command| !is_valkey_accident(&command.words, exceptions));
    if commands.iter().any(is_sort) && exceptions.accepts_generated("sort converts a sorted set") {
        commands.retain(|command| !is_about_sorted_sets(command));
    }
}

/// Returns `true` if the command stores a set whose order depends on the iteration order of other sets.
fn is_set_store(command: &GeneratedCommand) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    matches!(name.as_slice(), b"SDIFFSTORE" | b"SINTERSTORE" | b"SUNIONSTORE")
}

fn is_sort(command: &GeneratedCommand) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    matches!(name.as_slice(), b"SORT" | b"SORT_RO")
}

/// Returns `true` if the command may create a sorted set. Valkey converts a sorted set that it sorts into a skiplist;
/// Weft does not.
fn is_about_sorted_sets(command: &GeneratedCommand) -> bool {
    let name = command.words[0].to_ascii_uppercase();
    [&b"Z"[..], b"BZ", b"GEO"].iter().any(|start| name.starts_with(start))
}

fn words_of(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_string).collect()
}

/// Sends commands with their leeways, of which the last one's reply is altered by `alter`. Returns `true` if the
/// comparison finds a difference. The self-check uses it.
///
/// # Errors
/// Fails if a server cannot be reached, or if the generator would leave out one of the commands.
pub fn detects(
    servers: &mut ComparedServers,
    commands: &[(&str, AllowedDifference)],
    alter: Option<fn(&Reply) -> Reply>,
    exceptions: &Exceptions,
) -> Result<bool, String> {
    let new = |(line, leeway): &(&str, AllowedDifference)| GeneratedCommand::new(split_words(line), *leeway);
    let mut sequence = CommandSequence {
        always: &[],
        parameters: &[],
        commands: commands.iter().map(new).collect(),
    };
    leave_out_accepted(&mut sequence.commands, exceptions);
    if sequence.commands.len() != commands.len() {
        return Err("the generator leaves out one of the commands".to_string());
    }
    let replies: usize = sequence
        .commands
        .iter()
        .map(|command| 1 + usize::from(command.before.is_some()) + usize::from(command.after.is_some()))
        .sum();
    let after_last = sequence.commands.last().is_some_and(|command| command.after.is_some());
    servers.plant(alter.map(|alter| Alteration {
        after: replies - 1 - usize::from(after_last),
        alter,
    }));
    let difference = first_difference(servers, &sequence, 2, exceptions)?;
    servers.plant(None);
    Ok(difference.is_some())
}

/// Sends all commands at once. Returns the first difference between the replies, with the index of its command.
fn first_difference(
    servers: &mut ComparedServers,
    sequence: &CommandSequence,
    protocol: u8,
    exceptions: &Exceptions,
) -> Result<Option<(usize, Difference)>, String> {
    servers.reset()?;
    for (name, value) in sequence.active_parameters() {
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
        let mut differ =
            |words: &[Vec<u8>], rules: &[super::normalise::ComparisonRule], answers: &ServerPair<ServerAnswer>| {
                let (weft, valkey) = format_difference(rules, answers);
                let gone = servers.exit_report();
                let difference = Difference {
                    line: 0,
                    command: format_command(words),
                    weft: weft + &gone,
                    valkey,
                };
                Ok(Some((index, difference)))
            };
        let before = command.before.as_ref().map(|_| client.read_answers());
        if let (Some(words), Some(answers)) = (&command.before, &before) {
            let rules = command.leeway.rules_before();
            if !answers_agree(&rules, answers) {
                return differ(words, &rules, answers);
            }
        }
        let answers = client.read_answers();
        let evidence = ObservedAnswers {
            words: &command.words,
            before: before.as_ref(),
            answers: &answers,
            exceptions,
        };
        if !command.leeway.accepts(&evidence) {
            return differ(&command.words, &command.leeway.rules(&evidence), &answers);
        }
        // Both servers wait indefinitely, and all later commands wait too.
        if answers.weft == ServerAnswer::Silent {
            return Ok(None);
        }
        // The number of deleted keys may differ, so the reply is not compared.
        if command.after.is_some() {
            client.read_answers();
        }
    }
    Ok(None)
}

/// Removes commands as long as a difference remains.
fn shrink(
    servers: &mut ComparedServers,
    mut sequence: CommandSequence,
    protocol: u8,
    seed: u64,
    subject: &'static str,
    exceptions: &Exceptions,
) -> Result<Option<DifferingSequence>, String> {
    let mut last = None;
    let plain = CommandSequence {
        parameters: &[],
        ..sequence.clone()
    };
    if first_difference(servers, &plain, protocol, exceptions)?.is_some() {
        sequence = plain;
    }
    let mut chunk = sequence.commands.len();
    while chunk > 0 {
        if let Some((index, difference)) = first_difference(servers, &sequence, protocol, exceptions)? {
            sequence.commands.truncate(index + 1);
            last = Some(difference);
        }
        let mut start = 0;
        while start < sequence.commands.len() {
            let end = (start + chunk).min(sequence.commands.len());
            let fewer = CommandSequence {
                always: sequence.always,
                parameters: sequence.parameters,
                commands: [&sequence.commands[..start], &sequence.commands[end..]].concat(),
            };
            match first_difference(servers, &fewer, protocol, exceptions)? {
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
    Ok(last.map(|difference| DifferingSequence {
        subject,
        seed,
        protocol,
        sequence,
        difference,
    }))
}
