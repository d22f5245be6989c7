//! Files: RDB files, append-only files and their manifests.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use super::links::{create_idle_server, set_up_process};
use crate::commands::server::digest;
use crate::dispatch::replay::replay_on_threads;
use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::flush::take_databases;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::walk::{Cursor, WalkAccess, walk};
use crate::keyspace::{Exclusive, Keyspace, Seat};
use crate::persistence::aof_files::manifest::Manifest;
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::{LoadDestination, LoadThreads, RdbInput, RdbLoadError, RdbLoader, decode_in_place};
use crate::state::{ReplayOutcome, Server};
use weft_base::{DbIndex, ThreadIndex};
use weft_command_table::registry::Lookup;
use weft_command_table::spec::CommandFlags;
use weft_config::Config;

/// The number of databases.
const DATABASES: usize = 4;

/// An input that arrives in pieces of at most this size.
struct InPieces<'a>(&'a [u8], usize);

impl Read for InPieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.len().min(self.1).min(buffer.len());
        let (piece, rest) = self.0.split_at(count);
        buffer[..count].copy_from_slice(piece);
        self.0 = rest;
        Ok(count)
    }
}

/// Lists all keys with their databases, digests and expiry times, in order. Their numbers must be those that were
/// counted.
fn list_keys(keyspace: &Keyspace, all: &Exclusive<'_>) -> Vec<ListedKey> {
    let mut keys = Vec::new();
    for db in DbIndex::all(keyspace.counts.databases()) {
        let before = keys.len();
        walk(
            &WalkAccess::Exclusive(all),
            db,
            Cursor::START,
            usize::MAX,
            &mut |_, entry| {
                let digest = digest::digest_value(entry, 0, None).to_hex();
                keys.push((db, entry.key().to_vec(), digest, entry.expire_at_ms()));
            },
        );
        let counted = keyspace.counts.keys(db);
        assert_eq!(counted, (keys.len() - before) as u64, "keys of database {db}");
    }
    keys.sort();
    keys
}

fn is_one_line(text: &str) -> bool {
    !text.contains(['\r', '\n'])
}

/// The keys that were loaded, and the result as text.
type LoadedKeys = (Vec<(DbIndex, Vec<u8>, String, Option<u64>)>, String);

fn load_file(input: impl Read, config: &Config, threads: LoadThreads) -> LoadedKeys {
    let keyspace = Keyspace::with_slots(DATABASES, 1, KeyHasher::from_os(false));
    let mut seat: Seat = keyspace
        .slots
        .join()
        .unwrap_or_else(|| unreachable!("no thread has joined"));
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    let loaded = match RdbInput::open(input, config) {
        Err(fault) => Err((0, fault)),
        Ok(mut opened) => opened.load(&mut RdbLoader {
            decode_modules: &decode_in_place,
            destination: LoadDestination::Keyspace(&mut all),
            hasher: &keyspace.hasher,
            counts: &keyspace.counts,
            before_images: &keyspace.before_images,
            thread_index,
            config,
            clock: AccessClock::default(),
            now_ms: 0,
            should_replace: false,
            threads,
            on_dropped_key: None,
            progress: None,
        }),
    };
    let keys = list_keys(&keyspace, &all);
    let outcome = match loaded {
        Ok(loaded) => {
            assert_eq!(loaded.keys, keys.len() as u64, "keys that were loaded");
            format!("{loaded:?}")
        }
        Err((offset, fault)) => {
            let path = PathBuf::from("dump.rdb");
            let text = RdbLoadError { path, offset, fault }.to_string();
            assert!(is_one_line(&text), "{text:?}");
            text
        }
    };
    (keys, outcome)
}

/// Loads an RDB file without looking at its checksum. The file in small pieces must give the same keys and the same
/// result, and each reported error must be one line.
///
/// # Panics
/// If one of this is not so.
pub fn check_rdb_file(bytes: &[u8]) {
    set_up_process();
    let Some((shape, file)) = bytes.split_first() else {
        return;
    };
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let config = CONFIG.get_or_init(|| super::links::config_of("rdbchecksum no\nrdb-version-check relaxed\n"));
    let whole = load_file(file, config, LoadThreads::READER_ONLY);
    let pieces = || InPieces(file, usize::from(*shape).max(1));
    let threads = |count| LoadThreads {
        count,
        batch_bytes: 1 + usize::from(*shape),
    };
    assert_eq!(load_file(pieces(), config, threads(1)), whole);
    let (keys, outcome) = load_file(pieces(), config, threads(3));
    assert_eq!(outcome, whole.1);
    // Behind a fault, the other threads may have loaded further keys.
    if outcome.starts_with("LoadedFile") {
        assert_eq!(keys, whole.0);
    }
}

/// Parses a manifest. What is written of an accepted one must be parsed as the same manifest.
///
/// # Panics
/// If it is not.
pub fn check_manifest(text: &[u8]) {
    match Manifest::parse(text) {
        Ok(manifest) if manifest.files().next().is_some() || !manifest.history.is_empty() => {
            let written = manifest.to_bytes();
            let again = Manifest::parse(&written).map(|again| again.to_bytes());
            assert_eq!(again.as_ref(), Ok(&written), "{:?}", String::from_utf8_lossy(&written));
        }
        Ok(_) => {}
        Err(error) => assert!(is_one_line(error.reason), "{error:?}"),
    }
}

/// The arguments of a command, and the offset of its end.
type ReadCommand = (Vec<Vec<u8>>, u64);

/// Reads all commands. Returns them with the offsets of their ends, and the reason why there are no more.
fn read_commands(input: impl Read) -> (Vec<ReadCommand>, &'static str) {
    let (mut reader, mut commands) = (AofReader::new(input, 0), Vec::new());
    let end = loop {
        match reader.read() {
            Ok(true) => commands.push((reader.args().iter().map(<[u8]>::to_vec).collect(), reader.offset())),
            Ok(false) => break "end",
            Err(AofReadError::Truncated) => break "truncated",
            Err(AofReadError::Format) => break "format",
            Err(AofReadError::Read(_)) => break "read",
        }
    };
    (commands, end)
}

/// Returns `true` if a command may run in a fuzz target: it changes data, or frames a transaction. Scripts may run
/// forever, and MIGRATE connects to others.
fn may_replay(words: &[Vec<u8>]) -> bool {
    let request: Vec<u8> = words.iter().fold(Vec::new(), |mut request, word| {
        request.extend_from_slice(word);
        request
    });
    let mut at = 0;
    let ranges: Vec<weft_resp::ArgRange> = words
        .iter()
        .map(|word| {
            let range = weft_resp::ArgRange {
                start: at,
                len: word.len() as u32,
            };
            at += word.len() as u32;
            range
        })
        .collect();
    let args = weft_resp::Args::new(&request, &ranges);
    match crate::commands::registry().lookup(&args) {
        Lookup::Found(command) => {
            let name = command.full_name;
            let frames = ["multi", "exec", "select", "discard"].contains(&name);
            let is_excluded = ["migrate", "function", "restore-asking"]
                .iter()
                .any(|word| name.starts_with(word));
            frames || (command.spec.flags.contains(CommandFlags::WRITE) && !is_excluded)
        }
        _ => true,
    }
}

/// The database of a key, its name, its value as text, and the time at which it expires.
type ListedKey = (DbIndex, Vec<u8>, String, Option<u64>);

/// A server whose data a replay changes.
struct ReplayFixture {
    server: Arc<Server>,
    seat: Seat,
}

impl ReplayFixture {
    /// Replays commands into an empty keyspace, on this many threads. Returns the outcome, and the keys afterwards.
    fn replay(&mut self, input: impl Read, threads: usize) -> (String, Vec<ListedKey>) {
        let thread_index = ThreadIndex::new(self.seat.index());
        let mut all = self.seat.exclusive();
        let databases = DbIndex::all(self.server.keyspace.counts.databases());
        drop(take_databases(
            &mut WholeKeyspace::Exclusive(&mut all),
            databases,
            &self.server.keyspace,
            thread_index,
        ));
        let mut commands = AofReader::new(input, 0);
        let outcome = match replay_on_threads(&self.server, &mut all, thread_index, &mut commands, threads) {
            ReplayOutcome::Complete => "complete".to_owned(),
            ReplayOutcome::UnfinishedTransaction(at) => format!("unfinished from {at}"),
            ReplayOutcome::InvalidCommand(error) => format!("invalid: {error}"),
            ReplayOutcome::Failed(error, at) => format!("{error:?} at {at}"),
        };
        (outcome, list_keys(&self.server.keyspace, &all))
    }
}

/// Reads a file of commands, whole and in pieces, and replays it: the base of RDB data first, if it has one. Reading
/// must give the same commands, and they must stay within the file. Replaying must give the same outcome again, and as
/// many keys as are counted; what a transaction without an end queued must not have run.
///
/// # Panics
/// If one of this is not so.
pub fn check_aof(bytes: &[u8]) {
    set_up_process();
    let Some((shape, file)) = bytes.split_first() else {
        return;
    };
    if file.starts_with(b"REDIS") || file.starts_with(b"VALKE") {
        return check_rdb_file(bytes);
    }
    let whole = read_commands(file);
    assert_eq!(read_commands(InPieces(file, usize::from(*shape).max(1))), whole);
    let mut before = 0;
    for (_, end) in &whole.0 {
        assert!(*end > before && *end <= file.len() as u64, "{end} of {}", file.len());
        before = *end;
    }
    if !whole.0.iter().all(|(words, _)| may_replay(words)) {
        return;
    }
    static FIXTURE: OnceLock<Mutex<ReplayFixture>> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| {
        let server = create_idle_server("");
        let seat = server
            .keyspace
            .slots
            .join()
            .unwrap_or_else(|| unreachable!("no thread has joined"));
        Mutex::new(ReplayFixture { server, seat })
    });
    let mut fixture = fixture.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (outcome, keys) = fixture.replay(file, 1);
    assert!(is_one_line(&outcome), "{outcome:?}");
    // A second run may meet other times and random members, but not another end.
    let (again, _) = fixture.replay(InPieces(file, usize::from(*shape).max(1)), 2);
    assert_eq!(again, outcome);
    if let Some(valid) = outcome.strip_prefix("unfinished from ") {
        let valid: usize = valid.parse().unwrap_or_else(|_| unreachable!("it was a number"));
        let (outcome, cut) = fixture.replay(&file[..valid], 1);
        assert_eq!(outcome, "complete");
        assert_eq!(cut.len(), keys.len(), "keys of an unfinished transaction");
    }
}
