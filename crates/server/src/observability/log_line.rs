//! Formats one line of the log, in each of the formats.

use std::fmt::Write;

use jiff::Zoned;

use super::log::Level;

/// The values of `log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogFormat {
    /// `<pid>:<role> <time> <sign> <message>`
    Legacy,
    /// Pairs `key=value`.
    Logfmt,
    /// One JSON object.
    Json,
}

impl From<i64> for LogFormat {
    /// Converts the number of the parameter's choice.
    fn from(number: i64) -> LogFormat {
        match number {
            1 => LogFormat::Logfmt,
            2 => LogFormat::Json,
            _ => LogFormat::Legacy,
        }
    }
}

/// The values of `log-timestamp-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimestampFormat {
    /// `20 Nov 2026 22:15:45.062`
    Legacy,
    /// `2026-11-20T22:15:45.062+01:00`
    Iso8601,
    /// Milliseconds since the Unix epoch.
    Milliseconds,
}

impl From<i64> for TimestampFormat {
    /// Converts the number of the parameter's choice.
    fn from(number: i64) -> TimestampFormat {
        match number {
            1 => TimestampFormat::Iso8601,
            2 => TimestampFormat::Milliseconds,
            _ => TimestampFormat::Legacy,
        }
    }
}

/// The replication role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// A primary.
    Primary,
    /// A replica.
    Replica,
    /// The child process of a module.
    Child,
}

impl From<u8> for Role {
    fn from(number: u8) -> Role {
        let roles = [Role::Primary, Role::Replica, Role::Child];
        roles.get(usize::from(number)).copied().unwrap_or(Role::Primary)
    }
}

/// A line with its prefix.
pub struct LogLine<'text> {
    /// The process id.
    pub process: u32,
    /// The role, shown as a letter or a word.
    pub role: Role,
    /// The level, shown as a sign or a word.
    pub level: Level,
    /// The message, which may contain several lines.
    pub message: &'text str,
}

impl LogLine<'_> {
    /// Formats the line, with its newline.
    pub fn render(&self, format: LogFormat, timestamps: TimestampFormat, now: &Zoned) -> String {
        let time = timestamp(timestamps, now);
        match format {
            LogFormat::Legacy => self.legacy(&time),
            LogFormat::Logfmt => self.logfmt(&time),
            LogFormat::Json => self.json(&time),
        }
    }

    fn legacy(&self, time: &str) -> String {
        let sign = [".", "-", "*", "#"][self.level as usize];
        let role = ["M", "S", "C"][self.role as usize];
        format!("{}:{role} {time} {sign} {}\n", self.process, self.message)
    }

    fn logfmt(&self, time: &str) -> String {
        let message: String = self.message.chars().map(escape_logfmt).collect();
        format!(
            "pid={} role={} timestamp=\"{time}\" level={} message=\"{message}\"\n",
            self.process,
            self.role_word(),
            self.level_word()
        )
    }

    fn json(&self, time: &str) -> String {
        format!(
            "{{\"pid\":{},\"role\":\"{}\",\"timestamp\":\"{time}\",\"level\":\"{}\",\"message\":\"{}\"}}\n",
            self.process,
            self.role_word(),
            self.level_word(),
            json_escaped(self.message)
        )
    }

    fn role_word(&self) -> &'static str {
        ["primary", "replica", "RDB/AOF"][self.role as usize]
    }

    fn level_word(&self) -> &'static str {
        ["debug", "info", "notice", "warning"][self.level as usize]
    }
}

fn timestamp(timestamps: TimestampFormat, now: &Zoned) -> String {
    let milliseconds = now.millisecond();
    match timestamps {
        TimestampFormat::Legacy => format!("{}.{milliseconds:03}", now.strftime("%d %b %Y %H:%M:%S")),
        TimestampFormat::Iso8601 => format!(
            "{}.{milliseconds:03}{}",
            now.strftime("%Y-%m-%dT%H:%M:%S"),
            now.strftime("%:z")
        ),
        TimestampFormat::Milliseconds => now.timestamp().as_millisecond().to_string(),
    }
}

/// Quotes and line ends would end a logfmt value.
fn escape_logfmt(character: char) -> char {
    match character {
        '"' => '\'',
        '\n' | '\r' => ' ',
        other => other,
    }
}

fn json_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\u{8}' => escaped.push_str("\\b"),
            '\u{c}' => escaped.push_str("\\f"),
            control if control < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", control as u32);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
