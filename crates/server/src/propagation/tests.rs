//! Tests of the propagation log without a server: order, transactions, databases, marks.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_base::{DbIndex, ThreadIndex};

use super::*;

/// Records its stream.
struct RecordingConsumer(Arc<Mutex<(Vec<u8>, u64)>>, LogTarget);

impl LogConsumer for RecordingConsumer {
    fn target(&self) -> LogTarget {
        self.1
    }

    fn append(&mut self, offset: u64, bytes: &[u8]) {
        let (all, _) = &mut *self.0.lock();
        assert_eq!(offset, all.len() as u64);
        all.extend_from_slice(bytes);
    }

    fn flush(&mut self, sequence: LogSequence) -> Option<Duration> {
        self.0.lock().1 = sequence.get();
        None
    }
}

fn listen(propagation: &PropagationLog, name: &'static str, target: LogTarget) -> Arc<Mutex<(Vec<u8>, u64)>> {
    let heard = Arc::new(Mutex::new((Vec::new(), 0)));
    let listener = Box::new(RecordingConsumer(heard.clone(), target));
    propagation.schedule_mark(move |consumers| consumers.add(name, listener, 0));
    heard
}

fn wait_for(heard: &Mutex<(Vec<u8>, u64)>, ticket: u64) -> String {
    let start = Instant::now();
    while heard.lock().1 < ticket {
        assert!(start.elapsed() < Duration::from_secs(20), "the log thread stands still");
        std::thread::sleep(Duration::from_millis(1));
    }
    String::from_utf8_lossy(&heard.lock().0).replace("\r\n", " ")
}

fn end_call(log_writer: &mut LogWriter, db: DbIndex, words: &[&[u8]]) {
    log_writer.end_call(LogTarget::all(), db, true, words.iter().copied());
}

#[test]
fn units_of_several_ops_are_transactions_and_databases_are_selected() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    start(&propagation).expect("there is a thread");
    let file = listen(&propagation, "file", LogTarget::FILE);
    let replicas = listen(&propagation, "replicas", LogTarget::REPLICAS);
    let mut log_writer = propagation.log_writer();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"SET", b"k", b"v"]);
    log_writer.commit();
    end_call(&mut log_writer, DbIndex::new(3), &[b"A"]);
    end_call(&mut log_writer, DbIndex::FIRST, &[b"B"]);
    log_writer.end_unit();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"C"]);
    log_writer.commit();
    log_writer.propagate_before(LogTarget::all(), DbIndex::FIRST, &[b"DEL", b"old"]);
    log_writer.propagate_instead(&[b"OTHER"]);
    end_call(&mut log_writer, DbIndex::FIRST, &[b"D"]);
    log_writer.commit();
    log_writer.force_propagation(LogTarget::REPLICAS);
    log_writer.end_call(LogTarget::all(), DbIndex::FIRST, false, [&b"PUBLISH"[..]].into_iter());
    log_writer.commit();
    log_writer.end_call(LogTarget::all(), DbIndex::FIRST, false, [&b"GET"[..]].into_iter());
    log_writer.commit();
    log_writer.wake();
    assert_eq!(log_writer.last_sequence().get(), 4, "nothing to say, no number");
    let common = "*2 $6 SELECT $1 0 *3 $3 SET $1 k $1 v *1 $5 MULTI *2 $6 SELECT $1 3 *1 $1 A *2 $6 SELECT $1 0 *1 $1 B \
                  *1 $4 EXEC *1 $1 C *1 $5 MULTI *2 $3 DEL $3 old *1 $5 OTHER *1 $4 EXEC ";
    assert_eq!(wait_for(&file, 4), common);
    assert_eq!(wait_for(&replicas, 4), format!("{common}*1 $7 PUBLISH "));
}

/// The log gets another consumer between the run of a call on copies of its keys and the moment at which its result is
/// stored.
#[test]
fn a_detached_call_is_propagated_to_the_consumers_that_exist_when_it_is_attached() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    start(&propagation).expect("there is a thread");
    let file = listen(&propagation, "file", LogTarget::FILE);
    let replicas = listen(&propagation, "replicas", LogTarget::REPLICAS);
    let mut log_writer = propagation.log_writer();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"SET", b"k", b"v"]);
    log_writer.commit();
    log_writer.propagate_before(LogTarget::FILE, DbIndex::FIRST, &[b"COPY", b"a", b"b"]);
    log_writer.propagate_before(LogTarget::FILE, DbIndex::FIRST, &[b"HDEL", b"b", b"field"]);
    log_writer.propagate_nothing();
    let rewritten = log_writer.take_rewritten();
    assert!(!log_writer.has_pending_ops() && !log_writer.is_rewritten());
    log_writer.restore_rewritten(rewritten, LogTarget::all());
    end_call(&mut log_writer, DbIndex::FIRST, &[b"COPY", b"a", b"b"]);
    log_writer.commit();
    log_writer.wake();
    let expected = "*2 $6 SELECT $1 0 *3 $3 SET $1 k $1 v *1 $5 MULTI *3 $4 COPY $1 a $1 b *3 $4 HDEL $1 b $5 field \
                    *1 $4 EXEC ";
    assert_eq!(wait_for(&file, 2), expected);
    assert_eq!(wait_for(&replicas, 2), expected);
}

#[test]
fn calls_within_a_call_come_before_it_and_leave_its_form() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    start(&propagation).expect("there is a thread");
    let file = listen(&propagation, "file", LogTarget::FILE);
    let mut log_writer = propagation.log_writer();
    log_writer.propagate_before(LogTarget::all(), DbIndex::FIRST, &[b"DEL", b"old"]);
    log_writer.propagate_instead(&[b"OTHER"]);
    let suspended = log_writer.suspend_call();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"WITHIN"]);
    log_writer.resume_call(suspended);
    end_call(&mut log_writer, DbIndex::FIRST, &[b"AS", b"SENT"]);
    log_writer.commit();
    log_writer.force_propagation(LogTarget::FILE);
    let suspended = log_writer.suspend_call();
    log_writer.end_call(LogTarget::all(), DbIndex::FIRST, false, [&b"NOTHING"[..]].into_iter());
    log_writer.resume_call(suspended);
    log_writer.end_call(LogTarget::all(), DbIndex::FIRST, false, [&b"FORCED"[..]].into_iter());
    log_writer.commit();
    log_writer.wake();
    let expected = "*1 $5 MULTI *2 $6 SELECT $1 0 *2 $3 DEL $3 old *1 $6 WITHIN *1 $5 OTHER *1 $4 EXEC *1 $6 FORCED ";
    assert_eq!(wait_for(&file, log_writer.last_sequence().get()), expected);
}

#[test]
fn writes_of_many_threads_are_totally_ordered_and_marks_run_in_order() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    start(&propagation).expect("there is a thread");
    let heard = listen(&propagation, "file", LogTarget::FILE);
    // Stands for the leases of one slot: changes made under it are ordered.
    let slot = Arc::new(Mutex::new(0u64));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (propagation, slot) = (propagation.clone(), slot.clone());
            std::thread::spawn(move || {
                let mut log_writer = propagation.log_writer();
                for _ in 0..2000 {
                    let mut number = slot.lock();
                    *number += 1;
                    let word = number.to_string();
                    end_call(&mut log_writer, DbIndex::FIRST, &[word.as_bytes()]);
                    log_writer.commit();
                    drop(number);
                    log_writer.wake();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("the writer wrote");
    }
    let marked = Arc::new(Mutex::new(0));
    let at = marked.clone();
    propagation.schedule_mark(move |consumers| *at.lock() = consumers.passed_sequence().get());
    let mut log_writer = propagation.log_writer();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"end"]);
    log_writer.commit();
    log_writer.wake();
    let text = wait_for(&heard, 16_001);
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    let expected: Vec<u64> = std::iter::once(0).chain(1..=16_000).collect();
    assert_eq!(numbers, expected);
    assert_eq!(*marked.lock(), 16_000);
}

/// Asks for a flush while the log thread flushes, as another thread may at that moment.
struct AskingConsumer {
    propagation: Arc<PropagationLog>,
    flushes: Arc<Mutex<u64>>,
}

impl LogConsumer for AskingConsumer {
    fn target(&self) -> LogTarget {
        LogTarget::REPLICAS
    }

    fn append(&mut self, _offset: u64, _bytes: &[u8]) {}

    fn flush(&mut self, _sequence: LogSequence) -> Option<Duration> {
        let mut flushes = self.flushes.lock();
        *flushes += 1;
        if *flushes < 100 {
            self.propagation.request_flush();
        }
        None
    }
}

#[test]
fn a_flush_that_is_requested_while_the_log_thread_falls_asleep_happens() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    start(&propagation).expect("there is a thread");
    let flushes = Arc::new(Mutex::new(0));
    let consumer = AskingConsumer {
        propagation: propagation.clone(),
        flushes: flushes.clone(),
    };
    propagation.schedule_mark(move |consumers| consumers.add("asking", Box::new(consumer), 0));
    let begin = Instant::now();
    while *flushes.lock() < 100 {
        assert!(begin.elapsed() < Duration::from_secs(20), "the log thread sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_notification_is_delivered_once() {
    let propagation = Arc::new(PropagationLog::new(2, Arc::new(UsedMemory::new(2))));
    let mut log_writer = propagation.log_writer();
    for _ in 0..7 {
        end_call(&mut log_writer, DbIndex::FIRST, &[b"SET", b"k", b"v"]);
        log_writer.commit();
    }
    propagation.advance_milestone(LogMilestone::Written, LogSequence::new(5));
    propagation.set_reply_milestone(Some(LogMilestone::Synced));
    assert!(
        propagation.must_withhold_reply(LogSequence::new(5)) && !propagation.must_withhold_reply(LogSequence::new(0))
    );
    propagation.request_milestone_notice(ThreadIndex::new(1));
    propagation.advance_milestone(LogMilestone::Synced, LogSequence::new(5));
    propagation.advance_milestone(LogMilestone::Synced, LogSequence::new(3));
    let mut told = Vec::new();
    propagation.take_notice_requests(|worker| told.push(worker));
    propagation.take_notice_requests(|worker| told.push(worker));
    assert_eq!(
        (told, propagation.milestone_sequence(LogMilestone::Synced).get()),
        (vec![ThreadIndex::new(1)], 5)
    );
    assert!(
        !propagation.must_withhold_reply(LogSequence::new(5)) && propagation.must_withhold_reply(LogSequence::new(6))
    );
    propagation.set_reply_milestone(Some(LogMilestone::Written));
    assert!(
        propagation.must_withhold_reply(LogSequence::new(6)) && !propagation.must_withhold_reply(LogSequence::new(5))
    );
    propagation.advance_milestone(LogMilestone::Written, LogSequence::new(6));
    assert!(
        !propagation.must_withhold_reply(LogSequence::new(6)) && propagation.must_withhold_reply(LogSequence::new(7))
    );
    propagation.set_reply_milestone(None);
    assert!(!propagation.must_withhold_reply(LogSequence::new(7)));
}

#[test]
#[should_panic(expected = "a sequence number that was not taken yet")]
fn a_milestone_is_not_ahead_of_the_log() {
    let propagation = PropagationLog::new(1, Arc::new(UsedMemory::new(1)));
    propagation.advance_milestone(LogMilestone::Written, LogSequence::new(1));
}

#[test]
#[should_panic(expected = "only what was written to the append-only file is synced")]
fn the_disk_is_not_ahead_of_the_writes() {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    let mut log_writer = propagation.log_writer();
    end_call(&mut log_writer, DbIndex::FIRST, &[b"SET", b"k", b"v"]);
    log_writer.commit();
    propagation.advance_milestone(LogMilestone::Synced, LogSequence::new(1));
}

#[test]
#[should_panic(expected = "the header of an op states")]
fn an_op_that_is_longer_than_its_record_is_noticed() {
    let mut streams = ConsumerStreams::default();
    let heard = Arc::default();
    streams.add("file", Box::new(RecordingConsumer(heard, LogTarget::FILE)), 0);
    let mut op = vec![LogTarget::FILE.bits(), 0, 0, 0, 0];
    op.extend_from_slice(&4u64.to_le_bytes());
    op.extend_from_slice(b"SET");
    streams.pass_ops(&op);
}
