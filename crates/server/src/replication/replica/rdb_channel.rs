//! A full synchronisation over two connections: the dump over a separate one, the replication stream over the link at
//! the same time.
//!
//! ```text
//!   link            +DUALCHANNELSYNC            ┌─▶ set-rdb-client-id, PSYNC ─▶ +CONTINUE ─▶ buffered ─┐
//!   dump            connect, SYNC ─▶ $ENDOFF ───┴─▶ loaded as any dump (`transfer.rs`) ────────────────┴▶ executed
//! ```
//!
//! This thread loads the dump. A second thread buffers the stream from the link, up to the hard output buffer limit of
//! replicas. The rest of the stream stays at the primary. If either connection breaks, the other one is closed too. The
//! loaded data has an offset in the primary's history, so if the link breaks after that, the next link may resume from
//! there.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_base::DbIndex;
use weft_base::clock::unix_ms;

use super::handshake::{self, DumpPosition};
use super::link::{LinkFailure, PrimaryLink};
use super::{connect, transfer};
use crate::keyspace::Seat;
use crate::observability::log;
use crate::replication::{Endpoint, LinkState, RoleState, TransferProgress};
use crate::state::Server;
use weft_config::ClientClass;
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::thread;
use weft_os::time::Instant;

/// The size of a buffer block in bytes.
const BLOCK_BYTES: usize = 16 * 1024;
/// The number of buffered blocks above which the lazyfree thread frees them.
const LAZYFREE_BLOCKS: usize = 64;
/// The interval at which the buffering thread checks if the dump is loaded.
const LOAD_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The interval between two keepalive newlines.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The part of the stream that was received over the link and has not been executed.
pub struct BufferedStream {
    server: Arc<Server>,
    blocks: VecDeque<Vec<u8>>,
}

impl BufferedStream {
    fn new(server: Arc<Server>, first: Vec<u8>) -> BufferedStream {
        server
            .replication
            .buffered_stream_peak_bytes
            .store(0, Ordering::Relaxed);
        let mut held = BufferedStream {
            server,
            blocks: VecDeque::new(),
        };
        if !first.is_empty() {
            held.blocks.push_back(first);
        }
        held.publish();
        held
    }

    /// Returns the next block.
    pub fn pop_block(&mut self) -> Option<Vec<u8>> {
        let block = self.blocks.pop_front();
        self.publish();
        block
    }

    fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    fn publish(&self) {
        let repl = &self.server.replication;
        repl.buffered_stream_bytes.store(self.bytes(), Ordering::Relaxed);
        repl.buffered_stream_peak_bytes
            .fetch_max(self.bytes(), Ordering::Relaxed);
    }

    /// Returns `true` if the limit is exceeded.
    fn is_full(&self) -> bool {
        let limit = self.server.config.output_buffer_limits()[ClientClass::Replica as usize].hard_bytes;
        limit > 0 && self.bytes() > limit
    }

    /// Receives from the link into the buffer, waiting up to [`LOAD_CHECK_INTERVAL`]. Returns `false` if the buffer is
    /// full.
    fn receive(&mut self, link: &mut PrimaryLink) -> Result<bool, LinkFailure> {
        let needs_block = self.blocks.back().is_none_or(|block| block.len() >= BLOCK_BYTES);
        if needs_block {
            if self.is_full() {
                return Ok(false);
            }
            self.blocks.push_back(Vec::with_capacity(BLOCK_BYTES));
            self.publish();
        }
        if let Some(block) = self.blocks.back_mut() {
            assert!(block.len() < BLOCK_BYTES, "a full block is followed by a new one");
            let room = BLOCK_BYTES - block.len();
            link.receive(block, room, LOAD_CHECK_INTERVAL)?;
        }
        Ok(true)
    }
}

impl Drop for BufferedStream {
    fn drop(&mut self) {
        let bytes = self.bytes();
        let blocks = std::mem::take(&mut self.blocks);
        self.publish();
        if blocks.len() > LAZYFREE_BLOCKS {
            // The next attempt to synchronise does not wait until they are freed.
            let lazyfree = &self.server.background.lazyfree;
            lazyfree.free(blocks.len() as u64, bytes as usize, Box::new(blocks));
        }
    }
}

/// Performs a full synchronisation. Returns the database that the stream has selected there, and the part of the stream
/// that was buffered meanwhile.
///
/// # Errors
/// When the synchronisation fails. The old data may have been deleted then.
pub fn receive(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    primary: &Endpoint,
) -> Result<(DbIndex, BufferedStream), LinkFailure> {
    let role_epoch = link.role_epoch();
    log::notice!("Dual channel replication: PSYNC is not possible, initialize RDB channel.");
    let socket = connect::connect(server, primary, role_epoch)?;
    let mut dump = PrimaryLink::new(socket, server.clone(), role_epoch, &primary.host)?;
    dump.sends_keepalives = false;
    let begin = |state: &mut RoleState| state.transfer = TransferProgress::default();
    server
        .replication
        .in_role_epoch(role_epoch, begin)
        .ok_or(LinkFailure::EpochOver)?;
    let place = handshake::request_dump(&mut dump)?;
    assert_eq!(
        dump.role_epoch(),
        link.role_epoch(),
        "both connections belong to one role epoch"
    );
    let received = receive_dump_and_stream(server, seat, link, &mut dump, &place);
    drop(dump);
    if received.is_err() {
        log::notice!("Dual channel replication: Aborting dual channel sync");
    }
    server.replication.drop_dump_socket(role_epoch);
    received
}

fn receive_dump_and_stream(
    server: &Arc<Server>,
    seat: &mut Seat,
    link: &mut PrimaryLink,
    dump: &mut PrimaryLink,
    place: &DumpPosition,
) -> Result<(DbIndex, BufferedStream), LinkFailure> {
    let loaded = AtomicBool::new(false);
    thread::scope(|scope| {
        let keep = || {
            let kept = buffer_stream(link, place, &loaded);
            if let Err(failure) = &kept
                && !loaded.load(Ordering::Acquire)
            {
                if matches!(failure, LinkFailure::Closed) {
                    log::warning!("Dual channel replication: Provisional primary closed connection");
                }
                // The dump is useless without the stream.
                server.replication.shut_link_down();
            }
            kept
        };
        let spawned = thread::Builder::new()
            .name("weft-held".into())
            .spawn_scoped(scope, keep);
        let keeper = spawned.map_err(|error| {
            LinkFailure::from_io_error("Starting the thread that buffers the stream of the PRIMARY", &error)
        })?;
        let taken = transfer::receive_in_transfer_phase(server, seat, dump, &place.id, place.offset);
        loaded.store(true, Ordering::Release);
        if taken.is_err() {
            server.replication.shut_link_down();
        }
        let kept = keeper.join().unwrap_or_else(|_| {
            Err(LinkFailure::from_io_error(
                "Buffering the stream of the PRIMARY",
                &io::ErrorKind::Other.into(),
            ))
        });
        match (taken, kept) {
            (Ok(db), Ok(held)) => Ok((db, held)),
            // If one side was closed because of the other one, the other one's error is the useful one.
            (Err(LinkFailure::Closed), Err(failure)) | (Err(failure), _) | (Ok(_), Err(failure)) => Err(failure),
        }
    })
}

/// Requests the stream that follows the dump, and buffers it until the dump is loaded.
fn buffer_stream(
    link: &mut PrimaryLink,
    place: &DumpPosition,
    loaded: &AtomicBool,
) -> Result<BufferedStream, LinkFailure> {
    handshake::request_stream_after_dump(link, place)?;
    let server = link.server().clone();
    let repl = &server.replication;
    let mut held = BufferedStream::new(server.clone(), std::mem::take(&mut link.unread));
    if loaded.load(Ordering::Acquire) {
        log::debug!("Dual channel replication: Psync established after rdb load");
        return Ok(held);
    }
    let begin = |state: &mut RoleState| {
        state.phase = LinkState::Transfer;
        state.transfer.last_io_s = unix_ms() / 1000;
    };
    repl.in_role_epoch(link.role_epoch(), begin)
        .ok_or(LinkFailure::EpochOver)?;
    let mut beaten = Instant::now();
    let mut is_full = false;
    while !loaded.load(Ordering::Acquire) {
        if is_full {
            thread::sleep(LOAD_CHECK_INTERVAL);
        } else if !held.receive(link)? {
            is_full = true;
            log::notice!(
                "Dual channel replication: Replication buffer limit reached ({} bytes), stopping buffering. Further \
                 accumulation will occur on primary side.",
                held.bytes()
            );
        }
        if repl.role_epoch() != link.role_epoch() {
            return Err(LinkFailure::EpochOver);
        }
        if beaten.elapsed() >= KEEPALIVE_INTERVAL {
            beaten = Instant::now();
            link.send_raw(b"\n")?;
        }
    }
    Ok(held)
}
