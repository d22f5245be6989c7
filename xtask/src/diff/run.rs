//! Runs a section of a case file against both servers and finds the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::case::{Action, CaseArgument, CaseSection, CaseStep};
use super::connection::ServerAnswer;
use super::exceptions::Exceptions;
use super::info;
use super::normalise::{ComparisonRule, apply_rules, replies_agree};
use super::pair::{Bindings, ComparedServers, PairedClient, ServerPair, blocked_clients, resolve_arguments};

/// The pause after which a server receives the next piece of a raw frame separately.
const PIECE_INTERVAL: Duration = Duration::from_millis(1);

/// A step whose results differ.
#[derive(Debug)]
pub struct Difference {
    /// The line in the case file; 0 for generated commands.
    pub line: usize,
    /// The command, formatted as in a case file.
    pub command: String,
    /// Weft's answer.
    pub weft: String,
    /// Valkey's answer.
    pub valkey: String,
}

/// The results of one run of a section.
#[derive(Default)]
pub struct SectionReport {
    /// The number of comparisons.
    pub compared: usize,
    /// All steps whose results differ.
    pub differences: Vec<Difference>,
}

/// Runs `section` with `protocol` on empty servers. `trace` prints every answer of Valkey.
///
/// # Errors
/// Fails if a server cannot be reached or reset.
pub fn run_section(
    servers: &mut ComparedServers,
    section: &CaseSection,
    protocol: u8,
    trace: bool,
    exceptions: &Exceptions,
) -> Result<SectionReport, String> {
    servers.reset()?;
    let first = servers.connect(protocol)?;
    let mut run = SectionRun {
        servers,
        protocol,
        trace,
        exceptions,
        clients: BTreeMap::from([(1, first)]),
        current: 1,
        bindings: Bindings::new(),
        is_out_of_step: false,
        report: SectionReport::default(),
    };
    for step in &section.steps {
        run.step(step)?;
        if run.is_out_of_step {
            break;
        }
    }
    Ok(run.report)
}

struct SectionRun<'a> {
    servers: &'a mut ComparedServers,
    protocol: u8,
    trace: bool,
    exceptions: &'a Exceptions,
    clients: BTreeMap<u32, PairedClient>,
    current: u32,
    bindings: Bindings,
    /// Set when a server has not replied in time: a later reply could belong to an earlier command.
    is_out_of_step: bool,
    report: SectionReport,
}

impl SectionRun<'_> {
    fn step(&mut self, step: &CaseStep) -> Result<(), String> {
        match &step.action {
            Action::Command(arguments) => self.command(step, arguments),
            Action::Scan(arguments) => self.scan(step, arguments),
            Action::Raw(pieces) => self.raw(step, pieces),
            Action::Write(bytes) => {
                self.client()?.send_bytes(bytes);
                Ok(())
            }
            Action::Drain => {
                let answers = self.client()?.read_until_quiet();
                self.compare(step, "(everything that arrives)", &answers);
                Ok(())
            }
            Action::SwitchConnection(number) => {
                self.current = *number;
                self.client().map(|_| ())
            }
            Action::Close => {
                self.clients.remove(&self.current);
                Ok(())
            }
            Action::SleepMs(duration) => {
                thread::sleep(Duration::from_millis(*duration));
                Ok(())
            }
            Action::AwaitSecond(offset) => {
                thread::sleep(time_until_second(*offset));
                Ok(())
            }
            Action::AwaitBlocked(count) => {
                let answers = self.servers.await_blocked(*count);
                self.compare_blocked(step, *count, &answers);
                Ok(())
            }
            Action::Config(name, value) => {
                let answers = self.servers.configure(name, value);
                self.compare(step, &format!("CONFIG SET {name} {value}"), &answers);
                Ok(())
            }
        }
    }

    /// Returns the current connection. It is opened at its first use.
    fn client(&mut self) -> Result<&mut PairedClient, String> {
        if !self.clients.contains_key(&self.current) {
            let client = self.servers.connect(self.protocol)?;
            self.clients.insert(self.current, client);
        }
        self.clients
            .get_mut(&self.current)
            .ok_or_else(|| "no connection".to_string())
    }

    fn command(&mut self, step: &CaseStep, arguments: &[CaseArgument]) -> Result<(), String> {
        let command = resolve_arguments(arguments, &self.bindings);
        self.client()?.send(&command);
        for _ in 0..step.replies {
            let mut answers = self.client()?.read_answers();
            self.compare(step, &format_command(&command.valkey), &answers);
            if let Some(name) = &step.binding {
                let text = answers.map(|answer| match answer {
                    ServerAnswer::Reply(received) => received.reply.text().to_vec(),
                    _ => Vec::new(),
                });
                self.bindings.insert(name.clone(), text);
            }
            if answers.weft == ServerAnswer::Silent || answers.valkey == ServerAnswer::Silent {
                self.is_out_of_step = true;
                break;
            }
        }
        Ok(())
    }

    fn compare(&mut self, step: &CaseStep, command: &str, answers: &ServerPair<ServerAnswer>) {
        self.report.compared += 1;
        if self.trace {
            println!("{:5} {command}\n      {}", step.line, clip(&answers.valkey.to_line()));
        }
        if let Some((weft, valkey)) = self.difference(step, answers) {
            self.report.differences.push(Difference {
                line: step.line,
                command: command.to_string(),
                weft,
                valkey,
            });
        }
    }

    /// Compares how many clients are blocked. If both servers have another number than the case file expects, that is a
    /// difference too: the case would wait in vain, and see the number or not, as the threads happen to run.
    fn compare_blocked(&mut self, step: &CaseStep, expected: u64, answers: &ServerPair<ServerAnswer>) {
        let before = self.report.differences.len();
        self.compare(step, "(number of blocked clients)", answers);
        if self.report.differences.len() == before && answers.valkey != blocked_clients(expected) {
            self.report.differences.push(Difference {
                line: step.line,
                command: format!("(number of blocked clients, expected: {expected})"),
                weft: answers.weft.to_line(),
                valkey: answers.valkey.to_line(),
            });
        }
    }

    /// Returns the texts of both answers if they differ.
    fn difference(&self, step: &CaseStep, answers: &ServerPair<ServerAnswer>) -> Option<(String, String)> {
        if step.rules.contains(&ComparisonRule::Info)
            && let (ServerAnswer::Reply(weft), ServerAnswer::Reply(valkey)) = (&answers.weft, &answers.valkey)
            && weft.reply.kind == valkey.reply.kind
            && !valkey.reply.is_error()
        {
            let [weft, valkey] = [weft, valkey].map(|received| String::from_utf8_lossy(received.reply.text()));
            return info::first_difference(&weft, &valkey, self.exceptions);
        }
        (!answers_agree(&step.rules, answers)).then(|| format_difference(&step.rules, answers))
    }

    fn scan(&mut self, step: &CaseStep, arguments: &[CaseArgument]) -> Result<(), String> {
        let command = resolve_arguments(arguments, &self.bindings);
        let name = format_command(&command.valkey);
        let client = self.client()?;
        let mut found = ServerPair {
            weft: Ok(BTreeSet::new()),
            valkey: Ok(BTreeSet::new()),
        };
        let mut cursors = ServerPair {
            weft: Some(b"0".to_vec()),
            valkey: Some(b"0".to_vec()),
        };
        while cursors.weft.is_some() || cursors.valkey.is_some() {
            // A server whose iteration is complete is queried again from the start, and its answer is dropped.
            let with = |cursor: &Option<Vec<u8>>, words: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let cursor = cursor.clone().unwrap_or_else(|| b"0".to_vec());
                let word = |word: &Vec<u8>| match word.as_slice() {
                    b"CURSOR" => cursor.clone(),
                    _ => word.clone(),
                };
                words.iter().map(word).collect()
            };
            let answers = client.call(&ServerPair {
                weft: with(&cursors.weft, &command.weft),
                valkey: with(&cursors.valkey, &command.valkey),
            });
            add_page(&answers.weft, &mut cursors.weft, &mut found.weft);
            add_page(&answers.valkey, &mut cursors.valkey, &mut found.valkey);
        }
        self.report.compared += 1;
        if found.weft != found.valkey {
            self.report.differences.push(Difference {
                line: step.line,
                command: name,
                weft: format!("{:?}", found.weft),
                valkey: format!("{:?}", found.valkey),
            });
        }
        Ok(())
    }

    fn raw(&mut self, step: &CaseStep, pieces: &[Vec<u8>]) -> Result<(), String> {
        let mut client = self.servers.connect(2)?;
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                thread::sleep(PIECE_INTERVAL);
            }
            client.send_bytes(piece);
        }
        let answers = client.read_until_quiet();
        let sent = pieces.concat();
        let sent = format!("{} bytes: {}", sent.len(), sent.escape_ascii());
        self.compare(step, &clip(&sent), &answers);
        Ok(())
    }
}

/// Returns the time until the clock shows this number of milliseconds after the beginning of a second.
fn time_until_second(offset_ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = u64::from(now.subsec_millis());
    Duration::from_millis((1000 + offset_ms - since) % 1000)
}

/// Adds the elements of one page to `found` and advances `cursor`, which becomes `None` at the end.
fn add_page(answer: &ServerAnswer, cursor: &mut Option<Vec<u8>>, found: &mut Result<BTreeSet<String>, String>) {
    if cursor.is_none() {
        return;
    }
    let page = match answer {
        ServerAnswer::Reply(received) => received.reply.items(),
        _ => &[],
    };
    let [next, elements] = page else {
        *found = Err(answer.to_line());
        *cursor = None;
        return;
    };
    if let Ok(found) = found {
        found.extend(elements.items().iter().map(|element| element.to_line()));
    }
    *cursor = Some(next.text().to_vec()).filter(|next| next != b"0");
}

/// Returns `true` if the answers are equal under `rules`.
pub fn answers_agree(rules: &[ComparisonRule], answers: &ServerPair<ServerAnswer>) -> bool {
    match (&answers.weft, &answers.valkey) {
        (ServerAnswer::Reply(weft), ServerAnswer::Reply(valkey)) => {
            weft.raw == valkey.raw || replies_agree(rules, &weft.reply, &valkey.reply)
        }
        (weft, valkey) => weft == valkey,
    }
}

/// Formats both answers. Long answers are reduced to the part around the first difference.
pub fn format_difference(rules: &[ComparisonRule], answers: &ServerPair<ServerAnswer>) -> (String, String) {
    let text = |answer: &ServerAnswer| match answer {
        ServerAnswer::Reply(received) => apply_rules(rules, &received.reply).to_line(),
        other => other.to_line(),
    };
    clip_to_difference(&text(&answers.weft), &text(&answers.valkey))
}

fn clip_to_difference(weft: &str, valkey: &str) -> (String, String) {
    const SHORT: usize = 300;
    if weft.len() <= SHORT && valkey.len() <= SHORT {
        return (weft.to_string(), valkey.to_string());
    }
    let same = weft.bytes().zip(valkey.bytes()).take_while(|(a, b)| a == b).count();
    let start = same.saturating_sub(60);
    let part = |text: &str| {
        let bytes = &text.as_bytes()[start.min(text.len())..];
        let bytes = &bytes[..bytes.len().min(SHORT)];
        format!("[from character {start}] …{}…", String::from_utf8_lossy(bytes))
    };
    (part(weft), part(valkey))
}

/// Formats a command as in a case file.
pub fn format_command(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| {
            let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'\'');
            if !word.is_empty() && word.iter().all(plain) {
                String::from_utf8_lossy(word).into_owned()
            } else {
                format!("\"{}\"", word.escape_ascii())
            }
        })
        .collect();
    clip(&words.join(" "))
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.len()),
        None => text.to_string(),
    }
}
