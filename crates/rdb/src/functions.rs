//! Function libraries as FUNCTION DUMP encodes them: the records of an RDB file, with a version and a checksum.

use super::dump_payload::{VERSION, append_footer};
use super::strings::{ParsedString, RdbReader, write_string};

/// The opcode of a library.
pub const LIBRARY: u8 = 245;
/// The opcode of a library in the format used before the first release of functions.
pub const LIBRARY_BEFORE_RELEASE: u8 = 246;
const FOOTER_BYTES: usize = 10;

/// Returns the payload of libraries. `compress` is `rdbcompression`.
pub fn dump(codes: &[Vec<u8>], compress: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for code in codes {
        out.push(LIBRARY);
        write_string(&mut out, code, compress);
    }
    append_footer(&mut out, VERSION);
    out
}

/// The codes of the libraries in a verified payload.
///
/// # Errors
/// The error text, if the payload is invalid.
pub fn load(payload: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut codes = Vec::new();
    let mut reader = RdbReader::new(&payload[..payload.len().saturating_sub(FOOTER_BYTES)]);
    while let Some(mark) = reader.byte() {
        match mark {
            LIBRARY => {}
            LIBRARY_BEFORE_RELEASE => return Err("Pre-GA function format not supported"),
            _ => return Err("given type is not a function"),
        }
        codes.push(match reader.string() {
            Some(ParsedString::Bytes(bytes)) => bytes.to_vec(),
            Some(ParsedString::Decompressed(bytes)) => bytes,
            Some(ParsedString::Int(number)) => number.to_string().into_bytes(),
            None => return Err("Failed loading library payload"),
        });
    }
    Ok(codes)
}

#[cfg(test)]
mod tests;
