//! The libraries of functions that a client's next command loads, if their code runs before the command does.
//!
//! FUNCTION LOAD and FUNCTION RESTORE run code of clients, which takes as long as a client wants. On its own, such a
//! command leaves its worker. In a transaction, and in the stream of a primary, it must take effect at its position. So
//! its code runs first, outside of the gate and without any lease. The command then only adds the libraries:
//!
//! ```text
//!   EXEC with FUNCTION LOAD ─▶ parks ─▶ background threads run the code of each library ─▶ EXEC runs
//!   FUNCTION LOAD of the primary ─▶ put off ─▶ the thread of the stream runs the code ─▶ the command runs
//! ```
//!
//! The code of a library sees neither keys nor other libraries, so its result does not depend on when it runs.
//!
//! Each thread that calls a function runs the code of its library itself. If the transaction calls functions of these
//! libraries, and their code is too long for a worker, EXEC leaves its worker ([`crate::dispatch::exec_detached`]).
//!
//! What a primary has loaded has no limit on its replicas. The end of the role epoch stops it, so that the server can
//! follow another primary. Otherwise the command takes effect before the thread looks at its link again: if the link
//! has broken meanwhile, the next one continues behind the command.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_scripting::Library;

/// What a command loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibrarySource {
    /// The code of one library (FUNCTION LOAD).
    Code(Vec<u8>),
    /// A payload with any number of libraries (FUNCTION RESTORE).
    Payload(Vec<u8>),
}

impl LibrarySource {
    /// Returns the size of what is loaded, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            LibrarySource::Code(bytes) | LibrarySource::Payload(bytes) => bytes.len(),
        }
    }
}

/// The libraries of a source, or the error reply of the command, without its first character.
pub type LoadedLibraries = Result<Vec<Arc<Library>>, Vec<u8>>;

/// A source whose code has run.
struct PreparedSource {
    source: LibrarySource,
    loaded: LoadedLibraries,
    /// The time that its code took.
    time: Duration,
}

/// The sources of the next command, or of the commands of a transaction, in their order.
#[derive(Default)]
pub struct LibraryLoads {
    /// Those whose code has not run yet.
    wanted: VecDeque<LibrarySource>,
    prepared: VecDeque<PreparedSource>,
    /// The time that the code of all of them has taken so far.
    total_time: Duration,
    /// The part of that time which belongs to the running command.
    taken_time: Duration,
}

impl LibraryLoads {
    /// Creates the list of sources whose code is to run.
    pub fn new(wanted: VecDeque<LibrarySource>) -> Self {
        LibraryLoads {
            wanted,
            ..LibraryLoads::default()
        }
    }

    /// Returns the first source whose code has not run yet.
    pub fn next_wanted(&self) -> Option<&LibrarySource> {
        self.wanted.front()
    }

    /// Records the libraries of the first source whose code had not run, and the time that this took.
    pub fn add(&mut self, loaded: LoadedLibraries, time: Duration) {
        if let Some(source) = self.wanted.pop_front() {
            self.total_time += time;
            self.prepared.push_back(PreparedSource { source, loaded, time });
        }
    }

    /// Returns the libraries whose code has run and that can be loaded.
    pub fn libraries(&self) -> impl Iterator<Item = &Arc<Library>> {
        self.prepared
            .iter()
            .filter_map(|source| source.loaded.as_ref().ok())
            .flatten()
    }

    /// Takes the libraries of a source. Sources before it belong to commands that were refused, and are forgotten.
    pub fn take(&mut self, source: &LibrarySource) -> Option<LoadedLibraries> {
        while let Some(prepared) = self.prepared.pop_front() {
            if prepared.source == *source {
                self.taken_time = prepared.time;
                return Some(prepared.loaded);
            }
        }
        None
    }

    /// Returns the time that the code of the source has taken which was taken last, and resets it to 0.
    pub fn take_time(&mut self) -> Duration {
        std::mem::take(&mut self.taken_time)
    }

    /// Returns the time that the code of all sources has taken.
    pub fn total_time(&self) -> Duration {
        self.total_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(code: &str) -> LibrarySource {
        LibrarySource::Code(code.as_bytes().to_vec())
    }

    #[test]
    fn libraries_are_taken_by_their_source_in_the_order_of_the_commands() {
        let sources = ["a", "b", "a", "c"].map(source);
        let mut loads = LibraryLoads::new(sources.into());
        for number in 1..=4 {
            assert!(loads.next_wanted().is_some());
            loads.add(Err(vec![number]), Duration::from_millis(number.into()));
        }
        assert!(loads.next_wanted().is_none());
        assert_eq!(loads.total_time(), Duration::from_millis(10));
        let mut take = |code| loads.take(&source(code)).map(Result::unwrap_err);
        assert_eq!(take("a"), Some(vec![1]));
        // The command with the second source was refused.
        assert_eq!(take("a"), Some(vec![3]));
        assert_eq!(take("b"), None);
        assert_eq!(take("c"), None, "what comes before a source is forgotten");
        assert_eq!(loads.take_time(), Duration::from_millis(3));
        assert_eq!(loads.take_time(), Duration::ZERO);
    }
}
