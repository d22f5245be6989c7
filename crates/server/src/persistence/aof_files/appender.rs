//! Appends to the current increment: the log thread's part of the append-only file.
//!
//! ```text
//!   append ─▶ buffer ─▶ written ─▶ synced          (each with the log sequence number that it has reached)
//!             settle: one write for all that was appended meanwhile, then according to appendfsync:
//!               always    a sync by the log thread itself: all waiting clients get their replies together
//!               everysec  a sync by the sync thread, a second after the last one
//!               no        none
//! ```
//!
//! Replies wait for `written`, with `always` for `fsynced_offset`.
//!
//! A failed write leaves its bytes in the buffer, is undone in the file, and is retried. Meanwhile the server refuses
//! writes. With `always` this is impossible, because replies promise that the data is on the disk. The process ends
//! then.
//!
//! A rewrite switches to the next increment at the moment of its base. Bytes that could not be written before that
//! moment belong to the previous increment, and to the base. They must not go into the next increment, because the base
//! contains them already. And the next increment must not be written before them as long as the manifest names the old
//! base. So they wait for their own file ([`UnwrittenBytes`]), and everything later waits for them. A base that
//! replaces that file ends the wait.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{LogSequence, ThreadIndex};

use super::{AofFault, AofStatus, FsyncPolicy};
use crate::observability::log;
use crate::propagation::{LogConsumer, LogMilestone, LogTarget, PropagationLog};
use weft_base::files::error_text;
use weft_os::atomic::Ordering;
use weft_os::disk;
use weft_os::sync::Mutex;
use weft_os::sync::mpsc;
use weft_os::time::Instant;

/// The minimum interval between log lines about failing writes.
const ERROR_LOG_INTERVAL: Duration = Duration::from_secs(30);
/// The interval between attempts to write the remaining bytes.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The interval between syncs.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// A buffer larger than this is freed once it has been written, in bytes.
const MAX_IDLE_BUFFER_BYTES: usize = 1 << 20;

/// The appender's connections to the rest of the server.
#[derive(Clone)]
pub struct AppenderLinks {
    /// The log, with its milestones.
    pub propagation: Arc<PropagationLog>,
    /// Parameters and figures of the append-only file.
    pub status: Arc<AofStatus>,
    /// Notifies a worker that a milestone has advanced.
    pub notify_worker: Arc<dyn Fn(ThreadIndex) + Send + Sync>,
    /// Records a duration, for LATENCY.
    pub record_latency: Arc<dyn Fn(&'static str, Duration) + Send + Sync>,
    /// Called when writing starts or ceases to fail.
    pub changed: Arc<dyn Fn() + Send + Sync>,
}

impl AppenderLinks {
    fn advance_milestone(&self, milestone: LogMilestone, sequence: LogSequence) {
        self.propagation.advance_milestone(milestone, sequence);
        self.propagation
            .take_notice_requests(|worker| (self.notify_worker)(worker));
    }
}

/// A request to the sync thread.
struct SyncRequest {
    file: Arc<File>,
    sequence: LogSequence,
}

/// The bytes that could not be written to an increment before the next one was started.
struct UnwrittenBytes {
    file: Arc<File>,
    /// The size of the file in bytes.
    size: u64,
    bytes: Vec<u8>,
}

impl UnwrittenBytes {
    /// Writes and syncs the bytes. After an error the file has its old contents.
    fn write(&mut self) -> io::Result<()> {
        if let Err((written, error)) = write_all(&self.file, &self.bytes) {
            assert!(written < self.bytes.len(), "a failed write has not written everything");
            if written > 0 && self.file.set_len(self.size).is_err() {
                self.size += written as u64;
                self.bytes.drain(..written);
            }
            return Err(error);
        }
        self.size += self.bytes.len() as u64;
        self.bytes.clear();
        disk::sync_data(&self.file)
    }
}

/// The appender of the current increment.
pub struct AofAppender {
    links: AppenderLinks,
    file: Arc<File>,
    syncs: mpsc::Sender<SyncRequest>,
    buffer: Vec<u8>,
    /// The missing bytes of earlier increments, oldest first. While there are any, nothing else is written.
    unwritten: VecDeque<UnwrittenBytes>,
    /// The size of the file in bytes.
    size: u64,
    /// The size of the file when a sync was last requested, in bytes.
    synced_size: u64,
    appended: LogSequence,
    written: LogSequence,
    last_sync: Instant,
    last_error: Option<Instant>,
    /// The last timestamp written to the file, in seconds since the Unix epoch.
    last_timestamp_s: u64,
}

/// Opens an increment for appending. `is_fresh` empties it, and syncs that: a file of the same name may be left from a
/// rewrite that a power failure has undone, and its commands must not come back when a manifest names the file.
///
/// # Errors
/// If it cannot be opened.
pub fn open(path: &Path, is_fresh: bool) -> io::Result<File> {
    // Append mode also ensures that no gap remains when the rest of a failed write is truncated.
    if is_fresh {
        sync_if_possible(&File::create(path)?)?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}

/// Syncs a file with its size. A file that cannot be synced by its nature, such as a device, counts as synced.
///
/// # Errors
/// If the file cannot be synced for another reason.
pub fn sync_if_possible(file: &File) -> io::Result<()> {
    match disk::sync_all(file) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

impl AofAppender {
    /// Creates the appender of `file`, and starts the sync thread.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn new(file: File, links: AppenderLinks) -> io::Result<Self> {
        let (syncs, jobs) = mpsc::channel();
        let of_thread = links.clone();
        weft_os::thread::Builder::new()
            .name("weft-aof-sync".to_owned())
            .spawn(move || run_sync_thread(&jobs, &of_thread))?;
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        Ok(AofAppender {
            links,
            file: Arc::new(file),
            syncs,
            buffer: Vec::new(),
            unwritten: VecDeque::new(),
            size,
            synced_size: size,
            appended: LogSequence::NONE,
            written: LogSequence::NONE,
            last_sync: Instant::now(),
            last_error: None,
            last_timestamp_s: 0,
        })
    }

    /// Switches to another file. `is_named` is `true` if the manifest names the old file. Then it has to be completed,
    /// unless a new base makes it superfluous. It is synced before anything is written to the next file, because a file
    /// whose end is missing must be the last one. The thread that rewrites has synced most of it before.
    pub fn switch_file(&mut self, file: File, is_named: bool) {
        self.write();
        let file = Arc::new(file);
        let old = std::mem::replace(&mut self.file, file);
        // If only bytes of earlier increments are missing, this increment has to wait for them, too: a sync of it would
        // count all that was appended as being on the disk.
        if !self.has_unwritten_bytes() {
            match self.links.status.fsync() {
                FsyncPolicy::Always => self.sync_now(&old),
                FsyncPolicy::EverySecond | FsyncPolicy::No if is_named => self.sync_replaced(old),
                FsyncPolicy::EverySecond | FsyncPolicy::No => self.sync_in_background(old),
            }
        } else if is_named {
            log::warning!("Unwritten bytes of the previous AOF file are kept until the rewrite ends.");
            self.unwritten.push_back(UnwrittenBytes {
                file: old,
                size: self.size,
                bytes: std::mem::take(&mut self.buffer),
            });
        } else {
            self.buffer.clear();
        }
        assert!(self.buffer.is_empty(), "no byte of an increment goes into the next one");
        (self.size, self.synced_size) = (0, 0);
        self.update_buffered_bytes();
    }

    /// Discards the missing bytes of earlier increments after a base that contains them has been installed.
    pub fn discard_unwritten(&mut self) {
        self.unwritten.clear();
        self.update_buffered_bytes();
        self.links.propagation.wake();
    }

    /// Writes and syncs everything, at the end of the append-only file or of the process.
    pub fn finish(&mut self) {
        self.write();
        if self.has_unwritten_bytes() {
            return;
        }
        match disk::sync_data(&self.file) {
            Ok(()) => {
                self.synced_size = self.size;
                self.links.advance_milestone(LogMilestone::Synced, self.written);
            }
            Err(error) => log::warning!("Fail to fsync the AOF file: {}", error_text(&error)),
        }
    }

    /// Returns `true` if bytes are waiting because they could not be written.
    fn has_unwritten_bytes(&self) -> bool {
        !self.buffer.is_empty() || !self.unwritten.is_empty()
    }

    fn update_buffered_bytes(&self) {
        let earlier: usize = self.unwritten.iter().map(|part| part.bytes.capacity()).sum();
        let bytes = (self.buffer.capacity() + earlier) as u64;
        self.links.status.buffered_bytes.store(bytes, Ordering::Relaxed);
    }

    fn write(&mut self) {
        while let Some(part) = self.unwritten.front_mut() {
            if let Err(error) = part.write() {
                let tells = self.should_log_error();
                if tells {
                    log::warning!("Error writing to the AOF file: {}", error_text(&error));
                }
                return self.refuse_writes(&error);
            }
            self.unwritten.pop_front();
        }
        if !self.buffer.is_empty() && !self.write_buffer() {
            return;
        }
        if self.links.status.is_failing.load(Ordering::Relaxed) && self.links.status.set_failure(AofFault::Write, None)
        {
            (self.links.changed)();
            log::notice!("AOF write error looks solved. The server can write again.");
        }
        self.update_written_milestone();
    }

    /// Writes the buffer. Returns `true` if everything was written.
    fn write_buffer(&mut self) -> bool {
        let pause_us = self.links.status.flush_pause_us.load(Ordering::Relaxed);
        if pause_us > 0 {
            weft_os::thread::sleep(Duration::from_micros(pause_us));
        }
        let start = Instant::now();
        let result = write_all(&self.file, &self.buffer);
        let took = start.elapsed();
        let kind = match () {
            () if self.links.status.pending_syncs.load(Ordering::Relaxed) > 0 => "aof-write-pending-fsync",
            () if self.links.status.is_snapshot_running.load(Ordering::Relaxed) => "aof-write-active-child",
            () => "aof-write-alone",
        };
        (self.links.record_latency)(kind, took);
        (self.links.record_latency)("aof-write", took);
        let is_written = result.is_ok();
        match result {
            Ok(()) => {
                self.grow(self.buffer.len());
                if self.buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
                    self.buffer = Vec::new();
                }
                self.buffer.clear();
            }
            Err((written, error)) => self.handle_write_error(written, &error),
        }
        self.update_buffered_bytes();
        is_written
    }

    fn grow(&mut self, bytes: usize) {
        self.size += bytes as u64;
        let status = &self.links.status;
        status.current_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn update_written_milestone(&mut self) {
        assert!(
            self.written <= self.appended && !self.has_unwritten_bytes(),
            "the milestone of written bytes moves when everything that was appended is written"
        );
        if self.written != self.appended {
            self.written = self.appended;
            self.links.advance_milestone(LogMilestone::Written, self.written);
        }
    }

    /// Handles a failed write that has put `written` bytes into the file.
    #[cold]
    fn handle_write_error(&mut self, written: usize, error: &io::Error) {
        assert!(written < self.buffer.len(), "a failed write has not written everything");
        let tells = self.should_log_error();
        if tells && written == 0 {
            log::warning!("Error writing to the AOF file: {}", error_text(error));
        }
        let mut left_in_file = 0;
        if written > 0 {
            let expected = self.buffer.len();
            if tells {
                log::warning!("Short write while writing to the AOF file: (nwritten={written}, expected={expected})");
            }
            if let Err(error) = self.file.set_len(self.size) {
                left_in_file = written;
                if tells {
                    log::warning!(
                        "Could not remove short write from the append-only file. The server may refuse to load the \
                         AOF the next time it starts.  ftruncate: {}",
                        error_text(&error)
                    );
                }
            }
        }
        if self.links.status.fsync() == FsyncPolicy::Always {
            log::warning!("Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting...");
            std::process::exit(1);
        }
        self.grow(left_in_file);
        self.buffer.drain(..left_in_file);
        self.refuse_writes(error);
    }

    /// Returns `true` if another line about failing writes is due in the log.
    fn should_log_error(&mut self) -> bool {
        let tells = self.last_error.is_none_or(|last| last.elapsed() > ERROR_LOG_INTERVAL);
        if tells {
            self.last_error = Some(Instant::now());
        }
        tells
    }

    fn refuse_writes(&mut self, error: &io::Error) {
        // Replies do not wait for a full disk. As in Valkey, executed commands are answered and further writes are
        // refused.
        self.links.advance_milestone(LogMilestone::Written, self.appended);
        if self.links.status.set_failure(AofFault::Write, Some(error_text(error))) {
            (self.links.changed)();
        }
    }

    /// Syncs according to `appendfsync`. Returns the delay until the next check.
    fn sync(&mut self) -> Option<Duration> {
        assert!(
            self.synced_size <= self.size,
            "an increment of {} bytes has no more bytes on the disk",
            self.size
        );
        // Read before the failure: a sync that is no longer pending has recorded its result.
        let has_pending_syncs = self.links.status.pending_syncs.load(Ordering::Acquire) > 0;
        // After a failed sync, the next sync decides if the written data is on the disk.
        let unsynced = self.synced_size != self.size || self.links.status.is_failing(AofFault::Sync);
        if !unsynced || self.links.status.suspends_fsync() {
            let is_synced = !unsynced && !has_pending_syncs;
            if is_synced && !self.has_unwritten_bytes() && self.links.status.fsync() != FsyncPolicy::No {
                // Sequence numbers whose writes are not for the file have nothing to wait for.
                self.reach_synced(self.written);
            }
            return (unsynced || has_pending_syncs).then_some(SYNC_INTERVAL);
        }
        match self.links.status.fsync() {
            FsyncPolicy::No if !self.links.status.is_failing(AofFault::Sync) => None,
            FsyncPolicy::Always => {
                let file = self.file.clone();
                self.sync_now(&file);
                self.synced_size = self.size;
                None
            }
            FsyncPolicy::EverySecond | FsyncPolicy::No => {
                let left = SYNC_INTERVAL.saturating_sub(self.last_sync.elapsed());
                if !left.is_zero() {
                    return Some(left);
                }
                if has_pending_syncs {
                    return Some(RETRY_INTERVAL);
                }
                self.sync_in_background(self.file.clone());
                self.synced_size = self.size;
                // If it fails, writes are refused, and nothing else would make this thread sync again.
                Some(SYNC_INTERVAL)
            }
        }
    }

    fn reach_synced(&self, sequence: LogSequence) {
        if self.links.propagation.milestone_sequence(LogMilestone::Synced) < sequence {
            self.links.advance_milestone(LogMilestone::Synced, sequence);
        }
    }

    fn sync_now(&mut self, file: &File) {
        let start = Instant::now();
        if let Err(error) = disk::sync_data(file) {
            log::warning!(
                "Can't persist AOF for fsync error when the AOF fsync policy is 'always': {}. Exiting...",
                error_text(&error)
            );
            std::process::exit(1);
        }
        (self.links.record_latency)("aof-fsync-always", start.elapsed());
        self.last_sync = Instant::now();
        // An error of the time before `always`.
        record_sync(Ok(()), self.written, &self.links);
    }

    /// Syncs a file that was replaced by the next one. A failure counts like one of the sync thread. The file is synced
    /// again before anything is written to the next one.
    fn sync_replaced(&mut self, file: Arc<File>) {
        self.last_sync = Instant::now();
        let result = disk::sync_data(&file);
        let is_unsynced = matches!(&result, Err(error) if error.kind() != io::ErrorKind::InvalidInput);
        record_sync(result, self.written, &self.links);
        if is_unsynced {
            self.unwritten.push_back(UnwrittenBytes {
                file,
                size: self.size,
                bytes: Vec::new(),
            });
        }
    }

    /// The current file, to sync what was written so far on another thread.
    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    fn sync_in_background(&mut self, file: Arc<File>) {
        self.last_sync = Instant::now();
        self.links.status.pending_syncs.fetch_add(1, Ordering::AcqRel);
        let sequence = self.written;
        if self.syncs.send(SyncRequest { file, sequence }).is_err() {
            self.links.status.pending_syncs.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Runs the sync thread.
fn run_sync_thread(jobs: &mpsc::Receiver<SyncRequest>, links: &AppenderLinks) {
    let mut last_sequence = LogSequence::NONE;
    while let Ok(SyncRequest { file, sequence }) = jobs.recv() {
        assert!(sequence >= last_sequence, "syncs are requested in the order of the log");
        last_sequence = sequence;
        record_sync(disk::sync_data(&file), sequence, links);
        let pending = links.status.pending_syncs.fetch_sub(1, Ordering::AcqRel);
        assert!(pending > 0, "a sync that ends was counted as pending");
    }
}

/// Records the result of a sync that covers everything up to a log sequence number.
fn record_sync(result: io::Result<()>, sequence: LogSequence, links: &AppenderLinks) {
    match result {
        Ok(()) => {
            if links.status.set_failure(AofFault::Sync, None) {
                (links.changed)();
                log::notice!("AOF fsync error looks solved. The server can write again.");
            }
            links.advance_milestone(LogMilestone::Synced, sequence);
        }
        // The file cannot be synced by its nature, so this is not an error.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        Err(error) => {
            let reason = error_text(&error);
            log::warning!("Fail to fsync the AOF file: {reason}");
            if links.status.set_failure(AofFault::Sync, Some(reason)) {
                (links.changed)();
            }
        }
    }
}

/// Writes all bytes. On failure the error contains the number of bytes written before.
fn write_all(mut file: &File, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let all = bytes.len();
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err((all - bytes.len(), io::ErrorKind::WriteZero.into())),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((all - bytes.len(), error)),
        }
    }
    Ok(())
}

/// The appender as a consumer of the propagation log.
pub struct AppenderConsumer(pub Arc<Mutex<AofAppender>>);

impl LogConsumer for AppenderConsumer {
    fn target(&self) -> LogTarget {
        LogTarget::FILE
    }

    fn append(&mut self, _offset: u64, bytes: &[u8]) {
        let appender = &mut *self.0.lock();
        if appender.links.status.writes_timestamps.load(Ordering::Relaxed) {
            let now_s = unix_ms() / 1000;
            if now_s > appender.last_timestamp_s {
                appender.last_timestamp_s = now_s;
                appender.buffer.extend_from_slice(format!("#TS:{now_s}\r\n").as_bytes());
            }
        }
        appender.buffer.extend_from_slice(bytes);
        appender.update_buffered_bytes();
    }

    fn flush(&mut self, sequence: LogSequence) -> Option<Duration> {
        let appender = &mut *self.0.lock();
        assert!(
            sequence >= appender.appended,
            "the log does not go back from sequence number {} to {sequence}",
            appender.appended
        );
        appender.appended = sequence;
        appender.write();
        if appender.has_unwritten_bytes() {
            return Some(RETRY_INTERVAL);
        }
        appender.sync()
    }
}

#[cfg(test)]
mod tests;
