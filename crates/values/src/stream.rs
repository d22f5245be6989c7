//! Streams.

/// There is none yet.
#[derive(Clone, Debug)]
pub enum Stream {}

impl Stream {
    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match *self {}
    }
}
