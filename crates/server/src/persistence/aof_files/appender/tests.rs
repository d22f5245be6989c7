//! Tests of the errors after which writes are refused, and of their recovery.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicU64;

use weft_base::DbIndex;

use super::*;
use crate::observability::used_memory::UsedMemory;

/// The connections of an appender whose log has one sequence number, which counts as written.
fn links() -> AppenderLinks {
    let propagation = Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1))));
    let mut log_writer = propagation.log_writer();
    log_writer.propagate_before(LogTarget::FILE, DbIndex::FIRST, &[b"SET", b"k", b"v"]);
    log_writer.commit();
    propagation.advance_milestone(LogMilestone::Written, LogSequence::new(1));
    AppenderLinks {
        propagation,
        status: Arc::default(),
        notify_worker: Arc::new(|_| {}),
        record_latency: Arc::new(|_, _| {}),
        changed: Arc::new(|| {}),
    }
}

/// Returns a file that can be synced, and one whose syncs always fail: a descriptor opened with `O_PATH`.
fn files() -> (Arc<File>, Arc<File>) {
    // The tests run at the same time.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("weft-appender-{}-{number}", std::process::id()));
    let good = File::create(&path).expect("creates");
    let bad = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_PATH)
        .open(&path)
        .expect("opens");
    std::fs::remove_file(&path).expect("removes");
    (Arc::new(good), Arc::new(bad))
}

/// Runs the sync thread's loop on these files, one after the other.
fn sync_each(links: &AppenderLinks, files: &[&Arc<File>]) {
    let (sender, jobs) = mpsc::channel();
    for file in files {
        links.status.pending_syncs.fetch_add(1, Ordering::AcqRel);
        let file = (*file).clone();
        sender
            .send(SyncRequest {
                file,
                sequence: LogSequence::new(1),
            })
            .expect("it is received");
    }
    drop(sender);
    run_sync_thread(&jobs, links);
}

#[test]
fn a_failed_sync_is_cleared_by_a_sync_but_not_by_a_write() {
    let links = links();
    let status = links.status.clone();
    let (good, bad) = files();
    sync_each(&links, &[&bad]);
    assert!(status.is_failing.load(Ordering::Acquire));
    let mut appender = AofAppender::new(good.try_clone().expect("clones"), links.clone()).expect("starts");
    appender.buffer.extend_from_slice(b"bytes");
    appender.write();
    assert!(appender.buffer.is_empty(), "it was written");
    assert!(status.is_failing(AofFault::Sync), "a write does not clear a sync error");
    assert_eq!(
        links.propagation.milestone_sequence(LogMilestone::Synced),
        LogSequence::NONE
    );
    sync_each(&links, &[&good]);
    assert!(!status.is_failing.load(Ordering::Acquire));
    assert_eq!(status.failure_reason(), None);
}

/// Writes are refused after the failure, so no write makes the thread of the log look at the file again.
#[test]
fn a_failed_sync_is_repeated_although_nothing_is_written() {
    let links = links();
    let status = links.status.clone();
    status.set_fsync("everysec");
    let (good, bad) = files();
    let mut appender = AofAppender::new(good.try_clone().expect("clones"), links).expect("starts");
    appender.buffer.extend_from_slice(b"bytes");
    appender.write();
    for (file, should_fail) in [(bad, true), (good, false)] {
        appender.file = file;
        appender.last_sync = Instant::now() - SYNC_INTERVAL;
        assert!(appender.sync().is_some(), "it looks at the result later");
        wait_for_sync(|| status.pending_syncs.load(Ordering::Acquire) == 0);
        assert_eq!(status.is_failing(AofFault::Sync), should_fail);
        assert_eq!(
            appender.sync().is_some(),
            should_fail,
            "there is something left to sync"
        );
    }
}

#[test]
fn a_sync_is_pending_until_its_failure_is_known() {
    let mut links = links();
    let (_, bad) = files();
    let pending = Arc::new(AtomicU64::new(0));
    let (seen, status) = (pending.clone(), links.status.clone());
    links.changed = Arc::new(move || {
        seen.store(status.pending_syncs.load(Ordering::Acquire), Ordering::Relaxed);
    });
    sync_each(&links, &[&bad]);
    assert_eq!(pending.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failed_write_is_cleared_by_a_write_but_not_by_a_sync() {
    let links = links();
    let status = links.status.clone();
    status.set_fsync("everysec");
    let (good, _) = files();
    let full = OpenOptions::new().append(true).open("/dev/full").expect("opens");
    let mut appender = AofAppender::new(full, links.clone()).expect("starts");
    appender.buffer.extend_from_slice(b"bytes");
    appender.write();
    assert!(status.is_failing(AofFault::Write));
    sync_each(&links, &[&good]);
    assert!(
        status.is_failing(AofFault::Write),
        "the bytes are still not in the file"
    );
    appender.file = good;
    appender.write();
    assert!(!status.is_failing.load(Ordering::Acquire));
}

/// The remaining bytes of an increment that a rewrite replaced are written before anything later.
#[test]
fn unwritten_bytes_of_earlier_increments_come_first_unless_a_base_has_them() {
    for is_covered in [false, true] {
        let links = links();
        links.status.set_fsync("everysec");
        let (good, _) = files();
        let full = OpenOptions::new().append(true).open("/dev/full").expect("opens");
        let mut appender = AofAppender::new(full, links.clone()).expect("starts");
        appender.buffer.extend_from_slice(b"earlier");
        appender.switch_file(good.try_clone().expect("clones"), true);
        appender.buffer.extend_from_slice(b"later");
        appender.write();
        let size = || good.metadata().expect("it is open").len();
        assert_eq!(size(), 0, "nothing is written after missing bytes");
        assert!(links.status.is_failing(AofFault::Write));
        let (other, _) = files();
        match is_covered {
            true => appender.discard_unwritten(),
            false => appender.unwritten[0].file = other.clone(),
        }
        appender.write();
        assert_eq!(size(), 5);
        assert_eq!(
            other.metadata().expect("it is open").len(),
            if is_covered { 0 } else { 7 }
        );
        assert!(!links.status.is_failing.load(Ordering::Acquire));
    }
}

/// The next file is synced only after the one before, whose end would be missing otherwise.
#[test]
fn a_replaced_file_that_cannot_be_synced_stays_missing() {
    let links = links();
    let status = links.status.clone();
    status.set_fsync("everysec");
    let (good, _) = files();
    let mut appender = AofAppender::new(good.try_clone().expect("clones"), links.clone()).expect("starts");
    appender.appended = LogSequence::new(1);
    appender.written = LogSequence::new(1);
    let (next, bad) = files();
    appender.file = bad;
    appender.switch_file(next.try_clone().expect("clones"), true);
    assert!(status.is_failing(AofFault::Sync));
    let mut consumer = AppenderConsumer(Arc::new(Mutex::new(appender)));
    for _ in 0..3 {
        consumer.append(0, b"later");
        assert!(consumer.flush(LogSequence::new(1)).is_some(), "it tries again");
    }
    assert!(
        status.is_failing(AofFault::Sync),
        "no sync of the next file ends the failure"
    );
    assert_eq!(
        next.metadata().expect("a size").len(),
        0,
        "nothing is written to the next file"
    );
    let synced = || links.propagation.milestone_sequence(LogMilestone::Synced);
    assert_eq!(synced(), LogSequence::NONE);
    // A new base contains what is missing.
    consumer.0.lock().discard_unwritten();
    consumer.0.lock().last_sync = Instant::now() - 2 * SYNC_INTERVAL;
    consumer.flush(LogSequence::new(1));
    assert_eq!(next.metadata().expect("a size").len(), 15);
    wait_for_sync(|| !status.is_failing(AofFault::Sync) && synced() == LogSequence::new(1));
}

/// The bytes of an earlier increment are missing, although the increment that is replaced has none that are unwritten.
#[test]
fn an_increment_behind_a_missing_end_is_not_synced_before_it() {
    let links = links();
    links.status.set_fsync("everysec");
    let full = OpenOptions::new().append(true).open("/dev/full").expect("opens");
    let mut appender = AofAppender::new(full, links.clone()).expect("starts");
    appender.appended = LogSequence::new(1);
    appender.written = LogSequence::new(1);
    let (second, third) = (files().0, files().0);
    appender.buffer.extend_from_slice(b"earlier");
    appender.switch_file(second.try_clone().expect("clones"), true);
    appender.switch_file(third.try_clone().expect("clones"), true);
    let synced = links.propagation.milestone_sequence(LogMilestone::Synced);
    assert_eq!(synced, LogSequence::NONE);
    assert_eq!(appender.unwritten.len(), 2);
    appender.unwritten[0].file = files().0;
    appender.write();
    assert!(appender.unwritten.is_empty() && !links.status.is_failing.load(Ordering::Acquire));
}

/// Waits until the sync thread has done its work.
fn wait_for_sync(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "the sync does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}
