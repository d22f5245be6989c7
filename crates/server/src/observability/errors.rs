//! Counts error replies by code, for the section `errorstats` of INFO.

use std::collections::BTreeMap;

use weft_os::sync::Mutex;

/// The maximum number of codes. Beyond it, new codes from scripts are counted under one name.
const CODES_MAX: usize = 128;

/// The number of error replies, by error code.
#[derive(Default)]
pub struct ErrorCounts {
    counts: Mutex<BTreeMap<Vec<u8>, u64>>,
}

impl ErrorCounts {
    /// Counts one error reply.
    pub fn count(&self, code: &[u8]) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(code) {
            *count += 1;
        } else {
            counts.insert(code.to_vec(), 1);
        }
    }

    /// Counts one error reply whose code was made up by a script.
    pub fn count_from_script(&self, code: &[u8]) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(code) {
            *count += 1;
        } else if counts.len() < CODES_MAX {
            counts.insert(code.to_vec(), 1);
        } else {
            *counts.entry(b"ERRORSTATS_OVERFLOW".to_vec()).or_insert(0) += 1;
        }
    }

    /// Returns all codes and their counts, sorted by code.
    pub fn all(&self) -> Vec<(Vec<u8>, u64)> {
        let counts = self.counts.lock();
        counts.iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    /// Resets all counts.
    pub fn reset(&self) {
        self.counts.lock().clear();
    }
}

#[cfg(test)]
mod tests;
