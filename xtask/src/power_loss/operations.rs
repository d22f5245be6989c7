//! The operations of a writer. They depend on the seed only, so that a check can repeat them.

use std::sync::Arc;

use super::model::{Entry, KEYS, State, Step, Value};

/// The number of databases in which writers work.
pub const DATABASES: usize = 3;
/// A script that runs the commands in its arguments, each after its number of words.
const SCRIPT: &str = "local i = 1 while i <= #ARGV do local n = tonumber(ARGV[i]) local c = {} \
                      for j = 1, n do c[j] = ARGV[i + j] end redis.call(unpack(c)) i = i + n + 1 end return #ARGV";
/// A time of expiry that no run reaches, in ms since the Unix epoch.
const FAR_MS: u64 = 4_000_000_000_000;

/// An operation, which happens as a whole or not at all.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A command.
    Single(Step),
    /// MULTI, commands, EXEC.
    Transaction(Vec<Step>),
    /// A script that runs commands.
    Script(Vec<Step>),
}

impl Operation {
    /// The commands that change the state.
    pub fn steps(&self) -> &[Step] {
        match self {
            Operation::Single(step) => std::slice::from_ref(step),
            Operation::Transaction(steps) | Operation::Script(steps) => steps,
        }
    }

    /// The commands to send.
    pub fn commands(&self, prefix: &str) -> Vec<Vec<String>> {
        match self {
            Operation::Single(step) => vec![step.words(prefix)],
            Operation::Transaction(steps) => {
                let mut commands = vec![vec!["MULTI".to_owned()]];
                commands.extend(steps.iter().map(|step| step.words(prefix)));
                commands.push(vec!["EXEC".to_owned()]);
                commands
            }
            Operation::Script(steps) => {
                let mut words = vec!["EVAL".to_owned(), SCRIPT.to_owned(), (KEYS.len() + 1).to_string()];
                words.extend(KEYS.iter().map(|key| format!("{prefix}{key}")));
                words.push("journal".to_owned());
                for step in steps {
                    let command = step.words(prefix);
                    words.push(command.len().to_string());
                    words.extend(command);
                }
                vec![words]
            }
        }
    }

    /// The text that it adds to the journal.
    pub fn journal_text(&self) -> Option<&str> {
        self.steps().iter().find_map(|step| match step {
            Step::Journal(text) => Some(text.as_str()),
            _ => None,
        })
    }
}

/// The sequence of a writer's operations, and the state after them.
#[derive(Clone)]
pub struct Operations {
    rng: fastrand::Rng,
    writer: usize,
    /// The time around which short times of expiry lie, in ms since the Unix epoch.
    base_ms: u64,
    /// The run, which makes texts differ from those of earlier runs.
    run: u64,
    /// The number of operations so far.
    pub count: usize,
    /// The state after them.
    pub state: State,
}

/// The time after the base at which all short times of expiry are over, in ms.
pub const SHORT_EXPIRY_MS: u64 = 4000;

impl Operations {
    /// Creates the sequence of a writer in a run, which begins with `state`.
    pub fn new((seed, run): (u64, u64), writer: usize, base_ms: u64, state: State) -> Self {
        let seed = seed ^ run.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ((writer as u64 + 1) << 48);
        Operations {
            rng: fastrand::Rng::with_seed(seed),
            writer,
            base_ms,
            run,
            count: 0,
            state,
        }
    }

    /// The prefix of a writer's keys.
    pub fn prefix(writer: usize) -> String {
        format!("w{writer}:")
    }

    /// Returns the next operation, and applies it.
    pub fn advance(&mut self) -> Operation {
        self.count += 1;
        let operation = match self.rng.u32(0..100) {
            0..12 => Operation::Transaction(self.steps()),
            12..22 => Operation::Script(self.steps()),
            22..25 => Operation::Single(Step::Journal(self.journal_text())),
            _ => Operation::Single(self.step()),
        };
        match &operation {
            Operation::Single(step) => step.apply(&mut self.state),
            // Their steps were applied as they were chosen, because each depends on those before it.
            Operation::Transaction(_) | Operation::Script(_) => {}
        }
        operation
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..self.rng.usize(2..=5) {
            let step = self.step();
            step.apply(&mut self.state);
            steps.push(step);
        }
        if self.rng.bool() {
            steps.push(Step::Journal(self.journal_text()));
        }
        steps
    }

    fn journal_text(&self) -> String {
        format!("{}:{}:{}", self.run, self.writer, self.count)
    }

    /// A text that no other operation writes.
    fn text(&mut self) -> String {
        format!("{}.{}.{}", self.run, self.count, self.rng.u32(..))
    }

    fn any(&mut self, letter: char) -> &'static str {
        let keys: Vec<&'static str> = KEYS.into_iter().filter(|key| key.starts_with(letter)).collect();
        keys[self.rng.usize(0..keys.len())]
    }

    fn large_text(&mut self) -> Arc<str> {
        let bytes = match self.rng.u32(0..10) {
            0 => self.rng.usize(100_000..300_000),
            1..4 => self.rng.usize(5000..20_000),
            _ => self.rng.usize(500..5000),
        };
        let text = self.text();
        let mut all = String::with_capacity(bytes + text.len());
        while all.len() < bytes {
            all.push_str(&text);
            all.push(' ');
        }
        all.into()
    }

    fn step(&mut self) -> Step {
        match self.rng.u32(0..100) {
            0..12 => Step::Set(self.any('s'), self.text().into(), None),
            12..15 => Step::Set(self.any('s'), self.text().into(), Some(FAR_MS + self.rng.u64(0..1000))),
            15..20 => {
                let at = self.base_ms + self.rng.u64(0..SHORT_EXPIRY_MS);
                Step::Set(self.any('e'), self.text().into(), Some(at))
            }
            20..30 => Step::Add(self.any('n'), self.rng.i64(1..1000)),
            30..33 => Step::Set(self.any('b'), self.large_text(), None),
            33..36 => Step::Append(self.any('s'), self.text()),
            36..53 => self.list_step(),
            53..64 => self.hash_step(),
            64..75 => self.set_step(),
            75..80 => Step::Score(
                self.any('z'),
                format!("m{}", self.rng.u32(0..12)),
                self.rng.i64(-50..50),
            ),
            80..86 => {
                let key = self.any('x');
                let last = match self.state.get(key).map(|entry| &entry.value) {
                    Some(Value::Stream(entries)) => entries.back().map_or(0, |entry| entry.0),
                    _ => 0,
                };
                Step::StreamAdd(key, last + self.rng.u64(1..5), self.text())
            }
            _ => self.key_step(),
        }
    }

    fn list_step(&mut self) -> Step {
        let key = self.any('l');
        let length = match self.state.get(key).map(|entry| &entry.value) {
            Some(Value::List(list)) => list.len(),
            _ => 0,
        };
        let left = self.rng.bool();
        match self.rng.u32(0..10) {
            0..2 if length > 0 => Step::Pop { key, left },
            2 if length > 0 => Step::Move(key, if key == "l0" { "l1" } else { "l0" }),
            _ if length > 40 => Step::Trim(key, self.rng.usize(1..10)),
            _ => {
                let items = (0..self.rng.usize(1..4)).map(|_| self.text().into()).collect();
                Step::Push { key, left, items }
            }
        }
    }

    fn hash_step(&mut self) -> Step {
        let (key, field) = (self.any('h'), format!("f{}", self.rng.u32(0..6)));
        let exists = match self.state.get(key).map(|entry| &entry.value) {
            Some(Value::Hash(hash)) => hash.contains_key(&field),
            _ => false,
        };
        match self.rng.u32(0..10) {
            0 => Step::HashDelete(key, field),
            1 | 2 if exists => Step::HashExpire(key, field, FAR_MS + self.rng.u64(0..1000)),
            _ => {
                let second = (format!("f{}", self.rng.u32(0..6)), self.text());
                Step::HashSet(key, vec![(field, self.text()), second])
            }
        }
    }

    fn set_step(&mut self) -> Step {
        let key = self.any('t');
        match self.rng.u32(0..10) {
            0..3 => Step::Union(key, [self.any('t'), self.any('t')]),
            3..5 => Step::SetRemove(key, format!("m{}", self.rng.u32(0..30))),
            _ => {
                let members = (0..self.rng.usize(1..4)).map(|_| format!("m{}", self.rng.u32(0..30)));
                Step::SetAdd(key, members.collect())
            }
        }
    }

    /// A command for any type.
    fn key_step(&mut self) -> Step {
        let letter = ['s', 'l', 'h', 't', 'z', 'x'][self.rng.usize(0..6)];
        let (key, other) = (self.any(letter), self.any(letter));
        let exists = self.state.contains_key(key);
        match self.rng.u32(0..6) {
            0 if exists && key != other => Step::Rename(key, other),
            1 if exists && key != other => Step::Copy(key, other),
            2 if exists => Step::Expire(key, FAR_MS + self.rng.u64(0..1000)),
            3 => Step::Persist(key),
            _ => Step::Delete(key),
        }
    }
}

/// The entries of a state that never expire during a run.
pub fn is_durable(entry: &Entry) -> bool {
    entry.expires_ms.is_none_or(|at| at >= FAR_MS)
}
