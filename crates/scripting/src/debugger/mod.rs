//! The script debugger (`SCRIPT DEBUG`, LDB): the messages to its user and the user's commands.
//!
//! ```text
//!   Lua is about to run a line ─▶ interpreter/debugging.rs ─▶ stop here? ── no ──▶ continue
//!                                                               │ yes
//!        "* Stopped at 3, ..." to the user                      ▼
//!        a command of the user ─▶ an Order ─▶ executed there if it needs Lua, otherwise here
//!                                   ▲   └─ its lines to the user ─┐
//!                                   └─────────────────────────────┘  until the script continues
//! ```
//!
//! 1. Every message is kept in the *log* until the next answer. The answer is an array of simple strings, one for each
//!    line.
//! 2. Commands that a script calls are logged with their replies while the script is stepped, not while it continues.
//! 3. The debugger does not wait for a user that has disconnected: the script continues without stops, or ends, as its
//!    [`Console`] decides.

mod help;
mod reply;
mod request;
mod value;

pub use help::EngineCommandHelp;
pub use value::append_value;

use self::request::ParsedRequest;

/// The maximum number of breakpoints.
const BREAKPOINTS_MAX: usize = 64;
/// The default number of bytes of a value that are shown.
const SHOWN_BYTES: usize = 256;
/// The minimum that the user can set for the shown bytes of a value.
const SHOWN_BYTES_MIN: usize = 60;
/// The maximum bytes of input without a complete command.
const INPUT_BYTES_MAX: usize = 1 << 20;
/// The maximum number of words of a command that are shown.
const SHOWN_WORDS: usize = 10;
/// The number of lines before and after the current one that `list` shows.
const CONTEXT_LINES: i64 = 5;

/// The connection to the user of a debugger.
pub trait Console: Send {
    /// Sends bytes. The next [`Console::receive`] reports a failure.
    fn send(&mut self, bytes: &[u8]);
    /// Waits for input and appends it to `into`. Returns `false` if the user has disconnected.
    fn receive(&mut self, into: &mut Vec<u8>) -> bool;
    /// Returns `true` if the script is to end, because its result will reach no user or because the process is shutting
    /// down. `has_written` is `true` if the script has written: it may have to run to its end then.
    fn is_over(&mut self, has_written: bool) -> bool;
}

/// A command of the user that needs Lua or that continues the script.
#[derive(Debug, PartialEq, Eq)]
pub enum DebuggerCommand {
    /// Runs to the next line.
    Step,
    /// Runs to the next breakpoint.
    Continue,
    /// Prints the variable of this name, or all variables of the current function.
    Print(Option<Vec<u8>>),
    /// Prints the call stack.
    Trace,
    /// Runs Lua code.
    Eval(Vec<u8>),
    /// Executes a command.
    Call(Vec<Vec<u8>>),
    /// Ends the script.
    Abort,
    /// The user has disconnected.
    Disconnected,
    /// The input is malformed: the script ends with this error.
    Fail(&'static str),
}

/// What the user of a debugger has sent.
#[derive(Debug, PartialEq, Eq)]
pub enum DebuggerRequest {
    /// A request with these words.
    Words(Vec<Vec<u8>>),
    /// Bytes that are no request.
    Malformed,
    /// Too many bytes without a complete request.
    TooLong,
    /// The user has disconnected.
    Disconnected,
}

/// A debugger session.
pub struct Debugger {
    console: Box<dyn Console>,
    source: Vec<Vec<u8>>,
    breakpoints: Vec<i64>,
    /// Set while the script stops at the next line and commands are logged.
    is_stepping: bool,
    /// Set once the script has called `server.breakpoint()` and is to stop at the next line.
    breakpoint_called: bool,
    /// The line that is about to run.
    line: i64,
    log: Vec<Vec<u8>>,
    input: Vec<u8>,
    /// The maximum bytes of a value that are shown; 0 for no limit.
    shown_bytes: usize,
    was_trim_hint_shown: bool,
}

impl Debugger {
    /// Creates a session for a script with this source. The script stops at its first line.
    pub fn new(console: Box<dyn Console>, source: &[u8]) -> Self {
        let end = source.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
        let source = &source[..end.map_or(0, |last| last + 1)];
        Debugger {
            console,
            source: source.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
            breakpoints: Vec::new(),
            is_stepping: true,
            breakpoint_called: false,
            line: -1,
            log: Vec::new(),
            input: Vec::new(),
            shown_bytes: SHOWN_BYTES,
            was_trim_hint_shown: false,
        }
    }

    // ---- where the script is ---------------------------------------------------------------------------------------
    /// Records that the script is about to run a line.
    pub fn set_line(&mut self, line: i64) {
        self.line = line;
    }

    /// Returns the line that is about to run.
    pub fn line(&self) -> i64 {
        self.line
    }

    /// Returns the reason why the script stops at the current line, if it stops there. Clears the reasons that are for
    /// one stop only.
    pub fn take_stop_reason(&mut self) -> Option<&'static str> {
        let reason = if self.breakpoint_called {
            "server.breakpoint() called"
        } else if self.is_breakpoint(self.line) {
            "break point"
        } else if self.is_stepping {
            "step over"
        } else {
            return None;
        };
        (self.is_stepping, self.breakpoint_called) = (false, false);
        Some(reason)
    }

    /// Makes the script stop at its next line.
    pub fn stop_at_next_line(&mut self) {
        self.breakpoint_called = true;
    }

    /// Enables or disables stepping, with which commands are logged. Returns the previous setting.
    pub fn set_stepping(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.is_stepping, on)
    }

    /// Reports to the user where the script has stopped.
    pub fn report_stop(&mut self, reason: &str) {
        self.log_line(format!("* Stopped at {}, stop reason = {reason}", self.line));
        self.log_source_line(self.line);
        self.flush();
    }

    /// Returns `true` if the script is to end. `has_written` is `true` if it has written.
    pub fn is_over(&mut self, has_written: bool) -> bool {
        self.console.is_over(has_written)
    }

    // ---- the log ---------------------------------------------------------------------------------------------------

    /// Logs a line.
    pub fn log_line(&mut self, line: impl Into<Vec<u8>>) {
        self.log.push(line.into());
    }

    /// Logs a line that shows a value, trimmed to the configured length.
    pub fn log_trimmed(&mut self, mut line: Vec<u8>) {
        let trimmed = self.shown_bytes != 0 && line.len() > self.shown_bytes;
        if trimmed {
            line.truncate(self.shown_bytes);
            line.extend_from_slice(b" ...");
        }
        self.log_line(line);
        if trimmed && !std::mem::replace(&mut self.was_trim_hint_shown, true) {
            self.log_line("<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.");
        }
    }

    /// Logs a command that the script calls.
    pub fn log_command<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        if !self.is_stepping {
            return;
        }
        let count = words.len();
        let mut line = b"<command>".to_vec();
        for (index, word) in words.enumerate() {
            if index == SHOWN_WORDS {
                line.extend_from_slice(format!(" ... ({} more)", count - index - 1).as_bytes());
                break;
            }
            line.push(b' ');
            line.extend_from_slice(until_zero(word));
        }
        self.log_line(line);
    }

    /// Logs the reply of a command that the script has called.
    pub fn log_reply(&mut self, reply: &[u8]) {
        if self.is_stepping {
            let mut line = b"<reply> ".to_vec();
            reply::append_readable(reply, &mut line);
            self.log_trimmed(line);
        }
    }

    /// Logs an error that the script gets.
    pub fn log_error(&mut self, text: &[u8]) {
        if self.is_stepping {
            self.log_line([b"<error> ", until_zero(text)].concat());
        }
    }

    /// Sends the log and clears it.
    pub fn flush(&mut self) {
        let mut answer = format!("*{}\r\n", self.log.len()).into_bytes();
        for line in self.log.drain(..) {
            answer.push(b'+');
            let without_breaks = line.iter().map(|byte| match byte {
                b'\r' | b'\n' => b' ',
                other => *other,
            });
            answer.extend(without_breaks);
            answer.extend_from_slice(b"\r\n");
        }
        self.console.send(&answer);
    }

    /// Sends the end of the session and then the reply of the script.
    pub fn end(&mut self, reply: &[u8]) {
        self.log_line("<endsession>");
        self.flush();
        self.console.send(reply);
    }

    // ---- the source ------------------------------------------------------------------------------------------------

    fn is_breakpoint(&self, line: i64) -> bool {
        self.breakpoints.contains(&line)
    }

    /// Logs a line of the source.
    pub fn log_source_line(&mut self, number: i64) {
        let is_source = |at: i64| usize::try_from(at - 1).ok().and_then(|index| self.source.get(index));
        let text = is_source(number).map_or(&b"<out of range source code line>"[..], |line| until_zero(line));
        let mark = match (number == self.line, self.is_breakpoint(number)) {
            (true, true) => "->#",
            (true, false) => "-> ",
            (false, true) => "  #",
            (false, false) => "   ",
        };
        let line = [format!("{mark}{number:<3} ").as_bytes(), text].concat();
        self.log_line(line);
    }

    fn list_source(&mut self, around: i64, context: i64) {
        for number in 1..=self.source.len() as i64 {
            if around == 0 || (around - number).abs() <= context {
                self.log_source_line(number);
            }
        }
    }

    // ---- commands --------------------------------------------------------------------------------------------------
    /// Waits for the user's next order. Commands that need no Lua are executed meanwhile.
    pub fn next_command(&mut self) -> DebuggerCommand {
        loop {
            let words = match self.next_request() {
                DebuggerRequest::Words(words) => words,
                DebuggerRequest::Malformed => return DebuggerCommand::Fail("ERR protocol error"),
                DebuggerRequest::TooLong => return DebuggerCommand::Fail("ERR max client buffer reached"),
                DebuggerRequest::Disconnected => return DebuggerCommand::Disconnected,
            };
            if let Some(order) = self.execute(&words) {
                return order;
            }
            self.flush();
        }
    }

    /// Waits for the user's next request, for a script of a module's engine.
    pub fn next_request(&mut self) -> DebuggerRequest {
        let request = loop {
            match request::parse(&self.input) {
                ParsedRequest::Words(words) => break DebuggerRequest::Words(words),
                ParsedRequest::Malformed => break DebuggerRequest::Malformed,
                ParsedRequest::Incomplete if !self.console.receive(&mut self.input) => {
                    (self.is_stepping, self.breakpoints) = (false, Vec::new());
                    break DebuggerRequest::Disconnected;
                }
                ParsedRequest::Incomplete if self.input.len() > INPUT_BYTES_MAX => break DebuggerRequest::TooLong,
                ParsedRequest::Incomplete => {}
            }
        };
        // One command at a time: input behind a command is dropped.
        self.input.clear();
        request
    }

    /// Logs the help text of an engine.
    pub fn log_engine_help(&mut self, engine: &str, commands: &[EngineCommandHelp]) {
        self.log.extend(help::lines_of_engine(engine, commands));
    }

    /// Logs the reply of a command, trimmed, for a script of a module's engine.
    pub fn log_readable_reply(&mut self, reply: &[u8]) {
        let mut line = b"<reply> ".to_vec();
        reply::append_readable(reply, &mut line);
        self.log_trimmed(line);
    }

    /// Executes a command; returns an order if it cannot be executed here.
    fn execute(&mut self, words: &[Vec<u8>]) -> Option<DebuggerCommand> {
        let Some(name) = help::command(words) else {
            self.log_line("<error> Unknown debugger command or wrong number of arguments.");
            return None;
        };
        let word = |index: usize| words.get(index).map(Vec::as_slice);
        match name {
            "help" => help::lines().into_iter().for_each(|line| self.log_line(line)),
            "maxlen" => self.set_shown_bytes(word(1)),
            "step" | "next" => {
                self.is_stepping = true;
                return Some(DebuggerCommand::Step);
            }
            "continue" => return Some(DebuggerCommand::Continue),
            "list" => {
                let around = word(1).map(leading_number).filter(|line| *line > 0);
                self.list_source(
                    around.unwrap_or(self.line),
                    word(2).map_or(CONTEXT_LINES, leading_number),
                );
            }
            "whole" => self.list_source(1, 1_000_000),
            "print" => return Some(DebuggerCommand::Print(word(1).map(<[u8]>::to_vec))),
            "break" => self.change_breakpoints(&words[1..]),
            "trace" => return Some(DebuggerCommand::Trace),
            "eval" => return Some(DebuggerCommand::Eval(words[1..].join(&b' '))),
            "abort" => return Some(DebuggerCommand::Abort),
            _ => return Some(DebuggerCommand::Call(words[1..].to_vec())),
        }
        None
    }

    /// Executes the command `maxlen`.
    pub fn set_shown_bytes(&mut self, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else {
            return self.log_line(format!("Current maxlen is {}", self.shown_bytes));
        };
        let bytes = weft_resp::number::parse_i64(bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(bytes) = bytes else {
            return self.log_line("<error> Invalid maxlen value.");
        };
        self.was_trim_hint_shown = true;
        self.shown_bytes = match bytes {
            0 => 0,
            bytes => bytes.max(SHOWN_BYTES_MIN),
        };
        match self.shown_bytes {
            0 => self.log_line("<value> replies are not truncated."),
            bytes => self.log_line(format!("<value> replies are truncated at {bytes} bytes.")),
        }
    }

    fn change_breakpoints(&mut self, lines: &[Vec<u8>]) {
        if lines.is_empty() {
            return self.log_breakpoints();
        }
        for word in lines {
            match weft_resp::number::parse_i64(word) {
                None => self.log_line([b"Invalid argument:'", until_zero(word), b"'"].concat()),
                Some(0) => {
                    self.breakpoints.clear();
                    self.log_line("All breakpoints removed.");
                }
                Some(line) if line > 0 => self.add_breakpoint(line),
                Some(line) => {
                    let at = self
                        .breakpoints
                        .iter()
                        .position(|other| Some(*other) == line.checked_neg());
                    match at.map(|at| self.breakpoints.remove(at)) {
                        Some(_) => self.log_line("Breakpoint removed."),
                        None => self.log_line("No breakpoint in the specified line."),
                    }
                }
            }
        }
    }

    fn log_breakpoints(&mut self) {
        if self.breakpoints.is_empty() {
            return self.log_line("No breakpoints set. Use 'b <line>' to add one.");
        }
        self.log_line(format!("{} breakpoints set:", self.breakpoints.len()));
        for line in self.breakpoints.clone() {
            self.log_source_line(line);
        }
    }

    fn add_breakpoint(&mut self, line: i64) {
        if self.breakpoints.len() == BREAKPOINTS_MAX {
            self.log_line("Too many breakpoints set.");
        } else if line > self.source.len() as i64 || self.is_breakpoint(line) {
            self.log_line("Wrong line number.");
        } else {
            self.breakpoints.push(line);
            self.list_source(line, 1);
        }
    }
}

/// Returns the bytes before the first zero byte, as C reads a string.
fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses the integer at the start of a word as C does; 0 if there is none.
fn leading_number(word: &[u8]) -> i64 {
    let word = word.trim_ascii_start();
    let (negative, digits) = match word.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, word),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0i64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    let number = number.min(i64::from(i32::MAX));
    if negative { -number } else { number }
}

#[cfg(test)]
mod tests;
