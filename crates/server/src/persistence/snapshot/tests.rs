//! Tests of the guarantees that a snapshot gives to its caller.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::{Blob, NewValue, ValueRef};

use super::*;
use crate::keyspace::before_image::is_large;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::{Keyspace, publish_header};
use crate::persistence::rdb_file::{
    LoadDestination, LoadThreads, ModuleRecordForm, RdbFormat, RdbLoader, decode_in_place, load,
};
use weft_config::Config;
use weft_scripting::{Requester, RunParameters, ScriptRun};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a snapshot.
fn start(server: &Arc<Server>, order: SnapshotRequest) -> Result<i32, SnapshotRefusal> {
    let mut claim = SnapshotClaim::new(server, order.purpose).map_err(SnapshotRefusal::Busy)?;
    claim.start(order).map_err(|error| match error {
        SnapshotStartError::System(error) => SnapshotRefusal::System(error),
        SnapshotStartError::ScriptBusy(run) => panic!("no script runs: {run:?}"),
    })
}

fn server(keys: usize, bytes: usize) -> Arc<Server> {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    for number in 0..keys {
        // Random bytes, which cannot be compressed.
        let value: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(bytes).collect();
        put(&server.keyspace, &mut seat, &name(number), &value);
    }
    drop(seat);
    server
}

fn name(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

fn put(keyspace: &Keyspace, seat: &mut Seat, name: &[u8], value: &[u8]) {
    let hash = keyspace.hasher.hash(name);
    let thread_index = ThreadIndex::new(seat.index());
    let pass = seat.enter();
    let mut lease = pass
        .try_write(KeyHasher::slot(hash))
        .expect("no other thread holds a lease");
    let (header, slot) = lease.parts_mut();
    let value = NewValue::Blob(Blob::from_slice(value));
    drop(slot.table_mut(DbIndex::FIRST).insert(hash, name, value, None, 0));
    publish_header(header, slot);
    keyspace.counts.add(thread_index, DbIndex::FIRST, 1, 0);
}

/// An event that a consumer reports.
#[derive(Debug, PartialEq, Eq)]
enum ConsumerEvent {
    Moment,
    Bytes(Vec<u8>),
    Finished,
    Dropped,
    Ended(String),
}

/// A consumer that reports every event, and waits for a permission before each take.
struct ReportingConsumer {
    told: Sender<ConsumerEvent>,
    may_take: Receiver<Result<(), ConsumerError>>,
}

impl SnapshotConsumer for ReportingConsumer {
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError> {
        while !running.is_cancelled() {
            if let Ok(may) = self.may_take.recv_timeout(Duration::from_millis(1)) {
                may?;
                let _ = self.told.send(ConsumerEvent::Bytes(bytes.to_vec()));
                return Ok(());
            }
        }
        Err("the snapshot was cancelled".into())
    }

    fn finish(self: Box<Self>, _running: &SnapshotState) -> Result<(), ConsumerError> {
        let _ = self.told.send(ConsumerEvent::Finished);
        Ok(())
    }
}

impl Drop for ReportingConsumer {
    fn drop(&mut self) {
        let _ = self.told.send(ConsumerEvent::Dropped);
    }
}

type TakePermission = Result<(), ConsumerError>;

fn new_order(purpose: SnapshotPurpose) -> (SnapshotRequest, Receiver<ConsumerEvent>, Sender<TakePermission>) {
    let (told, hears) = channel();
    let (permits, may_take) = channel();
    let [at_moment, at_end] = [told.clone(), told.clone()];
    let order = SnapshotRequest {
        purpose,
        slots: None,
        module_form: ModuleRecordForm::Values,
        format: RdbFormat::Newest,
        consumer: Box::new(move || Ok(Box::new(ReportingConsumer { told, may_take }))),
        at_moment: Box::new(move |_| {
            let _ = at_moment.send(ConsumerEvent::Moment);
            Box::new(|| vec![("repl-id", b"somebody".to_vec())])
        }),
        at_end: Box::new(move |_, summary, ending| {
            let ending = match ending {
                SnapshotOutcome::Done => format!("done: {} keys", summary.keys),
                SnapshotOutcome::Cancelled => "cancelled".to_owned(),
                SnapshotOutcome::Failed(error) => format!("failed: {error}"),
            };
            let _ = at_end.send(ConsumerEvent::Ended(ending));
        }),
    };
    (order, hears, permits)
}

/// Collects all events up to the end, with the bytes concatenated.
fn collect_events(hears: &Receiver<ConsumerEvent>) -> (Vec<ConsumerEvent>, Vec<u8>) {
    let (mut told, mut bytes) = (Vec::new(), Vec::new());
    loop {
        match hears.recv_timeout(TIMEOUT).expect("the snapshot continues") {
            ConsumerEvent::Bytes(more) => bytes.extend(more),
            other => {
                told.push(other);
                if matches!(told.last(), Some(ConsumerEvent::Ended(_))) {
                    return (told, bytes);
                }
            }
        }
    }
}

fn is_unmarked(server: &Server) -> bool {
    (0..server.keyspace.slots.len()).all(|slot| !server.keyspace.slots.header(slot).is_unsaved())
}

/// Loads a dump into another keyspace. Returns it and the number of keys.
fn load_dump(server: &Server, bytes: &[u8]) -> (Keyspace, u64) {
    let file = format!("weft-snapshot-test-{}-{}.rdb", std::process::id(), fastrand::u64(..));
    let path = std::env::temp_dir().join(file);
    std::fs::write(&path, bytes).expect("writes");
    let keyspace = Keyspace::new(16, 2);
    let mut seat = keyspace.slots.join().expect("a seat");
    let thread_index = ThreadIndex::new(seat.index());
    let loaded = load(
        &weft_base::files::FixedPath::new(&path),
        &mut RdbLoader {
            destination: LoadDestination::Keyspace(&mut seat.exclusive()),
            hasher: &keyspace.hasher,
            counts: &keyspace.counts,
            before_images: &keyspace.before_images,
            thread_index,
            config: &server.config,
            clock: AccessClock::default(),
            now_ms: 1,
            should_replace: false,
            threads: LoadThreads::READER_ONLY,
            on_dropped_key: None,
            decode_modules: &decode_in_place,
            progress: None,
        },
    );
    std::fs::remove_file(&path).expect("removes");
    let keys = loaded.expect("loads").keys;
    drop(seat);
    (keyspace, keys)
}

#[test]
fn a_consumer_gets_a_complete_rdb_file() {
    let server = server(3000, 600);
    let (order, hears, permits) = new_order(SnapshotPurpose::AofBase);
    for _ in 0..1000 {
        permits.send(Ok(())).expect("is heard");
    }
    start(&server, order).expect("starts");
    let (told, bytes) = collect_events(&hears);
    let ended = ConsumerEvent::Ended("done: 3000 keys".to_owned());
    assert_eq!(
        told,
        [
            ConsumerEvent::Moment,
            ConsumerEvent::Finished,
            ConsumerEvent::Dropped,
            ended
        ]
    );
    for note in [&b"repl-id\x08somebody"[..], b"aof-base\xc0\x01"] {
        assert!(bytes.windows(note.len()).any(|window| window == note), "{note:?}");
    }
    let (_, keys) = load_dump(&server, &bytes);
    assert_eq!(keys, 3000);
    assert!(is_unmarked(&server) && server.persistence.snapshot.wait_for_end(TIMEOUT));
}

#[test]
fn a_second_snapshot_is_refused_and_the_first_may_be_cancelled() {
    let server = server(3000, 600);
    let (first, hears, _permits) = new_order(SnapshotPurpose::Replicas);
    start(&server, first).expect("starts");
    let (second, unheard, _) = new_order(SnapshotPurpose::RdbFile);
    let refused = start(&server, second);
    assert!(matches!(refused, Err(SnapshotRefusal::Busy(SnapshotPurpose::Replicas))));
    assert!(unheard.recv().is_err(), "no callback of the second order was called");
    assert!(
        !server.persistence.snapshot.cancel(&[SnapshotPurpose::RdbFile]),
        "a snapshot for that purpose is not running"
    );
    assert!(server.persistence.snapshot.cancel(&[SnapshotPurpose::Replicas]));
    let ended = ConsumerEvent::Ended("cancelled".to_owned());
    assert_eq!(
        collect_events(&hears).0,
        [ConsumerEvent::Moment, ConsumerEvent::Dropped, ended]
    );
    assert!(server.persistence.snapshot.wait_for_end(TIMEOUT) && is_unmarked(&server));
    let (third, hears, permits) = new_order(SnapshotPurpose::RdbFile);
    (0..1000).for_each(|_| permits.send(Ok(())).expect("is heard"));
    start(&server, third).expect("the next snapshot can start");
    assert_eq!(
        collect_events(&hears).0.last(),
        Some(&ConsumerEvent::Ended("done: 3000 keys".to_owned()))
    );
}

#[test]
fn a_consumer_that_fails_ends_the_snapshot() {
    let server = server(3000, 600);
    let (order, hears, permits) = new_order(SnapshotPurpose::RdbFile);
    permits.send(Ok(())).expect("is heard");
    permits.send(Err("the disk is full".into())).expect("is heard");
    start(&server, order).expect("starts");
    let ended = ConsumerEvent::Ended("failed: the disk is full".to_owned());
    assert_eq!(
        collect_events(&hears).0,
        [ConsumerEvent::Moment, ConsumerEvent::Dropped, ended]
    );
    assert!(server.persistence.snapshot.wait_for_end(TIMEOUT) && is_unmarked(&server));
}

#[test]
fn a_waiting_consumer_does_not_block_writers() {
    // More than the saver reads ahead.
    let server = server(200, 100_000);
    let (order, hears, permits) = new_order(SnapshotPurpose::Replicas);
    start(&server, order).expect("starts");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let started = Instant::now();
    for number in 0..200 {
        let name = name(number);
        let hash = server.keyspace.hasher.hash(&name);
        let slot = KeyHasher::slot(hash);
        let key = NamedKey {
            name: &name,
            hash,
            slot: SlotIndex::from_index(slot),
        };
        // Acts as a deferred writer that retries until the value is saved.
        let must_wait = |seat: &mut Seat| {
            let pass = seat.enter();
            let Some(lease) = pass.try_write(slot) else { return true };
            let entry = lease.table(DbIndex::FIRST).and_then(|table| table.find(hash, &name));
            let entry = entry.expect("it is there");
            let (header, before_images) = (lease.header(), &server.keyspace.before_images);
            (header.has_pinned_values() && entry.is_shared())
                || before_images.must_save_first(DbIndex::FIRST, key, entry)
        };
        while must_wait(&mut seat) {
            assert!(started.elapsed() < TIMEOUT, "key {number} waits for the consumer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    (0..1000).for_each(|_| permits.send(Ok(())).expect("is heard"));
    let (told, bytes) = collect_events(&hears);
    assert_eq!(told.last(), Some(&ConsumerEvent::Ended("done: 200 keys".to_owned())));
    assert!(bytes.len() > 200, "each was written");
}

/// For each key, the version that its value begins with, and the length of the value.
type Versions = std::collections::HashMap<Vec<u8>, (u64, usize)>;

/// Sets a flag when it is dropped, after a panic, too.
struct StopAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Replaces and extends values until `stop` is set. `versions` changes under the lease of a key's slot.
fn change_values(server: &Server, versions: &std::sync::Mutex<Versions>, stop: &std::sync::atomic::AtomicBool) {
    let (keyspace, mut version) = (&server.keyspace, 1);
    let mut seat = keyspace.slots.join().expect("a seat");
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let name = name(fastrand::usize(..KEYS));
        let hash = keyspace.hasher.hash(&name);
        let slot = KeyHasher::slot(hash);
        let key = NamedKey {
            name: &name,
            hash,
            slot: SlotIndex::from_index(slot),
        };
        let pass = seat.enter();
        let Some(mut lease) = pass.try_write(slot) else {
            continue;
        };
        let (header, data) = lease.parts_mut();
        let table = data.table_mut(DbIndex::FIRST);
        let entry = table.find(hash, &name).expect("keys are not deleted");
        let extends = is_large(entry.value()) && fastrand::bool();
        let waits = || {
            (header.has_pinned_values() && entry.is_shared())
                || (header.is_unsaved() && keyspace.before_images.must_save_first(DbIndex::FIRST, key, entry))
        };
        if extends && waits() {
            continue;
        }
        if header.is_unsaved() {
            keyspace.before_images.keep_before_image(DbIndex::FIRST, key, table);
        }
        let mut versions = versions.lock().expect("no other thread has panicked");
        if extends {
            table.find_mut(hash, &name).expect("it is there").append(b".");
            versions.get_mut(&name).expect("it is there").1 += 1;
        } else {
            version += 1;
            let value = versioned_value(version);
            versions.insert(name.clone(), (version, value.len()));
            let value = NewValue::Blob(Blob::from_slice(&value));
            drop(table.insert(hash, &name, value, None, 0));
        }
    }
}

const KEYS: usize = 3000;

/// Returns a value that begins with a version. One in eight is large.
fn versioned_value(version: u64) -> Vec<u8> {
    let mut value = format!("{version}:").into_bytes();
    let large = if fastrand::u8(..8) == 0 { 20_000 } else { 0 };
    value.resize(large + fastrand::usize(30..2000), b'.');
    value
}

#[test]
fn several_threads_save_one_moment_while_values_change() {
    let server = server(0, 0);
    let versions = std::sync::Mutex::new(Versions::new());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    for number in 0..KEYS {
        let value = versioned_value(1);
        put(&server.keyspace, &mut seat, &name(number), &value);
        versions.lock().expect("unused").insert(name(number), (1, value.len()));
    }
    drop(seat);
    let versions = Arc::new(versions);
    for _ in 0..5 {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (told, bytes, expected) = std::thread::scope(|scope| {
            // A failed check must end the writers, for which the scope waits.
            let _stop_writers = StopAtEnd(&stop);
            for _ in 0..2 {
                scope.spawn(|| change_values(&server, &versions, &stop));
            }
            let (mut order, hears, permits) = new_order(SnapshotPurpose::RdbFile);
            let (moment, at_moment) = channel();
            let for_moment = versions.clone();
            order.at_moment = Box::new(move |_| {
                // No other thread has a lease, so the versions are those of the values.
                let copy = for_moment.lock().expect("no other thread has panicked").clone();
                let _ = moment.send(copy);
                Box::new(Vec::new)
            });
            (0..100_000).for_each(|_| permits.send(Ok(())).expect("is heard"));
            start(&server, order).expect("starts");
            let (told, bytes) = collect_events(&hears);
            (told, bytes, at_moment.recv().expect("the moment was taken"))
        });
        assert_eq!(told.last(), Some(&ConsumerEvent::Ended(format!("done: {KEYS} keys"))));
        let (loaded, keys) = load_dump(&server, &bytes);
        assert_eq!(keys, KEYS as u64);
        let mut seat = loaded.slots.join().expect("a seat");
        let all = seat.exclusive();
        for slot in all.iter() {
            for entry in slot.table(DbIndex::FIRST).into_iter().flat_map(|table| table.iter()) {
                let value: &[u8] = match entry.value() {
                    ValueRef::Blob(value) => value,
                    ValueRef::Bytes(value) => value,
                    _ => panic!("every value is a string"),
                };
                let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let version = std::str::from_utf8(&value[..digits]).expect("digits").parse();
                let found = (version.expect("a version"), value.len());
                assert_eq!(expected.get(entry.key()), Some(&found), "the value of the moment");
            }
        }
        assert!(is_unmarked(&server) && server.persistence.snapshot.wait_for_end(TIMEOUT));
    }
}

#[test]
fn a_snapshot_may_start_under_an_exclusion_of_scripts() {
    let server = server(10, 600);
    let running = &server.scripting.running;
    let (order, hears, permits) = new_order(SnapshotPurpose::SlotMigration);
    for _ in 0..10 {
        permits.send(Ok(())).expect("is heard");
    }
    assert!(running.try_exclude_runs_per_tick(Requester::ClusterBus));
    start_without_scripts(&server, order).expect("starts");
    assert!(!running.try_begin_on_script_thread(), "the caller ends the exclusion");
    running.end_exclusion();
    assert!(running.try_begin_on_script_thread());
    running.end_on_script_thread();
    collect_events(&hears);
    assert!(server.persistence.snapshot.wait_for_end(TIMEOUT));
}

/// A snapshot that has waited for exclusive mode may find a part of a transaction in the data.
#[test]
fn no_snapshot_is_completed_once_the_end_of_the_process_has_stopped_a_transaction() {
    let server = server(3, 10);
    let (order, hears, permits) = new_order(SnapshotPurpose::AofBase);
    for _ in 0..10 {
        permits.send(Ok(())).expect("is heard");
    }
    server.scripting.running.note_unfinished_unit();
    start(&server, order).expect("starts");
    let (events, _) = collect_events(&hears);
    assert_eq!(events.last(), Some(&ConsumerEvent::Ended("cancelled".to_owned())));
    assert!(server.persistence.snapshot.wait_for_end(TIMEOUT));
}

/// It may never end, and other snapshots would have to wait for it.
#[test]
fn a_snapshot_does_not_wait_for_a_script_that_is_overdue() {
    let server = server(1, 10);
    let running = &server.scripting.running;
    assert!(running.try_begin_on_script_thread());
    let run = Arc::new(ScriptRun::new(RunParameters {
        overdue_after: Some(Duration::ZERO),
        ..RunParameters::default()
    }));
    running.list(&run);
    let (order, _hears, _permits) = new_order(SnapshotPurpose::AofBase);
    let mut claim = SnapshotClaim::new(&server, SnapshotPurpose::AofBase).expect("there is no other snapshot");
    std::thread::scope(|scope| {
        let started = scope.spawn(|| claim.start(order));
        // It waits, until the script is overdue.
        while running.try_begin_on_script_thread() {
            running.end_on_script_thread();
            std::thread::sleep(Duration::from_millis(1));
        }
        running.update_run(&run, true);
        let started = started.join().expect("it ends");
        assert!(matches!(started, Err(SnapshotStartError::ScriptBusy(_))), "{started:?}");
    });
    drop(claim);
    assert_eq!(server.persistence.snapshot.purpose(), None);
    assert!(running.try_begin_on_script_thread(), "scripts are not excluded");
}

/// The caller undoes what it has prepared before another snapshot may start.
#[test]
fn a_claim_stays_after_a_start_that_fails() {
    let server = server(1, 10);
    let state = &server.persistence.snapshot;
    let seats: Vec<Seat> = std::iter::from_fn(|| server.keyspace.slots.join()).collect();
    let (order, _hears, _permits) = new_order(SnapshotPurpose::AofBase);
    let mut claim = SnapshotClaim::new(&server, SnapshotPurpose::AofBase).expect("there is no other snapshot");
    assert!(claim.start(order).is_err(), "all seats are in use");
    assert_eq!(state.purpose(), Some(SnapshotPurpose::AofBase));
    drop(claim);
    assert_eq!(state.purpose(), None);
    drop(seats);
}
