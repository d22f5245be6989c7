//! Error replies by code, for INFO's `errorstats`.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// With so many codes, those that scripts invent are counted under one name.
const CODES: usize = 128;

/// Counts by error code.
#[derive(Default)]
pub struct ErrorCounts {
    counts: Mutex<BTreeMap<Vec<u8>, u64>>,
}

impl ErrorCounts {
    /// Counts one error reply.
    pub fn count(&self, code: &[u8]) {
        let mut counts = crate::observability::lock(&self.counts);
        if let Some(count) = counts.get_mut(code) {
            *count += 1;
        } else {
            counts.insert(code.to_vec(), 1);
        }
    }

    /// Counts one error reply whose code a script has made up.
    pub fn count_invented(&self, code: &[u8]) {
        let mut counts = crate::observability::lock(&self.counts);
        if let Some(count) = counts.get_mut(code) {
            *count += 1;
        } else if counts.len() < CODES {
            counts.insert(code.to_vec(), 1);
        } else {
            *counts.entry(b"ERRORSTATS_OVERFLOW".to_vec()).or_insert(0) += 1;
        }
    }

    /// All codes and their counts, by code.
    pub fn all(&self) -> Vec<(Vec<u8>, u64)> {
        let counts = crate::observability::lock(&self.counts);
        counts.iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    /// Forgets everything.
    pub fn reset(&self) {
        crate::observability::lock(&self.counts).clear();
    }
}

#[cfg(test)]
mod tests;
