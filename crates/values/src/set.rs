//! Sets.

/// There is none yet.
#[derive(Clone, Debug)]
pub enum Set {}

impl Set {
    /// The encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match *self {}
    }

    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match *self {}
    }
}
