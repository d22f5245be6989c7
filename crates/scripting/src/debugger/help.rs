//! The table of debugger commands: their names, parameters and help texts.
/// The column at which descriptions begin.
const NAME_WIDTH: usize = 21;
/// The width of a line.
const LINE_WIDTH: usize = 70;

/// A command.
struct Command {
    name: &'static str,
    /// The length of the short form; 0 if there is none.
    short_len: usize,
    /// The parameters as the help text shows them.
    parameters: &'static [&'static str],
    description: &'static str,
}

/// Names and texts are those of Valkey, which users of its debugger know.
#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    Command { name: "help", short_len: 1, parameters: &[], description: "Show this help." },
    Command { name: "maxlen", short_len: 3, parameters: &["[len]"],
        description: "Trim logged replies to len. Specifying zero as <len> means unlimited. If no <len> is specified, \
                      the current value is shown. Usage: maxlen [len]" },
    Command { name: "step", short_len: 1, parameters: &[], description: "Run current line and stop again." },
    Command { name: "next", short_len: 1, parameters: &[], description: "Alias for step." },
    Command { name: "continue", short_len: 1, parameters: &[], description: "Run till next breakpoint." },
    Command { name: "list", short_len: 1, parameters: &["[line]", "[ctx]"],
        description: "List source code around a specific line. If no line is specified the list is printed around the \
                      current line. [ctx] specifies how many lines to show before/after [line]." },
    Command { name: "whole", short_len: 1, parameters: &[],
        description: "List all source code. Alias for 'list 1 1000000'." },
    Command { name: "print", short_len: 1, parameters: &["[var]"],
        description: "Show the value of the specified variable [var]. Can also show global vars KEYS and ARGV. If no \
                      [var] is specidied, shows the value of all local variables." },
    Command { name: "break", short_len: 1, parameters: &["[line|-line]"],
        description: "Add/Remove a breakpoint to the specified line. If no [line] is specified, it shows all \
                      breakpoints. When line = 0, it removes all breakpoints." },
    Command { name: "trace", short_len: 1, parameters: &[], description: "Show a backtrace." },
    Command { name: "eval", short_len: 1, parameters: &["<code>"],
        description: "Execute some Lua code (in a different callframe)." },
    Command { name: "valkey", short_len: 1, parameters: &["<cmd>"], description: "Execute a command." },
    Command { name: "redis", short_len: 1, parameters: &["<cmd>"], description: "" },
    Command { name: "server", short_len: 0, parameters: &["<cmd>"], description: "" },
    Command { name: "abort", short_len: 1, parameters: &[],
        description: "Stop the execution of the script. In sync mode dataset changes will be retained." },
];

impl Command {
    fn is_called(&self, word: &[u8]) -> bool {
        let name = self.name.as_bytes();
        let is_short =
            self.short_len > 0 && word.len() == self.short_len && word.eq_ignore_ascii_case(&name[..self.short_len]);
        is_short || super::until_zero(word).eq_ignore_ascii_case(name)
    }

    /// Returns `true` if the command accepts this number of arguments. A mandatory argument may consist of several
    /// words.
    fn accepts_arguments(&self, arguments: usize) -> bool {
        match self
            .parameters
            .first()
            .is_some_and(|parameter| parameter.starts_with('<'))
        {
            true => arguments > 0,
            false => arguments <= self.parameters.len(),
        }
    }

    fn add_help(&self, lines: &mut Vec<Vec<u8>>) {
        let parameters: String = self
            .parameters
            .iter()
            .map(|parameter| format!(" {parameter}"))
            .collect();
        add_help_of(self.name, self.short_len, &parameters, self.description, lines);
    }
}

/// Adds the help text of a command. `parameters` are shown behind its name.
fn add_help_of(name: &str, short_len: usize, parameters: &str, description: &str, lines: &mut Vec<Vec<u8>>) {
    let (short, rest) = name.split_at_checked(short_len).unwrap_or(("", name));
    let title = match (short, rest) {
        ("", rest) => format!("{rest}{parameters}"),
        (short, "") => format!("{short}{parameters}"),
        (short, rest) => format!("[{short}]{rest}{parameters}"),
    };
    let fits = title.len() < NAME_WIDTH;
    let mut first = format!("{title:<width$}", width = NAME_WIDTH);
    if !fits {
        lines.push(format!("{title} ").into_bytes());
        first = " ".repeat(NAME_WIDTH);
    }
    for line in wrapped(description, LINE_WIDTH - NAME_WIDTH) {
        lines.push([first.as_bytes(), line.as_bytes()].concat());
        first = " ".repeat(NAME_WIDTH);
    }
}

/// The help text of a command that the engine of a module adds to the debugger.
pub struct EngineCommandHelp {
    /// The name.
    pub name: String,
    /// The length of the short form; 0 if there is none.
    pub short_len: usize,
    /// What is shown behind the name.
    pub parameters: String,
    /// The description.
    pub description: String,
}

/// Returns the lines of the help text of an engine: the commands that all engines have, and its own.
pub(super) fn lines_of_engine(engine: &str, commands: &[EngineCommandHelp]) -> Vec<Vec<u8>> {
    let mut lines = vec![format!("{engine} debugger help:").into_bytes()];
    for command in COMMANDS
        .iter()
        .filter(|command| matches!(command.name, "help" | "maxlen"))
    {
        command.add_help(&mut lines);
    }
    for command in commands {
        add_help_of(
            &command.name,
            command.short_len,
            &command.parameters,
            &command.description,
            &mut lines,
        );
    }
    lines
}

/// Returns the full name of the command that `words` call; `None` if no command accepts them.
pub(super) fn command(words: &[Vec<u8>]) -> Option<&'static str> {
    let (name, arguments) = words.split_first()?;
    let mut named = COMMANDS.iter().filter(|command| command.is_called(name));
    Some(named.find(|command| command.accepts_arguments(arguments.len()))?.name)
}

/// Returns the lines of the help text.
pub(super) fn lines() -> Vec<Vec<u8>> {
    let mut lines = vec![b"LUA debugger help:".to_vec()];
    for command in COMMANDS.iter().filter(|command| !command.description.is_empty()) {
        command.add_help(&mut lines);
    }
    lines
}

/// Splits a text between words into lines of at most `width` bytes.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while rest.len() > width {
        let width = (1..=width)
            .rev()
            .find(|end| rest.is_char_boundary(*end))
            .unwrap_or(rest.len());
        let end = rest[..width].rfind(' ').unwrap_or(width);
        lines.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(' ');
    }
    lines.push(rest);
    lines
}
