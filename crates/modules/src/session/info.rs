//! The figures of the server that modules read.

/// What any thread may ask of the server about its figures.
pub trait InfoHost {
    /// Returns the text of a section of INFO; of the default ones if `section` is empty.
    fn info_text(&self, section: &[u8]) -> Vec<u8>;
}
