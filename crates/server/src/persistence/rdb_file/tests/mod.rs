//! Tests with an RDB file that Valkey 9.1.2 wrote, our own file of the same data, and damaged files.

mod threads;

use std::path::Path;

use super::error::RdbFault;
use super::save::write_file;
use super::source::RdbSource;
use super::*;
use crate::commands::server::digest;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::walk::{Cursor, WalkAccess, walk};
use crate::keyspace::{Keyspace, Seat};
use weft_base::files::FixedPath;
use weft_base::{DbIndex, ThreadIndex};
use weft_config::{Config, SetPermissions};
use weft_rdb::dump_payload::CRC;

/// A file with every type in every encoding, two databases, a function library, and attributes about the use of keys.
const VALKEY: &[u8] = include_bytes!("valkey.rdb");
/// The keys in the file as Valkey reports them: database, name, digest, expiry.
const KEYS: &str = include_str!("valkey.keys");

const ALL_PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: true,
    is_loading: false,
};

struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    config: Config,
    threads: LoadThreads,
}

impl Fixture {
    fn new() -> Fixture {
        let keyspace = Keyspace::new(16, 2);
        let seat = keyspace.slots.join().expect("has a seat");
        Fixture {
            keyspace,
            seat,
            config: Config::defaults(),
            threads: LoadThreads::READER_ONLY,
        }
    }

    /// Runs `run` on a loader.
    fn with_loader<R>(&mut self, replace: bool, run: impl FnOnce(&mut RdbLoader<'_, '_>) -> R) -> R {
        let thread_index = ThreadIndex::new(self.seat.index());
        let mut all = self.seat.exclusive();
        let destination = LoadDestination::Keyspace(&mut all);
        let mut loader = loader_into(destination, &self.keyspace, &self.config, thread_index);
        (loader.should_replace, loader.threads) = (replace, self.threads);
        run(&mut loader)
    }

    fn read_with_offset(&mut self, bytes: &[u8], replace: bool) -> Result<LoadedFile, (u64, RdbFault)> {
        self.with_loader(replace, |loader| loader.read(&mut RdbSource::new(bytes, true)))
    }

    fn read(&mut self, bytes: &[u8], replace: bool) -> Result<LoadedFile, RdbFault> {
        self.read_with_offset(bytes, replace).map_err(|(_, fault)| fault)
    }

    fn save(&mut self, path: &Path, functions: &[Vec<u8>]) {
        let all = self.seat.exclusive();
        let contents = SaveContents {
            slots: WalkAccess::Exclusive(&all),
            counts: &self.keyspace.counts,
            head: RdbHeader {
                functions,
                now_s: 1,
                used_memory_bytes: 1,
                ..RdbHeader::default()
            },
            config: &self.config,
            clock: AccessClock::default(),
            key_delay: KeyDelay::None,
            modules: &ModuleRecords::default(),
        };
        let path = FixedPath::new(path);
        let written = write_file(path.with_extension("temporary"), RdbFilePurpose::Dump, &contents);
        written.and_then(|file| file.publish(&path)).expect("is written");
    }

    /// The keys in the format of [`KEYS`]. Only published keys are listed.
    fn keys(&mut self) -> Vec<String> {
        let mut keys = Vec::new();
        let all = self.seat.exclusive();
        for db in DbIndex::all(16) {
            let counted = self.keyspace.counts.keys(db);
            let before = keys.len();
            walk(
                &WalkAccess::Exclusive(&all),
                db,
                Cursor::START,
                usize::MAX,
                &mut |_, entry| {
                    keys.push(format!(
                        "{db} {} {} {}",
                        String::from_utf8_lossy(entry.key()),
                        digest::digest_value(entry, 0, None).to_hex(),
                        entry.expire_at_ms().map_or(-1, |at_ms| at_ms as i64),
                    ));
                },
            );
            assert_eq!(counted, (keys.len() - before) as u64, "keys of database {db}");
        }
        keys.sort();
        keys
    }
}

/// Returns a loader without callbacks.
fn loader_into<'l, 'p>(
    destination: LoadDestination<'l, 'p>,
    keyspace: &'l Keyspace,
    config: &'l Config,
    thread_index: ThreadIndex,
) -> RdbLoader<'l, 'p> {
    RdbLoader {
        destination,
        hasher: &keyspace.hasher,
        counts: &keyspace.counts,
        before_images: &keyspace.before_images,
        thread_index,
        config,
        clock: AccessClock::default(),
        now_ms: 1_000_000,
        should_replace: false,
        threads: LoadThreads::READER_ONLY,
        on_dropped_key: None,
        decode_modules: &decode_in_place,
        progress: None,
    }
}

/// The file without its auxiliary fields, which would be logged at every load.
fn without_aux_fields() -> Vec<u8> {
    const LAST_NOTE: &[u8] = b"aof-base\xc0\x00";
    let at = VALKEY.windows(LAST_NOTE.len()).position(|bytes| bytes == LAST_NOTE);
    let from = at.expect("has notes") + LAST_NOTE.len();
    let mut file = [&VALKEY[..MAGIC_BYTES], &VALKEY[from..VALKEY.len() - 8]].concat();
    let checksum = CRC.checksum(&file);
    file.extend(checksum.to_le_bytes());
    file
}

fn expected() -> Vec<String> {
    let mut keys: Vec<String> = KEYS.lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

/// A path in the temporary directory. The file is removed on drop.
struct TemporaryFile(std::path::PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> TemporaryFile {
        TemporaryFile(std::env::temp_dir().join(format!("weft-rdb-{}-{name}", std::process::id())))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The file may not have been created.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_of_valkey_is_loaded_and_saved_and_loaded_again() {
    let (theirs, ours) = (TemporaryFile::new("theirs"), TemporaryFile::new("ours"));
    std::fs::write(&theirs.0, VALKEY).expect("writes");
    let mut place = Fixture::new();
    let loaded = place
        .with_loader(false, |loader| load(&FixedPath::new(&theirs.0), loader))
        .expect("is loaded");
    assert_eq!((loaded.keys, loaded.functions.len()), (KEYS.lines().count() as u64, 1));
    assert_eq!(place.keys(), expected());
    assert_eq!(
        place.keyspace.counts.volatile_values(DbIndex::FIRST),
        1,
        "a hash with a field that expires"
    );

    place.save(&ours.0, &loaded.functions);
    let mut second = Fixture::new();
    let again = second
        .with_loader(false, |loader| load(&FixedPath::new(&ours.0), loader))
        .expect("is loaded");
    // The files have different lengths.
    assert_eq!(
        LoadedFile {
            end_offset: loaded.end_offset,
            ..again
        },
        loaded
    );
    assert_eq!(second.keys(), expected());
}

#[test]
fn a_truncated_file_is_refused() {
    let (mut place, whole) = (Fixture::new(), without_aux_fields());
    place.read(&whole, true).expect("is loaded");
    for length in 0..whole.len() {
        let error = place.read(&whole[..length], true).expect_err("it is cut");
        assert!(matches!(error, RdbFault::Truncated), "after {length} bytes: {error:?}");
    }
}

#[test]
fn damaged_files_are_refused_by_their_checksum_at_the_latest() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut place, whole) = (Fixture::new(), without_aux_fields());
    for _ in 0..5000 {
        let mut damaged = whole.clone();
        // The checksum itself is not damaged: a checksum of eight zero bytes would not be verified.
        let at = random.usize(..damaged.len() - 8);
        damaged[at] ^= 1 << random.u8(..8);
        assert!(place.read(&damaged, true).is_err(), "bit flip in byte {at}");
    }
}

#[test]
fn an_existing_key_is_replaced_only_if_requested() {
    let mut place = Fixture::new();
    place.read(VALKEY, false).expect("is loaded");
    assert!(matches!(
        place.read(VALKEY, false),
        Err(RdbFault::Duplicate(DbIndex::FIRST))
    ));
    place.read(VALKEY, true).expect("is loaded");
    assert_eq!(
        place.keyspace.counts.keys(DbIndex::FIRST) + place.keyspace.counts.keys(DbIndex::new(5)),
        KEYS.lines().count() as u64
    );
    assert_eq!(place.keyspace.counts.volatile_values(DbIndex::FIRST), 1);
}

/// Returns a file of this version with these records, without a checksum.
fn file(magic: &[u8], records: &[u8]) -> Vec<u8> {
    [magic, records, &[opcode::END], &[0; 8]].concat()
}

#[test]
fn versions_are_those_that_valkey_reads() {
    let cases: &[(&[u8], bool, bool)] = &[
        (b"REDIS0001", true, true),
        (b"REDIS0011", true, true),
        (b"REDIS0000", false, false),
        (b"REDIS0012", false, true),
        (b"REDIS0080", false, false),
        (b"VALKEY080", true, true),
        (b"VALKEY081", false, true),
        (b"VALKEY011", false, false),
        (b"SOMETHING", false, false),
    ];
    let mut place = Fixture::new();
    for (magic, strict, relaxed) in cases {
        for (check, fine) in [("strict", strict), ("relaxed", relaxed)] {
            place
                .config
                .set(
                    &[(b"rdb-version-check", check.as_bytes())],
                    ALL_PERMISSIONS,
                    &mut |_| Ok(()),
                )
                .expect("sets");
            let read = place.read(&file(magic, b""), false);
            assert_eq!(read.is_ok(), *fine, "{magic:?} {check}");
        }
    }
}

#[test]
fn expired_and_empty_keys_are_skipped() {
    let records = b"\xfd\x01\0\0\0\x00\x01a\x01b\x01\x01c\x00\x12\x01d\x01\x02\x07\x07\0\0\0\0\0\xff\x00\x01e\x01f\
        \x16\x01h\x01\x01f\x01v\x01\0\0\0\0\0\0\0";
    let loaded = Fixture::new()
        .read(&file(b"VALKEY080", records), false)
        .expect("is loaded");
    let wanted = LoadedFile {
        position: Default::default(),
        keys: 1,
        expired: 1,
        empty_keys: 2,
        expired_hashes: 1,
        imports: Vec::new(),
        functions: Vec::new(),
        end_offset: loaded.end_offset,
    };
    assert_eq!(loaded, wanted);
}

#[test]
fn an_unfinished_import_is_rewritten_as_its_beginning() {
    let mut records = b"\xf3\x28".to_vec();
    records.extend([b'n'; 40]);
    // Two ranges: slots 1 to 2, and slot 3.
    records.extend(b"\x02\x01\x02\x03\x03\xfe\x00\x00\x01a\x01b");
    let mut commands = Vec::new();
    RdbToCommands::default()
        .convert(&file(b"VALKEY080", &records), &mut commands, &Config::defaults())
        .expect("is converted");
    let name = "n".repeat(40);
    let establish = format!(
        "*10\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$9\r\nESTABLISH\r\n$4\r\nNAME\r\n$40\r\n{name}\r\n\
         $10\r\nSLOTSRANGE\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n3\r\n"
    );
    let commands = String::from_utf8_lossy(&commands).into_owned();
    assert!(commands.starts_with(&establish), "{commands}");
    assert!(commands[establish.len()..].contains("SET"), "the keys follow");
}

#[test]
fn unsupported_data_is_refused() {
    let cases: &[(&[u8], &str)] = &[
        (b"\xfe\x40\x63\x00\x01a\x01b", "Database(16)"),
        (
            b"\xf7\x81\x12\x34\x56\x78\x12\x34\x56\x78\x02\x01\x00",
            "ModuleData(UnknownType(\"EjRWeBI0V\"))",
        ),
        (
            b"\xf7\x81\x12\x34\x56\x78\x12\x34\x56\x78\x05\x01\x00",
            "Damaged(\"bad when_opcode\")",
        ),
        (
            b"\x07\x01a\x81\x12\x34\x56\x78\x12\x34\x56\x78\x02\x01\x00",
            "Damaged(\"The RDB file contains module data I can't load: no matching module type 'EjRWeBI0V'\")",
        ),
        (b"\x63\x01a\x01b", "UnknownType(99)"),
        (
            b"\x10\x01a\x04abcd",
            "Damaged(\"Integrity check of a value of type 16 failed.\")",
        ),
        (b"\x00\x01a\x81\x7f\xff\xff\xff\xff\xff\xff\xffabcd", "Truncated"),
        (b"\x00\x01a\xc7abcd", "Damaged(\"Unknown RDB string encoding type 7\")"),
        (b"\xf6\x01a", "Damaged(\"Pre-release function format not supported.\")"),
    ];
    for (records, fault) in cases {
        let error = Fixture::new()
            .read(&file(b"VALKEY080", records), false)
            .expect_err("is refused");
        assert_eq!(format!("{error:?}"), *fault, "{records:?}");
    }
    let mut relaxed = Fixture::new();
    let parameter: [(&[u8], &[u8]); 1] = [(b"rdb-version-check", b"relaxed")];
    let set = relaxed.config.set(&parameter, ALL_PERMISSIONS, &mut |_| Ok(()));
    set.expect("sets");
    let error = relaxed
        .read(&file(b"VALKEY987", b"\x63\x01a\x01b"), false)
        .expect_err("is refused");
    assert_eq!(format!("{error:?}"), "UnknownNewerType");
}

/// The fuzz target `rdb_file` found this: the first bytes of a file were logged as they are.
#[test]
fn a_file_cannot_write_lines_of_its_own_to_the_log() {
    let fault = Fixture::new()
        .read(b"VA\nKEY0\r\n rest", false)
        .expect_err("is no RDB file");
    let path = Path::new("dump.rdb").to_owned();
    let error = RdbLoadError { path, offset: 0, fault };
    assert_eq!(
        error.to_string(),
        "Wrong signature trying to load DB from file: VA KEY0  "
    );
}

#[test]
fn changes_are_counted_from_the_last_save() {
    let status = SaveStatus::default();
    assert_eq!(status.unsaved_changes(5), 5);
    status.record_save(1, 5);
    assert_eq!(status.unsaved_changes(7), 2);
    // A background save that began before the last save and ends after it.
    status.record_save(2, 3);
    assert_eq!(status.unsaved_changes(7), 2);
    assert_eq!(status.unsaved_changes(4), 0);
}
