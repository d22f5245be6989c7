//! Output in flight: a queue of batches, sent from the front, in order, across partial writes.
//!
//! The kernel may be reading the front batch, since a completion backend passes it pointers into the batch. The front
//! batch is therefore only advanced, never appended to. Batches behind it still absorb small output. A stream of short
//! messages to a slow reader then costs bytes, and not one allocation per message.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::iter;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::{Output, SharedBytes, Socket};

/// The maximum number of pieces that the kernel accepts in one call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// The maximum number of bytes that one connection sends in a turn. A socket may accept megabytes at once, and all
/// other connections wait meanwhile.
pub(crate) const MAX_BYTES_PER_TURN: usize = 512 * 1024;

/// Output up to this size is copied into the last waiting batch instead of being queued separately.
const MAX_ABSORBED_BYTES: usize = 16 * 1024;

/// A waiting batch of at least this size absorbs no more output.
const FULL_BATCH_BYTES: usize = 64 * 1024;

/// One output and its send progress.
struct OutputBatch {
    bytes: Vec<u8>,
    /// The number of leading bytes of `bytes` that the kernel has taken.
    sent: usize,
    /// The values not completely sent yet. The front one may be sent in part.
    shared: VecDeque<(usize, SharedBytes)>,
    /// The number of bytes of the front shared value that the kernel has taken.
    shared_sent: usize,
}

impl OutputBatch {
    fn new(output: Output, sent: usize) -> Self {
        Self {
            bytes: output.bytes,
            sent,
            shared: output.shared.into(),
            shared_sent: 0,
        }
    }

    /// Returns the allocations of a completely sent batch as an empty output.
    fn into_output(mut self) -> Output {
        self.bytes.clear();
        self.shared.clear();
        Output {
            bytes: self.bytes,
            shared: self.shared.into(),
            shared_len: 0,
        }
    }

    /// Records that the kernel took `count` more bytes. Returns the part of `count` that exceeds this batch: it belongs
    /// to the next batches, and this batch is finished.
    fn advance(&mut self, mut count: usize) -> usize {
        loop {
            let boundary = self
                .shared
                .front()
                .map_or(self.bytes.len(), |(at, _)| self.clamp_position(*at));
            let copied = count.min(boundary - self.sent);
            self.sent += copied;
            count -= copied;
            let Some((_, value)) = self.shared.front() else {
                return count;
            };
            let remaining = value.as_ref().as_ref().len().saturating_sub(self.shared_sent);
            if self.sent < boundary || count < remaining {
                self.shared_sent += count;
                return 0;
            }
            count -= remaining;
            self.shared_sent = 0;
            self.shared.pop_front();
        }
    }

    /// The next contiguous bytes to send.
    fn front(&self) -> &[u8] {
        let Some((at, value)) = self.shared.front() else {
            return &self.bytes[self.sent..];
        };
        match self.clamp_position(*at) {
            boundary if boundary > self.sent => &self.bytes[self.sent..boundary],
            _ => value.as_ref().as_ref().get(self.shared_sent..).unwrap_or_default(),
        }
    }

    /// A shared value's position, clamped to the range between the sent bytes and the end. It is always inside that
    /// range unless the owner of the output shortened `bytes` directly.
    fn clamp_position(&self, position: usize) -> usize {
        position.clamp(self.sent, self.bytes.len())
    }

    fn is_finished(&self) -> bool {
        self.sent == self.bytes.len() && self.shared.is_empty()
    }

    fn absorb(&mut self, output: &mut Output) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&output.bytes);
        self.shared.extend(
            output
                .shared
                .drain(..)
                .map(|(position, value)| (base + position, value)),
        );
        output.clear();
    }

    /// Appends the pieces still to be sent, in order, until `pieces` is full or they have `share` bytes. Subtracts the
    /// appended bytes from `share`.
    fn append_pieces<'a>(&'a self, pieces: &mut Vec<IoSlice<'a>>, share: &mut usize) {
        let mut add = |piece: &'a [u8]| {
            let piece = &piece[..piece.len().min(*share)];
            if !piece.is_empty() && pieces.len() < MAX_PIECES {
                pieces.push(IoSlice::new(piece));
                *share -= piece.len();
            }
            pieces.len() < MAX_PIECES && *share > 0
        };
        let mut from = self.sent;
        let mut skip = self.shared_sent;
        for (position, value) in &self.shared {
            let to = self.clamp_position(*position).max(from);
            let value = value.as_ref().as_ref();
            let room = add(&self.bytes[from..to]) && add(&value[skip.min(value.len())..]);
            if !room {
                return;
            }
            from = to;
            skip = 0;
        }
        add(&self.bytes[from..]);
    }
}

/// Output that the kernel has not taken yet, in order. It moves with a connection that changes reactors.
#[derive(Default)]
pub struct SendQueue {
    batches: VecDeque<OutputBatch>,
    len: usize,
}

impl SendQueue {
    /// The number of bytes that the kernel has not taken.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of the copied bytes, in bytes. A batch is freed once the kernel has taken all of it.
    pub fn memory_bytes(&self) -> usize {
        self.batches.iter().map(|batch| batch.bytes.capacity()).sum()
    }

    /// Returns `true` if the kernel has taken everything.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Appends `output` to the queue and leaves it empty. With this method the type also serves as a queue for a caller
    /// that must process bytes before they are sent.
    pub fn push(&mut self, output: &mut Output) {
        self.enqueue(output);
    }

    /// The next contiguous bytes. The slice is empty if the front only has an empty part that must be dropped;
    /// [`consume`](Self::consume) then still advances.
    pub fn front(&self) -> &[u8] {
        self.batches.front().map_or(&[], OutputBatch::front)
    }

    /// Removes the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.advance(count);
    }

    /// Sends `output`; nothing may be in flight before it. The part that the socket does not accept now, or that
    /// exceeds the limit of a turn, stays here. Otherwise `output` is left empty, with its allocation.
    ///
    /// # Errors
    /// Fails if the stream is broken. `output` is emptied then, since a part of it may have been sent.
    pub(crate) fn send(&mut self, socket: &Socket, output: &mut Output) -> io::Result<()> {
        debug_assert!(self.is_empty(), "output would overtake the output in flight");
        let total = output.len();
        let result = if output.shared.is_empty() {
            self.send_plain(socket, output)
        } else {
            self.send_pieces(socket, output)
        };
        match result {
            Ok(sent) => self.len = total - sent,
            Err(_) => output.clear(),
        }
        result.map(drop)
    }

    fn send_plain(&mut self, socket: &Socket, output: &mut Output) -> io::Result<usize> {
        let share = &output.bytes[..output.bytes.len().min(MAX_BYTES_PER_TURN)];
        let sent = retry_interrupted(|| rustix::net::send(socket, share, SendFlags::NOSIGNAL))?;
        if sent == output.bytes.len() {
            output.clear();
        } else {
            self.batches.push_back(OutputBatch::new(std::mem::take(output), sent));
        }
        Ok(sent)
    }

    fn send_pieces(&mut self, socket: &Socket, output: &mut Output) -> io::Result<usize> {
        let mut batch = OutputBatch::new(std::mem::take(output), 0);
        let mut total = 0;
        loop {
            let (sent, blocked) = send_vectored(socket, iter::once(&batch), MAX_BYTES_PER_TURN - total)?;
            total += sent;
            batch.advance(sent);
            if batch.is_finished() {
                *output = batch.into_output();
                return Ok(total);
            }
            if blocked || total == MAX_BYTES_PER_TURN {
                self.batches.push_back(batch);
                return Ok(total);
            }
        }
    }

    /// Queues `output` behind the output in flight and leaves it empty.
    pub(crate) fn enqueue(&mut self, output: &mut Output) {
        self.len += output.len();
        let behind_front = self.batches.len() > 1;
        match self.batches.back_mut() {
            Some(last)
                if behind_front && output.bytes.len() <= MAX_ABSORBED_BYTES && last.bytes.len() < FULL_BATCH_BYTES =>
            {
                last.absorb(output);
            }
            _ => self.batches.push_back(OutputBatch::new(std::mem::take(output), 0)),
        }
    }

    /// Sends until the socket accepts no more, the limit of a turn is reached or nothing is left. Returns `true` if the
    /// kernel will report when the socket accepts more.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        let mut share = MAX_BYTES_PER_TURN;
        while !self.is_empty() && share > 0 {
            let (sent, blocked) = send_vectored(socket, self.batches.iter(), share)?;
            self.advance(sent);
            share -= sent;
            if blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn advance(&mut self, mut sent: usize) {
        self.len = self.len.saturating_sub(sent);
        while let Some(front) = self.batches.front_mut() {
            sent = front.advance(sent);
            if !front.is_finished() {
                return;
            }
            self.batches.pop_front();
        }
        debug_assert_eq!(
            (sent, self.len),
            (0, 0),
            "the number of sent bytes does not match the queue"
        );
    }
}

impl std::fmt::Debug for SendQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Unsent").field("bytes", &self.len).finish()
    }
}

/// Passes the pieces of `batches`, at most `share` bytes, to the kernel in one call. Returns the number of bytes taken,
/// and `true` if the socket is full, that is, if it took less than it was given.
fn send_vectored<'a>(
    socket: &Socket,
    batches: impl Iterator<Item = &'a OutputBatch>,
    mut share: usize,
) -> io::Result<(usize, bool)> {
    let mut pieces = Vec::new();
    for batch in batches {
        batch.append_pieces(&mut pieces, &mut share);
        if pieces.len() == MAX_PIECES || share == 0 {
            break;
        }
    }
    let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
    if offered == 0 {
        return Ok((0, false));
    }
    let mut no_control = SendAncillaryBuffer::default();
    let sent = retry_interrupted(|| rustix::net::sendmsg(socket, &pieces, &mut no_control, SendFlags::NOSIGNAL))?;
    Ok((sent, sent < offered))
}

/// Returns the number of bytes taken by the kernel: none if the socket is full. Retries interrupted calls.
fn retry_interrupted(mut send: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
    weft_os::descriptor::activity();
    loop {
        match send() {
            Ok(sent) => {
                // Once more: the peer may have looked for input in between.
                weft_os::descriptor::activity();
                return Ok(sent);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
