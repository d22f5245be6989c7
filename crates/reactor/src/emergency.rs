//! The log of signal handlers: a descriptor that they can use without a lock.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

static EMERGENCY_LOG: OnceLock<OwnedFd> = OnceLock::new();

/// Sets the file for crash reports and last messages, for the rest of the process. `log` is a duplicate of the log
/// file's descriptor. Before the first call, they go to standard output.
///
/// # Errors
/// Returns `log` if the emergency log was already set.
pub fn set_emergency_log(log: OwnedFd) -> Result<(), OwnedFd> {
    EMERGENCY_LOG.set(log)
}

/// A log writer without locks, buffers or allocation, suitable for signal handlers.
#[derive(Clone, Copy)]
pub(crate) struct EmergencyLog(BorrowedFd<'static>);

impl EmergencyLog {
    /// Returns the emergency log. Reading a `OnceLock` is one atomic load.
    pub(crate) fn open() -> Self {
        Self(EMERGENCY_LOG.get().map_or(rustix::stdio::stdout(), AsFd::as_fd))
    }

    /// Writes all bytes. Stops at an error, since no channel is left to report it.
    pub(crate) fn write(self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match rustix::io::write(self.0, bytes) {
                Ok(0) => return,
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    pub(crate) fn write_decimal(self, value: i64) {
        let mut digits = [0u8; 20];
        let mut start = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            self.write(b"-");
        }
        self.write(&digits[start..]);
    }

    /// Writes sixteen hexadecimal digits.
    pub(crate) fn write_hexadecimal(self, value: u64) {
        let mut digits = [0u8; 16];
        for (at, digit) in digits.iter_mut().enumerate() {
            let nibble = (value >> (60 - 4 * at)) & 0xf;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        self.write(&digits);
    }
}

impl fmt::Write for EmergencyLog {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}
