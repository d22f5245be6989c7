//! Clocks, random bytes, and the latency monitor.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_longlong, c_uchar};
use std::io::Read;

use weft_base::clock;
use weft_os::sync::Mutex;

use super::Functions;
use crate::functions;
use crate::session::{self, clock::cached_us};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("CachedMicroseconds", cached_microseconds),
    ("GetRandomBytes", random_bytes),
    ("GetRandomHexChars", random_hex_chars),
    ("LatencyAddSample", latency_add_sample),
    ("Microseconds", microseconds),
    ("Milliseconds", milliseconds),
    ("MonotonicMicroseconds", monotonic_microseconds),
];

/// The names of events of modules, which live as long as the process.
static EVENTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns milliseconds since the Unix epoch.
extern "C" fn milliseconds() -> c_longlong {
    clock::unix_ms() as c_longlong
}

/// Returns microseconds since the Unix epoch.
extern "C" fn microseconds() -> c_longlong {
    clock::unix_us() as c_longlong
}

/// Returns microseconds since the Unix epoch, the same during the whole call into modules.
extern "C" fn cached_microseconds() -> c_longlong {
    cached_us() as c_longlong
}

/// Returns microseconds since an unspecified point.
extern "C" fn monotonic_microseconds() -> u64 {
    clock::monotonic_us()
}

/// Fills a buffer with bytes that cannot be predicted.
///
/// # Panics
/// If the operating system has none.
fn fill_randomly(buffer: &mut [u8]) {
    let filled = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(buffer));
    filled.expect("the system has random bytes");
}

/// Returns the buffer of a module.
///
/// # Safety
/// The pointer is null, or that of `len` bytes, which nothing else uses (rule 1).
unsafe fn buffer_mut<'a>(pointer: *mut c_uchar, len: usize) -> &'a mut [u8] {
    if pointer.is_null() {
        return &mut [];
    }
    // SAFETY: the caller promises it. The bytes are initialised, so that they can be a slice.
    unsafe {
        pointer.write_bytes(0, len);
        std::slice::from_raw_parts_mut(pointer, len)
    }
}

/// Fills a buffer with random bytes.
///
/// # Safety
/// As for [`buffer_mut`].
unsafe extern "C" fn random_bytes(target: *mut c_uchar, len: usize) {
    // SAFETY: the caller promises it.
    fill_randomly(unsafe { buffer_mut(target, len) });
}

/// Fills a buffer with random hexadecimal digits.
///
/// # Safety
/// As for [`buffer_mut`].
unsafe extern "C" fn random_hex_chars(target: *mut c_char, len: usize) {
    // SAFETY: the caller promises it.
    let digits = unsafe { buffer_mut(target.cast(), len) };
    fill_randomly(digits);
    for digit in digits {
        *digit = b"0123456789abcdef"[usize::from(*digit & 15)];
    }
}

/// Adds a duration, in milliseconds, to the history of an event of the module.
///
/// # Safety
/// The event is a C string.
unsafe extern "C" fn latency_add_sample(event: *const c_char, milliseconds: c_longlong) {
    // SAFETY: the caller promises it.
    let event = unsafe { CStr::from_ptr(event) }.to_string_lossy();
    let name = {
        let mut events = EVENTS.lock();
        match events.get(&*event) {
            Some(name) => *name,
            None => {
                let name: &'static str = Box::leak(Box::from(&*event));
                events.insert(name);
                name
            }
        }
    };
    if let (Some(host), Ok(milliseconds)) = (session::host(), u64::try_from(milliseconds)) {
        host.add_latency_sample(name, milliseconds);
    }
}

#[cfg(test)]
mod tests;
