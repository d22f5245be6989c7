//! Parses the case files in `tests/diff`.
//!
//! A file is a list of sections. Each section runs on an empty data set with new connections, once per protocol. A line
//! is a command, whose replies are compared, or begins with a directive of the harness:
//!
//! ```text
//! @server --databases 4      before the first section: this file runs on its own pair of servers
//! # a remark
//! == title of a section
//! @protocol 2                this section only in RESP2 (or 3)
//! @needs MULTI EXEC          this section is skipped until Weft has these commands
//! SET key "a\x00\r\n"        words; in double quotes \n \r \t \\ \" \xHH, in single quotes none
//! SET key "ab"x100           the quoted word repeated 100 times
//! EXPIREAT key $now+100      the time in seconds ($nowms: milliseconds), the same for both servers
//!
//! @conn 2                    sends the following commands over a second connection
//! @close                     closes the current connection
//! @sleep 50                  waits this number of milliseconds
//! @second 200                waits until this number of milliseconds after the beginning of a second
//! @blocked 2                 waits until two clients wait for keys (INFO's blocked_clients)
//! @config name value         CONFIG SET on both servers, reverted after the section
//! @write "bytes"             sends bytes on the connection, compares nothing
//! @drain                     compares all bytes that arrive until the connection is quiet
//! @raw "bytes" "bytes"       on a new connection: sends the pieces with a pause between them,
//!                            compares all received bytes and whether the server closes the connection
//! @bytewise "bytes"          the same, with every byte as a piece
//! @scan SCAN CURSOR COUNT 5  runs the command with each returned cursor, compares the set of elements
//!
//! @for opt [NX] [EX 10] []   repeats the indented block with $opt replaced by each group of words
//!   SET key value $opt
//! ```
//!
//! A variable is also replaced within a word, in double quotes too, if its value is one word: `SET k_$opt "v $opt"`.
//!
//! These directives apply to the next command only:
//!
//! ```text
//! @ignore         compares only the type       @shape        only types and counts, at every depth
//! @both-error     any errors are equal         @error-code   only an error's first word
//! @approx 5       numbers differ by up to 5    @unordered    elements in any order
//! @unordered-pairs               pairs in any order, in a map or where names and values alternate
//! @lines          lines in any order           @fields       only the names in name:value lines
//! @keys           only the names in a map      @mask a,b     not the values of these names
//! @column 2 50    numbers in this column (from 0) of the rows differ by up to 50
//! @stream-times   times of streams, groups and consumers differ by what passes between the two servers
//! @expiry ms      an absolute time (s: seconds, ms: milliseconds) that a time to live has set
//! @info           a reply of INFO: all names, and the values that are not a server's own (see `info.rs`)
//! @unordered-tables              maps, sets and arrays of aggregates in any order, at every depth
//! @replies 3      the number of replies (0: none)    @let name     stores the reply's text as $name
//! ```
//!
//! `$$name` is the stored reply of the *other* server: a payload of one server must be valid for the other.

use self::words::{Token, tokenize};
use super::normalise::{ComparisonRule, stream_time_rules};

/// The directives that weaken a comparison. The self-check plants a difference for each.
pub const COMPARISON_DIRECTIVES: &[&str] = &[
    "approx",
    "both-error",
    "column",
    "error-code",
    "expiry",
    "fields",
    "ignore",
    "info",
    "keys",
    "lines",
    "mask",
    "scan",
    "shape",
    "stream-times",
    "unordered",
    "unordered-pairs",
    "unordered-tables",
];

/// A file of cases.
#[derive(Debug)]
pub struct CaseFile {
    /// The file's name without its directory.
    pub name: String,
    /// Extra arguments for the file's own pair of servers; empty if it uses the shared pair.
    pub server_arguments: Vec<String>,
    /// The sections, in the order of the file.
    pub sections: Vec<CaseSection>,
}

/// A titled list of steps that run together.
#[derive(Debug)]
pub struct CaseSection {
    /// The title of the section.
    pub title: String,
    /// The protocols in which it runs.
    pub protocols: Vec<u8>,
    /// The commands that Weft must have; otherwise the section is skipped.
    pub required_commands: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<CaseStep>,
}

/// One line of a section, with the directives above it that apply to it.
#[derive(Debug)]
pub struct CaseStep {
    /// The line number in the file, from 1.
    pub line: usize,
    /// The action of the step.
    pub action: Action,
    /// The rules of the comparison.
    pub rules: Vec<ComparisonRule>,
    /// The number of replies to read.
    pub replies: usize,
    /// The name under which the reply's text is stored.
    pub binding: Option<String>,
}

/// The action of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a command and compares the replies.
    Command(Vec<CaseArgument>),
    /// Runs a cursor command to its end and compares the elements as a set.
    Scan(Vec<CaseArgument>),
    /// Sends pieces on a new connection and compares all received bytes.
    Raw(Vec<Vec<u8>>),
    /// Sends bytes on the current connection.
    Write(Vec<u8>),
    /// Compares all bytes that arrive on the current connection.
    Drain,
    /// Switches to another connection.
    SwitchConnection(u32),
    /// Closes the current connection.
    Close,
    /// Waits for this number of milliseconds.
    SleepMs(u64),
    /// Waits until this number of milliseconds after the beginning of a second of the clock.
    AwaitSecond(u64),
    /// Waits until this number of clients are blocked.
    AwaitBlocked(u64),
    /// Sets a configuration parameter until the section ends.
    Config(String, String),
}

/// A word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseArgument {
    /// A literal word.
    Literal(Vec<u8>),
    /// The reply of this server that was stored under the name.
    StoredReply(String),
    /// The reply of the other server that was stored under the name.
    OtherStoredReply(String),
    /// The current time plus this number of seconds.
    NowSeconds(i64),
    /// The current time plus this number of milliseconds.
    NowMs(i64),
}

/// Parses a case file.
///
/// # Errors
/// Fails if the file is malformed; the error names the line.
pub fn parse(name: &str, text: &str) -> Result<CaseFile, String> {
    let mut parser = CaseParser {
        file: CaseFile {
            name: name.to_string(),
            server_arguments: Vec::new(),
            sections: Vec::new(),
        },
        pending: PendingDirectives::default(),
        bound: Vec::new(),
    };
    let lines: Vec<CaseLine> = text
        .lines()
        .enumerate()
        .map(|(index, line)| CaseLine::new(index + 1, line))
        .filter(|line| !line.text.is_empty() && !line.text.starts_with('#'))
        .collect();
    parser.parse_block(&lines, &[])?;
    Ok(parser.file)
}

struct CaseLine<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

impl<'a> CaseLine<'a> {
    fn new(number: usize, line: &'a str) -> Self {
        let text = line.trim();
        Self {
            number,
            indent: line.len() - line.trim_start().len(),
            text,
        }
    }
}

/// The values that `@for` assigns to names, innermost last.
type Variables = [(String, Vec<CaseArgument>)];

/// The directives that apply to the next command.
#[derive(Default)]
struct PendingDirectives {
    rules: Vec<ComparisonRule>,
    replies: Option<usize>,
    binding: Option<String>,
}

struct CaseParser {
    file: CaseFile,
    pending: PendingDirectives,
    /// The names that `@let` has bound so far in the section.
    bound: Vec<String>,
}

impl CaseParser {
    fn parse_block(&mut self, lines: &[CaseLine], variables: &Variables) -> Result<(), String> {
        let mut position = 0;
        while position < lines.len() {
            let line = &lines[position];
            position += 1;
            let outcome = match line.text.strip_prefix("@for ") {
                None => self.parse_line(line, variables),
                Some(head) => {
                    let inner = lines[position..].iter();
                    let length = inner.take_while(|inner| inner.indent > line.indent).count();
                    let body = &lines[position..position + length];
                    position += length;
                    self.expand_loop(head, body, variables)
                }
            };
            outcome.map_err(|why| with_location(&self.file.name, line.number, &why))?;
        }
        Ok(())
    }

    fn expand_loop(&mut self, head: &str, body: &[CaseLine], variables: &Variables) -> Result<(), String> {
        if body.is_empty() {
            return Err("@for without an indented block".to_string());
        }
        let (name, groups) = head.split_once(' ').ok_or("@for needs a name and words")?;
        for group in self.parse_groups(groups, variables)? {
            let mut inner = variables.to_vec();
            inner.push((name.to_string(), group));
            self.parse_block(body, &inner)?;
        }
        Ok(())
    }

    /// Parses groups of words: `a [b c] []` is three groups, of one word, of two, and of none.
    fn parse_groups(&self, text: &str, variables: &Variables) -> Result<Vec<Vec<CaseArgument>>, String> {
        let mut groups = Vec::new();
        let mut open: Option<Vec<CaseArgument>> = None;
        for token in tokenize(text, true)? {
            match (&token, &mut open) {
                (Token::Open, None) => open = Some(Vec::new()),
                (Token::Close, Some(group)) => {
                    groups.push(std::mem::take(group));
                    open = None;
                }
                (Token::Open | Token::Close, _) => return Err("brackets do not match".to_string()),
                (_, Some(group)) => group.extend(self.resolve_token(&token, variables)?),
                (_, None) => groups.push(self.resolve_token(&token, variables)?),
            }
        }
        match open {
            None => Ok(groups),
            Some(_) => Err("brackets do not match".to_string()),
        }
    }

    fn parse_line(&mut self, line: &CaseLine, variables: &Variables) -> Result<(), String> {
        if let Some(title) = line.text.strip_prefix("== ") {
            if self.file.sections.iter().any(|known| known.title == title) {
                return Err(format!("duplicate section '{title}'"));
            }
            self.bound.clear();
            self.file.sections.push(CaseSection {
                title: title.to_string(),
                protocols: vec![2, 3],
                required_commands: Vec::new(),
                steps: Vec::new(),
            });
            return Ok(());
        }
        if let Some(text) = line.text.strip_prefix("@server ") {
            return self.server_arguments(text);
        }
        let Some(text) = line.text.strip_prefix('@') else {
            let command = Action::Command(self.parse_arguments(line.text, variables)?);
            return self.push_step(line.number, command);
        };
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        if self.parse_directive(word, rest.trim())? {
            return Ok(());
        }
        let action = self.parse_action(word, rest.trim(), variables)?;
        self.push_step(line.number, action)
    }

    fn server_arguments(&mut self, text: &str) -> Result<(), String> {
        if !self.file.sections.is_empty() {
            return Err("@server must precede the first section".to_string());
        }
        for argument in self.parse_arguments(text, &[])? {
            let CaseArgument::Literal(word) = argument else {
                return Err("@server takes plain words".to_string());
            };
            let word = String::from_utf8(word).map_err(|error| error.to_string())?;
            self.file.server_arguments.push(word);
        }
        Ok(())
    }

    /// Handles directives for the next command or the section; [`COMPARISON_DIRECTIVES`] are among them. Returns
    /// `false` if `word` is not one.
    fn parse_directive(&mut self, word: &str, rest: &str) -> Result<bool, String> {
        let rule = match word {
            "ignore" => ComparisonRule::Type,
            "shape" => ComparisonRule::Shape,
            "both-error" => ComparisonRule::BothError,
            "error-code" => ComparisonRule::ErrorCode,
            "approx" => ComparisonRule::Approx(parse_number(rest)?),
            "unordered" => ComparisonRule::Unordered,
            "unordered-pairs" => ComparisonRule::UnorderedPairs,
            "unordered-tables" => ComparisonRule::UnorderedTables,
            "lines" => ComparisonRule::UnorderedLines,
            "fields" => ComparisonRule::Fields,
            "info" => ComparisonRule::Info,
            "column" => {
                let (column, tolerance) = rest.split_once(' ').ok_or("write @column NUMBER TOLERANCE")?;
                ComparisonRule::NearColumn(parse_number(column)?, parse_number(tolerance)?)
            }
            "expiry" => ComparisonRule::NearExpiry(match rest {
                "s" => false,
                "ms" => true,
                _ => return Err("write @expiry s or @expiry ms".to_string()),
            }),
            "keys" => ComparisonRule::Keys,
            "mask" => ComparisonRule::Mask(rest.split(',').map(str::to_string).collect()),
            "stream-times" => {
                self.pending.rules.extend(stream_time_rules());
                return Ok(true);
            }
            "replies" => {
                self.pending.replies = Some(parse_number(rest)?);
                return Ok(true);
            }
            "let" => {
                self.pending.binding = Some(rest.to_string());
                return Ok(true);
            }
            "protocol" => {
                let section = self.file.sections.last_mut().ok_or("outside a section")?;
                section.protocols = vec![parse_number(rest)?];
                return Ok(true);
            }
            "needs" => {
                let section = self.file.sections.last_mut().ok_or("outside a section")?;
                section
                    .required_commands
                    .extend(rest.split_whitespace().map(str::to_string));
                return Ok(true);
            }
            _ => return Ok(false),
        };
        if !COMPARISON_DIRECTIVES.contains(&word) {
            return Err(format!("@{word} is not in COMPARISON_DIRECTIVES"));
        }
        let has_argument = matches!(word, "approx" | "mask" | "expiry" | "column");
        if has_argument == rest.is_empty() {
            return Err(format!("@{word} must be on its own line"));
        }
        self.pending.rules.push(rule);
        Ok(true)
    }

    fn parse_action(&self, word: &str, rest: &str, variables: &Variables) -> Result<Action, String> {
        Ok(match word {
            "conn" => Action::SwitchConnection(parse_number(rest)?),
            "close" => Action::Close,
            "sleep" => Action::SleepMs(parse_number(rest)?),
            "second" => Action::AwaitSecond(parse_number(rest)?),
            "blocked" => Action::AwaitBlocked(parse_number(rest)?),
            "drain" => Action::Drain,
            "scan" => Action::Scan(self.parse_arguments(rest, variables)?),
            "raw" => Action::Raw(self.parse_literals(rest, variables)?),
            "bytewise" => {
                let bytes = self.parse_literals(rest, variables)?.concat();
                Action::Raw(bytes.into_iter().map(|byte| vec![byte]).collect())
            }
            "write" => Action::Write(self.parse_literals(rest, variables)?.concat()),
            "config" => {
                let words = self.parse_literals(rest, variables)?;
                let [name, value] = words.as_slice() else {
                    return Err("@config needs a name and a value".to_string());
                };
                let owned = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
                Action::Config(owned(name), owned(value))
            }
            _ => return Err(format!("unknown directive @{word}")),
        })
    }

    fn push_step(&mut self, line: usize, action: Action) -> Result<(), String> {
        let pending = std::mem::take(&mut self.pending);
        let compares = matches!(action, Action::Command(_) | Action::Scan(_));
        if !compares && (!pending.rules.is_empty() || pending.binding.is_some()) {
            return Err("a directive for the next command is not followed by a command".to_string());
        }
        if let Action::Command(arguments) = &action {
            check_tolerance(arguments, &pending.rules)?;
        }
        self.bound.extend(pending.binding.clone());
        let section = self.file.sections.last_mut().ok_or("outside a section")?;
        section.steps.push(CaseStep {
            line,
            action,
            rules: pending.rules,
            replies: pending.replies.unwrap_or(1),
            binding: pending.binding,
        });
        Ok(())
    }

    fn parse_arguments(&self, text: &str, variables: &Variables) -> Result<Vec<CaseArgument>, String> {
        let mut arguments = Vec::new();
        for token in tokenize(text, false)? {
            arguments.extend(self.resolve_token(&token, variables)?);
        }
        Ok(arguments)
    }

    fn parse_literals(&self, text: &str, variables: &Variables) -> Result<Vec<Vec<u8>>, String> {
        self.parse_arguments(text, variables)?
            .into_iter()
            .map(|argument| match argument {
                CaseArgument::Literal(word) => Ok(word),
                _ => Err("only literal words are allowed here".to_string()),
            })
            .collect()
    }

    /// Replaces the names within a word by the values that `@for` has assigned to them.
    fn substitute(&self, word: &[u8], variables: &Variables) -> Result<Vec<CaseArgument>, String> {
        let mut replaced = Vec::new();
        let mut copied = 0;
        for (position, name) in words::names_within(word) {
            let Some(value) = value_of(name, variables) else {
                return Err(if self.bound.iter().any(|bound| bound == name) {
                    format!("${name} is a reply and cannot be a part of a word")
                } else {
                    not_defined(name)
                });
            };
            let [CaseArgument::Literal(value)] = value else {
                return Err(format!("${name} is a part of a word and is not one literal word"));
            };
            replaced.extend_from_slice(&word[copied..position]);
            replaced.extend_from_slice(value);
            copied = position + 1 + name.len();
        }
        replaced.extend_from_slice(&word[copied..]);
        Ok(vec![CaseArgument::Literal(replaced)])
    }

    fn resolve_token(&self, token: &Token, variables: &Variables) -> Result<Vec<CaseArgument>, String> {
        let word = match token {
            Token::Quoted(bytes) => return self.substitute(bytes, variables),
            Token::Literal(bytes) => return Ok(vec![CaseArgument::Literal(bytes.clone())]),
            Token::Plain(word) => word.as_str(),
            Token::Open => "[",
            Token::Close => "]",
        };
        let Some(name) = word.strip_prefix('$') else {
            return self.substitute(word.as_bytes(), variables);
        };
        if let Some(value) = value_of(name, variables) {
            return Ok(value.to_vec());
        }
        let is_loop_variable = |(_, inner)| value_of(inner, variables).is_some();
        if words::names_within(word.as_bytes()).any(is_loop_variable) {
            return self.substitute(word.as_bytes(), variables);
        }
        if let Some(offset) = name.strip_prefix("nowms") {
            return Ok(vec![CaseArgument::NowMs(parse_offset(offset)?)]);
        }
        if let Some(offset) = name.strip_prefix("now") {
            return Ok(vec![CaseArgument::NowSeconds(parse_offset(offset)?)]);
        }
        let (name, other) = match name.strip_prefix('$') {
            Some(name) => (name, true),
            None => (name, false),
        };
        if !self.bound.iter().any(|bound| bound == name) {
            return Err(not_defined(name));
        }
        Ok(vec![if other {
            CaseArgument::OtherStoredReply(name.to_string())
        } else {
            CaseArgument::StoredReply(name.to_string())
        }])
    }
}

fn not_defined(name: &str) -> String {
    format!("${name} is not defined; put a literal dollar sign into single quotes")
}

/// Returns the words that `@for` has assigned to a name.
fn value_of<'a>(name: &str, variables: &'a Variables) -> Option<&'a [CaseArgument]> {
    let variable = variables.iter().rev().find(|(known, _)| known == name);
    variable.map(|(_, value)| value.as_slice())
}

/// Commands that return absolute times.
const TIME_COMMANDS: &[&[u8]] = &[b"EXPIRETIME", b"PEXPIRETIME", b"HEXPIRETIME", b"HPEXPIRETIME"];

/// Refuses a tolerance for absolute times, which only a time to live makes inexact.
fn check_tolerance(arguments: &[CaseArgument], rules: &[ComparisonRule]) -> Result<(), String> {
    let is_time = matches!(arguments.first(), Some(CaseArgument::Literal(name))
        if TIME_COMMANDS.contains(&name.to_ascii_uppercase().as_slice()));
    let is_loose = |rule: &ComparisonRule| !matches!(rule, ComparisonRule::NearExpiry(_));
    if is_time && rules.iter().any(is_loose) {
        return Err("an absolute time is compared exactly, or with @expiry after a time to live".to_string());
    }
    Ok(())
}

fn with_location(file: &str, line: usize, why: &str) -> String {
    if why.starts_with(file) {
        why.to_string()
    } else {
        format!("{file}:{line}: {why}")
    }
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
}

/// Parses an offset: `+5`, `-5` or nothing.
fn parse_offset(text: &str) -> Result<i64, String> {
    if text.is_empty() { Ok(0) } else { parse_number(text) }
}

#[cfg(test)]
mod tests;
mod words;
