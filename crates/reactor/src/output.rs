//! Bytes to send: copied bytes, with large shared values inserted at positions between them.
//!
//! ```text
//!   bytes:   $20000\r\n | \r\n:1\r\n$30000\r\n | \r\n
//!                       ▲                      ▲
//!   shared:        (8, value A)           (26, value B)
//! ```
//!
//! A shared value is sent directly from its own memory, between the bytes before its position and the bytes after it.
/// A reference-counted value pinned for the socket. It is dropped when the kernel has taken all of it, or when the
/// connection is dropped.
pub type SharedBytes = Box<dyn AsRef<[u8]> + Send>;

/// The output of one connection. Reply writers append to [`bytes`](Self::bytes) directly.
#[derive(Default)]
pub struct Output {
    /// The copied bytes. Appending is always allowed. Once shared values are present, shorten the output only with
    /// [`truncate`](Self::truncate) and [`clear`](Self::clear).
    pub bytes: Vec<u8>,
    /// Positions in `bytes`, ascending, and the value that is sent at each position.
    pub(crate) shared: Vec<(usize, SharedBytes)>,
    pub(crate) shared_len: usize,
}

/// A position in an [`Output`] to which it can be truncated later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputMark {
    bytes: usize,
    shared: usize,
}

impl Output {
    /// Creates an empty output without allocating.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns `true` if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.shared.is_empty()
    }

    /// The number of bytes to send, including those of shared values.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_len
    }

    /// Appends `value`: it is sent after the bytes that are present now.
    pub fn push_shared(&mut self, value: SharedBytes) {
        self.shared_len += value.as_ref().as_ref().len();
        self.shared.push((self.bytes.len(), value));
    }

    /// Borrows the copied bytes and the shared values separately, for a writer that needs both at once. Values of fewer
    /// than `min_shared_bytes` bytes are to be copied.
    pub fn parts_mut(&mut self, min_shared_bytes: usize) -> (&mut Vec<u8>, SharedValues<'_>) {
        let splices = SharedValues {
            shared: &mut self.shared,
            len: &mut self.shared_len,
            min_bytes: min_shared_bytes,
        };
        (&mut self.bytes, splices)
    }

    /// Empties the output and keeps its allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.shared_len = 0;
    }

    /// Returns a mark of the current end.
    pub fn mark(&self) -> OutputMark {
        OutputMark {
            bytes: self.bytes.len(),
            shared: self.shared.len(),
        }
    }

    /// Removes everything that was appended since `mark` was taken.
    pub fn truncate(&mut self, mark: OutputMark) {
        self.bytes.truncate(mark.bytes);
        for (_, value) in self.shared.drain(mark.shared.min(self.shared.len())..) {
            self.shared_len -= value.as_ref().as_ref().len();
        }
    }

    /// Removes everything that was appended since `mark` was taken, and returns it as a new output.
    pub fn split_off(&mut self, mark: OutputMark) -> Output {
        let base = mark.bytes.min(self.bytes.len());
        let shared: Vec<(usize, SharedBytes)> = self
            .shared
            .drain(mark.shared.min(self.shared.len())..)
            .map(|(position, value)| (position - base, value))
            .collect();
        let shared_len = shared.iter().map(|(_, value)| value.as_ref().as_ref().len()).sum();
        self.shared_len -= shared_len;
        Output {
            bytes: self.bytes.split_off(base),
            shared,
            shared_len,
        }
    }

    /// Copies the shared values to their positions in `bytes`, for a caller that must inspect all bytes.
    pub fn copy_shared(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let mut all = Vec::with_capacity(self.len());
        let mut copied = 0;
        for (position, value) in self.shared.drain(..) {
            all.extend_from_slice(&self.bytes[copied..position]);
            all.extend_from_slice(value.as_ref().as_ref());
            copied = position;
        }
        all.extend_from_slice(&self.bytes[copied..]);
        self.bytes = all;
        self.shared_len = 0;
    }

    /// Appends all of `other` and leaves it empty. Bytes are copied, unless this output is empty. Shared values are
    /// moved.
    pub fn append(&mut self, other: &mut Output) {
        if self.is_empty() && other.bytes.len() > self.bytes.capacity() {
            std::mem::swap(self, other);
            return;
        }
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.shared
            .extend(other.shared.drain(..).map(|(position, value)| (base + position, value)));
        self.shared_len += other.shared_len;
        other.clear();
    }
}

/// The shared values of an [`Output`] whose copied bytes are borrowed elsewhere.
pub struct SharedValues<'a> {
    shared: &'a mut Vec<(usize, SharedBytes)>,
    len: &'a mut usize,
    min_bytes: usize,
}

impl SharedValues<'_> {
    /// Returns `true` if a value of this many bytes is to be shared, and not copied.
    #[inline]
    pub fn takes(&self, bytes: usize) -> bool {
        bytes >= self.min_bytes
    }

    /// Adds `value`, to be sent after the first `position` copied bytes. Positions must ascend.
    pub fn push(&mut self, position: usize, value: SharedBytes) {
        *self.len += value.as_ref().as_ref().len();
        self.shared.push((position, value));
    }

    /// The number of shared values.
    pub fn count(&self) -> usize {
        self.shared.len()
    }

    /// Removes all but the first `count` values.
    pub fn truncate(&mut self, count: usize) {
        for (_, value) in self.shared.drain(count.min(self.shared.len())..) {
            *self.len -= value.as_ref().as_ref().len();
        }
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self
            .shared
            .iter()
            .map(|(position, value)| (*position, value.as_ref().as_ref().len()));
        let shared: Vec<(usize, usize)> = shared.collect();
        formatter
            .debug_struct("Output")
            .field("bytes", &self.bytes.len())
            .field("shared", &shared)
            .finish()
    }
}

#[cfg(test)]
mod tests;
