//! Predictions about the next run of a script, made from its earlier runs.

use std::time::Duration;

use weft_os::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A script that ran longer than this runs outside the worker next time.
const LONG_RUN: Duration = Duration::from_millis(1);
/// A script that ran outside the worker and took less than this runs on the worker next time.
const SHORT_RUN: Duration = Duration::from_micros(200);

/// The number of runs for which a script begins with the token after one that needed it.
const RUNS_WITH_TOKEN: u32 = 1000;

/// The expected behaviour of the next run of a script.
#[derive(Debug)]
pub struct ScriptProfile {
    is_long: AtomicBool,
    has_written: AtomicBool,
    queries_workers: AtomicBool,
    /// The number of coming runs that do not begin without the token.
    runs_with_token: AtomicU32,
    may_run_forever: bool,
    /// If it calls commands of modules: the generation of the modules for which this was found out, times two, plus 1
    /// if it does.
    module_calls: AtomicU64,
}

impl ScriptProfile {
    /// Predicts the first run of a script from its code. Code without loops and functions is always expected to be
    /// short.
    pub fn predict(code: &[u8]) -> Self {
        let may_run_forever = may_run_forever(code);
        ScriptProfile {
            may_run_forever,
            is_long: AtomicBool::new(may_run_forever),
            has_written: AtomicBool::new(false),
            runs_with_token: AtomicU32::new(0),
            queries_workers: AtomicBool::new(may_query_workers(code)),
            module_calls: AtomicU64::new(0),
        }
    }

    /// Returns `true` if the script is expected to be long and is to run on a script thread, where it delays no worker.
    pub fn is_long(&self) -> bool {
        self.is_long.load(Ordering::Relaxed)
    }

    /// Returns `true` unless every run of the script surely ends by itself, whatever its arguments are.
    pub fn may_run_forever(&self) -> bool {
        self.may_run_forever
    }

    /// Returns `true` if the script calls commands that query all workers. A worker cannot wait for their replies.
    pub fn queries_workers(&self) -> bool {
        self.queries_workers.load(Ordering::Relaxed)
    }

    /// Records that the script has called a command that queries all workers.
    pub fn note_query(&self) {
        self.queries_workers.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the script calls commands of modules, of which there have been `generation` sets. `predict`
    /// returns `true` if its code looks as if it did. It is called once per set.
    pub fn calls_modules(&self, generation: u64, predict: impl FnOnce() -> bool) -> bool {
        let known = self.module_calls.load(Ordering::Relaxed);
        if known / 2 == generation {
            return known % 2 == 1;
        }
        let calls = predict();
        self.module_calls
            .store(generation * 2 + u64::from(calls), Ordering::Relaxed);
        calls
    }

    /// Records that the script has called a command of a module.
    pub fn note_module_call(&self, generation: u64) {
        self.module_calls.store(generation * 2 + 1, Ordering::Relaxed);
    }

    /// Returns `true` if the script has written in an earlier run.
    pub fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Records that the script writes.
    pub fn note_write(&self) {
        if !self.has_written() {
            self.has_written.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` unless one of the last runs has made changes that cannot be undone.
    pub fn is_undoable(&self) -> bool {
        self.runs_with_token.load(Ordering::Relaxed) == 0
    }

    /// Records that a run makes changes that cannot be undone: [`RUNS_WITH_TOKEN`] runs begin with the token.
    pub fn note_not_undoable(&self) {
        self.runs_with_token.store(RUNS_WITH_TOKEN, Ordering::Relaxed);
    }

    /// Records that a run has written with the token from its start.
    pub fn note_run_with_token(&self) {
        let left = self.runs_with_token.load(Ordering::Relaxed);
        if left > 0 {
            self.runs_with_token.store(left - 1, Ordering::Relaxed);
        }
    }

    /// Records that a run was too long for a worker.
    pub fn note_long(&self) {
        self.is_long.store(true, Ordering::Relaxed);
    }

    /// Records the duration of a run that has ended.
    pub fn note_duration(&self, duration: Duration) {
        if duration > LONG_RUN {
            self.note_long();
        } else if duration < SHORT_RUN && self.is_long() {
            self.is_long.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns `true` if the code may run for ever. Keywords inside strings and comments count too; the cost is one run on
/// a script thread. A function may call itself, unless it is only registered, without a name in the code.
pub fn may_run_forever(code: &[u8]) -> bool {
    // `load` and `loadstring` compile further code, and can also be found by a composed name.
    let words: [&[u8]; 6] = [b"while", b"for", b"repeat", b"load", b"_G", b"fenv"];
    let contains = |word: &&[u8]| code.windows(word.len()).any(|window| window == *word);
    words.iter().any(contains) || has_callable_function(code)
}

/// Returns `true` if the code has a function that code could call, because it is not just an argument of
/// `register_function`.
fn has_callable_function(code: &[u8]) -> bool {
    const KEYWORD: &[u8] = b"function";
    let is_word_byte = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    (0..code.len()).any(|at| {
        let (before, rest) = code.split_at(at);
        rest.starts_with(KEYWORD)
            && !is_word_byte(before.last())
            && !is_word_byte(rest.get(KEYWORD.len()))
            && !ends_with_registration(before)
    })
}

/// Returns `true` if the code ends with `register_function('name',` on one line, and no comment can be in between.
fn ends_with_registration(code: &[u8]) -> bool {
    let spaces = |code: &'_ [u8]| {
        code.iter()
            .rev()
            .take_while(|byte| matches!(byte, b' ' | b'\t'))
            .count()
    };
    let without = |code: &[u8], end: &[u8]| {
        let trimmed = code.len() - spaces(code);
        code[..trimmed].ends_with(end).then(|| trimmed - end.len())
    };
    let start_of_name = |code: &[u8]| {
        let quote = *code.last().filter(|byte| matches!(byte, b'\'' | b'"'))?;
        let name = code[..code.len() - 1]
            .iter()
            .rev()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_');
        let start = code.len() - 1 - name.count();
        (start > 0 && code[start - 1] == quote).then(|| start - 1)
    };
    let found = || {
        let comma = without(code, b",")?;
        let name_end = comma - spaces(&code[..comma]);
        let name = start_of_name(&code[..name_end])?;
        let parenthesis = without(&code[..name], b"(")?;
        without(&code[..parenthesis], b"register_function")
    };
    found().is_some()
}

/// Returns `true` if the code calls, by a literal name, a command that queries all workers. A name that the script
/// builds at run time is discovered when the script runs.
fn may_query_workers(code: &[u8]) -> bool {
    let names: [&[u8]; 2] = [b"info", b"client"];
    let is_call = |at: usize| {
        let rest = code.get(at..).unwrap_or_default().trim_ascii_start();
        let rest = rest.strip_prefix(b"(").unwrap_or(rest).trim_ascii_start();
        let [b'\'' | b'"', word @ ..] = rest else {
            return false;
        };
        let ends = |name: &[u8]| matches!(word.get(name.len()), Some(b'\'' | b'"'));
        let is_named = |name: &&[u8]| {
            word.get(..name.len())
                .is_some_and(|word| word.eq_ignore_ascii_case(name))
        };
        names.iter().any(|name| is_named(name) && ends(name))
    };
    let call = b"call";
    (0..code.len()).any(|at| code[at..].starts_with(call) && is_call(at + call.len()))
}

#[cfg(test)]
mod tests;
