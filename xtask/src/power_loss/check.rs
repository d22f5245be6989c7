//! Checks what a server has loaded from an image against the history of the run.
//!
//! 1. The keys of each writer are as after some number of its operations, between those that must have survived and
//!    those that were sent. So operations, EXEC and scripts included, are whole or absent.
//! 2. What survives is a prefix of the one order of all writes: if an operation has survived, then so has every
//!    operation of any writer that was acknowledged before it was sent.
//! 3. The journal of each database has exactly the entries of the operations that have survived, and the journals of
//!    any two images of a run agree as far as both reach.

use std::sync::Mutex;

use super::history::{Bounds, History};
use super::model::{State, difference, drop_expired};
use super::operations::DATABASES;
use super::readback::Contents;

/// The words of a story about lost writes.
pub const ACKNOWLEDGED_LOST: &str = "acknowledged writes are lost";

/// The checker of a run.
pub struct Checker<'h> {
    history: &'h History,
    run: u64,
    /// The journals at the start of the run.
    first_journals: Vec<Vec<String>>,
    /// The longest journal of each database seen in an image.
    longest_journals: Mutex<Vec<Vec<String>>>,
    now_ms: u64,
}

/// The numbers of operations after which the keys of a writer are as they were found.
#[derive(Clone, Copy, Debug)]
struct Survivors {
    least: usize,
    most: usize,
}

impl<'h> Checker<'h> {
    /// Creates the checker of a run that began with these journals. All short times of expiry are before `now_ms`.
    pub fn new(history: &'h History, run: u64, first_journals: Vec<Vec<String>>, now_ms: u64) -> Self {
        Checker {
            history,
            run,
            longest_journals: Mutex::new(vec![Vec::new(); DATABASES]),
            first_journals,
            now_ms,
        }
    }

    /// Checks the contents of an image.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check(&self, contents: &Contents, bounds: &[Bounds]) -> Result<(), String> {
        let mut survivors = Vec::new();
        for (writer, (state, bounds)) in contents.states.iter().zip(bounds).enumerate() {
            survivors.push(self.find_survivors(writer, state, *bounds)?);
        }
        self.check_order(&survivors)?;
        self.check_journals(&contents.journals, &survivors)
    }

    fn find_survivors(&self, writer: usize, found: &State, bounds: Bounds) -> Result<Survivors, String> {
        let mut found = found.clone();
        drop_expired(&mut found, self.now_ms);
        if let Some(survivors) = self.matching(writer, &found, bounds.least, bounds.most) {
            return Ok(survivors);
        }
        let Bounds { least, most } = bounds;
        if let Some(earlier) = self.matching(writer, &found, 0, least) {
            return Err(format!(
                "writer {writer}: {ACKNOWLEDGED_LOST}: {least} operations must be there, and {} are, of {most}",
                earlier.most
            ));
        }
        let mut nearest = self.history.operations(writer, least);
        drop_expired(&mut nearest.state, self.now_ms);
        let difference = difference(&nearest.state, &found).unwrap_or_default();
        Err(format!(
            "writer {writer}: the keys are not as after any number of operations from {least} to {most}; after {least}: \
             {difference}"
        ))
    }

    fn matching(&self, writer: usize, found: &State, least: usize, most: usize) -> Option<Survivors> {
        let mut operations = self.history.operations(writer, least);
        let mut survivors: Option<Survivors> = None;
        loop {
            if self.is_equal(&operations.state, found) {
                let least = survivors.map_or(operations.count, |survivors| survivors.least);
                survivors = Some(Survivors {
                    least,
                    most: operations.count,
                });
            }
            if operations.count >= most {
                return survivors;
            }
            operations.advance();
        }
    }

    fn is_equal(&self, expected: &State, found: &State) -> bool {
        let lasting = |entry: &&super::model::Entry| entry.expires_ms.is_none_or(|at| at > self.now_ms);
        let count = expected.values().filter(lasting).count();
        count == found.len() && found.iter().all(|(key, entry)| expected.get(key) == Some(entry))
    }

    fn check_order(&self, survivors: &[Survivors]) -> Result<(), String> {
        for (writer, last) in survivors.iter().enumerate().filter(|(_, last)| last.least > 0) {
            let sent_at = self.history.sent_at(writer, last.least);
            for (other, survived) in survivors.iter().enumerate() {
                let before = self.history.acknowledged_before(other, sent_at);
                if survived.most < before {
                    return Err(format!(
                        "not a prefix: operation {} of writer {writer} has survived, but not operation {before} of \
                         writer {other}, which was acknowledged before the former was sent",
                        last.least
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_journals(&self, journals: &[Vec<String>], survivors: &[Survivors]) -> Result<(), String> {
        let mut longest = self.longest_journals.lock().map_err(|error| error.to_string())?;
        for (database, journal) in journals.iter().enumerate() {
            let known = &mut longest[database];
            let common = journal.len().min(known.len());
            if journal[..common] != known[..common] {
                return Err(format!(
                    "database {database}: two images have journals of different order"
                ));
            }
            let first = &self.first_journals[database];
            let Some(added) = journal.strip_prefix(first.as_slice()) else {
                return Err(format!(
                    "database {database}: the journal has lost entries of before the run"
                ));
            };
            for writer in (database..survivors.len()).step_by(DATABASES) {
                self.check_entries(writer, added, survivors[writer])?;
            }
            if journal.len() > known.len() {
                known.clone_from(journal);
            }
        }
        Ok(())
    }

    /// Checks the entries of a writer in a journal.
    fn check_entries(&self, writer: usize, journal: &[String], survivors: Survivors) -> Result<(), String> {
        let own = format!("{}:{writer}:", self.run);
        let mut entries = journal.iter().filter(|entry| entry.starts_with(&own));
        let mut operations = self.history.operations(writer, 0);
        while operations.count < survivors.most {
            let operation = operations.advance();
            let Some(text) = operation.journal_text() else {
                continue;
            };
            match entries.next() {
                Some(entry) if entry == text => {}
                // An operation without another effect may be missing.
                None if operations.count > survivors.least => {}
                found => {
                    return Err(format!(
                        "writer {writer}: the journal has {found:?} in place of {text:?}"
                    ));
                }
            }
        }
        match entries.next() {
            None => Ok(()),
            Some(entry) => Err(format!(
                "writer {writer}: the journal has the entry {entry} of a lost operation"
            )),
        }
    }
}
