//! The search for big keys: SCAN in small pages, with the type and the memory of each key.
//!
//! The search must not burden the server. After a page that took `t` until its replies arrived, the next page follows
//! after at least `100 t`, so the search takes at most 1 % of one thread of the server. The time includes that of the
//! network, so the real cost is lower. Memory is bounded: only the biggest keys are kept.
//!
//! A pass goes through all databases. When it ends, the next one starts, and its keys replace those of the pass before
//! the previous one, so deleted keys disappear.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use crate::connection::ServerConnection;
use crate::connection::reply::RespValue;
use crate::error::Result;
use crate::escape::printable;
use crate::model::{KeyRow, KeysFigures};

#[cfg(test)]
mod tests;

/// The number of keys per page that the server is asked for.
const PAGE_KEYS: &str = "50";
/// The largest number of keys of a page that are looked at. A server may return more than it is asked for.
const MAX_PAGE_KEYS: usize = 500;
/// The number of biggest keys that are kept.
const KEPT_KEYS: usize = 100;
/// The longest name that is kept, in characters.
const MAX_CHARACTERS: usize = 256;
/// The share of the server's time that the search may take.
const MAX_SHARE: f64 = 0.01;
/// The shortest pause between two passes, so that few keys are not looked at again and again.
const PASS_PAUSE: Duration = Duration::from_secs(5);

/// The state of the search.
#[derive(Debug)]
pub struct KeySearch {
    databases: Vec<u64>,
    /// The position in `databases`.
    position: usize,
    cursor: Vec<u8>,
    sampled: u64,
    passes: u64,
    /// The biggest keys of this pass.
    biggest: BiggestKeys,
    previous: BiggestKeys,
    started: Instant,
    spent: Duration,
    /// The earliest time of the next page.
    next_page: Instant,
}

/// Up to [`KEPT_KEYS`] keys, by database and hash of the name. Names may be long, so they are not kept.
#[derive(Debug, Clone, Default)]
pub struct BiggestKeys(HashMap<(u64, u64), KeyRow>);

/// A key that was found.
#[derive(Debug)]
pub struct FoundKey<'k> {
    /// The database.
    pub database: u64,
    /// The name, as the server sent it.
    pub name: &'k [u8],
    /// The type of the value.
    pub kind: String,
    /// The memory of the key and its value in bytes.
    pub memory_bytes: u64,
    /// The number of elements, if it is known.
    pub elements: Option<u64>,
}

impl BiggestKeys {
    /// Inserts a key if it is one of the biggest.
    pub fn insert(&mut self, key: FoundKey<'_>) {
        let row = KeyRow {
            name: printable(key.name, MAX_CHARACTERS),
            database: key.database,
            kind: key.kind,
            memory_bytes: key.memory_bytes,
            elements: key.elements,
        };
        // SCAN may return a key twice.
        self.0.insert((key.database, hash(key.name)), row);
        if self.0.len() > KEPT_KEYS {
            let smallest = self.0.iter().min_by_key(|(_, row)| row.memory_bytes);
            if let Some(id) = smallest.map(|(id, _)| *id) {
                self.0.remove(&id);
            }
        }
    }

    /// The keys of both, the biggest first.
    pub fn merged(&self, older: &BiggestKeys) -> Vec<KeyRow> {
        let newer = self.0.values();
        let older = older.0.iter().filter(|(id, _)| !self.0.contains_key(*id));
        let mut rows: Vec<KeyRow> = newer.chain(older.map(|(_, row)| row)).cloned().collect();
        rows.sort_by(|one, other| {
            let by_size = other.memory_bytes.cmp(&one.memory_bytes);
            by_size.then_with(|| one.name.cmp(&other.name))
        });
        rows.truncate(KEPT_KEYS);
        rows
    }
}

impl KeySearch {
    /// Starts a search in these databases.
    pub fn new(databases: Vec<u64>, now: Instant) -> KeySearch {
        KeySearch {
            databases,
            position: 0,
            cursor: b"0".to_vec(),
            sampled: 0,
            passes: 0,
            biggest: BiggestKeys::default(),
            previous: BiggestKeys::default(),
            started: now,
            spent: Duration::ZERO,
            next_page: now,
        }
    }

    /// The earliest time of the next page.
    pub fn next_page(&self) -> Instant {
        self.next_page
    }

    /// The figures for the panel.
    pub fn figures(&self, total: Option<u64>, now: Instant) -> KeysFigures {
        let elapsed = now.saturating_duration_since(self.started).as_secs_f64();
        KeysFigures {
            sampled: self.sampled,
            total,
            passes: self.passes,
            cost_share: if elapsed > 0.0 {
                self.spent.as_secs_f64() / elapsed
            } else {
                0.0
            },
            rows: self.biggest.merged(&self.previous),
        }
    }

    /// Reads one page. Returns the text of an error of the server, which ends the search.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn read_page(&mut self, connection: &mut ServerConnection) -> Result<std::result::Result<(), String>> {
        let start = Instant::now();
        let passes = self.passes;
        let outcome = self.read_page_keys(connection)?;
        let now = Instant::now();
        self.record_time(now, now.saturating_duration_since(start));
        if self.passes > passes {
            self.next_page = self.next_page.max(now + PASS_PAUSE);
        }
        Ok(outcome)
    }

    /// Sets the time of the next page, after one that took `spent`.
    pub fn record_time(&mut self, now: Instant, spent: Duration) {
        self.spent += spent;
        self.next_page = now + spent.mul_f64(1.0 / MAX_SHARE);
    }

    fn read_page_keys(&mut self, connection: &mut ServerConnection) -> Result<std::result::Result<(), String>> {
        let Some(database) = self.databases.get(self.position).copied() else {
            self.end_pass();
            return Ok(Ok(()));
        };
        let database_text = database.to_string();
        let scan: Vec<Vec<&[u8]>> = vec![
            vec![b"SELECT", database_text.as_bytes()],
            vec![b"SCAN", &self.cursor, b"COUNT", PAGE_KEYS.as_bytes()],
        ];
        let replies = connection.pipeline(&scan)?;
        for reply in &replies {
            if let RespValue::Error(text) = reply {
                return Ok(Err(printable(text, MAX_CHARACTERS)));
            }
        }
        let Some((cursor, keys)) = parse_page(replies.last()) else {
            return Ok(Err("the server's reply to SCAN is not a page".to_owned()));
        };
        let mut requests: Vec<Vec<&[u8]>> = Vec::new();
        for key in &keys {
            requests.push(vec![b"TYPE", key]);
            requests.push(vec![b"MEMORY", b"USAGE", key, b"SAMPLES", b"5"]);
        }
        let replies = connection.pipeline(&requests)?;
        for (key, figures) in keys.iter().zip(replies.chunks_exact(2)) {
            if let RespValue::Error(text) = &figures[1]
                && is_refusal(text)
            {
                return Ok(Err(printable(text, MAX_CHARACTERS)));
            }
            self.sampled += 1;
            // A key that was deleted meanwhile has no size.
            let size = figures[1].integer().and_then(|size| u64::try_from(size).ok());
            if let Some(memory_bytes) = size {
                self.biggest.insert(FoundKey {
                    database,
                    name: key,
                    kind: printable(figures[0].bytes().unwrap_or(b"?"), 32),
                    memory_bytes,
                    elements: None,
                });
            }
        }
        self.advance(cursor);
        Ok(Ok(()))
    }

    fn advance(&mut self, cursor: Vec<u8>) {
        if cursor == b"0" {
            self.position += 1;
            if self.position >= self.databases.len() {
                self.end_pass();
            }
        }
        self.cursor = cursor;
    }

    fn end_pass(&mut self) {
        self.position = 0;
        self.cursor = b"0".to_vec();
        self.passes += 1;
        self.sampled = 0;
        self.previous = std::mem::take(&mut self.biggest);
    }

    /// Replaces the databases, if a pass begins: a cursor belongs to its database.
    pub fn set_databases(&mut self, databases: Vec<u64>) {
        if self.position == 0 && self.cursor == b"0" {
            self.databases = databases;
        }
    }
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Returns `true` if the server will refuse this command for all keys.
fn is_refusal(text: &[u8]) -> bool {
    text.starts_with(b"NOPERM") || text.starts_with(b"ERR unknown")
}

/// Parses the cursor and the keys of a page.
fn parse_page(reply: Option<&RespValue>) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let [cursor, keys] = reply?.elements()? else {
        return None;
    };
    let keys = keys.elements()?.iter().take(MAX_PAGE_KEYS);
    let keys = keys.filter_map(|key| key.bytes().map(<[u8]>::to_vec)).collect();
    let cursor = cursor.bytes()?;
    // The cursor is sent back: only a number may be.
    (cursor.len() <= 20 && cursor.iter().all(u8::is_ascii_digit)).then(|| (cursor.to_vec(), keys))
}
