//! Logs requests that violate the protocol.

use std::ops::Range;

use weft_config::id;
use weft_resp::ProtocolError;

use super::thread::ThreadState;
use crate::net::client::ClientFlags;
use crate::net::connection::Connection;
use crate::observability::log::{self, Level};

/// The number of received bytes that are shown.
const SAMPLE_BYTES: usize = 128;

/// Logs a request that violates the protocol, with the beginning and the end of what was received. `received` is the
/// part of the input that has not been executed.
#[cold]
pub(super) fn log_protocol_error(
    thread: &ThreadState,
    connection: &Connection,
    received: Range<usize>,
    error: ProtocolError,
) {
    let is_replicated = ClientFlags::PRIMARY.union(ClientFlags::SLOT_IMPORT);
    let level = match connection.client.flags.intersects(is_replicated) {
        true => Level::Warning,
        false => Level::Verbose,
    };
    if !log::is_enabled(level) {
        return;
    }
    let hides_user_data = thread.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
    let buffers = connection.buffers(0);
    let client = connection.client.log_line(thread.now_ms, buffers, hides_user_data);
    let sample = match hides_user_data {
        true => "*redacted*".to_owned(),
        false => sample_of(connection.input.get(received).unwrap_or_default()),
    };
    let reason = error.log_reason();
    log::write(
        level,
        format_args!("Protocol error ({reason}) from client: {client}. Query buffer: {sample}"),
    );
}

/// Returns the first and the last of the bytes. A byte that cannot be printed becomes a dot.
fn sample_of(bytes: &[u8]) -> String {
    let shown = |bytes: &[u8]| -> String {
        let printable = |byte: &u8| {
            if matches!(byte, b' '..=b'~') {
                char::from(*byte)
            } else {
                '.'
            }
        };
        bytes.iter().map(printable).collect()
    };
    if bytes.len() < SAMPLE_BYTES {
        return format!("'{}'", shown(bytes));
    }
    let (first, rest) = bytes.split_at(SAMPLE_BYTES / 2);
    let (hidden, last) = rest.split_at(rest.len() - SAMPLE_BYTES / 2);
    format!(
        "'{}' (... more {} bytes ...) '{}'",
        shown(first),
        hidden.len(),
        shown(last)
    )
}

#[cfg(test)]
mod tests {
    use super::sample_of;

    #[test]
    fn a_sample_has_both_ends_on_one_line() {
        assert_eq!(sample_of(b"*1\r\n$x\r\n"), "'*1..$x..'");
        let long = [vec![b'a'; 64], vec![b'b'; 100], vec![0xff; 64]].concat();
        let (first, last) = ("a".repeat(64), ".".repeat(64));
        assert_eq!(sample_of(&long), format!("'{first}' (... more 100 bytes ...) '{last}'"));
        assert_eq!(sample_of(b""), "''");
    }
}
