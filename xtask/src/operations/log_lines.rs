//! Numbered lines in the logs of the nodes, and the check that none is lost, torn or repeated while logs are rotated.
//!
//! Loggers, which are threads of this program, write lines with DEBUG LOG. Logs are rotated as logrotate does with
//! Valkey: the file is renamed, and nothing is sent to the server, which opens the file for each line. After a round,
//! all files of a node together must have each line once that the server has acknowledged, in order, and every line
//! must be whole.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;

use super::site::Site;
use crate::failover::router::{REPLY_BOUND, RoutedClient};
use crate::failover::session::words;
use crate::stress::client::{CallError, StressReply};

/// The name of the log in the directory of a node.
pub const LOG_FILE: &str = "log";
/// The text before the numbers of a line.
const MARK: &str = "DEBUG LOG: operations:";
/// The signs of the levels.
const LEVEL_SIGNS: [&str; 4] = [".", "-", "*", "#"];
/// The lines that say that a file was not written. The next success or a restart hides it from INFO.
const FAILURES: [&str; 2] = [
    "Background saving error",
    "Background AOF rewrite terminated with error",
];
/// The months in the times of lines.
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The lines that one logger has sent to one node since the last check.
#[derive(Debug, Default)]
pub struct SentLines {
    /// The number of the last line of all.
    last: u64,
    /// The lines that the server acknowledged.
    acknowledged: BTreeSet<u64>,
    /// The lines without a reply.
    unknown: BTreeSet<u64>,
}

/// The log files of one node, and what must be in them.
#[derive(Debug, Default)]
pub struct NodeLogs {
    /// The number of rotations so far.
    rotations: u64,
    /// The rotated files that were not checked yet, the oldest first.
    rotated: Vec<PathBuf>,
    /// The rotated files that were checked in the last round.
    checked: Vec<PathBuf>,
    /// The lines of each logger.
    sent: BTreeMap<usize, SentLines>,
}

impl NodeLogs {
    /// Renames the log. Returns `false` if there is none, because no line was written since the last rotation.
    ///
    /// # Errors
    /// Fails if the file cannot be renamed.
    pub fn rotate(&mut self, directory: &Path) -> Result<bool, String> {
        let target = directory.join(format!("{LOG_FILE}.{}", self.rotations + 1));
        match fs::rename(directory.join(LOG_FILE), &target) {
            Ok(()) => {
                self.rotations += 1;
                self.rotated.push(target);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("{}: {error}", target.display())),
        }
    }

    /// Checks all log files of a node, once no logger runs. Returns the number of their lines.
    ///
    /// # Errors
    /// Fails if a file cannot be read, a line is torn, missing, repeated or out of order, or one says that a dump or a
    /// rewrite has failed.
    pub fn check(&mut self, directory: &Path) -> Result<u64, String> {
        self.rotate(directory)?;
        let mut texts = Vec::new();
        for path in &self.rotated {
            let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let text = String::from_utf8(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
            texts.push((path.display().to_string(), text));
        }
        let lines = check_texts(&texts, &self.sent)?;
        // The last files stay, for the case that something fails.
        for path in self.checked.drain(..) {
            fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        self.checked.append(&mut self.rotated);
        for sent in self.sent.values_mut() {
            sent.acknowledged.clear();
            sent.unknown.clear();
        }
        Ok(lines)
    }
}

/// Sends numbered lines to all nodes in turn until `stop` is set.
///
/// # Errors
/// Fails if a node does not reply in time, or not with OK, or ends the connection although it is not restarted.
pub fn send_lines(site: &Site, logger: usize, stop: &AtomicBool, mut rng: Rng) -> Result<(), String> {
    let mut clients: HashMap<usize, RoutedClient> = HashMap::new();
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_micros(rng.u64(1000..10_000)));
        let node = turn % site.nodes.len();
        let address = site.nodes[node].address;
        let client = match clients.entry(node) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match site.router.connect(address, REPLY_BOUND) {
                Some(client) => entry.insert(client),
                None => continue,
            },
        };
        let number = {
            let mut log = site.nodes[node].log();
            let sent = log.sent.entry(logger).or_default();
            sent.last += 1;
            sent.last
        };
        let line = format!("operations:{logger}:{number}");
        let reply = client.pipeline(&[words(&["DEBUG", "LOG", &line])]);
        let is_acknowledged = match reply.as_deref() {
            Ok([StressReply::Simple(_)]) => true,
            Ok([StressReply::Error(error)]) if error.starts_with("LOADING ") => false,
            Ok(other) => return Err(format!("{address}: DEBUG LOG was answered by {other:?}")),
            Err(CallError::Closed) if client.may_have_ended() => {
                clients.remove(&node);
                false
            }
            Err(error) => return Err(format!("{address}: DEBUG LOG: {error:?}")),
        };
        let mut log = site.nodes[node].log();
        let sent = log.sent.entry(logger).or_default();
        match is_acknowledged {
            true => sent.acknowledged.insert(number),
            false => sent.unknown.insert(number),
        };
    }
    Ok(())
}

/// Checks the texts of log files, the oldest first, against the lines that were sent. Returns the number of lines.
fn check_texts(texts: &[(String, String)], sent: &BTreeMap<usize, SentLines>) -> Result<u64, String> {
    let mut lines = 0;
    let mut found: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (name, text) in texts {
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(format!("{name} ends within a line"));
        }
        for line in text.lines() {
            lines += 1;
            let Some(message) = message(line) else {
                return Err(format!("{name}: this is no whole line: {line:?}"));
            };
            if FAILURES.contains(&message) {
                return Err(format!("{name}: {line}"));
            }
            if let Some(numbers) = message.strip_prefix(MARK) {
                let parsed = numbers.split_once(':');
                let parsed = parsed.and_then(|(logger, number)| Some((logger.parse().ok()?, number.parse().ok()?)));
                let (logger, number) = parsed.ok_or_else(|| format!("{name}: torn line {line:?}"))?;
                found.entry(logger).or_default().push(number);
            }
        }
    }
    for (logger, sent) in sent {
        let numbers = found.remove(logger).unwrap_or_default();
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("logger {logger}: line {} follows line {}", pair[1], pair[0]));
        }
        let numbers: BTreeSet<u64> = numbers.into_iter().collect();
        if let Some(lost) = sent.acknowledged.difference(&numbers).next() {
            return Err(format!("logger {logger}: line {lost} is in no file"));
        }
        let invented = numbers
            .iter()
            .find(|number| !sent.acknowledged.contains(number) && !sent.unknown.contains(number));
        if let Some(number) = invented {
            return Err(format!(
                "logger {logger}: line {number} was not sent since the last check"
            ));
        }
    }
    match found.first_key_value() {
        Some((logger, _)) => Err(format!("there are lines of logger {logger}, which has sent none")),
        None => Ok(lines),
    }
}

/// Returns the message of a line in Valkey's format; `None` if the line does not have it.
fn message(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.splitn(7, ' ').collect();
    let [process, day, month, year, time, sign, message] = words[..] else {
        return None;
    };
    let (pid, role) = process.split_once(':')?;
    let is_process = is_number(pid, 1..=10) && ["M", "S", "C"].contains(&role);
    let is_date = is_number(day, 2..=2) && MONTHS.contains(&month) && is_number(year, 4..=4);
    let (clock, milliseconds) = time.split_once('.')?;
    let is_time = clock.len() == 8 && clock.split(':').filter(|part| is_number(part, 2..=2)).count() == 3;
    let is_line = is_process && is_date && is_time && is_number(milliseconds, 3..=3) && LEVEL_SIGNS.contains(&sign);
    is_line.then_some(message)
}

/// Returns `true` if a text consists of this number of digits.
fn is_number(text: &str, digits: std::ops::RangeInclusive<usize>) -> bool {
    digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
