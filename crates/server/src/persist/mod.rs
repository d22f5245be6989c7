//! Values as bytes: the encodings of RDB files, which DUMP and RESTORE use as well.

pub mod lzf;
pub mod payload;
pub mod strings;
