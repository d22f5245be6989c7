//! Tests of the errors after which writes are refused, and of their recovery.

use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::observability::used_memory::UsedMemory;

fn links() -> Links {
    Links {
        propagation: Arc::new(PropagationLog::new(1, Arc::new(UsedMemory::new(1)))),
        status: Arc::default(),
        tell: Arc::new(|_| {}),
        took: Arc::new(|_, _| {}),
        changed: Arc::new(|| {}),
    }
}

/// Returns a file that can be synced, and one whose syncs always fail: a descriptor opened with `O_PATH`.
fn files() -> (Arc<File>, Arc<File>) {
    let path = std::env::temp_dir().join(format!("weft-appender-{}", std::process::id()));
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
fn sync_each(links: &Links, files: &[&Arc<File>]) {
    let (sender, jobs) = mpsc::channel();
    for file in files {
        links.status.pending_syncs.fetch_add(1, Ordering::AcqRel);
        let file = (*file).clone();
        sender.send(Pending { file, ticket: 1 }).expect("it is received");
    }
    drop(sender);
    sync_all(&jobs, links);
}

#[test]
fn a_failed_sync_is_forgotten_by_a_sync_and_by_no_write() {
    let links = links();
    let status = links.status.clone();
    let (good, bad) = files();
    sync_each(&links, &[&bad]);
    assert!(status.fails.load(Ordering::Acquire));
    let mut appender = Appender::new(good.try_clone().expect("clones"), links.clone()).expect("starts");
    appender.buffer.extend_from_slice(b"bytes");
    appender.write();
    assert!(appender.buffer.is_empty(), "it was written");
    assert!(
        status.fails_to(AofFault::Sync),
        "a write says nothing about what is on the disk"
    );
    assert_eq!(links.propagation.milestone_sequence(LogMilestone::Synced), 0);
    sync_each(&links, &[&good]);
    assert!(!status.fails.load(Ordering::Acquire));
    assert_eq!(status.failure(), None);
}

#[test]
fn a_failed_write_is_forgotten_by_a_write_and_by_no_sync() {
    let links = links();
    let status = links.status.clone();
    status.set_fsync("everysec");
    let (good, _) = files();
    let full = OpenOptions::new().append(true).open("/dev/full").expect("opens");
    let mut appender = Appender::new(full, links.clone()).expect("starts");
    appender.buffer.extend_from_slice(b"bytes");
    appender.write();
    assert!(status.fails_to(AofFault::Write));
    sync_each(&links, &[&good]);
    assert!(status.fails_to(AofFault::Write), "the bytes are still not in the file");
    appender.file = good;
    appender.write();
    assert!(!status.fails.load(Ordering::Acquire));
}

/// The remaining bytes of an increment that a rewrite replaced are written before anything later.
#[test]
fn what_an_earlier_increment_lacks_comes_first_unless_a_base_has_it() {
    for is_covered in [false, true] {
        let links = links();
        links.status.set_fsync("everysec");
        let (good, _) = files();
        let full = OpenOptions::new().append(true).open("/dev/full").expect("opens");
        let mut appender = Appender::new(full, links.clone()).expect("starts");
        appender.buffer.extend_from_slice(b"earlier");
        appender.switch(good.try_clone().expect("clones"), true);
        appender.buffer.extend_from_slice(b"later");
        appender.write();
        let size = || good.metadata().expect("it is open").len();
        assert_eq!(size(), 0, "nothing goes behind what is missing");
        assert!(links.status.fails_to(AofFault::Write));
        let (other, _) = files();
        match is_covered {
            true => appender.base_is_complete(),
            false => appender.unwritten[0].file = other.clone(),
        }
        appender.write();
        assert_eq!(size(), 5);
        assert_eq!(
            other.metadata().expect("it is open").len(),
            if is_covered { 0 } else { 7 }
        );
        assert!(!links.status.fails.load(Ordering::Acquire));
    }
}
