//! Planted defects, which the checks must find.

use super::disk::Image;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// `fdatasync` does nothing.
    NoDataSync,
    /// `fsync` of a file does nothing.
    NoFileSync,
    /// `fsync` of a directory does nothing.
    NoDirectorySync,
    /// Replies are sent before the write.
    EarlyReply,
    /// The append-only file loses a command in its middle.
    LostCommand,
    /// The append-only file keeps the first half of a transaction, but not its EXEC.
    TornTransaction,
}

impl Plant {
    /// All defects.
    pub const ALL: [Plant; 6] = [
        Plant::NoDataSync,
        Plant::NoFileSync,
        Plant::NoDirectorySync,
        Plant::EarlyReply,
        Plant::LostCommand,
        Plant::TornTransaction,
    ];

    /// The kind of syncs that have no effect, as the preload library calls it.
    pub fn ignored_sync(self) -> Option<&'static str> {
        match self {
            Plant::NoDataSync => Some("data"),
            Plant::NoFileSync => Some("file"),
            Plant::NoDirectorySync => Some("directory"),
            Plant::EarlyReply | Plant::LostCommand | Plant::TornTransaction => None,
        }
    }

    /// Damages the increments of an image.
    pub fn damage(self, image: &mut Image, rng: &mut fastrand::Rng) {
        let increments = image.iter_mut().filter(|(name, _)| name.ends_with(".incr.aof"));
        for content in increments.filter_map(|(_, content)| content.as_mut()) {
            let commands = commands_of(content);
            match self {
                Plant::LostCommand if commands.len() > 3 => {
                    let lost = commands[rng.usize(2..commands.len())].clone();
                    content.drain(lost);
                }
                Plant::TornTransaction => {
                    let is = |range: &std::ops::Range<usize>, word: &str| {
                        content[range.clone()].starts_with(format!("*1\r\n${}\r\n{word}\r\n", word.len()).as_bytes())
                    };
                    // The command before the last EXEC is lost, with its EXEC the rest is still a whole transaction.
                    if let Some(exec) = commands.iter().rposition(|range| is(range, "EXEC")) {
                        let lost = commands[exec - 1].clone();
                        content.truncate(commands[exec].end);
                        content.drain(lost);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The ranges of the complete commands in an increment.
fn commands_of(content: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut commands = Vec::new();
    let mut at = 0;
    while let Some(end) = end_of_command(content, at) {
        if content[at] == b'*' {
            commands.push(at..end);
        }
        at = end;
    }
    commands
}

fn end_of_command(content: &[u8], at: usize) -> Option<usize> {
    let line = |from: usize| -> Option<(usize, usize)> {
        let end = from + content.get(from..)?.iter().position(|byte| *byte == b'\n')? + 1;
        let digits = std::str::from_utf8(content.get(from + 1..end - 2)?).ok()?;
        Some((digits.parse().unwrap_or(0), end))
    };
    if *content.get(at)? == b'#' {
        return line(at).map(|(_, end)| end);
    }
    let (count, mut end) = line(at)?;
    for _ in 0..count {
        let (length, start) = line(end)?;
        end = start + length + 2;
    }
    (count > 0 && end <= content.len()).then_some(end)
}
