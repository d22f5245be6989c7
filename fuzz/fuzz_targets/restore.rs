//! Payloads of RESTORE: an error, or a value whose DUMP is loaded again as the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    weft_server::fuzzing::restore(body);
});
