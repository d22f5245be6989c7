//! Random programs, and the sequences of commands that run them.

use fastrand::Rng;

use super::templates::{CALLED, COMMANDS, SUBJECTS, Subject};

/// The keys of all programs.
pub const KEYS: [&str; 3] = ["a", "b", "{a}c"];
/// The most calls of the API in one program, and the most commands of one sequence.
const MOST_CALLS: usize = 14;
const MOST_COMMANDS: usize = 5;
/// How deep replies are nested.
const DEEPEST: u32 = 4;

const WORDS: &[&str] = &[
    "",
    "x",
    "hello",
    "1",
    "-7",
    "12",
    "a",
    "b",
    "none",
    "3.5",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "-inf",
    " 1",
    "1 ",
    "+5",
    "0x10",
    "007",
    "-0",
    "0.1",
    "\0\r\n",
    "a text of more than twenty bytes",
    "a text that is longer than the sixty-four bytes that the small encodings of collections take",
];
const FIELDS: &[&str] = &["a", "b", "c", "d", "e", "f", "1", "22", "", "ab", "abc", "b\0"];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "-1",
    "3",
    "100",
    "-32769",
    "70000",
    "4294967296",
    "9223372036854775807",
];
const SCORES: &[&str] = &[
    "0",
    "1",
    "2",
    "2",
    "-1",
    "1.5",
    "0.1",
    "-2.25",
    "1e17",
    "1e-5",
    "inf",
    "-inf",
    "nan",
    "3e400",
    "123456789012345678",
    "1e300",
    "5e-324",
    "0.30000000000000004",
    "-0",
];
const IDS: &[&str] = &[
    "1-1",
    "1-2",
    "5-0",
    "5-5",
    "5-6",
    "7",
    "8-1",
    "9-9",
    "0-0",
    "0-1",
    "20-0",
    "30",
    "-",
    "+",
    "x",
    "1-*",
    "18446744073709551615-18446744073709551615",
];
const BOUNDS: &[&str] = &["-", "+", "[a", "(a", "[b", "(c", "[f", "(zz", "x", "[", ""];
const RULES: &[&str] = &[
    "on",
    "off",
    "+@all",
    "-@all",
    "+get",
    "+set",
    "-get",
    "+@read",
    "-@write",
    "allkeys",
    "~a",
    "~*",
    "%R~b",
    "%W~*",
    "resetkeys",
    "&c",
    "allchannels",
    "resetchannels",
    "+@all -@dangerous ~* &*",
    "on +get +config|get ~a",
    ">secret",
    "nopass",
    "reset",
    "nosuch",
    "+nosuch",
    "-@nosuch",
    "db=0",
    "alldbs",
    "(+get ~b)",
    "clearselectors",
    "~",
    "+program.run",
    "+acl|whoami",
    "sanitize-payload",
];
const CHECKED: &[&str] = &[
    "get KEY",
    "set KEY WORD",
    "mget KEY KEY",
    "rename KEY KEY",
    "config get x",
    "publish c x",
    "ping",
    "nosuch",
    "eval x 1 KEY",
    "sort KEY store KEY",
    "xread streams KEY 0",
    "bitop and KEY KEY KEY",
    "copy KEY KEY",
    "subscribe c",
    "zunionstore KEY 2 KEY KEY",
    "program.run KEY KEY KEY",
    "program.keys 0 KEY x KEY",
    "object freq KEY",
    "flushall",
    "lmpop 1 KEY left",
    "georadius KEY 1 1 1 m store KEY",
    "migrate h 1 KEY 0 1",
    "psubscribe c*",
    "spublish c x",
    "acl whoami",
];

/// How a client runs a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wrapping {
    /// As a command.
    None,
    /// In a transaction.
    Transaction,
    /// In a script; in RESP3 if the flag is set.
    Script(bool),
}

/// The words of a call or of a command.
pub type Words = Vec<Vec<u8>>;

/// What a client sends.
#[derive(Clone)]
pub enum Step {
    /// A program: its calls, and how it is run.
    Program {
        /// The command and the words before the calls.
        head: Words,
        /// The calls, each with its name first.
        calls: Vec<Words>,
        /// How it is run.
        wrapping: Wrapping,
    },
    /// Another command.
    Command(Words),
}

impl Step {
    /// Returns `true` if a script runs the program.
    pub fn is_script(&self) -> bool {
        matches!(
            self,
            Self::Program {
                wrapping: Wrapping::Script(_),
                ..
            }
        )
    }

    /// The commands to send.
    pub fn commands(&self) -> Vec<Words> {
        let (head, calls, wrapping) = match self {
            Self::Command(words) => return vec![words.clone()],
            Self::Program { head, calls, wrapping } => (head, calls, *wrapping),
        };
        let mut words = head.clone();
        for call in calls {
            words.push(call[0].clone());
            words.push((call.len() - 1).to_string().into_bytes());
            words.extend_from_slice(&call[1..]);
        }
        match wrapping {
            Wrapping::None => vec![words],
            Wrapping::Transaction => vec![vec![b"multi".to_vec()], words, vec![b"exec".to_vec()]],
            Wrapping::Script(is_resp3) => {
                let protocol = if is_resp3 { "server.setresp(3) " } else { "" };
                let body = format!(
                    "{protocol}return server.call('{}', unpack(KEYS), unpack(ARGV))",
                    "program.run"
                );
                // `unpack` gives only one value unless it is the last argument.
                let body = body.replace("unpack(KEYS), ", "KEYS[1], KEYS[2], KEYS[3], ");
                let mut script = vec![b"eval".to_vec(), body.into_bytes(), b"3".to_vec()];
                script.extend_from_slice(&words[1..]);
                vec![script]
            }
        }
    }
}

/// The generator of one sequence.
pub struct Generator {
    rng: Rng,
    /// Elements of sorted sets have one score, as ranges by the order of bytes demand.
    has_one_score: bool,
}

impl Generator {
    /// Returns the sequence of a seed, about the subjects whose names contain `filter`.
    pub fn sequence(seed: u64, filter: &str) -> Vec<Step> {
        let mut rng = Rng::with_seed(seed);
        let has_one_score = rng.bool();
        let mut this = Self { rng, has_one_score };
        let subjects: Vec<&Subject> = SUBJECTS
            .iter()
            .filter(|subject| subject.name.contains(filter))
            .collect();
        let subject = subjects[this.rng.usize(0..subjects.len())];
        let mut steps = Vec::new();
        for template in subject.prelude {
            if this.rng.u32(0..3) > 0 {
                steps.push(Step::Command(this.fill(template)));
            }
        }
        for _ in 0..this.rng.usize(1..=MOST_COMMANDS) {
            let step = match this.rng.u32(0..4) {
                0 => Step::Command(this.command()),
                _ => this.program(subject),
            };
            steps.push(step);
        }
        steps
    }

    fn program(&mut self, subject: &Subject) -> Step {
        let wrapping = match self.rng.u32(0..12) {
            0 | 1 => Wrapping::Transaction,
            2 => Wrapping::Script(false),
            3 => Wrapping::Script(true),
            _ => Wrapping::None,
        };
        let command = match self.rng.u32(0..12) {
            0 => "program.read",
            _ => "program.run",
        };
        let mut head = vec![command.as_bytes().to_vec()];
        head.extend(KEYS.iter().map(|key| key.as_bytes().to_vec()));
        if self.rng.u32(0..4) == 0 {
            head.push(b"auto".to_vec());
        }
        let calls = self.calls(subject, MOST_CALLS);
        Step::Program { head, calls, wrapping }
    }

    fn calls(&mut self, subject: &Subject, most: usize) -> Vec<Words> {
        // Few registers are used, so that most calls find an open key.
        let mut calls = Vec::new();
        for _ in 0..self.rng.usize(3..=most.max(3)) {
            let about = match self.rng.u32(0..8) {
                0 => &SUBJECTS[self.rng.usize(0..SUBJECTS.len())],
                _ => subject,
            };
            let template = about.calls[self.rng.usize(0..about.calls.len())];
            calls.push(self.fill(template));
        }
        calls
    }

    fn command(&mut self) -> Words {
        let template = COMMANDS[self.rng.usize(0..COMMANDS.len())];
        self.fill(template)
    }

    fn pick(&mut self, list: &[&str]) -> Vec<u8> {
        list[self.rng.usize(0..list.len())].as_bytes().to_vec()
    }

    /// Replaces the words in capitals, and chooses among alternatives.
    fn fill(&mut self, template: &str) -> Words {
        let mut words = Vec::new();
        // A script contains no spaces but may contain `|` only as an alternative of other words.
        for word in template.split(' ') {
            let alternatives: Vec<&str> = match word.starts_with("return") || !word.contains('|') {
                true => vec![word],
                false => word.split('|').collect(),
            };
            let word = alternatives[self.rng.usize(0..alternatives.len())];
            self.fill_word(word, &mut words);
        }
        words
    }

    fn fill_word(&mut self, word: &str, words: &mut Words) {
        let filled = match word {
            "KEY" => self.pick(&KEYS),
            "PLACE" => self.pick(&["0", "0", "1", "2"]),
            "REG" => self.pick(&["0", "0", "0", "1", "2"]),
            "MODE" => self.rng.u32(0..9).to_string().into_bytes(),
            "WORD" => self.pick(WORDS),
            "FIELD" => self.pick(FIELDS),
            "NUM" => self.pick(NUMBERS),
            "SCORE" if self.has_one_score => b"0".to_vec(),
            "SCORE" => self.pick(SCORES),
            "INDEX" => self.rng.i32(-6..7).to_string().into_bytes(),
            "ID" => self.pick(IDS),
            "MIN" | "MAX" if self.has_one_score => self.pick(BOUNDS),
            // The order of bytes says nothing where scores differ.
            "MIN" => b"x".to_vec(),
            "MAX" => b"+".to_vec(),
            "RULES" => self.pick(RULES),
            "FLAGS" => self.flags(""),
            "EFLAGS" => self.flags("E"),
            "CALL" | "CHECK" => {
                let list = if word == "CALL" { CALLED } else { CHECKED };
                let template = list[self.rng.usize(0..list.len())];
                return words.extend(self.fill(template));
            }
            "NESTED" => {
                let subject = &SUBJECTS[self.rng.usize(0..SUBJECTS.len() - 1)];
                for call in self.calls(subject, 5) {
                    words.push(call[0].clone());
                    words.push((call.len() - 1).to_string().into_bytes());
                    words.extend_from_slice(&call[1..]);
                }
                return;
            }
            "TREE" => return self.tree(DEEPEST, words),
            other => other.replace("KEY", KEYS[self.rng.usize(0..KEYS.len())]).into_bytes(),
        };
        words.push(filled);
    }

    fn flags(&mut self, always: &str) -> Vec<u8> {
        let mut flags = always.to_string();
        for flag in "!!AR330CSWMEDKX".chars() {
            if self.rng.u32(0..6) == 0 {
                flags.push(flag);
            }
        }
        if self.rng.u32(0..100) == 0 {
            flags.push('z');
        }
        flags.into_bytes()
    }

    fn tree(&mut self, depth: u32, words: &mut Words) {
        const LEAVES: &[&str] = &[
            "null",
            "nullarray",
            "emptyarray",
            "emptystring",
            "arity",
            "integer NUM",
            "double SCORE",
            "bool 0|1|5",
            "exact SCORE",
            "bignumber 123|-9|123456789012345678901234567890",
            "simple fine|OK",
            "error MINE|ERR|x",
            "error-format ONE|-TWO",
            "error-custom CUSTOM|OTHER",
            "buffer WORD",
            "cstring WORD",
            "verbatim WORD",
            "markdown WORD",
            "longtype WORD",
            "string WORD",
            "double 0.1|1.5|-inf|1e300",
        ];
        if depth == 0 || self.rng.u32(0..3) == 0 {
            let leaf = LEAVES[self.rng.usize(0..LEAVES.len())];
            return words.extend(self.fill(leaf));
        }
        let kind = self.pick(&["array", "array", "map", "set", "Attribute"]);
        let length = self.rng.usize(0..4);
        let is_attribute = kind == b"Attribute";
        let per_element = if is_attribute || kind == b"map" { 2 } else { 1 };
        words.push(kind);
        words.push(length.to_string().into_bytes());
        words.push(self.pick(&["now", "later"]));
        for _ in 0..length * per_element + usize::from(is_attribute) {
            self.tree(depth - 1, words);
        }
    }
}
