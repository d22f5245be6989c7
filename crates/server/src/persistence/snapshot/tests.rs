//! Tests of the guarantees that a snapshot gives to its caller.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use weft_table::{Blob, NewValue};

use super::*;
use crate::config::Config;
use crate::keyspace::access::NamedKey;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Keyspace, publish};
use crate::persistence::rdb_file::{Destination, Format, Loader, load};

const PATIENCE: Duration = Duration::from_secs(30);

fn server(keys: usize, bytes: usize) -> Arc<Server> {
    crate::commands::install(crate::commands::all());
    let ((orders, _), (supply, _)) = (channel(), channel());
    let (jobs, scripts) = (
        crate::runtime::background::queue().0,
        crate::runtime::background::queue().0,
    );
    let server = crate::start::server(Config::defaults(), 1, (jobs, scripts), orders, supply).expect("a server");
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
    let row = seat.index();
    let pass = seat.enter();
    let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let (header, slot) = lease.parts_mut();
    let value = NewValue::Blob(Blob::from_slice(value));
    drop(slot.table_mut(0).insert(hash, name, value, None, 0));
    publish(header, slot);
    keyspace.counts.add(row, 0, 1, 0);
}

/// An event that a consumer reports.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Moment,
    Bytes(Vec<u8>),
    Finished,
    Dropped,
    Ended(String),
}

/// A consumer that reports every event, and waits for a permission before each take.
struct Telling {
    told: Sender<Told>,
    may_take: Receiver<Result<(), ConsumerError>>,
}

impl Consumer for Telling {
    fn take(&mut self, bytes: &[u8], running: &Running) -> Result<(), ConsumerError> {
        while !running.is_cancelled() {
            if let Ok(may) = self.may_take.recv_timeout(Duration::from_millis(1)) {
                may?;
                let _ = self.told.send(Told::Bytes(bytes.to_vec()));
                return Ok(());
            }
        }
        Err("it was cancelled".into())
    }

    fn finish(self: Box<Self>, _running: &Running) -> Result<(), ConsumerError> {
        let _ = self.told.send(Told::Finished);
        Ok(())
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let _ = self.told.send(Told::Dropped);
    }
}

type Permission = Result<(), ConsumerError>;

fn order(purpose: Purpose) -> (SnapshotRequest, Receiver<Told>, Sender<Permission>) {
    let (told, hears) = channel();
    let (permits, may_take) = channel();
    let [at_moment, at_end] = [told.clone(), told.clone()];
    let order = SnapshotRequest {
        purpose,
        format: Format::Newest,
        consumer: Box::new(move || Ok(Box::new(Telling { told, may_take }))),
        at_moment: Box::new(move |_| {
            let _ = at_moment.send(Told::Moment);
            Box::new(|| vec![("repl-id", b"somebody".to_vec())])
        }),
        at_end: Box::new(move |_, summary, ending| {
            let ending = match ending {
                SnapshotOutcome::Done => format!("done: {} keys", summary.keys),
                SnapshotOutcome::Cancelled => "cancelled".to_owned(),
                SnapshotOutcome::Failed(error) => format!("failed: {error}"),
            };
            let _ = at_end.send(Told::Ended(ending));
        }),
    };
    (order, hears, permits)
}

/// Collects all events up to the end, with the bytes concatenated.
fn all_of(hears: &Receiver<Told>) -> (Vec<Told>, Vec<u8>) {
    let (mut told, mut bytes) = (Vec::new(), Vec::new());
    loop {
        match hears.recv_timeout(PATIENCE).expect("goes on") {
            Told::Bytes(more) => bytes.extend(more),
            other => {
                told.push(other);
                if matches!(told.last(), Some(Told::Ended(_))) {
                    return (told, bytes);
                }
            }
        }
    }
}

fn is_unmarked(server: &Server) -> bool {
    (0..server.keyspace.slots.len()).all(|slot| !server.keyspace.slots.header(slot).is_unsaved())
}

#[test]
fn a_consumer_gets_a_whole_dump() {
    let server = server(3000, 600);
    let (order, hears, permits) = order(Purpose::LogBase);
    for _ in 0..1000 {
        permits.send(Ok(())).expect("is heard");
    }
    start(&server, order).expect("starts");
    let (told, bytes) = all_of(&hears);
    let ended = Told::Ended("done: 3000 keys".to_owned());
    assert_eq!(told, [Told::Moment, Told::Finished, Told::Dropped, ended]);
    for note in [&b"repl-id\x08somebody"[..], b"aof-base\xc0\x01"] {
        assert!(bytes.windows(note.len()).any(|window| window == note), "{note:?}");
    }
    let path = std::env::temp_dir().join(format!("weft-snapshot-test-{}.rdb", std::process::id()));
    std::fs::write(&path, &bytes).expect("writes");
    let other = Keyspace::new(16, 2);
    let mut seat = other.slots.join().expect("a seat");
    let row = seat.index();
    let loaded = load(
        &path,
        &mut Loader {
            destination: Destination::Keyspace(&mut seat.exclusive()),
            hasher: &other.hasher,
            counts: &other.counts,
            before_images: &other.before_images,
            seat: row,
            config: &server.config,
            clock: AccessClock::default(),
            now_ms: 1,
            replace: false,
            drops: None,
            pace: None,
        },
    );
    std::fs::remove_file(&path).expect("removes");
    assert_eq!(loaded.expect("loads").keys, 3000);
    assert!(is_unmarked(&server) && server.snapshot.wait_for_end(PATIENCE));
}

#[test]
fn who_comes_second_is_told_and_may_call_the_first_off() {
    let server = server(3000, 600);
    let (first, hears, _permits) = order(Purpose::Replicas);
    start(&server, first).expect("starts");
    let (second, unheard, _) = order(Purpose::Dump);
    let refused = start(&server, second);
    assert!(matches!(refused, Err(SnapshotRefusal::Busy(Purpose::Replicas))));
    assert!(unheard.recv().is_err(), "nothing of it was called");
    assert!(
        !server.snapshot.cancel(&[Purpose::Dump]),
        "that one is not being written"
    );
    assert!(server.snapshot.cancel(&[Purpose::Replicas]));
    let ended = Told::Ended("cancelled".to_owned());
    assert_eq!(all_of(&hears).0, [Told::Moment, Told::Dropped, ended]);
    assert!(server.snapshot.wait_for_end(PATIENCE) && is_unmarked(&server));
    let (third, hears, permits) = order(Purpose::Dump);
    (0..1000).for_each(|_| permits.send(Ok(())).expect("is heard"));
    start(&server, third).expect("the next one may come");
    assert_eq!(
        all_of(&hears).0.last(),
        Some(&Told::Ended("done: 3000 keys".to_owned()))
    );
}

#[test]
fn a_consumer_that_fails_ends_the_snapshot() {
    let server = server(3000, 600);
    let (order, hears, permits) = order(Purpose::Dump);
    permits.send(Ok(())).expect("is heard");
    permits.send(Err("the disk is full".into())).expect("is heard");
    start(&server, order).expect("starts");
    let ended = Told::Ended("failed: the disk is full".to_owned());
    assert_eq!(all_of(&hears).0, [Told::Moment, Told::Dropped, ended]);
    assert!(server.snapshot.wait_for_end(PATIENCE) && is_unmarked(&server));
}

#[test]
fn a_consumer_that_waits_makes_nobody_else_wait() {
    // More than the saver reads ahead.
    let server = server(200, 100_000);
    let (order, hears, permits) = order(Purpose::Replicas);
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
            slot: slot as u16,
        };
        // Acts as a deferred writer that retries until the value is saved.
        let must_wait = |seat: &mut Seat| {
            let pass = seat.enter();
            let Some(lease) = pass.try_write(slot) else { return true };
            let entry = lease.table(0).and_then(|table| table.find(hash, &name));
            let entry = entry.expect("it is there");
            let (header, before_images) = (lease.header(), &server.keyspace.before_images);
            (header.is_lent() && entry.is_shared()) || before_images.must_save_first(0, key, entry)
        };
        while must_wait(&mut seat) {
            assert!(started.elapsed() < PATIENCE, "key {number} waits for the consumer");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    (0..1000).for_each(|_| permits.send(Ok(())).expect("is heard"));
    let (told, bytes) = all_of(&hears);
    assert_eq!(told.last(), Some(&Told::Ended("done: 200 keys".to_owned())));
    assert!(bytes.len() > 200, "each was written");
}
